"""Kinds of networks: what people run, in the smallest form that still streams."""

import tempfile

import torch
import torch.nn.functional as F
from lab import FORWARDS, INNER, WIDTH, Block, Lab, Skip, Stack, case
from torch import nn


class ResBlock(nn.Module):
    """Two convolutions with a time embedding between them."""

    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inside), nn.GroupNorm(32, outside)
        self.conv1, self.conv2 = (
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.Conv2d(outside, outside, 3, padding=1),
        )
        self.time = nn.Linear(time, outside)
        self.skip = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1)

    def forward(self, x, time):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class SpatialAttention(nn.Module):
    """Self-attention over the pixels."""

    def __init__(self, channels: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(32, channels),
            nn.Conv2d(channels, 3 * channels, 1),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x):
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, 3, self.heads, channels // self.heads, height * width)
        query, key, value = (part.transpose(-1, -2).contiguous() for part in qkv.unbind(1))
        mixed = F.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed.transpose(-1, -2).reshape(batch, channels, height, width))


class UNet(nn.Module):
    """Down, middle and up with skip connections: weights of one block are used far apart from their neighbours' in memory."""

    def __init__(self, channels: int = 832, time: int = 512) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.enter, self.leave = nn.Conv2d(4, channels, 3, padding=1), nn.Conv2d(channels, 4, 3, padding=1)
        self.down = nn.ModuleList(ResBlock(channels, channels, time) for _ in range(2))
        self.shrink, self.grow = (
            nn.Conv2d(channels, channels, 3, stride=2, padding=1),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        self.middle = nn.ModuleList([ResBlock(channels, channels, time), ResBlock(channels, channels, time)])
        self.attention = SpatialAttention(channels)
        self.up = nn.ModuleList(ResBlock(2 * channels, channels, time) for _ in range(2))

    def forward(self, x, step):
        frequencies = torch.exp(torch.arange(256, device=x.device) * -0.036)
        angles = step * frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()])[None].to(x.dtype))
        x, skips = self.enter(x), []
        for block in self.down:
            x = block(x, time)
            skips.append(x)
        x = self.shrink(x)
        x = self.middle[1](self.attention(self.middle[0](x, time)), time)
        x = self.grow(F.interpolate(x, scale_factor=2, mode="nearest"))
        for block in self.up:
            x = block(torch.cat([x, skips.pop()], 1), time)
        return self.leave(x)


@case()
def unet(lab: Lab):
    """A diffusion-style network of convolutions and attention, built on the CPU and moved, denoising step by step."""
    model = lab.own(UNet().to(torch.bfloat16).to(lab.device))
    x = lab.randn(2, 4, 16, 16)
    for step in range(FORWARDS):
        with torch.no_grad():
            x = x - 0.1 * model(x, FORWARDS - step)
        yield x


@case(budget=0.6)
def encoder_fast_path(lab: Lab):
    """The fused fast path of TransformerEncoderLayer, which torch leaves when hooks are attached to a layer."""
    layer = lambda: nn.TransformerEncoderLayer(WIDTH, 16, INNER, batch_first=True, activation="gelu")  # noqa: E731
    model = lab.build(lambda: Stack(6, layer), torch.float16)
    calls, fused = [], torch._transformer_encoder_layer_fwd

    def counting(*inputs):
        calls.append(1)
        return fused(*inputs)

    torch._transformer_encoder_layer_fwd = counting
    try:
        for _ in range(FORWARDS):
            calls.clear()
            with torch.inference_mode():
                y = model(lab.randn(2, 96, WIDTH, dtype=torch.float16))
            yield y, len(calls)
    finally:
        torch._transformer_encoder_layer_fwd = fused


class Recurrent(nn.Module):
    """LSTMs one after the other; cuDNN keeps each one's weights in one flat storage of 32 MiB."""

    def __init__(self, layers: int = 6, width: int = 1024) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)[0]
        return x


@case(budget=0.6)
def lstm(lab: Lab):
    """cuDNN's LSTM, whose weights are views of one flat buffer."""
    model = lab.build(Recurrent, torch.float32)
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield model(lab.randn(8, 32, 1024, dtype=torch.float32))


class GroupedExperts(nn.Module):
    """Stacked experts behind a router, both matrix products as grouped GEMMs."""

    def __init__(self, width: int = 1024, inner: int = 1024, experts: int = 12, chosen: int = 2) -> None:
        super().__init__()
        self.chosen, self.experts = chosen, experts
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 2 * inner, width) * 0.03)
        self.down = nn.Parameter(torch.randn(experts, width, inner) * 0.03)

    def forward(self, x):
        normal = self.norm(x)
        weight, expert = self.router(normal).float().softmax(-1).topk(self.chosen, -1)
        order = expert.flatten().argsort(stable=True)
        ends = F.one_hot(expert.flatten(), self.experts).sum(0).cumsum(0).to(torch.int32)
        rows = normal[order // self.chosen]
        gate, value = torch._grouped_mm(rows, self.up.transpose(-2, -1), offs=ends).chunk(2, -1)
        rows = torch._grouped_mm((F.silu(gate) * value).contiguous(), self.down.transpose(-2, -1), offs=ends)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=x.device)
        mixed = rows[back].view(*expert.shape, -1) * weight[..., None].to(rows.dtype)
        return x + mixed.sum(1)


