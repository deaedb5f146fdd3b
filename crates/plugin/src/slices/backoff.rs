//! Pauses that grow, and differ from node to node.

use std::time::Duration;

pub(super) use crate::claims::random;

/// Pauses from `first` to `longest`, each about twice as long as the one before: up to a half longer or shorter, by chance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backoff {
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Backoff {
    /// The pause after so many failures.
    pub(super) fn after(&self, failures: u32) -> Duration {
        let factor = 2u32.saturating_pow(failures.saturating_sub(1).min(20));
        self.first.saturating_mul(factor).min(self.longest).mul_f64(0.5 + random())
    }
}
