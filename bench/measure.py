"""From what one child printed and reported to result lines: the bound, the equality check and the table.

Pure functions over dictionaries; `run.py` runs the children, `compare.py` sets ours beside peers, `table.py` prints results that were kept.
"""

import dataclasses

import child

GIB = 1 << 30

# Targets: missing one is shown, but makes no run wrong. Ratios are to the bound; seconds hold for weights made on the GPU.
STREAMED_RATIO = 1.04
# Where computing and copying take nearly the same time, each hides less of the other.
BALANCED_RATIO, BALANCED_WITHIN = 1.07, 0.10
RESIDENT_RATIO = 1.01
# Programs with a target of their own.
PROGRAM_RATIO = {"diffusion": 1.01, "mixed": 1.10}
FIRST_STEADY_S = 15.0
# No pager is faster than the bound, but the link's measurement scatters.
LEAST_RATIO = 0.97

# Modes in which our library may stream, or only lies beneath the program; every other mode but "native" is a peer.
OURS = ("flextensor", "off")


@dataclasses.dataclass(frozen=True)
class Mode:
    """How the program runs: "native", "off" (preloaded, FT_ENABLED=0), "flextensor" with a budget in bytes, or a peer, with a budget if it takes one."""

    name: str
    budget_bytes: int | None = None

    @property
    def label(self) -> str:
        return self.name if self.budget_bytes is None else f"{self.name} {self.budget_bytes / GIB:.4g} GiB"

    @property
    def is_peer(self) -> bool:
        return self.name != "native" and self.name not in OURS


def parse_budget(text: str) -> int | float:
    """A number of GiB ("8", "0.5") as bytes, or a share of the weights ("33%") as a fraction. Raises ValueError for anything that is not positive."""
    share = text.strip().endswith("%")
    value = float(text.strip().removesuffix("%"))
    if not 0 < value < float("inf"):
        raise ValueError(
            f"budget {text!r}: allowed is a positive number of GiB, or a percentage of the weights"
        )
    return value / 100 if share else int(value * GIB)


def budget_bytes(budget: int | float | None, weights_bytes: int | None) -> int | None:
    """The budget in bytes. Raises ValueError for a share of weights that are not known yet."""
    if not isinstance(budget, float):
        return budget
    if weights_bytes is None:
        raise ValueError(f"{budget:.0%} of the weights: no finished run has told how many they are")
    return int(budget * weights_bytes)


def bound_ms(
    native_ms: float, weights_bytes: int, budget_bytes: int | None, link_bytes_per_s: float
) -> float:
    """The least time any pager could need: the resident time, or the bytes that do not fit over the link."""
    if budget_bytes is None:
        return native_ms
    return max(native_ms, max(0, weights_bytes - budget_bytes) / link_bytes_per_s * 1e3)


def case_lines(mode: Mode, outcome: child.Outcome, report: dict | None, device, host) -> list[dict]:
    """One line for each case that the child finished; nothing yet that needs the native run. `device` and `host` are the sampled series, or None."""
    built = (outcome.events("built") or [{}])[0]
    peer = (outcome.events("peer") or [{}])[0]
    streams = mode.name == "flextensor"
    found = []
    for case in outcome.events("case"):
        line = {
            "program": built.get("program"),
            "case": case["case"],
            "build": built.get("build"),
            "layers": built.get("layers"),
            "mode": mode.name,
            "budget_bytes": mode.budget_bytes,
            "weights_bytes": built.get("weights_bytes"),
            # Of a peer it needs the native run: see `judge`.
            "weights_gpu_bytes": child.field(report, "memory", "weights_gpu_bytes")
            if streams
            else None
            if mode.is_peer
            else built.get("weights_bytes"),
            "ring_bytes": child.field(report, "memory", "ring_bytes"),
            "streamed_bytes": child.field(report, "plan", "streamed_bytes")
            if streams
            else None
            if mode.is_peer
            else 0,
            "host_bytes": host_bytes(report),
            "rows_bytes": child.field(report, "memory", "host_regions_bytes"),
            "device_bytes": None if device is None else device.above_baseline(case["timed_window"]),
            "host_seen_bytes": None if host is None else host.above_baseline(case["timed_window"]),
            "rss_bytes": case.get("rss_bytes"),
            "device_used_bytes": case.get("device_used_bytes"),
            "torch_peak_bytes": case.get("torch_peak_bytes"),
            "ms": case["ms"],
            "min_ms": case["min_ms"],
            "first_ms": case["first_ms"],
            "imported_s": built.get("imported_s"),
            "built_s": built.get("built_s"),
            "first_forward_s": case.get("first_forward_s"),
            "first_steady_s": case.get("first_steady_s"),
            "steady_forward": case.get("steady_forward"),
            "passes": built.get("passes"),
            "peer_version": peer.get("version"),
            "digest": case["digest"],
            "step_digests": case.get("step_digests"),
            "agree": case["agree"],
            "differing": case["differing"],
            "finite": case["finite"],
            "checked_ms": case["checked_ms"],
            "timed_ms": case["timed_ms"],
            "plans": plans_of(report),
            "counters": child.field(report, "counters"),
        }
        found.append(line)
    return found


