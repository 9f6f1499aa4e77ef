//! The option table: one row for each option, and nothing about an option is said anywhere else.
//!
//! Parsing, error texts, `default.toml` and `docs/options.md` are made or checked from these rows. What a row can say is
//! left to `row`, how a text becomes a value to `value`, rules between two options to `rules`.

use crate::choices::{
    CheckMode, LogLevel, MemoryMode, OffloadTiming, PiecewisePrefetch, PinnedMemoryMode, ProfileMode, Replan,
    STRATEGY_NAMES, TransferMode,
};
use crate::row::{
    Group, Kind, Row,
    Support::{PythonOnly, PythonTakes, Supported},
    row, unset,
};

/// Every option of every group.
pub fn all() -> impl Iterator<Item = &'static Row> {
    GROUPS.iter().flat_map(|group| group.rows)
}

/// The row of a key, if there is such an option.
pub fn find(key: &str) -> Option<&'static Row> {
    all().find(|row| row.key == key)
}

const POSITIVE: Kind = Kind::Float { above: 0.0, inclusive: false, most: f64::INFINITY };
const NOT_NEGATIVE: Kind = Kind::Float { above: 0.0, inclusive: true, most: f64::INFINITY };
const FRACTION: Kind = Kind::Float { above: 0.0, inclusive: false, most: 1.0 };

const SHARED_SESSIONS: &str = "sessions that share host memory between processes";

/// The table.
pub static GROUPS: &[Group] = &[
    Group { title: "Core", rows: CORE },
    Group { title: "GPU memory", rows: GPU_MEMORY },
    Group { title: "Host memory", rows: HOST_MEMORY },
    Group { title: "Phases and profiles", rows: PHASES },
    Group { title: "Planning and transfers", rows: PLANNING },
    Group { title: "Messages and diagnosis", rows: DIAGNOSIS },
];

static CORE: &[Row] = &[
    row(
        "enabled",
        Kind::Bool,
        "true",
        "0.1.0",
        "Master switch. Off = the program runs exactly as without us.",
        Supported,
    ),
    row(
        "gpu_device",
        Kind::Int { min: 0 },
        "0",
        "0.1.0",
        "GPU that an offload manager works on.",
        PythonOnly,
    ),
    unset(
        "include_patterns",
        Kind::Patterns,
        "0.1.0",
        "Modules and parameters that may be streamed. Unset = repeated blocks are found automatically when the library is \
         preloaded, and [\"*\"] (one unit for each top-level child) in the Python interface.",
        Supported,
    ),
    row(
        "exclude_patterns",
        Kind::Patterns,
        "",
        "0.1.0",
        "Modules and parameters that stay on the GPU; applied after include_patterns.",
        Supported,
    ),
];

static GPU_MEMORY: &[Row] = &[
    unset(
        "max_gpu_mem",
        Kind::Budget,
        "0.1.0",
        "Most GPU memory that weights may hold, residents and ring together.",
        Supported,
    ),
    unset(
        "max_gpu_mem_fraction",
        FRACTION,
        "0.1.0",
        "The same budget as a fraction of the GPU's total memory. If max_gpu_mem is set too, both must say the same.",
        Supported,
    ),
    unset(
        "gpu_limit",
        Kind::Budget,
        "0.1.0",
        "Most GPU memory that the whole process may hold: weights, other allocations of the program, and 1/64 of the GPU (at most 512 MiB) for each context. What programs \
         are told of GPU memory is told within it, and weights make room before anything is refused.",
        Supported,
    ),
    row(
        "mode",
        Kind::Choice(MemoryMode::NAMES),
        "auto",
        "0.1.0",
        "auto = keep the budget if one is set, else fit; fit = everything stays on the GPU, and nothing is streamed, until memory runs short: then as many weights as must are, until memory is free again; latency = no budget, and what can be streamed without losing 1 % of time is.",
        Supported,
    ),
    row(
        "budget_while_loading",
        Kind::Bool,
        "false",
        "0.1.0",
        "Hold the budget already while models are loaded and learnt: what exceeds it lies in host memory, and the first forward is slow. Without it that happens only where the GPU itself has no room.",
        Supported,
    ),
    row(
        "host_embeddings",
        Kind::Bool,
        "true",
        "0.1.0",
        "Where weights are streamed, weights of nn.Embedding lie in host memory: kernels read the few rows that a forward needs over the link, and the table takes neither GPU memory nor a copy. Where forwards hide copies behind computing, it stays on the GPU until others come.",
        Supported,
    ),
    row(
        "managed_min_bytes",
        Kind::Bytes,
        "10MiB",
        "0.1.0",
        "Smallest driver allocation that is managed; smaller ones go to the driver untouched.",
        Supported,
    ),
    unset(
        "ring_bytes",
        Kind::Bytes,
        "0.1.0",
        "Size of the ring of shared GPU pages, instead of the planned one. For experts.",
        Supported,
    ),
];

