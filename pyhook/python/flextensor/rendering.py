"""`flextensor report FILE`: a run report (docs/report.md) as text. What is missing from a report is left
out, never an error."""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

# The table of placements shows the largest; the file has them all.
_LARGEST = 20
# And that of waits the longest.
_LONGEST = 8

_PASS_TIMES = {"predicted_ms": "predicted", "bound_ms": "bound", "resident_ms": "all resident"}
_SWITCH_TIMES = {"switch_ms": "whole", "gate_closed_ms": "launches waited"}


def main(path: str) -> int:
    """Prints the report in the file at `path`."""
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except OSError as error:
        print(f"flextensor: cannot read {path}: {error.strerror}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"flextensor: {path} is no run report: {error}", file=sys.stderr)
        return 1
    if not isinstance(report, dict):
        print(
            f"flextensor: {path} is no run report: it holds a {type(report).__name__}, not an object",
            file=sys.stderr,
        )
        return 1
    print("\n".join(render(report)))
    return 0


def render(report: dict[str, Any]) -> Iterator[str]:
    """The lines of the text."""
    yield f"flextensor {report.get('version', '?')}, phase {report.get('phase', '?')}"
    yield from _models(_list(report, "models"))
    for plan in _list(report, "plans") or [_dict(report, "plan")]:
        yield from _plan(plan)
    yield from _memory(_dict(report, "memory"))
    yield from _placements(_list(report, "placements"))
    yield from _section("counters", _dict(report, "counters"))
    yield from _hooks(_dict(report, "hooks"))


def size(count: Any) -> str:
    """A number of bytes for people."""
    if not isinstance(count, int | float) or isinstance(count, bool):
        return "?"
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(count) >= 1 << shift:
            return f"{count / (1 << shift):.2f} {unit}"
    return f"{count:.0f} B"


def milliseconds(value: Any) -> str:
    """A time for people."""
    return f"{value:.2f} ms" if isinstance(value, int | float) else "?"


def ratio(value: Any) -> str:
    """A ratio for people."""
    return f"{value:.3f}" if isinstance(value, int | float) else "?"


def table(head: tuple[str, ...] | None, rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Columns set to their widest cell: the first to the left, the others to the right. Without a head where
    the rows say what they are."""
    cells = [tuple(str(cell) for cell in row) for row in rows]
    if head is not None:
        cells.insert(0, head)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield (
            "  "
            + "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
        )


def _models(models: list[Any]) -> Iterator[str]:
    rows = []
    for model in filter(_is_dict, models):
        rows.append(
            (
                model.get("name", "?"),
                model.get("phase", "?"),
                _count(model.get("weights")),
                _count(model.get("passes")),
            )
        )
    if rows:
        yield from ("", "models", *table(("name", "phase", "weights", "passes"), rows))
    for model in filter(_is_dict, models):
        times = [
            (number, milliseconds(m.get("median_ms")), _count(m.get("passes")), ratio(m.get("ratio")))
            for number, m in enumerate(filter(_is_dict, _list(model, "measured")), start=1)
        ]
        if times:
            yield from (
                "",
                f"passes of {model.get('name', '?')}, by the shape of their inputs",
                *table(("shape", "median", "passes", "time / bound"), times),
            )
        yield from _observed(model)


def _observed(model: dict[str, Any]) -> Iterator[str]:
    """What passes that were seen whole computed and waited for, by shape, and their longest waits."""
    for seen in filter(_is_dict, _list(model, "observed")):
        computed, waited = milliseconds(seen.get("computed_ms")), milliseconds(seen.get("waited_ms"))
        yield from (
            "",
            f"a pass of {model.get('name', '?')} with inputs of shape {seen.get('shape', '?')}: "
            f"{_count(seen.get('uses'))} uses, {_count(seen.get('launches'))} launches that show weights",
            f"  computed {computed}, waited for copies {waited}",
        )
        waits = [
            (wait.get("name", "?"), _count(wait.get("use")), milliseconds(wait.get("waited_ms")))
            for wait in filter(_is_dict, _list(seen, "waits")[:_LONGEST])
        ]
        if waits:
            yield from table(("longest waits", "use", "waited"), waits)


def _plan(plan: dict[str, Any]) -> Iterator[str]:
    if not plan:
        return
    yield from ("", "plan" if "device" not in plan else f"plan for GPU {plan['device']}")
    sizes = (
        ("budget", "budget_bytes"),
        ("resident", "resident_bytes"),
        ("ring", "ring_bytes"),
        ("streamed", "streamed_bytes"),
        ("peak", "peak_bytes"),
    )
    yield from table(None, [(name, size(plan[key])) for name, key in sizes if plan.get(key) is not None])
    yield from _times(plan, "time of a pass", _PASS_TIMES)
    if plan.get("link_gb_per_s"):
        yield f"  link {plan['link_gb_per_s']:.1f} GB/s"
    yield from _times(plan, "switch-over, once", _SWITCH_TIMES)
    if plan.get("refused"):
        yield f"  refused: {plan['refused']}"
    for note in _list(plan, "notes"):
        yield f"  note: {note}"


def _times(plan: dict[str, Any], title: str, names: dict[str, str]) -> Iterator[str]:
    rows = [(name, milliseconds(plan[key])) for key, name in names.items() if plan.get(key) is not None]
    if rows:
        yield from (f"  {title}", *(f"  {row}" for row in table(None, rows)))


def _memory(memory: dict[str, Any]) -> Iterator[str]:
    names = {
        "weights_gpu_bytes": "weights on the GPU",
        "ring_bytes": "of these, the ring",
        "regions_bytes": "managed allocations",
        "host_bytes": "weights in host memory",
        "pinned_bytes": "pinned host memory",
    }
    rows = [(text, size(memory[key])) for key, text in names.items() if memory.get(key) is not None]
    if rows:
        yield from ("", "memory", *table(None, rows))


def _placements(placements: list[Any]) -> Iterator[str]:
    sized = (place for place in placements if _is_dict(place) and isinstance(place.get("bytes"), int | float))
    rows = [place for place in sized if place["bytes"]]
    if not rows:
        return
    largest = sorted(rows, key=lambda place: (-place["bytes"], str(place.get("name"))))[:_LARGEST]
    streamed = sum(place.get("streamed_bytes") or 0 for place in rows)
    yield from (
        "",
        f"placements: {size(sum(place['bytes'] for place in rows))} in {len(rows)} pieces, {size(streamed)} streamed",
    )
    if len(rows) > _LARGEST:
        yield f"  the {_LARGEST} largest:"
    yield from table(
        ("name", "size", "streamed"),
        [(p.get("name", "?"), size(p["bytes"]), size(p.get("streamed_bytes") or 0)) for p in largest],
    )


def _hooks(hooks: dict[str, Any]) -> Iterator[str]:
    routes = _dict(hooks, "routes")
    if routes:
        words = {True: "works", False: "passes us by", None: "not tested"}
        yield from (
            "",
            "hook routes",
            *table(None, [(name, words.get(state, state)) for name, state in routes.items()]),
        )
    yield from _section("calls left to the driver, by reason", _dict(hooks, "bypasses"))
    faults = {"calls that we failed": hooks.get("failures"), "faults of ours": hooks.get("panics")}
    yield from _section("what went wrong", faults)


def _section(title: str, values: dict[str, Any]) -> Iterator[str]:
    rows = []
    for key, value in values.items():
        if isinstance(value, int | float) and value:
            rows.append((key.replace("_", " "), size(value) if "bytes" in key else _count(value)))
        elif isinstance(value, str | list) and value:
            rows.append(
                (key.replace("_", " "), value if isinstance(value, str) else "; ".join(map(str, value)))
            )
    if rows:
        yield from ("", title, *table(None, rows))


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _dict(report: dict[str, Any], key: str) -> dict[str, Any]:
    value = report.get(key)
    return value if isinstance(value, dict) else {}


def _list(report: dict[str, Any], key: str) -> list[Any]:
    value = report.get(key)
    return value if isinstance(value, list) else []


def _count(value: Any) -> str:
    if isinstance(value, list):
        value = len(value)
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else "?"
