//! How long memory has been free where it ran short, and when weights come back: later where they had to leave again soon. Which of them, is `replan`'s matter.

use std::sync::{Mutex, MutexGuard};

use super::super::devices::{MAX_DEVICES, index_of};
use super::super::{limit, replan};
use super::{is_pressed, room};

/// Passes that memory has to stay free before weights come back; as many more times two where they had to leave again soon, up to the most.
const PATIENCE: u64 = 8;
pub(super) const MOST_PATIENCE: u64 = 1024;
/// Passes within which leaving again is soon.
const SOON: u64 = 64;

/// How long memory was free, by device.
#[derive(Clone, Copy)]
struct Calm {
    passes: u64,
    patience: u64,
    since_promotion: u64,
}

static CALM: Mutex<[Calm; MAX_DEVICES]> =
    Mutex::new([Calm { passes: 0, patience: PATIENCE, since_promotion: u64::MAX }; MAX_DEVICES]);

fn calm(device: i32) -> (usize, MutexGuard<'static, [Calm; MAX_DEVICES]>) {
    let at = index_of(device);
    (at, CALM.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

impl Calm {
    /// Weights had to leave.
    fn ended(&mut self) {
        let soon = self.since_promotion < SOON;
        self.patience = if soon { (self.patience * 2).min(MOST_PATIENCE) } else { PATIENCE };
        (self.passes, self.since_promotion) = (0, u64::MAX);
    }

    /// A pass has ended, and weights are away (`pressed`) or not. True if it is time to look whether they may come back.
    fn lasts(&mut self, pressed: bool) -> bool {
        self.since_promotion = self.since_promotion.saturating_add(1);
        if !pressed {
            return false;
        }
        self.passes += 1;
        let enough = self.passes >= self.patience;
        if enough {
            self.passes = 0;
        }
        enough
    }
}

/// Weights of the device had to leave.
pub(super) fn ends(device: i32) {
    let (at, mut all) = calm(device);
    all[at].ended();
}

/// Weights of the device have come back.
pub(super) fn promoted(device: i32) {
    let (at, mut all) = calm(device);
    all[at].since_promotion = 0;
}

/// A forward has ended on the device, whose context is current: weights that made room come back, where memory has been free for long enough.
pub(in super::super) fn pass_ended(device: i32) {
    let enough = {
        let (at, mut all) = calm(device);
        all[at].lasts(is_pressed(device))
    };
    // What stays free afterwards, and as much again to come back for.
    let worth = |(free, total): (u64, u64)| free >= 3 * room(total);
    if enough && limit::free_and_total(device).is_ok_and(worth) {
        replan::come_back(device);
    }
}

/// A plan for more memory was not worth moving for: the next look comes later.
pub(in super::super) fn nothing_to_gain(device: i32) {
    let (at, mut all) = calm(device);
    all[at].patience = (all[at].patience * 2).min(MOST_PATIENCE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_to_stay_free_longer_where_weights_had_to_leave_again_soon() {
        let mut calm = Calm { passes: 0, patience: PATIENCE, since_promotion: u64::MAX };
        calm.ended();
        assert_eq!((1..).find(|_| calm.lasts(true)), Some(PATIENCE));
        calm.since_promotion = 0;
        calm.ended();
        assert_eq!((1..).find(|_| calm.lasts(true)), Some(2 * PATIENCE));
        calm.since_promotion = 0;
        (0..SOON).for_each(|_| {
            calm.lasts(true);
        });
        calm.ended();
        assert_eq!((1..).find(|_| calm.lasts(true)), Some(PATIENCE));
    }

    #[test]
    fn passes_with_all_weights_back_count_as_well() {
        let mut calm = Calm { passes: 0, patience: PATIENCE, since_promotion: 0 };
        assert!((0..SOON).all(|_| !calm.lasts(false)));
        calm.ended();
        assert_eq!((1..).find(|_| calm.lasts(true)), Some(PATIENCE));
    }
}
