//! The configuration of a run as typed values. How it comes about is left to `load`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};

use crate::choices::{
    CheckMode, LogLevel, MemoryMode, OffloadTiming, PiecewisePrefetch, PinnedMemoryMode, ProfileMode, Replan,
    TransferMode,
};
use crate::error::Origin;
use crate::patterns::{EntryError, Selection};
use crate::size::{Amount, Budget, part_of};

/// Every option with its value. Fields are named as the keys; docs/options.md says what they do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the option table documents the fields, and docs/options.md is made from it")]
pub struct Config {
    pub enabled: bool,
    pub gpu_device: u32,
    /// `None` = nobody chose.
    pub include_patterns: Option<Vec<String>>,
    pub exclude_patterns: Vec<String>,
    pub max_gpu_mem: Option<Budget>,
    pub max_gpu_mem_fraction: Option<f64>,
    pub gpu_limit: Option<Budget>,
    pub mode: MemoryMode,
    pub budget_while_loading: bool,
    pub host_embeddings: bool,
    /// Bytes.
    pub managed_min_bytes: u64,
    /// Bytes.
    pub ring_bytes: Option<u64>,
    pub host_mem_limit: Option<Amount>,
    pub pinned_memory: bool,
    pub pinned_memory_mode: PinnedMemoryMode,
    pub shm_enabled: bool,
    pub shm_namespace: Option<String>,
    /// Seconds.
    pub shm_wait_timeout: f64,
    pub discovery_iters: u32,
    pub profiling_iters: u32,
    pub skip_discovery: bool,
    pub replan: Replan,
    pub profile_mode: ProfileMode,
    pub profile_storage_dir: Option<PathBuf>,
    pub profile_read_only: bool,
    pub external_compile: bool,
    pub load_strategy: Option<String>,
    pub transfer_budget_scale: f64,
    pub transfer_mode: TransferMode,
    pub num_blocks: u32,
    pub min_blocks: u32,
    pub piecewise_prefetch: PiecewisePrefetch,
    pub log: LogLevel,
    pub report: Option<PathBuf>,
    /// Passes.
    pub trace_every: u32,
    pub check: CheckMode,
    pub enable_diagnostics: bool,
    pub enable_instrumentation: bool,
    pub instrumentation_output_dir: PathBuf,
    pub offload_timing: OffloadTiming,
    /// Where each value came from, by key.
    #[serde(skip_deserializing, serialize_with = "origin_texts")]
    pub origins: BTreeMap<&'static str, Origin>,
    /// Lines that the user should see once.
    #[serde(skip_deserializing)]
    pub warnings: Vec<String>,
}

fn origin_texts<S: Serializer>(
    origins: &BTreeMap<&'static str, Origin>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(origins.iter().map(|(key, origin)| (key, origin.to_string())))
}

impl Config {
    /// Bytes that weights may hold on a GPU with `total_bytes` of memory; `None` = no budget. Not capped at the total.
    pub fn max_gpu_mem_for(&self, device: u32, total_bytes: u64) -> Option<u64> {
        match (&self.max_gpu_mem, self.max_gpu_mem_fraction) {
            (Some(budget), _) => budget.amount(device).map(|amount| amount.of(total_bytes)),
            (None, fraction) => fraction.map(|fraction| part_of(total_bytes, fraction)),
        }
    }

    /// Bytes that the process may hold on a GPU with `total_bytes` of memory; `None` = no limit. Not capped at the total.
    pub fn gpu_limit_for(&self, device: u32, total_bytes: u64) -> Option<u64> {
        self.gpu_limit.as_ref().and_then(|limit| limit.amount(device)).map(|amount| amount.of(total_bytes))
    }

    /// Bytes of host memory that may be pinned on a machine with `total_bytes`; `None` = no limit.
    pub fn host_mem_limit_for(&self, total_bytes: u64) -> Option<u64> {
        self.host_mem_limit.map(|amount| amount.of(total_bytes))
    }

    /// What a strategy by name takes as parameters, under the names of its parameters: only what somebody set, because
    /// every strategy has defaults of its own.
    pub fn strategy_options(&self) -> Vec<(&'static str, f64)> {
        let options = [
            ("transfer_budget_scale", "scale", self.transfer_budget_scale),
            ("num_blocks", "n_blocks", f64::from(self.num_blocks)),
            ("min_blocks", "min_blocks", f64::from(self.min_blocks)),
        ];
        let is_set = |key: &str| self.origins.get(key).is_some_and(|origin| *origin != Origin::Default);
        options.into_iter().filter(|(key, ..)| is_set(key)).map(|(_, name, value)| (name, value)).collect()
    }

    /// The patterns, ready to be applied.
    ///
    /// # Errors
    /// None for a configuration that was loaded: loading has checked every entry. Values set afterwards may fail.
    pub fn selection(&self) -> Result<Selection, EntryError> {
        Selection::parse(self.include_patterns.as_deref(), &self.exclude_patterns)
    }

    /// One JSON object: every key with its value (sizes beyond plain bytes as text), `origins` (key to text) and
    /// `warnings` (list of texts).
    pub fn to_json(&self) -> String {
        // Every field is a plain value with text keys, so there is nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}
