//! Whether the parts of a schema-3 profile agree: ids with names, labels with sizes and blocks, times with what a time can be.

use super::error::bad;
use super::{Saved, SavedError, SavedTensor, id_text};
use std::collections::BTreeSet;

/// Checks everything outside the additions.
pub(super) fn check(file: &str, saved: &Saved) -> Result<(), SavedError> {
    let known: BTreeSet<&str> = saved.stats.iter().map(|stat| stat.label.as_str()).collect();
    if known.len() != saved.stats.len() {
        return bad(file, "stats", "a list with a label twice", "every label once");
    }
    for stat in &saved.stats {
        time(file, &format!("stats[{}].duration", stat.label), stat.duration)?;
        tensors(file, saved, &format!("stats[{}].tensors", stat.label), &stat.tensors)?;
    }
    let label = |field: &str, label: &str| {
        if known.contains(label) {
            return Ok(());
        }
        bad(file, field, format!("`{label}`"), "labels that stand in `stats`")
    };
    for (by, computes) in &saved.transfer_to_compute_map {
        label("transfer_to_compute_map", by)?;
        label("transfer_to_compute_map", computes)?;
    }
    for (strategy, field) in
        [(&saved.load_strategy, "load_strategy"), (&saved.release_strategy, "release_strategy")]
    {
        for (by, list) in strategy {
            label(field, by)?;
            tensors(file, saved, &format!("{field}[{by}]"), list)?;
        }
    }
    for (by, list) in &saved.load_strategy {
        let loaded = list.iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.size_bytes));
        let size = saved.label_to_size_map.get(by).copied().unwrap_or(0);
        if loaded > size {
            let allowed = format!("at least the {loaded} bytes that `load_strategy` brings in there");
            return bad(file, format!("label_to_size_map[{by}]"), size, allowed);
        }
    }
    blocks(file, saved)?;
    views(file, saved)
}

fn blocks(file: &str, saved: &Saved) -> Result<(), SavedError> {
    for (label, block) in &saved.label_to_block_id {
        let field = format!("label_to_block_id[{label}]");
        let Some(&room) = saved.block_sizes.get(&block.to_string()) else {
            return bad(file, field, block, "a block of `block_sizes`");
        };
        let Some(&size) = saved.label_to_size_map.get(label) else {
            return bad(file, field, block, "labels that stand in `label_to_size_map`");
        };
        if size > room {
            return bad(
                file,
                format!("block_sizes[{block}]"),
                room,
                format!("at least {size}, the size of `{label}`"),
            );
        }
    }
    for (block, labels) in &saved.allocation_ordered {
        for label in labels {
            let found = saved.label_to_block_id.get(label).map(u64::to_string);
            if found.as_ref() != Some(block) {
                let allowed = "the labels that `label_to_block_id` gives this block";
                return bad(file, format!("allocation_ordered[{block}]"), format!("`{label}`"), allowed);
            }
        }
    }
    Ok(())
}

fn views(file: &str, saved: &Saved) -> Result<(), SavedError> {
    for id in &saved.view_tensors_ids {
        if !saved.tensor_id_to_name_map.contains_key(&id_text(id)) {
            return bad(file, "view_tensors_ids", id, "ids of `tensor_id_to_name_map`");
        }
    }
    Ok(())
}

fn tensors(file: &str, saved: &Saved, field: &str, list: &[SavedTensor]) -> Result<(), SavedError> {
    for tensor in list {
        let id = id_text(&tensor.tensor_id);
        match saved.tensor_id_to_name_map.get(&id) {
            Some(name) if *name == tensor.name => {}
            Some(name) => {
                return bad(
                    file,
                    format!("{field}[{id}].name"),
                    format!("`{}`", tensor.name),
                    format!("`{name}`"),
                );
            }
            None => return bad(file, format!("{field}.tensor_id"), id, "ids of `tensor_id_to_name_map`"),
        }
        time(file, &format!("{field}[{id}].load_time_ms"), tensor.load_time_ms)?;
    }
    Ok(())
}

/// Milliseconds are finite and not negative.
pub(super) fn time(file: &str, field: &str, ms: f64) -> Result<(), SavedError> {
    if ms.is_finite() && ms >= 0.0 {
        return Ok(());
    }
    bad(file, field, ms, "milliseconds, 0 or more")
}
