//! Host memory for what is about to be streamed: whether there is enough, and the shadows of the units that move. What a shadow is, is `shadow`'s and `hosted`'s matter.

use flextensor_core::units::Bytes;

use super::super::exchange::Move;
use super::super::shadow::{self, Shadow, Wanted};
use super::super::touched::Touched;
use super::super::{host_memory, hosted, overflow};
use super::request::Request;

/// `ahead`: bytes that were taken for shadows before.
pub(in super::super) fn check_host_memory(bytes: u64, ahead: u64) -> Result<(), String> {
    let mut available = host_memory::available();
    if let Some(available) = &mut available {
        available.bytes = available.bytes.saturating_add(ahead);
    }
    if let Some(available) = available.as_ref().filter(|available| available.bytes < bytes) {
        return Err(format!("shadows need {} of host memory, and there are {available}", Bytes(bytes)));
    }
    match overflow::host_limit().filter(|&limit| limit < bytes + overflow::host_bytes_taken()) {
        Some(limit) => Err(format!(
            "shadows need {} of host memory, and host_mem_limit allows {}",
            Bytes(bytes),
            Bytes(limit)
        )),
        None => Ok(()),
    }
}

/// Pinned memory for what lies in GPU memory; what lies in host memory is its own shadow, filled up with host pages where it lies there in part. What is placed
/// early has host pages throughout: they can become its only memory again.
pub(super) fn make_shadows(request: &Request, moves: &[Move], ahead: Touched) -> Result<Vec<Shadow>, String> {
    let of_pages = |m: &Move| request.early || m.outside_pages() < m.pages;
    let to_pin = moves.iter().filter(|m| !of_pages(m));
    let wanted: Vec<Wanted> =
        to_pin.map(|m| Wanted { prefix: m.prefix(), pages: m.pages, hangs_over: m.overhang > 0 }).collect();
    let mut pinned = shadow::make(&wanted, ahead)?.into_iter();
    let mut shadows = Vec::with_capacity(moves.len());
    for m in moves {
        let shadow =
            if of_pages(m) { hosted::shadow_of(request.device, m).map(Some) } else { Ok(pinned.next()) };
        match shadow {
            Ok(shadow) => shadows.extend(shadow),
            Err(error) => {
                shadow::give_back(shadows.into_iter().chain(pinned).collect());
                return Err(format!("host pages were refused, or their second mapping was: {error}"));
            }
        }
    }
    Ok(shadows)
}
