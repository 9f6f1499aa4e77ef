"""What the first lines of an example promise that it prints. Whether it does is tried by test_examples.py without a GPU, and by ../gpu/examples.py on one."""

import re


def runs(text: str, machine: str) -> list[list[str]]:
    """The lines promised for a machine (`on a GPU`, `without a GPU`), for each run of the example: indented, below a line of the docstring that begins with `Prints`."""
    parts = re.split(r"^Prints (on a GPU|without a GPU)[^\n]*\n", text.split('"""')[1], flags=re.MULTILINE)
    block = dict(zip(parts[1::2], parts[2::2], strict=True)).get(machine, "")
    found, lines = [], []
    for line in [*block.splitlines(), ""]:
        if line.startswith("    "):
            lines.append(line[4:])
        elif lines:
            found.append(lines)
            lines = []
    return found
