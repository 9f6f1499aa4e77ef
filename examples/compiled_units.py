"""Each unit is compiled by itself (`compile_fn`), and its compiled times are what the plan is made from.

    python examples/compiled_units.py

Prints on a GPU (with Triton and a C compiler; the difference is that of compiled kernels to eager ones):
    6 units, 7 forwards to learn: 1 to discover, 3 to compile, 3 to time
    6 units were compiled
    phase INFERENCE
    close to the eager model: True

Prints without a GPU:
    6 units, 7 forwards to learn: 1 to discover, 3 to compile, 3 to time
    0 units were compiled
    phase INFERENCE
    close to the eager model: True
"""

import copy

import flextensor as ft
import torch
from torch import nn

HAS_GPU = torch.cuda.is_available()
WIDTH = 4096 if HAS_GPU else 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def main() -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(*(Block() for _ in range(6))).eval()
    compiled = []

    def compile_fn(unit: nn.Module) -> nn.Module:
        compiled.append(unit)
        return torch.compile(unit, fullgraph=True)

    config = ft.OffloadConfig(enabled=HAS_GPU, include_patterns=["class:Block"], profiling_iters=3)
    model = ft.offload(copy.deepcopy(eager), config, compile_fn=compile_fn)
    manager = ft.get_offload_manager()
    how = "1 to discover, 3 to compile, 3 to time"
    print(f"{len(ft.offload_units())} units, {manager.iters_before_inference} forwards to learn: {how}")
    x = torch.ones(4, WIDTH, device="cuda" if HAS_GPU else "cpu")
    with torch.no_grad():
        for _ in range(manager.iters_before_inference + 1):
            answer = model(x)
        print(f"{len(compiled)} units were compiled")
        print(f"phase {manager.phase.name}")
        print("close to the eager model:", torch.allclose(answer.cpu(), eager(x.cpu()), rtol=1e-2, atol=1e-2))
    ft.release()


if __name__ == "__main__":
    main()
