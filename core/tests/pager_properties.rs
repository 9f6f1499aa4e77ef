//! Random programs on random rings, run in the worst orders: every launch sees the right bytes, nothing gets stuck, and every
//! shadow ends as the program last wrote it. Each rule by itself is `pager_rules`' matter.

mod pager_model;

use std::collections::HashSet;

use flextensor_core::pager::{Access, Certainty, Hit, StreamId};
use flextensor_core::units::{ModelId, UnitId};
use pager_model::gpu::Dice;
use pager_model::world::{Effect, Open, Shown, World};
use proptest::prelude::*;

const STREAMS: u64 = 3;
const THREADS: usize = 4;

/// A ring, its units and what the program is known to do.
#[derive(Clone, Debug)]
struct Setting {
    ring: u32,
    chunk: u32,
    /// `(start, pages)`
    units: Vec<(u32, u32)>,
    /// For each model the uses of a pass, `(unit, owner)`.
    orders: Vec<Vec<(u32, u32)>>,
    seed: u64,
}

/// Which unit a launch shows, as the program walks through the first model's order.
#[derive(Clone, Copy, Debug)]
enum Pick {
    /// So many uses further on (1: the next).
    Ahead(usize),
    /// So many uses ago.
    Back(usize),
    Any(usize),
}

