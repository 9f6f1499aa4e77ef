//! How long passes take once the plan is in force: two events a pass, read when they have completed, never waited for.
//! What a time is compared with is the report's matter.

use std::collections::{BTreeMap, VecDeque};

use crate::ffi::event::{self, Event};
use crate::ffi::stream::Stream;

/// Passes kept for each shape.
const KEPT: usize = 1024;
/// Shapes of which passes are kept. One of few passes gives way to a new one: of shapes that never come again there may be any number.
const SHAPES: usize = 64;
/// Passes whose events may wait to be read; more are not measured.
const IN_FLIGHT: usize = 64;

/// Measured passes of one model.
#[derive(Default)]
pub(crate) struct Measure {
    open: Option<(u64, Event)>,
    in_flight: VecDeque<(u64, Event, Event)>,
    spare: Vec<Event>,
    samples: BTreeMap<u64, VecDeque<f32>>,
    /// Shapes and milliseconds that nobody has asked for yet.
    recent: Vec<(u64, f64)>,
    /// Passes begun in INFERENCE, measured or not.
    pub(crate) passes: u64,
}

impl Measure {
    /// A pass begins on `stream`.
    pub(crate) fn begin(&mut self, shape: u64, stream: Stream) {
        self.passes += 1;
        self.collect();
        if let Some((_, event)) = self.open.take() {
            self.spare.push(event);
        }
        if self.in_flight.len() < IN_FLIGHT {
            self.open = self.mark(stream).map(|event| (shape, event));
        }
    }

    /// The pass ended.
    pub(crate) fn end(&mut self, stream: Stream) {
        let Some((shape, start)) = self.open.take() else { return };
        match self.mark(stream) {
            Some(end) => self.in_flight.push_back((shape, start, end)),
            None => self.spare.push(start),
        }
    }

    /// Reads what has completed.
    pub(crate) fn collect(&mut self) {
        while let Some(&(shape, start, end)) = self.in_flight.front() {
            if !event::query(end).unwrap_or(true) {
                return;
            }
            self.in_flight.pop_front();
            self.spare.extend([start, end]);
            if let Ok(ms) = event::elapsed_ms(start, end) {
                self.keep(shape, ms);
                if self.recent.len() < KEPT {
                    self.recent.push((shape, f64::from(ms)));
                }
            }
        }
    }

    fn keep(&mut self, shape: u64, ms: f32) {
        if self.samples.len() >= SHAPES && !self.samples.contains_key(&shape) {
            let rarest = self.samples.iter().min_by_key(|(_, samples)| samples.len());
            if let Some(rarest) = rarest.map(|(&shape, _)| shape) {
                self.samples.remove(&rarest);
            }
        }
        let samples = self.samples.entry(shape).or_default();
        if samples.len() == KEPT {
            samples.pop_front();
        }
        samples.push_back(ms);
    }

    /// Shapes and milliseconds of passes that were read since this was asked last.
    pub(crate) fn take_recent(&mut self) -> Vec<(u64, f64)> {
        std::mem::take(&mut self.recent)
    }

    /// Gives all events back; what was measured stays. Their context is current.
    pub(crate) fn end_events(&mut self) {
        let open = self.open.take().map(|(_, event)| event);
        let waiting = self.in_flight.drain(..).flat_map(|(_, start, end)| [start, end]);
        for event in open.into_iter().chain(waiting).chain(self.spare.drain(..)) {
            let _ = event::destroy(event);
        }
    }

    /// The context of all events is gone; what was measured stays.
    pub(crate) fn forget_events(&mut self) {
        self.open = None;
        self.in_flight.clear();
        self.spare.clear();
    }

    /// Median and number of the passes of each shape, in milliseconds.
    pub(crate) fn medians(&self) -> impl Iterator<Item = (u64, f64, usize)> {
        self.samples.iter().map(|(&shape, samples)| {
            let mut sorted: Vec<f32> = samples.iter().copied().collect();
            sorted.sort_by(f32::total_cmp);
            (shape, f64::from(sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)), sorted.len())
        })
    }

    fn mark(&mut self, stream: Stream) -> Option<Event> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => event::create(true).ok()?,
        };
        match event::record(event, stream) {
            Ok(()) => Some(event),
            Err(_) => {
                self.spare.push(event);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_never_come_again_give_way_and_the_usual_one_stays() {
        let mut measure = Measure::default();
        (0..5).for_each(|_| measure.keep(0, 1.0));
        (1..500).for_each(|shape| measure.keep(shape, 2.0));
        assert_eq!(measure.samples.len(), SHAPES);
        assert_eq!(measure.medians().next(), Some((0, 1.0, 5)));
        assert!(measure.samples.contains_key(&499));
    }
}
