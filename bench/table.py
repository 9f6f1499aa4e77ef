"""Prints the README's table (markdown) from the kept result lines of `run.py`.

Later lines of the same run replace earlier ones; nothing is computed here that is not in the lines.
"""

import argparse
import json
import sys
from pathlib import Path

import measure

HERE = Path(__file__).resolve().parent
CASES = {"prefill4096": "prefill 1x4096", "batch64": "batch 64x1", "decode1": "decode 1x1"}


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
    rank = {"native": 0, "off": 1, "flextensor": 2}
    return dict(
        sorted(
            runs.items(),
            key=lambda item: (item[0][0] or 0, item[0][1] != "gpu", rank.get(item[0][2], 3), item[0][3] or 0),
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


def markdown(lines: list[dict], builds: list[str] | None = None) -> str:
    """The machine in one line, then the table."""
    if not lines:
        raise ValueError("no result lines")
    runs = {key: cases for key, cases in group(lines).items() if builds is None or key[1] in builds}
    newest = lines[-1]
    model = (
        f"{newest['layers']} layers, {newest['weights_bytes'] / measure.GIB:.1f} GiB of weights"
        if newest.get("weights_bytes")
        else f"{newest['layers']} layers"
    )
    link = f", link {newest['link_bytes_per_s'] / 1e9:.1f} GB/s" if newest.get("link_bytes_per_s") else ""
    head = f"{newest.get('gpu', 'unknown GPU')}, driver {newest.get('driver')}, torch {newest.get('torch')}{link}; Llama-70B shape, {model}; commit {newest.get('commit')}."
    columns = [
        "run",
        *(f"{title} ms" for title in CASES.values()),
        "weights on the GPU",
        "streamed a pass",
        "pinned host",
        "first steady",
        "equal",
    ]
    rows = []
    for (_, build, mode, budget), cases in runs.items():
        steady = next(
            (line["first_steady_s"] for line in cases.values() if line.get("first_steady_s") is not None),
            None,
        )
        name = measure.Mode(mode, budget).label + (
            "" if build == "gpu" else f", built on the {build.upper()}" if build else ""
        )
        sizes = [largest(cases, key) for key in ("weights_gpu_bytes", "streamed_bytes", "host_bytes")]
        times = [time_cell(cases.get(case)) for case in CASES]
        rows.append(
            [
                name,
                *times,
                *("-" if size is None else f"{measure.gib(size)} GiB" for size in sizes),
                "-" if steady is None else f"{steady:.1f} s",
                equal_cell(mode, cases),
            ]
        )
    body = "\n".join("| " + " | ".join(cells) + " |" for cells in [columns, ["---"] * len(columns), *rows])
    return f"{head}\nMilliseconds are medians; in brackets the bound, max(native, (weights - budget) / link), and measured / bound.\n\n{body}"


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
