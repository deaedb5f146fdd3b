//! Device health: collects the driver's reports and streams them to kubelets.
//!
//! One [`HealthHub`] owns the health of all devices of a driver and the one monitor that reports it: the driver's
//! [`HealthMonitor`]. All streams share it, in both versions of the service ([`service`]) and over all connections.
//! The data flows one way:
//!
//! ```text
//! monitor → HealthReporter → Table (devices, changes, leases) → Subscription → kubelet
//! ```
//!
//! Promises:
//! - **A stream is complete.** It starts with all known devices, then sends every change at once. A slow reader may miss
//!   intermediate states but never the last one; nothing is queued for it ([`table`]).
//! - **A lease is per device.** A device that is not reported again within its lease becomes unknown at once, and the
//!   driver gets an error. Until then its state is resent in every third of the lease (10 seconds at most), because a
//!   kubelet forgets the whole driver when one of its streams ends, as the old instance's does in a rolling update.
//! - **A failed monitor is restarted.** When it fails or panics, all devices become unknown at once, and it is restarted
//!   with backoff while a stream is open. When it returns, open streams end, and the next stream starts it again.
//! - **The monitor blocks nothing.** It runs in a task of its own: one that blocks or ignores cancellation delays neither
//!   streams, nor leases, nor a stop beyond its deadline.
//! - **Limits** are the kubelet's: 16384 devices, messages of 1024 bytes, and gRPC messages below 4 MiB.

mod hub;
mod monitor;
mod reporter;
mod service;
mod shared_table;
mod table;
#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime};

pub(crate) use hub::{HealthHub, Stopped};
pub use monitor::HealthMonitor;
pub use reporter::HealthReporter;
pub(crate) use service::{HealthV1, HealthV1alpha1};
pub(crate) use shared_table::Subscription;

/// The lease of a report that has none of its own. It is the kubelet's default too.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The health of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum HealthStatus {
    /// The health is not known.
    #[default]
    Unknown,
    /// The device works.
    Healthy,
    /// The device does not work.
    Unhealthy,
}

/// A driver's health report for one device.
///
/// ```
/// # use std::time::Duration;
/// # use drakkar_plugin::DeviceHealth;
/// let gpu = DeviceHealth::unhealthy("node-1", "gpu-0", "12 pages of memory are lost").with_lease(Duration::from_secs(60));
/// assert_eq!(gpu.device_name, "gpu-0");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// The pool of the device.
    pub pool_name: String,
    /// The name of the device in its pool.
    pub device_name: String,
    /// The health of the device.
    pub health: HealthStatus,
    /// A message for humans, shown in the status of pods that use the device. Truncated to 1024 bytes.
    pub message: String,
    /// How long this report is valid. If no other report follows within this time, the health becomes unknown.
    /// `None` and zero mean 30 seconds. Kubelets count in whole seconds, at least one.
    pub lease: Option<Duration>,
    /// When the health was determined. Defaults to the time of the report.
    pub last_updated: Option<SystemTime>,
}

impl DeviceHealth {
    /// Reports a device that works.
    pub fn healthy(pool_name: impl Into<String>, device_name: impl Into<String>) -> Self {
        Self::new(pool_name.into(), device_name.into(), HealthStatus::Healthy, String::new())
    }

    /// Reports a device that does not work, and why.
    pub fn unhealthy(pool_name: impl Into<String>, device_name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(pool_name.into(), device_name.into(), HealthStatus::Unhealthy, message.into())
    }

    /// Reports a device whose health is not known, and why.
    pub fn unknown(pool_name: impl Into<String>, device_name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(pool_name.into(), device_name.into(), HealthStatus::Unknown, message.into())
    }

    /// Sets the lease, which is 30 seconds by default.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    fn new(pool_name: String, device_name: String, health: HealthStatus, message: String) -> Self {
        Self { pool_name, device_name, health, message, lease: None, last_updated: None }
    }
}

/// The health figures for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HealthSummary {
    /// Devices that work.
    pub(crate) healthy: usize,
    /// Devices that do not work.
    pub(crate) unhealthy: usize,
    /// Devices of unknown health, including those whose lease has expired.
    pub(crate) unknown: usize,
    /// Open streams.
    pub(crate) streams: usize,
    /// Reports of the monitor since the start.
    pub(crate) reports: u64,
}

/// A background error of health monitoring.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HealthError {
    /// The leases of some devices expired without another report.
    #[error("lease expired without a report on {0}")]
    LeaseExpired(DeviceList),
    /// The monitor failed or panicked.
    #[error("the health monitor ended and will be restarted: {0}")]
    MonitorFailed(#[source] crate::error::BoxError),
    /// More devices than a kubelet keeps.
    #[error("a kubelet keeps the health of at most {max} devices of a driver: skipped {devices}", max = table::MAX_DEVICES)]
    TooManyDevices { devices: DeviceList },
    /// A report for a device with an invalid name.
    #[error("report skipped: {0}")]
    InvalidName(#[source] drakkar_metadata::name::NameError),
}

/// A list of devices for an error message: names the first few and counts the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeviceList {
    first: Vec<String>,
    others: usize,
}

impl DeviceList {
    const SHOWN: usize = 8;

    fn push(&mut self, name: &table::DeviceKey) {
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

impl std::fmt::Display for DeviceList {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.first.join(", "))?;
        match self.others {
            0 => Ok(()),
            others => write!(formatter, " and {others} more"),
        }
    }
}
