"""Two models in one program, each with a manager of its own: other patterns, other counts, other moments.

    python examples/named_managers.py           # the first offload() loads the library; flextensor run works as well

Prints on a GPU:
    encoder: 4 units, 4 forwards to learn
    decoder: 8 units, 6 forwards to learn
    after 4 forwards of each: encoder INFERENCE, decoder PROFILING
    after 6 forwards of the decoder: encoder INFERENCE, decoder INFERENCE
    encoder released: encoder NOT_INITIALIZED, decoder INFERENCE

Prints without a GPU: the same; nothing is offloaded then.
"""

import flextensor as ft
import torch
from torch import nn

HAS_GPU = torch.cuda.is_available()
WIDTH = 4096 if HAS_GPU else 16


def stack(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).eval()


def phases() -> str:
    return ", ".join(f"{name} {ft.get_offload_manager(name).phase.name}" for name in ("encoder", "decoder"))


def main() -> None:
    models = {}
    for name, layers, profiling_iters in (("encoder", 4, 3), ("decoder", 8, 5)):
        config = ft.OffloadConfig(
            enabled=HAS_GPU, include_patterns=["class:Linear"], profiling_iters=profiling_iters
        )
        models[name] = ft.offload(stack(layers), config, name=name)
        manager = ft.get_offload_manager(name)
        print(
            f"{name}: {len(ft.offload_units(name))} units, {manager.iters_before_inference} forwards to learn"
        )
    x = torch.zeros(1, WIDTH, device="cuda" if HAS_GPU else "cpu")
    with torch.no_grad():
        for _ in range(4):
            models["decoder"](models["encoder"](x))
        print("after 4 forwards of each:", phases())
        for _ in range(2):
            models["decoder"](x)
        print("after 6 forwards of the decoder:", phases())
    ft.release("encoder")
    print("encoder released:", phases())
    ft.release("decoder")


if __name__ == "__main__":
    main()
