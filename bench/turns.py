"""What a program pays that launches bind: native processes and one under the library take turns at the same few processor cores.

    python bench/turns.py --lib libflextensor.so [--program llama] [--case decode1] [--budget 8GiB --traffic 18.5] [--packages-in /dev/shm]

Where launches bind a program, a processor that changes its speed moves all times by half from one second to the next, and one per cent between two processes
says nothing. Here all processes live at once, pinned to the same cores, and run a slice of forwards each in turn: neighbouring slices are compared, so that both
met the same speed. Two native processes show how far two processes differ that should not. A third one may copy to the GPU what streaming would copy, in one call a
forward (a graph of copies): launching takes longer while the link is busy, whoever keeps it so. And a peer may take its turns, where a long-running GPU changes its speed by more than the peer and ours
differ. Prints a table, appends a line for each pair to OUT/NAME.jsonl. What a program does is left to `program.py`, what a peer does to `peers.py`; time limits of single runs, and what ours is compared with at which bytes, to `run.py`.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import child  # noqa: E402
import peers  # noqa: E402
import program  # noqa: E402
import run  # noqa: E402
import wheels  # noqa: E402

# Forwards before the first slice: those in which the library learns, and some more.
PREPARING = 40
# Forwards at the beginning of a slice that do not count: the caches still hold the other process's.
SETTLING = 3
TRAFFIC = "native with traffic"
OURS = "flextensor"
# The pairs whose ratios are of interest, and the one that shows how much of it is chance.
PAIRS = (
    ("flextensor", "native"),
    ("flextensor", TRAFFIC),
    (TRAFFIC, "native"),
    ("native again", "native"),
    *(("flextensor", peer) for peer in peers.PEERS),
    *((peer, "native") for peer in peers.PEERS),
)
# Bytes of one copy of the traffic, as streaming has them; of the host memory that it goes round in; and of the GPU memory, which is a ring's.
COPY_BYTES, ROUND_BYTES, RING_BYTES = 16 << 20, 512 << 20, 256 << 20


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--lib", type=Path, help="libflextensor.so; without it only native processes take turns")
    add("--program", default="llama", help="a program of this folder")
    add("--case", help="one of its cases; default: its last")
    add("--budget", default="1000GiB", help="FT_MAX_GPU_MEM; default: more than the model needs")
    add(
        "--option",
        action="append",
        default=[],
        metavar="FT_KEY=VALUE ...",
        help="one more process under the library, with these options as well, or as LIB=FILE with another build of it: what they change; may be given several times",
    )
    add("--traffic", type=float, default=0, metavar="GIB", help="GiB that one more native process copies")
    add("--peer", choices=peers.PEERS, help="one more process, with its weights placed by this library")
    add("--peer-bytes", type=int, metavar="N", help="GPU bytes for weights, for a peer that takes a budget")
    add("--wheels", type=Path, help="folder with the peer's wheels")
    add(
        "--cores",
        default="2,3",
        help="the processor cores that all processes share; none: wherever they like",
    )
    add(
        "--traffic-behind",
        action="store_true",
        help="the traffic's copies are calls behind the forward's launches instead of a graph in front of them: for programs that compute for long, whose kernels would be chosen otherwise where a graph was captured",
    )
    add("--no-again", action="store_true", help="no second native process, where memory is short")
    add("--forwards", type=int, default=12, help="timed forwards of a slice")
    add("--seconds", type=float, default=20, help="for all slices together")
    add("--packages-in", type=Path, metavar="FOLDER", help="as run.py's")
    add("--program-option", action="append", default=[], metavar="--KEY=VALUE")
    add("--device", default="cuda")
    add("--tiny", action="store_true", help="a very small shape, to try the script itself")
    add("--name", default="turns")
    add("--out", type=Path, default=Path(os.environ.get("OUT", HERE / "results")))
    add("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


class Player:
    """One process: says when its model is made, then answers the request for its first forwards, and each one for a slice with its milliseconds."""

    def __init__(self, python: str | Path, options: argparse.Namespace, mode: str, sites: dict[str, Path]):
        more = ["--traffic", str(options.traffic)] if mode == TRAFFIC else []
        more += ["--traffic-behind"] if mode == TRAFFIC and options.traffic_behind else []
        if mode == options.peer:
            more = ["--peer", mode]
            more += [f"--peer-bytes={options.peer_bytes}"] if options.peer_bytes else []
        varied = dict(options.varied.get(mode, {}))
        lib = varied.pop("LIB", options.lib) if mode == OURS or mode in options.varied else None
        self.process = subprocess.Popen(
            [python, str(HERE / "turns.py"), "--child", *own_options(options), *more],
            env=child.environment(
                lib,
                {"FT_MAX_GPU_MEM": options.budget} | varied,
                peers.variables(mode, sites),
                compiled=options.packages_in is not None,
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.slices: list[list[float]] = []

    def answer(self) -> dict:
        """The next line of the process. Raises RuntimeError where it has ended."""
        for text in self.process.stdout:
            if (line := child.parse_line(text)) is not None:
                return line
        raise RuntimeError(f"a process ended with {self.process.wait()}")

    def asked(self, forwards: int) -> dict:
        """What the process answers to a request for so many forwards."""
        self.process.stdin.write(f"{forwards}\n")
        self.process.stdin.flush()
        return self.answer()

    def play(self, forwards: int) -> None:
        self.slices.append(self.asked(forwards)["ms"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def varied_mode(text: str) -> str:
    """What a process with the options of one `--option` is called."""
    return f"{OURS}, {text}"


def varied(parser: argparse.ArgumentParser, text: str) -> dict[str, str]:
    """What one `--option` asks for, by key."""
    others = [part for part in text.split() if not part.startswith("LIB=")]
    libraries = dict(part.split("=", 1) for part in text.split() if part not in others)
    return child.settings(parser, others) | libraries


def own_options(options: argparse.Namespace) -> list[str]:
    """What a child needs to know."""
    given = ["--program", options.program, "--cores", options.cores, "--device", options.device]
    given += ["--case", options.case] if options.case else []
    given += ["--tiny"] if options.tiny else []
    return given + [f"--program-option={text}" for text in options.program_option]


def beside_traffic(forward, gib: float, behind: bool):
    """The forward, with so many GiB on their way to the GPU meanwhile, on a stream of their own: in one call in front of it, or in many calls behind its launches."""
    import torch

    count = max(1, round(gib * (1 << 30) / COPY_BYTES))
    host = torch.empty(min(ROUND_BYTES, count * COPY_BYTES), dtype=torch.uint8, pin_memory=True)
    ring = torch.empty(min(RING_BYTES, count * COPY_BYTES), dtype=torch.uint8, device="cuda")
    parts, places = host.split(COPY_BYTES), ring.split(COPY_BYTES)
    side = torch.cuda.Stream()

    def copy_all():
        for at in range(count):
            places[at % len(places)].copy_(parts[at % len(parts)], non_blocking=True)

    def with_calls():
        output = forward()
        with torch.cuda.stream(side):
            copy_all()
        return output

    if behind:
        return with_calls
    copies = torch.cuda.CUDAGraph()
    with torch.cuda.graph(copies, stream=side):
        copy_all()

    def with_a_graph():
        with torch.cuda.stream(side):
            copies.replay()
        return forward()

    return with_a_graph


def play_as_child(options: argparse.Namespace) -> None:
    """Makes the model, then runs as many forwards as each number says that comes in: the first to prepare, the others timed."""
    import torch

    measured = importlib.import_module(options.program).PROGRAM
    case = options.case or list(measured.cases)[-1]
    arguments = ["--cases", case, "--device", options.device, *options.program_option]
    arguments += ["--build", "host"] if options.peer else []
    settings = program.arguments(measured, [*arguments, *(["--tiny"] if options.tiny else [])])
    wanted = set() if options.cores == "none" else {int(core) for core in options.cores.split(",")}
    # A machine with fewer cores shares all that it has.
    if here := wanted & os.sched_getaffinity(0):
        os.sched_setaffinity(0, here)
    with torch.no_grad():
        torch.manual_seed(0)
        model = measured.build(settings)
        if options.peer:
            placed_by = peers.PEERS[options.peer]
            model, _passes = placed_by.place(model, settings, options.peer_bytes, measured.blocks)
        forward = measured.forward(model, settings, case)
        if options.traffic:
            forward = beside_traffic(forward, options.traffic, options.traffic_behind)
        meter = program.Meter(options.device)
        gpu = torch.cuda.get_device_name() if options.device == "cuda" else None
        program.say("built", case=case, gpu=gpu, torch=torch.__version__)
        for _ in range(int(sys.stdin.readline())):
            output, _ms = meter.timed(forward)
        program.say("ready", digest=meter.digest(output))
        for text in sys.stdin:
            for _ in range(SETTLING):
                meter.timed(forward)
            program.say("slice", ms=[round(meter.timed(forward)[1], 4) for _ in range(int(text))])


def compare(slices: dict[str, list[list[float]]]) -> list[dict]:
    """For each pair: the median of the ratios of neighbouring slices, their quartiles, the medians of both, and what one forward in ten of both was faster than."""
    middle = {mode: [statistics.median(ms) for ms in found] for mode, found in slices.items()}
    found = []
    varied = [mode for mode in slices if mode.startswith(varied_mode(""))]
    others = [OURS, "native", TRAFFIC, *peers.PEERS]
    for mode, against in (*PAIRS, *((mode, other) for mode in varied for other in others)):
        if not middle.get(mode) or not middle.get(against):
            continue
        ratios = sorted(ours / theirs for ours, theirs in zip(middle[mode], middle[against], strict=False))
        found.append(
            {
                "mode": mode,
                "against": against,
                "ratio": round(statistics.median(ratios), 4),
                "quartiles": [round(ratios[len(ratios) * part // 4], 4) for part in (1, 3)],
                "slices": len(ratios),
                "ms": round(statistics.median(middle[mode]), 4),
                "native_ms": round(statistics.median(middle[against]), 4),
                "tenth_ms": tenth(slices[mode]),
                "native_tenth_ms": tenth(slices[against]),
            }
        )
    return found


def tenth(slices: list[list[float]]) -> float:
    """A tenth of all forwards took less: what they take while the processor is fast."""
    times = sorted(ms for one in slices for ms in one)
    return round(times[len(times) // 10], 4)


def modes(options: argparse.Namespace) -> list[str]:
    """Who takes turns."""
    more = [TRAFFIC] if options.traffic else []
    more += [options.peer] if options.peer else []
    more += ["flextensor"] if options.lib else []
    more += [varied_mode(text) for text in options.option] if options.lib else []
    return ["native", *([] if options.no_again else ["native again"]), *more]


def take_turns(options: argparse.Namespace) -> tuple[dict, dict]:
    """The slices of every mode, and what each answered at first."""
    python: str | Path = sys.executable
    players: dict[str, Player] = {}
    unpacked = tempfile.TemporaryDirectory(prefix="flextensor-turns-")
    try:
        sites = wheels.unpack(options.wheels, Path(unpacked.name)) if options.wheels else {}
        if options.packages_in is not None:
            python, sites, _count = wheels.placed(options.packages_in, sites)
        # One by one, so that those that run are ended if another one does not start.
        for mode in modes(options):
            players[mode] = Player(python, options, mode, sites)
        built = {mode: player.answer() for mode, player in players.items()}
        # One after the other: what is learnt while others compute is not what follows.
        ready = {mode: built[mode] | player.asked(PREPARING) for mode, player in players.items()}
        ends = time.monotonic() + options.seconds
        while time.monotonic() < ends:
            # There and back, so that none always follows the same other one.
            for mode in [*players, *reversed(players)]:
                players[mode].play(options.forwards)
    finally:
        for player in players.values():
            player.end()
        unpacked.cleanup()
    return {mode: player.slices for mode, player in players.items()}, ready


def main(argv: list[str] | None = None) -> int:
    parser = command_line()
    options = parser.parse_args(argv)
    options.varied = {varied_mode(text): varied(parser, text) for text in options.option}
    if options.child:
        play_as_child(options)
        return 0
    if options.lib is not None and not options.lib.is_file():
        print(f"turns.py: --lib {options.lib}: not a file", file=sys.stderr)
        return 2
    slices, ready = take_turns(options)
    digests = {mode: line["digest"] for mode, line in ready.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / f"{options.name}.jsonl").open("a") as file:
        for line in compare(slices):
            first = next(iter(ready.values()))
            line |= {key: first[key] for key in ("case", "gpu", "torch")}
            equal = digests[line["mode"]] == digests[line["against"]]
            line |= {"program": options.program, "equal": equal, "cores": options.cores}
            line |= {"budget": options.budget, "traffic_gib": options.traffic, "commit": run.commit()}
            line |= (
                {"peer_bytes": options.peer_bytes} if options.peer in (line["mode"], line["against"]) else {}
            )
            file.write(json.dumps(line) + "\n")
            low, high = line["quartiles"]
            print(
                f"{line['case']}: {line['mode']} / {line['against']} {line['ratio']:.4f} ({low:.4f} to {high:.4f}, {line['slices']} slices), "
                f"{line['ms']:.3f} and {line['native_ms']:.3f} ms, fast {line['tenth_ms']:.3f} and {line['native_tenth_ms']:.3f} ms, outputs {'equal' if line['equal'] else 'DIFFER'}"
            )
    return 0 if len(set(digests.values())) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
