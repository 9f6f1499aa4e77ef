//! Kernels that write and verify the test pattern: word `i` of a range with seed `s` is `mix(s, i)`.

use super::call::Run;
use super::layout::{Arguments, Kernel, Phase};
use crate::exec::hazard::Use;
use crate::memory::access;
use crate::memory::space::Denied;
use std::thread;
use std::time::Duration;

/// The pattern. Programs compute the same one (docs/simcuda.md).
pub(crate) fn mix(seed: u64, index: u64) -> u64 {
    let mut word = (index ^ seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word ^= word >> 29;
    word.wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ seed
}

/// The part of `words` that a writer does in a phase, so that its bytes change over the whole run.
pub(super) fn share(words: u64, phase: Phase) -> (u64, u64) {
    let third = words / 3;
    match phase {
        Phase::Start => (0, third),
        Phase::Middle => (third, third),
        Phase::End => (2 * third, words - 2 * third),
    }
}

fn write_pattern(run: &Run, phase: Phase) -> Result<(), Denied> {
    let (target, seed) = (run.arguments.word(0), run.arguments.word(2));
    let (first, count) = share(run.arguments.word(1) / 8, phase);
    access::write_words(run.device, target + first * 8, count, |index, _| mix(seed, first + index))
}

/// Counts the words of a range that differ from the pattern.
pub(super) fn verify(run: &Run, address: u64, bytes: u64, seed: u64, counter: u64) -> Result<(), Denied> {
    let mut wrong = 0;
    access::read_words(run.device, address, bytes / 8, |index, word| {
        wrong += u64::from(word != mix(seed, index));
    })?;
    if wrong > 0 { access::add(run.device, counter, wrong) } else { Ok(()) }
}

fn check(run: &Run, _: Phase) -> Result<(), Denied> {
    let word = |index| run.arguments.word(index);
    verify(run, word(0), word(1), word(2), word(3))
}

fn check_slow(run: &Run, phase: Phase) -> Result<(), Denied> {
    if phase != Phase::Start {
        thread::sleep(Duration::from_micros(run.arguments.word(4)) / 2);
    }
    check(run, phase)
}

fn check_struct(run: &Run, _: Phase) -> Result<(), Denied> {
    // Word 0 is the stale one: a pointer that the kernel never follows.
    let word = |index| run.arguments.struct_word(0, index);
    verify(run, word(1), word(2), word(3), word(4))
}

fn check_two(run: &Run, _: Phase) -> Result<(), Denied> {
    let word = |index| run.arguments.word(index);
    verify(run, word(0), word(1), word(2), word(6))?;
    verify(run, word(3), word(4), word(5), word(6))
}

fn scale_inplace(run: &Run, phase: Phase) -> Result<(), Denied> {
    let (address, add) = (run.arguments.word(0), run.arguments.word(2));
    let (first, count) = share(run.arguments.word(1), phase);
    access::write_words(run.device, address + first * 8, count, |_, old| old.wrapping_add(add))
}

fn copy_words(run: &Run, phase: Phase) -> Result<(), Denied> {
    let (target, source) = (run.arguments.word(0), run.arguments.word(1));
    let (first, count) = share(run.arguments.word(2), phase);
    let mut words = Vec::with_capacity(count as usize);
    access::read_words(run.device, source + first * 8, count, |_, word| words.push(word))?;
    access::write_words(run.device, target + first * 8, count, |index, _| words[index as usize])
}

fn pause(run: &Run, phase: Phase) -> Result<(), Denied> {
    if phase != Phase::Start {
        thread::sleep(Duration::from_micros(run.arguments.word(0)) / 2);
    }
    Ok(())
}

fn writes_range(arguments: &Arguments) -> Vec<Use> {
    vec![Use::write(arguments.word(0), arguments.word(1) / 8 * 8)]
}

fn reads_range(arguments: &Arguments) -> Vec<Use> {
    vec![Use::read(arguments.word(0), arguments.word(1) / 8 * 8)]
}

const fn kernel(
    name: &'static str,
    parameters: &'static [usize],
    uses: fn(&Arguments) -> Vec<Use>,
    body: fn(&Run, Phase) -> Result<(), Denied>,
) -> Kernel {
    Kernel { name, parameters, uses, indirect: None, compare_inputs: false, body }
}

pub(super) static KERNELS: &[Kernel] = &[
    // fill(target, bytes, seed)
    kernel("fill", &[8, 8, 8], writes_range, write_pattern),
    // write_words(target, bytes, seed): fill under another name, for kernels whose role is to write weights
    kernel("write_words", &[8, 8, 8], writes_range, write_pattern),
    // check(weight, bytes, seed, mismatches)
    kernel("check", &[8, 8, 8, 8], reads_range, check),
    // check_slow(weight, bytes, seed, mismatches, microseconds)
    kernel("check_slow", &[8, 8, 8, 8, 8], reads_range, check_slow),
    // check_struct({stale, weight, bytes, seed, mismatches, pad, pad, pad})
    kernel(
        "check_struct",
        &[64],
        |arguments| vec![Use::read(arguments.struct_word(0, 1), arguments.struct_word(0, 2) / 8 * 8)],
        check_struct,
    ),
    // check_two(weight, bytes, seed, weight, bytes, seed, mismatches)
    kernel(
        "check_two",
        &[8, 8, 8, 8, 8, 8, 8],
        |arguments| {
            let range = |first| Use::read(arguments.word(first), arguments.word(first + 1) / 8 * 8);
            vec![range(0), range(3)]
        },
        check_two,
    ),
    // scale_inplace(weight, words, add)
    kernel(
        "scale_inplace",
        &[8, 8, 8],
        |arguments| vec![Use::write(arguments.word(0), arguments.word(1) * 8)],
        scale_inplace,
    ),
    // copy_words(target, source, words)
    kernel(
        "copy_words",
        &[8, 8, 8],
        |arguments| {
            let bytes = arguments.word(2) * 8;
            vec![Use::write(arguments.word(0), bytes), Use::read(arguments.word(1), bytes)]
        },
        copy_words,
    ),
    // pause(microseconds)
    kernel("pause", &[8], |_| Vec::new(), pause),
];
