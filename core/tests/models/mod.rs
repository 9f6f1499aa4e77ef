//! Models to plan for: the measured Llama, and requests made of a few numbers.
#![allow(dead_code, reason = "every test program uses its own part of this module")]

pub(crate) mod random;
pub(crate) mod rules;

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{PassProfile, PlanRequest, UnitInfo, UseInfo};
use flextensor_core::units::{ModelId, UnitId};

/// Pages of today's GPUs.
pub(crate) const PAGE: u64 = PlanRequest::PAGE_BYTES;

/// A streamable unit of whole pages.
pub(crate) fn unit(id: u32, pages: u64, splittable: bool) -> UnitInfo {
    UnitInfo {
        id: UnitId(id),
        name: format!("weight {id}"),
        bytes: pages * PAGE,
        pages,
        splittable,
        stay: None,
    }
}

/// A pass over these uses (unit, milliseconds, owner).
pub(crate) fn pass(model: u64, uses: &[(u32, f64, u32)], tail_ms: f64) -> PassProfile {
    let uses =
        uses.iter().map(|&(unit, compute_ms, owner)| UseInfo { unit: UnitId(unit), compute_ms, owner });
    PassProfile {
        model: ModelId(model),
        shape: 1,
        uses: uses.collect(),
        tail_ms,
        resident_ms: 0.0,
        host_ms: 0.0,
    }
}

/// A model whose units are used once each, in order, each by its own owner.
pub(crate) fn chain(pages: &[u64], ms: f64, splittable: bool) -> PlanRequest {
    let ids = 0..pages.len() as u32;
    let uses: Vec<_> = ids.clone().map(|id| (id, ms, id)).collect();
    PlanRequest {
        units: ids.zip(pages).map(|(id, &pages)| unit(id, pages, splittable)).collect(),
        passes: vec![pass(1, &uses, 0.0)],
        ..PlanRequest::default()
    }
}

/// How the Llama computes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// 4096 tokens: time follows the weights' sizes, and attention comes on top.
    Prefill,
    /// One token.
    Decode,
    /// Ten times the prefill's time on the same weights, as a diffusion transformer computes.
    Diffusion,
}

/// The request with this part of all weights as its budget.
pub(crate) fn with_percent(request: PlanRequest, percent: u64) -> PlanRequest {
    PlanRequest { budget: Some(request.total_bytes() / 100 * percent), ..request }
}

/// 16 layers of the 70B shape in bf16, 26.48 GiB, with the pass times measured on one H200.
pub(crate) fn llama(work: Work, budget: Option<u64>) -> PlanRequest {
    const LAYER: [(&str, u64); 7] =
        [("q", 64), ("k", 8), ("v", 8), ("o", 64), ("gate", 224), ("up", 224), ("down", 224)];
    let mut units = vec![("embed".to_owned(), 250)];
    for layer in 0..16 {
        units.extend(LAYER.iter().map(|(name, pages)| (format!("layers.{layer}.{name}"), *pages)));
    }
    units.push(("lm_head".to_owned(), 250));
    let computing: u64 = units.iter().skip(1).map(|(_, pages)| pages).sum();
    let (pass_ms, attention_ms) = match work {
        Work::Prefill => (203.5, 0.75),
        Work::Decode => (13.4, 0.01),
        Work::Diffusion => (2035.0, 7.5),
    };
    let per_page = (pass_ms - 16.0 * attention_ms - 0.05) / computing as f64;
    let uses: Vec<_> = units
        .iter()
        .enumerate()
        .map(|(at, (name, pages))| {
            let ms = match name.as_str() {
                "embed" => 0.05,
                attended if attended.ends_with(".o") => per_page * *pages as f64 + attention_ms,
                _ => per_page * *pages as f64,
            };
            (at as u32, ms, at as u32)
        })
        .collect();
    PlanRequest {
        budget,
        units: (0..)
            .zip(&units)
            .map(|(id, (name, pages))| UnitInfo { name: name.clone(), ..unit(id, *pages, true) })
            .collect(),
        passes: vec![pass(1, &uses, 0.0)],
        link: LinkCurve::default(),
        ..PlanRequest::default()
    }
}

/// Layers of weights of 3 MiB that torch packs into segments of 20 MiB: six weights on nine whole pages, and the
/// rest of the last page free. Every weight is used on its own, the whole pages of a segment are streamed.
pub(crate) fn small_weights(layers: u32, ms: f64) -> PlanRequest {
    const WEIGHTS: u32 = 36;
    const OF_A_SEGMENT: u32 = 6;
    let weights = layers * WEIGHTS;
    let uses: Vec<_> = (0..weights).map(|at| (at / OF_A_SEGMENT, ms / f64::from(weights), at)).collect();
    PlanRequest {
        units: (0..weights / OF_A_SEGMENT).map(|id| unit(id, 9, true)).collect(),
        passes: vec![pass(1, &uses, 0.0)],
        ..PlanRequest::default()
    }
}
