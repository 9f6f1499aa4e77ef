//! Watches the passes of one model in INFERENCE: says which pass is worth observing anew, because its order of use is not the one that is
//! expected, and when a new plan is worth making, because passes take longer than the plan says. Observing, planning and moving pages is the
//! caller's; how an order is followed is the pager's.
//!
//! Both answers have a memory, so that a program that cannot be predicted costs little: an observation that did not help is repeated after twice as
//! many passes each time, and a plan is not asked for again before something has changed.

use crate::pager::{KEPT_SHAPES, PassTally};

/// Passes in a row that follow their order, after which the order counts as learnt and patience is forgotten.
const STEADY: u32 = 16;
/// Most passes between two observations of a program whose order cannot be learnt.
const MOST_PATIENCE: u32 = 1024;
/// Times that a verdict on a shape is made from.
pub const TIMES: usize = 8;
/// A pass that takes this much longer than expected, or shorter, has drifted.
pub const SLOWER: f64 = 1.10;
/// A plan that changed nothing is asked for again when times have changed by this factor.
const CHANGED: f64 = 1.10;
/// So many times its patience without a plan for it, and a shape's patience is forgotten.
const CALM: u32 = 16;
/// Passes after which a new plan must have repaid what it cost to put in force.
pub const REPAID_WITHIN: u32 = 20;
/// A new plan that gains less than this is not worth the disturbance, however cheap.
const LEAST_GAIN: f64 = 0.02;

/// How passes compare with what was learnt of their order.
#[derive(Debug, Clone, Default)]
struct Following {
    /// The next pass is to be observed.
    due: bool,
    /// Passes that must go by before it is.
    wait: u32,
    /// What `wait` is set to at the next observation.
    patience: u32,
    /// Passes in a row that followed.
    steady: u32,
    /// Doubtful hits that a pass has anyway.
    usual_redirects: Option<u64>,
}

impl Following {
    /// Whether the pass that begins is to be observed.
    fn begins(&mut self) -> bool {
        if self.wait > 0 {
            self.wait -= 1;
            return false;
        }
        self.due
    }

    fn ended(&mut self, tally: PassTally) {
        let usual = *self.usual_redirects.get_or_insert(tally.redirects);
        let more = tally.redirects > usual + usual / 4 + 2;
        self.usual_redirects = Some(usual.min(tally.redirects));
        if tally.followed && tally.demand_loads == 0 && !more {
            self.steady = self.steady.saturating_add(1);
            self.due = false;
            if self.steady >= STEADY {
                (self.wait, self.patience) = (0, 0);
            }
        } else {
            self.steady = 0;
            self.due = true;
        }
    }

    fn observed(&mut self) {
        self.due = false;
        self.steady = 0;
        self.usual_redirects = None;
        self.wait = self.patience;
        self.patience = (self.patience * 2).clamp(1, MOST_PATIENCE);
    }
}

/// What a plan says of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Expected {
    /// Milliseconds of a pass under the plan; 0 = nothing is known of this shape.
    pub pass_ms: f64,
    /// Milliseconds that no plan could do without.
    pub bound_ms: f64,
}

/// How long passes take, compared with the plan.
#[derive(Debug, Clone, Default)]
struct Timing {
    expected: Expected,
    /// The last times, oldest first.
    times: Vec<f64>,
    /// The median when a plan was last made or thought of.
    settled_ms: Option<f64>,
    /// Passes since a plan was last thought of for it, and how many must go by before one is again.
    since: u32,
    patience: u32,
}

impl Timing {
    fn measured(&mut self, ms: f64) {
        if !(ms.is_finite() && ms > 0.0) {
            return;
        }
        if self.times.len() == TIMES {
            self.times.remove(0);
        }
        self.times.push(ms);
        self.since = self.since.saturating_add(1);
        if self.since > self.patience.saturating_mul(CALM) {
            self.patience = 0;
        }
    }

    /// A plan has been thought of. Where that did not help for long, the next one waits twice as long: times that come and go would have weights move each time.
    fn settled(&mut self) {
        if self.drifted().is_some() {
            self.since = 0;
            self.patience = (self.patience * 2).clamp(2 * TIMES as u32, MOST_PATIENCE);
        }
        self.settled_ms = self.median().or(self.settled_ms);
    }

    fn median(&self) -> Option<f64> {
        if self.times.len() < TIMES {
            return None;
        }
        let mut sorted = self.times.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// The median, if a new plan might improve on it.
    fn drifted(&self) -> Option<f64> {
        let now = self.median().filter(|_| self.since >= self.patience)?;
        let Expected { pass_ms, bound_ms } = self.expected;
        // Far below what was expected, the plan stands on times that are not the program's. Where models take turns nothing is expected of single passes.
        let off = now > pass_ms.max(bound_ms) * SLOWER || (pass_ms.is_finite() && now * SLOWER < pass_ms);
        let news = self.settled_ms.is_none_or(|then| now > then * CHANGED || now * CHANGED < then);
        (off && news).then_some(now)
    }
}

#[derive(Debug, Clone, Default)]
struct Seen {
    shape: u64,
    /// When its last pass began.
    begun: u64,
    /// Its order is its own; otherwise it is expected to do as usual.
    own_order: bool,
    looked_at: bool,
    following: Following,
    timing: Timing,
}

impl Seen {
    /// Its times were wanted, and no pass has been observed since.
    fn is_awaited(&self) -> bool {
        self.looked_at && self.own_order && self.following.due
    }
}

/// Whether the program asked for a new plan, and how far that is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Asked {
    #[default]
    No,
    /// A pass is to be observed first.
    Observing,
    /// It was.
    Planning,
}

