"""Makes docs/api-reference.md from the docstrings of the package: what `flextensor` exports, with all that is public of its classes.

    PYTHONPATH=pyhook/python python tools/api_reference.py > docs/api-reference.md     # needs torch and the native module

tests/python/test_api_reference.py says when the page is old.
"""

import inspect
from collections.abc import Iterator

import flextensor

HEAD = """# API reference

Made from docstrings by `tools/api_reference.py`; do not edit. How things work together is in docs/offloading.md and docs/python-api.md, options in docs/options.md. `name` is always that of a manager.
Sizes are bytes and times milliseconds unless a name says otherwise.
"""


def parameters(called: object) -> str:
    """Names and defaults, without types: the package is typed in its own files."""
    try:
        shown = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return ""
    bare = [
        one.replace(annotation=inspect.Parameter.empty) for one in shown if one.name not in ("self", "cls")
    ]
    return str(inspect.Signature(bare))


def text(documented: object) -> str:
    """The docstring, as one paragraph for each of its own."""
    return (inspect.getdoc(documented) or "").strip()


def members(kind: type) -> Iterator[str]:
    """The public methods and properties that a class defines itself."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"- **`{name}`**: {text(member)}"
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            yield f"- **`{name}{parameters(getattr(kind, name))}`**: {text(getattr(kind, name))}"


def page() -> str:
    """The whole page."""
    exported = {name: getattr(flextensor, name) for name in sorted(flextensor.__all__)}
    functions = {name: one for name, one in exported.items() if inspect.isfunction(one)}
    classes = {name: one for name, one in exported.items() if inspect.isclass(one)}
    parts = [HEAD, "## Functions\n"]
    parts += [f"### `{name}{parameters(one)}`\n{text(one)}\n" for name, one in functions.items()]
    parts.append("## Classes\n")
    for name, one in classes.items():
        lines = list(members(one))
        parts.append(f"### `{name}`\n{text(one)}\n" + ("\n" + "\n".join(lines) + "\n" if lines else ""))
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
