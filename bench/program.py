"""What all measured programs share: their options, the making of weights, the loops over forwards, and the JSON lines that say what was measured.

A program prints one "built", one "case" for each case and one "end", and knows of nothing that runs beneath it. A case is two loops over the same input:
a checked one, where the raw bytes of every forward's output are hashed, and a timed one, back to back as a serving loop would be. What a model is and
what one forward does is left to the program (`llama.py`, `diffusion.py`, `mixed.py`, `small.py`, `unet.py`); who else may place its weights, to
`peers.py`; comparing runs, and every figure that needs more than one process, to `run.py`.
"""

import argparse
import gc
import hashlib
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import ClassVar

# Parts of a weight are drawn one after the other, so that all builds draw the same numbers and none needs a second copy on the GPU.
DRAW_ELEMENTS = 1 << 26
WEIGHT_SCALE = 0.01
# Forwards are steady from the first one on after which all stay this near to the timed median, above it or below: passes that only learn run at native speed.
STEADY = 0.2
# A loop that has used up its seconds still runs this many forwards.
LEAST_FORWARDS = 2
# The exit code of a program that could not run for want of something that is not installed.
MISSING = 2


def since_process_start() -> float:
    """Seconds since the kernel started this process (10 ms resolution)."""
    with open("/proc/self/stat") as file:
        started_ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def host_bytes() -> dict[str, int]:
    """This process's resident, peak resident and locked host bytes, from the kernel."""
    names = {
        "VmRSS": "rss_bytes",
        "VmHWM": "rss_peak_bytes",
        "VmLck": "locked_bytes",
        "VmPin": "pinned_bytes",
    }
    found = {}
    with open("/proc/self/status") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key in names:
                found[names[key]] = int(value.split()[0]) * 1024
    return found


def say(event: str, **values) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def first_steady(checked_ms: list[float], median: float) -> int | None:
    """Index of the first forward that is as fast as the timed ones, and all after it too (one straggler in eight is forgiven). None if there is none."""
    near = [abs(ms - median) <= STEADY * median for ms in checked_ms]
    for index in range(len(near)):
        rest = near[index:]
        if near[index] and rest.count(False) <= len(rest) // 8:
            return index
    return None


