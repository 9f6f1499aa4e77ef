//! The `SIMCUDA_*` variables: read once, at the first call. A value that cannot be read ends the process, since a test
//! that runs with other settings than it asked for proves nothing.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Every setting, with the defaults of docs/simcuda.md.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Bytes of memory of each device (`SIMCUDA_MEM`).
    pub(crate) memory: u64,
    /// Number of devices (`SIMCUDA_DEVICES`).
    pub(crate) devices: usize,
    /// Operations that a stream holds before the caller blocks (`SIMCUDA_QUEUE`).
    pub(crate) queue: usize,
    /// Times and speeds that a program may change while it runs.
    pub(crate) pace: Pace,
    /// Abort at the first detection (`SIMCUDA_STRICT`).
    pub(crate) strict: bool,
    /// Print the exit report even when nothing was detected (`SIMCUDA_REPORT`).
    pub(crate) report: bool,
    /// Whether HOST and HOST_NUMA locations are refused (`SIMCUDA_NO_HOST_LOCATION`).
    pub(crate) no_host_location: bool,
    /// Numbers of the devices that have no memory of their own (`SIMCUDA_INTEGRATED`).
    pub(crate) integrated: Vec<usize>,
    /// Where the journal goes at exit (`SIMCUDA_JOURNAL`).
    pub(crate) journal: Option<PathBuf>,
    /// Names of threads whose copies out of device memory may be torn (`SIMCUDA_TORN_READERS`).
    pub(crate) torn_readers: Vec<String>,
    /// Faults on demand, unparsed (`SIMCUDA_FAULTS`).
    pub(crate) faults: String,
}

/// Times and speeds; `simcuda_set` changes them.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes per second of the engine that copies host to device, 0 = as fast as memory (`SIMCUDA_H2D_GBPS`).
    pub(crate) h2d: AtomicU64,
    /// The same for device to host (`SIMCUDA_D2H_GBPS`).
    pub(crate) d2h: AtomicU64,
    /// Microseconds that an asynchronous copy starts later than possible (`SIMCUDA_LATE_US`).
    pub(crate) late: AtomicU64,
    /// Microseconds that a kernel runs (`SIMCUDA_KERNEL_US`).
    pub(crate) kernel: AtomicU64,
}

impl Pace {
    pub(crate) fn late(&self) -> Duration {
        Duration::from_micros(self.late.load(Relaxed))
    }

    pub(crate) fn kernel(&self) -> Duration {
        Duration::from_micros(self.kernel.load(Relaxed))
    }
}

/// Ends the process with one line, for a setting that cannot be honoured.
#[expect(clippy::print_stderr, reason = "the only way to reach the person who wrote the setting")]
pub(crate) fn refuse(name: &str, value: &str, allowed: &str) -> ! {
    eprintln!("simcuda: {name}={value} is not understood; allowed: {allowed}");
    std::process::exit(97);
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number<T: FromStr>(name: &str, default: T, allowed: &str) -> T {
    let Some(text) = variable(name) else { return default };
    text.parse().unwrap_or_else(|_| refuse(name, &text, allowed))
}

fn flag(name: &str) -> bool {
    match variable(name).as_deref() {
        None | Some("0") => false,
        Some("1") => true,
        Some(other) => refuse(name, other, "0 or 1"),
    }
}

/// Device numbers with commas between.
fn numbers(name: &str) -> Vec<usize> {
    let Some(text) = variable(name) else { return Vec::new() };
    let read: Result<_, _> = text.split(',').map(|number| number.trim().parse()).collect();
    read.unwrap_or_else(|_| refuse(name, &text, "numbers of devices, with commas between"))
}

/// Bytes from a number with an optional unit: `1073741824`, `512KiB`, `64MiB`, `1GiB`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn speed(name: &str) -> AtomicU64 {
    let Some(text) = variable(name) else { return AtomicU64::new(0) };
    match text.parse::<f64>() {
        Ok(gigabytes) if gigabytes > 0.0 => AtomicU64::new((gigabytes * 1e9) as u64),
        _ => refuse(name, &text, "a number of GB/s above 0"),
    }
}

fn read() -> Settings {
    let size = "a number of bytes, with KiB, MiB or GiB";
    let memory = variable("SIMCUDA_MEM")
        .map_or(1 << 30, |text| bytes(&text).unwrap_or_else(|| refuse("SIMCUDA_MEM", &text, size)));
    let micros = |name| AtomicU64::new(number(name, 0u64, "a number of microseconds"));
    Settings {
        memory,
        devices: number("SIMCUDA_DEVICES", 1usize, "a number of devices"),
        queue: number("SIMCUDA_QUEUE", 1024usize, "a number of operations").max(1),
        pace: Pace {
            h2d: speed("SIMCUDA_H2D_GBPS"),
            d2h: speed("SIMCUDA_D2H_GBPS"),
            late: micros("SIMCUDA_LATE_US"),
            kernel: micros("SIMCUDA_KERNEL_US"),
        },
        strict: flag("SIMCUDA_STRICT"),
        report: flag("SIMCUDA_REPORT"),
        no_host_location: flag("SIMCUDA_NO_HOST_LOCATION"),
        integrated: numbers("SIMCUDA_INTEGRATED"),
        journal: variable("SIMCUDA_JOURNAL").map(PathBuf::from),
        torn_readers: variable("SIMCUDA_TORN_READERS")
            .map(|names| names.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        faults: variable("SIMCUDA_FAULTS").unwrap_or_default(),
    }
}

/// The settings of this process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(read)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_take_units_and_refuse_nonsense() {
        assert_eq!(bytes("1GiB"), Some(1 << 30));
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("1.5GiB"), None);
        assert_eq!(bytes("GiB"), None);
        assert_eq!(bytes("99999999999TiB"), None);
    }
}
