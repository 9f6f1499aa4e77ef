"""Root modules and what was named below them: sends pass marks, and hooks owners and traps while the
interposer wants to hear of them.

When a module becomes a root is decided in `search`; naming, forgetting and locking are done by `hook`.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from flextensor import _native, around, compiling, naming

WANTS_OWNERS = 1
WANTS_TRAPS = 2
WANTS_STACKED_OWNERS = 4
WANTS_WRITTEN = 8

# Looked at before each pass: enough to notice any change within some tens of passes, at a few microseconds.
STORAGES_A_PASS = 16
WEIGHTS_A_PASS = 8


class Versions:
    """What torch counts of each weight: operations in place, also those that leave all bytes as they were.
    Tensors made in inference mode have no count, and nothing is said of them."""

    def __init__(self, weights: list[tuple[weakref.ref, naming.Weight]]) -> None:
        self._tensors: list[weakref.ref] = []
        self._addresses: list[int] = []
        # The counts at the beginning of the pass that each thread is in.
        self._before: dict[int, list[int | None]] = {}
        self._told: set[int] = set()
        for reference, weight in weights:
            module = reference()
            for tensor in _tensors_at(module, weight) if module is not None else ():
                self._tensors.append(weakref.ref(tensor))
                self._addresses.append(weight.address)

    def begin(self) -> None:
        """A pass begins on this thread."""
        self._before[threading.get_ident()] = self._read()

    def end(self) -> list[int]:
        """The pass of this thread ends: the addresses of weights that were written since it began, by
        whomever; each is told once."""
        before = self._before.pop(threading.get_ident(), None)
        if before is None or before == (now := self._read()):
            return []
        counts = zip(self._addresses, before, now, strict=True)
        written = {address for address, was, count in counts if count is not None and was != count}
        fresh = sorted(written - self._told)
        self._told |= written
        return fresh

    def _read(self) -> list[int | None]:
        return [None if (tensor := each()) is None else tensor._version for each in self._tensors]


def _tensors_at(module: nn.Module, weight: naming.Weight) -> list[torch.Tensor]:
    """The tensors of a weight whose operations in place are counted."""
    tensor = module._parameters.get(weight.attribute)
    if tensor is None:
        tensor = module._buffers.get(weight.attribute)
    try:
        return [
            leaf
            for leaf in naming.leaves(tensor)
            if leaf.untyped_storage().data_ptr() == weight.address and not leaf.is_inference()
        ]
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        # Gone meanwhile, or a tensor of a kind that does not count.
        return []


class Naming:
    """One model of the interposer: the owners, traps and weights on one GPU that were named under one id."""

    def __init__(self, model: int, tree: naming.Tree, *, hooks: bool = True) -> None:
        """`hooks`: marks are sent by hooks; else they stand around modules where they can (`around`)."""
        self.model = model
        self._hooks = hooks
        self.alive = True
        self.nbytes = sum(weight.nbytes for weight in tree.weights)
        self.device = tree.weights[0].device
        self.installed = 0
        # The pass that is going on is one whose writes are wanted.
        self.watched = False
        self._owners = tree.owners
        self._traps = tree.traps
        self._checks = [(tree.owners[weight.owner].module, weight) for weight in tree.weights]
        for weight in tree.weights:
            weight.storage = None  # `holding` decides how long a storage is kept
        self._versions = Versions(self._checks)
        self._next_check = 0
        self._handles: list[Any] = []
        # Marks of the root itself are sent by its pass hooks: its own hooks of this pass were fixed before
        # these came.
        self._of_root: dict[int, list[tuple[Any, Any]]] = {}

    def tune(self, root: nn.Module | None) -> None:
        """Reads what is wanted now and hooks, or unhooks, accordingly."""
        wants = _native.wants(self.model)
        self.watched = bool(wants & WANTS_WRITTEN)
        wants &= ~WANTS_WRITTEN
        if wants & WANTS_OWNERS:
            wants &= ~WANTS_STACKED_OWNERS
        if wants != self.installed:
            self.unhook()
            self._hook(wants, root)

    def unhook(self) -> None:
        """Takes every owner and trap hook away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._of_root.clear()
        self.installed = 0

    def marks_of(self, root: nn.Module) -> list[tuple[Any, Any]]:
        """The pairs of enter and exit marks of the root itself, outermost first."""
        return self._of_root.get(id(root), [])

    def _hook(self, wants: int, root: nn.Module | None) -> None:
        self.installed = wants
        for index, owner in enumerate(self._owners):
            if wants & WANTS_OWNERS or (wants & WANTS_STACKED_OWNERS and owner.stacked):
                marks = (
                    _native.Mark.owner_enter(self.model, index),
                    _native.Mark.owner_exit(self.model, index),
                )
                self._hook_one(owner, marks, root)
        # Traps after owners: a module that is both then enters as a trap first and leaves as a trap last.
        for index, trap in enumerate(self._traps if wants & WANTS_TRAPS else ()):
            marks = _native.Mark.trap_enter(self.model, index), _native.Mark.trap_exit(self.model, index)
            self._hook_one(trap, marks, root)

    def _hook_one(
        self, place: naming.Owner | naming.Trap, marks: tuple[Any, Any], root: nn.Module | None
    ) -> None:
        module = place.module()
        if module is None or place.compiled or naming.is_compiled(module):
            return
        if module is root:
            self._of_root.setdefault(id(module), []).insert(0, marks)
            return
        if not self._hooks and around.can_stand_around(module):
            self._handles.append(around.stand_around(module, *marks))
            return
        self._handles.append(module.register_forward_pre_hook(marks[0], prepend=True))
        self._handles.append(module.register_forward_hook(marks[1], always_call=True))

    def watch(self) -> None:
        """The pass begins: what it writes is wanted, or not."""
        if self.watched:
            self._versions.begin()

    def tell_written(self) -> None:
        """The pass is about to end: says which weights it wrote, if that is wanted."""
        for address in self._versions.end():
            _native.weight_written(address)

    def leave_out(self, module: nn.Module, root: nn.Module | None) -> None:
        """`module` is compiled from now on: nothing of ours stands in it or below it any more."""
        inside = {id(part) for part in module.modules()}
        for place in (*self._owners, *self._traps):
            place.compiled = place.compiled or id(place.module()) in inside
        self.unhook()
        self.tune(root)

    def changed(self, limit: int) -> bool:
        """Whether one of the next `limit` weights, in turns, no longer lies where it was named."""
        for _ in range(min(limit, len(self._checks))):
            self._next_check = (self._next_check + 1) % len(self._checks)
            if self._moved(*self._checks[self._next_check]):
                return True
        return False

    def take_moved(self) -> list[naming.Weight]:
        """The weights that no longer lie where they were named; they are not looked at again."""
        moved = [weight for module, weight in self._checks if self._moved(module, weight)]
        gone = {id(weight) for weight in moved}
        self._checks = [check for check in self._checks if id(check[1]) not in gone]
        self._next_check = 0
        return moved

    @staticmethod
    def _moved(reference: weakref.ref, weight: naming.Weight) -> bool:
        module = reference()
        if module is None:
            return False
        tensor = module._parameters.get(weight.attribute)
        if tensor is None:
            tensor = module._buffers.get(weight.attribute)
        return all(address != weight.address for _, address, _ in naming.storages(tensor))


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a program that uses the Python interface wants for one of its models, instead of what is configured."""

    patterns: naming.Patterns
    # Passes of DISCOVERY and PROFILING, passes in which compilers warm up, whether DISCOVERY is skipped, and the
    # folder of a profile ("" = none): the arguments of ft_model_course.
    course: tuple[int, int, int, bool, str]


class Root:
    """A module whose forward is a pass."""

    def __init__(self, key: int, module: nn.Module, host: Any, wishes: Wishes | None = None) -> None:
        self.key = key
        self.wishes = wishes
        self.module = weakref.ref(module)
        self.own: list[Naming] = []
        self.shared: list[Naming] = []
        # How often each weight has been found elsewhere, by name.
        self.moves: dict[str, int] = {}
        self._host = host
        self._handles: list[Any] = []

    @property
    def namings(self) -> list[Naming]:
        """Everything that a pass of this root is a pass of."""
        return [each for each in (*self.own, *self.shared) if each.alive]

    def hook(self, failed: Callable[[Exception], None]) -> None:
        """Puts the pass hooks into the module."""
        module = self.module()
        if module is None or self._handles:
            return
        # A program that names its models itself counts on each pass.
        key = self.key if self.wishes is None else None
        begin = _native.PassHook(self.begin, failed, True, key)
        end = _native.PassHook(self.end, failed, False, key)
        self._handles.append(module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True))
        self._handles.append(module.register_forward_hook(end, always_call=True))

    def unhook(self) -> None:
        """Takes the pass hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin(self, shape: int) -> None:
        """The forward begins: looks for changes, tells the interposer, then hooks what it wants to hear
        of."""
        module = self.module()
        if module is None or compiling.is_tracing():
            return
        self._host.before_pass(self)
        namings = self.namings
        if not namings:  # no root any more; a pass that began would never end
            return
        _native.pass_begin(self.key, [each.model for each in namings], shape)
        self._host.tune(namings, module)
        for each in namings:
            each.watch()
            for enter, _ in each.marks_of(module):
                enter()

    def end(self, _shape: int) -> None:
        """The forward has returned, also by an exception."""
        module = self.module()
        if module is None or compiling.is_tracing():
            return
        for each in reversed(self.namings):
            for _, leave in reversed(each.marks_of(module)):
                leave()
            each.tell_written()
        _native.pass_end(self.key)

    def changed(self) -> bool:
        """Whether weights moved, or were replaced or forgotten, as far as this pass's sample shows, or another root that
        had named weights of both is gone."""
        limit = WEIGHTS_A_PASS * self.passes()
        return (
            not self.namings
            or any(not each.alive for each in self.shared)
            or any(each.changed(limit) for each in self.own if each.alive)
        )

    def passes(self) -> int:
        """Passes that this one stands for: itself, and those that were left untold before."""
        return 1 + _native.passes_left_out(self.key)


compiling.exempt(Naming, Root, Versions)
