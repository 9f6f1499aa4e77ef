"""`flextensor plan` and `flextensor plot`: what-if answers for a saved profile, and pictures of them and of
the benchmark's results. Everything is worked out by the native module; files and the terminal are dealt
with here. Neither torch nor a GPU is needed.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flextensor.rendering import milliseconds, ratio, size, table

_UNUSABLE_FILE, _WRONG_QUESTION = 1, 2
# What a profile is called inside its folder.
_PROFILE_NAME = "profile.json"


class _Failed(Exception):
    """One line for people, and the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def main(given: Namespace) -> int:
    """`flextensor plan`: prints the table, writes the pictures asked for."""
    return _answered(_plan, given)


def plot(given: Namespace) -> int:
    """`flextensor plot`: writes the picture of benchmark results."""
    return _answered(_plot, given)


def render(answer: dict[str, Any]) -> Iterator[str]:
    """The lines of a table of plans."""
    yield (
        f"{answer['model']}: {size(answer['weights_bytes'])} of weights in {answer['units']} pieces, "
        f"{milliseconds(answer['resident_ms'])} a pass with everything resident"
    )
    budget = answer["budget_bytes"]
    yield (
        f"{'no budget' if budget is None else f'budget {size(budget)}'}, "
        f"link {answer['link_gb_per_s']:.1f} GB/s ({answer['link']})"
    )
    yield from _shapes(answer["shapes"])
    plans = [plan for plan in answer["plans"] if "declined" not in plan]
    if plans:
        bound, limit = plans[0]["bound_ms"], answer["limit_ms"]
        within = f"; with a ring inside the budget and this order of uses {milliseconds(limit)}"
        yield f"bound {milliseconds(bound)}: nothing can be faster{within if limit > bound else ''}"
    yield ""
    # Ours first; then those that keep the budget, the fastest first.
    rows = plans[:1] + sorted(
        plans[1:], key=lambda plan: (not plan["met"], plan["predicted_ms"], plan["streamed_bytes"])
    )
    yield from table(
        ("strategy", "time", "time / bound", "peak", "ring", "streamed", "budget"),
        [
            (
                plan["strategy"],
                milliseconds(plan["predicted_ms"]),
                ratio(plan["ratio"]) if plan["met"] and plan["ratio"] is not None else "-",
                size(plan["peak_bytes"]),
                size(plan["ring_bytes"]),
                size(plan["streamed_bytes"]),
                "-" if budget is None else "kept" if plan["met"] else "missed",
            )
            for plan in rows
        ],
    )
    notes = [f"  {plan['strategy']}: {note}" for plan in rows for note in plan["notes"]]
    declined = [f"  {plan['strategy']}: {plan['declined']}" for plan in answer["plans"] if "declined" in plan]
    if notes or declined:
        yield from ("", *notes, *declined)


def _shapes(shapes: list[dict[str, Any]]) -> Iterator[str]:
    """The input shapes, where there is a choice."""
    if all(shape["number"] == 1 for shape in shapes):
        return
    yield "input shapes; our plan serves all, the table below has the chosen one (--shape NUMBER)"
    yield from table(
        ("model", "number", "passes", "all resident", "our plan", "bound", ""),
        [
            (
                shape["model"],
                shape["number"],
                f"{shape['passes']:,}",
                milliseconds(shape["resident_ms"]),
                milliseconds(shape.get("predicted_ms")),
                milliseconds(shape.get("bound_ms")),
                "chosen" if shape["chosen"] else "",
            )
            for shape in shapes
        ],
    )


def _plan(given: Namespace) -> None:
    native = _native()
    name, text = _profile(Path(given.profile))
    asked = native.WhatIf(
        name,
        text,
        gpu_mem=given.gpu_mem,
        link=given.link,
        device=given.device,
        shape=given.shape,
        latency=given.latency,
        strategies=given.strategy,
    )
    answer = json.loads(asked.table())
    if given.svg:
        sweeps, picture = asked.sweep()
        answer["sweep"] = [
            {"strategy": strategy, "points": points} for strategy, points in json.loads(sweeps)
        ]
        _write(given.svg, picture)
    if given.timeline:
        _write(given.timeline, asked.timeline())
    print(json.dumps(answer, indent=2) if given.json else "\n".join(render(answer)))


def _plot(given: Namespace) -> None:
    native = _native()
    files = [(path, _read(Path(path), "results")) for path in given.results]
    _write(given.svg, native.plot_results(files, given.case))


def _answered(work: Any, given: Namespace) -> int:
    """Runs `work`; what is wrong becomes one line and the exit code."""
    try:
        work(given)
    except _Failed as failed:
        print(f"flextensor: {failed}", file=sys.stderr)
        return failed.code
    except ValueError as error:
        print(f"flextensor: {error}", file=sys.stderr)
        return _WRONG_QUESTION
    except RuntimeError as error:
        print(f"flextensor: {error}", file=sys.stderr)
        return _UNUSABLE_FILE
    return 0


def _native() -> Any:
    try:
        from flextensor import _native
    except ImportError as error:
        raise _Failed(_UNUSABLE_FILE, f"the native module cannot be loaded: {error}") from error
    return _native


def _profile(path: Path) -> tuple[str, str]:
    """Name and text of a profile: the file, or the one of that name in a folder."""
    file = path / _PROFILE_NAME if path.is_dir() else path
    return str(file), _read(file, "profile")


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise _Failed(_UNUSABLE_FILE, f"cannot read {what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _Failed(_UNUSABLE_FILE, f"cannot read {what} {path}: it is no text ({error.reason})") from error


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _Failed(_UNUSABLE_FILE, f"cannot write {path}: {error.strerror}") from error
