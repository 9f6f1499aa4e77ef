#!/usr/bin/env bash
# Builds what is needed and runs the main job: a program runs once without us and once under a budget that its weights do not fit in, and both must give
# the same outputs. With a GPU, torch and transformers that is a Llama (bench/run.py --quick); otherwise a small transformer on simcuda, the driver without a GPU.
# usage: tools/demo.sh [BUDGET]     (of the small transformer; default: 96MiB)
# DEMO_PROFILE=dev builds without optimisation; PYTHON names the interpreter that has torch. Exit code 1 when outputs differ.
set -euo pipefail
cd "$(dirname "$0")/.."
budget=${1:-96MiB}
python=${PYTHON:-python3}
profile=${DEMO_PROFILE:-release}
folder=${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")

has_gpu() { nvidia-smi >/dev/null 2>&1 && "$python" -c 'import torch, transformers; assert torch.cuda.is_available()' >/dev/null 2>&1; }

if has_gpu; then
    cargo build --quiet --profile "$profile" -p flextensor-interposer
    exec "$python" bench/run.py --lib "$folder/libflextensor.so" --quick --out "$folder/demo"
fi

echo "no GPU with torch and transformers here: a small transformer on a simulated driver (docs/simcuda.md)"
cargo build --quiet --profile "$profile" -p flextensor-interposer -p simcuda -p flextensor-tests --bins --lib
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$(realpath "$folder/libsimcuda.so")" "$work/libcuda.so.1"
program=$(realpath "$folder/transformer")
library=$(realpath "$folder/libflextensor.so")
# A link and a GPU with the proportions of real ones: everything is slower than here, copies most of all.
export LD_LIBRARY_PATH=$work SIMCUDA_H2D_GBPS=2

echo
echo "== without us"
"$program" | tee "$work/without" | grep -v '^forward'
echo
echo "== LD_PRELOAD=libflextensor.so FT_MAX_GPU_MEM=$budget"
LD_PRELOAD=$library FT_MAX_GPU_MEM=$budget "$program" | tee "$work/under" | grep -v '^forward'

echo
forwards=$(grep -c '^forward' "$work/without")
if cmp -s <(grep '^forward' "$work/without") <(grep '^forward' "$work/under"); then
    echo "outputs of $forwards forwards: equal, bit for bit"
else
    echo "outputs differ:"
    diff <(grep '^forward' "$work/without") <(grep '^forward' "$work/under") || true
    exit 1
fi
