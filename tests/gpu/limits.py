"""A limit for the whole process: a model of 1.3 times the limit, and a cache that grows until weights give way, and goes again.

    python tests/gpu/limits.py --lib libflextensor.so

Each part runs in a process of its own, natively and under the library, one after the other; every output must be the same to the bit. The GPU's memory is read from the driver by this process meanwhile,
so that nothing else may use the GPU. Prints a line for each part, appends its figures to OUT/limits.jsonl; exit code 1 if one failed. Needs 8 GiB of GPU memory.
"""

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "bench")]

import child  # noqa: E402
import judging  # noqa: E402
import link  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
LIMIT = 4 * GIB
BLOCK = 24 * MIB
# Of what a process's context takes, the driver's word and the library's reckoning may part by so much.
CONTEXT = 384 * MIB
# What counts as flat, from the twentieth forward on.
FLAT = 48 * MIB
CACHE_BLOCK = 128 * MIB


def say(event: str = "output", **values) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def resident_bytes() -> int:
    """Host memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def streamed() -> int:
    """Bytes that the library streams a pass; 0 where there is none."""
    import telling

    report = telling.own_report() or {}
    return sum(plan.get("streamed_bytes", 0) for plan in report.get("plans") or [])


def forwards(model, count: int, *, after: str) -> None:
    """So many forwards, an output said of each; at the end what is streamed, and how much memory there is."""
    import telling
    import torch

    for index in range(count):
        generator = torch.Generator(device="cuda").manual_seed(index)
        rows = torch.randn(16, 1536, dtype=torch.bfloat16, device="cuda", generator=generator)
        with torch.no_grad():
            say(digest=telling.describe(model(rows))["digest"])
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    say("stage", after=after, streamed=streamed(), host=resident_bytes(), told_free=free, told_total=total)


def stack(blocks: int):
    import lab

    return lab.Lab(7, "cuda").build(lambda: lab.Stack(blocks))


def larger_than_the_limit():
    """Weights of 1.3 times the limit are made on the GPU, and used 50 times."""
    model = stack(int(1.3 * LIMIT) // BLOCK)
    forwards(model, 20, after="twenty")
    forwards(model, 30, after="fifty")


def a_cache_that_grows_and_goes():
    """Everything fits, until a cache takes as much as the weights leave and half a gigabyte more; then it goes."""
    import torch

    model = stack(int(0.6 * LIMIT) // BLOCK)
    forwards(model, 20, after="without")
    cache = []
    for index in range((LIMIT // 2) // CACHE_BLOCK):
        cache.append(torch.full((CACHE_BLOCK,), index, dtype=torch.uint8, device="cuda"))
        forwards(model, 1, after=f"grown{index}")
    forwards(model, 10, after="grown")
    for index, block in enumerate(cache):
        assert bool((block == index).all()), f"block {index} of the cache was changed"
    del block
    cache.clear()
    torch.cuda.empty_cache()
    forwards(model, 100, after="gone")
    forwards(model, 50, after="fifty_later")


PARTS = {part.__name__: part for part in (larger_than_the_limit, a_cache_that_grows_and_goes)}


class Gauge:
    """The GPU's used memory while it lives, by the driver: the most of it, in bytes above what was used before."""

    def __init__(self, device: int) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        self._read = lambda: pynvml.nvmlDeviceGetMemoryInfo(self._handle).used
        self._before = self._read()
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.is_set():
            self.most = max(self.most, self._read() - self._before)
            time.sleep(0.002)

    def end(self) -> int:
        self._over.set()
        self._thread.join()
        return self.most


def run(name: str, options: argparse.Namespace, ours: bool) -> tuple[child.Outcome, int]:
    """One part in a process of its own, and the most GPU memory it took."""
    gauge = Gauge(options.device)
    settings = {"FT_GPU_LIMIT": str(LIMIT)}
    extra = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_VISIBLE_DEVICES": str(options.device)}
    env = child.environment(options.lib if ours else None, settings, extra)
    command = [sys.executable, str(Path(__file__).resolve()), "--part", name]
    return child.run(command, limit_s=options.limit, env=env), gauge.end()


