"""Runs a measured program with its weights placed by another library: what ours is compared with.

`python bench/peers.py PEER [--budget-bytes N] PROGRAM.py [options of the program]`. The program makes its weights in host memory and the peer is called as its
own documentation says; nothing of ours is in the process. Every peer is imported here only, inside the function that needs it. Which peers run, under which
limits, is left to `run.py`; what a program measures, to `program.py`.
"""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import program
import wheels

# The figures of a profiling pass are medians; five passes instead of the default ten shorten FlexTensor's start by seconds and cost it nothing after.
PROFILING_ITERS = 5
UNLIMITED = 1 << 50


@dataclasses.dataclass(frozen=True)
class Peer:
    """One way to place weights: `place(model, options, budget_bytes, blocks)` returns the model to call and its preparing passes."""

    package: str
    place: Callable
    budgeted: bool
    # Imported once before the peer's first run, so that byte code is there as it would be on any machine that has run before.
    imports: str
    environment: dict = dataclasses.field(default_factory=dict)


def flextensor_py(model, options, budget_bytes, blocks):
    """FlexTensor (Python): one unit a block, its budget as a fraction of the GPU's memory, all blocks counts from two up allowed."""
    import torch

    if importlib.util.find_spec("flextensor._native") is not None:
        refuse(
            "the flextensor that Python finds here is ours, not the Python library of that name: see --wheels"
        )
    import flextensor

    total = torch.cuda.get_device_properties(0).total_memory
    config = flextensor.OffloadConfig(
        include_patterns=[f"class:{name}" for name in blocks],
        max_gpu_mem_fraction=budget_bytes / total,
        profiling_iters=PROFILING_ITERS,
        min_blocks=2,
    )
    placed = flextensor.offload(model, config)
    return placed, flextensor.get_offload_manager().iters_before_inference


def accelerate(model, options, budget_bytes, blocks):
    """accelerate's `cpu_offload`: every module's weights are copied when it runs, and dropped after it."""
    from accelerate import cpu_offload

    return cpu_offload(model, execution_device=device_of(options)), 0


def accelerate_map(model, options, budget_bytes, blocks):
    """accelerate's device map: as many blocks as fit the budget stay on the GPU, the others as in `cpu_offload`."""
    from accelerate import dispatch_model, infer_auto_device_map

    places = infer_auto_device_map(
        model, max_memory={0: budget_bytes, "cpu": UNLIMITED}, no_split_module_classes=list(blocks)
    )
    return dispatch_model(model, places, main_device=device_of(options), force_hooks=True), 0


def diffusers_group(model, options, budget_bytes, blocks):
    """diffusers' group offload: one block a group, the next one copied on a stream of its own; everything outside the blocks' holder stays on the GPU."""
    from diffusers.hooks import apply_group_offloading

    holder = holder_of(model, blocks)
    inside = {id(module) for module in holder.modules()}
    for module in model.modules():
        if id(module) not in inside:
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                tensor.data = tensor.data.to(options.device)
    apply_group_offloading(
        holder,
        onload_device=device_of(options),
        offload_device="cpu",
        offload_type="block_level",
        num_blocks_per_group=1,
        use_stream=options.device != "cpu",
    )
    return model, 0


PEERS = {
    "flextensor_py": Peer(
        "flextensor",
        flextensor_py,
        True,
        "import flextensor",
        # Its own switch: without run-time type checks it is as fast as it can be.
        {"DISABLE_BEARTYPE": "1"},
    ),
    "accelerate": Peer("accelerate", accelerate, False, "from accelerate import cpu_offload"),
    "accelerate_map": Peer("accelerate", accelerate_map, True, "from accelerate import dispatch_model"),
    "diffusers_group": Peer(
        "diffusers", diffusers_group, False, "from diffusers.hooks import apply_group_offloading"
    ),
}


def variables(mode: str, sites: dict[str, Path]) -> dict[str, str]:
    """What the environment of a process in this mode needs beside the library: where it finds packages, and a peer's own switches. `sites`: of `wheels.unpack`."""
    inherited = os.environ.get("PYTHONPATH", "")
    path = wheels.search_path(inherited, sites, python_flextensor=mode == "flextensor_py")
    return {"PYTHONPATH": path, **(PEERS[mode].environment if mode in PEERS else {})}


def refuse(reason: str) -> None:
    print(f"bench: {reason}", file=sys.stderr)
    sys.exit(program.MISSING)


def device_of(options):
    import torch

    return torch.device(options.device, 0) if options.device == "cuda" else torch.device(options.device)


def holder_of(model, blocks: tuple[str, ...]):
    """The module whose lists hold the blocks."""
    from torch import nn

    for module in model.modules():
        for child in module.children():
            if isinstance(child, (nn.ModuleList, nn.Sequential)) and any(
                type(block).__name__ in blocks for block in child
            ):
                return module
    raise ValueError(f"no list of {' or '.join(blocks)} in {type(model).__name__}")


def load(path: Path) -> program.Program:
    """The program that a file defines as PROGRAM."""
    # A program may import others that lie beside it.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module.PROGRAM


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument(
        "--budget-bytes", type=int, help="GPU bytes for weights, for a peer that takes a budget"
    )
    parser.add_argument("program", type=Path)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="options of the program")
    given = parser.parse_args(argv)
    peer = PEERS[given.peer]
    if peer.budgeted != (given.budget_bytes is not None):
        parser.error(f"{given.peer} {'needs' if peer.budgeted else 'takes no'} --budget-bytes")
    program.demand(("torch", peer.package))
    measured = load(given.program)

    def place(model, options):
        placed, passes = peer.place(model, options, given.budget_bytes, measured.blocks)
        program.say("peer", peer=given.peer, version=importlib.metadata.version(peer.package), passes=passes)
        return placed, passes

    program.main(measured, [*given.rest, "--build", "host"], place)


if __name__ == "__main__":
    main()
