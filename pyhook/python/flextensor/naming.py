"""Reads a module tree: which modules own weights, where these lie, and which repeated blocks are traps.

Nothing is changed and nothing is called out here; telling the interposer is left to `hook`.
"""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from flextensor import _native

MAY_STREAM = 1
"""Flag of a weight that the patterns allow to be streamed."""
STACKED = 2
"""Flag of a weight that may be read through pointers in memory: stacked experts."""

ROWS = 4
"""Flag of a weight of which its owner's forward reads single rows, as an embedding does."""

_PLAIN = (torch.Tensor, nn.Parameter)
# Their weights have three dimensions without being stacks of experts.
_CONVOLUTIONS = getattr(nn.modules.conv, "_ConvNd", ())


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies where weights are managed. Tests on machines without a GPU put their own
    answer here."""
    return tensor.is_cuda


@dataclass(slots=True)
class Weight:
    """One storage under one owner."""

    name: str
    attribute: str
    storage: torch.UntypedStorage | None
    address: int
    nbytes: int
    owner: int
    flags: int
    # The GPU that holds it.
    device: int = 0


@dataclass(slots=True)
class Owner:
    """An innermost module that holds weights."""

    path: str
    module: weakref.ref
    class_name: str
    trap: int
    compiled: bool
    stacked: bool = False


@dataclass(slots=True)
class Trap:
    """A repeated block, or what the patterns name."""

    path: str
    module: weakref.ref
    compiled: bool


@dataclass(slots=True)
class Tree:
    """What was found below one module."""

    name: str
    owners: list[Owner] = field(default_factory=list)
    traps: list[Trap] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Patterns:
    """Include and exclude patterns of the configuration; `include` None means: find repeated blocks,
    stream everything."""

    include: list[str] | None = None
    exclude: list[str] = field(default_factory=list)

    @property
    def unset(self) -> bool:
        """Whether nothing was said."""
        return self.include is None and not self.exclude


def leaves(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor is made of: itself, or the parts of a wrapper (quantised,
    distributed)."""
    flatten = None if type(tensor) in _PLAIN else getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        yield from leaves(getattr(tensor, name))


def storages(tensor: torch.Tensor | None) -> Iterator[tuple[torch.UntypedStorage, int, int]]:
    """Storage, address and bytes of each part of `tensor` that lies on a managed device and holds memory."""
    if tensor is None or not isinstance(tensor, torch.Tensor):
        return
    try:
        for leaf in leaves(tensor):
            if on_gpu(leaf):
                storage = leaf.untyped_storage()
                address, nbytes = storage.data_ptr(), storage.nbytes()
                if address and nbytes:
                    yield storage, address, nbytes
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        # Fake, lazy and meta tensors have no memory to name.
        return


def device_of(storage: torch.UntypedStorage) -> int:
    """The number of the GPU that holds a storage."""
    return storage.device.index or 0


def on_each_device(tree: Tree) -> list[Tree]:
    """The part of a tree on each GPU that holds weights of it, with all owners and traps: the interposer places a
    model on one GPU."""
    devices = sorted({weight.device for weight in tree.weights})
    if len(devices) < 2:
        return [tree]
    return [
        Tree(
            tree.name,
            [replace(owner) for owner in tree.owners],
            [replace(trap) for trap in tree.traps],
            [weight for weight in tree.weights if weight.device == device],
        )
        for device in devices
    ]


def own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers that a module holds itself."""
    for tensors in (module._parameters, module._buffers):
        for name, tensor in list(tensors.items()):
            if tensor is not None:
                yield name, tensor


def has_weights(module: nn.Module) -> bool:
    """Whether any parameter or buffer below `module` lies on a managed device."""
    return any(True for part in module.modules() for _, tensor in own_tensors(part) for _ in storages(tensor))


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of this module runs compiled code."""
    return (
        type(module).__name__ == "OptimizedModule"
        or has_compiled_call(module)
        or hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
        or isinstance(module, torch.jit.ScriptModule)
    )


def has_compiled_call(module: nn.Module) -> bool:
    """Whether `Module.compile` was called. What we stand in its place (`around`) is no compiled code."""
    code = getattr(module, "_compiled_call_impl", None)
    return code is not None and not isinstance(code, _native.Around)


def refuses_hooks(module: nn.Module) -> bool:
    """Whether a module computes otherwise when it, or anything below it, has a forward hook: torch's encoder
    layer leaves its fused kernels then, and its outputs change in the last bits."""
    return isinstance(module, nn.TransformerEncoderLayer)


