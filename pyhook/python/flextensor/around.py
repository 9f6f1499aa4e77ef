"""Stands callables around the forwards of a module of an offloaded model: in the place where torch looks for compiled code, which is cheap, or as hooks
where that place is taken or not asked.

What stands there goes with neither a copy nor a pickle of the module. Which modules, and what is called, is left to `unit_marks` and `roots`.
"""

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from flextensor import _native, compiling

_PLACE = "_compiled_call_impl"

Pair = tuple[Callable[[], Any], Callable[[BaseException | None], Any]]


class Standing:
    """One pair around one module, until `remove`."""

    __slots__ = ("_module", "_pair")

    def __init__(self, module: nn.Module, pair: Pair) -> None:
        self._module = module
        self._pair = pair

    def remove(self) -> None:
        """Takes the pair away. Nothing happens where the module was compiled meanwhile."""
        here = vars(self._module).get(_PLACE)
        if isinstance(here, _native.Around):
            _place(self._module, tuple(pair for pair in here.pairs if pair is not self._pair))


def can_stand_around(module: nn.Module) -> bool:
    """Whether calls of `module` go by torch's own way, which asks for compiled code, and there is none."""
    here = vars(module).get(_PLACE)
    asks = type(module).__call__ is nn.Module.__call__ and hasattr(nn.Module, _PLACE)
    return asks and (here is None or isinstance(here, _native.Around))


def stand_around(
    module: nn.Module, enter: Callable[[], Any], leave: Callable[[BaseException | None], Any]
) -> Standing:
    """Calls `enter()` before every hook and the forward of `module`, and `leave(raised)` after them, whatever they raise: outside of what stands
    there already."""
    here = vars(module).get(_PLACE)
    pair = (enter, leave)
    _place(module, (pair, *(here.pairs if isinstance(here, _native.Around) else ())))
    return Standing(module, pair)


def _place(module: nn.Module, pairs: tuple[Pair, ...]) -> None:
    # Past `__setattr__`, which classes of programs replace.
    if pairs:
        vars(module)[_PLACE] = _native.Around(module, pairs)
    else:
        vars(module).pop(_PLACE, None)


compiling.exempt(sys.modules[__name__], Standing)
