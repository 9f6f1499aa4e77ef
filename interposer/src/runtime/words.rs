//! What is known of one word of one kernel's parameters: whether it ever was a use, and whether it ever changed a weight's bytes.
//! The proof itself is `verify`'s matter; what follows from it is the pager's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

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

/// Clean checks after which a word counts as read-only.
const PROOFS: u8 = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    live: bool,
    clean: u8,
    writer: bool,
    /// A check of it is under way.
    checking: bool,
}

/// All words seen.
#[derive(Debug, Default)]
pub(crate) struct Words(Option<HashMap<Word, Known>>);

static WORDS: Mutex<Words> = Mutex::new(Words(None));

/// Locks the table. Taken after any other lock.
pub(crate) fn words() -> MutexGuard<'static, Words> {
    WORDS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Words {
    fn entry(&mut self, word: Word) -> &mut Known {
        self.0.get_or_insert_default().entry(word).or_default()
    }

    fn get(&self, word: Word) -> Known {
        self.0.as_ref().and_then(|known| known.get(&word)).copied().unwrap_or_default()
    }

    /// A use began by this word.
    pub(crate) fn mark_live(&mut self, word: Word) {
        self.entry(word).live = true;
    }

    /// A use began by this word before.
    pub(crate) fn is_live(&self, word: Word) -> bool {
        self.get(word).live
    }

    /// Proven to read only.
    pub(crate) fn reads_only(&self, word: Word) -> bool {
        let known = self.get(word);
        !known.writer && known.clean >= PROOFS
    }

    /// The bytes after launches by these words were those of before (`clean`) or not. A change is the writing of one of them: only a word that stands alone
    /// is a writer for good; others have to be proven anew, so that readers do not pay for ever for what somebody else wrote once.
    pub(crate) fn judge(&mut self, suspects: &[Word], clean: bool) {
        for &word in suspects {
            let known = self.entry(word);
            known.clean = if clean { known.clean.saturating_add(1) } else { 0 };
            known.writer |= !clean && suspects.len() == 1;
        }
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

    #[test]
    fn a_word_is_read_only_after_two_clean_checks_and_never_after_a_change() {
        let mut words = Words::default();
        let word = Word::of(4096, 8);
        words.judge(&[word], true);
        assert!(!words.reads_only(word));
        words.judge(&[word], true);
        assert!(words.reads_only(word));
        words.judge(&[word], false);
        words.judge(&[word], true);
        assert!(!words.reads_only(word));
    }

    #[test]
    fn of_several_suspects_of_a_change_none_is_a_writer_and_each_has_to_be_proven_anew() {
        let mut words = Words::default();
        let (reader, writer) = (Word::of(4096, 8), Word::of(8192, 0));
        words.judge(&[reader], true);
        words.judge(&[writer, reader], false);
        words.judge(&[reader], true);
        assert!(!words.reads_only(reader), "a proof from before the change counts");
        words.judge(&[reader], true);
        assert!(words.reads_only(reader));
        words.judge(&[writer], false);
        words.judge(&[writer], true);
        words.judge(&[writer], true);
        assert!(!words.reads_only(writer));
    }

    #[test]
    fn an_unloaded_module_takes_what_was_known_with_it() {
        let mut words = Words::default();
        words.mark_live(Word::of(1, 0));
        words.forget_all();
        assert!(!words.is_live(Word::of(1, 0)));
    }

    #[test]
    fn checks_that_an_unload_overtook_prove_nothing_of_the_next_kernel_with_the_handle() {
        let mut words = Words::default();
        let before = Word::of(1, 0);
        words.judge(&[before], true);
        words.forget_all();
        words.judge(&[before], true);
        words.judge(&[before], true);
        assert!(!words.reads_only(Word::of(1, 0)));
    }
}