class Program:
    """One measured program: its cases in order, and how its model, its inputs and one forward are made."""

    name = ""
    # What a "case" is called, and whatever the program needs to know of it.
    cases: ClassVar[dict] = {}
    layers = 16
    # Class names of the repeated blocks: what those who place weights block by block must be told.
    blocks: tuple[str, ...] = ()
    # Modules beyond torch that must be importable.
    needs: tuple[str, ...] = ()

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Options of this program alone."""

    def build(self, options: argparse.Namespace):
        """The model with its weights where `options.build` says; see `materialise`."""
        raise NotImplementedError

    def forward(self, model, options: argparse.Namespace, case: str) -> Callable:
        """A function that runs one forward of the case, the same at each call, and returns the output."""
        raise NotImplementedError

    def measure(self, model, options: argparse.Namespace, passes: int) -> None:
        """Runs and prints all cases. `passes`: forwards of the first case that only prepare later ones."""
        for index, case in enumerate(options.cases):
            first = index == 0
            run_case(self.forward(model, options, case), options, case, first, passes if first else 0)


def arguments(program: Program, argv: list[str] | None = None) -> argparse.Namespace:
    """The checked options. Exits with one line for a value that is not allowed."""
    parser = argparse.ArgumentParser(
        description=(sys.modules[type(program).__module__].__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--build",
        choices=("gpu", "cpu", "host"),
        default="gpu",
        help="where the weights are made; cpu: there, then model.to(device); host: there, and left to who places them",
    )
    parser.add_argument("--layers", type=int, default=program.layers)
    parser.add_argument("--forwards", type=int, default=20, help="checked forwards of each case")
    parser.add_argument("--timed", type=int, default=12, help="timed forwards of each case")
    parser.add_argument(
        "--loop-seconds",
        type=float,
        default=0.0,
        help=f"end each loop after this many seconds, not before {LEAST_FORWARDS} forwards; 0: run all",
    )
    parser.add_argument(
        "--cases", default=",".join(program.cases), help="comma separated, in order: %(default)s"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a very small shape, to try the script itself")
    program.add_options(parser)
    options = parser.parse_args(argv)
    options.cases = [name.strip() for name in options.cases.split(",") if name.strip()]
    unknown = [name for name in options.cases if name not in program.cases]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; allowed: {', '.join(program.cases)}")
    if options.layers < 1 or options.forwards < 1 or options.timed < 1 or options.loop_seconds < 0:
        parser.error("--layers, --forwards and --timed must be at least 1, --loop-seconds at least 0")
    return options


def materialise(make: Callable, options: argparse.Namespace, complete: Callable | None = None):
    """The model that `make` describes, in bf16, its weights the same to the bit for every --build. `complete` makes buffers that are computed, not drawn."""
    import torch

    with torch.device("meta"):
        model = make().to(torch.bfloat16)
    on_device = options.build == "gpu"
    model = model.to_empty(device=options.device if on_device else "cpu").eval().requires_grad_(False)
    if complete is not None:
        complete(model)
    draw_weights(model, options.device, on_device)
    if options.build != "host":
        model = model.to(options.device)
    else:
        # Who places weights need not care for the few bytes of buffers.
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module.register_buffer(
                    name, buffer.to(options.device), name not in module._non_persistent_buffers_set
                )
    if options.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    gc.collect()
    return model


def draw_weights(model, device: str, on_device: bool) -> None:
    """Seeded Gaussian weights, drawn on `device` wherever they lie; scales of norms are 1 and biases 0."""
    import torch

    generator = torch.Generator(device=device).manual_seed(1)
    draw = None if on_device else torch.empty(DRAW_ELEMENTS, dtype=torch.bfloat16, device=device)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        for part in parameter.view(-1).split(DRAW_ELEMENTS):
            if on_device:
                part.normal_(0.0, WEIGHT_SCALE, generator=generator)
            else:
                part.copy_(draw[: part.numel()].normal_(0.0, WEIGHT_SCALE, generator=generator))


def seeded(options: argparse.Namespace):
    """The generator of inputs."""
    import torch

    return torch.Generator(device=options.device).manual_seed(7)


class Meter:
    """Times forwards between two synchronisations and hashes their outputs."""

    def __init__(self, device: str):
        import torch

        self.torch = torch
        self.cuda = device == "cuda"
        # Reused, so that checking neither grows the process nor pays for fresh pages.
        self.landing = None
        # What hashing took so far: the measurement's seconds, not the program's.
        self.hashing_s = 0.0

    def synchronize(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def timed(self, forward: Callable):
        """One forward: its output and its milliseconds."""
        self.synchronize()
        began = time.perf_counter()
        output = forward()
        self.synchronize()
        return output, (time.perf_counter() - began) * 1e3

    def digest(self, output) -> str:
        """SHA-256 of the output's raw bytes: equal digests are what torch.equal would say across processes (and stricter for NaN and -0)."""
        began = time.perf_counter()
        raw = output.contiguous().view(self.torch.uint8).reshape(-1)
        if self.landing is None or self.landing.numel() != raw.numel():
            self.landing = self.torch.empty(raw.numel(), dtype=self.torch.uint8)
        self.landing.copy_(raw)
        found = hashlib.sha256(memoryview(self.landing.numpy())).hexdigest()
        self.hashing_s += time.perf_counter() - began
        return found

    def program_s(self) -> float:
        """Seconds since the process started, less those spent on hashing."""
        return since_process_start() - self.hashing_s

    def reset_peak(self) -> None:
        if self.cuda:
            self.torch.cuda.reset_peak_memory_stats()

    def memory(self) -> dict[str, int]:
        """Device memory in use by all (the driver's count), and torch's own counts; the peak is that since `reset_peak`. Empty without a GPU."""
        if not self.cuda:
            return {}
        free, total = self.torch.cuda.mem_get_info()
        return {
            "device_used_bytes": total - free,
            "torch_peak_bytes": self.torch.cuda.max_memory_allocated(),
            "torch_reserved_bytes": self.torch.cuda.memory_reserved(),
        }


