#!/usr/bin/env bash
# Makes every measurement that the documents speak of, in parts of less than ten minutes each; on a machine with a GPU, from the root of a checkout.
# everything.sh PART LIBRARY [WHEELS]: PART is one of llama, resident, mixed, peers, slow-peers, others, programs. Results go to $OUT, or to bench/results.
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:?a part: llama, resident, mixed, peers, slow-peers, others or programs}
library=${2:?the path of libflextensor.so, with its Python package beside it}
wheels=${3:-.whl}
out=${OUT:-bench/results}
memory=${FT_BENCH_MEMORY:-/dev/shm}
run() { python bench/run.py --lib "$library" --packages-in "$memory" --out "$out" "$@"; }

case "$part" in
llama)
    # Time over bound, budgets held, equality, and seconds from the start of the process to the first steady forward.
    run --builds gpu --budgets 4,8,16,24,40 --timed 8 --name llama-gpu --total-limit 400
    run --builds cpu --native-once --against "$out/llama-gpu.jsonl" --modes flextensor --budgets 8 --timed 4 --name llama-cpu --total-limit 120
    ;;
resident)
    # What a program pays of which nothing is streamed.
    for case in decode1 batch64 prefill4096; do
        python bench/turns.py --lib "$library" --packages-in "$memory" --out "$out" --name resident --case $case --program-option=--layers=8
    done
    ;;
mixed) run --program mixed --name mixed --total-limit 560 ;;
peers)
    run --modes native,flextensor_py,flextensor --match flextensor_py --budgets 8,16 --wheels "$wheels" --name peers --total-limit 560
    ;;
slow-peers)
    run --modes accelerate,diffusers_group,accelerate_map --peer-budgets 8 --wheels "$wheels" --against "$out/peers.jsonl" --name slow-peers --total-limit 400
    ;;
others)
    run --program diffusion --name diffusion --total-limit 200
    run --program small --name small --total-limit 180
    run --program unet --wheels "$wheels" --name unet --total-limit 180
    ;;
programs) python tests/gpu/run.py --lib "$library" --jobs 6 ;;
*)
    echo "everything.sh: unknown part $part" >&2
    exit 2
    ;;
esac
