//! What a thread remembers of words that only read, so that the launches of a use need not ask the table that all threads share. What is proven, and taken back, is the parent's matter.

use std::sync::atomic::Ordering;

use super::{RETRACTIONS, Word, words};

/// Words that a thread asked about not long ago and that read only. Their table is another thread's too, and wide: a launch that shows what is in use asks for no more than this.
#[derive(Debug, Default)]
pub(crate) struct Readers([Option<(Word, u64)>; Readers::PLACES]);

impl Readers {
    const PLACES: usize = 16;

    /// As [`super::Evidence::reads_only`].
    pub(crate) fn reads_only(&mut self, word: Word) -> bool {
        let now = RETRACTIONS.load(Ordering::Acquire);
        // Handles are addresses, at multiples of sixteen at least.
        let place = ((word.function >> 4) ^ (word.offset as usize >> 3)) % Self::PLACES;
        if self.0[place] == Some((word, now)) {
            return true;
        }
        let reads_only = words().evidence(word).reads_only;
        // What is not proven yet may be the next time.
        self.0[place] = reads_only.then_some((word, now));
        reads_only
    }
}

#[cfg(test)]
mod tests {
    use super::super::Finding;
    use super::super::tests::{UNIT, counted};
    use super::*;

    /// What a thread remembers must not outlive a proof.
    #[test]
    fn a_reader_that_a_thread_remembers_is_none_any_more_when_its_proof_is_taken_back() {
        let mut readers = Readers::default();
        let takes_back: [fn(Word); 4] = [
            |word| words().judge(&counted(&[word]), UNIT, Finding::ChangedBySomebody),
            |_| words().retract(UNIT),
            |_| words().forget_all(),
            |word| words().judge(&counted(&[word]), UNIT, Finding::Changed),
        ];
        for take_back in takes_back {
            let word = Word::of(0x7710, 24);
            (0..2).for_each(|_| words().judge(&counted(&[word]), UNIT, Finding::Clean));
            // Passes of other tests end too.
            while !readers.reads_only(word) {
                std::thread::yield_now();
            }
            assert!(readers.reads_only(word), "remembered");
            take_back(word);
            assert!(!readers.reads_only(Word::of(0x7710, 24)));
        }
    }
}
