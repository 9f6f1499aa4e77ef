"""The phases of one managed model, as a manager sees them.

Counting is core's (`_native.Phases`) where no runtime runs the model: what is switched off, and machines without a
GPU. A model that the runtime knows has the runtime's phase, and is told there what is suspended. When a forward has
ended is said by `offload_manager`.
"""

from collections.abc import Callable
from enum import Enum

from flextensor import _native

_SUSPEND, _RESUME, _CLEAR = range(3)


class OffloadPhase(Enum):
    """Where a managed model stands; within a run it only moves forward."""

    NOT_INITIALIZED = "not_initialized"
    DISCOVERY = "discovery"
    PROFILING = "profiling"
    INFERENCE = "inference"


# As ft_phase numbers them.
_BY_CODE = tuple(OffloadPhase)


class Counted:
    """Phases by the number of forwards. `enabled=False`: they advance, and suspending, resuming and clearing do
    nothing."""

    def __init__(self, settings: "Settings", *, enabled: bool = True) -> None:
        self._phases = _native.Phases(
            settings.discovery_iters,
            settings.profiling_iters,
            skip_discovery=settings.skip_discovery,
            compile_warmups=settings.compile_warmups,
            enabled=enabled,
        )
        self._phases.ready(settings.owners_known)

    @property
    def phase(self) -> OffloadPhase:
        """The phase now."""
        return _BY_CODE[self._phases.phase]

    @property
    def iterations(self) -> int:
        """Counted forwards of this phase."""
        return self._phases.iterations

    @property
    def skip_honored(self) -> bool:
        """Whether DISCOVERY was skipped."""
        return bool(self._phases.skip_honored)

    @property
    def iters_before_inference(self) -> int:
        """Forwards from the first one to INFERENCE."""
        return self._phases.iters_before_inference

    @property
    def is_suspended(self) -> bool:
        """Whether recording of times is suspended."""
        return self._phases.is_suspended

    def forward_ended(self) -> None:
        """One more forward."""
        self._phases.pass_end()

    def suspend(self) -> None:
        """Suspensions are counted."""
        self._phases.suspend()

    def resume(self) -> None:
        """Undoes one suspension; RuntimeError if there is none."""
        self._phases.resume()

    def clear(self) -> None:
        """Forgets times; the count of forwards stays."""
        self._phases.clear()


class Followed(Counted):
    """The phases of a model of the runtime, which counts its passes itself."""

    def __init__(self, settings: "Settings", models: Callable[[], list[int]]) -> None:
        """`models` = the ids that the model has in the runtime now; they change when its weights are replaced."""
        super().__init__(settings)
        self._models = models
        self._last = OffloadPhase.DISCOVERY

    @property
    def phase(self) -> OffloadPhase:
        """The runtime's phase; its last one where the model is gone there."""
        for model in self._models()[:1]:
            code = _native.model_phase(model)
            if 0 <= code < len(_BY_CODE):
                self._last = _BY_CODE[code]
        return self._last

    def suspend(self) -> None:
        """Suspensions are counted, here for `is_suspended` and in the runtime."""
        super().suspend()
        self._tell(_SUSPEND)

    def resume(self) -> None:
        """Undoes one suspension; RuntimeError if there is none."""
        super().resume()
        self._tell(_RESUME)

    def clear(self) -> None:
        """Forgets times; the count of forwards stays."""
        super().clear()
        self._tell(_CLEAR)

    def _tell(self, what: int) -> None:
        for model in self._models():
            _native.model_profiling(model, what)


class Settings:
    """The counts of one offload.

    `compile_warmups` = forwards at the start of PROFILING in which compilers warm up, neither timed nor counted;
    `owners_known` = which tensors belong to what is known without running, so that DISCOVERY can be skipped.
    """

    __slots__ = ("compile_warmups", "discovery_iters", "owners_known", "profiling_iters", "skip_discovery")

    def __init__(
        self,
        discovery_iters: int,
        profiling_iters: int,
        *,
        skip_discovery: bool = False,
        compile_warmups: int = 0,
        owners_known: bool = True,
    ) -> None:
        self.discovery_iters = discovery_iters
        self.profiling_iters = profiling_iters
        self.skip_discovery = skip_discovery
        self.compile_warmups = compile_warmups
        self.owners_known = owners_known

    @property
    def skips(self) -> bool:
        """Whether DISCOVERY will be skipped."""
        return self.skip_discovery and self.owners_known
