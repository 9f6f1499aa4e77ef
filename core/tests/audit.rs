//! The audit finds each kind of fault that is put between the pager and the driver, and nothing in the same program without one. That it finds nothing in random
//! programs is `pager_properties`' matter, where it reads along.

use flextensor_core::audit::{Audit, Caller, Kind};
use flextensor_core::pager::{Access, Certainty, Command, CopyStream, Hit, Pager, StreamId, Verdict};
use flextensor_core::units::UnitId;

const S1: StreamId = StreamId(1);
const S2: StreamId = StreamId(2);

/// A pager whose commands pass a filter before they are enqueued.
struct Bench {
    pager: Pager,
    audit: Audit,
    keeps: fn(&Command) -> bool,
    /// Of commands that the filter would drop, this many pass first.
    spared: usize,
    commands: Vec<Command>,
}

/// Two units on the same two pages.
fn bench(keeps: fn(&Command) -> bool, spared: usize) -> Bench {
    let (mut pager, mut audit) = (Pager::new(2, 2), Audit::new(2));
    for unit in [UnitId(0), UnitId(1)] {
        pager.add_unit(unit, 0, 2);
        audit.add_unit(unit, 0, 2);
    }
    Bench { pager, audit, keeps, spared, commands: Vec::new() }
}

fn hit(unit: u32, access: Access) -> Hit {
    Hit { unit: UnitId(unit), access, certainty: Certainty::Owner, hold: false, can_redirect: true }
}

fn reads(unit: u32) -> Hit {
    hit(unit, Access::Read)
}

fn writes(unit: u32) -> Hit {
    hit(unit, Access::Write)
}

/// Of a word of which nothing is known.
fn doubtful(hit: Hit) -> Hit {
    Hit { certainty: Certainty::Unknown, ..hit }
}

impl Bench {
    fn perform(&mut self) {
        for command in std::mem::take(&mut self.commands) {
            if !(self.keeps)(&command) {
                if self.spared == 0 {
                    continue;
                }
                self.spared -= 1;
            }
            self.audit.command(command);
        }
    }

    fn check(&mut self, stream: StreamId, hit: Hit) -> Verdict {
        let mut verdicts = [Verdict::Ready];
        self.audit.prepares(Some(hit.unit), Caller(7));
        self.pager.acquire(stream, &[hit], &mut verdicts, &mut self.commands);
        self.perform();
        self.audit.checked(stream, &[hit], &verdicts, Caller(7));
        verdicts[0]
    }

    fn record(&mut self, stream: StreamId, hit: Hit, verdict: Verdict) {
        self.audit.enqueued(stream, &[hit], &[verdict], Caller(7));
        self.pager.launched(stream, &[hit], &[verdict], &mut self.commands);
        self.perform();
    }

    fn launch(&mut self, stream: StreamId, hit: Hit) {
        let verdict = self.check(stream, hit);
        self.record(stream, hit, verdict);
    }

    fn found(&mut self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.audit.take_findings().into_iter().map(|found| found.kind).collect();
        kinds.dedup();
        kinds
    }
}

/// Runs the program with commands of one kind left out, and whole.
fn finds(kind: Kind, keeps: fn(&Command) -> bool, spared: usize, program: impl Fn(&mut Bench)) {
    let mut faulty = bench(keeps, spared);
    program(&mut faulty);
    let found = faulty.found();
    assert!(found.contains(&kind), "{kind:?} is not in {found:?}");
    let mut whole = bench(|_| true, 0);
    program(&mut whole);
    assert_eq!(whole.found(), [], "the program without the fault");
}

fn no_wait_on_stream(command: &Command) -> bool {
    !matches!(command, Command::WaitOnStream { .. })
}

fn no_wait_on_copy(command: &Command) -> bool {
    !matches!(command, Command::WaitOnCopy { .. })
}

#[test]
fn a_second_stream_that_does_not_wait_for_the_copy() {
    finds(Kind::LaunchBeforeCopy, no_wait_on_stream, 1, |bench| {
        bench.launch(S1, reads(0));
        bench.launch(S2, reads(0));
    });
}

#[test]
fn a_copy_that_waits_for_one_reader_of_two() {
    finds(Kind::OverwrittenInUse, no_wait_on_copy, 1, |bench| {
        bench.launch(S1, reads(0));
        bench.launch(S2, reads(0));
        bench.launch(S1, reads(1));
    });
}

#[test]
fn a_copy_that_never_came() {
    finds(
        Kind::NotInPlace,
        |command| !matches!(command, Command::CopyIn { .. }),
        0,
        |bench| {
            bench.launch(S1, reads(0));
        },
    );
}

