//! Whether weights of which passes read single rows belong in host memory. There they take no memory and are never copied, but the pass waits while its
//! rows come over the link: nothing can be done ahead, because the program says which rows only when it reads them. How they get there is the runtime's matter.

use crate::error::CoreError;
use crate::plan::judge::SAME_TIME;
use crate::plan::{Forecast, PassProfile, PlanRequest, search};

/// Bytes a millisecond that a kernel gathers from the GPU's own memory, read and written: the fastest memory of today, so that rows are never thought too few.
const GATHERED_PER_MS: f64 = 1.8e9;
/// Milliseconds of a use that are no reading: the launch, and what the events beside it take.
const LAUNCH_MS: f64 = 0.005;

/// A weight of which passes read single rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Bytes of GPU memory that it takes where it lies there.
    pub bytes: u64,
    /// For each pass of the request, in its order: milliseconds that the uses of the table take with all of it on the GPU.
    pub use_ms: Vec<f64>,
}

impl Table {
    /// Milliseconds by which its rows make a pass longer where they come over a link that carries so many bytes a millisecond.
    fn row_ms(&self, pass: usize, link_bytes_per_ms: f64) -> f64 {
        let ms = self.use_ms.get(pass).copied().unwrap_or(0.0);
        let read = ((ms - LAUNCH_MS).max(0.0) * GATHERED_PER_MS).min(self.bytes as f64);
        read / link_bytes_per_ms
    }
}

/// Whether passes take less time with these tables in host memory than with them on the GPU, on average over all shapes and each by its best plan: their rows against what their memory
/// saves the others from being copied. `others`: all that is planned for without the tables.
///
/// # Errors
/// As [`crate::plan::plan`].
pub fn rows_pay(others: &PlanRequest, tables: &[Table]) -> Result<bool, CoreError> {
    let bytes = tables.iter().map(|table| table.bytes).fold(0, u64::saturating_add);
    let beside = PlanRequest { fixed_bytes: others.fixed_bytes.saturating_add(bytes), ..others.clone() };
    let (in_host, on_gpu) = (search::plan(others)?, search::plan(&beside)?);
    // The bound says too little: a ring that hides all copies may need more than the budget leaves beside the tables.
    if on_gpu.budget_missed().is_some() {
        return Ok(true);
    }
    let link = others.link.peak_bytes_per_ms();
    let ratio = |(in_host, on_gpu): (&Forecast, &Forecast)| {
        let in_turn = |pass: &PassProfile| in_host.shapes.contains(&(pass.model, pass.shape));
        let passes = others.passes.iter().enumerate().filter(|(_, pass)| in_turn(pass));
        let rows: f64 =
            passes.map(|(at, _)| tables.iter().map(|table| table.row_ms(at, link)).sum::<f64>()).sum();
        (in_host.predicted_ms + rows) / on_gpu.predicted_ms.max(f64::MIN_POSITIVE)
    };
    let ratios: Vec<f64> = in_host.forecasts.iter().zip(&on_gpu.forecasts).map(ratio).collect();
    Ok(ratios.iter().sum::<f64>() <= SAME_TIME * ratios.len() as f64)
}
