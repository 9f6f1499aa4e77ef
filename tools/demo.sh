#!/usr/bin/env bash
# Builds what is needed and runs the main job: a program runs once without us and once under a budget that its weights do not fit in; both must give the
# same outputs, and the budget must be held. With a GPU, torch and transformers that is a Llama of 7.4 GiB under 2 and 4 GiB (bench/run.py --quick);
# otherwise a small transformer on simcuda, the driver without a GPU.
# usage: tools/demo.sh [BUDGET]     (of the small transformer; default: 96MiB of its 234)
# DEMO_PROFILE=dev builds without optimisation; PYTHON names the interpreter that has torch. Exit code 0: all of it held; 1: something did not.
set -euo pipefail
cd "$(dirname "$0")/.."
budget=${1:-96MiB}
python=${PYTHON:-python3}
profile=${DEMO_PROFILE:-release}
folder=${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")

missing() {
    nvidia-smi >/dev/null 2>&1 || { echo "no GPU here"; return; }
    "$python" -c 'import torch, transformers; assert torch.cuda.is_available()' >/dev/null 2>&1 ||
        echo "$python has no transformers, or no torch that sees the GPU (PYTHON=... names another interpreter)"
}
building() { echo "building ($profile; minutes the first time, seconds later)"; }
built() { echo "built in ${SECONDS}s"; }

reason=$(missing)
if [ -z "$reason" ]; then
    building
    # The Python hook must lie beside the library, as in an installation: the package's folder has both.
    env -u CARGO_TARGET_DIR tools/python_package.sh "$profile"
    built
    echo "a Llama, 4 layers of 70B shape (7.4 GiB): without us, then with 2 and with 4 GiB for its weights"
    exec "$python" bench/run.py --lib pyhook/python/flextensor/libflextensor.so --quick --out "$folder/demo"
fi

echo "$reason: a small transformer on a simulated driver instead (docs/simcuda.md)"
building
cargo build --profile "$profile" -p flextensor-interposer -p simcuda -p flextensor-tests --bins --lib
built
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$(realpath "$folder/libsimcuda.so")" "$work/libcuda.so.1"
program=$(realpath "$folder/transformer")
library=$(realpath "$folder/libflextensor.so")
# A link and a GPU with the proportions of real ones: everything is slower than here, copies most of all.
export LD_LIBRARY_PATH=$work SIMCUDA_H2D_GBPS=2

echo
echo "== without us"
"$program" | tee "$work/without" | grep --line-buffered -v '^forward'
echo
echo "== LD_PRELOAD=libflextensor.so FT_MAX_GPU_MEM=$budget (sizes in the GPU count whole pages of 2 MiB)"
LD_PRELOAD=$library FT_MAX_GPU_MEM=$budget FT_REPORT=$work/report.json "$program" | tee "$work/under" | grep --line-buffered -v '^forward'

# number WORD FILE: the first number in the first line that begins with the word.
number() { sed -n "s/^ *$1[^0-9]*\([0-9]*\).*/\1/p" "$2" | head -n 1; }
status=0
echo
echo "== verdict"
forwards=$(grep -c '^forward' "$work/without")
if cmp -s <(grep '^forward' "$work/without") <(grep '^forward' "$work/under"); then
    echo "outputs of $forwards forwards: equal, bit for bit"
else
    echo "outputs differ:"
    diff <(grep '^forward' "$work/without") <(grep '^forward' "$work/under") || true
    status=1
fi
weights=$(number weights "$work/without")
held=$(number memory "$work/under")
allowed=$([ -s "$work/report.json" ] && number '"budget_bytes":' "$work/report.json" || true)
if [ -z "$held" ] || [ -z "$allowed" ]; then
    echo "budget: not in force, see the lines above"
    status=1
elif [ $((held << 20)) -gt "$allowed" ]; then
    echo "budget: broken, $held MiB of weights in GPU memory, $((allowed >> 20)) allowed"
    status=1
else
    echo "budget: held, $held MiB of GPU memory for $weights MiB of weights, $((allowed >> 20)) allowed"
fi
exit $status