#[derive(Clone, Debug)]
enum Action {
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
enum Between {
    Nothing,
    Prefetch,
    Close,
    Destroy,
    PassEnd,
    Open,
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    effect: Effect,
    proven: bool,
    certainty: Certainty,
    hold: bool,
    can_redirect: bool,
}

fn settings() -> impl Strategy<Value = Setting> {
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

fn actions() -> impl Strategy<Value = Action> {
    let pick = prop_oneof![
        8 => Just(Pick::Ahead(1)),
        2 => Just(Pick::Ahead(0)),
        2 => (2usize..12).prop_map(Pick::Ahead),
        1 => (1usize..4).prop_map(Pick::Back),
        2 => (0usize..8).prop_map(Pick::Any),
    ];
    let shown = prop_oneof![
        3 => prop::collection::vec((pick.clone(), kinds()), 1),
        1 => prop::collection::vec((pick.clone(), kinds()), 2..4),
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

/// The program: threads with at most one launch between check and enqueue each.
struct Program {
    world: World,
    setting: Setting,
    threads: Vec<Option<Open>>,
    at: usize,
    pace: Dice,
}

impl Program {
    fn new(setting: &Setting) -> Self {
        let world = World::new(setting.ring, setting.chunk, &setting.units, setting.seed);
        let threads = (0..THREADS).map(|_| None).collect();
        let mut program =
            Self { world, setting: setting.clone(), threads, at: 0, pace: Dice(setting.seed ^ 1) };
        program.set_orders(0);
        program
    }

    fn set_orders(&mut self, turned_by: usize) {
        (0..self.setting.orders.len()).for_each(|model| self.set_order(model, None, turned_by));
    }

    fn set_order(&mut self, model: usize, shape: Option<u64>, turned_by: usize) {
        let mut uses: Vec<_> =
            self.setting.orders[model].iter().map(|&(unit, owner)| (UnitId(unit), owner)).collect();
        if !uses.is_empty() {
            let by = turned_by % uses.len();
            uses.rotate_left(by);
        }
        let (model, pager) = (ModelId(model as u64), &mut self.world.pager);
        match shape {
            Some(shape) => _ = pager.set_shape_order(model, shape, &uses),
            None => pager.set_order(model, &uses),
        }
    }

    fn act(&mut self, action: &Action) {
        let unit_of = |unit: usize| (unit % self.setting.units.len()) as u32;
        let model_of = |model: usize| ModelId((model % self.setting.orders.len()) as u64);
        match *action {
            Action::Launch { thread, stream, ref shown, open } => {
                self.finish(thread, false);
                let shown = self.choose(shown);
                self.launch(thread, StreamId(stream), &shown, open);
            }
            Action::Finish { thread, refused } => self.finish(thread, refused),
            Action::Again { streams, shown, times, between } => self.again(streams, shown, times, between),
            Action::CloseMarks => self.world.close_marks(),
            Action::Hidden { stream, unit } => {
                let unit = unit_of(unit);
                if !self.is_open(|shown| shown.hit.unit.0 == unit && shown.effect.writes()) {
                    self.world.launch_hidden(StreamId(stream), unit);
                }
            }
            Action::EndUse { unit } => {
                let unit = unit_of(unit);
                // An owner returns behind its own launches.
                if !self.is_open(|shown| shown.hit.unit.0 == unit && shown.hit.hold) {
                    self.world.end_use(unit);
                }
            }
            Action::Prefetch { stream } => self.world.prefetch(StreamId(stream)),
            Action::PassBegin { model, shape } => self.world.pager.pass_begin(model_of(model), shape),
            Action::PassEnd { model } => _ = self.world.pager.pass_end(model_of(model)),
            Action::Destroy { stream } => {
                if self.threads.iter().flatten().all(|open| open.stream != StreamId(stream)) {
                    self.world.destroy_stream(StreamId(stream));
                }
            }
            Action::Private { unit } => _ = self.world.make_private(UnitId(unit_of(unit))),
            Action::GivenUp { unit } => {
                if self.world.pager.streams(UnitId(unit_of(unit))) {
                    self.world.evict(UnitId(unit_of(unit)));
                }
            }
            Action::StreamAgain { unit, start } => {
                let unit = unit_of(unit);
                if !self.is_open(|shown| shown.hit.unit.0 == unit) {
                    self.world.stream_again(UnitId(unit), start % self.setting.ring);
                    self.set_orders(0);
                }
            }
            Action::NewOrder { model, shape, turned_by } => {
                self.set_order(model % self.setting.orders.len(), shape, turned_by)
            }
            Action::Steps(steps) => self.world.gpu.run(steps),
        }
        let steps = [0, 0, 1, 4, 30][self.pace.below(5) as usize];
        self.world.gpu.run(steps);
    }

    fn again(&mut self, streams: [u64; 2], (pick, kind): (Pick, Kind), times: u8, between: Between) {
        let unit = self.pick(pick);
        let streams = streams.map(StreamId);
        for time in 0..times {
            self.finish(0, false);
            let shown = [self.shown(unit, kind)];
            self.launch(0, streams[0], &shown, matches!(between, Between::Open));
            match between {
                Between::Nothing => {}
                Between::Prefetch => self.world.prefetch(streams[1]),
                Between::Close => self.world.close_marks(),
                // The launch that is open may be refused in the end.
                Between::Open => {
                    self.world.prefetch(streams[1]);
                    self.world.gpu.run(u64::from(time));
                    self.finish(0, time % 2 == 1);
                }
                Between::Destroy => self.act(&Action::Destroy { stream: streams[usize::from(time % 2)].0 }),
                Between::PassEnd => self.act(&Action::PassEnd { model: usize::from(time) }),
            }
        }
    }

    /// A launch may conflict with none that is open: a correct program orders those, so its word is stale then.
    fn choose(&mut self, shown: &[(Pick, Kind)]) -> Vec<Shown> {
        let mut seen = HashSet::new();
        let mut chosen = Vec::new();
        for &(pick, kind) in shown {
            let unit = self.pick(pick);
            if seen.insert(unit) {
                chosen.push(self.shown(unit, kind));
            }
        }
        chosen
    }

    fn shown(&self, unit: u32, kind: Kind) -> Shown {
        let conflicts = self.is_open(|other| other.hit.unit.0 == unit && kind.effect.conflicts(other.effect));
        let effect = if conflicts { Effect::Nothing } else { kind.effect };
        let access = if effect.writes() || !kind.proven { Access::Write } else { Access::Read };
        let Kind { certainty, hold, can_redirect, .. } = kind;
        Shown { hit: Hit { unit: UnitId(unit), access, certainty, hold, can_redirect }, effect }
    }

    fn pick(&mut self, pick: Pick) -> u32 {
        let order = &self.setting.orders[0];
        let count = order.len();
        match pick {
            Pick::Any(unit) => (unit % self.setting.units.len()) as u32,
            _ if count == 0 => 0,
            Pick::Ahead(uses) => {
                self.at += uses;
                order[self.at % count].0
            }
            Pick::Back(uses) => order[(self.at + count - uses.min(count)) % count].0,
        }
    }

    fn is_open(&self, which: impl Fn(&Shown) -> bool) -> bool {
        self.threads.iter().flatten().flat_map(|open| &open.shown).any(which)
    }

    fn launch(&mut self, thread: usize, stream: StreamId, shown: &[Shown], stays_open: bool) {
        loop {
            let open = self.world.acquire(stream, shown);
            let Some(unit) = open.is_stuck() else {
                self.threads[thread] = Some(open);
                break;
            };
            self.world.refuse(open);
            if !self.world.make_private(unit) {
                (0..THREADS).for_each(|thread| self.finish(thread, false));
            }
        }
        if !stays_open {
            self.finish(thread, false);
        }
    }

    fn finish(&mut self, thread: usize, refused: bool) {
        match self.threads[thread].take() {
            Some(open) if refused => self.world.refuse(open),
            Some(open) => self.world.enqueue(open),
            None => {}
        }
    }

    fn end(mut self) -> Result<(), String> {
        (0..THREADS).for_each(|thread| self.finish(thread, false));
        (0..self.setting.units.len() as u32).for_each(|unit| self.world.end_use(unit));
        self.world.finish()
    }
}

/// The case in a few lines: proptest's own print of it takes pages.
fn told(fault: &str, setting: &Setting, actions: &[Action]) -> String {
    let lines: String = actions.iter().map(|action| format!("\n  {action:?}")).collect();
    format!("{fault}\n  {setting:?}{lines}\n")
}

fn run(setting: &Setting, actions: &[Action]) -> Result<(), String> {
    let mut program = Program::new(setting);
    for action in actions {
        program.act(action);
        program.world.verdict()?;
    }
    program.end()
}

/// `PROPTEST_CASES` asks for more.
fn config(cases: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { usual.cases } else { cases };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..usual }
}

proptest! {
    #![proptest_config(config(10_000))]

    #[test]
    fn no_program_sees_a_wrong_byte(setting in settings(), actions in prop::collection::vec(actions(), 1..60)) {
        run(&setting, &actions).map_err(|fault| TestCaseError::fail(told(&fault, &setting, &actions)))?;
    }
}
