//! Limits how long a call waits for locks that readers hold on metadata files.
//!
//! Every program that can read a file can lock it, containers included, and must not be able to block a driver. Our reader holds
//! its lock for less than a millisecond; a longer wait only helps slower readers. So all files of a call share one time budget.
//! Once it is spent, each further file still gets the time that our reader needs.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The budget of a call for all its locks.
const CALL_TIMEOUT: Duration = Duration::from_millis(100);
/// The budget of a recovery for the locks of all unfinished updates.
const RECOVERY_TIMEOUT: Duration = Duration::from_millis(200);
/// The time that each file gets at least.
const MIN_FILE_TIMEOUT: Duration = Duration::from_millis(1);
/// The interval between two attempts.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The remaining time for locks.
#[derive(Debug)]
pub(crate) struct LockBudget {
    remaining: Cell<Duration>,
}

impl LockBudget {
    pub(super) fn for_call() -> Self {
        Self { remaining: Cell::new(CALL_TIMEOUT) }
    }

    pub(super) fn for_recovery() -> Self {
        Self { remaining: Cell::new(RECOVERY_TIMEOUT) }
    }

    /// Repeats an attempt until it succeeds or the budget is spent.
    pub(super) fn poll_until(&self, mut attempt: impl FnMut() -> bool) {
        if attempt() {
            return;
        }
        let started = Instant::now();
        let timeout = self.remaining.get().min(CALL_TIMEOUT).max(MIN_FILE_TIMEOUT);
        while started.elapsed() < timeout {
            std::thread::sleep(POLL_INTERVAL);
            if attempt() {
                break;
            }
        }
        self.remaining.set(self.remaining.get().saturating_sub(started.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the duration and the number of attempts that never succeed.
    fn time_out(budget: &LockBudget) -> (Duration, usize) {
        let started = Instant::now();
        let mut attempts = 0;
        budget.poll_until(|| {
            attempts += 1;
            false
        });
        (started.elapsed(), attempts)
    }

    #[test]
    fn all_files_of_a_call_share_its_budget() {
        let budget = LockBudget::for_call();
        assert!(time_out(&budget).0 >= CALL_TIMEOUT);
        assert_eq!(budget.remaining.get(), Duration::ZERO);
        let (took, attempts) = time_out(&budget);
        assert!(took >= MIN_FILE_TIMEOUT && attempts > 1, "a file still gets the time that a reader needs: {took:?}");
    }

    #[test]
    fn an_unlocked_file_costs_no_budget() {
        let budget = LockBudget::for_recovery();
        budget.poll_until(|| true);
        assert_eq!(budget.remaining.get(), RECOVERY_TIMEOUT);
    }
}
