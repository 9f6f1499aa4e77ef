#!/usr/bin/env bash
# Makes the virtual environment in which tests/python runs: torch's CUDA build on a machine without a GPU.
#
# Prints the environment's folder as its last line and exits 0; exits 3 with one reason on stderr when the
# packages cannot be had, so that a caller can skip the tests and say why. The folder is kept between runs:
# FT_TEST_VENV, else the user's cache folder.
set -u
here=$(cd "$(dirname "$0")" && pwd)
torch=2.11.0
python=${PYTHON:-python3}
tag=$("$python" -c 'import sys; print("py%d%d" % sys.version_info[:2])') || { echo "no python3 found" >&2; exit 3; }
venv=${FT_TEST_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/flextensor/torch-$torch-$tag}
ready="$venv/.ready-1"
if [ ! -e "$ready" ]; then
    mkdir -p "$(dirname "$venv")"
    fail() { echo "torch $torch for the tests could not be installed: $1" >&2; exit 3; }
    "$python" -m venv --clear "$venv" >&2 || fail "no virtual environment"
    pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2; }
    pip --no-deps "torch==$torch" || fail "no torch wheel"
    # torch's own pure-Python needs; of the NVIDIA packages only the runtime, whose copy answers "no device"
    # honestly.
    pip filelock 'typing-extensions>=4.10' 'sympy>=1.13.3' networkx jinja2 'fsspec>=0.8.5' 'setuptools<82' numpy pytest || fail "no Python packages"
    pip --no-deps nvidia-cuda-runtime==13.0.96 || fail "no CUDA runtime wheel"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    runtime=$(find "$site/nvidia" -name 'libcudart.so.13' | head -n 1)
    [ -n "$runtime" ] || fail "no libcudart.so.13 in its wheel"
    "$venv/bin/python" "$here/torch_cpu_stubs.py" "$site/torch/lib" "$venv/stubs" libcudart.so.13 >&2 || fail "stand-ins did not build"
    ln -sf "$runtime" "$venv/stubs/libcudart.so.13"
    LD_LIBRARY_PATH="$venv/stubs" "$venv/bin/python" -c 'import torch; assert not torch.cuda.is_available()' >&2 || fail "import failed"
    touch "$ready"
fi
# Environments of earlier versions have not got it; the tests of loading are skipped without it.
"$venv/bin/python" -c 'import safetensors' 2>/dev/null || "$venv/bin/python" -m pip install --quiet --disable-pip-version-check safetensors >&2 || true
echo "$venv"
