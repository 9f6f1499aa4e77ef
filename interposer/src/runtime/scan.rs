//! Finds the addresses of weights in what a launch passes to its kernel, and makes a copy of the parameters in which chosen words point elsewhere.
//! What an address means is the arena's word; what follows from it is `launch`'s.

#![expect(unsafe_code, reason = "reads the parameters that the program passes to the driver")]

use super::arena::{self, Arena, Meaning};
use super::layouts::Layout;
use crate::ffi::types::c_void;

const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// A word that shows a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) meaning: Meaning,
    pub(crate) address: u64,
    /// Offset of the word in the kernel's parameters, in bytes.
    pub(crate) offset: u32,
}

/// What a launch passes: one pointer for each parameter, or one packed buffer.
#[derive(Clone, Copy)]
pub(crate) enum Parameters {
    /// `kernelParams`, with the function's layout.
    Each { pointers: *mut *mut c_void, layout: &'static Layout },
    /// `extra`.
    Packed { buffer: *const u8, bytes: usize },
    /// Neither: the kernel takes nothing.
    Nothing,
}

/// Reads the `extra` list of a launch.
///
/// # Safety
/// `extra` is null or a list that ends with `CU_LAUNCH_PARAM_END`, as the driver demands.
pub(crate) unsafe fn packed(extra: *mut *mut c_void) -> Option<Parameters> {
    let (mut buffer, mut size) = (None, None);
    let mut at = extra;
    loop {
        // SAFETY: the list goes on until its end mark, which was not seen yet.
        let key = unsafe { *at }.addr();
        if key != BUFFER_POINTER && key != BUFFER_SIZE {
            break;
        }
        // SAFETY: a key is followed by its value.
        let value_at = unsafe { at.add(1) };
        // SAFETY: as above.
        let value = unsafe { *value_at };
        if key == BUFFER_POINTER {
            buffer = Some(value.cast_const().cast::<u8>());
        } else {
            // SAFETY: the value of this key is a pointer to the size.
            size = Some(unsafe { *value.cast::<usize>() });
        }
        // SAFETY: past a key and its value comes the next key or the end mark.
        at = unsafe { at.add(2) };
    }
    Some(Parameters::Packed { buffer: buffer?, bytes: size? })
}

impl Parameters {
    /// Calls `seen` for every word whose address means something. By-value parameters are read in steps of 8 bytes, packed buffers in steps of 4:
    /// there a 64-bit word need not be aligned.
    ///
    /// # Safety
    /// The pointers are those of a launch that is going on: each leads to its parameter's bytes.
    #[inline]
    pub(crate) unsafe fn each_weight(self, arena: &Arena, mut seen: impl FnMut(Found)) {
        let weight = |found: Found| {
            if found.meaning != Meaning::Nothing {
                seen(found);
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.each_address(arena, weight) };
    }

    /// Calls `seen` for every word that is an address in the arena, whether or not it means something.
    ///
    /// # Safety
    /// As for [`Parameters::each_weight`].
    #[inline]
    pub(crate) unsafe fn each_address(self, arena: &Arena, mut seen: impl FnMut(Found)) {
        match self {
            Parameters::Each { pointers, layout } => {
                for (index, parameter) in layout.parameters.iter().enumerate() {
                    // SAFETY: the caller passes one pointer for each parameter of the layout.
                    let entry = unsafe { pointers.add(index) };
                    // SAFETY: as above.
                    let start = unsafe { *entry }.cast_const().cast::<u8>();
                    let bytes = parameter.bytes as usize;
                    // SAFETY: the pointer leads to the parameter's bytes.
                    unsafe { addresses(arena, start, bytes, (parameter.offset, 8), &mut seen) };
                }
            }
            // SAFETY: the caller passes a buffer of this size.
            Parameters::Packed { buffer, bytes } => unsafe {
                addresses(arena, buffer, bytes, (0, 4), &mut seen);
            },
            Parameters::Nothing => {}
        }
    }
}

/// Bytes that are looked at together. A kernel of cuBLAS has 1,720 bytes of parameters, and two or three addresses among them.
const BLOCK: usize = 4 * arena::HALVES;

/// Calls `seen` with every 64-bit word at a multiple of `step` (4 or 8) that is an address in the arena, `first` being the offset of `start` in the kernel's parameters. Whole
/// blocks are passed over in which no word has the upper half of one, which the processor finds out for several words at a time.
///
/// # Safety
/// `start` is valid for reads of `bytes`.
#[inline]
unsafe fn addresses(
    arena: &Arena,
    start: *const u8,
    bytes: usize,
    (first, step): (u32, usize),
    seen: &mut impl FnMut(Found),
) {
    let mut look = |at: usize, address: u64| {
        if arena.contains(address) {
            seen(Found { meaning: arena.meaning(address), address, offset: first + at as u32 });
        }
    };
    let mut at = 0;
    loop {
        // SAFETY: the caller's promise.
        at = unsafe { pass_over(arena, start, at, bytes) };
        if !has_block(at, bytes) {
            break;
        }
        // SAFETY: the caller's promise; the block and the last word's upper half lie within.
        unsafe { each_word(start, at, at + BLOCK + 4, step, &mut look) };
        at += BLOCK;
    }
    // SAFETY: the caller's promise.
    unsafe { each_word(start, at, bytes, step, &mut look) };
}

/// Whether a whole block begins at `at`: the upper half of its last word lies behind it.
#[inline(always)]
fn has_block(at: usize, bytes: usize) -> bool {
    at + BLOCK + 4 <= bytes
}

/// The first block from `at` on that may hold an address, or where no whole one begins any more.
///
/// # Safety
/// `start` is valid for reads of `bytes`.
#[inline]
unsafe fn pass_over(arena: &Arena, start: *const u8, at: usize, bytes: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if has_block(at, bytes) && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise; the processor has what the function is compiled for.
        return unsafe { pass_over_wide(arena, start, at, bytes) };
    }
    // SAFETY: the caller's promise.
    unsafe { pass_over_by_blocks(arena, start, at, bytes) }
}

/// The same code, compiled for vectors of eight words.
///
/// # Safety
/// As for [`pass_over`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn pass_over_wide(arena: &Arena, start: *const u8, at: usize, bytes: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { pass_over_by_blocks(arena, start, at, bytes) }
}

