#!/usr/bin/env bash
# Puts the two built shared objects beside the Python package's sources, where a wheel has them too:
# pyhook/python/flextensor becomes a working installation (preload its libflextensor.so, or put pyhook/python
# on the path).
#
# Usage: python_package.sh [--native-only] [PROFILE]   PROFILE: dev (default) or release
set -eu
cd "$(dirname "$0")/.."
native_only=
[ "${1:-}" = --native-only ] && { native_only=1; shift; }
profile=${1:-dev}
folder=target/$([ "$profile" = dev ] && echo debug || echo "$profile")
package=pyhook/python/flextensor
# Written under another name and moved: a process that has the old file mapped keeps it.
place() { cp "$1" "$package/.$2.new" && mv "$package/.$2.new" "$package/$2"; }
cargo build --quiet --profile "$profile" -p flextensor-pyhook
place "$folder/lib_native.so" _native.abi3.so
if [ -z "$native_only" ]; then
    cargo build --quiet --profile "$profile" -p flextensor-interposer
    place "$folder/libflextensor.so" libflextensor.so
fi
