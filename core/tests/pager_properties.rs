//! Random programs on random rings, run in the worst orders: every launch sees the right bytes, nothing gets stuck, and every
//! shadow ends as the program last wrote it. Each rule by itself is `pager_rules`' matter; which programs there are, that of `cases`.

#[path = "pager_properties/cases.rs"]
mod cases;
mod pager_model;

use std::collections::HashSet;

use cases::{Action, Between, Kind, Pick, Setting, THREADS, actions, settings};
use flextensor_core::pager::{Access, Hit, StreamId};
use flextensor_core::units::{ModelId, UnitId};
use pager_model::gpu::Dice;
use pager_model::world::{Effect, Open, Shown, World};
use proptest::prelude::*;

/// The program: threads with at most one launch between check and enqueue each.
struct Program {
    world: World,
    setting: Setting,
    threads: Vec<Option<Open>>,
    /// Units whose owners have not returned.
    held: HashSet<u32>,
    at: usize,
    pace: Dice,
}

impl Program {
    fn new(setting: &Setting) -> Self {
        let world = World::new(setting.ring, setting.chunk, &setting.units, setting.seed);
        let threads = (0..THREADS).map(|_| None).collect();
        let held = HashSet::new();
        let mut program =
            Self { world, setting: setting.clone(), threads, held, at: 0, pace: Dice(setting.seed ^ 1) };
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
                    self.held.remove(&unit);
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
        let mut last = 0;
        for &(pick, kind) in shown {
            let unit = match pick {
                Pick::Rival(which) => self.rival(last, which),
                _ => self.pick(pick),
            };
            last = unit;
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
            Pick::Any(unit) | Pick::Rival(unit) => (unit % self.setting.units.len()) as u32,
            _ if count == 0 => 0,
            Pick::Ahead(uses) => {
                self.at += uses;
                order[self.at % count].0
            }
            Pick::Back(uses) => order[(self.at + count - uses.min(count)) % count].0,
        }
    }

    /// One of the units that share pages with this one; itself where none does.
    fn rival(&self, unit: u32, which: usize) -> u32 {
        let units = 0..self.setting.units.len() as u32;
        let rivals: Vec<u32> =
            units.filter(|&other| other != unit && self.world.gpu.share(unit, other)).collect();
        rivals.get(which % rivals.len().max(1)).copied().unwrap_or(unit)
    }

    /// A unit is stuck only where others keep its pages: units that are held, that open launches show, or that the same launch shows and that cannot give way.
    fn expect_kept(&mut self, shown: &[Shown], stuck: UnitId) {
        let Self { world, held, threads, .. } = self;
        let is_rival = |unit: UnitId| unit != stuck && world.gpu.share(unit.0, stuck.0);
        let stays = |hit: &Hit| !hit.can_redirect || hit.access == Access::Write || hit.hold;
        let mut open = threads.iter().flatten().flat_map(|open| &open.shown);
        let kept = open.any(|other| other.hit.unit == stuck || is_rival(other.hit.unit))
            || held.iter().any(|&unit| is_rival(UnitId(unit)))
            || shown.iter().any(|other| stays(&other.hit) && is_rival(other.hit.unit));
        if !kept {
            world.gpu.set_fault(format!("{stuck:?} is without pages, and nobody keeps them"));
        }
    }

    fn is_open(&self, which: impl Fn(&Shown) -> bool) -> bool {
        self.threads.iter().flatten().flat_map(|open| &open.shown).any(which)
    }

    fn launch(&mut self, thread: usize, stream: StreamId, shown: &[Shown], stays_open: bool) {
        loop {
            let open = self.world.acquire(stream, shown);
            self.held.extend(shown.iter().filter(|shown| shown.hit.hold).map(|shown| shown.hit.unit.0));
            let Some(unit) = open.is_stuck() else {
                self.threads[thread] = Some(open);
                break;
            };
            self.expect_kept(shown, unit);
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