def host_bytes(report: dict | None) -> int | None:
    """Host memory of weights by the report: shadows, and what kernels read where it lies."""
    shadows = child.field(report, "memory", "host_bytes")
    return None if shadows is None else shadows + (child.field(report, "memory", "host_regions_bytes") or 0)


def plans_of(report: dict | None) -> list[dict]:
    """What the report predicts: for each plan or shape that says so, `resident_ms` and `predicted_ms`."""
    models = report.get("models") if report else None
    shapes = [shape for model in models or [] for shape in model.get("measured") or []]
    given = [*shapes, child.field(report, "plan") or {}]
    return [
        {"resident_ms": one["resident_ms"], "predicted_ms": one["predicted_ms"]}
        for one in given
        if one.get("predicted_ms") is not None and one.get("resident_ms") is not None
    ]


def predicted_ms(line: dict, native_ms: float) -> float | None:
    """The prediction of the plan that was made for work like this: its resident time is nearest to the native one, and within a quarter of it."""
    plans = sorted(line.get("plans") or [], key=lambda plan: abs(plan["resident_ms"] - native_ms))
    fits = plans and abs(plans[0]["resident_ms"] - native_ms) <= native_ms / 4
    return round(plans[0]["predicted_ms"], 3) if fits else None


def program_of(line: dict) -> str:
    """Results from before there were several programs name none."""
    return line.get("program") or "llama"


def same_work(line: dict, other: dict) -> bool:
    keys = ("case", "layers")
    return program_of(line) == program_of(other) and all(line[key] == other[key] for key in keys)


def native_for(line: dict, lines: list[dict]) -> dict | None:
    """The native line of the same program and case, of the same build if there is one."""
    natives = [other for other in lines if other["mode"] == "native" and same_work(line, other)]
    return next(
        (other for other in natives if other["build"] == line["build"]), natives[0] if natives else None
    )


def beside_native(line: dict, native: dict, key: str) -> int | None:
    """A count of memory less what the native run uses beside its weights: activations, context, kernels, the allocator's cache."""
    if line.get(key) is None or native.get(key) is None:
        return None
    return line[key] - (native[key] - native["weights_bytes"])


