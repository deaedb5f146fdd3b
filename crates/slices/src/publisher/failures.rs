//! Consecutive failures of publishing: since when, how many, and when to warn again.

use std::time::{Duration, SystemTime};

use drakkar_client::{Backoff, Retry};
use tokio::time::Instant;

/// The intervals of warnings about an error that persists.
const REMINDERS: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(600)).with_jitter(1.0, 1.0);

/// Failures without a success in between.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failures {
    /// The time of the first one.
    pub(super) since: SystemTime,
    /// The number of failed tries.
    pub(super) tries: u32,
    reminder: Instant,
    reminders: Retry,
}

impl Failures {
    /// Creates a count of zero.
    pub(super) fn new() -> Self {
        let mut reminders = REMINDERS.retry();
        let reminder = Instant::now() + reminders.next_delay();
        Self { since: SystemTime::now(), tries: 0, reminder, reminders }
    }

    /// Counts a failed try. Returns whether to warn again.
    pub(super) fn record(&mut self) -> bool {
        self.tries = self.tries.saturating_add(1);
        let now = Instant::now();
        let is_due = now >= self.reminder;
        if is_due {
            self.reminder = now + self.reminders.next_delay();
        }
        is_due
    }
}
