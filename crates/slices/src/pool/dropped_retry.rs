//! Fields that the API server drops, and when to send them again.
//!
//! A server whose feature gates are off stores a slice without some fields. To write such a slice again would change nothing,
//! so what the server stored is accepted as equal to what was sent. From time to time one slice is sent again: if the server
//! keeps its fields now, all others are sent too.

use std::collections::HashMap;
use std::time::Duration;

use drakkar_client::Backoff;
use tokio::time::Instant;

use super::super::content::Digest;

const RETRY: Backoff = Backoff::new(Duration::from_secs(300), Duration::from_secs(3600));

/// The slices of a pool that the API server stored without some of their fields.
#[derive(Debug, Default)]
pub(super) struct DroppedRetry {
    /// What the server stored, by what was sent.
    accepted: HashMap<Digest, Digest>,
    /// How often fields were dropped since the last publish.
    drops: u32,
    next: NextTry,
    /// Whether the dropped fields were reported since the last publish.
    was_reported: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum NextTry {
    /// No fields were dropped.
    #[default]
    None,
    /// One slice is sent again at this time.
    At(Instant),
    /// This slice is being sent again.
    Probing(Digest),
}

impl DroppedRetry {
    /// Starts anew for another version of the pool; `is_desired` tells which slices are the same.
    pub(super) fn reset(&mut self, is_desired: impl Fn(&Digest) -> bool) {
        self.drops = 0;
        self.was_reported = false;
        self.accepted.retain(|sent, _| is_desired(sent));
        match self.next {
            _ if self.accepted.is_empty() => self.next = NextTry::None,
            // Its outcome will never be known.
            NextTry::Probing(sent) if !is_desired(&sent) => self.next = NextTry::At(Instant::now() + RETRY.delay(1)),
            _ => {}
        }
    }

    /// Returns whether the server stored this instead of what was sent, and was let to.
    pub(super) fn is_accepted(&self, sent: Digest, stored: Digest) -> bool {
        self.accepted.get(&sent) == Some(&stored)
    }

    /// Records that the server stored a slice without some fields.
    pub(super) fn accept(&mut self, sent: Digest, stored: Digest) {
        self.accepted.insert(sent, stored);
        if !matches!(self.next, NextTry::At(_)) {
            self.drops += 1;
            self.next = NextTry::At(Instant::now() + RETRY.delay(self.drops));
        }
    }

    /// Records that the server stored a slice as it was sent. Returns whether that shows that it keeps fields now that it
    /// dropped before, so that all slices are worth another write.
    pub(super) fn kept(&mut self, sent: Digest) -> bool {
        self.accepted.remove(&sent);
        let is_worth_a_try = self.next == NextTry::Probing(sent) && !self.accepted.is_empty();
        if is_worth_a_try {
            self.accepted.clear();
        }
        if self.accepted.is_empty() {
            self.drops = 0;
            self.next = NextTry::None;
        }
        is_worth_a_try
    }

    /// Picks a slice to send again, if it is time for that: it no longer counts as accepted.
    pub(super) fn probe_if_due(&mut self) {
        let NextTry::At(due) = self.next else { return };
        if due > Instant::now() {
            return;
        }
        tracing::debug!(late = ?due.elapsed(), "sending dropped fields again");
        self.next = match self.accepted.keys().next().copied() {
            Some(sent) => {
                self.accepted.remove(&sent);
                NextTry::Probing(sent)
            }
            None => NextTry::None,
        };
    }

    /// Returns when a slice is to be sent again.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.next {
            NextTry::At(due) => Some(due),
            NextTry::None | NextTry::Probing(_) => None,
        }
    }

    /// Delays the next try until this time at least.
    pub(super) fn not_before(&mut self, earliest: Instant) {
        if let NextTry::At(due) = &mut self.next {
            *due = earliest.max(*due);
        }
    }

    /// Marks the dropped fields as reported. Returns whether they were not before.
    pub(super) fn mark_reported(&mut self) -> bool {
        !std::mem::replace(&mut self.was_reported, true)
    }
}
