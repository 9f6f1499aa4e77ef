//! The link to a GPU: what it is, how fast copies of each size are while nothing else of ours runs, and how fast beside the program's own kernels.
//! When it is measured, and who may take an earlier measurement instead, is `saved`'s matter.

#![expect(unsafe_code, reason = "copies from memory that we pinned")]

use std::collections::BTreeMap;
use std::sync::Mutex;

use flextensor_core::link::{LinkCurve, LinkPoint};
use flextensor_core::saved::LinkId;

use super::shadow::{self, Wanted};
use super::touched::Touched;
use crate::ffi::context::{self, Context};
use crate::ffi::event::Event;
use crate::ffi::result::CudaResult;
use crate::ffi::stream::Stream;
use crate::ffi::{copy, device, event, stream, vmm};

/// Sizes of one copy, in bytes; the last fills the buffer.
const SIZES: [u64; 7] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20];
const LARGEST: u64 = 32 << 20;
/// Copies of one size that are measured together; and most bytes of them.
const COPIES: u64 = 64;
const MOST: u64 = 64 << 20;
/// Bytes that one probe beside the program's kernels copies, where one copy is not more.
const PROBE: u64 = 4 << 20;
/// A probe's buffer is not taken where less than this stays free: the program may be about to need it.
const SPARE: usize = 512 << 20;

/// Copy size against speed, with nothing else of ours running. A few milliseconds.
pub(crate) fn measure() -> Result<LinkCurve, String> {
    let host = host_buffer()?;
    let target =
        vmm::plain_alloc(LARGEST as usize).map_err(|error| format!("no buffer on the GPU: {error}"))?;
    let points = measure_into(target, host).map_err(|error| error.to_string());
    let _ = vmm::plain_free(target);
    Ok(LinkCurve::new(points?))
}

/// Kept for the next measurement: pinned memory is slow to get and to give back.
fn host_buffer() -> Result<usize, String> {
    static BUFFER: std::sync::OnceLock<Result<usize, String>> = std::sync::OnceLock::new();
    let make = || {
        let wanted = [Wanted { prefix: 0, pages: LARGEST / super::arena::PAGE, hangs_over: false }];
        let shadows = shadow::make(&wanted, Touched::default())?;
        let first = shadows.first().ok_or("no buffer")?;
        Ok(first.bytes().0.expose_provenance())
    };
    BUFFER.get_or_init(make).clone()
}

fn measure_into(target: u64, host: usize) -> CudaResult<Vec<LinkPoint>> {
    let on = stream::create_nonblocking()?;
    let measured = between_marks(|marks| measure_on(on, marks, target, host));
    // Also where a copy was refused.
    stream::destroy(on)?;
    measured
}

fn between_marks<T>(work: impl FnOnce((Event, Event)) -> CudaResult<T>) -> CudaResult<T> {
    let start = event::create(true)?;
    let end = event::create(true).inspect_err(|_| {
        let _ = event::destroy(start);
    })?;
    let done = work((start, end));
    event::destroy(start).and(event::destroy(end)).and(done)
}

fn measure_on(
    on: Stream,
    (start, end): (Event, Event),
    target: u64,
    host: usize,
) -> CudaResult<Vec<LinkPoint>> {
    copies(target, host, LARGEST, LARGEST, on)?;
    let mut points = Vec::new();
    for size in SIZES {
        let total = (size * COPIES).min(MOST);
        event::record(start, on)?;
        copies(target, host, size, total, on)?;
        event::record(end, on)?;
        event::synchronize(end)?;
        let ms = f64::from(event::elapsed_ms(start, end)?);
        points.push(LinkPoint { copy_bytes: size, gb_per_s: total as f64 / ms / 1e6 });
    }
    Ok(points)
}

fn copies(target: u64, host: usize, size: u64, total: u64, on: Stream) -> CudaResult<()> {
    for _ in 0..total / size {
        let source = std::ptr::with_exposed_provenance(host);
        // SAFETY: the buffer is pinned, at least this long, and never given back.
        unsafe { copy::to_device_async(target, source, size as usize, on) }?;
    }
    Ok(())
}

/// Generation and width of the device's link as the system tells them; 0 where it does not.
pub(crate) fn identity(number: i32) -> LinkId {
    let Ok(bus) = device::pci_bus_id(number) else { return LinkId::default() };
    let read = |what: &str| {
        std::fs::read_to_string(format!("/sys/bus/pci/devices/{bus}/{what}")).unwrap_or_default()
    };
    LinkId {
        generation: generation(&read("current_link_speed")),
        width: read("current_link_width").trim().parse().unwrap_or(0),
    }
}

/// The same after the link has been used: at rest some links fall back to a slower generation.
pub(crate) fn identity_awake(number: i32) -> LinkId {
    if let Ok(host) = host_buffer()
        && let Ok(target) = vmm::plain_alloc(LARGEST as usize)
    {
        let _ = wake(target, host);
        let _ = vmm::plain_free(target);
    }
    identity(number)
}