/// # Safety
/// As for [`pass_over`].
#[inline(always)]
unsafe fn pass_over_by_blocks(arena: &Arena, start: *const u8, mut at: usize, bytes: usize) -> usize {
    while has_block(at, bytes) {
        // SAFETY: the upper halves begin within the bytes that the caller vouches for.
        let first = unsafe { start.add(at + 4) };
        // SAFETY: as do they end; the read needs no alignment.
        let halves = unsafe { first.cast::<[u32; arena::HALVES]>().read_unaligned() };
        if arena.may_hold_any(&halves) {
            break;
        }
        at += BLOCK;
    }
    at
}

/// Calls `seen` with the words from `at` on that end at `end` at the latest.
///
/// # Safety
/// `start` is valid for reads of `end` bytes.
#[inline]
unsafe fn each_word(
    start: *const u8,
    mut at: usize,
    end: usize,
    step: usize,
    seen: &mut impl FnMut(usize, u64),
) {
    while at + 8 <= end {
        // SAFETY: the word ends within the bytes that the caller vouches for.
        let word = unsafe { start.add(at) };
        // SAFETY: as above; the read needs no alignment.
        seen(at, unsafe { word.cast::<u64>().read_unaligned() });
        at += step;
    }
}

/// Our own copy of a launch's parameters. Lives until the launch returned: the driver has copied it by then.
#[derive(Default)]
pub(crate) struct Patched {
    bytes: Vec<u64>,
    pointers: Vec<*mut c_void>,
    packed_size: usize,
}

impl Patched {
    /// Copies the parameters and replaces each `(word, address)` in the copy.
    ///
    /// # Safety
    /// As for [`Parameters::each_weight`]; the words were found in these parameters.
    pub(crate) unsafe fn fill(&mut self, from: Parameters, changes: impl Iterator<Item = (Found, u64)>) {
        let base = match from {
            // SAFETY: the caller's promise.
            Parameters::Each { pointers, layout } => unsafe { self.copy_each(pointers, layout) },
            // SAFETY: the caller's promise.
            Parameters::Packed { buffer, bytes } => unsafe { self.copy_packed(buffer, bytes) },
            Parameters::Nothing => return,
        };
        for (found, address) in changes {
            // SAFETY: the word lies within the block that was just copied.
            let word = unsafe { base.add(found.offset as usize) };
            // SAFETY: as above; the write needs no alignment.
            unsafe { word.cast::<u64>().write_unaligned(address) };
        }
    }

