//! Contexts and the current one of each thread.

use super::stream::Stream;
use crate::locks::lock;
use crate::memory::space;
use crate::registry::Registry;
use crate::settings::settings;
use crate::status::Status;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A context: its streams and whether it still works.
pub(crate) struct Context {
    pub(crate) handle: u64,
    pub(crate) device: usize,
    pub(crate) flags: AtomicU32,
    /// The stream that waits for all blocking streams and makes them wait.
    pub(crate) legacy: Arc<Stream>,
    /// Held while the order of an entry against other streams is fixed.
    pub(crate) order: Mutex<()>,
    streams: Mutex<Vec<Arc<Stream>>>,
    own: Mutex<HashMap<u64, Arc<Stream>>>,
    /// The error that took the context, or 0.
    lost: AtomicU32,
    destroyed: AtomicBool,
}

pub(crate) static CONTEXTS: Registry<Context> = Registry::new(1);

impl Context {
    /// A fresh context on a device.
    pub(crate) fn create(device: usize, flags: u32) -> Arc<Self> {
        CONTEXTS.insert(|handle| {
            Arc::new_cyclic(|weak| Self {
                handle,
                device,
                flags: AtomicU32::new(flags),
                legacy: Stream::default_stream(device, weak.clone(), true),
                order: Mutex::new(()),
                streams: Mutex::default(),
                own: Mutex::default(),
                lost: AtomicU32::new(0),
                destroyed: AtomicBool::new(false),
            })
        })
    }

    /// Adds a stream; it leaves by `forget`.
    pub(crate) fn adopt(&self, stream: &Arc<Stream>) {
        lock(&self.streams).push(Arc::clone(stream));
    }

    pub(crate) fn forget(&self, stream: &Stream) {
        lock(&self.streams).retain(|other| !std::ptr::eq(Arc::as_ptr(other), stream));
    }

    /// Every stream of the context, the default ones included.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        let mut all = lock(&self.streams).clone();
        all.push(Arc::clone(&self.legacy));
        all
    }

    /// The calling thread's own default stream.
    pub(crate) fn thread_stream(self: &Arc<Self>) -> Arc<Stream> {
        let mut own = lock(&self.own);
        let stream = own.entry(thread()).or_insert_with(|| {
            let stream = Stream::default_stream(self.device, Arc::downgrade(self), false);
            self.adopt(&stream);
            stream
        });
        Arc::clone(stream)
    }

    /// Waits for everything submitted so far.
    ///
    /// # Errors
    /// The error that took the context.
    pub(crate) fn synchronize(&self) -> Result<(), Status> {
        for stream in self.streams() {
            stream.drain();
        }
        self.usable()
    }

    /// Marks the context as lost by an error of a kernel or copy.
    pub(crate) fn lose(&self, status: Status) {
        self.lost.store(status.0, Relaxed);
    }

    /// # Errors
    /// The error that took the context, or `CONTEXT_IS_DESTROYED`.
    pub(crate) fn usable(&self) -> Result<(), Status> {
        if self.destroyed.load(Relaxed) {
            return Err(Status::CONTEXT_IS_DESTROYED);
        }
        self.fault()
    }

    /// The error that took it, if one did.
    pub(crate) fn fault(&self) -> Result<(), Status> {
        match self.lost.load(Relaxed) {
            0 => Ok(()),
            code => Err(Status(code)),
        }
    }

    /// Ends the context: waits, closes its streams, frees its memory.
    pub(crate) fn destroy(&self) {
        // A lost context is drained too; its entries do nothing.
        let _ = self.synchronize();
        self.destroyed.store(true, Relaxed);
        for stream in self.streams() {
            stream.close();
        }
        let _ = CONTEXTS.remove(self.handle);
        space::change(|space| space.free_context(self.handle));
    }
}

thread_local! {
    static STACK: RefCell<Vec<Option<Arc<Context>>>> = const { RefCell::new(Vec::new()) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// A number for the calling thread, never used twice.
pub(crate) fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD
        .try_with(|cell| {
            if cell.get() == 0 {
                cell.set(NEXT.fetch_add(1, Relaxed));
            }
            cell.get()
        })
        .unwrap_or(0)
}

/// The current context, whether it works or not.
pub(crate) fn peek() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow().last().cloned().flatten()).ok().flatten()
}

/// The current context.
///
/// # Errors
/// `INVALID_CONTEXT` without one; the error that took it.
pub(crate) fn current() -> Result<Arc<Context>, Status> {
    let context = peek().ok_or(Status::INVALID_CONTEXT)?;
    context.usable()?;
    Ok(context)
}

/// Replaces the current context; `None` takes it away.
pub(crate) fn set_current(context: Option<Arc<Context>>) {
    let _ = STACK.try_with(|stack| {
        let mut stack = stack.borrow_mut();
        stack.pop();
        if context.is_some() {
            stack.push(context);
        }
    });
}

pub(crate) fn push(context: Arc<Context>) {
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(Some(context)));
}

/// Takes the current context off the thread's stack.
///
/// # Errors
/// `INVALID_CONTEXT` when the stack is empty.
pub(crate) fn pop() -> Result<Arc<Context>, Status> {
    STACK.try_with(|stack| stack.borrow_mut().pop().flatten()).ok().flatten().ok_or(Status::INVALID_CONTEXT)
}

/// A primary context: made by the first retain, ended by the last release.
#[derive(Default)]
struct Primary {
    context: Option<Arc<Context>>,
    references: u64,
    flags: u32,
}

static PRIMARIES: Mutex<Vec<Primary>> = Mutex::new(Vec::new());

fn with_primary<T>(device: usize, body: impl FnOnce(&mut Primary) -> T) -> T {
    let mut primaries = lock(&PRIMARIES);
    if primaries.len() <= device {
        primaries.resize_with(device + 1, Primary::default);
    }
    body(&mut primaries[device])
}

/// One more user of a device's primary context.
pub(crate) fn retain_primary(device: usize) -> Arc<Context> {
    with_primary(device, |primary| {
        primary.references += 1;
        let flags = primary.flags;
        Arc::clone(primary.context.get_or_insert_with(|| Context::create(device, flags)))
    })
}

/// One user less; the last one ends the context.
///
/// # Errors
/// `INVALID_CONTEXT` when nobody holds it.
pub(crate) fn release_primary(device: usize) -> Result<(), Status> {
    let ended = with_primary(device, |primary| {
        primary.references = primary.references.checked_sub(1).ok_or(Status::INVALID_CONTEXT)?;
        Ok(if primary.references == 0 { primary.context.take() } else { None })
    })?;
    if let Some(context) = ended {
        context.destroy();
    }
    Ok(())
}

/// Ends the primary context whoever holds it.
pub(crate) fn reset_primary(device: usize) {
    let ended = with_primary(device, |primary| primary.context.take());
    if let Some(context) = ended {
        context.destroy();
    }
}

/// Flags of the primary context and whether it exists.
pub(crate) fn primary_state(device: usize) -> (u32, bool) {
    with_primary(device, |primary| (primary.flags, primary.context.is_some()))
}

pub(crate) fn set_primary_flags(device: usize, flags: u32) {
    with_primary(device, |primary| {
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, Relaxed);
        }
    });
}

/// A device number from a caller.
///
/// # Errors
/// `INVALID_DEVICE` when there is no such device.
pub(crate) fn device(number: i32) -> Result<usize, Status> {
    usize::try_from(number).ok().filter(|index| *index < settings().devices).ok_or(Status::INVALID_DEVICE)
}