def reads_rows(module: nn.Module, attribute: str) -> bool:
    """Whether a forward of `module` reads single rows of this tensor, and writes none: torch's own forward, on a tensor
    that is no wrapper of others."""
    own = isinstance(module, nn.Embedding) and type(module).forward is nn.Embedding.forward
    return own and attribute == "weight" and module.max_norm is None and type(module.weight) in _PLAIN


def plain_path(path: str) -> str:
    """A module path without the steps that torch.compile's wrapper adds."""
    return ".".join(step for step in path.split(".") if step != "_orig_mod")


def describe_one(path: str, module: nn.Module) -> tuple[str, str, str, list[str]]:
    """What patterns look at: path, class name, full class name, names of its own tensors."""
    kind = type(module)
    return path, kind.__name__, f"{kind.__module__}.{kind.__qualname__}", [n for n, _ in own_tensors(module)]


def describe(root: nn.Module) -> list[tuple[str, str, str, list[str]]]:
    """Every module below `root`, described for patterns."""
    return [describe_one(plain_path(path), module) for path, module in root.named_modules()]


def read(root: nn.Module, patterns: Patterns, select: Any) -> Tree:
    """Reads the tree below `root`. `select(modules, include, exclude)` applies patterns: the trap modules'
    indices, whether each module is excluded, and which of its own tensors may be streamed."""
    modules: list[tuple[str, nn.Module, bool]] = []
    compiled_paths: list[str] = []
    for path, module in root.named_modules():
        below = any(path == top or path.startswith(f"{top}.") or not top for top in compiled_paths)
        if (is_compiled(module) or refuses_hooks(module)) and not below:
            compiled_paths.append(path)
            below = True
        modules.append((plain_path(path), module, below))
    target = getattr(root, "_orig_mod", root) if type(root).__name__ == "OptimizedModule" else root
    tree = Tree(type(target).__name__)
    if patterns.unset:
        trap_modules, streamable = automatic_traps(root), None
    else:
        described = [describe_one(path, module) for path, module, _ in modules]
        indices, excluded, streamable = select(described, patterns.include, patterns.exclude)
        if patterns.include is None:
            barred = {id(modules[index][1]) for index, out in enumerate(excluded) if out}
            trap_modules = [module for module in automatic_traps(root) if id(module) not in barred]
        else:
            trap_modules = [modules[index][1] for index in indices]
    trap_of = _traps(tree, modules, trap_modules)
    for position, (path, module, below) in enumerate(modules):
        allowed = None if streamable is None else streamable[position]
        _own(tree, path, module, below, trap_of.get(id(module), -1), allowed)
    return tree


def automatic_traps(root: nn.Module) -> list[nn.Module]:
    """The repeated blocks: elements of one class that stand at least twice in a ModuleList or Sequential;
    the outermost only."""
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        repeated: set[type] = set()
        if isinstance(module, nn.ModuleList | nn.Sequential):
            classes = [type(child) for child in module.children()]
            repeated = {kind for kind in classes if classes.count(kind) >= 2}
        for child in module.children():
            if type(child) in repeated and has_weights(child):
                found.append(child)
            else:
                visit(child)

    visit(root)
    return found


def _traps(
    tree: Tree, modules: list[tuple[str, nn.Module, bool]], chosen: Iterable[nn.Module]
) -> dict[int, int]:
    """Numbers the traps in tree order; gives for every module below one (by id) the trap's number."""
    wanted = {id(module) for module in chosen}
    trap_of: dict[int, int] = {}
    for path, module, below in modules:
        if id(module) in wanted and id(module) not in trap_of:
            for inner in module.modules():
                trap_of.setdefault(id(inner), len(tree.traps))
            tree.traps.append(Trap(path, weakref.ref(module), below))
    return trap_of


def _own(
    tree: Tree, path: str, module: nn.Module, below: bool, trap: int, allowed: list[bool] | None
) -> None:
    """Adds `module` as an owner if it holds weights itself."""
    owner = Owner(path, weakref.ref(module), type(module).__name__, trap, below)
    for position, (attribute, tensor) in enumerate(own_tensors(module)):
        flags = MAY_STREAM if allowed is None or allowed[position] else 0
        if tensor.ndim == 3 and attribute in module._parameters and not isinstance(module, _CONVOLUTIONS):
            flags |= STACKED
        if flags and reads_rows(module, attribute):
            flags |= ROWS
        for storage, address, nbytes in storages(tensor):
            name = f"{path}.{attribute}" if path else attribute
            tree.weights.append(
                Weight(name, attribute, storage, address, nbytes, len(tree.owners), flags, device_of(storage))
            )
            owner.stacked = owner.stacked or bool(flags & STACKED)
    if tree.weights and tree.weights[-1].owner == len(tree.owners):
        tree.owners.append(owner)
