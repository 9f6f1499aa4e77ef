//! Finds the addresses of weights in what a launch passes to its kernel, and makes a copy of the parameters in which chosen words point elsewhere.
//! What an address means is the arena's word; what follows from it is `launch`'s.

#![expect(unsafe_code, reason = "reads the parameters that the program passes to the driver")]

use super::arena::{Arena, Meaning};
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
                    // SAFETY: the pointer leads to the parameter's bytes.
                    unsafe {
                        words(start, parameter.bytes as usize, 8, |at, address| {
                            if arena.contains(address) {
                                let meaning = arena.meaning(address);
                                seen(Found { meaning, address, offset: parameter.offset + at as u32 });
                            }
                        })
                    };
                }
            }
            // SAFETY: the caller passes a buffer of this size.
            Parameters::Packed { buffer, bytes } => unsafe {
                words(buffer, bytes, 4, |at, address| {
                    if arena.contains(address) {
                        let meaning = arena.meaning(address);
                        seen(Found { meaning, address, offset: at as u32 });
                    }
                });
            },
            Parameters::Nothing => {}
        }
    }
}

/// Calls `seen` with every 64-bit word at a multiple of `step`.
///
/// # Safety
/// `start` is valid for reads of `bytes`.
#[inline]
unsafe fn words(start: *const u8, bytes: usize, step: usize, mut seen: impl FnMut(usize, u64)) {
    let mut at = 0;
    while at + 8 <= bytes {
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
