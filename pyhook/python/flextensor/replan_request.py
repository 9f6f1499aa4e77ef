"""Whether an offloaded model may be measured anew now, and the request for it. How far that has come is counted by `replan`."""

import logging

from flextensor.managed_model import ManagedModel
from flextensor.phases import OffloadPhase
from flextensor.replan import WARM_FORWARDS

_LOG = logging.getLogger("flextensor")


def why_not(managed: ManagedModel | None) -> str | None:
    """Why no replan may be requested now; None if one may."""
    if managed is None or not managed.has_compiled_units:
        return "no model is offloaded whose units are compiled"
    if managed.session is None:
        return "offloading is switched off, or there is no GPU"
    if not managed.allow_replan:
        return "the model was offloaded with allow_strategy_replan=False"
    if managed.phase is not OffloadPhase.INFERENCE:
        return f"the model is in phase {managed.phase.name}"
    if not managed.session.may_replan(managed.config):
        return "replan is off: the first plan stays"
    return "a replan is in progress" if managed.replan.is_in_progress else None


def request(managed: ManagedModel | None, *, manual: bool) -> int:
    """Begins a replan; returns the forwards to drive (`manual`: replays), 0 with a WARNING if none may be requested."""
    why = why_not(managed)
    if why is None and managed is not None and manual:
        if managed.config.offload_timing != "cuda_graph":
            why = "manual_update_state=True needs offload_timing='cuda_graph'"
        elif managed.compile_fn is not None:
            why = "manual_update_state=True needs times of replays, and units of compile_fn are not timed"
    if why is not None or managed is None:
        _LOG.warning("request_strategy_replan() is ignored: %s", why)
        return 0
    forwards = max(managed.config.profiling_iters, 1) + (0 if manual else WARM_FORWARDS)
    return managed.replan.request(forwards, managed.plans_so_far() or 0, manual=manual)
