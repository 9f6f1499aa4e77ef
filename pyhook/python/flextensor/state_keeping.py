"""The part of TensorManager that keeps states: profiles written and read, states restored and adopted."""

import contextlib
import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flextensor import state_adoption, state_handler
from flextensor.host_pinning import HostPinner
from flextensor.learnt_model import LearntModel
from flextensor.model_tensors import Model, ModelDict
from flextensor.state_adoption import StateTransitionPlan
from flextensor.state_handler import TensorManagerState


class StateKeeping:
    """A manager's state, and the ways that it comes and goes. What a state is, `state_handler` says."""

    loader_type: str
    device_gpu: torch.device
    _pinner: HostPinner
    _pinned_memory: bool
    _phase: str
    _session: Any
    _learnt: LearntModel | None

    def set_model(self, model: nn.Module | dict[str, object] | ModelDict) -> None:
        """The model to be learnt."""
        raise NotImplementedError

    def _forget_state(self) -> None:
        self._state: TensorManagerState | None = None
        self._restored = False
        self._profile_folder: str | None = None
        self._adopted: tuple[Model, StateTransitionPlan] | None = None

    def save_profile(self, profile_directory: str | os.PathLike[str]) -> None:
        """Writes profile.json into the folder. RuntimeError before there is anything to save."""
        state = self._require_state("save_profile")
        if self._session is not None and self._phase == "inference":
            with contextlib.suppress(RuntimeError):  # the runtime has no plan yet: its part is left out
                self._session.save_profile(os.fspath(profile_directory))
                state.additions = state_handler.load(profile_directory).additions
        state_handler.save(profile_directory, state)

    def load_state(self, profile_directory: str | os.PathLike[str]) -> TensorManagerState:
        """Reads profile.json, and does nothing with it. FileNotFoundError, or ValueError when it cannot be used."""
        return state_handler.load(profile_directory)

    def load_profile(self, profile_directory: str | os.PathLike[str], model: nn.Module) -> None:
        """`load_state` and `restore_state`; `initialize_warmup`, `initialize_profile` and `initialize_inference` follow, in this
        order."""
        state = self.load_state(profile_directory)
        self.restore_state(model, state)
        self._profile_folder = str(Path(profile_directory))

    def restore_state(
        self,
        model: nn.Module | dict[str, object] | ModelDict,
        state: TensorManagerState,
        *,
        load_from_shm: bool = False,
    ) -> None:
        """Takes over a saved state for `model`: names are found again, the state itself is left as it is. ValueError when it is of
        another model or loader."""
        if load_from_shm:
            raise NotImplementedError(
                "load_from_shm=True is not supported yet: weights are not shared between processes"
            )
        self.check_state(model, state)
        self.set_model(model)
        self._state = self._renumbered(copy.deepcopy(state))
        self._restored = True

    def check_state(self, model: Model, state: TensorManagerState) -> None:
        """ValueError when the state does not fit this manager, or is of another model."""
        if state.loader_type != self.loader_type:
            raise ValueError(
                f"the profile has loader_type {state.loader_type!r}, this manager {self.loader_type!r}"
            )
        state.check_model(model)

    def export_state(self) -> TensorManagerState:
        """A copy of the state that shares nothing with it. RuntimeError before there is one."""
        return copy.deepcopy(self._require_state("export_state"))

    @property
    def state_restored_from_profile(self) -> bool:
        """Whether the state comes from a profile."""
        return self._restored

    def plan_state_adoption(
        self,
        model: nn.Module,
        state: TensorManagerState,
        *,
        host_reserve_bytes: int = state_adoption.HOST_RESERVE_BYTES,
        gpu_reserve_bytes: int = state_adoption.GPU_RESERVE_BYTES,
    ) -> StateTransitionPlan:
        """How `model` gets into the placement of `state`; nothing is changed. Reserves are bytes that are left free. ValueError for reserves
        or states that are not allowed, RuntimeError when memory does not suffice (`state_adoption`)."""
        state_adoption.check_reserves(host_reserve_bytes, gpu_reserve_bytes)
        self.check_state(model, state)
        copies = self._pinned_memory and self._pinner.registry is None
        capacity = state_adoption.available(self.device_gpu, host_reserve_bytes, gpu_reserve_bytes)
        pins = self._pinned_memory and self.device_gpu.type == "cuda"
        return state_adoption.plan(model, state, self.device_gpu, capacity, pins=pins, pinning_copies=copies)

    def execute_state_adoption(self, model: nn.Module, plan: StateTransitionPlan) -> None:
        """Moves and pins what the plan says. RuntimeError, naming completed and current groups, when a step fails; what is done stays done.
        Live storages are replaced: before compiling and capturing. `restore_adopted_state` follows."""
        state_adoption.execute(model, plan, self._pinner)
        self._adopted = (model, plan)

    def restore_adopted_state(self, model: nn.Module, state: TensorManagerState) -> None:
        """`restore_state` for a model whose plan was executed. RuntimeError before that."""
        if self._adopted is None or self._adopted[0] is not model:
            raise RuntimeError("execute_state_adoption() of this model comes before restore_adopted_state()")
        self.restore_state(model, state)

    def _require_state(self, asked: str) -> TensorManagerState:
        if self._state is None:
            raise RuntimeError(
                f"{asked}() needs a profile or initialize_inference() before it; the manager has: {self._phase}"
            )
        return self._state

    def _renumbered(self, state: TensorManagerState) -> TensorManagerState:
        assert self._learnt is not None, "set_model() has just made it"
        return self._learnt.renumbered(state)
