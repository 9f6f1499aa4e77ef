//! Copies and fills by address: uses, and writes, of weights that no launch shows. Addresses of weights in what they
//! carry are `escapes`' matter.
//! Which driver call moves what is said in `hooks/copy` and `hooks/fill`.

use flextensor_core::pager::{Access, Certainty, Hit, Verdict};
use flextensor_core::units::UnitId;

use super::arena::{Arena, Meaning, PAGE, arena};
use super::check::{self, By};
use super::private::Why;
use super::streaming::ring_of;
use super::{gate, graphs, learn, private};
use crate::ffi::stream::Stream;
use crate::ffi::types::CUresult;
use crate::outcome::{Outcome, Reason};

/// One side of a copy, or the target of a fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) writes: bool,
}

impl Operand {
    pub(crate) fn read(address: u64, bytes: usize) -> Self {
        Self { address, bytes: bytes as u64, writes: false }
    }

    pub(crate) fn write(address: u64, bytes: usize) -> Self {
        Self { address, bytes: bytes as u64, writes: true }
    }
}

/// Handles a call that touches these ranges in order on `stream`. `issue` makes the call.
pub(crate) fn handle(stream: Stream, operands: &[Operand], mut issue: impl FnMut() -> CUresult) -> Outcome {
    let Some(arena) = arena() else { return Outcome::Bypass(Reason::NotManaged) };
    if graphs::is_capturing(stream) {
        return match keep(operands) {
            Ok(()) => Outcome::Done(issue()),
            Err(code) => Outcome::Fail(code),
        };
    }
    if check::is_on() {
        let inside = operands.iter().filter(|operand| arena.contains(operand.address));
        check::look_at_range(arena, inside.flat_map(|operand| pages(arena, operand)));
    }
    if operands.iter().all(|operand| !arena.contains(operand.address)) {
        return Outcome::Bypass(Reason::NotManaged);
    }
    loop {
        // What means nothing may become a streamed weight behind a closed gate; other meanings change without one.
        let seen = gate::openings();
        let shown = units_of(arena, operands);
        let inside = gate::enter();
        if gate::openings() != seen || units_of(arena, operands) != shown {
            continue;
        }
        if shown.is_empty() {
            return Outcome::Done(issue());
        }
        match attempt(stream, &shown, &mut issue) {
            Ok(code) => return Outcome::Done(code),
            Err((unit, why)) => {
                drop(inside);
                if let Err(error) = private::for_good(unit, why) {
                    return Outcome::Fail(error.into());
                }
            }
        }
    }
}

/// What these ranges show stays where it is: they become a node of a graph.
pub(crate) fn keep(operands: &[Operand]) -> Result<(), CUresult> {
    let Some(arena) = arena() else { return Ok(()) };
    let inside = operands.iter().filter(|operand| arena.contains(operand.address));
    let addresses = inside.flat_map(|operand| pages(arena, operand));
    graphs::keep(addresses.map(|address| (arena.meaning(address), address)))
}

fn attempt(
    stream: Stream,
    shown: &[(Meaning, bool)],
    issue: &mut impl FnMut() -> CUresult,
) -> Result<CUresult, (UnitId, Why)> {
    let hits: Vec<Hit> = shown.iter().filter_map(|&(meaning, writes)| hit_of(meaning, writes)).collect();
    let mut verdicts = vec![Verdict::Ready; hits.len()];
    let device = shown.iter().find_map(|(meaning, _)| super::device_of_meaning(*meaning)).unwrap_or(0);
    if !hits.is_empty() {
        let mut ring = check::in_turn(device, ring_of(device), &hits);
        // Only what has lost its memory counts as streamed where no ring is.
        let Some(ring) = ring.as_mut() else { return Ok(CUresult::CUDA_ERROR_UNKNOWN) };
        if let Err(error) = ring.usable() {
            return Ok(error.into());
        }
        if let Some(hit) = hits.iter().find(|hit| ring.unit(hit.unit).is_none()) {
            return Err((hit.unit, Why::Crowded));
        }
        match (ring.serves_current_context(), hits.first()) {
            (Ok(false), Some(hit)) => return Err((hit.unit, Why::OtherContext)),
            (Err(error), _) => return Ok(error.into()),
            _ => {}
        }
        ring.acquire(stream, &hits, &mut verdicts, By::Copy);
        if let Err(error) = ring.usable() {
            ring.launched(stream, &hits, &verdicts, By::Copy);
            return Ok(error.into());
        }
        let stuck = hits.iter().zip(&verdicts).find(|(_, verdict)| !verdict.in_place());
        if let Some((hit, _)) = stuck {
            let unit = hit.unit;
            ring.launched(stream, &hits, &verdicts, By::Copy);
            return Err((unit, Why::Crowded));
        }
    }
    let code = issue();
    if !hits.is_empty()
        && let Some(ring) = ring_of(device).as_mut()
    {
        for hit in hits.iter().filter(|hit| hit.access == Access::Write) {
            if let Some(unit) = ring.unit_mut(hit.unit) {
                unit.ledger.note_change();
            }
        }
        ring.launched(stream, &hits, &verdicts, By::Copy);
    }
    let observed = learn::observes();
    for (meaning, _) in shown {
        match meaning {
            Meaning::Learning(unit) => learn::after_copy(*unit, stream),
            Meaning::Streamed(unit) if observed => learn::after_copy(*unit, stream),
            _ => {}
        }
    }
    Ok(code)
}

fn hit_of(meaning: Meaning, writes: bool) -> Option<Hit> {
    let Meaning::Streamed(unit) = meaning else { return None };
    let access = if writes { Access::Write } else { Access::Read };
    Some(Hit { unit, access, certainty: Certainty::Live, hold: false, can_redirect: false })
}

/// An address of the operand on each of its pages in the arena. A length that makes no sense is the driver's to refuse.
fn pages(arena: &Arena, operand: &Operand) -> impl Iterator<Item = u64> + use<> {
    let end = operand.address.saturating_add(operand.bytes).min(arena.base() + arena.bytes());
    let start = operand.address;
    (start / PAGE..end.div_ceil(PAGE)).map(move |page| start.max(page * PAGE))
}

/// Each unit once, and whether the call writes it.
fn units_of(arena: &Arena, operands: &[Operand]) -> Vec<(Meaning, bool)> {
    let mut units: Vec<(Meaning, bool)> = Vec::new();
    for operand in operands.iter().filter(|operand| arena.contains(operand.address)) {
        for address in pages(arena, operand) {
            let meaning = arena.meaning(address);
            if meaning == Meaning::Nothing {
                continue;
            }
            match units.iter_mut().find(|(known, _)| *known == meaning) {
                Some((_, writes)) => *writes |= operand.writes,
                None => units.push((meaning, operand.writes)),
            }
        }
    }
    units
}
