"""A pipeline like those of diffusers: a text encoder that runs once, a denoiser that runs in a loop, a decoder that runs at the end. The two large parts have
managers of their own; the decoder stays as it is. A real pipeline is offloaded the same way: `pipe.transformer = ft.offload(pipe.transformer, ...)`.

    python examples/pipeline.py

Prints on a GPU:
    steps until the denoiser's plan is in force: 12
    picture 1: text encoder PROFILING, denoiser INFERENCE
    picture 2: text encoder INFERENCE, denoiser INFERENCE
    picture 3: text encoder INFERENCE, denoiser INFERENCE
    picture 1 and 2 are the same: True

Prints without a GPU: the same; nothing is offloaded then.
"""

import flextensor as ft
import torch
from torch import nn

HAS_GPU = torch.cuda.is_available()
WIDTH, STEPS = (2048 if HAS_GPU else 16), 20


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH) for _ in range(4))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, latents: torch.Tensor, text: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        x = self.embed(latents) + text.mean(dim=1, keepdim=True) + step
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class Pipeline:
    """What a program has of a pipeline: its parts, and a call that uses them."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.text_encoder: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))).eval()
        self.transformer: nn.Module = Denoiser().eval()
        self.vae = nn.Linear(WIDTH, 3).to(device)

    def __call__(self, seed: int) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(seed)
        text = self.text_encoder(torch.randn(1, 8, WIDTH, generator=generator).to(self.device))
        latents = torch.randn(1, 16, WIDTH, generator=generator).to(self.device)
        for step in range(STEPS):
            noise = self.transformer(latents, text, torch.tensor(step / STEPS, device=self.device))
            latents = latents - 0.05 * noise
        return self.vae(latents)


def main() -> None:
    torch.manual_seed(0)
    pipe = Pipeline("cuda" if HAS_GPU else "cpu")
    pipe.text_encoder = ft.offload(
        pipe.text_encoder,
        ft.OffloadConfig(enabled=HAS_GPU, include_patterns=["*"], profiling_iters=1),
        name="text encoder",
    )
    pipe.transformer = ft.offload(
        pipe.transformer,
        ft.OffloadConfig(
            enabled=HAS_GPU, include_patterns=["embed", "blocks.*", "out"], min_blocks=2, profiling_iters=11
        ),
        name="denoiser",
    )
    denoiser = ft.get_offload_manager("denoiser")
    print(f"steps until the denoiser's plan is in force: {denoiser.iters_before_inference}")
    pictures = []
    with torch.no_grad():
        for number, seed in ((1, 5), (2, 5), (3, 6)):
            pictures.append(pipe(seed))
            encoder = ft.get_offload_manager("text encoder")
            print(f"picture {number}: text encoder {encoder.phase.name}, denoiser {denoiser.phase.name}")
    print("picture 1 and 2 are the same:", torch.equal(pictures[0], pictures[1]))
    for name in ("text encoder", "denoiser"):
        ft.release(name)


if __name__ == "__main__":
    main()
