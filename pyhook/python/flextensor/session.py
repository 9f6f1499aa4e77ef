"""What a manager has with the runtime for one model: weights on the GPU, named under the manager's patterns and counts;
what the runtime says of them; and the way back.

Naming and hooks are `hook`'s and `roots`', the same as in an unchanged program; here is only what an unchanged
program does itself: bringing the model to the GPU and taking it away again. Phases and units are left to
`offload_manager`.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from flextensor import _native, loading, naming, taking_over
from flextensor.config import OffloadConfig, config_defaults
from flextensor.gpu_budget import resolve_gpu_budget
from flextensor.phases import Settings
from flextensor.roots import Wishes

_LOG = logging.getLogger("flextensor")
# Weights that go back to the host are let go of each time that this many bytes were copied.
_STEP_BYTES = 256 << 20
# What each manager's own calls decide, and what the runtime has for all models of a process, is not sent there.
_MANAGERS_OWN = frozenset(
    {"enabled", "gpu_device", "profile_storage_dir", "discovery_iters", "profiling_iters", "skip_discovery"}
)

# What the process was told of options that an offload() overrode: by a variable or a file.
_BEFORE: dict[str, Any] = {}


def cuda_is_available() -> bool:
    """Whether there is a GPU to offload from. Tests on machines without one put their own answer here."""
    return torch.cuda.is_available()


def device_of(config: OffloadConfig) -> torch.device:
    """The GPU of a configuration. Tests on machines without one put their own answer here."""
    return torch.device("cuda", config.gpu_device)


def require_gpu(config: OffloadConfig) -> bool:
    """Whether there is a GPU; RuntimeError where there is none and weights are to be pinned for it."""
    if cuda_is_available():
        return True
    if config.pinned_memory:
        raise RuntimeError(
            "pinned_memory=True needs a GPU, but torch.cuda.is_available() is False; set pinned_memory=False "
            "(or enabled=False) on machines without one"
        )
    _LOG.warning("there is no GPU: nothing is offloaded, and the model runs where it is")
    return False


class Session:
    """One model that the runtime knows."""

    def __init__(
        self, model: nn.Module, config: OffloadConfig, settings: Settings, profile: str | None = None
    ) -> None:
        """Brings `model` to the GPU, tensor by tensor, and names it; `profile` is the folder that it starts from.

        RuntimeError where the library is not there or takes no model.
        """
        loading.require_library()
        device = device_of(config)
        # The library is at work from the first call of CUDA on.
        torch.empty(1, device=device)
        _configure(config)
        loading.warn_of_what_is_not_counted()
        resolve_gpu_budget(config.max_gpu_mem_fraction, device)
        from flextensor import hook

        self._host = hook.process()
        self._model = model
        memory = taking_over.GpuMemory(device)
        if loading.came_late():
            # What is idle is of before the library: weights would be put there.
            memory.give_back()
        self._homes = move(model, device)
        patterns = naming.Patterns(list(config.include_patterns or ["*"]), list(config.exclude_patterns))
        course = (
            settings.discovery_iters,
            settings.profiling_iters,
            settings.compile_warmups,
            settings.skips,
            profile or "",
        )
        try:
            if loading.came_late():
                taking_over.take_over(model, memory)
            root = self._host.adopt(model, Wishes(patterns, course))
            if root is None:
                raise RuntimeError(
                    f"libflextensor.so takes no weights of {type(model).__name__}: it has none on {device}, or the "
                    "hook was switched off by an error that the log names"
                )
        except BaseException:
            try:
                self._move_back()
            finally:
                self._host.let_go(model)
            raise
        self._root = root

    def models(self) -> list[int]:
        """The model's ids in the runtime."""
        return [each.model for each in self._root.own if each.alive]

    def leave_out(self, module: nn.Module) -> None:
        """A part of the model is compiled from now on: no hook may stand in it."""
        self._host.leave_out(self._root, module)

    def begin_pass(self) -> None:
        """A pass of the model begins that is no forward of its root: manual blocks."""
        _native.pass_begin(self._root.key, self.models(), 0)

    def end_pass(self) -> None:
        """The pass of manual blocks has ended."""
        _native.pass_end(self._root.key)

    def report(self) -> dict[str, Any]:
        """The run report (docs/report.md)."""
        return json.loads(_native.report_json() or "{}")

    def placed(self, report: dict[str, Any]) -> tuple[int, int]:
        """Bytes of the ring on the model's GPU, and bytes of the model's weights that are resident there."""
        ids = set(self.models())
        models = [model for model in report.get("models", ()) if model["id"] in ids]
        devices = {model["device"] for model in models}
        ring = sum(plan["ring_bytes"] for plan in report.get("plans", ()) if plan["device"] in devices)
        resident = sum(
            unit["bytes"] - unit["streamed_bytes"]
            for unit in report.get("placements", ())
            if ids.intersection(unit["models"]) and not unit.get("in_host")
        )
        return ring, resident + sum(model["fixed_bytes"] for model in models)

    def budget_bytes(self) -> int | None:
        """The budget of the plan in force; None where there is none."""
        return next((plan["budget_bytes"] for plan in self.report().get("plans", ())), None)

    def may_replan(self, config: OffloadConfig) -> bool:
        """Whether the runtime makes new plans; `config` answers where it does not say."""
        return json.loads(_native.config_json() or "{}").get("replan", config.replan) != "off"

    def ask_for_plan(self) -> bool:
        """Has the next forward observed, and a plan made of it, whatever it gains. False where none is made: nothing is
        streamed, or `replan` is off."""
        return 0 in [_native.model_replan(model) for model in self.models()]

    def save_profile(self, folder: str) -> None:
        """Writes profile.json; OSError where that fails."""
        answer = _native.profile_save(folder)
        if answer == 0:
            return
        if answer == -1:
            raise RuntimeError("no profile is there to be saved: no model is in INFERENCE yet")
        raise OSError(f"the profile could not be saved to {folder}: the log says why")

    def close(self, *, preserve_model: bool = True) -> None:
        """Takes the model out of the runtime: back to where its tensors came from, or emptied."""
        self._root.unhook()
        try:
            if preserve_model:
                self._move_back()
            else:
                for tensor in self._own_and_moved():
                    tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        finally:
            self._host.let_go(self._model)
            self._host.sweep()

    def _own_and_moved(self) -> Iterator[torch.Tensor]:
        """Parameters and buffers, and those plain attributes that were brought to the GPU."""
        for _, tensor in _tensors(self._model):
            yield tensor
        for owner, name, home in self._homes:
            value = vars(owner).get(name)
            if isinstance(value, torch.Tensor) and value.device != home:
                yield value

    def _move_back(self) -> None:
        copied = 0

        def came_back(bytes_moved: int) -> None:
            nonlocal copied
            copied += bytes_moved
            if copied >= _STEP_BYTES:
                copied = 0
                self._let_go_of_copied()

        bring(self._model, self._homes, {}, came_back)
        self._let_go_of_copied()

    def _let_go_of_copied(self) -> None:
        self._host.sweep()
        if cuda_is_available():
            torch.cuda.empty_cache()


