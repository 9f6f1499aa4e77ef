//! Rules between options, checked when every source has been applied; and the refusal of options that have no effect
//! yet. Rules about one option alone are left to `value`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::choices::{MemoryMode, OffloadTiming, ProfileMode, TransferMode};
use crate::config::Config;
use crate::error::{ConfigError, Origin};
use crate::options::all;
use crate::row::{Row, Support};
use crate::value::{Raw, convert};

/// Who asks for the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The preloaded library.
    Library,
    /// The Python interface.
    Python,
}

/// Checks the rules in a fixed order.
///
/// # Errors
/// The first rule that does not hold, said about an option that was set.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    blocks(config)?;
    transfer_modes(config)?;
    if config.shm_enabled && config.shm_namespace.is_none() {
        return refuse(
            config,
            &["shm_enabled"],
            "shm_namespace must be set to a text that is not blank".to_owned(),
        );
    }
    budgets(config)
}

fn blocks(config: &Config) -> Result<(), ConfigError> {
    if config.num_blocks >= config.min_blocks {
        return Ok(());
    }
    let needs = format!(
        "num_blocks must be at least min_blocks; num_blocks is {}, min_blocks is {}",
        config.num_blocks, config.min_blocks
    );
    refuse(config, &["num_blocks", "min_blocks"], needs)
}

fn transfer_modes(config: &Config) -> Result<(), ConfigError> {
    let mode = config.transfer_mode.as_str();
    let block_mode =
        || format!("transfer_mode must be allocation_block_transfer or raw_block_transfer; it is {mode}");
    match config.transfer_mode {
        TransferMode::Strategy if config.external_compile => {
            refuse(config, &["external_compile"], block_mode())
        }
        TransferMode::Strategy if config.offload_timing != OffloadTiming::Off => {
            refuse(config, &["offload_timing"], block_mode())
        }
        TransferMode::AllocationBlockTransfer | TransferMode::RawBlockTransfer
            if config.profile_mode == ProfileMode::TorchFunction =>
        {
            refuse(config, &["profile_mode"], format!("transfer_mode must be strategy; it is {mode}"))
        }
        _ => Ok(()),
    }
}

fn budgets(config: &Config) -> Result<(), ConfigError> {
    if let (Some(budget), Some(fraction)) = (&config.max_gpu_mem, config.max_gpu_mem_fraction)
        && !budget.equals_fraction(fraction)
    {
        let needs =
            format!("max_gpu_mem_fraction is {fraction}; they are one budget, so set one of them to none");
        return refuse(config, &["max_gpu_mem"], needs);
    }
    let budget = ["max_gpu_mem", "max_gpu_mem_fraction"]
        .into_iter()
        .zip([config.max_gpu_mem.is_some(), config.max_gpu_mem_fraction.is_some()])
        .find_map(|(key, set)| set.then_some(key));
    match budget {
        Some(key) if matches!(config.mode, MemoryMode::Latency | MemoryMode::Fit) => {
            refuse(config, &["mode"], format!("{} means no budget, but {key} is set", config.mode.as_str()))
        }
        _ => Ok(()),
    }
}

/// An error about the first of these options that was set by anybody.
fn refuse(config: &Config, keys: &[&'static str], needs: String) -> Result<(), ConfigError> {
    let origin = |key: &str| config.origins.get(key).cloned().unwrap_or(Origin::Default);
    let key = keys.iter().copied().find(|key| origin(key) != Origin::Default).unwrap_or(keys[0]);
    let value = serde_json::to_value(config).map(|all| all[key].to_string()).unwrap_or_default();
    Err(ConfigError::Conflict { place: origin(key), key, value, needs })
}

/// Refuses values whose feature does not exist yet: ignoring them would be a lie.
///
/// # Errors
/// The first such value in the order of the option table.
pub(crate) fn refuse_unsupported(
    values: &BTreeMap<&'static str, Value>,
    origins: &BTreeMap<&'static str, Origin>,
    reader: Reader,
) -> Result<(), ConfigError> {
    for row in all() {
        let value = &values[row.key];
        let waits_for = match row.support {
            Support::Later(waits_for) if !is_default(row, value) => waits_for,
            Support::PythonTakes(waits_for) if reader == Reader::Library && !is_default(row, value) => {
                waits_for
            }
            Support::ValuesLater(refused, waits_for) if refused.iter().any(|word| value == word) => waits_for,
            _ => continue,
        };
        let place = origins.get(row.key).cloned().unwrap_or(Origin::Default);
        return Err(ConfigError::NotSupportedYet {
            place,
            key: row.key,
            value: value.to_string(),
            waits_for,
        });
    }
    Ok(())
}

/// Options that somebody changed although they change nothing here, each as one line. The Python interface has its own
/// moment to say so.
pub(crate) fn without_effect(values: &BTreeMap<&'static str, Value>, config: &Config) -> Vec<String> {
    let of_strategies = ["transfer_budget_scale", "num_blocks", "min_blocks"];
    let why = |row: &Row| match row.support {
        Support::PythonOnly => Some("outside the Python interface"),
        _ if config.load_strategy.is_none() && of_strategies.contains(&row.key) => {
            Some("without load_strategy: our planner chooses by itself")
        }
        _ => None,
    };
    let changed = all().filter(|row| !is_default(row, &values[row.key]));
    let lines = changed.filter_map(|row| {
        let origin = config.origins.get(row.key).unwrap_or(&Origin::Default);
        why(row).map(|why| format!("{origin}: {} has no effect {why}", row.key))
    });
    lines.collect()
}

fn is_default(row: &Row, value: &Value) -> bool {
    let default = row.default.map_or(Raw::None, |text| Raw::Text(text.to_owned()));
    convert(row, &default).as_ref() == Ok(value)
}
