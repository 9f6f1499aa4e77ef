#!/usr/bin/env bash
# Passes all tests, in the order in which a fault is cheapest to find: format, lints, documentation, Rust tests (on simcuda, a driver without a GPU),
# the gates of the library that is passed on, Python tests. Needs Rust, Python 3.10 or newer and a C compiler; installs the rest into target/ and the
# user's cache folder. Arguments: names of steps, to run only these.
set -euo pipefail
cd "$(dirname "$0")/.."
steps=${*:-format lints documentation rust release python}
wants() { case " $steps " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

if wants format; then
    step "format"
    cargo fmt --all --check
fi
if wants lints; then
    step "lints"
    cargo clippy --quiet --workspace --all-targets -- -D warnings
fi
if wants documentation; then
    step "documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --document-private-items
fi
if wants rust; then
    step "Rust tests"
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --no-fail-fast
    else
        cargo test --workspace --no-fail-fast
    fi
    cargo test --quiet --workspace --doc
fi
if wants release; then
    step "gates of the library that is passed on"
    library=$(tools/build-release.sh | tail -n 1)
    cuda_tools=$(tools/cuda_tools.sh)
    runner="cargo test -p flextensor-tests --test e2e loader"
    cargo nextest --version >/dev/null 2>&1 && runner="cargo nextest run -p flextensor-tests --test e2e loader"
    TEST_PRELOAD=$(realpath "$library") TEST_CUDA_TOOLS=$cuda_tools $runner
fi
if wants python; then
    step "Python tests"
    tools/test_python.sh
    tools/check_stubs.sh
    python3 -m pytest --version >/dev/null 2>&1 || python3 -m pip install --quiet pytest
    python3 -m pytest -q -p no:cacheprovider tests/gpu/test_runner.py tests/gpu/test_suites.py
fi
step "done"
