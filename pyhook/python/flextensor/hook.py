"""The hook in an unchanged program: holds together the search, the roots, the held storages and the peace
with torch.compile.

`arrive` is called by `_arrive.py`, at any moment and many times. Whatever goes wrong here is logged once
and switches the hook off; the program goes on, its launches served by the interposer alone.
"""

import functools
import itertools
import json
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from flextensor import _native, compiling, naming
from flextensor.holding import Holding
from flextensor.roots import STORAGES_A_PASS, Naming, Root, Wishes
from flextensor.search import Search

_LOG = logging.getLogger("flextensor")
# A weight that was replaced this often is the program's working memory (a cache, a counter), not a weight.
_MOVES = 3
# Replaced weights are named in addition to a root's first model of each GPU at most this often.
_ADDITIONS = 8

_process: "ProcessHook | None" = None
_refused = False


def arrive() -> None:
    """The interposer has something new in this process: looks at forwards again. Never raises, never
    blocks."""
    global _process, _refused
    if _refused:
        return
    try:
        if _process is None:
            _native.connect()
            _process = ProcessHook()
        _process.arrived()
    except Exception as error:
        _refused = True
        _LOG.warning("no weight is streamed: %s", error)


def process() -> "ProcessHook":
    """The hook of this process, for a program that names its models itself; RuntimeError where there is no library to
    tell them to."""
    global _process
    if _process is None:
        _native.connect()
        _process = ProcessHook()
    return _process


def _locked(method: Callable) -> Callable:
    """Runs a method under the lock; afterwards what was put off meanwhile. The lock's own `with` cannot be left
    locked by an interrupt."""

    @functools.wraps(method)
    def under_lock(self: "ProcessHook", *arguments: Any) -> Any:
        try:
            with self._lock:
                return method(self, *arguments)
        finally:
            self._run_tasks()

    return under_lock


