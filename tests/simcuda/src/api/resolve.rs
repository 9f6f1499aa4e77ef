//! `cuGetProcAddress` and the controls of simcuda itself.
#![expect(unsafe_code, reason = "exports under fixed names")]

use super::devices::DRIVER_VERSION;
use super::exports as all_exports;
use crate::call::exports;
use crate::exported_names::{export_name, first_version, per_thread_name};
use crate::faults;
use crate::journal::journal;
use crate::memory::physical;
use crate::pointer::{Out, Text};
use crate::report;
use crate::settings::settings;
use crate::status::{Done, Status};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

exports! {
    Any cuGetProcAddress(name: Text, address: Out<u64>, version: i32, flags: u64) => resolve_v1;
    Any cuGetProcAddress_v2(name: Text, address: Out<u64>, version: i32, flags: u64, status: Out<u32>) => resolve;
    Any cuGetExportTable(table: Out<u64>, id: Out<u8>) => export_table;
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

fn addresses() -> &'static HashMap<&'static str, u64> {
    static ADDRESSES: OnceLock<HashMap<&'static str, u64>> = OnceLock::new();
    ADDRESSES
        .get_or_init(|| all_exports().map(|export| (export.site.name, (export.address)() as u64)).collect())
}

/// `CU_GET_PROC_ADDRESS_*` results.
const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;
const VERSION_TOO_OLD: u32 = 2;

fn resolve(name: Text, address: Out<u64>, version: i32, flags: u64, status: Out<u32>) -> Done {
    let name = name.get()?;
    if address.is_null() || flags > PER_THREAD {
        return Err(Status::INVALID_VALUE);
    }
    address.set(0)?;
    let wanted = u32::try_from(version).map_err(|_| Status::INVALID_VALUE)?;
    let known =
        !name.is_empty() && addresses().contains_key(export_name(&name, DRIVER_VERSION as u32).as_str());
    if !known {
        status.set_if_wanted(NOT_FOUND);
        return Err(Status::NOT_FOUND);
    }
    if first_version(&name).is_some_and(|first| wanted < first) {
        status.set_if_wanted(VERSION_TOO_OLD);
        return Err(Status::NOT_FOUND);
    }
    let base = export_name(&name, wanted);
    let own = (flags == PER_THREAD).then(|| per_thread_name(&base));
    let found = own.and_then(|own| addresses().get(own.as_str())).or_else(|| addresses().get(base.as_str()));
    match found {
        Some(found) => {
            status.set_if_wanted(FOUND);
            address.set(*found)
        }
        None => {
            status.set_if_wanted(VERSION_TOO_OLD);
            Err(Status::NOT_FOUND)
        }
    }
}

fn resolve_v1(name: Text, address: Out<u64>, version: i32, flags: u64) -> Done {
    resolve(name, address, version, flags, Out::at(0))
}

fn export_table(table: Out<u64>, _: Out<u8>) -> Done {
    table.set_if_wanted(0);
    Err(Status::NOT_FOUND)
}

/// A number of the journal by name (docs/simcuda.md), or `u64::MAX` for an unknown name. For test programs.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, expect(dead_code, reason = "only programs call it"))]
pub(crate) extern "C" fn simcuda_stat(name: Text) -> u64 {
    name.get().ok().and_then(|name| report::number(&name)).unwrap_or(u64::MAX)
}

/// Changes a time or speed, sets a mark, or arms a fault, while the program runs; returns 0, or 1 for an unknown name. For test programs.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, expect(dead_code, reason = "only programs call it"))]
pub(crate) extern "C" fn simcuda_set(name: Text, value: u64) -> u32 {
    let pace = &settings().pace;
    let name = name.get();
    if let Some((who, function)) = name.as_deref().ok().and_then(|name| name.split_once(':')) {
        return arm_fault(who, function, value);
    }
    match name.as_deref() {
        Ok("late_us") => pace.late.store(value, Relaxed),
        Ok("kernel_us") => pace.kernel.store(value, Relaxed),
        Ok("h2d_bytes_per_s") => pace.h2d.store(value, Relaxed),
        Ok("d2h_bytes_per_s") => pace.d2h.store(value, Relaxed),
        Ok("others_bytes") => physical::others_hold(value),
        Ok("device_bytes_peak") => journal().device_bytes_peak.store(value, Relaxed),
        _ => return 1,
    }
    0
}

fn arm_fault(who: &str, function: &str, code: u64) -> u32 {
    if who == "mark" {
        faults::mark(
            function,
            all_exports().map(|export| (export.site.name, export.site.calls.load(Relaxed))),
        );
        return 0;
    }
    let known = all_exports().any(|export| export.site.name == function);
    let (Ok(code), true) = (u32::try_from(code), known) else { return 1 };
    match who {
        "fault" => faults::arm(function, code, false),
        "fault_here" => faults::arm(function, code, true),
        _ => return 1,
    }
    0
}