@case(budget=0.6)
def moe_grouped(lab: Lab):
    """Experts read through pointer arrays that a small kernel prepares; routing changes with every input."""
    if not hasattr(torch, "_grouped_mm"):
        raise Skip("torch has no _grouped_mm")
    model = lab.build(lambda: nn.Sequential(*(GroupedExperts() for _ in range(5))))
    for index in range(FORWARDS):
        with torch.no_grad():
            yield model(lab.randn(64 if index % 3 else 512, 1024))


class LoopedExperts(nn.Module):
    """Experts as modules of their own: one that no token chose is not called at all."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)) for _ in range(experts)
        )

    def forward(self, x):
        chosen = self.router(x).argmax(-1)
        out = x.clone()
        for index in chosen.unique().tolist():
            rows = (chosen == index).nonzero().flatten()
            out[rows] = x[rows] + self.experts[index](F.layer_norm(x[rows], x.shape[-1:]))
        return out


@case(budget=0.6)
def moe_looped(lab: Lab):
    """Large experts, called only when tokens choose them: few tokens, so most are skipped in each forward."""
    model = lab.build(lambda: nn.Sequential(*(LoopedExperts(WIDTH, INNER, 6) for _ in range(2))))
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield model(lab.randn(3, WIDTH))


@case(
    streams=None,
    keeps_budget=False,
    because="weights below 10 MiB share torch's segments and may stay resident in this version",
)
def small_experts(lab: Lab):
    """No weight reaches 10 MiB: experts of 3 MiB linears."""
    model = lab.build(lambda: nn.Sequential(*(LoopedExperts(1024, 1536, 16) for _ in range(2))))
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield model(lab.randn(24, 1024))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self, words: int = 12000) -> None:
        super().__init__()
        self.embed, self.stack = nn.Embedding(words, WIDTH), Stack(6)
        self.head = nn.Linear(WIDTH, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.stack(self.embed(tokens)))


@case(budget=0.6)
def tied_embeddings(lab: Lab):
    """One storage with two owners: read first by the embedding, last by the head."""
    model = lab.build(Tied)
    for index in range(FORWARDS):
        with torch.no_grad():
            y = model(lab.integers(12000, 2, 1 + 15 * (index % 2)))
        yield y, model.head.weight is model.embed.weight


def llama_config(layers: int, inner: int):
    """A small Llama that never stops by itself."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=2048,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=8000,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )


@case(limit_s=120)
def generate(lab: Lab):
    """transformers' generate() with a key-value cache: prefill, then many single tokens."""
    try:
        from transformers import LlamaForCausalLM
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    except ImportError:
        raise Skip("needs transformers") from None
    config = llama_config(layers=6, inner=5632)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device=lab.device)
    model.model.rotary_emb = LlamaRotaryEmbedding(config=config).to(lab.device)
    for parameter in model.parameters():
        parameter.data.copy_(
            lab.randn(*parameter.shape) * 0.02 if parameter.dim() > 1 else torch.ones_like(parameter)
        )
    lab.own(model)
    for length in (24, 5, 40):
        tokens = lab.integers(7998, 2, length) + 2
        with torch.no_grad():
            out = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=8,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        yield out.sequences, torch.stack(out.logits)


@case(limit_s=150)
def pretrained(lab: Lab):
    """from_pretrained() onto the device: the loader asks for all the memory of the model at once, and its weights lie side by side in it."""
    try:
        import accelerate  # noqa: F401  (device_map needs it)
        from transformers import LlamaForCausalLM
    except ImportError:
        raise Skip("needs transformers and accelerate") from None
    config = llama_config(layers=8, inner=8192)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map={"": lab.device})
    lab.own(model)
    for index in range(FORWARDS):
        tokens = lab.integers(7998, 2, (24, 5)[index % 2]) + 2
        with torch.no_grad():
            yield model(tokens, use_cache=False).logits


@case()
def autocast(lab: Lab):
    """float32 weights that autocast copies to bf16 at every use: kernels other than the GEMM read them."""
    model = lab.build(lambda: Stack(6, lambda: Block(WIDTH, 2048)), torch.float32)
    for _ in range(FORWARDS):
        with torch.no_grad(), torch.autocast(lab.device, torch.bfloat16):
            yield model(lab.randn(16, WIDTH, dtype=torch.float32))


@case(budget=0.6)
def cast_after_build(lab: Lab):
    """Made in float32 and cast on the device: the weights land in split pieces of the segments that the old ones left."""
    with torch.device(lab.device):
        model = Stack(8).to(torch.bfloat16)
    lab.own(model)
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield model(lab.randn(8, WIDTH))
