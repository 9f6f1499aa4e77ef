//! What random programs are made of: rings, units, orders, and what threads do. How a program is run is the parent's matter.

use flextensor_core::pager::Certainty;
use proptest::prelude::*;

use super::pager_model::world::Effect;

const STREAMS: u64 = 3;
/// Threads with at most one launch between check and enqueue each.
pub(crate) const THREADS: usize = 4;

/// A ring, its units and what the program is known to do.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) ring: u32,
    pub(crate) chunk: u32,
    /// `(start, pages)`
    pub(crate) units: Vec<(u32, u32)>,
    /// For each model the uses of a pass, `(unit, owner)`.
    pub(crate) orders: Vec<Vec<(u32, u32)>>,
    pub(crate) seed: u64,
}

/// Which unit a launch shows, as the program walks through the first model's order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pick {
    /// So many uses further on (1: the next).
    Ahead(usize),
    /// So many uses ago.
    Back(usize),
    Any(usize),
    /// One that shares pages with the one picked last, if any does.
    Rival(usize),
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// With `open`, other actions come between check and enqueue.
    Launch {
        thread: usize,
        stream: u64,
        shown: Vec<(Pick, Kind)>,
        open: bool,
    },
    /// What the thread has open enters its stream, or is refused by the driver.
    Finish {
        thread: usize,
        refused: bool,
    },
    /// A use in many launches: further ones of what is shown, each in one go. Every so many of them, another thread asks for prefetch from a stream of its own, or a capture begins.
    Again {
        streams: [u64; 2],
        shown: (Pick, Kind),
        times: u8,
        between: Between,
    },
    /// A capture begins on some thread.
    CloseMarks,
    Hidden {
        stream: u64,
        unit: usize,
    },
    EndUse {
        unit: usize,
    },
    Prefetch {
        stream: u64,
    },
    PassBegin {
        model: usize,
        shape: u64,
    },
    PassEnd {
        model: usize,
    },
    Destroy {
        stream: u64,
    },
    Private {
        unit: usize,
    },
    /// Private pages were wanted and could not be had.
    GivenUp {
        unit: usize,
    },
    StreamAgain {
        unit: usize,
        start: u32,
    },
    /// The program is known to do something else now, in one shape or in all that have no order of their own.
    NewOrder {
        model: usize,
        shape: Option<u64>,
        turned_by: usize,
    },
    Steps(u64),
}

/// What happens amid the launches of one use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Between {
    Nothing,
    Prefetch,
    Close,
    Destroy,
    PassEnd,
    Open,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) effect: Effect,
    pub(crate) proven: bool,
    pub(crate) certainty: Certainty,
    pub(crate) hold: bool,
    pub(crate) can_redirect: bool,
}

pub(crate) fn settings() -> impl Strategy<Value = Setting> {
    (3u32..10, 1u32..4, 2usize..8).prop_flat_map(|(ring, chunk, count)| {
        let pages = prop_oneof![6 => 1..=ring.min(4), 1 => Just(ring)];
        let units = prop::collection::vec((0..ring, pages), count);
        let order = prop::collection::vec((0..count as u32, 0u32..4), 0..9);
        let orders = prop_oneof![
            3 => Just(vec![(0..count as u32).map(|unit| (unit, unit)).collect::<Vec<_>>()]),
            2 => prop::collection::vec(order, 1..4),
        ];
        let wrapped = prop::bool::ANY;
        (units, orders, wrapped, any::<u64>()).prop_map(move |(mut units, orders, wrapped, seed)| {
            if wrapped {
                lay_around(ring, &mut units);
            }
            Setting { ring, chunk, units, orders, seed }
        })
    })
}

