//! Health of devices: what a driver reports, kept, and told to every kubelet that asks.
//!
//! One [`HealthHub`] owns all that is known of a driver's devices, and the one monitor that finds it out: the future of
//! the driver's `watch_health`. All streams of a kubelet share it, in both versions of the service ([`service`]) and
//! over all connections. The data flows one way:
//!
//! ```text
//! monitor → HealthReporter → Table (devices, changes, leases) → Subscription → kubelet
//! ```
//!
//! Promises:
//! - **A stream is complete.** It starts with all devices that are known, then tells every change at once. A slow
//!   reader misses states that were overtaken and never the last one; nothing is queued for it ([`table`]).
//! - **A lease is per device.** A device that is not reported again within its lease is of unknown health, at once, and
//!   the driver is told of it. Until then its state is sent again in every third of the lease (10 seconds at most): a
//!   kubelet forgets a whole driver whenever one of its streams ends, as the old instance's does in a rolling update.
//! - **A monitor that fails or panics costs its news and nothing else.** All devices are of unknown health at once, and
//!   it is started again, ever more slowly, while a kubelet is interested. One that returns has nothing more to say:
//!   open streams end, and the next stream starts it again.
//! - **Nothing is waited for.** The monitor runs in a task of its own: one that blocks or ignores its end holds up
//!   neither a stream, nor a lease, nor a stop beyond its deadline.
//! - **Bounds** are the kubelet's: 16384 devices, messages of 1024 bytes, and gRPC messages below 4 MiB.

mod board;
mod hub;
mod monitor;
mod reporter;
mod service;
mod table;
#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime};

pub(crate) use board::Subscription;
pub(crate) use hub::{HealthHub, Stopped};
pub use monitor::HealthMonitor;
pub use reporter::HealthReporter;
pub(crate) use service::{HealthV1, HealthV1alpha1};

/// How long a report is believed if it does not say so itself. The kubelet's default too.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// How a device is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum HealthStatus {
    /// Nobody knows.
    #[default]
    Unknown,
    /// It works.
    Healthy,
    /// It does not.
    Unhealthy,
}

/// What a driver reports of one device.
///
/// ```
/// # use std::time::Duration;
/// # use drakkar_plugin::DeviceHealth;
/// let gpu = DeviceHealth::unhealthy("node-1", "gpu-0", "12 pages of memory are lost").with_lease(Duration::from_secs(60));
/// assert_eq!(gpu.device_name, "gpu-0");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// The pool that it is in.
    pub pool_name: String,
    /// Its name in the pool.
    pub device_name: String,
    /// How it is.
    pub health: HealthStatus,
    /// Words for people, seen in the status of the pods that use the device. Cut after 1024 bytes.
    pub message: String,
    /// For how long this is to be believed. When it passes without another report, the device is of unknown health.
    /// None, or zero, is 30 seconds; kubelets count in whole seconds, at least one.
    pub lease: Option<Duration>,
    /// When it was found out; the time of the report if it is not given.
    pub last_updated: Option<SystemTime>,
}

impl DeviceHealth {
    /// A device that works.
    pub fn healthy(pool_name: impl Into<String>, device_name: impl Into<String>) -> Self {
        Self::new(pool_name.into(), device_name.into(), HealthStatus::Healthy, String::new())
    }

    /// A device that does not work, and why.
    pub fn unhealthy(pool_name: impl Into<String>, device_name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(pool_name.into(), device_name.into(), HealthStatus::Unhealthy, message.into())
    }

    /// A device of which it is not known whether it works, and why.
    pub fn unknown(pool_name: impl Into<String>, device_name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(pool_name.into(), device_name.into(), HealthStatus::Unknown, message.into())
    }

    /// Believed for this long, instead of 30 seconds.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    fn new(pool_name: String, device_name: String, health: HealthStatus, message: String) -> Self {
        Self { pool_name, device_name, health, message, lease: None, last_updated: None }
    }
}

/// Figures for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HealthSummary {
    /// Devices that work.
    pub(crate) healthy: usize,
    /// Devices that do not work.
    pub(crate) unhealthy: usize,
    /// Devices of which it is not known, those with a lease that passed included.
    pub(crate) unknown: usize,
    /// Streams that are open.
    pub(crate) streams: usize,
    /// Reports of the monitor since the start.
    pub(crate) reports: u64,
}

/// What goes wrong with health in the background.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HealthError {
    /// The monitor is silent.
    #[error("no report within the lease on {0}")]
    Lapsed(Names),
    /// The monitor ended with an error, or panicked.
    #[error("the health monitor ended and will be started again: {0}")]
    Failed(#[source] crate::driver::BoxError),
    /// More devices than a kubelet keeps.
    #[error("a kubelet keeps the health of at most {max} devices of a driver: no room for {devices}", max = table::MAX_DEVICES)]
    TooMany { devices: Names },
    /// A device that cannot exist.
    #[error("a report is refused: {0}")]
    Name(#[from] drakkar_metadata::name::NameError),
}

/// Devices, for an error message: the first few by name, the others as a number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Names {
    first: Vec<String>,
    others: usize,
}

impl Names {
    const SHOWN: usize = 8;

    fn push(&mut self, name: &table::Name) {
        if self.first.len() < Self::SHOWN {
            self.first.push(name.to_string());
        } else {
            self.others += 1;
        }
    }

    fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

impl std::fmt::Display for Names {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.first.join(", "))?;
        match self.others {
            0 => Ok(()),
            others => write!(formatter, " and {others} more"),
        }
    }
}
