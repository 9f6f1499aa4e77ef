"""Makes model folders as a hub would give them, with random weights, once for all processes that ask for one.

No two weights hold the same bytes, and all are large enough for every layer to be heard in the output: a weight in another one's place gives other
tokens or pixels. (Serving engines' own dummy weights are no such test: they are the same in all layers, and so small that the layers hardly matter.)
Numbers come from one seeded pool on the CPU, so that making a folder touches no GPU. What runs on the weights is left to the programs.
"""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

# Not a multiple of any width, so that the repetitions of the pool in a large weight are never the same rows.
POOL_ELEMENTS = (1 << 24) + 43
WEIGHT_SCALE = 0.02
# Files are written side by side; each one's weights are in memory meanwhile.
THREADS = 4


class Pool:
    """Gaussian numbers, of which each name gets its own part."""

    def __init__(self, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.empty(POOL_ELEMENTS).normal_(0.0, WEIGHT_SCALE, generator=generator)
        # Twice, so that the part which begins anywhere is whole.
        self.numbers = numbers.to(torch.bfloat16).repeat(2)

    def fill(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Writes the numbers that belong to `name` into a contiguous `weight`, and returns it. Scales of norms get them around 1."""
        own = self.numbers[zlib.crc32(name.encode()) % POOL_ELEMENTS :]
        for part in weight.view(-1).split(POOL_ELEMENTS):
            part.copy_(own[: part.numel()])
        is_scale = weight.dim() == 1 and not name.endswith("bias")
        return weight.add_(1.0) if is_scale else weight


def cache() -> Path:
    """Where folders are kept: the caller's GPU_CASES_CACHE, which it removes, or a folder of this process alone."""
    folder = os.environ.get("GPU_CASES_CACHE")
    return Path(folder) if folder else Path(tempfile.mkdtemp(prefix="strangers-"))


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, made by `make(folder)` if no process has made it yet."""
    parent = cache()
    folder, begun = parent / name, parent / f"{name}.begun"
    with alone(parent / f"{name}.lock"):
        if not folder.exists():
            shutil.rmtree(begun, ignore_errors=True)
            begun.mkdir()
            make(begun)
            begun.rename(folder)
    return folder


def llama_shapes(config: dict, layer: int | None) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of one layer of a Llama; None: of those outside of layers."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    if layer is None:
        vocabulary = (config["vocab_size"], hidden)
        return {
            "model.embed_tokens.weight": vocabulary,
            "model.norm.weight": (hidden,),
            "lm_head.weight": vocabulary,
        }
    head = hidden // config["num_attention_heads"]
    narrow = head * config["num_key_value_heads"]
    inside = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.v_proj": (narrow, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    return {f"model.layers.{layer}.{name}.weight": shape for name, shape in inside.items()}


def llama(
    name: str, *, hidden: int, inner: int, heads: int, key_value_heads: int, layers: int, vocabulary: int
) -> Path:
    """The folder of a `LlamaForCausalLM` in bf16: its configuration, and one file of weights for each layer."""
    config = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        hidden_act="silu",
        torch_dtype="bfloat16",
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )

    def make(folder: Path) -> None:
        from safetensors.torch import save_file

        pool, placed, total = Pool(), {}, 0
        files = [f"model-{number:05}-of-{layers + 1:05}.safetensors" for number in range(1, layers + 2)]

        def write(file: str, layer: int | None) -> dict[str, int]:
            weights = {
                key: pool.fill(key, torch.empty(shape, dtype=torch.bfloat16))
                for key, shape in llama_shapes(config, layer).items()
            }
            save_file(weights, folder / file, metadata={"format": "pt"})
            return {key: weight.nbytes for key, weight in weights.items()}

        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            for file, written in zip(files, threads.map(write, files, [None, *range(layers)]), strict=True):
                placed |= dict.fromkeys(written, file)
                total += sum(written.values())
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "config.json").write_text(json.dumps(config))

    return made(name, make)


def weights_bytes(folder: Path) -> int:
    """Bytes of all weights of a folder that `llama` made."""
    return json.loads((folder / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