class ProcessHook:
    """The one hook of a process. `_lock` guards all of its state. Arrivals and finalizers come between any two
    bytecodes, also of a thread that holds the lock, and must not wait for others: see `later`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tasks: deque[Callable[[], None]] = deque()
        self._roots: dict[int, Root] = {}
        self._namings: dict[int, Naming] = {}
        self._keys = itertools.count(1)
        self._holding = Holding()
        self._patterns = _patterns()
        self._tracing = 0
        self._on = True
        self.watch = compiling.CompileWatch(self._trace_started, self._trace_ended, self._wrapped)
        self._search = Search(self)
        _native.set_tensor_type(torch.Tensor)
        os.register_at_fork(after_in_child=self._forked)

    # Entered from outside: between two bytecodes, from hooks, from the compiler.

    def arrived(self) -> None:
        """New memory was reported."""
        self.later(self._rearm)

    def later(self, task: Callable[[], None]) -> None:
        """Runs `task` under the lock: now if the lock is free, else as soon as its holder is done."""
        self._tasks.append(task)
        self._run_tasks()

    def root_of(self, module: nn.Module) -> Root | None:
        """The root that `module` is, if it is one."""
        root = self._roots.get(id(module))
        return root if root is not None and root.module() is module else None

    @_locked
    def adopt(self, module: nn.Module, wishes: Wishes | None = None) -> Root | None:
        """Makes `module` a root if it has weights on the GPU and the interposer takes them. With `wishes` it is named
        anew if it was a root before."""
        if not self._on or not naming.has_weights(module):
            return None
        if wishes is not None:
            self.let_go(module)
        root = Root(next(self._keys), module, self, wishes)
        self._name(root, module)
        if not root.namings:
            return None
        self._roots[id(module)] = root
        self._search.forget_candidates_in(module)
        forget = functools.partial(self._forget, id(module), root)
        weakref.finalize(module, self.later, forget).atexit = False
        root.hook(self.failed)
        return root

    @_locked
    def let_go(self, module: nn.Module) -> None:
        """`module` is no root any more: its hooks go, and its weights' ranges become private."""
        if (root := self.root_of(module)) is not None:
            root.unhook()
            self._forget(id(module), root)

    @_locked
    def sweep(self) -> None:
        """Lets go of every storage that the program has let go of."""
        self._holding.sweep()

    @_locked
    def leave_out(self, root: Root, module: nn.Module) -> None:
        """A part of a root is compiled from now on."""
        for each in root.namings:
            each.leave_out(module, root.module())

    @_locked
    def before_pass(self, root: Root) -> None:
        """Looks at a few storages and weights; names what has been replaced."""
        if not self._on:
            return
        self.watch.refresh()
        self._holding.sweep(STORAGES_A_PASS * root.passes())
        if self.watch.safe and not self._tracing:
            self._search.catch_up()
        module = root.module()
        if module is not None and root.changed():
            self._name(root, module)
            if not root.namings:  # refused, or its weights left the GPU: to be found again by the search
                root.unhook()
                del self._roots[id(module)]

    @_locked
    def tune(self, namings: list[Naming], root: nn.Module) -> None:
        """Hooks what the interposer wants to hear of now."""
        if self._on and not self._tracing:
            for each in namings:
                each.tune(root)

    def modules_below_roots(self) -> set[int]:
        """The ids of all modules in trees of living roots."""
        roots = [root.module() for root in self._roots.values()]
        return {id(part) for module in roots if module is not None for part in module.modules()}

    def failed(self, error: Exception) -> None:
        """Something of ours raised: logs it once and takes every hook away for good."""
        if self._on:
            self._switch_off(error)
            self.later(self._unhook_all)

    # Run under the lock.

    def _rearm(self) -> None:
        if not self._on:
            return
        self._holding.sweep()
        if self.watch.safe and not self._tracing:
            self._search.arm()

    def _name(self, root: Root, module: nn.Module) -> None:
        """Names every weight below `module` that no model has yet; the others' models share this root's
        passes."""
        self._put_aside_moved(root)
        wishes = root.wishes
        tree = naming.read(module, wishes.patterns if wishes else self._patterns, _native.select)
        models = {weight.address: self._holding.model_of(weight.address) for weight in tree.weights}
        own = {each.model for each in root.own}
        root.shared = [
            self._namings[model]
            for model in sorted(set(models.values()) - {None} - own)
            if model in self._namings
        ]
        tree.weights = [
            weight
            for weight in tree.weights
            if models[weight.address] is None and root.moves.get(weight.name, 0) < _MOVES
        ]
        if not tree.weights:
            return
        for part in naming.on_each_device(tree):
            device = part.weights[0].device
            if sum(each.device == device for each in root.own) <= _ADDITIONS:
                _keep_owners_with_weights(part)
                if (added := self._announce(part, wishes)) is not None:
                    root.own.append(added)

    def _put_aside_moved(self, root: Root) -> None:
        """Counts the weights of `root` that were replaced. A model that lost half of its bytes or more (moved away
        and back, loaded anew) is dropped as a whole, to be named as a new one."""
        for each in [each for each in root.own if each.alive]:
            moved = each.take_moved()
            if 2 * sum(weight.nbytes for weight in moved) >= each.nbytes:
                self._drop(each)
            for name in {weight.name for weight in moved}:
                root.moves[name] = root.moves.get(name, 0) + 1
        root.own = [each for each in root.own if each.alive]
        if not root.own:
            root.moves.clear()

    def _announce(self, tree: naming.Tree, wishes: Wishes | None) -> Naming | None:
        """Sends one model to the interposer and holds its storages."""
        model = _native.model_begin(tree.name)
        if not model:
            return None
        if wishes is not None:
            _native.model_course(model, *wishes.course)
        for index, owner in enumerate(tree.owners):
            _native.model_owner(model, index, owner.path, owner.class_name, owner.trap)
        for weight in tree.weights:
            named = weight.name, weight.address, weight.nbytes, weight.owner, weight.flags
            if _native.model_weight(model, *named) == 0:
                self._holding.hold(weight.address, weight.storage, model)
        _native.model_end(model)
        # A program that names its models itself has no other use for the place that `around` takes.
        self._namings[model] = Naming(model, tree, hooks=wishes is None)
        return self._namings[model]

    def _forget(self, module_id: int, root: Root) -> None:
        """The program let a root module go."""
        if self._roots.get(module_id) is root:
            del self._roots[module_id]
        for each in root.own:
            self._drop(each)

    def _drop(self, dropped: Naming) -> None:
        dropped.unhook()
        dropped.alive = False
        self._namings.pop(dropped.model, None)
        _native.model_drop(dropped.model)
        self._holding.drop_model(dropped.model)

    def _unhook_all(self) -> None:
        self.watch.unwatch_wrapping()
        self._suspend()

    def _suspend(self) -> None:
        """Takes away every hook that may come back."""
        self._search.suspend()
        for each in self._namings.values():
            each.unhook()
        for root in self._roots.values():
            root.unhook()

    def _switch_off(self, error: Exception) -> None:
        self._on = False
        _LOG.warning("the Python hook is switched off after an error of its own: %r", error)

    # The compiler.

    @_locked
    def _trace_started(self) -> None:
        self._tracing += 1
        if self._tracing == 1:
            self._suspend()

    @_locked
    def _trace_ended(self) -> None:
        self._tracing = max(self._tracing - 1, 0)
        if self._tracing or not self._on:
            return
        for root in self._roots.values():
            root.hook(self.failed)
        for root in self._roots.values():
            for each in root.own:
                each.tune(root.module())
        self._search.resume()

    def _wrapped(self, _module: Any) -> None:
        self.later(self._search.close)

    def _forked(self) -> None:
        """In a forked child: nothing of ours may call out, and its locks may be held by threads that do
        not exist there."""
        _native.silence()
        self._on = False
        self._lock = threading.RLock()
        self._tasks.clear()

    def _run_tasks(self) -> None:
        while self._tasks and not self._lock._is_owned():
            try:
                if not self._lock.acquire(blocking=False):
                    return
                while self._tasks:
                    self._tasks.popleft()()
            except Exception as error:
                self._tasks.appendleft(self._unhook_all)
                self._switch_off(error)
            finally:
                # Asked, not remembered: an interrupt may come right after the lock was got.
                if self._lock._is_owned():
                    self._lock.release()


def _patterns() -> naming.Patterns:
    """The patterns of the effective configuration."""
    configuration = json.loads(_native.config_json() or "{}")
    return naming.Patterns(configuration.get("include_patterns"), configuration.get("exclude_patterns") or [])


def _keep_owners_with_weights(tree: naming.Tree) -> None:
    """Numbers anew the owners that still have a weight."""
    kept = sorted({weight.owner for weight in tree.weights})
    number = {old: new for new, old in enumerate(kept)}
    tree.owners = [tree.owners[old] for old in kept]
    for weight in tree.weights:
        weight.owner = number[weight.owner]


compiling.exempt(sys.modules[__name__], ProcessHook, Holding, naming)
