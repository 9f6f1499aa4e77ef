//! Kernels that reach weights through addresses in device memory: the launch that reads them does not show them.

use super::call::Run;
use super::checking::verify;
use super::layout::{Arguments, Kernel, Phase};
use crate::exec::hazard::Use;
use crate::memory::access;
use crate::memory::space::Denied;

/// Most addresses in one array.
const MOST: u64 = 4;

fn prepare(run: &Run, phase: Phase) -> Result<(), Denied> {
    if phase != Phase::End {
        return Ok(());
    }
    let count = run.arguments.word(5).min(MOST);
    access::write_words(run.device, run.arguments.word(0), count, |index, _| {
        run.arguments.word(1 + index as usize)
    })
}

fn prepared(arguments: &Arguments) -> Vec<Use> {
    vec![Use::write(arguments.word(0), arguments.word(5).min(MOST) * 8)]
}

fn array(arguments: &Arguments) -> Vec<Use> {
    vec![Use::read(arguments.word(0), arguments.word(1).min(MOST) * 8)]
}

fn addresses(run: &Run) -> Result<Vec<u64>, Denied> {
    let mut found = Vec::new();
    access::read_words(run.device, run.arguments.word(0), run.arguments.word(1).min(MOST), |_, word| {
        found.push(word)
    })?;
    Ok(found)
}

fn reached(run: &Run) -> Result<Vec<Use>, Denied> {
    let bytes = run.arguments.word(2) / 8 * 8;
    Ok(addresses(run)?.into_iter().map(|address| Use::read(address, bytes)).collect())
}

fn check_indirect(run: &Run, _: Phase) -> Result<(), Denied> {
    let arguments = run.arguments;
    for (index, address) in addresses(run)?.into_iter().enumerate() {
        verify(run, address, arguments.word(2), arguments.struct_word(3, index), arguments.word(4))?;
    }
    Ok(())
}

pub(super) static KERNELS: &[Kernel] = &[
    // prepare_pointers(array, weight, weight, weight, weight, count)
    Kernel {
        name: "prepare_pointers",
        parameters: &[8, 8, 8, 8, 8, 8],
        uses: prepared,
        indirect: None,
        compare_inputs: false,
        body: prepare,
    },
    // check_indirect(array, count, bytes, {seed, seed, seed, seed}, mismatches)
    Kernel {
        name: "check_indirect",
        parameters: &[8, 8, 8, 32, 8],
        uses: array,
        indirect: Some(reached),
        compare_inputs: false,
        body: check_indirect,
    },
];
