"""What a GPU case is, and the room it works in: seeded random numbers, deterministic kernels, its models kept alive.

A case is a generator function over a `Lab`: it builds its models and yields what every forward gave. It knows nothing of the library under test.
Running it is left to `program.py`, judging it to `run.py`.
"""

import dataclasses
import os
import random
from collections.abc import Callable, Iterator

import torch
from torch import nn

# Past one forward of discovery and ten of profiling, with some left to stream.
FORWARDS = 18
# From here on a case may change its weights or their order: the plan stands.
STEADY = 13
# A weight of at least 10 MiB has an allocation of its own in torch: 1536 x 4096 in bf16 is 12 MiB.
WIDTH, INNER = 1536, 4096


class Skip(Exception):
    """The machine or the software cannot run this case; the message says why."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One program to compare, and what to expect of it."""

    name: str
    body: Callable[["Lab"], Iterator]
    # Of the case's weights.
    budget: float
    # True: it is an error when nothing is streamed. None: allowed either way, `because` says why.
    streams: bool | None
    keeps_budget: bool
    limit_s: float
    slow: bool
    because: str
    # False: the program is started without the library, whose path it gets in GPU_CASES_LIBRARY.
    preload: bool = True
    # More variables for both of its processes.
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    def describe(self) -> dict:
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "body"
        }
        return values | {"says": (self.body.__doc__ or "").strip().splitlines()[0]}


CASES: dict[str, Case] = {}


def case(
    *,
    budget: float = 0.5,
    streams: bool | None = True,
    keeps_budget: bool = True,
    limit_s: float = 90,
    slow: bool = False,
    because: str = "",
    preload: bool = True,
    environment: dict[str, str] | None = None,
):
    """Registers the function under its own name."""
    if streams is None and not because:
        raise ValueError("a case that need not stream says why")

    def register(body: Callable[["Lab"], Iterator]):
        if body.__name__ in CASES:
            raise ValueError(f"two cases are named {body.__name__}")
        CASES[body.__name__] = Case(
            body.__name__,
            body,
            budget,
            streams,
            keeps_budget,
            limit_s,
            slow,
            because,
            preload,
            environment or {},
        )
        return body

    return register


def settle() -> None:
    """Settings under which the same program gives the same bits in every process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling every empty tensor would add launches that no program has.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


class Lab:
    """One run of one case: its device, its random numbers, and the models it owns until the end."""

    def __init__(self, seed: int, device: str) -> None:
        self.device = device
        self.cuda = device == "cuda"
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self._generator = torch.Generator(device=device).manual_seed(seed + 1)
        self.models: list[nn.Module] = []

    def build(self, make: Callable[[], nn.Module], dtype: torch.dtype = torch.bfloat16) -> nn.Module:
        """A model made on the device in its final type, in eval mode, without gradients."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(self.device):
                model = make()
        finally:
            torch.set_default_dtype(before)
        return self.own(model)

    def own(self, model: nn.Module) -> nn.Module:
        """Counts the model's weights towards the budget and keeps it to the end."""
        self.models.append(model.eval().requires_grad_(False))
        return model

    def randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=self.device, generator=self._generator)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, device=self.device, generator=self._generator)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def need_cuda(self, capability: tuple[int, int] = (8, 0)) -> None:
        """Skips the case where there is no such GPU."""
        if not self.cuda:
            raise Skip("needs a GPU")
        if torch.cuda.get_device_capability() < capability:
            raise Skip(
                f"needs compute capability {capability[0]}.{capability[1]}, this GPU has {torch.cuda.get_device_capability()}"
            )

    def weights_bytes(self) -> int:
        """Bytes of the storages behind all parameters and buffers of the owned models, each counted once."""
        storages = {}
        for model in self.models:
            for tensor in [*model.parameters(), *model.buffers()]:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())


class Block(nn.Module):
    """A residual block of two large linears."""

    def __init__(self, width: int = WIDTH, inner: int = INNER) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Repeated blocks, 24 MiB each in bf16."""

    def __init__(self, blocks: int = 8, make: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
