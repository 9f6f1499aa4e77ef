#!/usr/bin/env bash
# Builds the wheel that is passed on, for every Python from 3.10 and every system that torch's wheels run on (abi3, manylinux_2_28), and tries it in a
# clean virtual environment. Both shared objects are linked by zig against glibc 2.28 (tools/build-release.sh). Prints the wheel's path as its last line.
# usage: tools/build-wheel.sh [FOLDER]     (default: target/wheels)
# FT_TARGET_DIR, FT_ZIG_VENV: as for tools/build-release.sh
set -euo pipefail
cd "$(dirname "$0")/.."
target_dir=${FT_TARGET_DIR:-target}
venv=${FT_ZIG_VENV:-$target_dir/zig}
out=${1:-$target_dir/wheels}
library=$(bash tools/build-release.sh | tail -n 1)
package=pyhook/python/flextensor
# Under another name and moved: a process that has the old file mapped keeps it.
cp "$library" "$package/.libflextensor.so.new" && mv "$package/.libflextensor.so.new" "$package/libflextensor.so"
[ -x "$venv/bin/maturin" ] || "$venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9.4,<2' >&2
rm -f "$out"/flextensor-*.whl
PATH="$(realpath "$venv")/bin:$PATH" CARGO_TARGET_DIR=$target_dir "$venv/bin/maturin" build --release --strip --zig \
    --compatibility manylinux_2_28 --out "$out" >&2
wheel=$(ls "$out"/flextensor-*.whl)
bash tools/check-wheel.sh "$wheel"
echo "$wheel"
