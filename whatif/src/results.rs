//! From the lines of the benchmark (bench/results) to charts: milliseconds against the GPU memory that weights
//! took, one chart for each case, one line for each mode, the bound drawn in.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::chart::{Chart, Line, Stroke};
use crate::error::WhatIfError;
use crate::sweep::gib;

/// What is read of one line; the others of its keys are left alone.
#[derive(Debug, Clone, Deserialize)]
struct Measured {
    case: String,
    mode: String,
    #[serde(default)]
    budget_bytes: Option<f64>,
    #[serde(default)]
    weights_gpu_bytes: Option<f64>,
    #[serde(default)]
    weights_bytes: Option<f64>,
    ms: Option<f64>,
    #[serde(default)]
    native_ms: Option<f64>,
    #[serde(default)]
    link_bytes_per_s: Option<f64>,
}

/// Points of a bound's line.
const BOUND_POINTS: u32 = 64;
/// Modes that are the program without any streaming.
const NATIVE: &str = "native";
/// The program under our library, switched off: it says nothing about memory.
const OFF: &str = "off";

/// The charts of these files, each a name and its text (JSON, one object a line), in the order in which cases first
/// appear; with `case`, only that one. Runs that failed have no time and are left out.
///
/// # Errors
/// [`WhatIfError::BadResult`] names the first line that is none; [`WhatIfError::NoCase`] and
/// [`WhatIfError::Nothing`] when no run is left.
pub fn charts(files: &[(String, String)], case: Option<&str>) -> Result<Vec<Chart>, WhatIfError> {
    let mut cases: Vec<(String, Vec<Measured>)> = Vec::new();
    for (file, text) in files {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let bad = |error: serde_json::Error| WhatIfError::BadResult {
                file: file.clone(),
                line: at + 1,
                why: error.to_string(),
            };
            let measured: Measured = serde_json::from_str(line).map_err(bad)?;
            match cases.iter_mut().find(|(name, _)| *name == measured.case) {
                Some((_, runs)) => runs.push(measured),
                None => cases.push((measured.case.clone(), vec![measured])),
            }
        }
    }
    let known = cases.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>().join(", ");
    let wanted = cases.into_iter().filter(|(name, _)| case.is_none_or(|case| case == name));
    let charts: Vec<Chart> = wanted.filter_map(|(name, runs)| chart(&name, &runs)).collect();
    match case.filter(|_| charts.is_empty()) {
        Some(case) => Err(WhatIfError::NoCase { given: case.to_owned(), known }),
        None if charts.is_empty() => Err(WhatIfError::Nothing),
        None => Ok(charts),
    }
}

fn chart(case: &str, runs: &[Measured]) -> Option<Chart> {
    let mut modes: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.mode != NATIVE && run.mode != OFF) {
        let bytes = run.weights_gpu_bytes.or(run.budget_bytes).filter(|bytes| *bytes > 0.0);
        if let (Some(bytes), Some(ms)) = (bytes, run.ms.filter(|ms| *ms > 0.0)) {
            modes.entry(&run.mode).or_default().push((gib(bytes), ms));
        }
    }
    let mut lines: Vec<Line> = modes
        .into_iter()
        .map(|(mode, mut points)| {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Line { label: mode.to_owned(), stroke: Stroke::Marked, points }
        })
        .collect();
    // Ours first, so that it has the first colour in every chart.
    lines.sort_by_key(|line| line.label != "flextensor");
    lines.extend(references(runs));
    (!lines.is_empty()).then(|| {
        let chart = Chart {
            title: case.to_owned(),
            along: "GPU memory of weights, GiB".into(),
            upward: "milliseconds a forward".into(),
            lines,
            ..Chart::default()
        };
        chart.scaled()
    })
}

/// The bound and the native time, as far as the runs tell them.
fn references(runs: &[Measured]) -> Vec<Line> {
    let first = |read: fn(&Measured) -> Option<f64>| runs.iter().find_map(read).filter(|value| *value > 0.0);
    let native_run = runs.iter().find(|run| run.mode == NATIVE).and_then(|run| run.ms);
    let Some(native_ms) = native_run.or_else(|| first(|run| run.native_ms)) else { return Vec::new() };
    let mut lines = Vec::new();
    let weights = first(|run| run.weights_bytes);
    if let (Some(weights), Some(link)) = (weights, first(|run| run.link_bytes_per_s)) {
        let point = |at: u32| {
            let held = weights * f64::from(at) / f64::from(BOUND_POINTS);
            (gib(held), native_ms.max((weights - held) / link * 1e3))
        };
        let points = (0..=BOUND_POINTS).map(point).collect();
        lines.push(Line { label: "bound".into(), stroke: Stroke::Limit, points });
    }
    if let Some(weights) = weights {
        let points = vec![(0.0, native_ms), (gib(weights), native_ms)];
        lines.push(Line { label: "native".into(), stroke: Stroke::Reference, points });
    }
    lines
}

#[cfg(test)]
#[path = "results_tests.rs"]
mod tests;
