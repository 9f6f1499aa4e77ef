//! The way of a launch: scan, and for the few launches that show a weight, check, enqueue, record.
//! Rules are the pager's; learning is `learn`'s; captures and graphs are `graphs`'.

use std::cell::Cell;

use flextensor_core::pager::{Access, Certainty, Hit, Verdict};
use flextensor_core::units::UnitId;

use super::arena::{Arena, Meaning, arena};
use super::check::{self, By};
use super::layouts;
use super::private::Why;
use super::scan::{Found, Parameters, Patched};
use super::streaming::{Streaming, ring_of};
use super::words::{Evidence, Readers, Suspect, Word, words};
use super::{gate, graphs, home, learn, open, private, verify};
use crate::ffi::stream::Stream;
use crate::ffi::types::{CUfunction, CUresult, c_void};
use crate::outcome::{Outcome, Reason};

/// What the program asked for.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    pub(crate) function: CUfunction,
    pub(crate) stream: Stream,
    pub(crate) pointers: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
}

/// Room that a thread keeps from launch to launch.
#[derive(Default)]
struct Scratch {
    found: Vec<Found>,
    hits: Vec<Hit>,
    /// The launch stands in a forward.
    inside: bool,
    readers: Readers,
    verdicts: Vec<Verdict>,
    /// Of each hit that may write a shadow: the shadow's checksum before the launch.
    before: Vec<Option<u64>>,
    patched: Patched,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Launch {
    /// Where the launch's parameters lie; none if the driver does not tell the function's layout.
    #[expect(unsafe_code, reason = "reads what the program passes to the driver")]
    pub(super) fn parameters(&self) -> Option<Parameters> {
        if !self.pointers.is_null() {
            let layout = layouts::layout_of(self.function)?;
            return Some(Parameters::Each { pointers: self.pointers, layout });
        }
        if self.extra.is_null() {
            return Some(Parameters::Nothing);
        }
        // SAFETY: the program passes the list to the driver in this very call.
        unsafe { super::scan::packed(self.extra) }
    }
}

/// Handles a launch. `issue` enqueues it with the given `kernelParams` and `extra`.
#[expect(unsafe_code, reason = "reads what the program passes to the driver")]
pub(crate) fn handle(
    launch: Launch,
    mut issue: impl FnMut(*mut *mut c_void, *mut *mut c_void) -> CUresult,
) -> Outcome {
    let Some(arena) = arena() else { return Outcome::Bypass(Reason::NotManaged) };
    let Some(parameters) = launch.parameters() else { return unparsed() };
    if graphs::is_capturing(launch.stream) {
        return graphs::capture_launch(arena, parameters, || issue(launch.pointers, launch.extra));
    }
    if check::is_on() {
        // SAFETY: the parameters are those of the launch that the program makes now.
        unsafe { check::look_at_launch(arena, parameters, By::Kernel(launch.function)) };
    }
    let mut seen = gate::openings();
    loop {
        let (mut managed, mut any) = (false, false);
        let look = |found: Found| (managed, any) = (true, any || found.meaning != Meaning::Nothing);
        // SAFETY: the parameters are those of the launch that the program makes now.
        unsafe { parameters.each_address(arena, look) };
        if !managed {
            return Outcome::Bypass(Reason::NotManaged);
        }
        if any {
            break;
        }
        let _inside = gate::enter();
        if gate::openings() == seen {
            return Outcome::Done(issue(launch.pointers, launch.extra));
        }
        seen = gate::openings();
    }
    let mut scratch = SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let code = loop {
        seen = gate::openings();
        scratch.found.clear();
        // SAFETY: as above.
        unsafe { parameters.each_weight(arena, |found| scratch.found.push(found)) };
        if let Some(code) = attempt((arena, seen), launch, parameters, &mut scratch, &mut issue) {
            break code;
        }
    };
    let _ = SCRATCH.try_with(|cell| cell.set(Some(scratch)));
    Outcome::Done(code)
}

/// Nobody can say what the launch reads: everything that streams gets private pages first.
fn unparsed() -> Outcome {
    match private::everything(Why::Unparsed) {
        Ok(()) => Outcome::Bypass(Reason::NotManaged),
        Err(error) => Outcome::Fail(error.into()),
    }
}

/// One try. None when meanings changed under it, so that it has to look again: what means nothing may have become a streamed weight behind a closed gate, others
/// change without one.
fn attempt(
    (arena, seen): (&Arena, u64),
    launch: Launch,
    parameters: Parameters,
    scratch: &mut Scratch,
    issue: &mut impl FnMut(*mut *mut c_void, *mut *mut c_void) -> CUresult,
) -> Option<CUresult> {
    let inside = gate::enter();
    // What was found before the gate may have been remapped meanwhile.
    let changed = |found: &Found| arena.meaning(found.address) != found.meaning;
    if gate::openings() != seen || scratch.found.iter().any(changed) {
        return None;
    }
    for found in scratch.found.iter().filter(|found| found.meaning == Meaning::InHost) {
        home::shown(arena, found.address);
    }
    let learnt = || scratch.found.iter().any(|found| matches!(found.meaning, Meaning::Learning(_)));
    let observed = learn::observes() || (!learn::leaves_alone() && learnt());
    if observed {
        learn::before_launch(&scratch.found, launch.stream);
    }
    let streamed = scratch.found.iter().find_map(|found| match found.meaning {
        Meaning::Streamed(unit) => Some(unit),
        _ => None,
    });
    let code = match streamed {
        None => issue(launch.pointers, launch.extra),
        Some(_) => match launch_streamed(launch, parameters, scratch, observed, issue) {
            Ok(code) => code,
            Err((unit, why)) => {
                drop(inside);
                return private::for_good(unit, why).err().map(CUresult::from);
            }
        },
    };
    if observed && code.is_success() {
        learn::after_launch(&scratch.found, launch.function.addr(), launch.stream);
    }
    drop(inside);
    Some(code)
}

/// A launch that shows streamed units. `Err` names one that the ring cannot serve.
fn launch_streamed(
    launch: Launch,
    parameters: Parameters,
    scratch: &mut Scratch,
    observed: bool,
    issue: &mut impl FnMut(*mut *mut c_void, *mut *mut c_void) -> CUresult,
) -> Result<CUresult, (UnitId, Why)> {
    let device = super::device_of(&scratch.found);
    {
        let ring = ring_of(device);
        // Only what has lost its memory counts as streamed where no ring is.
        let Some(known) = ring.as_ref() else { return Ok(CUresult::CUDA_ERROR_UNKNOWN) };
        collect_hits(known, launch, scratch);
        let mut ring = check::in_turn(device, ring, &scratch.hits);
        let Some(ring) = ring.as_mut() else { return Ok(CUresult::CUDA_ERROR_UNKNOWN) };
        if let Err(error) = ring.usable() {
            return Ok(error.into());
        }
        // A weight on another device's ring is ordered there, not here.
        if let Some(hit) = scratch.hits.iter().find(|hit| ring.unit(hit.unit).is_none()) {
            return Err((hit.unit, Why::Crowded));
        }
        match (ring.serves_current_context(), scratch.hits.first()) {
            (Ok(false), Some(hit)) => return Err((hit.unit, Why::OtherContext)),
            (Err(error), _) => return Ok(error.into()),
            _ => {}
        }
        scratch.verdicts.clear();
        scratch.verdicts.resize(scratch.hits.len(), Verdict::Ready);
        if observed {
            learn::waits(launch.stream, true);
        }
        ring.acquire(launch.stream, &scratch.hits, &mut scratch.verdicts, By::Kernel(launch.function));
        if observed {
            learn::waits(launch.stream, false);
        }
        if let Err(error) = ring.usable() {
            ring.launched(launch.stream, &scratch.hits, &scratch.verdicts, By::Kernel(launch.function));
            return Ok(error.into());
        }
        if let Some(unit) = stuck(scratch) {
            ring.launched(launch.stream, &scratch.hits, &scratch.verdicts, By::Kernel(launch.function));
            return Err((unit, Why::Crowded));
        }
        open_rewrites(ring, scratch);
        redirect(ring, parameters, scratch);
    }
    let redirected = scratch.verdicts.iter().any(|verdict| !verdict.in_place());
    let code = match (redirected, parameters) {
        (true, Parameters::Packed { .. }) => issue(std::ptr::null_mut(), scratch.patched.pointers()),
        (true, _) => issue(scratch.patched.pointers(), std::ptr::null_mut()),
        (false, _) => issue(launch.pointers, launch.extra),
    };
    let mut ring = ring_of(device);
    if let Some(ring) = ring.as_mut() {
        ring.launched(launch.stream, &scratch.hits, &scratch.verdicts, By::Kernel(launch.function));
        // A launch that the driver refused read and wrote nothing: it proves nothing.
        if code.is_success() {
            note_words(ring, launch, scratch);
        }
    }
    Ok(code)
}

/// One hit for each unit: certain if one word is, read-only if all words are.
fn collect_hits(ring: &Streaming, launch: Launch, scratch: &mut Scratch) {
    scratch.inside = open::is_here();
    // In check mode others may come between this look and the next.
    look_up_hits(ring, launch, scratch, !check::is_on());
    // Then what is in use does not stay whatever is thought of its words.
    if ring.pager.collide(&scratch.hits) {
        look_up_hits(ring, launch, scratch, false);
    }
}

/// `in_short`: of what is in use and in place, only whether it may be written.
fn look_up_hits(ring: &Streaming, launch: Launch, scratch: &mut Scratch, in_short: bool) {
    let Scratch { found, hits, readers, inside, .. } = scratch;
    hits.clear();
    for found in found.iter() {
        let Meaning::Streamed(unit) = found.meaning else { continue };
        let word = word_of(launch, found);
        if in_short && shows_what_is_in_use((ring, unit), word, *inside, readers, hits) {
            continue;
        }
        // Released before the recorder is asked: it takes the table of words while it is locked.
        let known = words().evidence(word);
        let reads_only = is_reader(known, *inside);
        // Two numbers side by side may look like an address: what is replaced must be a pointer, or the kernel gets another number.
        let pointer = known.pointer || is_start(ring, unit, found);
        let written = ring.unit(unit).is_some_and(|unit| unit.ledger.written);
        let access = if reads_only && !written { Access::Read } else { Access::Write };
        let certainty = if known.live { Certainty::Live } else { Certainty::Unknown };
        match hits.iter_mut().find(|hit| hit.unit == unit) {
            Some(hit) => {
                hit.certainty = hit.certainty.max(certainty);
                if access == Access::Write {
                    hit.access = access;
                }
                hit.can_redirect &= pointer;
            }
            None => {
                let streamed = ring.unit(unit);
                let hold = streamed.is_some_and(|unit| unit.hold);
                let can_redirect = pointer && streamed.is_some_and(|unit| unit.shadow.view.is_some());
                let certainty = match certainty {
                    _ if learn::in_owner(unit) => Certainty::Owner,
                    Certainty::Unknown if learn::may_be_used(unit) => Certainty::Live,
                    known => known,
                };
                hits.push(Hit { unit, access, certainty, hold, can_redirect });
            }
        }
    }
}

/// The hit of a unit that is in use and in place, if it is: no doubt is left there, so that nothing counts but whether the word may write.
fn shows_what_is_in_use(
    (ring, unit): (&Streaming, UnitId),
    word: Word,
    inside: bool,
    readers: &mut Readers,
    hits: &mut Vec<Hit>,
) -> bool {
    if !ring.pager.is_in_use(unit) {
        return false;
    }
    let Some(streamed) = ring.unit(unit) else { return false };
    let reads = !streamed.ledger.written && inside && readers.reads_only(word);
    let access = if reads { Access::Read } else { Access::Write };
    match hits.iter_mut().find(|hit| hit.unit == unit) {
        Some(hit) if access == Access::Write => hit.access = access,
        Some(_) => {}
        None => hits.push(Hit {
            unit,
            access,
            // Should the same launch end the use, nothing moves but for the next use in order.
            certainty: Certainty::Unknown,
            hold: streamed.hold,
            can_redirect: false,
        }),
    }
    true
}

/// Whether the word is the address of a weight's first byte, where a pointer may stand.
fn is_start(ring: &Streaming, unit: UnitId, found: &Found) -> bool {
    found.offset.is_multiple_of(size_of::<u64>() as u32) && ring.begins_at(unit, found.address)
}

/// What is proven of a word holds inside forwards. Outside of them programs change weights (steps of an optimizer, merging of adapters) by kernels that may have
/// written the very bytes that were there each time they were looked at: there every word may write.
fn is_reader(known: Evidence, inside: bool) -> bool {
    inside && known.reads_only
}

/// Shadows that the launch may write have no checksum until it is recorded.
fn open_rewrites(ring: &mut Streaming, scratch: &mut Scratch) {
    let Scratch { hits, verdicts, before, .. } = scratch;
    before.clear();
    before.extend(hits.iter().zip(verdicts).map(|(hit, verdict)| {
        let writes = !verdict.in_place() && hit.access == Access::Write;
        ring.unit_mut(hit.unit).filter(|_| writes).and_then(verify::before_redirect)
    }));
}

/// A unit that is neither in place nor to be redirected.
fn stuck(scratch: &Scratch) -> Option<UnitId> {
    let mut both = scratch.hits.iter().zip(&scratch.verdicts);
    both.find(|(hit, verdict)| !verdict.in_place() && !hit.can_redirect).map(|(hit, _)| hit.unit)
}

/// Fills the patched copy of the parameters if any word has to point at a view.
#[expect(unsafe_code, reason = "copies what the program passes to the driver")]
fn redirect(ring: &Streaming, parameters: Parameters, scratch: &mut Scratch) {
    if scratch.verdicts.iter().all(|verdict| verdict.in_place()) {
        return;
    }
    let Scratch { found, hits, verdicts, patched, .. } = scratch;
    let changes = found.iter().filter_map(|found| {
        let Meaning::Streamed(unit) = found.meaning else { return None };
        let at = hits.iter().position(|hit| hit.unit == unit)?;
        if verdicts[at].in_place() {
            return None;
        }
        let streamed = ring.unit(unit)?;
        Some((*found, streamed.shadow.view? + (found.address - streamed.base)))
    });
    // SAFETY: the parameters are those of the launch that the program makes now, and the words were found in them.
    unsafe { patched.fill(parameters, changes) };
}

/// What the launch taught: words that begin uses are live; words that may have written are suspects of the next write-back.
fn note_words(ring: &mut Streaming, launch: Launch, scratch: &Scratch) {
    let (context, device) = (ring.context, ring.device);
    let mut watched = None;
    let mut asks = false;
    for ((hit, verdict), before) in scratch.hits.iter().zip(&scratch.verdicts).zip(&scratch.before) {
        let shown = scratch.found.iter().filter(|found| found.meaning == Meaning::Streamed(hit.unit));
        if *verdict == Verdict::Began {
            let mut words = words();
            let began = shown.clone().map(|found| (word_of(launch, found), is_start(ring, hit.unit, found)));
            began.for_each(|(word, pointer)| words.mark_live(word, pointer));
        }
        if hit.access == Access::Read {
            continue;
        }
        let Some(unit) = ring.unit_mut(hit.unit) else { continue };
        let counts = *watched.get_or_insert_with(|| scratch.inside && open::watched_here().is_some());
        let words = words();
        let open = shown.map(|found| word_of(launch, found));
        let open = open.filter(|&word| !is_reader(words.evidence(word), scratch.inside));
        if verdict.in_place() {
            for word in open {
                asks |= words.is_in_question(word);
                unit.ledger.suspect(word, counts);
            }
        } else {
            let open: Vec<Suspect> = open.map(|word| Suspect { word, counts }).collect();
            asks |= open.iter().any(|suspect| words.is_in_question(suspect.word));
            drop(words);
            verify::after_redirect(context, device, hit.unit, unit, launch.stream, *before, &open);
        }
    }
    if asks && scratch.inside {
        open::ask();
    }
}

fn word_of(launch: Launch, found: &Found) -> Word {
    Word::of(launch.function.addr(), found.offset)
}
