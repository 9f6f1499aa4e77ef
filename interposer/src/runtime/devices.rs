//! Devices by number: their places in tables that have one for each, and their bits in words. What is kept of a device is said where it is kept.

/// Devices that a process may have.
pub(crate) const MAX_DEVICES: usize = 64;

/// The place of a device in a table of [`MAX_DEVICES`].
pub(super) fn index_of(device: i32) -> usize {
    (device.unsigned_abs() as usize).min(MAX_DEVICES - 1)
}

/// Its bit in a word.
pub(super) fn bit_of(device: i32) -> u64 {
    1 << index_of(device)
}
