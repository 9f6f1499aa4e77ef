//! What is known of one word of one kernel's parameters: whether it ever was a use, and whether it ever changed a weight's bytes.
//! The proof itself is `verify`'s matter, and `evidence`'s while a model is learnt; what follows from it is the pager's.

mod readers;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_core::units::UnitId;

use super::open;

pub(crate) use readers::Readers;

/// A word: the function handle, the word's offset in its parameters, and which of the functions that ever had this handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Word {
    function: usize,
    offset: u32,
    generation: u32,
}

/// Counts unloads. Checks that were under way at one speak of words that nobody asks for any more.
static GENERATION: AtomicU32 = AtomicU32::new(0);

impl Word {
    /// The word at `offset` of the function that has this handle now.
    pub(crate) fn of(function: usize, offset: u32) -> Self {
        Self { function, offset, generation: GENERATION.load(Ordering::Acquire) }
    }
}

/// Counts what was taken back: what a thread remembers of readers holds as long as this stands.
static RETRACTIONS: AtomicU64 = AtomicU64::new(0);

/// Clean checks after which a word counts as read-only.
const PROOFS: u8 = 2;

/// A word whose launches may have changed a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Suspect {
    pub(crate) word: Word,
    /// Its launches stood in passes whose weights the caller watches: that nothing changed then counts.
    pub(crate) counts: bool,
}

/// What a check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finding {
    /// All bytes are as they were.
    Clean,
    /// Bytes changed where only the suspects wrote.
    Changed,
    /// Bytes changed that others may have written too.
    ChangedBySomebody,
}

/// What launches are served by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    /// A use began by it before.
    pub(crate) live: bool,
    /// It is known to be a pointer, and no number that looks like an address.
    pub(crate) pointer: bool,
    /// Proven to read only, and nothing is left to be said against it.
    pub(crate) reads_only: bool,
}

#[derive(Clone, Debug, Default)]
struct Known {
    live: bool,
    /// It was the address of a weight's first byte when a use began by it: the kernel takes it for a pointer.
    pointer: bool,
    clean: u8,
    writer: bool,
    /// A check of it is under way.
    checking: bool,
    /// When the last of its proofs was made: it counts once the passes of that time have ended.
    proven: u64,
    /// Units whose bytes its proofs stand on.
    stands_on: Vec<UnitId>,
    /// While its model is learnt: units that it showed, and the numbers of the last two watched passes in which it showed any.
    shown: Vec<UnitId>,
    seen: [u64; 2],
}

/// All words seen.
#[derive(Debug, Default)]
pub(crate) struct Words(Option<HashMap<Word, Known>>);

static WORDS: Mutex<Words> = Mutex::new(Words(None));

/// Locks the table. Taken after any other lock.
pub(crate) fn words() -> MutexGuard<'static, Words> {
    WORDS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Known {
    fn is_proven(&self) -> bool {
        !self.writer && self.clean >= PROOFS
    }

    fn is_reader(&self) -> bool {
        self.is_proven() && open::has_settled(self.proven)
    }

    fn forget_proofs(&mut self) {
        RETRACTIONS.fetch_add(1, Ordering::AcqRel);
        self.clean = 0;
        self.stands_on.clear();
    }

    fn stand_on(&mut self, unit: UnitId) {
        if !self.stands_on.contains(&unit) {
            self.stands_on.push(unit);
        }
    }
}

impl Words {
    fn entry(&mut self, word: Word) -> &mut Known {
        self.0.get_or_insert_default().entry(word).or_default()
    }

