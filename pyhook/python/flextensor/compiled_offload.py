"""Per-unit compilation of an offloaded model: each unit is compiled alone, at addresses that never change."""

import gc
import logging
import sys
import warnings
from collections.abc import Callable

from torch import nn

from flextensor.model_proxy import is_proxy, subject_or_none

_LOG = logging.getLogger("flextensor")
# One graph a unit, twice (with and without gradients, or a dynamic second try), and some for the program itself.
_GRAPHS_A_UNIT = 2
_GRAPHS_BESIDE = 16
_LIMITS = (
    "recompile_limit",
    "accumulated_recompile_limit",
    "cache_size_limit",
    "accumulated_cache_size_limit",
)


def bump_dynamo_limits_for_compiled_offload(n_units: int) -> None:
    """Raises torch.compile's limits of recompilation to at least `2 * n_units + 16`, because all units of one class
    share one limit. Limits that are higher already stay."""
    import torch._dynamo.config as limits

    least = _GRAPHS_A_UNIT * n_units + _GRAPHS_BESIDE
    for name in _LIMITS:
        # Older and newer versions of torch name them differently.
        if isinstance(known := getattr(limits, name, None), int) and known < least:
            setattr(limits, name, least)


def warn_if_compiled_whole(model: nn.Module, phase: str) -> None:
    """RuntimeWarning where a wrapper of torch.compile holds the whole model while its phase changes: what was compiled
    knows nothing of hooks that come and go. Looked for only where the compiler is loaded."""
    kind = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    if kind is None:
        return
    wrappers = (thing for thing in gc.get_objects() if type(thing) is kind)

    def inner_of(wrapper: nn.Module) -> object:
        # Identities alone: a proxy that was released answers no question.
        inner = wrapper._modules.get("_orig_mod")
        return inner if not is_proxy(inner) else subject_or_none(inner)

    if any(inner_of(wrapper) is model for wrapper in wrappers):
        warnings.warn(
            f"{type(model).__name__} was given to torch.compile as a whole and is now in {phase}: compile its units "
            "(compile_fn), or compile it after INFERENCE has begun",
            RuntimeWarning,
            stacklevel=2,
        )


def compile_unit(compile_fn: Callable[[nn.Module], nn.Module], path: str, unit: nn.Module) -> nn.Module:
    """What `compile_fn` makes of a unit; the unit itself, with a WARNING, where it raises or makes no module."""
    try:
        made = compile_fn(unit)
    except Exception as error:
        _LOG.warning("compile_fn failed for %s, which stays eager: %r", path, error)
        return unit
    if not isinstance(made, nn.Module):
        _LOG.warning(
            "compile_fn made a %s of %s, which stays eager: a module is needed", type(made).__name__, path
        )
        return unit
    return made
