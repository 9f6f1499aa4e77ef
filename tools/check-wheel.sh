#!/usr/bin/env bash
# Is this a wheel that can be passed on? Its tag, what is in it, and that it works in a clean virtual environment without torch: the command, the
# configuration, and the library that it preloads. Prints what is wrong; exit code 1 if anything is.
# usage: tools/check-wheel.sh WHEEL
set -euo pipefail
wheel=$(realpath "${1:?usage: tools/check-wheel.sh WHEEL}")
cd "$(dirname "$0")/.."
wrong=0
complain() { echo "$wheel: $*" >&2; wrong=1; }

case $(basename "$wheel") in
    flextensor-*-cp310-abi3-manylinux_2_28_x86_64.whl) ;;
    *) complain "has another tag than cp310-abi3-manylinux_2_28_x86_64" ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m zipfile -e "$wheel" "$folder/unpacked"
# Every Python file of the sources, the types, and both shared objects.
while read -r file; do
    [ -e "$folder/unpacked/flextensor/$file" ] || complain "lacks flextensor/$file"
done < <(cd pyhook/python/flextensor && find . -name '*.py' -o -name '*.pyi' -o -name py.typed | sed 's|^\./||'; echo libflextensor.so; echo _native.abi3.so)
while read -r file; do
    case $file in *.py | *.pyi | */py.typed | *.so) ;; *) complain "has $file" ;; esac
done < <(cd "$folder/unpacked" && find flextensor -type f)
bash tools/check-library.sh "$folder/unpacked/flextensor/libflextensor.so" || wrong=1
highest=$(readelf -VW "$folder/unpacked/flextensor/_native.abi3.so" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -1)
[ "$(printf '%s\n2.28\n' "$highest" | sort -V | tail -1)" = 2.28 ] || complain "its native module needs GLIBC_$highest"

python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
cd "$folder" # where no sources of the package are
# What tells the scripts where to build is no option of the library's: it would be named as an unknown one.
say() { env -u LD_PRELOAD -u PYTHONPATH -u FT_TARGET_DIR -u FT_ZIG_VENV "$folder/venv/bin/$1" "${@:2}"; }
say flextensor --help >/dev/null || complain "its command does not run"
[ "$(say flextensor run -- /bin/echo it runs)" = "it runs" ] || complain "flextensor run does not run a program"
say python -c 'import flextensor; assert flextensor.load_config(use_env=False).num_blocks == 4 and not flextensor.is_active()' ||
    complain "its configuration cannot be read"
say flextensor run -- "$folder/venv/bin/python" -c 'import flextensor; assert flextensor.is_active()' ||
    complain "its library is not there under flextensor run"
exit $wrong