    unsafe fn copy_each(&mut self, pointers: *mut *mut c_void, layout: &Layout) -> *mut u8 {
        let end = layout.parameters.iter().map(|p| (p.offset + p.bytes) as usize).max().unwrap_or(0);
        let base = self.room(end);
        self.pointers.clear();
        for (index, parameter) in layout.parameters.iter().enumerate() {
            // SAFETY: one pointer for each parameter of the layout.
            let entry = unsafe { pointers.add(index) };
            // SAFETY: as above.
            let source = unsafe { *entry }.cast_const().cast::<u8>();
            // SAFETY: the block has room up to the layout's end.
            let target = unsafe { base.add(parameter.offset as usize) };
            // SAFETY: the source holds the parameter's bytes; the block is ours.
            unsafe { std::ptr::copy_nonoverlapping(source, target, parameter.bytes as usize) };
            self.pointers.push(target.cast());
        }
        base
    }

    unsafe fn copy_packed(&mut self, buffer: *const u8, bytes: usize) -> *mut u8 {
        let base = self.room(bytes);
        // SAFETY: the buffer holds this many bytes; the block is ours and has room for them.
        unsafe { std::ptr::copy_nonoverlapping(buffer, base, bytes) };
        self.packed_size = bytes;
        self.pointers.clear();
        let size_at = std::ptr::from_mut(&mut self.packed_size).cast();
        let keys = [BUFFER_POINTER, BUFFER_SIZE, 0].map(std::ptr::without_provenance_mut);
        self.pointers.extend([keys[0], base.cast(), keys[1], size_at, keys[2]]);
        base
    }

    /// A block of at least `bytes`, aligned for anything a parameter may be but a tensor map, which the driver copies bytewise.
    fn room(&mut self, bytes: usize) -> *mut u8 {
        self.bytes.clear();
        self.bytes.resize(bytes.div_ceil(8), 0);
        self.bytes.as_mut_ptr().cast()
    }

    /// What to pass as `kernelParams`, or as `extra` where the launch was packed.
    pub(crate) fn pointers(&mut self) -> *mut *mut c_void {
        self.pointers.as_mut_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::arena::PAGE;

    /// Where the arena may begin: amid a stretch of its own length, so that addresses in it have two different upper halves, and at the beginning of one.
    const BASES: [u64; 3] = [0x7f12_3456_7800_0000 & !(PAGE - 1), 1 << 44, 0x7e00_0020_0000];

    fn found(arena: &Arena, buffer: &[u8]) -> Vec<(u64, u32)> {
        let mut found = Vec::new();
        let packed = Parameters::Packed { buffer: buffer.as_ptr(), bytes: buffer.len() };
        // SAFETY: the buffer is as long as is said.
        unsafe { packed.each_address(arena, |word| found.push((word.address, word.offset))) };
        found
    }

    /// Every place in buffers of every length from one word to some blocks, first and last addresses of the arena and those beside them.
    #[test]
    fn an_address_is_found_wherever_it_stands_and_nothing_else_is() {
        for base in BASES {
            let arena = Arena::at(base);
            let last = base + arena.bytes() - 1;
            let outside = [base - 1, last + 1];
            for bytes in (8..BLOCK * 3 + 12).step_by(4) {
                for at in (0..=bytes - 8).step_by(4) {
                    for address in [base, base + (1 << 32), last] {
                        let mut buffer = vec![0_u8; bytes];
                        buffer[at..at + 8].copy_from_slice(&address.to_le_bytes());
                        let word = |other: usize| {
                            u64::from_le_bytes(buffer[other..other + 8].try_into().expect("eight bytes"))
                        };
                        let naive = (0..=bytes - 8).step_by(4).filter(|&other| arena.contains(word(other)));
                        let naive: Vec<_> = naive.map(|other| (word(other), other as u32)).collect();
                        assert_eq!(found(&arena, &buffer), naive, "{base:#x}, {bytes} bytes, at {at}");
                        assert!(naive.contains(&(address, at as u32)));
                    }
                    for address in outside {
                        let mut buffer = vec![0_u8; bytes];
                        buffer[at..at + 8].copy_from_slice(&address.to_le_bytes());
                        assert!(found(&arena, &buffer).is_empty(), "{address:#x} is beside {base:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn several_addresses_in_one_block_are_each_found_once_in_order() {
        let arena = Arena::at(1 << 44);
        let words: Vec<u64> = (0..40).map(|at| if at % 3 == 0 { (1 << 44) + at } else { at }).collect();
        let buffer: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let offsets: Vec<u32> = found(&arena, &buffer).iter().map(|&(_, offset)| offset).collect();
        assert_eq!(offsets, (0..40).step_by(3).map(|at| at * 8).collect::<Vec<u32>>());
    }
}
