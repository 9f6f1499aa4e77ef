//! One scenario on one ring: which copies it needs, and how long a cycle takes at steady state.
//! When each copy and use happens is reckoned in `simulate::clock`.

use crate::layout::Run;
use crate::simulate::clock::{Chunk, Clock, Copies, DenseUse};
use crate::simulate::course::{Course, Scenario};
use crate::simulate::ring::RingPages;
use crate::simulate::{Simulation, Span, SpanKind, Track};
use crate::units::UnitId;

/// Cycles after which a scenario that has not settled is judged by its last cycles.
const MOST_CYCLES: usize = 64;

/// Milliseconds of the host for each use of a streamed unit: its launches are looked at, waits and events are enqueued. Measured, as the next two, with two programs that
/// launches bind, on one H200.
const HOST_USE_MS: f64 = 0.003;
/// Milliseconds of the host for each copy: a call of the driver between other work, which finds nothing in the caches.
const HOST_COPY_MS: f64 = 0.012;
/// Part of the time in which the link copies that launching takes longer by meanwhile. A program without us that something copies beside pays it too.
const HOST_SLOWED: f64 = 0.1;

impl Course {
    /// Runs every scenario until it is steady. The runs must be free of conflicts
    /// ([`crate::layout::conflicts`]).
    pub(crate) fn run(&self, track: &Track<'_>, runs: &[Run], with_timeline: bool) -> Vec<Simulation> {
        let name = |unit| self.id(unit);
        let names = with_timeline.then_some(&name as &dyn Fn(usize) -> UnitId);
        self.scenarios().iter().map(|scenario| scenario.run(track, runs, names)).collect()
    }

    /// How often every unit is copied in a cycle, in the scenario that copies it most often; by position of the
    /// unit. The runs must be free of conflicts.
    pub(crate) fn copies_of_units(&self, track: &Track<'_>, runs: &[Run]) -> Vec<usize> {
        let mut most = vec![0; runs.len()];
        for scenario in self.scenarios() {
            let counts = scenario.copies(track, runs).counts;
            let mut times = vec![0; runs.len()];
            for (used, _) in scenario.uses.iter().zip(counts).filter(|(_, count)| *count > 0) {
                if let Some(times) = times.get_mut(used.unit) {
                    *times += 1;
                }
            }
            most.iter_mut().zip(times).for_each(|(most, times)| *most = times.max(*most));
        }
        most
    }
}

impl Scenario {
    /// Runs until it is steady; `timeline`: names units for a timeline.
    fn run(&self, track: &Track<'_>, runs: &[Run], timeline: Option<&dyn Fn(usize) -> UnitId>) -> Simulation {
        let copies = self.copies(track, runs);
        let mut clock = Clock::new(self.uses.len(), copies.chunks.len());
        let mut period = 0.0;
        for _ in 0..MOST_CYCLES {
            period = clock.cycle(&self.uses, &copies);
            if clock.is_steady(period) {
                break;
            }
        }
        let link_ms: f64 = copies.chunks.iter().map(|chunk| chunk.ms).sum();
        let host_ms = self.host_ms(runs, copies.chunks.len(), link_ms);
        // A lead that is still being used up hides these limits for some cycles.
        let gpu_ms = period.max(link_ms).max(self.resident_ms);
        let cycle_ms = gpu_ms.max(host_ms);
        let copied = self.uses.iter().zip(&copies.counts).filter(|(_, count)| **count > 0);
        Simulation {
            cycle_ms,
            gpu_ms,
            waits_ms: self.by_pass(&clock.waits),
            link_busy: if cycle_ms > 0.0 { link_ms / cycle_ms } else { 0.0 },
            link_ms,
            copied_bytes: copied
                .map(|(used, _)| runs.get(used.unit).map_or(0, |run| run.pages * track.page_bytes))
                .sum(),
            timeline: timeline
                .map(|name| self.timeline(name, track.page_bytes, &clock, &copies))
                .unwrap_or_default(),
        }
    }

