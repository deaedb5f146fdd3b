//! The table of device health: its entries, their leases, and which of them have changed.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::kubelet::checkpoint::{CheckpointError, StateFile};

/// The most devices of a driver in the table.
const MAX_DEVICES: usize = 16_384;
/// The longest message in bytes; longer ones are truncated.
const MAX_MESSAGE: usize = 1024;

/// The health of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HealthStatus {
    /// Not reported, or the report has expired.
    #[default]
    Unknown,
    /// The device works.
    Healthy,
    /// The device does not work.
    Unhealthy,
}

impl HealthStatus {
    pub(super) fn from_wire(number: i32) -> Self {
        match number {
            1 => Self::Healthy,
            2 => Self::Unhealthy,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for HealthStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The health of a device as a kubelet knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The name in the pool.
    pub device: String,
    /// The health.
    pub health: HealthStatus,
    /// The plugin's message.
    pub message: String,
}

/// A plugin's report on a device.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) pool: String,
    pub(crate) device: String,
    pub(crate) health: HealthStatus,
    pub(crate) lease_seconds: i64,
    pub(crate) message: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    health: HealthStatus,
    message: String,
    lease: Duration,
    /// The time of the report, since the Unix epoch.
    seen: Duration,
}

impl Entry {
    fn is_current(&self, now: Duration) -> bool {
        now.saturating_sub(self.seen) <= self.lease
    }

    fn is_same_report(&self, other: &Self) -> bool {
        (self.health, &self.message, self.lease) == (other.health, &other.message, other.lease)
    }
}

/// Entries by driver, pool and device.
type Drivers = BTreeMap<String, BTreeMap<String, BTreeMap<String, Entry>>>;

/// The table of device health, with its state file.
#[derive(Debug)]
pub(crate) struct HealthTable {
    drivers: Mutex<Drivers>,
    file: StateFile,
    default_lease: Duration,
}

impl HealthTable {
    pub(crate) fn restore(file: StateFile, default_lease: Duration) -> Result<Self, CheckpointError> {
        let drivers = Mutex::new(file.read()?.unwrap_or_default());
        Ok(Self { drivers, file, default_lease })
    }

    fn lock(&self) -> MutexGuard<'_, Drivers> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a driver's reports on some or all of its devices. Returns the pool and name of those that changed.
    pub(crate) fn update(&self, driver: &str, reports: Vec<Report>, now: SystemTime) -> Vec<(String, String)> {
        let now = since_epoch(now);
        let mut drivers = self.lock();
        let pools = drivers.entry(driver.to_owned()).or_default();
        let mut known: usize = pools.values().map(BTreeMap::len).sum();
        let mut changed = Vec::new();
        let mut reported = HashSet::new();
        let mut ignored = 0_usize;
        for report in reports {
            let key = (report.pool.clone(), report.device.clone());
            let entry = self.entry(driver, report, now);
            let before = pools.get(&key.0).and_then(|devices| devices.get(&key.1));
            match before {
                None if known >= MAX_DEVICES => {
                    ignored += 1;
                    continue;
                }
                None => known += 1,
                Some(_) => {}
            }
            if before.is_none_or(|before| !before.is_same_report(&entry)) {
                changed.push(key.clone());
            }
            pools.entry(key.0.clone()).or_default().insert(key.1.clone(), entry);
            reported.insert(key);
        }
        if ignored > 0 {
            tracing::error!(driver, ignored, limit = MAX_DEVICES, "kubelet: too many devices, health ignored");
        }
        for (pool, devices) in pools.iter_mut() {
            devices.retain(|device, entry| {
                let key = (pool.clone(), device.clone());
                if reported.contains(&key) || entry.is_current(now) {
                    return true;
                }
                if entry.health != HealthStatus::Unknown {
                    changed.push(key);
                }
                false
            });
        }
        pools.retain(|_, devices| !devices.is_empty());
        self.save(&drivers);
        changed
    }

    fn entry(&self, driver: &str, report: Report, now: Duration) -> Entry {
        let lease = match u64::try_from(report.lease_seconds) {
            Ok(0) => self.default_lease,
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                let Report { pool, device, lease_seconds, .. } = &report;
                tracing::warn!(
                    driver,
                    pool,
                    device,
                    lease_seconds,
                    "kubelet: negative health lease, using the default"
                );
                self.default_lease
            }
        };
        Entry { health: report.health, message: truncate(report.message), lease, seen: now }
    }

    /// Removes all devices of a driver.
    pub(crate) fn clear(&self, driver: &str) {
        let mut drivers = self.lock();
        if drivers.remove(driver).is_some() {
            self.save(&drivers);
        }
    }

    /// Returns the health of a device, and the plugin's message.
    pub(crate) fn of(&self, driver: &str, pool: &str, device: &str, now: SystemTime) -> (HealthStatus, String) {
        let now = since_epoch(now);
        let drivers = self.lock();
        let entry = drivers.get(driver).and_then(|pools| pools.get(pool)?.get(device));
        match entry.filter(|entry| entry.is_current(now)) {
            Some(entry) => (entry.health, entry.message.clone()),
            None => (HealthStatus::Unknown, String::new()),
        }
    }

    pub(crate) fn all(&self, now: SystemTime) -> Vec<DeviceHealth> {
        let now = since_epoch(now);
        let mut all = Vec::new();
        for (driver, pools) in self.lock().iter() {
            for (pool, devices) in pools {
                for (device, entry) in devices {
                    let (health, message) = if entry.is_current(now) {
                        (entry.health, entry.message.clone())
                    } else {
                        (HealthStatus::Unknown, String::new())
                    };
                    all.push(DeviceHealth {
                        driver: driver.clone(),
                        pool: pool.clone(),
                        device: device.clone(),
                        health,
                        message,
                    });
                }
            }
        }
        all
    }

    fn save(&self, drivers: &Drivers) {
        if let Err(error) = self.file.write(drivers) {
            tracing::error!(%error, "kubelet: saving the health of devices failed");
        }
    }
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Truncates a message as a kubelet does: by bytes, even in the middle of a character.
fn truncate(message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let kept = message.as_bytes().get(..MAX_MESSAGE - 3).unwrap_or_default();
    String::from_utf8_lossy(kept).into_owned() + "..."
}
