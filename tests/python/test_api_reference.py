"""The API reference is what the docstrings say now."""

import inspect
import os
import sys

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "api-reference.md"


@pytest.fixture
def made(monkeypatch):
    pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    sys.modules.pop("api_reference", None)
    import api_reference

    return api_reference.page()


def test_the_page_is_made_of_the_docstrings_of_today(made):
    if os.environ.get("BLESS"):
        PAGE.write_text(made)
    assert PAGE.read_text() == made, "BLESS=1 rewrites it"


def test_every_function_and_class_has_its_place_and_words(made):
    import flextensor

    for name in flextensor.__all__:
        one = getattr(flextensor, name)
        assert f"### `{name}" in made or not (inspect.isfunction(one) or inspect.isclass(one)), name