    /// Milliseconds that the host takes for a cycle, if it is known what it takes with all weights resident.
    fn host_ms(&self, runs: &[Run], copies: usize, link_ms: f64) -> f64 {
        if self.host_ms <= 0.0 {
            return 0.0;
        }
        let is_streamed = |used: &&DenseUse| runs.get(used.unit).is_some_and(|run| run.pages > 0);
        let uses = self.uses.iter().filter(is_streamed).count();
        self.host_ms + uses as f64 * HOST_USE_MS + copies as f64 * HOST_COPY_MS + link_ms * HOST_SLOWED
    }

    fn by_pass(&self, waits: &[f64]) -> Vec<Vec<f64>> {
        let mut rest = waits;
        let mut take = |length: usize| {
            let (pass, after) = rest.split_at(length.min(rest.len()));
            rest = after;
            pass.to_vec()
        };
        self.pass_lengths.iter().map(|&length| take(length)).collect()
    }

    fn timeline(
        &self,
        name: &dyn Fn(usize) -> UnitId,
        page_bytes: u64,
        clock: &Clock,
        copies: &Copies,
    ) -> Vec<Span> {
        let mut spans = Vec::with_capacity(self.uses.len() + copies.chunks.len());
        let mut chunks = copies.chunks.iter().zip(&clock.copied).zip(&clock.idle);
        for (index, (used, &count)) in self.uses.iter().zip(&copies.counts).enumerate() {
            let unit = name(used.unit);
            let span = |kind, ms: f64, end: f64, wait_ms, bytes| Span {
                kind,
                unit,
                use_index: index,
                start_ms: end - ms - clock.cycle_start,
                end_ms: end - clock.cycle_start,
                wait_ms,
                bytes,
            };
            spans.extend(chunks.by_ref().take(count).map(|((chunk, &end), &idle)| {
                span(SpanKind::Copy, chunk.ms, end, idle, chunk.pages * page_bytes)
            }));
            let end = clock.ends.get(index).copied().unwrap_or_default();
            let wait = clock.waits.get(index).copied().unwrap_or_default();
            spans.push(span(SpanKind::Use, used.compute_ms, end, wait, 0));
        }
        spans
    }

    /// The copies of every use at steady state: in a cycle that finds the ring as the one before left it.
    fn copies(&self, track: &Track<'_>, runs: &[Run]) -> Copies {
        let run_of = |unit: usize| runs.get(unit).copied().unwrap_or_default();
        let mut ring = RingPages::new(track.ring_pages);
        let before = self.uses.iter().enumerate().rev();
        ring.settle(before.map(|(index, used)| (used.unit, run_of(used.unit), index)));
        let mut copies = Copies { chunks: Vec::new(), counts: Vec::with_capacity(self.uses.len()) };
        // No part is longer than either.
        let longest = track.chunk_pages.min(track.ring_pages);
        let copies_ms = track.link.copies_ms(longest, track.page_bytes);
        for (index, used) in self.uses.iter().enumerate() {
            let (run, now) = (run_of(used.unit), self.uses.len() + index);
            let before = copies.chunks.len();
            if !ring.holds(used.unit, run) {
                for part in run.parts(track.chunk_pages, track.ring_pages) {
                    let ms = copies_ms.get(part.pages as usize).copied().unwrap_or_default();
                    let gate = ring.last_use(part).map(|last| self.release_of(last).min(now - 1));
                    copies.chunks.push(Chunk { pages: part.pages, ms, gate });
                }
            }
            copies.counts.push(copies.chunks.len() - before);
            ring.show(used.unit, run, now);
        }
        copies
    }

    /// The use at whose end everything held together with this use is released; both counted over the
    /// previous and this cycle.
    fn release_of(&self, position: usize) -> usize {
        let cycle_start = position / self.uses.len().max(1) * self.uses.len();
        self.uses.get(position - cycle_start).map_or(position, |used| cycle_start + used.group_last)
    }
}
