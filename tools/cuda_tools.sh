#!/usr/bin/env bash
# Fetches ptxas, cuobjdump and nvdisasm as the wheels of CUDA carry them, once, into target/cuda-tools, and prints the folder that holds them.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=target/cuda-tools
if [ ! -x "$folder/bin/cuobjdump" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/wheels"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder/wheels" \
        nvidia-cuda-nvcc==13.5.37 nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37 >&2
    for wheel in "$folder"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$folder"
    done
    rm -rf "$folder/wheels"
    mkdir -p "$folder/bin"
    for tool in ptxas nvdisasm cuobjdump; do
        mv "$folder/nvidia/cu13/bin/$tool" "$folder/bin/$tool"
        chmod +x "$folder/bin/$tool"
    done
    rm -rf "$folder/nvidia"
fi
realpath "$folder/bin"
