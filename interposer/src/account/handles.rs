//! Physical memory that the program makes itself (`cuMemCreate`, expandable segments): it lives until its last handle is released and its last mapping is gone.
//! Memory that came from elsewhere (imported handles) is not counted: it is somebody else's.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::give_back;

struct Object {
    device: i32,
    bytes: u64,
    /// Handles and mappings that keep it alive.
    holds: u64,
}

#[derive(Default)]
struct Known {
    next: u64,
    objects: BTreeMap<u64, Object>,
    /// By handle: its object, and how often it was given out.
    handles: BTreeMap<u64, (u64, u64)>,
    /// By address: bytes and object.
    mappings: BTreeMap<u64, (u64, u64)>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

fn known<T>(work: impl FnOnce(&mut Known) -> T) -> T {
    work(KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert_default())
}

impl Known {
    fn hold(&mut self, object: u64) {
        if let Some(object) = self.objects.get_mut(&object) {
            object.holds += 1;
        }
    }

    fn let_go(&mut self, id: u64) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        object.holds -= 1;
        if object.holds == 0 {
            give_back(object.device, object.bytes);
            self.objects.remove(&id);
        }
    }
}

/// Memory that was taken has this handle.
pub(crate) fn created(handle: u64, device: i32, bytes: u64) {
    known(|known| {
        known.next += 1;
        let id = known.next;
        known.objects.insert(id, Object { device, bytes, holds: 1 });
        known.handles.insert(handle, (id, 1));
    });
}

/// The memory that is mapped at an address was given out by a handle once more.
pub(crate) fn retained(handle: u64, address: u64) {
    known(|known| {
        let mapped = known.mappings.range(..=address).next_back();
        let Some(object) = mapped.filter(|(start, (bytes, _))| address - **start < *bytes) else { return };
        let object = object.1.1;
        known.hold(object);
        known.handles.entry(handle).or_insert((object, 0)).1 += 1;
    });
}

/// Whether memory of the program's own is mapped at this address.
pub(crate) fn maps(address: u64) -> bool {
    known(|known| {
        let mapped = known.mappings.range(..=address).next_back();
        mapped.is_some_and(|(start, (bytes, _))| address - start < *bytes)
    })
}

/// The handle was released once.
pub(crate) fn released(handle: u64) {
    known(|known| {
        let Some((object, given)) = known.handles.get_mut(&handle) else { return };
        let object = *object;
        *given -= 1;
        if *given == 0 {
            known.handles.remove(&handle);
        }
        known.let_go(object);
    });
}

/// The handle's memory was mapped at an address.
pub(crate) fn mapped(address: u64, bytes: u64, handle: u64) {
    known(|known| {
        let Some(&(object, _)) = known.handles.get(&handle) else { return };
        known.hold(object);
        known.mappings.insert(address, (bytes, object));
    });
}

/// All mappings in a range have gone.
pub(crate) fn unmapped(address: u64, bytes: u64) {
    known(|known| {
        let inside = known.mappings.range(address..address.saturating_add(bytes));
        let gone: Vec<(u64, u64)> = inside.map(|(&at, &(_, object))| (at, object)).collect();
        for (at, object) in gone {
            known.mappings.remove(&at);
            known.let_go(object);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::{held, take};
    use super::*;

    #[test]
    fn memory_lives_as_long_as_a_handle_or_a_mapping() {
        assert!(take(60, 4096));
        created(0x60, 60, 4096);
        mapped(0x60_0000, 4096, 0x60);
        mapped(0x61_0000, 4096, 0x60);
        released(0x60);
        assert!(maps(0x60_0fff) && !maps(0x60_1000));
        unmapped(0x60_0000, 4096);
        assert!(!maps(0x60_0000));
        assert_eq!(held(60), 4096);
        retained(0x66, 0x61_0800);
        unmapped(0x61_0000, 4096);
        assert_eq!(held(60), 4096);
        released(0x66);
        assert_eq!(held(60), 0);
    }

    #[test]
    fn a_handle_that_is_given_out_twice_is_released_twice() {
        assert!(take(61, 4096));
        created(0x61, 61, 4096);
        mapped(0x62_0000, 4096, 0x61);
        retained(0x61, 0x62_0000);
        unmapped(0x62_0000, 4096);
        released(0x61);
        assert_eq!(held(61), 4096);
        released(0x61);
        assert_eq!(held(61), 0);
    }

    #[test]
    fn what_is_not_known_changes_nothing() {
        released(0x999);
        unmapped(0x9990_0000, 4096);
        mapped(0x9990_0000, 4096, 0x999);
        retained(0x998, 0x9990_0000);
        released(0x998);
    }
}
