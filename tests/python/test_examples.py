"""The examples print what their first lines promise for a machine without a GPU."""

import os
import subprocess
import sys

import pytest
from conftest import PACKAGE, ROOT
from promised import runs

# Writes a profile and no report of itself: test_plan.py reads what it makes.
ELSEWHERE = {"llama_profile.py"}
NEEDS = {"generate.py": "transformers"}
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name not in ELSEWHERE)


def promised(text):
    """What is promised without a GPU, which may be `the same` as on one."""
    return (runs(text, "without a GPU") or runs(text, "on a GPU"))[0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_promises(name, tmp_path):
    pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"needs the package {NEEDS[name]}")
    path = ROOT / "examples" / name
    kept = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**kept, "PYTHONPATH": str(PACKAGE.parent), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    expected = promised(path.read_text())
    assert expected and done.stdout.splitlines() == expected


def test_every_example_is_listed_and_compiles():
    listed = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        compile(path.read_text(), str(path), "exec")
        assert f"| {path.name} |" in listed


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_list_of_examples_says_what_each_prints(name):
    docstring = (ROOT / "examples" / name).read_text().split('"""')[1]
    prints = docstring[docstring.index("\nPrints") + 1 :].rstrip()
    assert f"### {name}\n```text\n{prints}\n```" in (ROOT / "examples" / "README.md").read_text()
