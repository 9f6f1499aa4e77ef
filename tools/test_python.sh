#!/usr/bin/env bash
# Runs tests/python: installs torch for a machine without a GPU (tools/ci_torch.sh), builds the native module
# and the recording stand-in for libflextensor.so, and preloads it. Arguments go to pytest; the whole folder
# is run unless they begin with a path. Without torch the tests are skipped, with the reason as the last line.
set -eu
cd "$(dirname "$0")/.."
tools/python_package.sh --native-only
stand_in=target/fake_interposer.so
gcc -shared -fPIC -O1 -Wall -Werror -o "$stand_in" tests/python/fake_interposer.c -ldl -lpthread
if ! venv=$(tools/ci_torch.sh); then
    echo "tests/python: skipped, torch could not be installed (reason above)"
    exit 0
fi
case ${1:-} in "" | -*) set -- tests/python "$@" ;; esac
LD_LIBRARY_PATH="$venv/stubs" LD_PRELOAD="$PWD/$stand_in" FAKE_ARRIVE="$PWD/pyhook/python/flextensor/_arrive.py" \
    exec "$venv/bin/python" -m pytest -q --show-capture=stderr -p no:cacheprovider "$@"
