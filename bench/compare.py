"""Sets ours beside each peer at equal GPU memory, from judged result lines: pure functions.

A peer's bytes are what it really held, not what it was asked for; ours may hold no more than that. Judging single lines is left to `measure.py`.
"""

import measure

COLUMNS = (
    "case",
    "peer",
    "its GiB",
    "its ms",
    "ours ms",
    "our GiB",
    "bound",
    "gap closed",
    "steady s",
    "ours",
    "verdict",
)
# Bytes count as equal within this: whole pages, and weights that torch's allocator rounds up.
EQUAL_WITHIN = 1.005


def newest(lines: list[dict]) -> list[dict]:
    """The lines without those that a later line of the same run and case replaces."""
    kept = {}
    for line in lines:
        key = (
            measure.program_of(line),
            line["layers"],
            line["build"],
            line["mode"],
            line["budget_bytes"],
            line["case"],
        )
        kept.pop(key, None)
        kept[key] = line
    return list(kept.values())


def bytes_of(lines: list[dict], peer: str) -> list[int]:
    """The bytes that each run of a peer held, the most of all its cases, the runs in order. Empty where it told none."""
    runs: dict[tuple, int] = {}
    for line in lines:
        if line["mode"] == peer and line["weights_gpu_bytes"] is not None:
            key = (measure.program_of(line), line["layers"], line["budget_bytes"])
            runs[key] = max(runs.get(key, 0), line["weights_gpu_bytes"])
    return list(runs.values())


def best_of_ours(line: dict, lines: list[dict]) -> dict | None:
    """Our fastest run of the same case, right to the byte, that held no more GPU memory than the peer did."""
    ours = [
        other
        for other in lines
        if other["mode"] == "flextensor"
        and measure.same_work(line, other)
        and other["equal"]
        and other["weights_gpu_bytes"] is not None
        and other["weights_gpu_bytes"] <= line["weights_gpu_bytes"] * EQUAL_WITHIN
    ]
    return min(ours, key=lambda other: other["ms"], default=None)


def pairs(lines: list[dict]) -> list[tuple[dict, dict | None]]:
    """Each peer's line whose bytes are known, with ours beside it or None."""
    peers = [
        line for line in lines if measure.Mode(line["mode"]).is_peer and line["weights_gpu_bytes"] is not None
    ]
    return [(line, best_of_ours(line, lines)) for line in peers]


def gap_closed(theirs: dict, ours: dict) -> float | None:
    """How much of the peer's distance to the bound at its bytes ours does not have: 1 is the bound itself. None where the peer reaches it."""
    distance = theirs["ms"] - theirs["bound_ms"] if theirs["bound_ms"] is not None else 0
    return None if distance <= 0 else (theirs["ms"] - ours["ms"]) / distance


def row(theirs: dict, ours: dict | None) -> list[str]:
    label = measure.Mode(theirs["mode"], theirs["budget_bytes"]).label
    start = [theirs["case"], label, measure.gib(theirs["weights_gpu_bytes"]), measure.number(theirs["ms"])]
    bound, steady = measure.number(theirs["bound_ms"]), measure.number(theirs["first_steady_s"])
    if ours is None:
        return [*start, "-", "-", bound, "-", steady, "-", "no run of ours within these bytes"]
    closed = gap_closed(theirs, ours)
    return [
        *start,
        measure.number(ours["ms"]),
        measure.gib(ours["weights_gpu_bytes"]),
        bound,
        "-" if closed is None else f"{closed:.0%}",
        steady,
        measure.number(ours["first_steady_s"]),
        "ours is faster" if ours["ms"] < theirs["ms"] else "THE PEER IS FASTER",
    ]


def text(lines: list[dict]) -> str:
    """The comparison as a table; empty without a peer."""
    found = pairs(lines)
    return measure.text_table(COLUMNS, [row(*pair) for pair in found]) if found else ""