fn wake(target: u64, host: usize) -> CudaResult<()> {
    let on = stream::create_nonblocking()?;
    copies(target, host, LARGEST, LARGEST, on)?;
    stream::synchronize(on)?;
    stream::destroy(on)
}

/// From `32.0 GT/s PCIe`; 0 for anything else.
fn generation(speed: &str) -> u32 {
    match speed.split_whitespace().next() {
        Some("2.5") => 1,
        Some("5.0" | "5") => 2,
        Some("8.0" | "8") => 3,
        Some("16.0" | "16") => 4,
        Some("32.0" | "32") => 5,
        Some("64.0" | "64") => 6,
        _ => 0,
    }
}

/// Copies beside the program's kernels: a few MiB in the middle of a timed pass, of another size each time.
struct Probe {
    context: Context,
    target: u64,
    host: usize,
    on: Stream,
    /// Marks where the program's stream stood.
    gate: Event,
    made: usize,
    open: Vec<(u64, u64, Event, Event)>,
}

static PROBE_NOW: Mutex<Option<Probe>> = Mutex::new(None);

fn with_probe<T>(work: impl FnOnce(&mut Option<Probe>) -> T) -> T {
    work(&mut PROBE_NOW.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Measures one size behind what the program has enqueued on `stream` so far, beside what follows. Waits for nothing. The stream is of the current
/// context, and captures nothing.
pub(crate) fn probe(stream: Stream) {
    let Ok(context) = context::current() else { return };
    with_probe(|slot| {
        if slot.is_none() {
            *slot = Probe::open(context);
        }
        if let Some(probe) = slot.as_mut().filter(|probe| probe.context == context)
            && let Err(error) = probe.measure(stream)
        {
            crate::log::debug!("the link beside kernels could not be measured: {error}");
        }
    });
}

impl Probe {
    fn open(context: Context) -> Option<Probe> {
        if device::free_memory().is_ok_and(|free| free < SPARE + LARGEST as usize) {
            return None;
        }
        let host = host_buffer().ok()?;
        let target = vmm::plain_alloc(LARGEST as usize).ok()?;
        let ready = || Ok((stream::create_nonblocking()?, event::create(false)?));
        let made: CudaResult<(Stream, Event)> = ready();
        let Ok((on, gate)) = made else {
            let _ = vmm::plain_free(target);
            return None;
        };
        Some(Probe { context, target, host, on, gate, made: 0, open: Vec::new() })
    }

    fn measure(&mut self, behind: Stream) -> CudaResult<()> {
        let size = SIZES[self.made % SIZES.len()];
        self.made += 1;
        let total = size.max(PROBE);
        event::record(self.gate, behind)?;
        stream::wait(self.on, self.gate)?;
        let (start, end) = (event::create(true)?, event::create(true)?);
        event::record(start, self.on)?;
        copies(self.target, self.host, size, total, self.on)?;
        event::record(end, self.on)?;
        self.open.push((size, total, start, end));
        Ok(())
    }

    /// Best speed of each size, and everything goes back.
    fn close(self) -> CudaResult<BTreeMap<u64, f64>> {
        stream::synchronize(self.on)?;
        let mut best: BTreeMap<u64, f64> = BTreeMap::new();
        for (size, total, start, end) in self.open {
            let ms = f64::from(event::elapsed_ms(start, end)?);
            let speed = total as f64 / ms.max(1e-6) / 1e6;
            best.entry(size).and_modify(|known| *known = known.max(speed)).or_insert(speed);
            event::destroy(start)?;
            event::destroy(end)?;
        }
        event::destroy(self.gate)?;
        stream::destroy(self.on)?;
        vmm::plain_free(self.target)?;
        Ok(best)
    }
}

/// What the probes of the current context measured; they end with this.
pub(crate) fn busy() -> Vec<LinkPoint> {
    let Ok(context) = context::current() else { return Vec::new() };
    let mine = with_probe(|slot| slot.take_if(|probe| probe.context == context));
    let best = mine.map(Probe::close).and_then(Result::ok).unwrap_or_default();
    best.into_iter().map(|(copy_bytes, gb_per_s)| LinkPoint { copy_bytes, gb_per_s }).collect()
}

/// The context is gone, and its probe with it.
pub(crate) fn forget_context(context: Context) {
    with_probe(|slot| slot.take_if(|probe| probe.context == context));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_words_for_speeds_are_generations() {
        for (text, number) in
            [("2.5 GT/s PCIe", 1), ("16.0 GT/s PCIe\n", 4), ("32.0 GT/s", 5), ("64.0 GT/s PCIe", 6)]
        {
            assert_eq!(generation(text), number, "{text}");
        }
        for text in ["", "Unknown", "Unknown speed", "fast"] {
            assert_eq!(generation(text), 0, "{text}");
        }
    }
}