static HOST_MEMORY: &[Row] = &[
    unset(
        "host_mem_limit",
        Kind::Amount,
        "0.1.0",
        "Most host memory that may be pinned for streamed weights; a percentage is of the machine's memory.",
        Supported,
    ),
    row(
        "pinned_memory",
        Kind::Bool,
        "true",
        "0.1.0",
        "Keep streamed weights in pinned host memory; off = pageable memory, several times slower to copy. What kernels read in host memory is pinned all the same: embeddings that lie there (host_embeddings), and weights that were loaded beyond the budget.",
        Supported,
    ),
    row(
        "pinned_memory_mode",
        Kind::Choice(PinnedMemoryMode::NAMES),
        "torch",
        "0.1.0",
        "How the Python interface pins a tensor. The runtime's own arena is the same in both modes.",
        Supported,
    ),
    row(
        "shm_enabled",
        Kind::Bool,
        "false",
        "0.1.0",
        "Keep streamed weights in POSIX shared memory.",
        PythonTakes(SHARED_SESSIONS),
    ),
    unset(
        "shm_namespace",
        Kind::Text,
        "0.1.0",
        "Base name of the shared memory; needed when shm_enabled is on.",
        PythonTakes(SHARED_SESSIONS),
    ),
    row(
        "shm_wait_timeout",
        NOT_NEGATIVE,
        "0.0",
        "0.1.0",
        "Seconds that a follower waits for the creator; 0 = no limit.",
        PythonTakes(SHARED_SESSIONS),
    ),
];

static PHASES: &[Row] = &[
    row(
        "discovery_iters",
        Kind::Int { min: 0 },
        "1",
        "0.1.0",
        "Passes that learn which weights are used, and in what order.",
        Supported,
    ),
    row(
        "profiling_iters",
        Kind::Int { min: 0 },
        "10",
        "0.1.0",
        "Passes that measure times; 0 counts as 1.",
        Supported,
    ),
    row(
        "skip_discovery",
        Kind::Bool,
        "false",
        "0.1.0",
        "Start with profiling; use is derived from the modules.",
        Supported,
    ),
    row(
        "replan",
        Kind::Choice(Replan::NAMES),
        "auto",
        "0.1.0",
        "auto = a new plan may be made when times or order drift; off = the first plan stays.",
        Supported,
    ),
    row(
        "profile_mode",
        Kind::Choice(ProfileMode::NAMES),
        "view",
        "0.1.0",
        "How weights are put in place while profiling. torch_function needs transfer_mode = strategy.",
        PythonOnly,
    ),
    unset(
        "profile_storage_dir",
        Kind::Text,
        "0.1.0",
        "Folder of the profile (profile.json): loaded when a model begins, which skips the learning passes, and saved when its \
         plan comes into force.",
        Supported,
    ),
    row("profile_read_only", Kind::Bool, "false", "0.1.0", "Load profiles, never save them.", Supported),
    row(
        "external_compile",
        Kind::Bool,
        "false",
        "0.1.0",
        "Use forwards that torch.compile can trace through. Needs a block transfer mode.",
        PythonOnly,
    ),
];

static PLANNING: &[Row] = &[
    unset(
        "load_strategy",
        Kind::Choice(STRATEGY_NAMES),
        "0.1.0",
        "Planning strategy by name; unset = our planner.",
        Supported,
    ),
    row(
        "transfer_budget_scale",
        POSITIVE,
        "1.0",
        "0.1.0",
        "Multiplies the time that a strategy by name grants to copies. Our planner needs no such number.",
        Supported,
    ),
    row(
        "transfer_mode",
        Kind::Choice(TransferMode::NAMES),
        "allocation_block_transfer",
        "0.1.0",
        "How the Python interface describes transfers; the two block modes are the same ring.",
        PythonOnly,
    ),
    row(
        "num_blocks",
        Kind::Int { min: 2 },
        "4",
        "0.1.0",
        "Most blocks (each as large as its largest layer) that a strategy by name plans with; unless it is set, the \
         strategy's own default counts. Our planner sizes the ring by itself.",
        Supported,
    ),
    row(
        "min_blocks",
        Kind::Int { min: 2 },
        "4",
        "0.1.0",
        "Fewest blocks that a strategy by name plans with; at most num_blocks. Unless it is set, the strategy's own \
         default counts.",
        Supported,
    ),
    row(
        "piecewise_prefetch",
        Kind::Choice(PiecewisePrefetch::NAMES),
        "warn",
        "0.1.0",
        "What happens when the end of a captured piece must wait for copies.",
        PythonTakes("piecewise graph capture"),
    ),
];

