"""What TensorManager's constructor allows. Each check is a ValueError (or what is said) that names the argument, the value and what is
allowed."""

from typing import Literal, get_args

ProfileMode = Literal["view", "getter", "torch_function"]
"""How other loaders wired the model while it is timed; here weights stand in place in each of them."""
LoaderType = Literal["strategy", "raw_block_transfer", "allocation_block_transfer"]
"""As `transfer_mode` of OffloadConfig."""


def check(loader_type: str, profile_mode: str, blocks: int, fraction: float | None, use_shm: bool) -> None:
    """The public arguments; NotImplementedError for `use_shm`."""
    if loader_type not in get_args(LoaderType):
        raise ValueError(
            f"loader_type = {loader_type!r} is not allowed; allowed: {', '.join(get_args(LoaderType))}"
        )
    if profile_mode not in get_args(ProfileMode):
        raise ValueError(
            f"profile_mode = {profile_mode!r} is not allowed; allowed: {', '.join(get_args(ProfileMode))}"
        )
    if profile_mode == "torch_function" and loader_type != "strategy":
        raise ValueError(
            f"profile_mode='torch_function' is not allowed with loader_type={loader_type!r}; allowed: 'strategy'"
        )
    if blocks < 2:
        raise ValueError(f"blocks = {blocks} is not allowed; allowed: 2 or more")
    if fraction is not None and not 0 < fraction <= 1:
        raise ValueError(
            f"max_gpu_mem_fraction = {fraction} is not allowed; allowed: a number, above 0 and at most 1"
        )
    if use_shm:
        raise NotImplementedError(
            "use_shm=True is not supported yet: weights are not shared between processes"
        )


def check_private(
    loader_type: str, profile_mode: str, *, direct: bool, traces: bool, timing: str, prefetch: str
) -> None:
    """The arguments that begin with an underscore."""
    if not direct and loader_type != "strategy":
        raise ValueError(
            f"_direct_mode=False is not allowed with loader_type={loader_type!r}; allowed: 'strategy'"
        )
    if traces and profile_mode == "view":
        raise ValueError("_use_trace_tensor=True is not allowed with profile_mode='view'; allowed: 'getter'")
    if timing != "off":
        raise ValueError(f"_offload_timing={timing!r} is OffloadManager's; allowed here: 'off'")
    if prefetch not in ("off", "warn", "error"):
        raise ValueError(f"_piecewise_prefetch={prefetch!r} is not allowed; allowed: off, warn, error")
