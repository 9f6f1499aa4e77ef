"""What one copy costs beyond its bytes, and whether two copy streams hide it: pieces of weights go through a ring of three and a half of them, as the pager copies them.

For each size of a piece, microseconds a piece above bytes / speed of one large copy: copies alone, with the events of a ring on one copy stream, and on two in turns.
"""

import json
import time

import torch

MIB = 1 << 20
TOTAL = 2560 * MIB
SIZES_MIB = (8, 26, 64, 138)


def passed_ms(host, ring, size: int, streams: int, events: bool) -> float:
    """One pass over all pieces in milliseconds, the best of three."""
    copies = [torch.cuda.Stream() for _ in range(streams)]
    compute = torch.cuda.Stream()
    slots = int(ring.numel() // size)
    pieces = TOTAL // size
    best = float("inf")
    for _ in range(3):
        readers = [None] * pieces
        torch.cuda.synchronize()
        began = time.perf_counter()
        for at in range(pieces):
            copy = copies[at % streams]
            with torch.cuda.stream(copy):
                if events and at >= slots:
                    copy.wait_event(readers[at - slots])
                part = ring[(at % slots) * size : (at % slots + 1) * size]
                part.copy_(host[at * size : (at + 1) * size], non_blocking=True)
                if events:
                    arrived = copy.record_event()
            if events:
                compute.wait_event(arrived)
                with torch.cuda.stream(compute):
                    part[: 4 * MIB].add_(1)
                    readers[at] = compute.record_event()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) * 1e3)
    return best


def main() -> None:
    host = torch.zeros(TOTAL, dtype=torch.uint8, pin_memory=True)
    ring = torch.zeros(int(3.5 * max(SIZES_MIB)) * MIB, dtype=torch.uint8, device="cuda")
    whole = min(passed_ms(host, ring, 256 * MIB, 1, False) for _ in range(2)) / TOTAL
    for mib in SIZES_MIB:
        size = mib * MIB
        mine = ring[: int(3.5 * mib) * MIB]
        pieces = TOTAL // size
        extra = {
            name: round(
                (passed_ms(host, mine, size, streams, events) - whole * size * pieces) * 1e3 / pieces, 1
            )
            for name, streams, events in (
                ("alone", 1, False),
                ("one", 1, True),
                ("two", 2, True),
                ("three", 3, True),
            )
        }
        print(
            json.dumps(
                {"piece_mib": mib, "pieces": pieces, "gb_per_s": round(1e-6 / whole, 2), "us_a_piece": extra}
            )
        )


if __name__ == "__main__":
    main()