/// As a plan does: each unit begins where the one before it ends.
fn lay_around(ring: u32, units: &mut [(u32, u32)]) {
    let mut start = 0;
    for unit in units {
        unit.0 = start % ring;
        start += unit.1;
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    let effect = prop_oneof![
        3 => Just(Effect::Reads(0, 99)),
        1 => (0usize..3, 1usize..3).prop_map(|(first, count)| Effect::Reads(first, count)),
        2 => Just(Effect::Nothing),
        1 => (0usize..3, 1usize..3).prop_map(|(first, count)| Effect::Writes(first, count)),
        1 => Just(Effect::Writes(0, 99)),
    ];
    let certainty = prop_oneof![
        2 => Just(Certainty::Owner),
        1 => Just(Certainty::Live),
        2 => Just(Certainty::Unknown),
    ];
    (effect, prop::bool::weighted(0.7), certainty, prop::bool::weighted(0.1), prop::bool::weighted(0.8))
        .prop_map(|(effect, proven, certainty, hold, can_redirect)| Kind {
            effect,
            proven,
            certainty,
            hold,
            can_redirect,
        })
}

/// Units that cannot be in the ring together, in any turn: each by a word that reads a weight, or by two that look like an address.
fn rivals(pick: impl Strategy<Value = Pick>) -> impl Strategy<Value = Vec<(Pick, Kind)>> {
    let kind = || {
        (kinds(), prop::bool::weighted(0.8)).prop_map(|(kind, usual)| match kind {
            Kind { can_redirect: true, effect: Effect::Reads(..), .. } if usual => {
                Kind { proven: true, hold: false, certainty: kind.certainty.max(Certainty::Live), ..kind }
            }
            _ if usual => Kind { can_redirect: false, certainty: Certainty::Unknown, hold: false, ..kind },
            _ => kind,
        })
    };
    let others = prop::collection::vec(((0usize..8).prop_map(Pick::Rival), kind()), 1..4);
    (pick, kind(), others).prop_map(|(pick, kind, others)| {
        let mut shown = vec![(pick, kind)];
        shown.extend(others);
        shown
    })
}

pub(crate) fn actions() -> impl Strategy<Value = Action> {
    let pick = prop_oneof![
        8 => Just(Pick::Ahead(1)),
        2 => Just(Pick::Ahead(0)),
        2 => (2usize..12).prop_map(Pick::Ahead),
        1 => (1usize..4).prop_map(Pick::Back),
        2 => (0usize..8).prop_map(Pick::Any),
    ];
    let shown = prop_oneof![
        6 => prop::collection::vec((pick.clone(), kinds()), 1),
        2 => prop::collection::vec((pick.clone(), kinds()), 2..4),
        1 => rivals(pick.clone()),
    ];
    let stream = || 1..=STREAMS;
    let between = prop_oneof![
        3 => Just(Between::Nothing),
        2 => Just(Between::Prefetch),
        1 => Just(Between::Close),
        1 => Just(Between::Destroy),
        1 => Just(Between::PassEnd),
        2 => Just(Between::Open),
    ];
    prop_oneof![
        8 => ([stream(), stream()], (pick.clone(), kinds()), 1u8..5, between)
            .prop_map(|(streams, shown, times, between)| Action::Again { streams, shown, times, between }),
        1 => Just(Action::CloseMarks),
        20 => (0..THREADS, stream(), shown, prop::bool::weighted(0.35))
            .prop_map(|(thread, stream, shown, open)| Action::Launch { thread, stream, shown, open }),
        8 => (0..THREADS, prop::bool::weighted(0.1)).prop_map(|(thread, refused)| Action::Finish { thread, refused }),
        2 => (stream(), 0usize..8).prop_map(|(stream, unit)| Action::Hidden { stream, unit }),
        2 => (0usize..8).prop_map(|unit| Action::EndUse { unit }),
        1 => stream().prop_map(|stream| Action::Prefetch { stream }),
        2 => (0usize..3, 0u64..12).prop_map(|(model, shape)| Action::PassBegin { model, shape }),
        1 => (0usize..3).prop_map(|model| Action::PassEnd { model }),
        1 => stream().prop_map(|stream| Action::Destroy { stream }),
        1 => (0usize..8).prop_map(|unit| Action::Private { unit }),
        1 => (0usize..8).prop_map(|unit| Action::GivenUp { unit }),
        1 => (0usize..8, 0u32..10).prop_map(|(unit, start)| Action::StreamAgain { unit, start }),
        2 => (0usize..3, prop::option::of(0u64..12), 0usize..8)
            .prop_map(|(model, shape, turned_by)| Action::NewOrder { model, shape, turned_by }),
        3 => (1u64..60).prop_map(Action::Steps),
    ]
}
