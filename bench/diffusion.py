"""A diffusion-like transformer: long compute for each byte of weights, as in denoising image or video latents.

Blocks as of a DiT for video: self-attention and a feed-forward network, both modulated by an embedding of the time step. What all measured programs
share is left to `program.py`.
"""

import math
from typing import ClassVar

import program

WIDTH, FEED_FORWARD, HEADS, CHANNELS = 5120, 13824, 40, 64
TINY_WIDTH, TINY_FEED_FORWARD, TINY_HEADS = 128, 256, 4
TINY_TOKENS = 64
FREQUENCIES = 256


def make_model(layers: int, width: int, feed_forward: int, heads: int):
    """The model's modules, wherever torch makes tensors at the moment."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query_key_value = nn.Linear(width, 3 * width)
            self.query_norm, self.key_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
            self.out = nn.Linear(width, width)

        def forward(self, hidden):
            batch, tokens, _ = hidden.shape
            query, key, value = (
                part.view(batch, tokens, heads, -1).transpose(1, 2)
                for part in self.query_key_value(hidden).chunk(3, -1)
            )
            mixed = functional.scaled_dot_product_attention(self.query_norm(query), self.key_norm(key), value)
            return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))

    class DiffusionBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.modulation = nn.Parameter(torch.empty(6, width))
            self.attention = Attention()
            self.feed_forward = nn.Sequential(
                nn.Linear(width, feed_forward), nn.GELU(approximate="tanh"), nn.Linear(feed_forward, width)
            )

        def forward(self, hidden, step):
            shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = (
                (self.modulation + step).unsqueeze(1).unbind(-2)
            )
            plain = functional.layer_norm(hidden, (width,))
            hidden = hidden + gate_a * self.attention(plain * (1 + scale_a) + shift_a)
            plain = functional.layer_norm(hidden, (width,))
            return hidden + gate_f * self.feed_forward(plain * (1 + scale_f) + shift_f)

    class DiffusionTransformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(CHANNELS, width)
            self.time = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, 6 * width))
            self.blocks = nn.ModuleList(DiffusionBlock() for _ in range(layers))
            self.out = nn.Linear(width, CHANNELS)

        def forward(self, latents, time_step):
            rates = torch.arange(FREQUENCIES // 2, device=latents.device) * (
                -math.log(10000.0) / (FREQUENCIES // 2)
            )
            angles = time_step[:, None].float() * rates.exp()
            step = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(latents.dtype)).view(-1, 6, width)
            hidden = self.embed(latents)
            for block in self.blocks:
                hidden = block(hidden, step)
            return self.out(functional.layer_norm(hidden, (width,)))

    return DiffusionTransformer()


class Diffusion(program.Program):
    """One denoising step on a sequence of latents."""

    name = "diffusion"
    cases: ClassVar[dict] = {"tokens8192": 8192, "tokens16384": 16384}
    layers = 24
    blocks = ("DiffusionBlock",)

    def build(self, options):
        shape = (TINY_WIDTH, TINY_FEED_FORWARD, TINY_HEADS) if options.tiny else (WIDTH, FEED_FORWARD, HEADS)
        return program.materialise(lambda: make_model(options.layers, *shape), options)

    def forward(self, model, options, case):
        import torch

        tokens = TINY_TOKENS if options.tiny else self.cases[case]
        latents = torch.randn(
            1,
            tokens,
            CHANNELS,
            device=options.device,
            dtype=torch.bfloat16,
            generator=program.seeded(options),
        )
        time_step = torch.full((1,), 500.0, device=options.device)
        return lambda: model(latents, time_step)


PROGRAM = Diffusion()

if __name__ == "__main__":
    program.main(PROGRAM)
