//! What there is of everything that could be lost: by the driver's own count, by the system's, and by the library's report.

use super::Stage;
use super::say as said;
use std::time::{Duration, Instant};

/// Threads of the library may be about to give back what a plan, or a comparison, needed that came too late: streams are what each of these has. Nothing tells when they have.
const LATE: Duration = Duration::from_secs(30);

/// Kinds of things that the driver counts.
const DRIVERS: [&str; 9] = [
    "handles",
    "mappings",
    "allocations",
    "reservations",
    "registered_bytes",
    "streams",
    "events",
    "device_bytes",
    "host_located_bytes",
];

/// What the report says of memory.
const REPORTED: [&str; 6] =
    ["weights_gpu_bytes", "ring_bytes", "regions_bytes", "host_regions_bytes", "host_bytes", "pinned_bytes"];

/// Says all of it, each with the moment in front.
pub(crate) fn say(stage: &Stage, moment: &str) {
    let since = Instant::now();
    while stage.sim.stat("streams") > 0 && since.elapsed() < LATE {
        std::thread::sleep(Duration::from_millis(1));
    }
    for name in DRIVERS {
        said(&format!("{moment}: {name}"), stage.sim.stat(name));
    }
    said(&format!("{moment}: descriptors"), entries("/proc/self/fd"));
    for name in REPORTED {
        said(&format!("{moment}: {name}"), stage.reported("memory", name));
    }
    said(&format!("{moment}: resident KiB"), resident_kib());
    said(&format!("{moment}: panics"), stage.reported("hooks", "panics"));
}

fn entries(folder: &str) -> u64 {
    std::fs::read_dir(folder).map_or(0, |entries| entries.count() as u64)
}

/// Physical memory of this process, simcuda's included.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}
