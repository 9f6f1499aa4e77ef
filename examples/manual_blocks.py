"""A program that never calls its model's own forward: the parts beside the units are bracketed by hand, and each pass is ended by hand.

    python examples/manual_blocks.py

Prints on a GPU:
    pass 1: PROFILING
    pass 2: PROFILING
    pass 3: INFERENCE
    pass 4: INFERENCE
    a block inside a block: refused while the model is learnt

Prints without a GPU:
    pass 1: PROFILING
    pass 2: PROFILING
    pass 3: INFERENCE
    pass 4: INFERENCE
    a block inside a block: allowed, nothing is offloaded
"""

import flextensor as ft
import torch
from torch import nn

HAS_GPU = torch.cuda.is_available()
WIDTH = 4096 if HAS_GPU else 16
CONFIG = ft.OffloadConfig(enabled=HAS_GPU, include_patterns=["layers.*"], profiling_iters=2)


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.head = nn.Linear(WIDTH, 100)


def one_pass(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    with ft.offload_block("embedding"):
        x = model.embed(tokens)
    for layer in model.layers:  # units by themselves: no block around them while the model is learnt
        x = layer(x).relu()
    with ft.offload_block("head"):
        x = model.head(x)
    ft.update_state()  # the pass has ended
    return x


def nested() -> str:
    ft.offload(Parts().eval(), CONFIG)
    try:
        with ft.offload_block("outer"), ft.offload_block("inner"):
            return "allowed, nothing is offloaded"
    except RuntimeError:
        return "refused while the model is learnt"


def main() -> None:
    model = ft.offload(Parts().eval(), CONFIG)
    tokens = torch.zeros(1, 8, dtype=torch.long, device="cuda" if HAS_GPU else "cpu")
    with torch.no_grad():
        for number in range(1, 5):
            one_pass(model, tokens)
            print(f"pass {number}: {ft.get_offload_manager().phase.name}")
    ft.release()
    print("a block inside a block:", nested())
    ft.release()


if __name__ == "__main__":
    main()
