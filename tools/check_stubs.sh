#!/usr/bin/env bash
# Does _native.pyi say what the native module is? mypy's stubtest compares names, parameters and defaults; the rest of the package is typed in its
# own files (py.typed). Needs the native module (tools/python_package.sh --native-only); installs mypy into target/types on the first run.
# usage: tools/check_stubs.sh
set -euo pipefail
cd "$(dirname "$0")/.."
venv=target/types
if [ ! -x "$venv/bin/stubtest" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check mypy==1.18.2
fi
# What else the package imports is not looked into: torch need not be there.
printf '[mypy]\nfollow_imports = skip\nignore_missing_imports = True\n' >"$venv/mypy.ini"
# Every name is public: a list of them would only repeat the stub.
printf '%s\n' 'flextensor\._native\.__all__' >"$venv/allowed"
PYTHONPATH=pyhook/python "$venv/bin/stubtest" --mypy-config-file "$venv/mypy.ini" --allowlist "$venv/allowed" flextensor._native
