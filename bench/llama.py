"""A transformers Llama with random weights (70B layer shape, bf16): the same forward again and again, in three shapes of input.

What all measured programs share is left to `program.py`.
"""

from typing import ClassVar

import program

SHAPE = dict(
    hidden_size=8192, intermediate_size=28672, num_attention_heads=64, num_key_value_heads=8, vocab_size=32000
)
TINY = dict(
    hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=2, vocab_size=512
)
TINY_TOKENS = 64


def build_llama(options):
    """A `LlamaForCausalLM` of `options.layers` layers."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    shape = TINY if options.tiny else SHAPE
    config = LlamaConfig(num_hidden_layers=options.layers, max_position_embeddings=8192, **shape)

    def complete(model) -> None:
        # Its buffers are computed, not drawn, and to_empty() left them without values.
        model.model.rotary_emb = LlamaRotaryEmbedding(config=config)

    return program.materialise(lambda: LlamaForCausalLM(config), options, complete)


class Llama(program.Program):
    """Prefill, a batch of single tokens, one token; no cache."""

    name = "llama"
    cases: ClassVar[dict] = {"prefill4096": (1, 4096), "batch64": (64, 1), "decode1": (1, 1)}
    layers = 16
    blocks = ("LlamaDecoderLayer",)
    needs = ("transformers",)

    def build(self, options):
        return build_llama(options)

    def forward(self, model, options, case):
        import torch

        batch, length = self.cases[case]
        if options.tiny:
            length = min(length, TINY_TOKENS)
        tokens = torch.randint(
            0,
            model.config.vocab_size,
            (batch, length),
            device=options.device,
            generator=program.seeded(options),
        )
        return lambda: model(input_ids=tokens, use_cache=False).logits


PROGRAM = Llama()

if __name__ == "__main__":
    program.main(PROGRAM)
