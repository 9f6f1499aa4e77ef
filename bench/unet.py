"""The UNet of Stable Diffusion XL from diffusers, with random weights: convolutions and attention of many sizes, two fifths of the bytes in weights below 10 MiB.

Needs diffusers; nothing is downloaded. What all measured programs share is left to `program.py`.
"""

from typing import ClassVar

import program

SHAPE = dict(
    block_out_channels=(320, 640, 1280),
    attention_head_dim=(5, 10, 20),
    transformer_layers_per_block=(1, 2, 10),
    cross_attention_dim=2048,
    projection_class_embeddings_input_dim=2816,
    sample_size=128,
)
TINY = dict(
    block_out_channels=(32, 32, 64),
    attention_head_dim=(2, 2, 4),
    transformer_layers_per_block=(1, 1, 1),
    cross_attention_dim=64,
    projection_class_embeddings_input_dim=1600,
    sample_size=8,
)
POOLED_WIDTH, TINY_POOLED_WIDTH = 1280, 64
TEXT_TOKENS = 77


def make_model(shape: dict):
    """The model's modules, wherever torch makes tensors at the moment."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        **shape,
    )


class UNet(program.Program):
    """One denoising step: with guidance (two samples) and without."""

    name = "unet"
    cases: ClassVar[dict] = {"batch2": 2, "batch1": 1}
    # The shape is the published one; --layers does not change it.
    layers = 1
    blocks = (
        "DownBlock2D",
        "CrossAttnDownBlock2D",
        "UNetMidBlock2DCrossAttn",
        "CrossAttnUpBlock2D",
        "UpBlock2D",
    )
    needs = ("diffusers",)

    def build(self, options):
        return program.materialise(lambda: make_model(TINY if options.tiny else SHAPE), options)

    def forward(self, model, options, case):
        import torch

        # Which of several algorithms convolutions take must not depend on the memory that is free.
        torch.backends.cudnn.deterministic = True
        shape, pooled = (TINY, TINY_POOLED_WIDTH) if options.tiny else (SHAPE, POOLED_WIDTH)
        generator, batch = program.seeded(options), self.cases[case]

        def draw(*size: int):
            return torch.randn(size, device=options.device, dtype=torch.bfloat16, generator=generator)

        sample = draw(batch, 4, shape["sample_size"], shape["sample_size"])
        text = draw(batch, TEXT_TOKENS, shape["cross_attention_dim"])
        added = {
            "text_embeds": draw(batch, pooled),
            "time_ids": torch.full((batch, 6), 512.0, device=options.device),
        }
        time_step = torch.full((1,), 500.0, device=options.device)
        return lambda: model(
            sample, time_step, encoder_hidden_states=text, added_cond_kwargs=added, return_dict=False
        )[0]


PROGRAM = UNet()

if __name__ == "__main__":
    program.main(PROGRAM)
