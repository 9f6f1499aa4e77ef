"""What tests of the benchmark share: result lines as runs write them, and a program that stands for the one that measures the link."""

import measure

GIB = measure.GIB
LINK = "import json; print(json.dumps(dict(event='link', link_bytes_per_s=50e9, gpu='G', gpu_bytes=1, driver='D', torch='T', cuda='C')))"


def line(mode="flextensor", budget=8.0, ms=400.0, **changes) -> dict:
    """A result line of a model of 26 GiB, whose native run takes 10 ms and 2 GiB beside its weights."""
    native, peer = mode == "native", measure.Mode(mode).is_peer
    values = dict(
        program="llama", case="decode1", build="host" if peer else "gpu", layers=16, mode=mode,
        budget_bytes=None if native or budget is None else int(budget * GIB), weights_bytes=26 * GIB,
        weights_gpu_bytes=26 * GIB if native else None if peer else int(budget * GIB), streamed_bytes=None if peer else 0 if native else 18 * GIB,
        device_bytes=29 * GIB if native else None, torch_peak_bytes=28 * GIB if native else None, host_bytes=None, first_steady_s=None,
        ms=10.0 if native else ms, digest="a", agree=True, differing=[], finite=True,
    )  # fmt: skip
    return values | changes