def judge(name: str, native: child.Outcome, ours: child.Outcome, most: int) -> str:
    """What is wrong, or nothing."""
    wrong = judging.wrong_outputs(native, ours)
    if most > LIMIT + CONTEXT:
        wrong.append(f"{most / MIB:.0f} MiB of GPU memory, the limit is {LIMIT // MIB}")
    stages = {line["after"]: line for line in ours.events("stage")}
    return "; ".join(wrong + (judge_stages(name, stages) if stages else ["no stage was reached"]))


def judge_stages(name: str, stages: dict[str, dict]) -> list[str]:
    """What is wrong with what was streamed, and with what grew."""
    wrong = []
    bytes_of = {after: line["streamed"] for after, line in stages.items()}
    if name == "larger_than_the_limit":
        first, last = "twenty", "fifty"
        if not bytes_of.get(first):
            wrong.append("nothing was streamed")
    else:
        first, last = "gone", "fifty_later"
        if bytes_of.get("without") != 0:
            wrong.append(f"{bytes_of.get('without')} bytes were streamed while everything fitted")
        if not bytes_of.get("grown"):
            wrong.append("nothing gave way to the cache")
        if bytes_of.get(last) != 0:
            wrong.append(f"{bytes_of.get(last)} bytes are still streamed after the cache went")
    if first not in stages or last not in stages:
        return [*wrong, f"not all stages were reached: {sorted(stages)}"]
    grown = stages[last]["host"] - stages[first]["host"]
    if grown > FLAT:
        wrong.append(f"host memory grew by {grown / MIB:.0f} MiB from {first} to {last}")
    taken = stages[first]["told_free"] - stages[last]["told_free"]
    if taken > FLAT:
        wrong.append(f"GPU memory grew by {taken / MIB:.0f} MiB from {first} to {last}")
    if stages[last]["told_total"] > LIMIT:
        wrong.append(f"the program was told of {stages[last]['told_total'] / MIB:.0f} MiB of GPU memory")
    return wrong


def machine(device: int) -> dict:
    """The GPU, its driver, and the commit under test where there is no git checkout."""
    import pynvml

    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(device))
    return {"gpu": name, "driver": link.driver_version(), "commit": os.environ.get("FT_COMMIT", "unknown")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path)
    parser.add_argument("--part", choices=sorted(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=sorted(PARTS), action="append")
    parser.add_argument("--device", type=int, default=0, help="the GPU")
    parser.add_argument("--limit", type=float, default=90, help="seconds for each run of a part")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", HERE.parents[1] / "bench" / "results"))
    )
    options = parser.parse_args()
    if options.part:
        import lab

        lab.settle()
        PARTS[options.part]()
        return 0
    if options.lib is None or not options.lib.is_file():
        parser.error(f"--lib {options.lib}: not a file")
    failed = 0
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only or list(PARTS):
        native, most_native = run(name, options, ours=False)
        ours, most = run(name, options, ours=True)
        wrong = judge(name, native, ours, most)
        failed += bool(wrong)
        figures = {"limit_bytes": LIMIT, "gpu_peak_bytes": most, "native_gpu_peak_bytes": most_native}
        line = {"case": name, "result": "FAIL" if wrong else "PASS", "reason": wrong, **figures}
        line |= {
            "stages": ours.events("stage"),
            "s": round(ours.wall_s, 1),
            "native_s": round(native.wall_s, 1),
        }
        with (options.out / "limits.jsonl").open("a") as file:
            file.write(json.dumps(line | machine(options.device)) + "\n")
        memory = f"{most / MIB:.0f} MiB of {LIMIT // MIB}, native {most_native / MIB:.0f}; "
        judging.tell(name, native, ours, memory, wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
