//! The journal as text: JSON at exit, lines on stderr, single numbers on request.

use crate::api;
use crate::exec::event::EVENTS;
use crate::exec::stream::STREAMS;
use crate::journal::{Detection, journal};
use crate::memory::{handles, space};
use crate::settings::settings;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering::Relaxed;

/// What is still alive.
struct Alive {
    handles: u64,
    mappings: u64,
    allocations: u64,
    reservations: u64,
    registered_bytes: u64,
    streams: u64,
    events: u64,
}

fn alive() -> Alive {
    let view = space::view();
    let allocations = view.mappings.values().filter(|mapping| mapping.allocation.is_some()).count();
    Alive {
        handles: handles::alive() as u64,
        mappings: (view.mappings.len() - allocations) as u64,
        allocations: allocations as u64,
        reservations: view.reservations.len() as u64,
        registered_bytes: view.host.values().map(|range| range.bytes).sum(),
        streams: STREAMS.all().len() as u64,
        events: EVENTS.all().len() as u64,
    }
}

fn calls(function: &str) -> u64 {
    let exports = api::exports().filter(|export| export.site.name == function);
    exports.map(|export| export.site.calls.load(Relaxed)).sum()
}

/// A number by name.
pub(crate) fn number(name: &str) -> Option<u64> {
    if let Some(function) = name.strip_prefix("calls:") {
        return Some(calls(function));
    }
    if let Some(function) = name.strip_prefix("address:") {
        return api::exports()
            .find(|export| export.site.name == function)
            .map(|export| (export.address)() as u64);
    }
    if let Some(kernel) = name.strip_prefix("kernel:") {
        return Some(journal().kernels().get(kernel).copied().unwrap_or(0));
    }
    if let Some(key) = name.strip_prefix("detection:") {
        return Detection::ALL.into_iter().find(|kind| kind.key() == key).map(|kind| journal().count(kind));
    }
    let journal = journal();
    Some(match name {
        "h2d_bytes" => journal.h2d_bytes.load(Relaxed),
        "d2h_bytes" => journal.d2h_bytes.load(Relaxed),
        "d2d_bytes" => journal.d2d_bytes.load(Relaxed),
        "device_bytes" => journal.device_bytes.load(Relaxed),
        "device_bytes_peak" => journal.device_bytes_peak.load(Relaxed),
        "host_located_bytes" => journal.host_located_bytes.load(Relaxed),
        "launches" => journal.launches.load(Relaxed),
        "free_waited" => journal.free_waited.load(Relaxed),
        "faults_delivered" => journal.faults_delivered.load(Relaxed),
        "detections" => journal.detections(),
        "handles" => alive().handles,
        "mappings" => alive().mappings,
        "allocations" => alive().allocations,
        "reservations" => alive().reservations,
        "registered_bytes" => alive().registered_bytes,
        "streams" => alive().streams,
        "events" => alive().events,
        _ => return None,
    })
}

fn as_json() -> Value {
    let mut counted = Map::new();
    for export in api::exports() {
        let count = export.site.calls.load(Relaxed);
        if count > 0 {
            counted.insert(export.site.name.to_owned(), json!(count));
        }
    }
    let detections: Map<String, Value> = Detection::ALL
        .into_iter()
        .map(|kind| (kind.key().to_owned(), json!(journal().count(kind))))
        .collect();
    let alive = alive();
    let mut all = json!({
        "calls": counted,
        "kernels": journal().kernels(),
        "detections": detections,
        "messages": journal().messages(),
        "alive": {
            "handles": alive.handles,
            "mappings": alive.mappings,
            "allocations": alive.allocations,
            "reservations": alive.reservations,
            "registered_bytes": alive.registered_bytes,
            "streams": alive.streams,
            "events": alive.events,
        },
    });
    let totals =
        ["h2d_bytes", "d2h_bytes", "d2d_bytes", "device_bytes", "device_bytes_peak", "host_located_bytes"];
    for name in totals.into_iter().chain(["launches", "free_waited", "faults_delivered"]) {
        all[name] = json!(number(name));
    }
    all
}

#[expect(clippy::print_stderr, reason = "the exit report is for the person who runs the test")]
fn at_exit() {
    if let Some(path) = &settings().journal
        && let Err(error) = std::fs::write(path, format!("{:#}\n", as_json()))
    {
        eprintln!("simcuda: cannot write SIMCUDA_JOURNAL={}: {error}", path.display());
    }
    if journal().detections() == 0 && !settings().report {
        return;
    }
    for kind in Detection::ALL {
        let count = journal().count(kind);
        if count > 0 {
            eprintln!("simcuda: {} x {}", count, kind.key());
        }
    }
    for message in journal().messages() {
        eprintln!("simcuda: {message}");
    }
    if settings().report {
        eprintln!("simcuda: {}", as_json());
    }
}

mod last {
    // The loader runs this array after every exit handler of the program, so releases made there are counted.
    #[cfg(not(test))]
    #[used]
    #[expect(unsafe_code, reason = "the loader calls what this section lists")]
    #[unsafe(link_section = ".fini_array")]
    static AT_EXIT: extern "C" fn() = run;

    #[cfg_attr(test, expect(dead_code, reason = "test binaries end without a report"))]
    extern "C" fn run() {
        // A panic must not cross into the loader; what is lost is only the report.
        let _ = std::panic::catch_unwind(super::at_exit);
    }
}
