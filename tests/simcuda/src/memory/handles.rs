//! Handles of `cuMemCreate`: counted references. A mapping keeps the memory, not the handle.

use super::physical::Physical;
use crate::locks::lock;
use crate::status::{Done, Status};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

struct Entry {
    object: Arc<Physical>,
    references: u32,
}

static HANDLES: Mutex<Option<HashMap<u64, Entry>>> = Mutex::new(None);

/// Handle numbers are the identity of the object, moved away from small numbers and from addresses.
const BASE: u64 = 0x5100_0000_0000_0000;

/// A handle with one more reference; handles of one object are equal.
pub(crate) fn retain(object: &Arc<Physical>) -> u64 {
    let handle = BASE + object.id;
    let mut handles = lock(&HANDLES);
    let entry = handles.get_or_insert_default().entry(handle);
    entry.or_insert_with(|| Entry { object: Arc::clone(object), references: 0 }).references += 1;
    handle
}

/// The memory behind a handle.
///
/// # Errors
/// `INVALID_VALUE` for a handle that is not alive.
pub(crate) fn object(handle: u64) -> Result<Arc<Physical>, Status> {
    let handles = lock(&HANDLES);
    let entry = handles.as_ref().and_then(|map| map.get(&handle)).ok_or(Status::INVALID_VALUE)?;
    Ok(Arc::clone(&entry.object))
}

/// Gives one reference back.
///
/// # Errors
/// `INVALID_VALUE` for a handle that is not alive.
pub(crate) fn release(handle: u64) -> Done {
    let last = {
        let mut handles = lock(&HANDLES);
        let map = handles.get_or_insert_default();
        let entry = map.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
        entry.references -= 1;
        if entry.references == 0 { map.remove(&handle) } else { None }
    };
    drop(last);
    Ok(())
}

/// Handles that were not released.
pub(crate) fn alive() -> usize {
    lock(&HANDLES).as_ref().map_or(0, HashMap::len)
}
