//! One steady pass as bars: copies on the link, computing and waiting on the GPU. Simulating it is core's job,
//! drawing it is [`crate::draw`]'s.

use std::collections::BTreeMap;

use flextensor_core::plan::{Plan, PlanRequest};
use flextensor_core::simulate::{Span, SpanKind, simulate};

use crate::error::WhatIfError;

/// Bars narrower than this part of the whole are joined with their neighbours: they could not be seen.
const NARROWEST: f64 = 1.0 / 2400.0;

/// What a bar stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BarKind {
    /// The link copies.
    Copy,
    /// The GPU computes.
    Compute,
    /// The GPU waits for a copy.
    Wait,
}

/// One bar, in milliseconds from the start of the pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// What it stands for.
    pub kind: BarKind,
    /// Start.
    pub start_ms: f64,
    /// End.
    pub end_ms: f64,
    /// Neighbours differ in it, so that they can be told apart.
    pub odd: bool,
}

/// The bars of a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// Its heading.
    pub title: String,
    /// Left edge: 0, or below it where copies run ahead of the pass.
    pub from_ms: f64,
    /// Right edge.
    pub to_ms: f64,
    /// All bars, by kind, then by start.
    pub bars: Vec<Bar>,
}

/// The timeline of one steady cycle (one pass of every model) under a plan.
///
/// # Errors
/// [`WhatIfError::Core`] when the plan does not fit the request.
pub fn timeline(request: &PlanRequest, plan: &Plan, title: String) -> Result<Timeline, WhatIfError> {
    let simulation = simulate(request, plan, true)?;
    let spans = &simulation.timeline;
    let from_ms = spans.iter().map(|span| span.start_ms).fold(0.0, f64::min);
    let last_ms = spans.iter().map(|span| span.end_ms).fold(0.0, f64::max);
    let to_ms = last_ms.max(simulation.cycle_ms).max(f64::MIN_POSITIVE);
    let mut lanes = Lanes { narrowest: (to_ms - from_ms) * NARROWEST, lanes: BTreeMap::new() };
    lanes.fill(spans, simulation.cycle_ms);
    Ok(Timeline { title, from_ms, to_ms, bars: lanes.bars() })
}

/// The bars of each kind, as they grow.
struct Lanes {
    narrowest: f64,
    lanes: BTreeMap<BarKind, Vec<Joined>>,
}

impl Lanes {
    /// Sorts spans into lanes. What lies between two uses and is no wait is computing as well: the end of a pass,
    /// which needs no weight.
    fn fill(&mut self, spans: &[Span], cycle_ms: f64) {
        let mut free_ms = 0.0;
        let mut owner = usize::MAX;
        for span in spans {
            if span.kind == SpanKind::Copy {
                self.add(BarKind::Copy, span.use_index, span.start_ms, span.end_ms);
                continue;
            }
            let waits_ms = span.start_ms - span.wait_ms;
            self.add(BarKind::Compute, owner, free_ms, waits_ms);
            self.add(BarKind::Wait, span.use_index, waits_ms, span.start_ms);
            self.add(BarKind::Compute, span.use_index, span.start_ms, span.end_ms);
            (owner, free_ms) = (span.use_index, span.end_ms);
        }
        self.add(BarKind::Compute, owner, free_ms, cycle_ms);
    }

    fn add(&mut self, kind: BarKind, owner: usize, start_ms: f64, end_ms: f64) {
        if end_ms - start_ms <= 0.0 {
            return;
        }
        let next = Joined { owner, start_ms, end_ms };
        let lane = self.lanes.entry(kind).or_default();
        match lane.last_mut().filter(|last| last.takes(&next, self.narrowest)) {
            Some(last) => last.end_ms = next.end_ms,
            None => lane.push(next),
        }
    }

    fn bars(self) -> Vec<Bar> {
        let drawn = self.lanes.into_iter().flat_map(|(kind, lane)| {
            lane.into_iter().enumerate().map(move |(at, bar)| Bar {
                kind,
                start_ms: bar.start_ms,
                end_ms: bar.end_ms,
                odd: at % 2 == 1,
            })
        });
        drawn.collect()
    }
}

/// Spans that are drawn as one bar.
struct Joined {
    owner: usize,
    start_ms: f64,
    end_ms: f64,
}

impl Joined {
    /// Whether the next span belongs to this bar: no gap that can be seen lies between, and it is the same use's
    /// or too narrow to be told apart.
    fn takes(&self, next: &Joined, narrowest: f64) -> bool {
        let adjacent = next.start_ms - self.end_ms <= narrowest;
        let narrow = self.end_ms - self.start_ms < narrowest || next.end_ms - next.start_ms < narrowest;
        adjacent && (self.owner == next.owner || narrow)
    }
}
