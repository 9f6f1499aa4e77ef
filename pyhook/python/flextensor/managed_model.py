"""One offloaded model: its units, its phases, its place in the runtime, its times, its compiled parts.

`offload_manager` gives programs the interface; here is what one `offload()` made and one `release()` takes away.
"""

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from flextensor import compiling, entered_inference, offload_timing, units
from flextensor.compiled_offload import (
    bump_dynamo_limits_for_compiled_offload,
    compile_unit,
    warn_if_compiled_whole,
)
from flextensor.config import OffloadConfig
from flextensor.model_proxy import Binding
from flextensor.phases import Counted, Followed, OffloadPhase, Settings
from flextensor.replan import WARM_FORWARDS, Replan
from flextensor.session import Session, require_gpu
from flextensor.unit_marks import UnitMarks, hook_root

_LOG = logging.getLogger("flextensor")
# Timed forwards before a program that compiles by itself does so: its times are taken again afterwards.
_SEED_FORWARDS = 3

CompileFn = Callable[[nn.Module], nn.Module]


class ManagedModel:
    """What one `offload()` made of a model."""

    def __init__(
        self,
        model: nn.Module,
        config: OffloadConfig,
        name: str,
        *,
        compile_fn: CompileFn | None = None,
        profile: str | None = None,
        allow_replan: bool = True,
        binding: Binding | None = None,
    ) -> None:
        """`binding`: that of the proxies which stand for the model already. What raises leaves the model as it was."""
        self.model = model
        self.config = config
        self.name = name
        self.compile_fn = compile_fn
        self.allow_replan = allow_replan
        self.binding = binding or Binding(model)
        self.binding.model = model
        self.replan = Replan()
        self.session: Session | None = None
        self._lock = threading.RLock()
        self._units = units.find(model, config.include_patterns or [], config.exclude_patterns)
        self._replaced: list[tuple[str, nn.Module, nn.Module]] = []
        self._manual_pass = False
        self._strategy: Any = None
        self._forwards = 0
        self._handles: list[Any] = []
        self.marks = UnitMarks(self.describe, None)
        try:
            self._begin(profile)
        except BaseException:
            self.release(preserve_model=True)
            raise

    def _begin(self, profile: str | None) -> None:
        model, config = self.model, self.config
        has_gpu = config.enabled and require_gpu(config)
        settings = self._settings()
        # First what may be refused, then what would have to be undone.
        measures = config.offload_timing != "off" or config.enable_diagnostics
        self.timing = self._collector() if has_gpu and measures else None
        if has_gpu:
            self.session = Session(model, config, settings, profile)
            self.course: Counted = Followed(settings, self.session.models)
            self._apply_strategy(self.session)
        else:
            self.course = Counted(settings, enabled=config.enabled)
        self.marks = UnitMarks(self.describe, self.timing)
        self._phase = self.course.phase
        if config.enabled:
            self.marks.put_on(self._units)
            self._phase_changed()
        self._handles = hook_root(model, self._forward_begins, self._forward_ended)

    # What programs ask for.

    @property
    def phase(self) -> OffloadPhase:
        """The phase; one that was reached stays reached."""
        with self._lock:
            if self._phase is not OffloadPhase.INFERENCE and (now := self.course.phase) is not self._phase:
                self._phase = now
                self._phase_changed()
            return self._phase

    @property
    def replans(self) -> bool:
        """Whether times are to be taken again after the program was compiled."""
        if self.compile_fn is not None:
            return self.config.profile_mode != "view"
        return self.config.external_compile

    @property
    def eager_profiling_iters(self) -> int:
        """Timed forwards of PROFILING."""
        return _SEED_FORWARDS if self.replans else max(self.config.profiling_iters, 1)

    @property
    def is_compiled_by_program(self) -> bool:
        """Whether the program compiles the units itself, as it said when it offloaded the model."""
        return self.config.external_compile and self.compile_fn is None

    @property
    def has_compiled_units(self) -> bool:
        """Whether units are compiled, by `compile_fn` or by the program."""
        return self.compile_fn is not None or self.config.external_compile

    @property
    def compiles_while_profiling(self) -> bool:
        """Whether PROFILING times compiled units."""
        return self.compile_fn is not None and not self.replans

    def unit_list(self) -> units.Named:
        """The units as they are in the tree now."""
        now = {path: made for path, _, made in self._replaced}
        return tuple((path, now.get(path, unit)) for path, unit in self._units)

    def describe(self) -> str:
        """Where the model stands, for a line in the log."""
        return f"manager {self.name!r}, phase {self._phase.name}, forward {self._forwards + 1}"

    # What happens to it.

    def update_state(self, replay_generation: int) -> None:
        """One iteration, said by the program: the end of a pass of manual blocks, or a step of a replan."""
        with self._lock:
            if self.replan.is_in_progress:
                if self.replan.manual and not self.update_timing(replay_generation):
                    return
                self._replan_step()
                return
            if self.session is None:
                self.course.forward_ended()
            elif self._manual_pass:
                self._manual_pass = False
                self.session.end_pass()
            self.look_at_phase()
            self._forwards += 1

    def update_timing(self, replay_generation: int) -> bool:
        """Publishes the times of the replay that ended last."""
        return self.timing is not None and self.timing.update(replay_generation)

    def block_enters(self, label: str) -> None:
        """A manual block begins; outside a forward of the model the first one begins a pass."""
        from flextensor import _native

        self.marks.enter(label)
        if self.session is not None and not self._manual_pass and not _native.inside_a_pass():
            self._manual_pass = True
            self.session.begin_pass()

    def block_leaves(self, label: str) -> None:
        """A manual block has ended."""
        self.marks.leave(label)

    def release(self, *, preserve_model: bool) -> None:
        """Takes everything away again."""
        self.binding.model = None
        for handle in self._handles:
            handle.remove()
        self.marks.take_all_off()
        for path, unit, _ in self._replaced:
            units.replace(self.model, path, unit)
        if self.session is not None:
            if self._manual_pass:
                self._manual_pass = False
                self.session.end_pass()
            self.session.close(preserve_model=preserve_model)
        if not preserve_model and self.config.enabled:
            self.model.forward = _unusable

    def _forward_begins(self) -> None:
        self._manual_pass = False
        if self.marks.learning:
            self.marks.start_over()

    def _forward_ended(self) -> None:
        if compiling.is_tracing():
            return
        with self._lock:
            before = self._phase
            if self.session is None:
                self.course.forward_ended()
            if self.timing is not None and before is not OffloadPhase.DISCOVERY:
                self._pass_was_timed(self.timing, learning=before is OffloadPhase.PROFILING)
            if self.replan.is_in_progress and not self.replan.manual:
                self._replan_step()
            self.look_at_phase()
            self._forwards += 1
            if before is OffloadPhase.INFERENCE and self._strategy is not None:
                self._ask_strategy(self._strategy)

    def _pass_was_timed(self, timing: offload_timing.OffloadTimingCollector, *, learning: bool) -> None:
        if learning and self.course.is_suspended:
            timing.drop_pass()
        else:
            timing.pass_ended(learning=learning)

    def clear_durations(self) -> None:
        """Forgets the times of PROFILING. In INFERENCE those that waiting is told by stay: no more can be taken."""
        with self._lock:
            self.course.clear()
            if self.timing is not None and self._phase is not OffloadPhase.INFERENCE:
                self.timing.forget_profiled()

    def look_at_phase(self) -> OffloadPhase:
        """The phase; does what a new one asks for."""
        return self.phase

    def _phase_changed(self) -> None:
        """The phase is new: units are compiled where it is time to, and what only learning needs goes."""
        if not self.config.enabled:
            return
        reached = self._phase
        warn_if_compiled_whole(self.model, reached.name)
        ready = reached is OffloadPhase.INFERENCE or (
            reached is OffloadPhase.PROFILING and self.compiles_while_profiling
        )
        if ready and self.compile_fn is not None and not self._replaced:
            self._compile(self.compile_fn)
        if reached is OffloadPhase.INFERENCE:
            self.marks.learning = False
            entered_inference.say(self)
            if self.config.offload_timing == "off":
                self.timing = None
                self.marks.take_all_off()

    def _compile(self, compile_fn: CompileFn) -> None:
        bump_dynamo_limits_for_compiled_offload(len(self._units))
        for path, unit in self._units:
            self.marks.take_off(path)
            if self.session is not None:
                self.session.leave_out(unit)
            made = compile_unit(compile_fn, path, unit)
            if made is not unit:
                units.replace(self.model, path, made)
            self._replaced.append((path, unit, made))

    def plans_so_far(self) -> int | None:
        """New plans that the runtime has put in force; None where there is no runtime."""
        return self.session.report().get("counters", {}).get("replans") if self.session else None

    def _replan_step(self) -> None:
        if self.replan.warmed_up() and self.session is not None:
            self.session.ask_for_plan()
        if self.replan.forward_ended():
            self.replan.finish(self.plans_so_far())

    def _apply_strategy(self, session: Session) -> None:
        """A strategy that is an object chooses what is streamed; one by name is the library's to ask."""
        if self.config.load_strategy is not None and not isinstance(self.config.load_strategy, str):
            from flextensor.applied_strategy import AppliedStrategy

            self._strategy = AppliedStrategy(self.config.load_strategy)
            self._strategy.model_named(session.models())

    def _ask_strategy(self, strategy: Any) -> None:
        """After the first forward in INFERENCE; what the strategy raises reaches the program, once."""
        session = self.session
        if session is None:
            return
        names = [name for name, _ in self.model.named_parameters(remove_duplicate=False)]
        self._strategy = None
        strategy.forward_ended(session.models(), names, session.save_profile, session.budget_bytes())

    def _settings(self) -> Settings:
        config = self.config
        if config.enabled and config.skip_discovery and not self._units:
            _LOG.warning("skip_discovery=True, but there is no unit whose tensors are known: DISCOVERY runs")
        return Settings(
            config.discovery_iters,
            self.eager_profiling_iters,
            skip_discovery=config.skip_discovery,
            compile_warmups=WARM_FORWARDS if self.compiles_while_profiling else 0,
            owners_known=bool(self._units),
        )

    def _collector(self) -> offload_timing.OffloadTimingCollector:
        replayed = self.config.offload_timing == "cuda_graph"
        return offload_timing.OffloadTimingCollector(make_clock(replayed), self._transfers, replayed=replayed)

    def _transfers(self) -> dict[str, float]:
        """Milliseconds that the plan copies for each unit, at the speed of the link."""
        if self.session is None:
            return {}
        report = self.session.report()
        speed = next((plan["link_gb_per_s"] for plan in report.get("plans", ())), 0.0)
        spent: dict[str, float] = {}
        for placed in report.get("placements", ()):
            path = (placed.get("owner") or "").split(" ")[0]
            label = next((label for label, _ in self._units if f"{path}.".startswith(f"{label}.")), None)
            if label is not None and speed > 0:
                spent[label] = spent.get(label, 0.0) + placed["streamed_bytes"] / speed / 1e6
        return spent


def make_clock(replayed: bool) -> Any:
    """What times are taken with. Tests on machines without a GPU put their own clock here."""
    return offload_timing.CudaClock(external=replayed)


def _unusable(*_arguments: Any, **_keywords: Any) -> Any:
    raise RuntimeError("this model was released with preserve_model=False: its weights are gone")


compiling.exempt(ManagedModel)
compiling.exempt(sys.modules[__name__])
