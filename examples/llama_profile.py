"""Writes a profile of a Llama that nobody has run yet, for `flextensor plan`: sizes from the shape of the model,
times from what a pass takes elsewhere with everything on the GPU.

    python examples/llama_profile.py > llama-16.json        # 16 layers of 70B shape, as in bench/results
    python examples/llama_profile.py --layers 80 --pass prefill=970 --pass decode=60 > llama-80.json
    flextensor plan llama-80.json --gpu-mem 24GiB --link 25GB/s

A real run writes a better one (docs/plan.md). Time is shared among weights by their bytes, which is right for
long inputs and for one token alike; what attention itself takes counts with the weight before it.
"""

import argparse
import hashlib
import json
import sys

PAGE = 2 << 20
# Copies of so many KiB reach so many GB/s: PCIe 5 x16, measured on one H200.
LINK = [(64, 17.0), (256, 36.0), (1024, 48.6), (2048, 51.8), (8192, 54.5), (32768, 55.2), (262144, 55.4)]
# Milliseconds of a pass of 16 layers, native, as bench/results has them. The first is what a plan serves.
MEASURED = ["prefill=197.1", "decode=20.7", "batch64=18.8"]


def weights(layers, hidden, inner, keys, vocabulary):
    """(owner's path, its class, bytes in bf16) of every matrix, in order of use."""
    yield "model.embed_tokens", "Embedding", 2 * vocabulary * hidden
    for layer in range(layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for name, rows in (("q", hidden), ("k", keys), ("v", keys), ("o", hidden)):
            yield f"{attention}.{name}_proj", "Linear", 2 * rows * hidden
        for name in ("gate", "up", "down"):
            yield f"{mlp}.{name}_proj", "Linear", 2 * inner * hidden
    yield "lm_head", "Linear", 2 * vocabulary * hidden


def one_pass(name, ms, matrices):
    """A pass of `ms` milliseconds; the embedding only picks rows."""
    computing = sum(size for _, kind, size in matrices if kind == "Linear")
    uses = [
        {"unit": at, "owner": at, "ms": round(ms * size / computing, 6) if kind == "Linear" else 0.0}
        for at, (_, kind, size) in enumerate(matrices)
    ]
    signature = hashlib.sha256(name.encode()).hexdigest()[:16]
    return {"shape": signature, "passes": 10, "timed": True, "uses": uses, "tail_ms": 0.0, "resident_ms": ms}


def profile(given):
    """The whole file: schema 3, with what the planner needs under `flextensor`."""
    matrices = list(weights(given.layers, given.hidden, given.inner, given.keys, given.vocabulary))
    passes = [text.split("=", 1) for text in given.passes or MEASURED]
    model = {
        "name": f"Llama of {given.layers} layers",
        "device": 0,
        "owners": [
            {"owner": at, "path": path, "class": kind, "trap": -1, "ran": True}
            for at, (path, kind, _) in enumerate(matrices)
        ],
        "weights": [
            {"name": f"{path}.weight", "bytes": size, "owner": at, "flags": 1}
            for at, (path, _, size) in enumerate(matrices)
        ],
        "units": [
            {"weights": [at], "bytes": size, "pages": -(-size // PAGE), "splittable": True, "shown": True}
            for at, (_, _, size) in enumerate(matrices)
        ],
        "fixed_bytes": 2 * (2 * given.layers + 1) * given.hidden,
        "passes": [one_pass(name, float(ms), matrices) for name, ms in passes],
    }
    gpu = {
        "device": 0,
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "total_bytes": 150109880320,
        "link": {"generation": 5, "width": 16},
        "idle": [{"copy_bytes": kib << 10, "gb_per_s": speed} for kib, speed in LINK],
    }
    no_transfers = (
        "tensor_id_to_name_map allocation_ordered label_to_size_map block_sizes load_strategy "
        "release_strategy label_to_block_id transfer_to_compute_map"
    )
    return {
        "version": 3,
        "loader_type": "allocation_block_transfer",
        **{key: {} for key in no_transfers.split()},
        "stats": [],
        "flextensor": {
            "format": 1,
            "versions": {"flextensor": "0.1.0"},
            "gpus": [gpu],
            "patterns": {},
            "models": [model],
        },
    }


def main():
    """Prints the profile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("layers", 16),
        ("hidden", 8192),
        ("inner", 28672),
        ("keys", 1024),
        ("vocabulary", 32000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--pass",
        dest="passes",
        metavar="NAME=MS",
        action="append",
        help="an input shape: milliseconds of a pass with everything on the GPU",
    )
    json.dump(profile(parser.parse_args()), sys.stdout)
    print()


if __name__ == "__main__":
    main()
