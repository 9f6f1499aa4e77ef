//! When each copy and each use of a cycle happens, given what must have ended before.
//! Which copies there are is worked out in `simulate` and `simulate::ring`.

/// Milliseconds between an event and the work on another stream that waited for it: the cost of every wait
/// that really waits.
const HAND_OVER_MS: f64 = 0.003;
/// A cycle is steady when every time has moved on by the same period, up to this part of it.
const STEADY: f64 = 1e-7;

/// One use of a course; units are named by their position in the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct DenseUse {
    pub(super) unit: usize,
    /// Milliseconds of this use.
    pub(super) compute_ms: f64,
    /// Milliseconds after it until the pass ends; 0 for all uses but the last.
    pub(super) tail_ms: f64,
    /// First use of the group that is held together with it.
    pub(super) group_first: usize,
    /// Last use of that group.
    pub(super) group_last: usize,
}

/// A chunk to be copied for a use, and the use that must have ended before: its position, counted over the
/// previous and this cycle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub(super) pages: u64,
    pub(super) ms: f64,
    pub(super) gate: Option<usize>,
}

/// The copies of one cycle, in order, and how many of them are for each use.
#[derive(Debug)]
pub(super) struct Copies {
    pub(super) chunks: Vec<Chunk>,
    pub(super) counts: Vec<usize>,
}

/// The times of one cycle and the one before, in milliseconds since the first cycle began.
#[derive(Debug)]
pub(super) struct Clock {
    link_free: f64,
    pub(super) cycle_start: f64,
    cycle_end: f64,
    pub(super) ends: Vec<f64>,
    ends_before: Vec<f64>,
    pub(super) copied: Vec<f64>,
    copied_before: Vec<f64>,
    pub(super) waits: Vec<f64>,
    /// How long the link had nothing to do before each chunk.
    pub(super) idle: Vec<f64>,
}

impl Clock {
    pub(super) fn new(uses: usize, chunks: usize) -> Self {
        Clock {
            link_free: 0.0,
            cycle_start: 0.0,
            cycle_end: 0.0,
            ends: vec![0.0; uses],
            ends_before: vec![0.0; uses],
            copied: vec![0.0; chunks],
            copied_before: vec![0.0; chunks],
            waits: vec![0.0; uses],
            idle: vec![0.0; chunks],
        }
    }

    /// One cycle; returns how long it took.
    pub(super) fn cycle(&mut self, uses: &[DenseUse], copies: &Copies) -> f64 {
        std::mem::swap(&mut self.ends, &mut self.ends_before);
        std::mem::swap(&mut self.copied, &mut self.copied_before);
        self.cycle_start = self.cycle_end;
        let mut chunks = copies.chunks.iter().zip(&mut self.copied).zip(&mut self.idle);
        for (index, (used, &count)) in uses.iter().zip(&copies.counts).enumerate() {
            let mut in_place = f64::MIN;
            for ((chunk, copied), idle) in chunks.by_ref().take(count) {
                let released = match chunk.gate {
                    Some(gate) if gate >= uses.len() => self.ends.get(gate - uses.len()),
                    Some(gate) => self.ends_before.get(gate),
                    None => None,
                };
                let allowed = released.map_or(0.0, |end| end + HAND_OVER_MS);
                let start = self.link_free.max(allowed);
                *idle = start - self.link_free;
                self.link_free = start + chunk.ms;
                *copied = self.link_free;
                in_place = self.link_free + HAND_OVER_MS;
            }
            // A copy that came early costs nothing; one that came late is handed over by an event.
            let late = in_place > self.cycle_end + HAND_OVER_MS;
            let start = if late { in_place } else { self.cycle_end };
            if let (Some(wait), Some(end)) = (self.waits.get_mut(index), self.ends.get_mut(index)) {
                *wait = start - self.cycle_end;
                *end = start + used.compute_ms;
            }
            self.cycle_end = start + used.compute_ms + used.tail_ms;
        }
        self.cycle_end - self.cycle_start
    }

    /// Whether everything in this cycle happened exactly one period after the same thing in the cycle before.
    pub(super) fn is_steady(&self, period: f64) -> bool {
        let moved = |now: &[f64], before: &[f64]| {
            now.iter().zip(before).all(|(now, before)| (now - before - period).abs() <= STEADY * period)
        };
        moved(&self.ends, &self.ends_before) && moved(&self.copied, &self.copied_before)
    }
}
