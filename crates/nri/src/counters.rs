//! Counters of what happened, for a driver's metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::event::Event;

/// What has happened since the plugin was started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Connections that were made.
    pub connections: u64,
    /// Attempts to connect that failed.
    pub connect_failures: u64,
    /// Registrations that the runtime accepted.
    pub registrations: u64,
    /// Synchronizations that succeeded.
    pub synchronizations: u64,
    /// Synchronizations that failed.
    pub synchronize_failures: u64,
    /// Connections that ended, for whatever reason.
    pub disconnections: u64,
    /// Calls of methods that the plugin does not know.
    pub unknown_methods: u64,
    /// Messages that were too large.
    pub oversized: u64,
    /// Calls that were refused since too much was going on.
    pub refused: u64,
    /// Calls that could not be decoded, or made no sense.
    pub invalid: u64,
    /// Updates of containers that the plugin asked for.
    pub updates: u64,
    /// Each event, in the order of their numbers.
    pub events: Vec<EventCounters>,
}

/// What has happened to one event since the plugin was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventCounters {
    /// The event.
    pub event: Event,
    /// Handlers that succeeded in time.
    pub succeeded: u64,
    /// Handlers that failed or panicked in time.
    pub failed: u64,
    /// Calls whose deadline passed.
    pub expired: u64,
    /// Calls whose connection was lost.
    pub disconnected: u64,
    /// The time until the answer, in total.
    pub total: Duration,
    /// The longest time until an answer.
    pub longest: Duration,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Succeeded,
    Failed,
    Expired,
    Disconnected,
}

/// The counters as they are counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connections: Counter,
    pub(crate) connect_failures: Counter,
    pub(crate) registrations: Counter,
    pub(crate) synchronizations: Counter,
    pub(crate) synchronize_failures: Counter,
    pub(crate) disconnections: Counter,
    pub(crate) unknown_methods: Counter,
    pub(crate) oversized: Counter,
    pub(crate) refused: Counter,
    pub(crate) invalid: Counter,
    pub(crate) updates: Counter,
    events: [EventMetrics; Event::ALL.len()],
}

#[derive(Debug, Default)]
struct EventMetrics {
    succeeded: Counter,
    failed: Counter,
    expired: Counter,
    disconnected: Counter,
    total_nanos: Counter,
    longest_nanos: Counter,
}

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Metrics {
    pub(crate) fn record(&self, event: Event, ending: Ending, elapsed: Duration) {
        let Some(metrics) = self.events.get(usize::from(event.number()) - 1) else { return };
        match ending {
            Ending::Succeeded => metrics.succeeded.increment(),
            Ending::Failed => metrics.failed.increment(),
            Ending::Expired => metrics.expired.increment(),
            Ending::Disconnected => metrics.disconnected.increment(),
        }
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        metrics.total_nanos.add(nanos);
        metrics.longest_nanos.0.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            connections: self.connections.get(),
            connect_failures: self.connect_failures.get(),
            registrations: self.registrations.get(),
            synchronizations: self.synchronizations.get(),
            synchronize_failures: self.synchronize_failures.get(),
            disconnections: self.disconnections.get(),
            unknown_methods: self.unknown_methods.get(),
            oversized: self.oversized.get(),
            refused: self.refused.get(),
            invalid: self.invalid.get(),
            updates: self.updates.get(),
            events: std::iter::zip(Event::ALL, &self.events).map(|(event, metrics)| metrics.snapshot(event)).collect(),
        }
    }
}

impl EventMetrics {
    fn snapshot(&self, event: Event) -> EventCounters {
        EventCounters {
            event,
            succeeded: self.succeeded.get(),
            failed: self.failed.get(),
            expired: self.expired.get(),
            disconnected: self.disconnected.get(),
            total: Duration::from_nanos(self.total_nanos.get()),
            longest: Duration::from_nanos(self.longest_nanos.get()),
        }
    }
}

impl Counters {
    /// Returns the counters of an event.
    pub fn event(&self, event: Event) -> Option<&EventCounters> {
        self.events.iter().find(|counters| counters.event == event)
    }
}