Home = tuple[nn.Module, str, torch.device]
Storages = dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]]


def move(model: nn.Module, device: torch.device) -> list[Home]:
    """Brings every parameter, buffer and plain tensor attribute of `model` to `device`, one at a time, so that no
    moment has two copies of the whole. Parameters keep their identity, tensors of one storage share one again.
    Returns where each tensor was. What raises leaves them there."""
    homes = [(owner, name, tensor.device) for owner, name, tensor in _places(model) if not tensor.is_meta]
    storages: Storages = {}
    try:
        bring(model, ((owner, name, device) for owner, name, _ in homes), storages)
    except BaseException:
        # Views whose storage was copied already go back to that storage itself.
        bring(model, homes, {new.data_ptr(): (new, old) for old, new in storages.values()})
        raise
    return homes


def bring(
    model: nn.Module,
    places: Iterable[Home],
    storages: Storages,
    moved: Callable[[int], None] = lambda _: None,
) -> None:
    """Brings the tensors in these places of `model` to the devices given, one at a time, with what they share; what
    stands there already, or is no tensor any more, stays. `storages`: copies of storages made so far, by address of the old
    one. `moved` is told the bytes of each tensor."""
    shared = _shared_storages(model)
    # Parameters that could not stay the same object, with what stands for them.
    replaced: dict[int, tuple[torch.Tensor, nn.Parameter]] = {}
    for owner, name, device in places:
        tensor = getattr(owner, name, None)
        if not isinstance(tensor, torch.Tensor):
            continue
        if id(tensor) in replaced:
            owner._parameters[name] = replaced[id(tensor)][1]
        elif tensor.device != device:
            address = _storage_of(tensor)
            is_shared = address in shared or address in storages
            size = tensor.numel() * tensor.element_size()
            _put(owner, name, tensor, _moved(tensor, device, storages if is_shared else None))
            if name in owner._parameters and owner._parameters[name] is not tensor:
                replaced[id(tensor)] = (tensor, owner._parameters[name])
            # Nothing here holds on to what was copied when `moved` lets go of it.
            del tensor
            moved(size)


