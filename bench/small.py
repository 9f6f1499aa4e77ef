"""A model of many small weights: experts, each with linears of its own of 3 MiB, and no weight of 10 MiB or more.

Every expert of every block is used in each forward, for its own part of the tokens, in the same order: what is measured is weights that share memory with
others, not routing. What all measured programs share is left to `program.py`.
"""

from typing import ClassVar

import program

WIDTH, EXPERT_WIDTH, EXPERTS, VOCABULARY = 1024, 1536, 64, 4096
TINY_WIDTH, TINY_EXPERT_WIDTH, TINY_EXPERTS = 64, 96, 4


def make_model(layers: int, width: int, expert_width: int, experts: int):
    """The model's modules, wherever torch makes tensors at the moment."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Expert(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(width, expert_width, bias=False)
            self.down = nn.Linear(expert_width, width, bias=False)

        def forward(self, hidden):
            return self.down(functional.silu(self.up(hidden)))

    class ExpertBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(width)
            self.experts = nn.ModuleList(Expert() for _ in range(experts))

        def forward(self, hidden):
            plain = self.norm(hidden)
            # Strided parts: what one expert made reaches other experts in the next block.
            parts = [expert(plain[index::experts]) for index, expert in enumerate(self.experts)]
            return hidden + torch.cat(parts)

    class ExpertModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, width)
            self.blocks = nn.ModuleList(ExpertBlock() for _ in range(layers))
            self.norm = nn.RMSNorm(width)
            self.head = nn.Linear(width, VOCABULARY, bias=False)

        def forward(self, tokens):
            hidden = self.embed(tokens)
            for block in self.blocks:
                hidden = block(hidden)
            return self.head(self.norm(hidden))

    return ExpertModel()


class Small(program.Program):
    """Many tokens for each expert, and one."""

    name = "small"
    cases: ClassVar[dict] = {"tokens16384": 256, "tokens64": 1}
    layers = 16
    blocks = ("ExpertBlock",)

    def shape(self, options) -> tuple[int, int, int]:
        return (
            (TINY_WIDTH, TINY_EXPERT_WIDTH, TINY_EXPERTS) if options.tiny else (WIDTH, EXPERT_WIDTH, EXPERTS)
        )

    def build(self, options):
        return program.materialise(lambda: make_model(options.layers, *self.shape(options)), options)

    def forward(self, model, options, case):
        import torch

        tokens = self.shape(options)[2] * (min(self.cases[case], 4) if options.tiny else self.cases[case])
        chosen = torch.randint(
            0, VOCABULARY, (tokens,), device=options.device, generator=program.seeded(options)
        )
        return lambda: model(chosen)


PROGRAM = Small()

if __name__ == "__main__":
    program.main(PROGRAM)
