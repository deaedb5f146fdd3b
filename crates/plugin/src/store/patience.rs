//! How long a call waits for locks that others hold on metadata files.
//!
//! Whoever can read a file can lock it, containers too, and must not hold up a driver. A reader of ours has its lock for less than
//! a millisecond; all that a longer wait can achieve is to be polite to slower ones. So there is one patience for all files of a
//! call, and when it is used up each further file is still waited for as long as a reader needs.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The time that a call has for all its locks.
const CALL: Duration = Duration::from_millis(100);
/// The time that a start has for the locks of all leftover updates.
const RECOVERY: Duration = Duration::from_millis(200);
/// The time that each file has at least.
const LEAST: Duration = Duration::from_millis(1);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_micros(200);

/// What is left of the time for locks.
#[derive(Debug)]
pub(crate) struct LockPatience {
    left: Cell<Duration>,
}

impl LockPatience {
    pub(super) fn of_call() -> Self {
        Self { left: Cell::new(CALL) }
    }

    pub(super) fn of_recovery() -> Self {
        Self { left: Cell::new(RECOVERY) }
    }

    /// Tries until it has worked or there is no patience left.
    pub(super) fn try_until(&self, mut has_worked: impl FnMut() -> bool) {
        if has_worked() {
            return;
        }
        let begun = Instant::now();
        let time = self.left.get().min(CALL).max(LEAST);
        while begun.elapsed() < time {
            std::thread::sleep(PAUSE);
            if has_worked() {
                break;
            }
        }
        self.left.set(self.left.get().saturating_sub(begun.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long attempts that never work take, and how many there are.
    fn give_up(patience: &LockPatience) -> (Duration, usize) {
        let begun = Instant::now();
        let mut attempts = 0;
        patience.try_until(|| {
            attempts += 1;
            false
        });
        (begun.elapsed(), attempts)
    }

    #[test]
    fn all_files_of_a_call_share_its_patience() {
        let patience = LockPatience::of_call();
        assert!(give_up(&patience).0 >= CALL);
        assert_eq!(patience.left.get(), Duration::ZERO);
        let (took, attempts) = give_up(&patience);
        assert!(took >= LEAST && attempts > 1, "a file is waited for as long as a reader needs: {took:?}");
    }

    #[test]
    fn what_is_free_costs_no_patience() {
        let patience = LockPatience::of_recovery();
        patience.try_until(|| true);
        assert_eq!(patience.left.get(), RECOVERY);
    }
}
