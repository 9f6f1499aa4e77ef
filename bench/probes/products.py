"""What streaming costs products that compute longer than their copies take: events and waits around each, copies beside it, and where these copies go.

    python bench/probes/products.py [--part 80] [--rounds 5]

24 products of 4096 tokens with weights of 448 MiB, as in the feed-forward of a Llama of 70B shape. A part of each weight is copied in every pass: into a ring beside it (which the product does not read), or into a buffer that the product reads. Every way in turn, with
pauses, so that the GPU does not slow down for want of power; milliseconds of a pass on the GPU, the median, and what one in five was faster than. What the library itself costs is measured by `../run.py`.
"""

import argparse
import statistics
import time

import torch

MIB = 1 << 20
TOKENS, NARROW, WIDE, PRODUCTS = 4096, 8192, 28672, 24


class Scene:
    """The weights, the host memory that copies come from, and the ring."""

    def __init__(self, part: int, ring: int):
        self.part = part * MIB
        self.weights = [
            torch.randn(WIDE, NARROW, device="cuda", dtype=torch.bfloat16) for _ in range(PRODUCTS)
        ]
        self.input = torch.randn(TOKENS, NARROW, device="cuda", dtype=torch.bfloat16)
        self.host = torch.empty(2048 * MIB, dtype=torch.uint8, pin_memory=True)
        self.slots = max(1, ring * MIB // self.part)
        self.ring = torch.empty(self.slots, self.part, dtype=torch.uint8, device="cuda")
        self.side = torch.cuda.Stream()
        self.copied = [torch.cuda.Event() for _ in range(PRODUCTS)]
        self.used = [torch.cuda.Event() for _ in range(PRODUCTS)]
        for event in [*self.copied, *self.used]:
            event.record()

    def target(self, at: int, into_weights: bool):
        if into_weights:
            return self.weights[at].view(torch.uint8).view(-1)[-self.part :]
        return self.ring[at % self.slots]

    def copy(self, at: int, piece: int, into_weights: bool) -> None:
        to = self.target(at, into_weights)
        begins = at * self.part % (self.host.numel() - self.part)
        for low in range(0, self.part, piece * MIB):
            high = min(low + piece * MIB, self.part)
            to[low:high].copy_(self.host[begins + low : begins + high], non_blocking=True)

    def product(self, at: int) -> None:
        torch.mm(self.input, self.weights[at].t())

    def alone(self, record: bool = False, wait: bool = False) -> None:
        here = torch.cuda.current_stream()
        for at in range(PRODUCTS):
            if wait:
                here.wait_event(self.copied[at])
            self.product(at)
            if record:
                self.used[at].record(here)

    def beside(self, piece: int) -> None:
        """Copies that nothing waits for."""
        with torch.cuda.stream(self.side):
            for at in range(PRODUCTS):
                self.copy(at, piece, False)
        self.alone()

    def streamed(self, piece: int, into_weights: bool = False, slots: int | None = None) -> None:
        """A copy waits for the product that used its place, a product for its copy."""
        here, slots = torch.cuda.current_stream(), slots or self.slots
        for at in range(PRODUCTS):
            # Places of the pass before are free: passes follow each other with a pause.
            with torch.cuda.stream(self.side):
                if at >= slots:
                    self.side.wait_event(self.used[at - slots])
                self.copy(at, piece, into_weights)
                self.copied[at].record(self.side)
            here.wait_event(self.copied[at])
            self.product(at)
            self.used[at].record(here)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", type=int, default=80, help="MiB of each weight that are copied")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    scene = Scene(options.part, 320)
    ways = {
        "alone": lambda: scene.alone(),
        "an event behind each": lambda: scene.alone(record=True),
        "a wait before, an event behind each": lambda: scene.alone(record=True, wait=True),
        "copies of 32 MiB beside": lambda: scene.beside(32),
        "copies of a part beside": lambda: scene.beside(options.part),
        "streamed beside, ring of 4": lambda: scene.streamed(32),
        "streamed beside, ring of 2": lambda: scene.streamed(32, slots=2),
        "streamed into the weights, ring of 4": lambda: scene.streamed(32, True),
        "streamed into the weights, ring of 2": lambda: scene.streamed(32, True, slots=2),
        "streamed into the weights in 8 MiB, ring of 2": lambda: scene.streamed(8, True, slots=2),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for again in range(options.rounds + 1):
        for name, way in ways.items():
            time.sleep(0.12)
            for _ in range(2):
                torch.cuda.synchronize()
                begins.record()
                way()
                ends.record()
                torch.cuda.synchronize()
                if again:
                    found[name].append(begins.elapsed_time(ends))
    plain = statistics.median(found["alone"])
    for name, times in found.items():
        times.sort()
        print(
            f"{name:48} {statistics.median(times):8.3f} ms {statistics.median(times) / plain:7.4f}  fast {times[len(times) // 5]:8.3f} ms"
        )


if __name__ == "__main__":
    main()
