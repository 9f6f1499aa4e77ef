//! Weights that lie in no region, because their memory was not asked for by `cuMemAlloc`: they run as without us, and a line says that they cannot be streamed.
//! Small allocations are the driver's by choice, and not meant here.

use std::collections::BTreeMap;
use std::sync::Mutex;

use flextensor_core::units::Bytes;

use super::arena::arena;
use super::models::Named;
use super::{config, integrated};
use crate::account::{blocks, handles};
use crate::ffi::pointer;
use crate::log;

/// Where such memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Origin {
    /// Mappings of the program's own.
    Mapped,
    /// A pool, another process, or an allocation that was not seen.
    Elsewhere,
}

impl Origin {
    fn of(address: u64) -> Option<Self> {
        if handles::maps(address) {
            return Some(Origin::Mapped);
        }
        let known = arena().is_some_and(|arena| arena.contains(address)) || blocks::holds(address);
        (!known && pointer::place(address) == pointer::Place::Device).then_some(Origin::Elsewhere)
    }

    fn reason(self) -> &'static str {
        match self {
            Origin::Mapped => {
                "the program maps this memory itself, as expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF does"
            }
            Origin::Elsewhere => {
                "this memory does not come from cuMemAlloc, as with backend:cudaMallocAsync in PYTORCH_CUDA_ALLOC_CONF"
            }
        }
    }
}

/// A model was named, with these weights: says once for each origin how much of it cannot be streamed. Of an integrated GPU all is said.
pub(super) fn say(device: i32, total_memory: u64, named: &[Named]) {
    if integrated::is(device) {
        return;
    }
    let mut bytes: BTreeMap<Origin, BTreeMap<u64, u64>> = BTreeMap::new();
    for weight in named {
        if let Some(origin) = Origin::of(weight.address) {
            bytes.entry(origin).or_default().insert(weight.address, weight.bytes);
        }
    }
    for (origin, weights) in bytes {
        let sum: u64 = weights.values().sum();
        if sum >= config().managed_min_bytes && is_first(origin) {
            say_of(origin, sum, device, total_memory);
        }
    }
}

fn is_first(origin: Origin) -> bool {
    static SAID: Mutex<Vec<Origin>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let first = !said.contains(&origin);
    if first {
        said.push(origin);
    }
    first
}

fn say_of(origin: Origin, bytes: u64, device: i32, total_memory: u64) {
    let (config, number) = (config(), device.unsigned_abs());
    let reason = origin.reason();
    let bytes = Bytes(bytes);
    match config.max_gpu_mem_for(number, total_memory).or(config.gpu_limit_for(number, total_memory)) {
        Some(budget) => log::warning!(
            "{bytes} of weights on GPU {device} cannot be streamed, so the budget of {} is not held by them: {reason}",
            Bytes(budget)
        ),
        None => log::info!("{bytes} of weights on GPU {device} cannot make room for others: {reason}"),
    }
}
