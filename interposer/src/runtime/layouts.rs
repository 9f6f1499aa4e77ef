//! Parameter layouts by function handle: asked of the driver once, then found by a few loads without a lock.
//! What stands in the parameters is `scan`'s matter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::ffi::kernel;
use crate::ffi::types::CUfunction;

/// Where one parameter lies in the kernel's parameter block, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Parameter {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// All parameters of one function.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) parameters: Box<[Parameter]>,
}

/// Entries; a program has a few thousand kernels at most. A full table means asking the driver each time: slow, never wrong.
const SLOTS: usize = 1 << 14;
const PROBES: usize = 32;

struct Slot {
    function: AtomicUsize,
    layout: AtomicPtr<Layout>,
}

static TABLE: OnceLock<Box<[Slot]>> = OnceLock::new();
static ADDING: Mutex<()> = Mutex::new(());

fn table() -> &'static [Slot] {
    let empty = || Slot { function: AtomicUsize::new(0), layout: AtomicPtr::new(std::ptr::null_mut()) };
    TABLE.get_or_init(|| (0..SLOTS).map(|_| empty()).collect())
}

fn probes(function: usize) -> impl Iterator<Item = &'static Slot> {
    let start = (function >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let table = table();
    (0..PROBES).filter_map(move |step| table.get((start + step) & (SLOTS - 1)))
}

/// The layout of a function; none if the driver does not tell (before 12.4, or not a kernel).
#[expect(unsafe_code, reason = "entries are leaked references behind atomic pointers")]
pub(crate) fn layout_of(function: CUfunction) -> Option<&'static Layout> {
    let key = function.addr();
    for slot in probes(key) {
        match slot.function.load(Ordering::Acquire) {
            0 => break,
            found if found == key => {
                // SAFETY: the pointer is null or a leaked layout, which is never freed.
                let layout = unsafe { slot.layout.load(Ordering::Acquire).as_ref() };
                if layout.is_some() {
                    return layout;
                }
            }
            _ => {}
        }
    }
    ask(function)
}

fn ask(function: CUfunction) -> Option<&'static Layout> {
    let parameters = kernel::param_layout(function)?;
    let parameters = parameters
        .into_iter()
        .map(|(offset, bytes)| Parameter { offset: offset as u32, bytes: bytes as u32 })
        .collect();
    let layout = interned(parameters);
    let _adding = ADDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for slot in probes(function.addr()) {
        let known = slot.function.load(Ordering::Acquire);
        if known == 0 || known == function.addr() {
            slot.layout.store(std::ptr::from_ref(layout).cast_mut(), Ordering::Release);
            slot.function.store(function.addr(), Ordering::Release);
            break;
        }
    }
    Some(layout)
}

/// Leaked: a launch on another thread may still read it when the module goes. Once for each list of parameters, however often it is asked for.
fn interned(parameters: Box<[Parameter]>) -> &'static Layout {
    static KNOWN: Mutex<BTreeMap<Box<[Parameter]>, &'static Layout>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let leak = || Box::leak(Box::new(Layout { parameters: parameters.clone() })) as &'static Layout;
    known.entry(parameters.clone()).or_insert_with(leak)
}

/// A module was unloaded: its handles may come back for other kernels.
pub(crate) fn forget_all() {
    let Some(table) = TABLE.get() else { return };
    let _adding = ADDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for slot in table {
        slot.layout.store(std::ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lists_of_parameters_are_kept_once() {
        let list = |bytes| Box::from([Parameter { offset: 0, bytes }]);
        assert!(std::ptr::eq(interned(list(8)), interned(list(8))));
        assert!(!std::ptr::eq(interned(list(8)), interned(list(4))));
    }
}
