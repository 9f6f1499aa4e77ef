#!/bin/bash
# Builds the libflextensor.so that is passed on: against glibc 2.28 (the floor of torch's wheels) and with nothing but glibc to load. Rust's own
# linker setup on a newer system would ask for that system's symbol versions and for libgcc_s; so the linker is zig's, which carries glibc's
# symbol lists and its own unwinder. Prints the path of the library as its last line.
# usage: tools/build-release.sh [FOLDER]     (default: target/release-library)
# FT_TARGET_DIR: where cargo builds (default: target). FT_ZIG_VENV: where zig lives (default: target/zig; made on the first run).
set -euo pipefail
cd "$(dirname "$0")/.."
target_dir=${FT_TARGET_DIR:-target}
venv=${FT_ZIG_VENV:-$target_dir/zig}
out=${1:-$target_dir/release-library}
triple=x86_64-unknown-linux-gnu
glibc=2.28

if [ ! -x "$venv/bin/cargo-zigbuild" ]; then
    python3 -m venv "$venv" >&2
    "$venv/bin/pip" install --quiet --disable-pip-version-check ziglang==0.17.1 cargo-zigbuild==0.24.1 >&2 || {
        echo "zig could not be installed; a library for this machine only: cargo build -p flextensor-interposer --release" >&2
        exit 1
    }
fi
if rustup --version >/dev/null 2>&1 && ! rustup target list --installed 2>/dev/null | grep -qx "$triple"; then
    rustup target add "$triple" >&2
fi
venv=$(realpath "$venv")
PATH="$venv/bin:$PATH" CARGO_TARGET_DIR=$target_dir "$venv/bin/cargo-zigbuild" zigbuild --release \
    -p flextensor-interposer --target "$triple.$glibc" >&2

mkdir -p "$out"
cp "$target_dir/$triple/release/libflextensor.so" "$out/libflextensor.so"
bash tools/check-library.sh "$out/libflextensor.so" "$glibc"
echo "$out/libflextensor.so"
