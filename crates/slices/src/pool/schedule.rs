//! When a pool is compared with the API server next.

use std::time::Duration;

use tokio::time::Instant;

/// The delay of a repair after a change by another client: a kubelet that wipes slices deletes one after the other.
pub(super) const REPAIR_DELAY: Duration = Duration::from_millis(50);
/// The longest delay of a repair while changes by other clients go on.
pub(super) const MAX_REPAIR_DELAY: Duration = Duration::from_millis(500);

/// When a pool is compared with the API server next, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Schedule {
    /// The pool is in sync: nothing is due.
    #[default]
    Synced,
    /// Slices have to be written.
    Due { at: Instant },
    /// Another client has changed slices, since this time.
    Repair { at: Instant, since: Instant },
    /// The last sync failed. Another client may have changed slices meanwhile, since this time.
    Backoff { at: Instant, repair_since: Option<Instant> },
    /// A newer instance publishes: check at this time whether it still does.
    Standby { until: Instant },
}

impl Schedule {
    /// Returns when the pool is due.
    pub(super) fn due(self) -> Option<Instant> {
        match self {
            Self::Synced => None,
            Self::Due { at } | Self::Repair { at, .. } | Self::Backoff { at, .. } | Self::Standby { until: at } => {
                Some(at)
            }
        }
    }

    /// Returns since when another client has been changing slices.
    pub(super) fn repair_since(self) -> Option<Instant> {
        match self {
            Self::Synced | Self::Due { .. } | Self::Standby { .. } => None,
            Self::Repair { since, .. } => Some(since),
            Self::Backoff { repair_since, .. } => repair_since,
        }
    }

    /// Makes the pool due at once. A change by another client is still one.
    pub(super) fn set_due_now(&mut self) {
        let at = Instant::now();
        *self = match self.repair_since() {
            Some(since) => Self::Repair { at, since },
            None => Self::Due { at },
        };
    }

    /// Makes the pool due later, after a failure.
    pub(super) fn back_off(&mut self, delay: Duration) {
        *self = Self::Backoff { at: Instant::now() + delay, repair_since: self.repair_since() };
    }

    /// Schedules a repair, once changes by other clients have ceased. A backoff is kept.
    pub(super) fn repair(&mut self) {
        let now = Instant::now();
        let since = self.repair_since().unwrap_or(now);
        let soon = (now + REPAIR_DELAY).min(since + MAX_REPAIR_DELAY);
        *self = match *self {
            Self::Backoff { at, .. } => Self::Backoff { at: at.max(soon), repair_since: Some(since) },
            Self::Due { at } | Self::Standby { until: at } => Self::Repair { at: at.min(soon), since },
            Self::Synced | Self::Repair { .. } => Self::Repair { at: soon, since },
        };
    }

    /// Delays a pool that is due until this time at least.
    pub(super) fn not_before(&mut self, earliest: Instant) {
        match self {
            Self::Synced => {}
            Self::Due { at } | Self::Repair { at, .. } | Self::Backoff { at, .. } | Self::Standby { until: at } => {
                *at = earliest.max(*at);
            }
        }
    }
}
