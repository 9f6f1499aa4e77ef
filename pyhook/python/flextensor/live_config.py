"""What a new configuration cannot change of a model that is offloaded already. What options do is left to `config` and to the library."""

import warnings

from flextensor.config import OffloadConfig, callers_level

# What offload() takes once; changes reach the next offload().
_TAKEN_ONCE = (
    "enabled", "enable_diagnostics", "exclude_patterns", "gpu_device", "include_patterns", "load_strategy",
    "max_gpu_mem_fraction", "min_blocks", "num_blocks", "offload_timing", "piecewise_prefetch", "pinned_memory",
    "pinned_memory_mode", "profile_mode", "shm_enabled", "transfer_budget_scale", "transfer_mode",
)  # fmt: skip


def say_what_stays(live: OffloadConfig, config: OffloadConfig) -> None:
    """A UserWarning names the options of the live model that stay as they are; RuntimeError if `skip_discovery` differs."""
    if config.skip_discovery != live.skip_discovery:
        raise RuntimeError(
            f"skip_discovery cannot change from {live.skip_discovery} to {config.skip_discovery} after "
            "offload(): release() the model and offload() it again"
        )
    kept = [key for key in _TAKEN_ONCE if getattr(config, key) != getattr(live, key)]
    if kept:
        warnings.warn(
            f"{', '.join(kept)} of the offloaded model stay as they were at offload(): release() it and "
            "offload() it again for the new values",
            UserWarning,
            stacklevel=callers_level(),
        )
