"""diffusers, as anybody uses it: a Flux pipeline from a folder, moved to the GPU whole, making images.

Its transformer has two double and four single blocks of the published width; the text encoders are left out, their output is drawn instead, which the
pipeline allows. The lines it prints, and the judging of them, are left to `stranger.py` and `run.py`.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import checkpoint
import stranger
import torch

SHAPE = dict(
    num_layers=2,
    num_single_layers=4,
    attention_head_dim=128,
    num_attention_heads=24,
    joint_attention_dim=4096,
    pooled_projection_dim=768,
    axes_dims_rope=(16, 56, 56),
)
TINY = dict(
    num_layers=1,
    num_single_layers=2,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=32,
    pooled_projection_dim=32,
    axes_dims_rope=(4, 4, 8),
)
VAE_CHANNELS, TINY_VAE_CHANNELS = (128, 256, 512, 512), (8, 8, 16, 16)
LATENT_CHANNELS = 16
TEXT_TOKENS = 128
NO_TEXT = dict(text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None)
SIDE, TINY_SIDE = 512, 64
STEPS, TINY_STEPS = 16, 2


def filled(make):
    """The module that `make` describes, in bf16 on the CPU, with seeded weights."""
    with torch.device("meta"):
        module = make().to(torch.bfloat16)
    module = module.to_empty(device="cpu").eval().requires_grad_(False)
    pool = checkpoint.Pool()
    for name, weight in module.named_parameters():
        pool.fill(name, weight)
    if left := [name for name, _ in module.named_buffers()]:
        raise RuntimeError(f"{type(module).__name__}: buffer {left[0]} was given no values")
    return module


def folder(options):
    """The pipeline's folder."""
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        FluxPipeline,
        FluxTransformer2DModel,
    )

    shape, channels = (TINY, TINY_VAE_CHANNELS) if options.tiny else (SHAPE, VAE_CHANNELS)

    def make(path) -> None:
        transformer = filled(
            lambda: FluxTransformer2DModel(
                patch_size=1, in_channels=4 * LATENT_CHANNELS, guidance_embeds=True, **shape
            )
        )
        vae = filled(
            lambda: AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * len(channels),
                up_block_types=("UpDecoderBlock2D",) * len(channels),
                block_out_channels=channels,
                latent_channels=LATENT_CHANNELS,
                norm_num_groups=min(32, channels[0]),
                scaling_factor=0.3611,
                shift_factor=0.1159,
                use_quant_conv=False,
                use_post_quant_conv=False,
            )
        )
        FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=vae,
            transformer=transformer,
            **NO_TEXT,
        ).save_pretrained(path)

    return checkpoint.made("flux_tiny" if options.tiny else "flux", make)


def load(options):
    """The pipeline, wholly on the device."""
    from diffusers import FluxPipeline

    pipeline = FluxPipeline.from_pretrained(folder(options), dtype=torch.bfloat16, **NO_TEXT)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(options.device)


def outputs(pipeline, options):
    """Pixels of each call: one image, two of another shape, and one of the first shape again."""
    side, steps = (TINY_SIDE, TINY_STEPS) if options.tiny else (SIDE, STEPS)
    transformer = pipeline.transformer.config

    def images(height: int, width: int, steps: int, count: int):
        generator = torch.Generator().manual_seed(3)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(options.device, torch.bfloat16)

        made = pipeline(
            prompt_embeds=drawn(1, TEXT_TOKENS, transformer.joint_attention_dim),
            pooled_prompt_embeds=drawn(1, transformer.pooled_projection_dim),
            height=height,
            width=width,
            num_inference_steps=steps,
            num_images_per_prompt=count,
            generator=generator,
            output_type="np",
        ).images
        return torch.from_numpy(made)

    yield images(side, side, steps, 1)
    yield images(side, side // 2, max(2, steps // 4), 2)
    yield images(side, side, max(2, steps // 4), 1)


def main() -> None:
    options = stranger.arguments(__doc__)
    if stranger.missing(options.device, "diffusers", "transformers"):
        return
    import lab

    lab.settle()
    pipeline = load(options)
    modules = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    weights = sum(parameter.nbytes for module in modules for parameter in module.parameters())
    stranger.run_all(lambda: outputs(pipeline, options), options.repeat, weights)
    stranger.finish(stranger.own_report())


if __name__ == "__main__":
    main()