def judge(line: dict, lines: list[dict], link_bytes_per_s: float | None) -> dict:
    """The line with everything that needs the native run: native_ms, bound_ms, ratio, predicted_ms, equal, weights_device_bytes, problems, misses."""
    native = native_for(line, lines)
    judged = dict(
        line,
        native_ms=None,
        bound_ms=None,
        ratio=None,
        predicted_ms=None,
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
    judged["predicted_ms"] = predicted_ms(line, native["ms"])
    judged["equal"] = line["agree"] and native["agree"] and same_outputs(line, native)
    if not judged["equal"]:
        problems.append(f"output differs from native{first_difference(line, native)}")
    # Context, kernels, activations and torch's cache are the same in both runs. NVML saw the peak; without it, what the driver said when the case ended.
    seen = [beside_native(line, native, key) for key in ("device_bytes", "device_used_bytes")]
    judged["weights_device_bytes"] = first_known(*seen)
    judged["weights_torch_bytes"] = beside_native(line, native, "torch_peak_bytes")
    held = line["budget_bytes"]
    if Mode(line["mode"]).is_peer:
        # What torch's allocator handed out at most, its idle cache left out: the count that favours the peer.
        judged["weights_gpu_bytes"] = held = first_known(
            judged["weights_torch_bytes"], judged["weights_device_bytes"]
        )
    if link_bytes_per_s and (held is not None or not Mode(line["mode"]).is_peer):
        judged["bound_ms"] = round(bound_ms(native["ms"], line["weights_bytes"], held, link_bytes_per_s), 3)
        judged["ratio"] = round(line["ms"] / judged["bound_ms"], 4)
    if line["mode"] == "flextensor":
        problems.extend(broken_promises(line))
        judged["misses"] = misses(judged, link_bytes_per_s)
    elif line["budget_bytes"] and (held or 0) > line["budget_bytes"]:
        judged["misses"] = [f"{gib(held - line['budget_bytes'])} GiB over its budget"]
    return judged


def first_known(*values):
    return next((value for value in values if value is not None), None)


def same_outputs(line: dict, native: dict) -> bool:
    """Whether all outputs have the native run's bytes. A run that ended its loops early is compared as far as it came."""
    ours, theirs = line.get("step_digests"), native.get("step_digests")
    if ours and theirs and len(ours) != len(theirs):
        return all(a == b for a, b in zip(ours, theirs, strict=False))
    return line["digest"] == native["digest"]


def first_difference(line: dict, native: dict) -> str:
    pairs = zip(line.get("step_digests") or [], native.get("step_digests") or [], strict=False)
    return next(
        (f" from step {index} on" for index, (ours, theirs) in enumerate(pairs) if ours != theirs), ""
    )


def broken_promises(line: dict) -> list[str]:
    """What our library promised and did not keep."""
    found = []
    if line["weights_gpu_bytes"] is None:
        found.append("no weights_gpu_bytes in the run report")
    elif line["weights_gpu_bytes"] > line["budget_bytes"]:
        found.append("weights on the GPU exceed the budget")
    if line["streamed_bytes"] == 0 and line["budget_bytes"] < line["weights_bytes"]:
        found.append("nothing streamed although the weights exceed the budget")
    return found


def allowed_ratio(line: dict, link_bytes_per_s: float) -> float:
    """The target for measured / bound."""
    if line["budget_bytes"] >= line["weights_bytes"]:
        return RESIDENT_RATIO
    if program_of(line) in PROGRAM_RATIO:
        return PROGRAM_RATIO[program_of(line)]
    copying_ms = (line["weights_bytes"] - line["budget_bytes"]) / link_bytes_per_s * 1e3
    balanced = abs(copying_ms - line["native_ms"]) <= BALANCED_WITHIN * max(copying_ms, line["native_ms"])
    return BALANCED_RATIO if balanced else STREAMED_RATIO


def misses(line: dict, link_bytes_per_s: float | None) -> list[str]:
    """The targets that a judged line does not reach."""
    found = []
    if line["ratio"] is not None:
        allowed = allowed_ratio(line, link_bytes_per_s)
        if line["ratio"] > allowed:
            found.append(f"slower than {allowed} x bound")
        # Of a table that kernels read by rows in host memory next to nothing is copied.
        copied = line["weights_bytes"] - (line.get("rows_bytes") or 0)
        least = bound_ms(line["native_ms"], copied, line["budget_bytes"], link_bytes_per_s)
        if line["ms"] < LEAST_RATIO * least:
            found.append("faster than the bound: not all was in force while it was timed")
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
    "predicted",
    "equal",
    "gpu GiB",
    "seen GiB",
    "streamed",
    "host",
    "host seen",
    "built s",
    "first s",
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
        number(line["predicted_ms"]),
        {True: "yes", False: "NO", None: "-"}[line["equal"]],
        gib(line["weights_gpu_bytes"]),
        gib(line["weights_device_bytes"]),
        gib(line["streamed_bytes"]),
        gib(line["host_bytes"]),
        gib(line.get("host_seen_bytes")),
        number(line.get("built_s")),
        number(line.get("first_forward_s")),
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
