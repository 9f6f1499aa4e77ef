//! The kernels of a small transformer in 32-bit floats. Sums run in a fixed order, so equal inputs give equal bits.
//!
//! Results are written at the end of a run; the run compares all inputs at its start, middle and end.

use super::call::Run;
use super::layout::{Arguments, Kernel, Phase};
use crate::exec::hazard::Use;
use crate::memory::access;
use crate::memory::space::Denied;

impl Run<'_> {
    /// The floats at the address in parameter `index`.
    fn floats(&self, index: usize, count: u64) -> Result<Vec<f32>, Denied> {
        let bits = access::load(self.device, self.arguments.word(index), count)?;
        Ok(bits.into_iter().map(f32::from_bits).collect())
    }

    /// Stores the result at the address in parameter 0.
    fn result(&self, values: &[f32]) -> Result<(), Denied> {
        let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        access::store(self.device, self.arguments.word(0), &bits)
    }

    fn number(&self, index: usize) -> u64 {
        self.arguments.number(index)
    }
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

fn gemv_batch(run: &Run) -> Result<(), Denied> {
    let (rows, columns, batch) = (run.number(3), run.number(4), run.number(5));
    let (weight, input) = (run.floats(1, rows * columns)?, run.floats(2, batch * columns)?);
    let width = columns.max(1) as usize;
    let mut result = Vec::with_capacity((batch * rows) as usize);
    for vector in input.chunks_exact(width) {
        result.extend(weight.chunks_exact(width).map(|row| dot(row, vector)));
    }
    run.result(&result)
}

fn rmsnorm(run: &Run) -> Result<(), Denied> {
    let (dim, batch, epsilon) = (run.number(3), run.number(4), run.arguments.float(5));
    let (input, weight) = (run.floats(1, dim * batch)?, run.floats(2, dim)?);
    let mut result = Vec::with_capacity(input.len());
    for vector in input.chunks_exact(dim.max(1) as usize) {
        let scale = 1.0 / (dot(vector, vector) / dim as f32 + epsilon).sqrt();
        result.extend(vector.iter().zip(&weight).map(|(value, weight)| value * scale * weight));
    }
    run.result(&result)
}

fn pairwise(run: &Run, combine: fn(f32, f32) -> f32) -> Result<(), Denied> {
    let count = run.number(3);
    let (left, right) = (run.floats(1, count)?, run.floats(2, count)?);
    let result: Vec<f32> = left.iter().zip(&right).map(|(a, b)| combine(*a, *b)).collect();
    run.result(&result)
}

fn silu_mul(run: &Run) -> Result<(), Denied> {
    pairwise(run, |a, b| a / (1.0 + (-a).exp()) * b)
}

fn add(run: &Run) -> Result<(), Denied> {
    pairwise(run, |a, b| a + b)
}

/// The rows of the table that the ids name, as (address, token).
fn embedded_rows(run: &Run) -> Result<Vec<u64>, Denied> {
    let (dim, count) = (run.number(3), run.number(4));
    let ids = access::load(run.device, run.arguments.word(2), count)?;
    Ok(ids.into_iter().map(|id| run.arguments.word(1) + u64::from(id) * dim * 4).collect())
}

fn embed(run: &Run) -> Result<(), Denied> {
    let dim = run.number(3);
    let mut result = Vec::new();
    for row in embedded_rows(run)? {
        result.extend(access::load(run.device, row, dim)?.into_iter().map(f32::from_bits));
    }
    run.result(&result)
}

fn embed_reads(run: &Run) -> Result<Vec<Use>, Denied> {
    let bytes = run.number(3) * 4;
    Ok(embedded_rows(run)?.into_iter().map(|row| Use::read(row, bytes)).collect())
}

/// Causal attention of `heads` heads of `dim` over `tokens`; all tensors are `[tokens][heads * dim]`.
fn attention(run: &Run) -> Result<(), Denied> {
    let (heads, dim, tokens) = (run.number(4) as usize, run.number(5) as usize, run.number(6) as usize);
    let width = heads * dim;
    let size = (width * tokens) as u64;
    let (q, k, v) = (run.floats(1, size)?, run.floats(2, size)?, run.floats(3, size)?);
    let mut result = vec![0.0; width * tokens];
    let scale = 1.0 / (dim as f32).sqrt();
    for token in 0..tokens {
        for head in 0..heads {
            let at = |position: usize| position * width + head * dim..position * width + (head + 1) * dim;
            let query = &q[at(token)];
            let scores: Vec<f32> = (0..=token).map(|past| dot(query, &k[at(past)]) * scale).collect();
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| (score - top).exp()).collect();
            let sum: f32 = weights.iter().sum();
            for (past, weight) in weights.iter().enumerate() {
                for (out, value) in result[at(token)].iter_mut().zip(&v[at(past)]) {
                    *out += weight / sum * value;
                }
            }
        }
    }
    run.result(&result)
}

/// `counts` = floats behind parameters 0, 1, 2 ...; the first is written.
fn uses(arguments: &Arguments, counts: &[u64]) -> Vec<Use> {
    let used = |(index, count): (usize, &u64)| Use {
        address: arguments.word(index),
        bytes: count * 4,
        writes: index == 0,
    };
    counts.iter().enumerate().map(used).collect()
}

macro_rules! at_end {
    ($body:path) => {
        |run, phase| if phase == Phase::End { $body(run) } else { Ok(()) }
    };
}

const fn kernel(
    name: &'static str,
    parameters: &'static [usize],
    uses: fn(&Arguments) -> Vec<Use>,
    body: fn(&Run, Phase) -> Result<(), Denied>,
) -> Kernel {
    Kernel { name, parameters, uses, indirect: None, compare_inputs: true, body }
}

pub(super) static KERNELS: &[Kernel] = &[
    // gemv_batch(out, weight, x, rows u32, columns u32, batch u32)
    kernel(
        "gemv_batch",
        &[8, 8, 8, 4, 4, 4],
        |a| {
            let (rows, columns, batch) = (a.number(3), a.number(4), a.number(5));
            uses(a, &[batch * rows, rows * columns, batch * columns])
        },
        at_end!(gemv_batch),
    ),
    // rmsnorm(out, x, weight, dim u32, batch u32, epsilon f32)
    kernel(
        "rmsnorm",
        &[8, 8, 8, 4, 4, 4],
        |a| uses(a, &[a.number(3) * a.number(4), a.number(3) * a.number(4), a.number(3)]),
        at_end!(rmsnorm),
    ),
    // silu_mul(out, a, b, count u32)
    kernel("silu_mul", &[8, 8, 8, 4], |a| uses(a, &[a.number(3); 3]), at_end!(silu_mul)),
    // add(out, a, b, count u32)
    kernel("add", &[8, 8, 8, 4], |a| uses(a, &[a.number(3); 3]), at_end!(add)),
    // embed(out, table, ids, dim u32, count u32)
    Kernel {
        name: "embed",
        parameters: &[8, 8, 8, 4, 4],
        uses: |a| {
            let count = a.number(4);
            vec![Use::write(a.word(0), count * a.number(3) * 4), Use::read(a.word(2), count * 4)]
        },
        indirect: Some(embed_reads),
        compare_inputs: true,
        body: at_end!(embed),
    },
    // attention(out, q, k, v, heads u32, dim u32, tokens u32)
    kernel(
        "attention",
        &[8, 8, 8, 8, 4, 4, 4],
        |a| uses(a, &[a.number(4) * a.number(5) * a.number(6); 4]),
        at_end!(attention),
    ),
];
