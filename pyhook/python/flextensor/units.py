"""Which modules of a model are units (traps of their own), and which subtrees hold none.

Patterns are applied by the configuration crate, trees are read by `naming`; here are only the lists that a program
asks for, and the lines that say when patterns match nothing.
"""

import logging
from collections.abc import Iterator

from torch import nn

from flextensor import _native, naming

_LOG = logging.getLogger("flextensor")

Named = tuple[tuple[str, nn.Module], ...]
"""Pairs of a module's path and the module."""


def find(model: nn.Module, include: list[str], exclude: list[str]) -> Named:
    """The units in tree order: the outermost modules that the patterns select, each once, under its first path."""
    patterns = naming.Patterns(include, exclude)
    traps = naming.read(model, patterns, _native.select).traps
    modules = naming.describe(model)
    for pattern in _native.unmatched_patterns(modules, include, []):
        _LOG.warning("include pattern %r matches no module and no parameter", pattern)
    if not traps and include:
        without_excludes = naming.read(model, naming.Patterns(include, []), _native.select).traps
        if without_excludes:
            _LOG.error(
                "exclude_patterns %s leave none of %d modules: nothing is offloaded",
                exclude,
                len(without_excludes),
            )
        else:
            _LOG.error("no module matches include_patterns %s: nothing is offloaded", include)
    return tuple((trap.path, module) for trap in traps if (module := trap.module()) is not None)


def residents(model: nn.Module, units: Named) -> Named:
    """The outermost subtrees without a unit inside, in the order of a walk over children, each once. Lists of modules
    are looked into, since they have no forward; what belongs to a unit is none, wherever else it stands."""
    inside = {id(part) for _, unit in units for part in unit.modules()}
    return tuple(_residents(model, "", inside, set()))


def _residents(
    module: nn.Module, path: str, units: set[int], seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if id(child) in units or id(child) in seen:
            continue
        seen.add(id(child))
        below = f"{path}.{name}" if path else name
        if isinstance(child, nn.ModuleList | nn.ModuleDict) or any(
            id(part) in units for part in child.modules()
        ):
            yield from _residents(child, below, units, seen)
        else:
            yield below, child


def replace(model: nn.Module, path: str, module: nn.Module) -> None:
    """Puts `module` in the place of the submodule at `path`, and wherever else that one stands in the tree."""
    old = model.get_submodule(path)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                parent._modules[name] = module
