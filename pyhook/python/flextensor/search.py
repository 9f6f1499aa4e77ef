"""Finds root modules: the outermost modules whose forwards run with weights on the GPU.

The rule. When the interposer reports new memory (`arm`), a global forward pre-hook looks at forwards that
run outside every known root: a module with weights on the GPU becomes a root there and then. When one module
was seen QUIET_FORWARDS times without a new root being found, the global hook goes, and a census of all living
modules follows: those that hold weights nobody named, and what contains them, get a hook of their own, which
costs nothing until they run. While a wrapper of torch.compile lives, only the census is used, because that
wrapper warns about global hooks. What a root is told is left to `roots`.
"""

import gc
import sys
import time
import weakref
from collections import Counter
from typing import Any

from torch import nn
from torch.nn.modules import module as module_hooks

from flextensor import _native, compiling, naming

QUIET_FORWARDS = 3
# A program that gets and gives back GPU memory all the time reports new memory all the time: after some armings
# that found nothing they are spaced out, by pauses that double up to the longest, in seconds.
FRUITLESS_ARMINGS = 3
LONGEST_PAUSE = 2.0
# Looking through all living objects may take this share of the time.
SCAN_SHARE = 0.05


class Search:
    """The search of one process; `host` adopts what is found."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._global: Any = None
        # How often each module was seen since something new was found; counted for each, because the parts of
        # a module that is no root are seen like others.
        self._seen: Counter[int] = Counter()
        self._armed = False
        self._rejected: dict[int, weakref.ref] = {}
        self._candidates: dict[int, Any] = {}
        self._scan_end = 0.0
        self._scan_cost = 0.0
        self._wrapper: weakref.ref | None = None
        self._due = False
        self._census_due = False
        self._found = False
        self._fruitless = 0
        self._pause_end = 0.0

    def arm(self) -> None:
        """New memory was reported: looks at forwards again, at once or when the pause is over."""
        self._due = time.monotonic() < self._pause_end
        if self._due:
            return
        self._rejected.clear()
        self._armed = True
        if self._global is not None:
            return
        self._seen.clear()
        if self._wrapper_lives():
            self.close()
            return
        self._global = module_hooks.register_module_forward_pre_hook(self._hook())
        self._host.watch.watch_wrapping()

    def catch_up(self) -> None:
        """Does what had to wait, if it may be done now."""
        if self._due:
            self.arm()
        if self._census_due:
            self.census()

    def close(self) -> None:
        """Takes the global hook away and hooks what is left unnamed."""
        self._armed = False
        self._fruitless = 0 if self._found else min(self._fruitless + 1, 10)
        self._found = False
        if self._fruitless >= FRUITLESS_ARMINGS:
            self._pause_end = time.monotonic() + min(0.05 * 2**self._fruitless, LONGEST_PAUSE)
        self.unhook_global()
        self._host.watch.unwatch_wrapping()
        self.census()

    def suspend(self) -> None:
        """Takes every hook away; `resume` brings them back."""
        self.unhook_global()
        for handle in self._candidates.values():
            handle.remove()
        self._candidates.clear()

    def resume(self) -> None:
        """After a trace: the state before `suspend`."""
        if self._armed:
            self.arm()
        else:
            self._census_due = True
            self.census()

    def unhook_global(self) -> None:
        """Takes the global hook away."""
        if self._global is not None:
            self._global.remove()
            self._global = None

    def seen(self, module: nn.Module, arguments: Any) -> None:
        """A forward begins outside every known root."""
        if compiling.is_tracing():
            return
        keywords = _keywords_of_caller(sys._getframe(1))
        root = self._host.root_of(module)
        if root is None and not self._is_rejected(module):
            root = self._host.adopt(module)
            if root is not None:
                self._seen.clear()
                self._found = True
                self._pause_end = 0.0
                # The hooks just put in come too late for this forward: the module has already listed those it
                # will call before.
                root.begin(_native.hash_inputs(arguments, keywords))
                return
            self._rejected[id(module)] = weakref.ref(module)
        self._seen[id(module)] += 1
        if self._global is not None and self._seen[id(module)] >= QUIET_FORWARDS:
            self._host.later(self.close)

    def forget_candidates_in(self, module: nn.Module) -> None:
        """`module` is a root now: what lies below needs no hook of its own."""
        for part in module.modules():
            if (handle := self._candidates.pop(id(part), None)) is not None:
                handle.remove()

    def census(self) -> None:
        """Hooks the living modules that hold unnamed weights, and their containers."""
        start = time.monotonic()
        if (start - self._scan_end) * SCAN_SHARE < self._scan_cost:
            self._census_due = True
            return
        modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
        for module in self._unnamed_and_containers(modules):
            if id(module) not in self._candidates:
                self._candidates[id(module)] = module.register_forward_pre_hook(self._hook(), prepend=True)
                weakref.finalize(module, self._candidates.pop, id(module), None).atexit = False
        self._census_due = False
        self._scan_end = time.monotonic()
        self._scan_cost = self._scan_end - start

    def _unnamed_and_containers(self, modules: list[nn.Module]) -> list[nn.Module]:
        below_root = self._host.modules_below_roots()
        containers: dict[int, list[nn.Module]] = {}
        below_compiled: set[int] = set()
        for module in modules:
            for child in module._modules.values():
                if child is not None:
                    containers.setdefault(id(child), []).append(module)
            if naming.is_compiled(module):
                below_compiled.update(id(part) for part in module.modules() if part is not module)
            if naming.refuses_hooks(module):
                below_compiled.update(id(part) for part in module.modules())
        found: dict[int, nn.Module] = {}
        reached: set[int] = set()
        open_ends = [
            m
            for m in modules
            if id(m) not in below_root
            and any(True for _, t in naming.own_tensors(m) for _ in naming.storages(t))
        ]
        while open_ends:
            module = open_ends.pop()
            if id(module) in reached or id(module) in below_root:
                continue
            reached.add(id(module))
            open_ends.extend(containers.get(id(module), ()))
            if id(module) not in below_compiled and not naming.has_compiled_call(module):
                found[id(module)] = module
        return list(found.values())

    def _wrapper_lives(self) -> bool:
        """Whether a wrapper of torch.compile exists. One that was seen is remembered: looking for it takes a
        walk over all objects."""
        if self._wrapper is not None and self._wrapper() is not None:
            return True
        evaluation = sys.modules.get("torch._dynamo.eval_frame")
        kind = getattr(evaluation, "OptimizedModule", None)
        if kind is None:
            return False
        found = next((thing for thing in gc.get_objects() if type(thing) is kind), None)
        self._wrapper = weakref.ref(found) if found is not None else None
        return found is not None

    def _hook(self) -> Any:
        return _native.SearchHook(self.seen, self._host.failed)

    def _is_rejected(self, module: nn.Module) -> bool:
        reference = self._rejected.get(id(module))
        return reference is not None and reference() is module


def _keywords_of_caller(frame: Any) -> dict[str, Any] | None:
    """The keyword arguments of the forward that a hook without keywords was called for: those of torch's
    own calling function."""
    if frame.f_globals.get("__name__") != "torch.nn.modules.module":
        return None
    keywords = frame.f_locals.get("kwargs")
    return keywords if isinstance(keywords, dict) else None


compiling.exempt(sys.modules[__name__], Search)
