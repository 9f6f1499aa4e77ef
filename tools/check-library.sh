#!/bin/bash
# Can this libflextensor.so be preloaded into every process of every machine that torch's wheels run on? A preloaded library reaches shells,
# compilers and ptxas; one missing library or one newer symbol version ends each of them. Prints what is wrong; exit code 1 if anything is.
# usage: tools/check-library.sh LIBRARY [HIGHEST_GLIBC]     (HIGHEST_GLIBC: 2.28, that of the manylinux_2_28 wheels)
set -euo pipefail
library=${1:?usage: tools/check-library.sh LIBRARY [HIGHEST_GLIBC]}
floor=${2:-2.28}
root=$(cd "$(dirname "$0")/.." && pwd)
wrong=0
complain() { echo "$library: $*" >&2; wrong=1; }

dynamic=$(readelf -dW "$library")
while read -r needed; do
    case $needed in
        libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-x86-64.so.2) ;;
        *) complain "needs $needed, which is not part of glibc" ;;
    esac
done < <(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
grep -q STATIC_TLS <<<"$dynamic" && complain "takes static thread storage, which late loading may not find"
grep -q '(TEXTREL)' <<<"$dynamic" && complain "has text relocations"
for flag in BIND_NOW NODELETE SYMBOLIC; do
    grep -q "$flag" <<<"$dynamic" || complain "is linked without $flag"
done
grep -q '(SONAME).*\[libflextensor.so\]' <<<"$dynamic" || complain "has another soname than libflextensor.so"
readelf -lW "$library" | grep -q 'GNU_STACK.*RWE' && complain "wants an executable stack"

highest=$(readelf -VW "$library" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -1)
[ "$(printf '%s\n%s\n' "$highest" "$floor" | sort -V | tail -1)" = "$floor" ] || complain "needs GLIBC_$highest; allowed is up to $floor"

readelf -VW "$library" | grep -q GLIBC_PRIVATE && complain "needs private symbols of one glibc release"

# Exports: the table of hooks, dlsym, our own C interface. Versioned ones would lose against the unversioned names that programs ask for.
exported=$(nm -D --defined-only "$library" | awk '{print $3}' | sort)
table=$(sed -n 's/^| `\(cu[A-Za-z0-9_]*\)`.*/\1/p' "$root/docs/hooks.md" | sort)
extra=$(comm -23 <(sed '/^ft_/d; /^dlsym$/d' <<<"$exported") <(echo "$table"))
missing=$(comm -13 <(echo "$exported") <(printf '%s\ndlsym\nft_status\n' "$table" | sort))
[ -z "$extra" ] || complain "exports" $extra
[ -z "$missing" ] || complain "does not export" $missing

# And the proof: it is preloaded into a program that then runs as without it.
said=$(LD_PRELOAD=$(realpath "$library") /bin/sh -c 'echo out' 2>&1) || complain "a shell fails under it"
[ "$said" = out ] || complain "a shell says under it: $said"
exit $wrong
