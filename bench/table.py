"""Prints result lines that were kept as markdown: one table for each program, and ours beside peers.

Later lines of the same run replace earlier ones; nothing is computed here that is not in the lines. Judging is left to `measure.py`, the comparison to `compare.py`.
"""

import argparse
import json
import sys
from pathlib import Path

import compare
import measure

HERE = Path(__file__).resolve().parent
CASES = {
    "prefill4096": "prefill 1x4096",
    "batch64": "batch 64x1",
    "decode1": "decode 1x1",
    "decode200": "200 decode steps",
    "batch1": "batch 1x1",
    "batch1again": "batch 1x1 again",
    "tokens8192": "8192 tokens",
    "tokens16384": "16384 tokens",
    "tokens64": "64 tokens",
    "batch2": "batch 2",
}
TITLES = {
    "llama": "Llama-70B shape",
    "diffusion": "diffusion transformer",
    "mixed": "Llama-70B shape, changing work",
    "small": "experts of 3 MiB linears",
    "unet": "UNet of Stable Diffusion XL",
}


def read(paths: list[Path]) -> list[dict]:
    """Result lines of all files, in order. Raises ValueError naming the file and line that is no result."""
    found = []
    for path in paths:
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(line, dict):
                raise ValueError(f"{path}:{number}: a result is a JSON object")
            # Reports are kept in the same folder and have no case.
            if "case" in line and "mode" in line and "ms" in line:
                found.append(line)
    return found


def group(lines: list[dict]) -> dict[tuple, dict[str, dict]]:
    """Lines by run (model size, build, mode, budget) and case, the newest of each; native first, then by budget."""
    runs: dict[tuple, dict[str, dict]] = {}
    for line in lines:
        key = (line["layers"], line["build"], line["mode"], line["budget_bytes"])
        runs.setdefault(key, {})[line["case"]] = line
    rank = {"native": 0, "off": 1, "flextensor": 2, "flextensor_py": 3}
    return dict(
        sorted(
            runs.items(),
            key=lambda item: (
                item[0][0] or 0,
                {"gpu": 0, "host": 1}.get(item[0][1], 2),
                rank.get(item[0][2], 4),
                item[0][3] or 0,
            ),
        )
    )


def time_cell(line: dict | None) -> str:
    """Milliseconds, and in brackets the bound and the ratio to it."""
    if line is None:
        return "-"
    if line["mode"] == "native" or line.get("bound_ms") is None:
        return f"{line['ms']:.1f}"
    return f"{line['ms']:.1f} ({line['bound_ms']:.1f}, {line['ratio']:.2f}x)"


def largest(cases: dict[str, dict], key: str) -> int | None:
    values = [line[key] for line in cases.values() if line.get(key) is not None]
    return max(values) if values else None


def equal_cell(mode: str, cases: dict[str, dict]) -> str:
    if mode == "native":
        return "-"
    values = [line.get("equal") for line in cases.values()]
    return "yes" if values and all(value is True for value in values) else "**no**"


def head(newest: dict, program: str) -> str:
    """Machine, model and commit in one line."""
    model = (
        f"{newest['layers']} layers, {newest['weights_bytes'] / measure.GIB:.1f} GiB of weights"
        if newest.get("weights_bytes")
        else f"{newest['layers']} layers"
    )
    link = f", link {newest['link_bytes_per_s'] / 1e9:.1f} GB/s" if newest.get("link_bytes_per_s") else ""
    return f"{newest.get('gpu', 'unknown GPU')}, driver {newest.get('driver')}, torch {newest.get('torch')}{link}; {TITLES.get(program, program)}, {model}; commit {newest.get('commit')}."


def pipes(rows: list[list[str]]) -> str:
    """The first row is the header."""
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    )


def run_row(key: tuple, cases: dict[str, dict], wanted: list[str]) -> list[str]:
    _, build, mode, budget = key
    steady = next(
        (line["first_steady_s"] for line in cases.values() if line.get("first_steady_s") is not None), None
    )
    # A peer makes its weights in the host's memory always; of ours it is worth saying.
    name = measure.Mode(mode, budget).label + (
        "" if build in ("gpu", "host") else f", built on the {build.upper()}" if build else ""
    )
    sizes = [
        largest(cases, key)
        for key in ("weights_gpu_bytes", "streamed_bytes", "host_bytes", "host_seen_bytes")
    ]
    return [
        name,
        *(time_cell(cases.get(case)) for case in wanted),
        *("-" if size is None else f"{measure.gib(size)} GiB" for size in sizes),
        "-" if steady is None else f"{steady:.1f} s",
        equal_cell(mode, cases),
    ]


def markdown(lines: list[dict], builds: list[str] | None = None) -> str:
    """For each program the machine in one line, the table, and ours beside the peers."""
    if not lines:
        raise ValueError("no result lines")
    sections = []
    for program in dict.fromkeys(measure.program_of(line) for line in lines):
        mine = [line for line in lines if measure.program_of(line) == program]
        runs = {key: cases for key, cases in group(mine).items() if builds is None or key[1] in builds}
        wanted = list(dict.fromkeys(line["case"] for line in mine))
        columns = ["run", *(f"{CASES.get(case, case)} ms" for case in wanted)]
        columns += [
            "weights on the GPU",
            "streamed a pass",
            "pinned host",
            "host in all",
            "first steady",
            "equal",
        ]
        table = pipes([columns, *(run_row(key, cases, wanted) for key, cases in runs.items())])
        note = "Milliseconds are medians; in brackets the bound, max(native, (weights - GPU bytes) / link), and measured / bound."
        sections.append(f"{head(mine[-1], program)}\n{note}\n\n{table}")
        newest = [line for cases in runs.values() for line in cases.values()]
        if beside := compare.pairs(newest):
            sections.append(pipes([list(compare.COLUMNS), *(compare.row(*pair) for pair in beside)]))
    return "\n\n".join(sections)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="result files; default: bench/results/*.jsonl")
    parser.add_argument("--builds", help="only these, comma separated: gpu, cpu")
    options = parser.parse_args(argv)
    files = options.files or sorted(
        path for path in (HERE / "results").glob("*.jsonl") if not path.name.endswith(".reports.jsonl")
    )
    try:
        print(markdown(read(files), options.builds.split(",") if options.builds else None))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
