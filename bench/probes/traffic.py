"""What traffic on the link costs a processor that has nothing to do with it: the same work with the link idle, and while copies to the GPU go on.

    python bench/probes/traffic.py [--seconds 12]

Streaming keeps the link busy beside a program that launches bind. Copies are one graph, launched once for each sample, so that no call of the processor's is timed
with them. Work: a loop of Python, a walk through 256 MiB in no order (each step waits for memory), and launches of a small kernel, without waiting for the GPU. What streaming
costs a whole program is measured by `../turns.py --traffic`.
"""

import argparse
import statistics
import time

import numpy
import torch

COPY_BYTES, COPIES = 16 << 20, 512
STEPS = 1 << 17
LAUNCHES = 600


def traffic():
    """A graph of copies of 8 GiB in all, and its stream."""
    host = torch.empty(16 * COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    copies, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(copies, stream=side):
        for at in range(COPIES):
            there.copy_(host[at % 16 * COPY_BYTES :][:COPY_BYTES], non_blocking=True)
    return copies, side, host


def works():
    """By name: something to time, in about ten milliseconds."""
    generator = numpy.random.default_rng(0)
    numbers = numpy.zeros(32 << 20, dtype=numpy.int64)
    places = generator.integers(0, numbers.size, STEPS)
    small = torch.zeros(64, device="cuda")

    def loop():
        found = {}
        for at in range(60_000):
            found[at & 255] = at

    def walk():
        numbers[places].sum()

    def launches():
        for _ in range(LAUNCHES):
            small.add_(1)

    return {"a loop of Python": loop, "a walk through memory": walk, f"{LAUNCHES} launches": launches}


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12)
    options = parser.parse_args()
    copies, side, _host = traffic()
    found = {name: ([], []) for name in works()}
    every = works()
    ends = time.monotonic() + options.seconds
    while time.monotonic() < ends:
        for name, work in every.items():
            for busy in (False, True):
                torch.cuda.synchronize()
                if busy:
                    with torch.cuda.stream(side):
                        copies.replay()
                    time.sleep(0.01)
                found[name][busy].append(timed(work))
    torch.cuda.synchronize()
    for name, times in found.items():
        idle, busy = (sorted(of)[len(of) // 10] for of in times)
        middles = [statistics.median(of) for of in times]
        print(
            f"{name}: link idle {idle:.2f} ms, busy {busy:.2f} ms ({busy / idle - 1:+.1%}); medians {middles[0]:.2f} and {middles[1]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
