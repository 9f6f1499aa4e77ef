"""Every numbered check of the conformance list has a test that names it, here or on a GPU, or a reason why not."""

import ast
import re

import pytest
from conftest import ROOT

NUMBERS = [*range(1, 7), *range(8, 12), 13, 14, *range(16, 26), *range(27, 34), 35, 37, 39, 40]

# What only a GPU can show, by the case of tests/gpu that shows it. Some have a part that needs none as well.
ON_A_GPU = {
    19: "interface_plain",
    23: "interface_release_and_again",
    28: "interface_feedback",
    29: "interface_modes",
    30: "interface_graph",
    31: "interface_profile",
    39: "interface_timed",
}
NOT_YET = {40: "sessions that share memory come later; shm_enabled is refused at offload()"}


def functions(folder):
    """Names of the functions of all Python files in a folder."""
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield node.name


def numbers_of(name):
    """The numbers that a test's name gives: `test_check_5_...`, `test_checks_2_to_8_...`."""
    if single := re.match(r"test_check_(\d+)_", name):
        return {int(single[1])}
    if several := re.match(r"test_checks_(\d+)_to_(\d+)_", name):
        return set(range(int(several[1]), int(several[2]) + 1))
    return set()


TESTED = set().union(*map(numbers_of, functions(ROOT / "tests" / "python")))
CASES = set(functions(ROOT / "tests" / "gpu" / "cases"))


@pytest.mark.parametrize("number", NUMBERS)
def test_the_check_is_tested(number):
    assert number in TESTED or ON_A_GPU.get(number) in CASES or number in NOT_YET


def test_what_is_listed_exists_and_is_not_listed_in_vain():
    assert set(ON_A_GPU.values()) <= CASES
    assert not NOT_YET.keys() & (TESTED | ON_A_GPU.keys())
    assert set(ON_A_GPU) | set(NOT_YET) <= set(NUMBERS)
