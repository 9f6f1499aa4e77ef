"""The Python blocks of the documentation run: those of one page one after the other, in one namespace. Blocks behind the line
`<!-- needs a GPU -->` are only compiled."""

import re

import pytest
from conftest import ROOT

_BLOCK = re.compile(r"(<!-- needs a GPU -->\s*\n)?```python\n(.*?)```", re.DOTALL)
PAGES = sorted(
    page for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")] if "```python\n" in page.read_text()
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_runs(page, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    namespace = {"__name__": "snippet"}
    for found in _BLOCK.finditer(text):
        # Errors name the line of the page.
        line = text.count("\n", 0, found.start(2))
        code = compile("\n" * line + found[2], str(page), "exec")
        if not found[1]:
            exec(code, namespace)


def test_there_are_pages_with_blocks():
    assert {"python-api.md", "strategies.md"} <= {page.name for page in PAGES}
