//! Opaque handles: numbers that lead to shared objects, never pointers, so a wrong handle is an error and not a crash.

use crate::locks::{lock, read, write};
use crate::status::Status;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

/// Handles lie above all device addresses and below host addresses, so that no scan takes one for memory.
const BASE: u64 = 0x5200_0000_0000;

/// All live objects of one kind.
pub(crate) struct Registry<T> {
    kind: u64,
    next: AtomicU64,
    objects: RwLock<Option<HashMap<u64, Arc<T>>>>,
    /// Handles that ended and are given out again, the last one first; `None` where handles never come back.
    ended: Option<Mutex<Vec<u64>>>,
}

impl<T> Registry<T> {
    /// An empty registry; `kind` keeps the handles of different kinds apart.
    pub(crate) const fn new(kind: u64) -> Self {
        Self { kind, next: AtomicU64::new(1), objects: RwLock::new(None), ended: None }
    }

    /// The same with handles that come back for new objects, as a driver's do.
    pub(crate) const fn reusing(kind: u64) -> Self {
        let ended = Some(Mutex::new(Vec::new()));
        Self { kind, next: AtomicU64::new(1), objects: RwLock::new(None), ended }
    }

    /// A handle for the object that `make` builds from it.
    pub(crate) fn insert(&self, make: impl FnOnce(u64) -> Arc<T>) -> Arc<T> {
        let again = self.ended.as_ref().and_then(|ended| lock(ended).pop());
        let handle = again.unwrap_or_else(|| BASE + (self.kind << 32) + self.next.fetch_add(1, Relaxed) * 16);
        let object = make(handle);
        write(&self.objects).get_or_insert_default().insert(handle, Arc::clone(&object));
        object
    }

    pub(crate) fn find(&self, handle: u64) -> Option<Arc<T>> {
        read(&self.objects).as_ref()?.get(&handle).cloned()
    }

    /// The object behind a handle.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when it is not alive.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Status> {
        self.find(handle).ok_or(Status::INVALID_HANDLE)
    }

    /// Takes an object out.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when it is not alive.
    pub(crate) fn remove(&self, handle: u64) -> Result<Arc<T>, Status> {
        let object = write(&self.objects).as_mut().and_then(|map| map.remove(&handle));
        if let Some(ended) = self.ended.as_ref().filter(|_| object.is_some()) {
            lock(ended).push(handle);
        }
        object.ok_or(Status::INVALID_HANDLE)
    }

    /// Every live object.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        read(&self.objects).as_ref().map(|map| map.values().cloned().collect()).unwrap_or_default()
    }
}
