//! Pauses that grow, and differ from node to node.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// A number from 0 to 1 that differs from time to time and from process to process.
pub(super) fn random() -> f64 {
    let hash = RandomState::new().hash_one(0);
    f64::from(u32::try_from(hash >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

/// Pauses between `first` and `longest`, each about twice as long as the one before, and up to a half longer by chance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backoff {
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Backoff {
    /// The pause after so many failures.
    pub(super) fn after(&self, failures: u32) -> Duration {
        let factor = 2u32.saturating_pow(failures.saturating_sub(1).min(20));
        self.first.saturating_mul(factor).min(self.longest).mul_f64(1.0 + random() / 2.0)
    }
}