def say_case(
    case: str, meter: Meter, *, checked_ms, ended_s, timed_ms, timed_window, first: bool, **values
) -> None:
    """Prints one "case" line. Only the process's first case can say when forwards became steady."""
    median = statistics.median(timed_ms)
    steady = first_steady(checked_ms, median)
    say(
        "case",
        case=case,
        ms=round(median, 3),
        min_ms=round(min(timed_ms), 3),
        first_ms=round(checked_ms[0], 3),
        checked_ms=[round(ms, 3) for ms in checked_ms],
        timed_ms=[round(ms, 3) for ms in timed_ms],
        steady_forward=steady,
        first_forward_s=round(ended_s[0], 2) if first else None,
        first_steady_s=round(ended_s[steady], 2) if first and steady is not None else None,
        timed_window=timed_window,
        **values,
        **host_bytes(),
        **meter.memory(),
    )


def run_case(forward: Callable, options: argparse.Namespace, case: str, first: bool, passes: int = 0) -> None:
    """Both loops of one case. The checked one has `passes` forwards more, which no limit of seconds ends."""
    meter = Meter(options.device)
    checked_ms, digests, ended_s, timed_ms = [], [], [], []
    spent_s = 0.0
    while len(checked_ms) < options.forwards + passes:
        if len(checked_ms) >= passes + LEAST_FORWARDS and spends(options, spent_s):
            break
        output, ms = meter.timed(forward)
        checked_ms.append(ms)
        spent_s += ms / 1e3 if len(checked_ms) > passes else 0.0
        ended_s.append(meter.program_s())
        digests.append(meter.digest(output))
        del output
    meter.reset_peak()
    began = time.monotonic()
    while len(timed_ms) < options.timed:
        if len(timed_ms) >= LEAST_FORWARDS and spends(options, time.monotonic() - began):
            break
        output, ms = meter.timed(forward)
        timed_ms.append(ms)
    timed_window = [began, time.monotonic()]
    digests.append(meter.digest(output))
    say_case(
        case,
        meter,
        checked_ms=checked_ms,
        ended_s=ended_s,
        timed_ms=timed_ms,
        timed_window=timed_window,
        first=first,
        # Of every forward, the last timed one included.
        digest=digests[0],
        agree=len(set(digests)) == 1,
        differing=[index for index, digest in enumerate(digests) if digest != digests[0]],
        finite=bool(output.isfinite().all()),
    )


def spends(options: argparse.Namespace, seconds: float) -> bool:
    """Whether a loop has used up what it may take."""
    return 0 < options.loop_seconds <= seconds


def demand(needs: tuple[str, ...]) -> None:
    """Ends the process with one line where a module that must be there is not."""
    for name in needs:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"bench: {name} cannot be imported by {sys.executable}: {error}", file=sys.stderr)
            sys.exit(MISSING)


def main(program: Program, argv: list[str] | None = None, place: Callable | None = None) -> None:
    """Runs the program. `place(model, options)` may move the model; it returns the model to call and how many forwards only prepare later ones."""
    options = arguments(program, argv)
    demand(("torch", *program.needs))
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("bench: torch sees no GPU (--device cpu --tiny tries the program without one)", file=sys.stderr)
        sys.exit(MISSING)
    imported_s = since_process_start()
    torch.manual_seed(0)
    with torch.no_grad():
        model = program.build(options)
        weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        model, passes = place(model, options) if place else (model, 0)
        say(
            "built",
            program=program.name,
            build=options.build,
            layers=options.layers,
            weights_bytes=weights,
            imported_s=round(imported_s, 2),
            built_s=round(since_process_start(), 2),
            passes=passes,
            **host_bytes(),
        )
        program.measure(model, options, passes)
    say("end", wall_s=round(since_process_start(), 2))
