"""Keeps the hooks and torch.compile apart: while anything is traced no hook of ours stands in any module.

Three measures: callbacks at the start and end of every trace (registered the moment that torch._dynamo is
imported, never by importing it), code of ours that the compiler's frame evaluation passes by, and a watch
for the wrapper that torch.compile makes. What is taken away and put back is left to `hook`.
"""

import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

_DYNAMO = "torch._dynamo"
_CALLBACK = "torch._dynamo.callback"


def exempt(*owners: Any) -> None:
    """Marks every function of the given modules and classes so that the compiler neither looks into it nor
    into what it calls."""
    evaluation = getattr(torch._C, "_dynamo", None)
    evaluation = getattr(evaluation, "eval_frame", None)
    if evaluation is None:
        return
    if hasattr(evaluation, "_FrameExecStrategy"):
        skip = evaluation._FrameAction.SKIP
        mark = lambda code: evaluation.set_code_exec_strategy(code, evaluation._FrameExecStrategy(skip, skip))  # noqa: E731
    elif hasattr(evaluation, "skip_code"):
        mark = evaluation.skip_code
    else:
        return
    for owner in owners:
        for value in vars(owner).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType):
                mark(function.__code__)


def is_tracing() -> bool:
    """Whether this thread is being traced or compiled right now."""
    return torch.compiler.is_compiling() if hasattr(torch, "compiler") else False


class CompileWatch:
    """Calls `started` before and `ended` after each trace, in every thread, and `wrapped(module)` when
    torch.compile wraps a module."""

    def __init__(
        self, started: Callable[[], None], ended: Callable[[], None], wrapped: Callable[[Any], None]
    ) -> None:
        self._started = lambda *_: started()
        self._ended = lambda *_: ended()
        self._wrapped = wrapped
        self._handle: Any = None
        if _CALLBACK in sys.modules:
            self.refresh()
        else:
            sys.meta_path.insert(0, _ImportWatch(_CALLBACK, self.refresh))

    def refresh(self) -> None:
        """Registers with the compiler if that is loaded; again after a reset of it has thrown the
        callbacks away."""
        callback = sys.modules.get(_CALLBACK)
        handler = getattr(callback, "callback_handler", None)
        if handler is None:
            return
        if self._started not in handler.start_callbacks:
            handler.register_start_callback(self._started)
        if self._ended not in handler.end_callbacks:
            handler.register_end_callback(self._ended)

    @property
    def safe(self) -> bool:
        """Whether hooks may stand: the compiler is not loaded, or it tells us when it starts."""
        return _DYNAMO not in sys.modules or _CALLBACK in sys.modules

    def watch_wrapping(self) -> None:
        """From now on `wrapped` is called for each new wrapper."""
        if self._handle is None:
            self._handle = module_hooks.register_module_module_registration_hook(self._registered)

    def unwatch_wrapping(self) -> None:
        """No longer."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _registered(self, module: Any, _name: str, _child: Any) -> None:
        if type(module).__name__ == "OptimizedModule":
            self._wrapped(module)


class _ImportWatch:
    """A finder that finds nothing: it wraps the loader of one module to be called back right after that
    module's execution."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's true specification with a loader that reports back, once; None for all others."""
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ReportingLoader(spec.loader, self._then)
                return spec
        return None


class _ReportingLoader:
    """Loads as the true loader does, then leaves no trace of itself."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        """As the true loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """As the true loader; then the report."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()


exempt(sys.modules[__name__], CompileWatch)
