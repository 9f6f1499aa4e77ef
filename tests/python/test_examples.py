"""The examples print what their first lines promise for a machine without a GPU."""

import os
import re
import subprocess
import sys

import pytest
from conftest import PACKAGE, ROOT

# Writes a profile and no report of itself: test_plan.py reads what it makes.
ELSEWHERE = {"llama_profile.py"}
NEEDS = {"generate.py": "transformers"}
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name not in ELSEWHERE)


def promised(text):
    """The indented lines behind the last line of the file's docstring that begins with `Prints`, for the machine without a GPU."""
    docstring = text.split('"""')[1]
    parts = re.split(r"^Prints (on a GPU|without a GPU)[^\n]*\n", docstring, flags=re.MULTILINE)
    by_machine = dict(zip(parts[1::2], parts[2::2], strict=True))
    block = by_machine["without a GPU"]
    if not block.startswith("    "):  # "the same"
        block = by_machine["on a GPU"]
    lines = []
    for line in block.splitlines():
        if not line.startswith("    "):
            break
        lines.append(line[4:])
    return lines


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
