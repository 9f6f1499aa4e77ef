"""What the GPU pays between products of a prefill for events and waits around each, for stream memory operations in their place, and for copies beside them.

    python bench/probes/sync_costs.py [--products 113] [--rounds 25]

Products of 4096 tokens with weights of 8192 x 8192, all zero: then the GPU draws so little power that its speed stays the same, and differences of a few microseconds
can be told. The host enqueues a whole pass while a kernel holds the stream, so that no wait is over when it is enqueued. Every way in turn; the median of a pass on the
GPU, the quartiles, and microseconds (or milliseconds for each GiB) more than the products alone. What the library adds itself is measured by `../turns.py`.
"""

import argparse
import ctypes
import statistics

import torch

MIB, GIB = 1 << 20, 1 << 30
TOKENS, WIDE = 4096, 8192
# Cycles that a pass is held back, while it is enqueued: about 20 ms.
HELD = 40_000_000
PIECE = 16 * MIB


class Scene:
    """The products' operands, events of copies that end before the products begin, and a word for memory operations."""

    def __init__(self, products: int):
        self.products = products
        self.weights = [
            torch.zeros(WIDE, WIDE, device="cuda", dtype=torch.bfloat16) for _ in range(min(products, 16))
        ]
        self.input = torch.zeros(TOKENS, WIDE, device="cuda", dtype=torch.bfloat16)
        self.output = torch.empty(TOKENS, WIDE, device="cuda", dtype=torch.bfloat16)
        self.host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
        self.there = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        self.side = torch.cuda.Stream()
        self.copied = [torch.cuda.Event() for _ in range(products)]
        self.used = [torch.cuda.Event() for _ in range(products)]
        self.word = torch.ones(2, dtype=torch.int32, device="cuda")
        self.driver = ctypes.CDLL("libcuda.so.1")

    def words(self, call: str, value: int, flags: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        address = ctypes.c_uint64(self.word.data_ptr() + (4 if call == "cuStreamWriteValue32_v2" else 0))
        status = getattr(self.driver, call)(stream, address, ctypes.c_uint32(value), ctypes.c_uint(flags))
        if status:
            raise RuntimeError(f"{call}: {status}")

    def before(self, at: int, way: str) -> None:
        if "wait" in way:
            torch.cuda.current_stream().wait_event(self.copied[at])
        if "value" in way:
            # Until the word is at least 1, which it is.
            self.words("cuStreamWaitValue32_v2", 1, 0)

    def behind(self, at: int, way: str) -> None:
        if "event" in way:
            self.used[at].record()
        if "written" in way:
            # 1: no barrier in front of the write would be too little; 0 has one.
            self.words("cuStreamWriteValue32_v2", 1, 0)

    def run(self, way: str, every: int, gib: float) -> float:
        """Milliseconds of a pass on the GPU."""
        begins, ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(HELD // 2)
            for event in self.copied:
                event.record()
        torch.cuda._sleep(HELD)
        begins.record()
        if gib:
            self.side.wait_event(begins)
            with torch.cuda.stream(self.side):
                for piece in range(int(gib * GIB) // PIECE):
                    to, of = piece * PIECE % self.there.numel(), piece * PIECE % self.host.numel()
                    self.there[to : to + PIECE].copy_(self.host[of : of + PIECE], non_blocking=True)
        for at in range(self.products):
            if at % every == 0:
                self.before(at, way)
            torch.mm(self.input, self.weights[at % len(self.weights)].t(), out=self.output)
            if at % every == 0:
                self.behind(at, way)
        ends.record()
        torch.cuda.synchronize()
        return begins.elapsed_time(ends)


# Name, what is around products, around how many of them (1 = each), GiB copied beside.
WAYS = (
    ("alone", "", 1, 0.0),
    ("alone again", "", 1, 0.0),
    ("an event behind each", "event", 1, 0.0),
    ("a wait before each", "wait", 1, 0.0),
    ("a wait before, an event behind each", "wait event", 1, 0.0),
    ("the same around each eighth", "wait event", 8, 0.0),
    ("a word waited for, a word written", "value written", 1, 0.0),
    ("a word waited for, an event behind", "value event", 1, 0.0),
    ("2 GiB copied beside", "", 1, 2.0),
    ("4 GiB copied beside", "", 1, 4.0),
    ("4 GiB beside, a wait and an event each", "wait event", 1, 4.0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--products", type=int, default=113)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    scene = Scene(options.products)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.products} products")
    found: dict[str, list[float]] = {name: [] for name, *_ in WAYS}
    for turn in range(options.rounds + 2):
        for name, way, every, gib in WAYS:
            ms = scene.run(way, every, gib)
            if turn >= 2:
                found[name].append(ms)
    alone = found["alone"]
    for name, way, every, gib in WAYS:
        times = sorted(found[name])
        more = statistics.median(ms - base for ms, base in zip(found[name], alone, strict=True))
        low, high = times[len(times) // 4], times[len(times) * 3 // 4]
        each = f"{1e3 * more / len(range(0, options.products, every)):8.2f} us each" if way else ""
        per_gib = f"{more / gib:8.3f} ms a GiB" if gib and not way else ""
        middle = statistics.median(times)
        print(f"{name:40} {middle:9.3f} ms ({low:.3f} to {high:.3f})  {more:+.3f} ms {each}{per_gib}")


if __name__ == "__main__":
    main()
