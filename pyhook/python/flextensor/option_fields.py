"""The options as attributes, with their types: for readers and type checkers. Values, rules and defaults are asked of
the native module by `config`.

Made from config/src/options.rs; do not edit. `BLESS=1 cargo test -p flextensor-config` rewrites it.
"""

from typing import Any, Literal


class OptionFields:
    """One attribute for each option."""

    enabled: bool
    """Master switch. Off = the program runs exactly as without us."""

    gpu_device: int
    """GPU that an offload manager works on."""

    include_patterns: list[str]
    """Modules and parameters that may be streamed. Unset = repeated blocks are found automatically when the library is preloaded, and ["*"] (one unit for each top-level child) in the Python interface."""

    exclude_patterns: list[str]
    """Modules and parameters that stay on the GPU; applied after include_patterns."""

    max_gpu_mem: str | None
    """Most GPU memory that weights may hold, residents and ring together."""

    max_gpu_mem_fraction: float | None
    """The same budget as a fraction of the GPU's total memory. If max_gpu_mem is set too, both must say the same."""

    gpu_limit: str | None
    """Most GPU memory that the whole process may hold: weights, other allocations of the program, and 1/64 of the GPU (at most 512 MiB) for each context. What programs are told of GPU memory is told within it, and weights make room before anything is refused."""

    mode: Literal["auto", "fit", "latency"]
    """auto = keep the budget if one is set, else fit; fit = everything stays on the GPU, and nothing is streamed, until memory runs short: then as many weights as must are, until memory is free again; latency = no budget, and what can be streamed without losing 1 % of time is."""

    budget_while_loading: bool
    """Hold the budget already while models are loaded and learnt: what exceeds it lies in host memory, and the first forward is slow. Without it that happens only where the GPU itself has no room."""

    host_embeddings: bool
    """Where weights are streamed, weights of nn.Embedding lie in host memory: kernels read the few rows that a forward needs over the link, and the table takes neither GPU memory nor a copy. Where forwards hide copies behind computing, it stays on the GPU until others come."""

    managed_min_bytes: int
    """Smallest driver allocation that is managed; smaller ones go to the driver untouched."""

    ring_bytes: int | None
    """Size of the ring of shared GPU pages, instead of the planned one. For experts."""

    host_mem_limit: str | None
    """Most host memory that may be pinned for streamed weights; a percentage is of the machine's memory."""

    pinned_memory: bool
    """Keep streamed weights in pinned host memory; off = pageable memory, several times slower to copy. What kernels read in host memory is pinned all the same: embeddings that lie there (host_embeddings), and weights that were loaded beyond the budget."""

    pinned_memory_mode: Literal["torch", "host_register"]
    """How the Python interface pins a tensor. The runtime's own arena is the same in both modes."""

    shm_enabled: bool
    """Keep streamed weights in POSIX shared memory."""

    shm_namespace: str | None
    """Base name of the shared memory; needed when shm_enabled is on."""

    shm_wait_timeout: float
    """Seconds that a follower waits for the creator; 0 = no limit."""

    discovery_iters: int
    """Passes that learn which weights are used, and in what order."""

    profiling_iters: int
    """Passes that measure times; 0 counts as 1."""

    skip_discovery: bool
    """Start with profiling; use is derived from the modules."""

    replan: Literal["auto", "off"]
    """auto = a new plan may be made when times or order drift; off = the first plan stays."""

    profile_mode: Literal["view", "getter", "torch_function"]
    """How weights are put in place while profiling. torch_function needs transfer_mode = strategy."""

    profile_storage_dir: str | None
    """Folder of the profile (profile.json): loaded when a model begins, which skips the learning passes, and saved when its plan comes into force."""

    profile_read_only: bool
    """Load profiles, never save them."""

    external_compile: bool
    """Use forwards that torch.compile can trace through. Needs a block transfer mode."""

    load_strategy: Any
    """Planning strategy by name; unset = our planner."""

    transfer_budget_scale: float
    """Multiplies the time that a strategy by name grants to copies. Our planner needs no such number."""

    transfer_mode: Literal["allocation_block_transfer", "raw_block_transfer", "strategy"]
    """How the Python interface describes transfers; the two block modes are the same ring."""

    num_blocks: int
    """Most blocks (each as large as its largest layer) that a strategy by name plans with; unless it is set, the strategy's own default counts. Our planner sizes the ring by itself."""

    min_blocks: int
    """Fewest blocks that a strategy by name plans with; at most num_blocks. Unless it is set, the strategy's own default counts."""

    piecewise_prefetch: Literal["off", "warn", "error"]
    """What happens when the end of a captured piece must wait for copies."""

    log: Literal["error", "warn", "notice", "info", "debug"]
    """Least severe message that is shown. notice adds one summary line to warnings and errors."""

    report: str | None
    """File that the run report (JSON) is written to when the process ends."""

    trace_every: int
    """One pass in so many is seen whole once weights stream: what each use computed, and how long it waited for copies, for the report. Such a pass is slower. 0 = only those that are observed anyway."""

    check: Literal["off", "on", "abort"]
    """Verify the runtime's own promises while running; slow. abort ends the process at what is found first."""

    enable_diagnostics: bool
    """Log transfer, duration and block tables after planning."""

    enable_instrumentation: bool
    """Write the arguments of each component to instrumentation_output_dir."""

    instrumentation_output_dir: str
    """Folder for enable_instrumentation."""

    offload_timing: Literal["off", "eager", "cuda_graph"]
    """Measure transfer, compute and wait times of each pass. Needs a block transfer mode."""
