"""Offloads a model from within the program: units, phases, memory, transfer times, and the way back.

    flextensor run --max-gpu-mem 1GiB -- python examples/offload.py        # on a GPU, under a budget
    python examples/offload.py                                             # anywhere: the first offload() loads the library

The model is a stack of blocks with random weights, 3 GiB in bf16 on a GPU and a few KiB elsewhere.

Prints without a GPU (on a GPU the memory and a table of transfer times instead of the two lines behind `phase INFERENCE`):
    24 units, 4 forwards to learn
    phase PROFILING
    phase PROFILING
    phase PROFILING
    phase INFERENCE
    ring 0 MiB, residents 0 MiB
    no transfer times: nothing is offloaded
    released: NOT_INITIALIZED, weights on cpu
"""

import flextensor as ft
import torch
from torch import nn

HAS_GPU = torch.cuda.is_available()
WIDTH, BLOCKS = (4096, 24) if HAS_GPU else (16, 24)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def main():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if HAS_GPU else torch.float32)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS))).eval()
    config = ft.OffloadConfig(
        enabled=HAS_GPU, include_patterns=["class:Block"], profiling_iters=3, offload_timing="eager"
    )
    proxy = ft.offload(model, config)
    manager = ft.get_offload_manager()
    print(f"{len(ft.offload_units())} units, {manager.iters_before_inference} forwards to learn")
    x = torch.ones(4, WIDTH, device="cuda" if HAS_GPU else "cpu")
    with torch.no_grad():
        for _ in range(manager.iters_before_inference):
            proxy(x)
            print(f"phase {manager.phase.name}")
        ft.reset_offload_timing()
        for _ in range(10):
            proxy(x)
    usage = ft.get_gpu_memory_usage()
    print(f"ring {usage.blocks_mb:.0f} MiB, residents {usage.unmapped_tensors_mb:.0f} MiB")
    report = ft.collect_offload_timing()
    print(ft.format_offload_timing_table(report) if report else "no transfer times: nothing is offloaded")
    ft.release()
    print(f"released: {manager.phase.name}, weights on {next(model.parameters()).device}")


if __name__ == "__main__":
    main()