static DIAGNOSIS: &[Row] = &[
    row(
        "log",
        Kind::Choice(LogLevel::NAMES),
        "notice",
        "0.1.0",
        "Least severe message that is shown. notice adds one summary line to warnings and errors.",
        Supported,
    ),
    unset(
        "report",
        Kind::Text,
        "0.1.0",
        "File that the run report (JSON) is written to when the process ends.",
        Supported,
    ),
    row(
        "trace_every",
        Kind::Int { min: 0 },
        "0",
        "0.1.0",
        "One pass in so many is seen whole once weights stream: what each use computed, and how long it waited for copies, for the report. Such a pass is slower. 0 = only those that are observed anyway.",
        Supported,
    ),
    row(
        "check",
        Kind::Switch(CheckMode::NAMES),
        "off",
        "0.1.0",
        "Verify the runtime's own promises while running; slow. abort ends the process at what is found first.",
        Supported,
    ),
    row(
        "enable_diagnostics",
        Kind::Bool,
        "false",
        "0.1.0",
        "Log transfer, duration and block tables after planning.",
        PythonOnly,
    ),
    row(
        "enable_instrumentation",
        Kind::Bool,
        "false",
        "0.1.0",
        "Write the arguments of each component to instrumentation_output_dir.",
        PythonOnly,
    ),
    row(
        "instrumentation_output_dir",
        Kind::Text,
        ".flextensor/instrumentation",
        "0.1.0",
        "Folder for enable_instrumentation.",
        PythonOnly,
    ),
    row(
        "offload_timing",
        Kind::Choice(OffloadTiming::NAMES),
        "off",
        "0.1.0",
        "Measure transfer, compute and wait times of each pass. Needs a block transfer mode.",
        PythonOnly,
    ),
];

/// Names that were options once, with the version that dropped them. As variables and in files they only warn.
pub static REMOVED: &[(&str, &str)] = &[
    ("release_tensors", "0.2.0"),
    ("enable_direct_mode", "0.2.0"),
    ("enable_tracing", "0.2.0"),
    ("rearrange_transfers", "0.2.0"),
    ("compute_transfer_gap", "0.2.0"),
    ("enable_untraced_tensor_discovery", "0.2.0"),
    ("enable_module_tracker", "0.2.0"),
    ("warmup_iters", "0.4.0"),
    ("profile_iters", "0.4.0"),
];

/// The variable that names the configuration file.
pub const FILE_VARIABLE: &str = "FT_CONFIG_FILE";

/// Variables that begin so belong to the vLLM worker and are left to it.
pub const VLLM_PREFIX: &str = "FT_VLLM_";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::row::Support::ValuesLater;
    use crate::value::{Raw, convert};

    #[test]
    fn every_key_and_removed_name_stands_once() {
        let names: Vec<&str> =
            all().map(|row| row.key).chain(REMOVED.iter().map(|(name, _)| *name)).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn every_default_is_an_allowed_value() {
        for row in all() {
            if let Some(text) = row.default {
                assert!(convert(row, &Raw::Text(text.to_owned())).is_ok(), "{}", row.key);
            } else {
                assert!(row.optional, "{}", row.key);
            }
        }
    }

    #[test]
    fn doc_lines_are_sentences_on_one_line() {
        for row in all() {
            assert!(
                row.doc.ends_with('.') && !row.doc.contains('\n') && !row.doc.contains("  "),
                "{}",
                row.key
            );
        }
    }

    #[test]
    fn values_that_wait_are_values_of_the_option() {
        for row in all() {
            if let (ValuesLater(values, _), Kind::Choice(words)) = (row.support, row.kind) {
                assert!(values.iter().all(|value| words.contains(value)), "{}", row.key);
            }
        }
    }

    #[test]
    fn the_variable_is_the_key_in_upper_case() {
        assert_eq!(find("max_gpu_mem").map(Row::env_name).as_deref(), Some("FT_MAX_GPU_MEM"));
    }
}