/// The watch over one model. At most [`KEPT_SHAPES`] shapes are remembered; the one that ran longest ago gives way.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    shapes: Vec<Seen>,
    /// Of shapes that have no order of their own: they may differ from pass to pass.
    others: Following,
    begun: u64,
    asked: Asked,
}

impl Watch {
    /// The order of this shape is known.
    pub fn know(&mut self, shape: u64) {
        self.of(shape).own_order = true;
    }

    /// Shapes that have an order of their own.
    pub fn known(&self) -> impl Iterator<Item = u64> {
        self.shapes.iter().filter(|seen| seen.own_order).map(|seen| seen.shape)
    }

    /// A pass in this shape begins. True: its order of use is worth observing; [`Watch::observed`] must follow its end.
    pub fn begins(&mut self, shape: u64) -> bool {
        self.begun += 1;
        let begun = self.begun;
        let seen = self.of(shape);
        seen.begun = begun;
        let own = seen.own_order;
        if own { seen.following.begins() } else { self.others.begins() }
    }

    /// A pass that was not observed ended. Passes that overlapped others say nothing and are not told.
    pub fn ended(&mut self, shape: u64, tally: PassTally) {
        let seen = self.of(shape);
        let own = seen.own_order;
        if own { seen.following.ended(tally) } else { self.others.ended(tally) }
    }

    /// A pass was observed: its shape has an order of its own from now on.
    pub fn observed(&mut self, shape: u64) {
        let others = self.others.clone();
        let seen = self.of(shape);
        if !std::mem::replace(&mut seen.own_order, true) {
            seen.following = others;
            self.others.observed();
        }
        self.of(shape).following.observed();
        if self.asked == Asked::Observing {
            self.asked = Asked::Planning;
        }
    }

    /// The program asks for a new plan by what passes do and take now: the next pass of every shape is observed.
    pub fn ask(&mut self) {
        self.asked = Asked::Observing;
        let all = self.shapes.iter_mut().map(|seen| &mut seen.following).chain([&mut self.others]);
        for following in all {
            (following.due, following.wait) = (true, 0);
        }
    }

    /// Whether the plan that was asked for can be made now. The caller makes it, or calls [`Watch::keep_asked`].
    pub fn take_asked(&mut self) -> bool {
        let ready = self.asked == Asked::Planning;
        if ready {
            self.asked = Asked::No;
        }
        ready
    }

    /// The plan that was asked for cannot be made yet.
    pub fn keep_asked(&mut self) {
        self.asked = Asked::Planning;
    }

    /// What the plan that is now in force says of a shape.
    pub fn expect(&mut self, shape: u64, expected: Expected) {
        let timing = &mut self.of(shape).timing;
        timing.expected = expected;
        timing.times.clear();
        timing.settled_ms = None;
    }

    /// A pass took so many milliseconds.
    pub fn measured(&mut self, shape: u64, ms: f64) {
        self.of(shape).timing.measured(ms);
    }

    /// Shapes for which a new plan is worth thinking of: they take longer than the plan says, and longer or shorter than when one was last thought of.
    pub fn drifted(&self) -> impl Iterator<Item = u64> {
        self.shapes.iter().filter(|seen| seen.timing.drifted().is_some()).map(|seen| seen.shape)
    }

    /// The next pass of this shape is worth observing for its times. True once for each shape.
    pub fn look_at(&mut self, shape: u64) -> bool {
        let seen = self.of(shape);
        let first = !std::mem::replace(&mut seen.looked_at, true);
        if first {
            seen.own_order = true;
            seen.following.due = true;
            seen.following.wait = 0;
        }
        first
    }

    /// Whether a pass of this shape is to be observed, and none has been yet.
    #[must_use]
    pub fn awaits(&self, shape: u64) -> bool {
        self.shapes.iter().any(|seen| seen.shape == shape && seen.is_awaited())
    }

    /// A plan has been thought of, with whatever result: nothing is wanted until times change, but of shapes that are still to be observed.
    pub fn settled(&mut self) {
        for seen in self.shapes.iter_mut().filter(|seen| !seen.is_awaited()) {
            seen.timing.settled();
        }
    }

    fn of(&mut self, shape: u64) -> &mut Seen {
        let at = self.shapes.iter().position(|seen| seen.shape == shape).unwrap_or_else(|| {
            if self.shapes.len() >= KEPT_SHAPES {
                self.shapes.sort_by_key(|seen| std::cmp::Reverse(seen.begun));
                self.shapes.truncate(KEPT_SHAPES - 1);
            }
            self.shapes.push(Seen { shape, begun: self.begun, ..Seen::default() });
            self.shapes.len() - 1
        });
        &mut self.shapes[at]
    }
}

/// Whether a change of placement is worth it: what it gains over the next [`REPAID_WITHIN`] passes covers what it costs once, and it is no trifle. `times`: milliseconds of a pass as things
/// stand and then, for every shape; which of them comes next is not known, so their mean counts, and what is a trifle is a part of each: a short shape's gain is none beside a long one's time.
#[must_use]
pub fn repays(times: &[(f64, f64)], cost_ms: f64) -> bool {
    let count = times.len().max(1) as f64;
    let gain_ms = times.iter().map(|(now, then)| now - then).sum::<f64>() / count;
    // A shape that takes no time, as far as is known, gains and loses nothing.
    let longer = times.iter().map(|&(now, then)| (now - then, now.max(then))).filter(|&(_, ms)| ms > 0.0);
    let part = longer.map(|(gain, ms)| gain / ms).sum::<f64>() / count;
    gain_ms.is_finite() && part > LEAST_GAIN && gain_ms * f64::from(REPAID_WITHIN) >= cost_ms
}
