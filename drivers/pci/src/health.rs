//! The health of published devices: from configuration space, link and error counters.
//!
//! The devices are kept up to date elsewhere ([`crate::devices`]), by events and at an interval; every change is reported at once,
//! and everything again well within the lease of a report.
//!
//! | what | health |
//! |---|---|
//! | the device is gone, or its configuration space reads as ones | unhealthy |
//! | the link was up and is down | unhealthy |
//! | new fatal errors (AER) while a claim holds the device | unhealthy |
//! | the link is slower or narrower than the device can | healthy, with a message |

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drakkar_plugin::{BoxError, DeviceHealth, HealthReporter};
use drakkar_sysfs::{ConfigSpace, Link, PciAddress, PciDevice};
use tokio::time::{Instant, MissedTickBehavior};

use crate::devices::{Devices, Published};

/// How often everything is reported. A third of the lease.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long a report is valid.
const LEASE: Duration = Duration::from_secs(30);

/// What is remembered of devices between two looks.
#[derive(Debug, Default)]
pub(crate) struct HealthMemory {
    /// Devices whose link has been seen up.
    linked: BTreeMap<PciAddress, ()>,
    /// The number of fatal errors when the current claim got the device.
    fatal_errors: BTreeMap<PciAddress, u64>,
}

/// Reports the health of all published devices until the reporter is closed.
pub(crate) async fn monitor(devices: Arc<Devices>, node: String, reports: HealthReporter) -> Result<(), BoxError> {
    let mut changes = devices.changes();
    let mut ticks = tokio::time::interval_at(Instant::now() + INTERVAL, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut memory = HealthMemory::default();
    loop {
        changes.mark_unchanged();
        let look = devices.clone();
        let (reported, kept) = tokio::task::spawn_blocking(move || {
            let mut memory = memory;
            (memory.look(&look), memory)
        })
        .await?;
        memory = kept;
        let healths =
            reported.into_iter().map(|health| DeviceHealth { pool_name: node.clone(), ..health }.with_lease(LEASE));
        reports.report(healths).await;
        tokio::select! {
            () = reports.closed() => return Ok(()),
            _ = ticks.tick() => {}
            changed = changes.changed() => changed?,
        }
    }
}

impl HealthMemory {
    /// Looks at all published devices.
    fn look(&mut self, devices: &Devices) -> Vec<DeviceHealth> {
        let published = devices.published();
        let pci = devices.sysfs().roots().pci_devices();
        published.iter().map(|device| self.health(device, &pci)).collect()
    }

    fn health(&mut self, published: &Published, pci: &Path) -> DeviceHealth {
        let name = published.name.as_str();
        let unhealthy = |message: String| DeviceHealth::unhealthy("", name, message);
        let (Some(device), false) = (&published.device, published.is_gone) else {
            // A mediated device of a parent that is no PCI device has nothing to be read.
            return match published.address {
                None if !published.is_gone => DeviceHealth::healthy("", name),
                Some(address) => unhealthy(format!("{address} is gone")),
                None => unhealthy("the mediated device is gone".to_owned()),
            };
        };
        let address = device.address;
        match &device.config {
            ConfigSpace::Gone => {
                return unhealthy(format!("{address} does not answer: its configuration space reads as ones"));
            }
            ConfigSpace::Unreadable(error) => {
                let message = format!("the configuration space of {address} cannot be read: {error}");
                return DeviceHealth::unknown("", name, message);
            }
            ConfigSpace::Absent | ConfigSpace::Answers | ConfigSpace::PoweredOff => {}
        }
        if let Some(message) = self.new_fatal_errors(address, published.is_held, pci) {
            return unhealthy(message);
        }
        match self.link(device) {
            Ok(message) => DeviceHealth { message, ..DeviceHealth::healthy("", name) },
            Err(message) => unhealthy(message),
        }
    }

    /// Returns a message about a link that is not at its best, or the error that it is down.
    fn link(&mut self, device: &PciDevice) -> Result<String, String> {
        // A virtual function has no link of its own, and a device that sleeps may have turned it off.
        let is_awake = device.power_state.as_deref().is_none_or(|state| state == "D0" || state == "unknown");
        let Some(link) = device.link.as_ref().filter(|_| !device.is_virtual_function() && is_awake) else {
            return Ok(String::new());
        };
        if link.current_width.is_some_and(|width| width > 0) {
            self.linked.insert(device.address, ());
        } else if self.linked.contains_key(&device.address) {
            return Err(format!("the PCIe link of {} is down", device.address));
        }
        Ok(degradation(link).unwrap_or_default())
    }

    /// Returns a message if there were fatal errors since the device's claim got it.
    fn new_fatal_errors(&mut self, address: PciAddress, is_held: bool, pci: &Path) -> Option<String> {
        let errors = fatal_errors(&pci.join(address.to_string()).join("aer_dev_fatal"))?;
        if !is_held {
            self.fatal_errors.insert(address, errors);
        }
        let before = *self.fatal_errors.entry(address).or_insert(errors);
        (errors > before).then(|| format!("{address} has had {} fatal PCIe errors (AER)", errors - before))
    }
}

/// Returns how a link falls short of what the device can.
fn degradation(link: &Link) -> Option<String> {
    let width = match (link.current_width, link.max_width) {
        (Some(current), Some(max)) if current < max => Some(format!("x{current} of x{max}")),
        _ => None,
    };
    let speed = match (&link.current_speed, &link.max_speed) {
        (Some(current), Some(max)) if current != max => Some(format!("{current} of {max}")),
        _ => None,
    };
    let parts: Vec<String> = width.into_iter().chain(speed).collect();
    (!parts.is_empty()).then(|| format!("the PCIe link runs at {}", parts.join(", ")))
}

/// Returns the total of the kernel's counters of fatal errors.
fn fatal_errors(path: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("TOTAL_ERR_FATAL ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(device: PciDevice) -> Published {
        Published {
            name: "d".into(),
            address: Some(device.address),
            device: Some(device),
            is_gone: false,
            is_held: true,
        }
    }

    fn device() -> PciDevice {
        PciDevice::new("0000:65:00.0".parse().unwrap(), "devices/pci0000:64/0000:65:00.0")
    }

    fn link(width: Option<u8>) -> Option<Link> {
        let speed = Some("16.0 GT/s PCIe".to_owned());
        Some(Link { current_speed: speed.clone(), current_width: width, max_speed: speed, max_width: Some(16) })
    }

    #[test]
    fn a_link_that_goes_down_is_unhealthy_and_a_narrow_one_is_a_message() {
        let mut memory = HealthMemory::default();
        let mut health =
            |width| memory.health(&published(PciDevice { link: link(width), ..device() }), Path::new("/none"));
        assert_eq!(health(None), DeviceHealth::healthy("", "d"), "never seen up: some devices report none");
        let narrow = health(Some(8));
        assert_eq!(narrow.message, "the PCIe link runs at x8 of x16");
        assert_eq!(narrow.health, drakkar_plugin::HealthStatus::Healthy);
        assert_eq!(health(None), DeviceHealth::unhealthy("", "d", "the PCIe link of 0000:65:00.0 is down"));
        assert_eq!(health(Some(16)), DeviceHealth::healthy("", "d"));
    }

    #[test]
    fn a_silent_or_missing_device_is_unhealthy() {
        let mut memory = HealthMemory::default();
        let silent = memory.health(&published(PciDevice { config: ConfigSpace::Gone, ..device() }), Path::new("/none"));
        assert!(silent.message.contains("reads as ones"), "{silent:?}");
        let gone = Published { device: None, is_gone: true, ..published(device()) };
        assert_eq!(memory.health(&gone, Path::new("/none")), DeviceHealth::unhealthy("", "d", "0000:65:00.0 is gone"));
    }

    #[test]
    fn fatal_errors_count_from_the_start_of_the_claim() {
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().join("0000:65:00.0");
        std::fs::create_dir(&files).unwrap();
        let errors = |count: u32| {
            std::fs::write(files.join("aer_dev_fatal"), format!("Undefined 0\nTOTAL_ERR_FATAL {count}\n")).unwrap();
        };
        let mut memory = HealthMemory::default();
        let mut health = |is_held| {
            let published = Published { is_held, ..published(device()) };
            memory.health(&published, directory.path()).message
        };
        errors(3);
        assert_eq!(health(false), "");
        assert_eq!(health(true), "");
        errors(5);
        assert_eq!(health(true), "0000:65:00.0 has had 2 fatal PCIe errors (AER)");
        assert_eq!(health(false), "");
        assert_eq!(health(true), "");
    }
}