#[test]
fn an_event_that_was_never_recorded() {
    finds(
        Kind::UnrecordedWait,
        |command| !matches!(command, Command::RecordCopy { .. }),
        0,
        |bench| {
            bench.launch(S1, reads(0));
        },
    );
    finds(
        Kind::UnrecordedWait,
        |command| !matches!(command, Command::RecordReader { .. }),
        0,
        |bench| {
            bench.launch(S1, reads(0));
            bench.launch(S1, reads(1));
        },
    );
}

#[test]
fn a_write_that_is_not_written_back() {
    finds(
        Kind::LostWrite,
        |command| !matches!(command, Command::WriteBack { .. }),
        0,
        |bench| {
            bench.launch(S1, writes(0));
            bench.launch(S1, reads(1));
        },
    );
}

#[test]
fn a_write_back_that_does_not_wait_for_the_writer() {
    finds(Kind::WriteBackOutOfOrder, no_wait_on_copy, 0, |bench| {
        bench.launch(S1, writes(0));
        bench.launch(S1, reads(1));
    });
}

#[test]
fn a_launch_at_the_shadow_that_does_not_wait_for_the_write_back() {
    finds(Kind::ShadowOutOfOrder, no_wait_on_stream, 2, |bench| {
        bench.launch(S1, writes(0));
        bench.launch(S1, reads(1));
        bench.launch(S2, doubtful(reads(0)));
    });
}

#[test]
fn a_copy_from_a_shadow_that_a_launch_still_writes() {
    finds(Kind::ShadowOutOfOrder, no_wait_on_copy, 0, |bench| {
        bench.launch(S1, doubtful(writes(0)));
        bench.launch(S2, reads(0));
    });
}

/// The pager is told that the launch is enqueued before it is.
#[test]
fn pages_that_are_released_between_check_and_enqueue() {
    let mut bench = bench(|_| true, 0);
    let verdict = bench.check(S1, reads(0));
    bench.pager.launched(S1, &[reads(0)], &[verdict], &mut bench.commands);
    bench.perform();
    bench.launch(S2, reads(1));
    assert_eq!(bench.found(), [Kind::OverwrittenUnrecorded]);
    // The event that the next copy waits for stands before the launch.
    bench.audit.enqueued(S1, &[reads(0)], &[verdict], Caller(7));
}

#[test]
fn an_event_that_stands_before_its_launch() {
    let mut bench = bench(|_| true, 0);
    let verdict = bench.check(S1, reads(0));
    bench.pager.launched(S1, &[reads(0)], &[verdict], &mut bench.commands);
    bench.pager.close_marks(&mut bench.commands);
    bench.perform();
    bench.audit.enqueued(S1, &[reads(0)], &[verdict], Caller(7));
    bench.launch(S2, reads(1));
    assert_eq!(bench.found(), [Kind::OverwrittenInUse]);
}

/// The pager does not know that the unit is held.
#[test]
fn a_held_unit_that_is_overwritten() {
    let mut bench = bench(|_| true, 0);
    let verdict = bench.check(S1, reads(0));
    bench.record(S1, reads(0), verdict);
    bench.audit.checked(S1, &[Hit { hold: true, ..reads(0) }], &[verdict], Caller(7));
    bench.audit.enqueued(S1, &[Hit { hold: true, ..reads(0) }], &[verdict], Caller(7));
    bench.launch(S1, reads(1));
    assert!(bench.found().contains(&Kind::OverwrittenHeld));
}

#[test]
fn a_finding_names_both_weights_and_the_launch() {
    let mut bench = bench(no_wait_on_copy, 0);
    bench.launch(S1, reads(0));
    bench.launch(S1, reads(1));
    let found = bench.audit.take_findings();
    assert_eq!((found[0].unit, found[0].by), (Some(UnitId(0)), Some(UnitId(1))));
    assert_eq!(found[0].caller, Some(Caller(7)));
    assert!(Kind::ALL.iter().all(|kind| (1..=13).contains(&kind.rule()) && !kind.key().is_empty()));
}

/// What a unit left on a page before it came back elsewhere is no part of it: others may take that page while it is used.
#[test]
fn a_unit_that_came_back_elsewhere_leaves_its_old_page_to_others() {
    let mut audit = Audit::new(2);
    let (moved, other) = (UnitId(0), UnitId(1));
    let copy_in = |unit| Command::CopyIn { copy: CopyStream::Demand, unit, first: 0, pages: 1 };
    audit.add_unit(moved, 0, 1);
    audit.add_unit(other, 0, 1);
    audit.command(copy_in(moved));
    audit.waited_for_all();
    audit.remove_unit(moved);
    audit.add_unit(moved, 1, 1);
    audit.command(copy_in(moved));
    audit.waited_for_all();
    audit.checked(S1, &[reads(0)], &[Verdict::Began], Caller(0));
    audit.command(copy_in(other));
    assert_eq!(audit.take_findings(), [], "the launch reads the other page");
}
