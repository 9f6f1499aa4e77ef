"""The tensors of a model by name, and what stands behind them.

A model is a module, or a dictionary of modules and tensors. Which of its tensors may be streamed, patterns say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from flextensor import _native


class ModelDict:
    """A model that is no module: modules and tensors by name. Behaves as the mapping it was made from."""

    def __init__(self, model: Mapping[str, object] | None = None) -> None:
        self._parts = dict(model or {})

    def items(self) -> Any:
        """Names and parts."""
        return self._parts.items()

    def __getitem__(self, name: str) -> object:
        return self._parts[name]

    def __setitem__(self, name: str, part: object) -> None:
        self._parts[name] = part

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts


Model: TypeAlias = nn.Module | Mapping[str, object] | ModelDict


@dataclass(frozen=True)
class NamedTensor:
    """A parameter or buffer under one of its names."""

    name: str
    tensor: torch.Tensor
    module: str
    """Path of the module that holds it; empty for the root, and for a tensor of a dictionary."""
    is_buffer: bool

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.tensor.numel() * self.tensor.element_size()


def modules_of(model: Model) -> list[tuple[str, nn.Module]]:
    """Every module with its path, the root first (under an empty path)."""
    if isinstance(model, nn.Module):
        return list(model.named_modules())
    found = []
    for name, part in model.items():
        if isinstance(part, nn.Module):
            found += [(f"{name}.{path}" if path else name, module) for path, module in part.named_modules()]
    return found


def tensors_of(model: Model) -> list[NamedTensor]:
    """Every parameter and buffer under each of its names, in the order of the modules; tied ones come up several times."""
    found = []
    for path, module in modules_of(model):
        for tensors, is_buffer in ((module._parameters, False), (module._buffers, True)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    found.append(NamedTensor(f"{path}.{name}" if path else name, tensor, path, is_buffer))
    if not isinstance(model, nn.Module):
        for name, part in model.items():
            if isinstance(part, torch.Tensor):
                found.append(NamedTensor(name, part, "", False))
    return found


def unique_tensors(model: Model) -> list[NamedTensor]:
    """Every tensor once, under its first name."""
    first: dict[int, NamedTensor] = {}
    for each in tensors_of(model):
        first.setdefault(id(each.tensor), each)
    return list(first.values())


def streamable(model: Model, include: list[str], exclude: list[str]) -> set[str]:
    """Names of the parameters that the patterns allow to be streamed (docs/options.md); buffers are never among them."""
    modules = modules_of(model)
    own = [
        [name for name, tensor in module._parameters.items() if tensor is not None] for _, module in modules
    ]
    described = [
        (path, type(module).__name__, f"{type(module).__module__}.{type(module).__qualname__}", names)
        for (path, module), names in zip(modules, own, strict=True)
    ]
    if described and described[0][0] != "":
        described.insert(0, ("", "dict", "builtins.dict", []))
        own.insert(0, [])
    if not described:
        return set()
    _, _, allowed = _native.select(described, include, exclude)
    return {
        f"{path}.{name}" if path else name
        for (path, *_), names, flags in zip(described, own, allowed, strict=True)
        for name, may in zip(names, flags, strict=True)
        if may
    }


def storage_of(tensor: torch.Tensor) -> int:
    """The address of the memory behind a tensor; 0 where there is none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def become(old: torch.Tensor, new: torch.Tensor) -> None:
    """`old` stays the object that it is, wherever it stands, and has the memory of `new` from now on."""
    with torch.no_grad():
        if torch._has_compatible_shallow_copy_type(old, new):
            old.data = new
            return
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        torch.utils.swap_tensors(old, new)