    fn get(&self, word: Word) -> Option<&Known> {
        self.0.as_ref().and_then(|known| known.get(&word))
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Known> {
        self.0.iter_mut().flat_map(HashMap::values_mut)
    }

    /// A use began by this word. `pointer`: it was the address of a weight's first byte.
    pub(crate) fn mark_live(&mut self, word: Word, pointer: bool) {
        let known = self.entry(word);
        known.live = true;
        known.pointer |= pointer;
    }

    /// All that a launch asks about a word.
    pub(crate) fn evidence(&self, word: Word) -> Evidence {
        self.get(word).map_or_else(Evidence::default, |known| Evidence {
            live: known.live,
            pointer: known.pointer,
            reads_only: known.is_reader(),
        })
    }

    /// Whether checks can still tell something of it.
    pub(crate) fn is_in_question(&self, word: Word) -> bool {
        self.get(word).is_none_or(|known| !known.writer && known.clean < PROOFS)
    }

    /// The bytes of a unit after launches by these words were those of before, or not. A change is the writing of one of them: only a word that stands alone
    /// is a writer for good; others have to be proven anew, so that readers do not pay for ever for what somebody else wrote once.
    pub(crate) fn judge(&mut self, suspects: &[Suspect], unit: UnitId, found: Finding) {
        for suspect in suspects {
            let known = self.entry(suspect.word);
            if found != Finding::Clean {
                known.writer |= found == Finding::Changed && suspects.len() == 1;
                known.forget_proofs();
            } else if suspect.counts {
                if known.clean < PROOFS {
                    known.proven = open::moment();
                }
                known.clean = known.clean.saturating_add(1);
                known.stand_on(unit);
            }
        }
    }

    /// A forward wrote a weight of the unit, whatever its bytes say: what was proven by it is not.
    pub(crate) fn retract(&mut self, unit: UnitId) {
        for known in self.all().filter(|known| known.stands_on.contains(&unit)) {
            known.forget_proofs();
        }
    }

    /// While a model is learnt: the word showed the unit, in the watched pass of this number if there is one.
    pub(crate) fn note_shown(&mut self, word: Word, unit: UnitId, pass: Option<u64>) {
        let known = self.entry(word);
        if !known.shown.contains(&unit) {
            known.shown.push(unit);
        }
        if let Some(pass) = pass.filter(|&pass| pass > known.seen[0]) {
            known.seen = [pass, known.seen[0]];
        }
    }

    /// Whether anything was noted since that was concluded last.
    pub(crate) fn any_shown(&mut self) -> bool {
        self.all().any(|known| !known.shown.is_empty())
    }

    /// Learning is over. `unchanged_since`: for each unit whose bytes are what they were, the number of the first pass that began after they had been looked at.
    /// A word is proven by the passes in which it showed units, if all that it showed in any launch are unchanged.
    pub(crate) fn conclude(&mut self, unchanged_since: impl Fn(UnitId) -> Option<u64>) -> usize {
        let now = open::moment();
        let mut proven = 0;
        for known in self.all() {
            let (shown, seen) = (std::mem::take(&mut known.shown), std::mem::take(&mut known.seen));
            let since: Option<Vec<u64>> = shown.iter().map(|&unit| unchanged_since(unit)).collect();
            let Some(since) = since.and_then(|since| since.into_iter().max()) else { continue };
            let passes = seen.iter().filter(|&&pass| pass >= since).count() as u8;
            if passes == 0 || known.writer {
                continue;
            }
            if known.clean < PROOFS {
                known.proven = now;
            }
            known.clean = known.clean.saturating_add(passes);
            shown.into_iter().for_each(|unit| known.stand_on(unit));
            proven += usize::from(known.is_proven());
        }
        proven
    }

    /// Whether a check of this word should be started; at most one is under way at a time.
    pub(crate) fn start_check(&mut self, word: Word) -> bool {
        let known = self.entry(word);
        !known.writer && known.clean < PROOFS && !std::mem::replace(&mut known.checking, true)
    }

    /// The check ended, with or without a judgement.
    pub(crate) fn end_check(&mut self, word: Word) {
        self.entry(word).checking = false;
    }

    /// A module was unloaded: function handles may come back for other kernels.
    pub(crate) fn forget_all(&mut self) {
        GENERATION.fetch_add(1, Ordering::AcqRel);
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flextensor_core::units::ModelId;

    pub(super) const UNIT: UnitId = UnitId(0);

    pub(super) fn counted(words: &[Word]) -> Vec<Suspect> {
        words.iter().map(|&word| Suspect { word, counts: true }).collect()
    }

    #[test]
    fn a_word_is_read_only_after_two_clean_checks_and_never_after_a_change() {
        let mut words = Words::default();
        let word = Word::of(4096, 8);
        words.judge(&counted(&[word]), UNIT, Finding::Clean);
        assert!(!words.evidence(word).reads_only);
        words.judge(&counted(&[word]), UNIT, Finding::Clean);
        assert!(words.get(word).is_some_and(Known::is_proven));
        words.judge(&counted(&[word]), UNIT, Finding::Changed);
        for _ in 0..2 {
            words.judge(&counted(&[word]), UNIT, Finding::Clean);
        }
        assert!(!words.evidence(word).reads_only && !words.is_in_question(word));
    }

    #[test]
    fn of_several_suspects_of_a_change_none_is_a_writer_and_each_has_to_be_proven_anew() {
        let mut words = Words::default();
        let (reader, writer) = (Word::of(4096, 8), Word::of(8192, 0));
        words.judge(&counted(&[reader]), UNIT, Finding::Clean);
        words.judge(&counted(&[writer, reader]), UNIT, Finding::Changed);
        words.judge(&counted(&[reader]), UNIT, Finding::Clean);
        assert!(words.is_in_question(reader), "a proof from before the change counts");
        words.judge(&counted(&[reader]), UNIT, Finding::Clean);
        assert!(!words.is_in_question(reader));
        words.judge(&counted(&[writer]), UNIT, Finding::ChangedBySomebody);
        assert!(words.is_in_question(writer), "it may have been somebody else");
        words.judge(&counted(&[writer]), UNIT, Finding::Changed);
        assert!(!words.is_in_question(writer) && !words.evidence(writer).reads_only);
    }

    #[test]
    fn launches_outside_of_watched_passes_prove_nothing() {
        let mut words = Words::default();
        let suspect = Suspect { word: Word::of(4096, 8), counts: false };
        for _ in 0..3 {
            words.judge(&[suspect], UNIT, Finding::Clean);
        }
        assert!(words.is_in_question(suspect.word));
    }

    #[test]
    fn a_proof_counts_from_the_end_of_the_passes_that_it_was_made_in() {
        let model = ModelId(2001);
        let mut words = Words::default();
        let word = Word::of(4096, 8);
        open::begin(model, true);
        for _ in 0..2 {
            words.judge(&counted(&[word]), UNIT, Finding::Clean);
        }
        assert!(!words.evidence(word).reads_only, "its pass goes on");
        open::end(model, true);
        // Passes of other tests end too.
        while !words.evidence(word).reads_only {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_forward_wrote_proves_nothing() {
        let mut words = Words::default();
        let (first, second) = (Word::of(4096, 8), Word::of(8192, 0));
        for unit in [UNIT, UnitId(1)] {
            words.judge(&counted(&[first]), unit, Finding::Clean);
            words.judge(&counted(&[second]), UnitId(1), Finding::Clean);
        }
        words.retract(UNIT);
        assert!(words.is_in_question(first), "it stands on a unit that was written");
        assert!(!words.is_in_question(second));
    }

    #[test]
    fn learning_proves_words_by_two_passes_over_units_that_all_stayed_as_they_were() {
        let mut words = Words::default();
        let [twice, once, early, changed] = [0, 8, 16, 24].map(|offset| Word::of(4096, offset));
        for pass in 5..7 {
            words.note_shown(twice, UNIT, Some(pass));
            words.note_shown(changed, UNIT, Some(pass));
        }
        words.note_shown(once, UNIT, Some(6));
        words.note_shown(once, UNIT, None);
        words.note_shown(early, UNIT, Some(4));
        words.note_shown(early, UNIT, Some(6));
        words.note_shown(changed, UnitId(1), None);
        assert_eq!(words.conclude(|unit| (unit == UNIT).then_some(5)), 1);
        let proven = [twice, once, early, changed].map(|word| !words.is_in_question(word));
        assert_eq!(proven, [true, false, false, false]);
        assert_eq!(words.conclude(|_| Some(0)), 0, "what was concluded is forgotten");
    }

    #[test]
    fn an_unloaded_module_takes_what_was_known_with_it() {
        let mut words = Words::default();
        words.mark_live(Word::of(1, 0), false);
        words.forget_all();
        assert!(!words.evidence(Word::of(1, 0)).live);
    }

    #[test]
    fn checks_that_an_unload_overtook_prove_nothing_of_the_next_kernel_with_the_handle() {
        let mut words = Words::default();
        let before = Word::of(1, 0);
        words.judge(&counted(&[before]), UNIT, Finding::Clean);
        words.forget_all();
        words.judge(&counted(&[before]), UNIT, Finding::Clean);
        words.judge(&counted(&[before]), UNIT, Finding::Clean);
        assert!(words.is_in_question(Word::of(1, 0)));
    }
}
