"""From what one child printed and reported to result lines: the bound, the equality check and the table.

Pure functions over dictionaries; `run.py` runs the children and `table.py` prints results that were kept.
"""

import dataclasses
import statistics

import child

GIB = 1 << 30

# Targets: missing one is shown, but makes no run wrong. Ratios are to the bound; seconds hold for weights made on the GPU.
STREAMED_RATIO = 1.15
RESIDENT_RATIO = 1.01
FIRST_STEADY_S = 15.0


@dataclasses.dataclass(frozen=True)
class Mode:
    """How the program runs: "native", "off" (preloaded, FT_ENABLED=0) or "flextensor" with a budget in bytes."""

    name: str
    budget_bytes: int | None = None

    @property
    def label(self) -> str:
        return self.name if self.budget_bytes is None else f"{self.name} {self.budget_bytes / GIB:g} GiB"


def parse_budget(text: str) -> int:
    """A number of GiB ("8", "0.5") as bytes. Raises ValueError for anything that is not a positive number."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"budget {text!r}: allowed is a positive number of GiB")
    return int(value * GIB)


def bound_ms(
    native_ms: float, weights_bytes: int, budget_bytes: int | None, link_bytes_per_s: float
) -> float:
    """The least time any pager could need: the resident time, or the bytes that do not fit over the link."""
    if budget_bytes is None:
        return native_ms
    return max(native_ms, max(0, weights_bytes - budget_bytes) / link_bytes_per_s * 1e3)


def peak_between(samples: list[tuple[float, int]], window: list[float]) -> int | None:
    """The largest sampled device use inside a window of monotonic seconds."""
    inside = [used for at, used in samples if window[0] <= at <= window[1]]
    return max(inside) if inside else None


def steady_use(samples: list[tuple[float, int]], window: list[float]) -> int | None:
    """The median of the sampled device use inside a window: what stays, without the peaks of single forwards."""
    inside = [used for at, used in samples if window[0] <= at <= window[1]]
    return int(statistics.median(inside)) if inside else None


def first_number(*values) -> int | None:
    return next((value for value in values if isinstance(value, (int, float))), None)


def case_lines(
    mode: Mode,
    outcome: child.Outcome,
    report: dict | None,
    samples: list[tuple[float, int]],
    baseline: int | None,
) -> list[dict]:
    """One line for each case that the child finished; nothing yet that needs the native run."""
    built = (outcome.events("built") or [{}])[0]
    found = []
    for case in outcome.events("case"):
        peak = peak_between(samples, case["timed_window"])
        line = {
            "case": case["case"],
            "build": built.get("build"),
            "layers": built.get("layers"),
            "mode": mode.name,
            "budget_bytes": mode.budget_bytes,
            "weights_bytes": built.get("weights_bytes"),
            "weights_gpu_bytes": built.get("weights_bytes")
            if mode.name != "flextensor"
            else child.field(report, "memory", "weights_gpu_bytes"),
            "ring_bytes": child.field(report, "memory", "ring_bytes"),
            "streamed_bytes": 0
            if mode.name != "flextensor"
            else child.field(report, "plan", "streamed_bytes"),
            "host_bytes": child.field(report, "memory", "host_bytes"),
            "device_bytes": None if peak is None or baseline is None else peak - baseline,
            "rss_bytes": case.get("rss_bytes"),
            "ms": case["ms"],
            "min_ms": case["min_ms"],
            "first_ms": case["first_ms"],
            "imported_s": built.get("imported_s"),
            "built_s": built.get("built_s"),
            "first_forward_s": case.get("first_forward_s"),
            "first_steady_s": case.get("first_steady_s"),
            "digest": case["digest"],
            "agree": case["agree"],
            "differing": case["differing"],
            "finite": case["finite"],
            "checked_ms": case["checked_ms"],
            "timed_ms": case["timed_ms"],
            "torch_peak_bytes": case.get("torch_peak_bytes"),
            "counters": child.field(report, "counters"),
        }
        found.append(line)
    return found


def native_for(line: dict, lines: list[dict]) -> dict | None:
    """The native line of the same case, of the same build if there is one."""
    natives = [
        other
        for other in lines
        if other["mode"] == "native" and other["case"] == line["case"] and other["layers"] == line["layers"]
    ]
    return next(
        (other for other in natives if other["build"] == line["build"]), natives[0] if natives else None
    )


def judge(line: dict, lines: list[dict], link_bytes_per_s: float | None) -> dict:
    """The line with everything that needs the native run: native_ms, bound_ms, ratio, equal, weights_device_bytes, problems, misses."""
    native = native_for(line, lines)
    judged = dict(
        line,
        native_ms=None,
        bound_ms=None,
        ratio=None,
        equal=None,
        weights_device_bytes=None,
        problems=[],
        misses=[],
    )
    problems = judged["problems"]
    if not line["agree"]:
        problems.append(f"forwards {line['differing'][:6]} differ from the first")
    if not line["finite"]:
        problems.append("output is not finite")
    if native is None:
        problems.append("no native run to compare with")
        return judged
    judged["native_ms"] = native["ms"]
    judged["equal"] = line["agree"] and native["agree"] and line["digest"] == native["digest"]
    if not judged["equal"]:
        problems.append("output differs from native")
    if link_bytes_per_s:
        judged["bound_ms"] = round(
            bound_ms(native["ms"], line["weights_bytes"], line["budget_bytes"], link_bytes_per_s), 3
        )
        judged["ratio"] = round(line["ms"] / judged["bound_ms"], 4)
    if line["device_bytes"] is not None and native["device_bytes"] is not None:
        # Context, kernels, activations and torch's cache are the same in both runs.
        judged["weights_device_bytes"] = line["device_bytes"] - (
            native["device_bytes"] - native["weights_bytes"]
        )
    if line["mode"] == "flextensor":
        if line["weights_gpu_bytes"] is None:
            problems.append("no weights_gpu_bytes in the run report")
        elif line["weights_gpu_bytes"] > line["budget_bytes"]:
            problems.append("weights on the GPU exceed the budget")
        if line["streamed_bytes"] == 0 and line["budget_bytes"] < line["weights_bytes"]:
            problems.append("nothing streamed although the weights exceed the budget")
        judged["misses"] = misses(judged)
    return judged


def misses(line: dict) -> list[str]:
    """The targets that a judged line does not reach."""
    found = []
    allowed = STREAMED_RATIO if line["budget_bytes"] < line["weights_bytes"] else RESIDENT_RATIO
    if line["ratio"] is not None and line["ratio"] > allowed:
        found.append(f"slower than {allowed} x bound")
    if line["build"] == "gpu" and (line["first_steady_s"] or 0) > FIRST_STEADY_S:
        found.append(f"first steady forward after more than {FIRST_STEADY_S:.0f} s")
    return found


COLUMNS = (
    "build",
    "case",
    "mode",
    "ms",
    "bound",
    "ratio",
    "native",
    "equal",
    "gpu GiB",
    "seen GiB",
    "streamed",
    "host",
    "steady s",
    "problems, missed targets",
)


def gib(value: int | None) -> str:
    return "-" if value is None else f"{value / GIB:.2f}"


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def row(line: dict) -> list[str]:
    """The cells of one judged line, in the order of COLUMNS."""
    return [
        str(line["build"]),
        line["case"],
        Mode(line["mode"], line["budget_bytes"]).label,
        number(line["ms"]),
        number(line["bound_ms"]),
        number(line["ratio"], 3),
        number(line["native_ms"]),
        {True: "yes", False: "NO", None: "-"}[line["equal"]],
        gib(line["weights_gpu_bytes"]),
        gib(line["weights_device_bytes"]),
        gib(line["streamed_bytes"]),
        gib(line["host_bytes"]),
        number(line["first_steady_s"]),
        "; ".join(line["problems"] + [f"target: {miss}" for miss in line["misses"]]),
    ]


def text_table(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    """Columns padded to their widest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in [list(columns), *rows]
    )