def _moved(tensor: torch.Tensor, device: torch.device, storages: Storages | None) -> torch.Tensor:
    if storages is None:
        return tensor.detach().to(device, copy=True)
    old = tensor.untyped_storage()
    if old.data_ptr() not in storages:
        whole = torch.empty(0, dtype=torch.uint8, device=old.device).set_(old).to(device, copy=True)
        storages[old.data_ptr()] = (old, whole.untyped_storage())
    view = torch.empty(0, dtype=tensor.dtype, device=device)
    return view.set_(storages[old.data_ptr()][1], tensor.storage_offset(), tensor.shape, tensor.stride())


def _shared_storages(model: nn.Module) -> set[int]:
    """Addresses of storages that stand in more than one place, other than as one and the same parameter."""
    users: dict[int, set[object]] = {}
    for owner, name, tensor in _places(model):
        if (address := _storage_of(tensor)) is not None:
            user = id(tensor) if name in owner._parameters else (id(owner), name)
            users.setdefault(address, set()).add(user)
    return {address for address, places in users.items() if len(places) > 1}


def _storage_of(tensor: torch.Tensor) -> int | None:
    """The address of a plain tensor's storage."""
    if (
        type(tensor) not in (torch.Tensor, nn.Parameter)
        or tensor.layout is not torch.strided
        or tensor.is_meta
    ):
        return None
    return tensor.untyped_storage().data_ptr() or None


def _places(model: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for owner in model.modules():
        for name, tensor in naming.own_tensors(owner):
            yield owner, name, tensor
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                yield owner, name, value


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for owner in model.modules():
        yield from naming.own_tensors(owner)


def _put(owner: nn.Module, name: str, old: torch.Tensor, new: torch.Tensor) -> None:
    """Puts `new` in the place of `old`: a parameter stays the same object where torch allows that."""
    if name in owner._parameters:
        with torch.no_grad():
            if torch._has_compatible_shallow_copy_type(old, new):
                old.data = new
                return
        owner._parameters[name] = nn.Parameter(new, requires_grad=old.requires_grad)
    elif name in owner._buffers:
        owner._buffers[name] = new
    else:
        owner.__dict__[name] = new


def _configure(config: OffloadConfig) -> None:
    """Sends the options that somebody set to the runtime, for all that is decided from now on; those that an offload
    before it set, and this one does not, are as they were before."""
    values = config.model_dump()
    process = json.loads(_native.config_json() or "{}")
    origins, defaults = process.get("origins", {}), config_defaults()
    changed = {key: values[key] for key in sorted(config.model_fields_set - _MANAGERS_OWN)}
    if not isinstance(changed.get("load_strategy"), str | None):
        del changed["load_strategy"]
    for key, origin in origins.items():
        if origin == "keyword":
            if key not in changed and key in defaults:
                changed[key] = _BEFORE.get(key, defaults[key])
        elif key in changed and origin != "default":
            _BEFORE[key] = process.get(key)
    if "mode" not in config.model_fields_set and "mode" not in _BEFORE:
        if (mode := _mode(values, {**process, **changed})) is not None:
            changed["mode"] = mode
    if changed and _native.configure(json.dumps(changed, separators=(",", ":"))) not in (0, None):
        raise RuntimeError("libflextensor.so does not take these options: the log says why")


def _mode(wanted: dict[str, Any], process: dict[str, Any]) -> str | None:
    """What `mode` means where this interface leaves it open: the budget if there is one, else the least latency. None
    where the process was given a mode."""
    if process.get("origins", {}).get("mode", "default") not in ("default", "keyword"):
        return None
    budgets = ("max_gpu_mem", "max_gpu_mem_fraction")
    has_budget = any(values.get(key) is not None for values in (wanted, process) for key in budgets)
    return "auto" if has_budget else "latency"
