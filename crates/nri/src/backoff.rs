//! The delay between attempts to connect: 100 ms, doubled up to 5 s, with a random part.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const MAX: Duration = Duration::from_secs(5);

/// Consecutive failures.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Counts a failure and returns the delay before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        let delay = FIRST.saturating_mul(1 << self.failures.min(10)).min(MAX);
        self.failures = self.failures.saturating_add(1);
        // A new random state has random keys: enough to keep plugins from connecting in step.
        let random = RandomState::new().hash_one(self.failures) % 1024;
        delay.mul_f64(0.75 + random as f64 / 2048.0)
    }

    /// Forgets the failures, after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of consecutive failures.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_five_seconds_and_start_again() {
        let mut backoff = Backoff::default();
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000] {
            let delay = backoff.next().as_millis() as f64 / f64::from(expected);
            assert!((0.74..=1.26).contains(&delay), "{expected}: {delay}");
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST.mul_f64(1.25));
    }
}
