//! Selection: the first rule that matches each device.
//!
//! Matching a device costs an evaluation of CEL, so the outcome is kept until the device changes: an event about one device
//! evaluates that device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drakkar_cel::DeviceValue;
use drakkar_sysfs::{Inventory, MdevParent, PciAddress, PciDevice};

use crate::attributes::{self, Attributes, Numa, cel_value};
use crate::config::{Config, Rule, Subject};

/// Which rule a device belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// `exclude` matches, with the number of the entry.
    Excluded(usize),
    /// A rule matches, by its number.
    Rule(usize),
    /// Nothing matches.
    Unmatched,
    /// An expression failed. The device is not published: whether it should be is not known.
    Failed(String),
}

/// A device with its attributes and its rule.
#[derive(Debug, Clone)]
pub(crate) struct Matched {
    device: PciDevice,
    driver: Option<String>,
    /// What expressions see.
    pub(crate) attributes: Arc<Attributes>,
    /// What is published: with what the rule adds.
    pub(crate) published: Arc<Attributes>,
    pub(crate) choice: Choice,
    /// Why it is not known whether `exclude` matches.
    failed_exclude: Option<String>,
}

/// The kernel drivers of devices before a claim changed them.
pub type FormerDrivers = BTreeMap<PciAddress, Option<String>>;

/// The outcome of matching all devices against a configuration.
#[derive(Debug)]
pub(crate) struct Selection {
    config: Arc<Config>,
    numa: Numa,
    pub(crate) devices: BTreeMap<PciAddress, Matched>,
}

impl Selection {
    pub(crate) fn new(config: Arc<Config>, numa: Numa) -> Self {
        Self { config, numa, devices: BTreeMap::new() }
    }

    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub(crate) fn numa(&self) -> &Numa {
        &self.numa
    }

    /// Replaces the configuration; everything is matched again by the next update.
    #[cfg(test)]
    pub(crate) fn set_config(&mut self, config: Arc<Config>) {
        self.config = config;
        self.devices.clear();
    }

    /// Matches the devices that have changed since the last update.
    pub(crate) fn update(&mut self, inventory: &Inventory, former: &FormerDrivers) {
        self.devices.retain(|address, _| inventory.devices.contains_key(address));
        for (address, device) in &inventory.devices {
            let driver = former.get(address).unwrap_or(&device.driver);
            let is_known = self
                .devices
                .get(address)
                .is_some_and(|known| known.driver == *driver && is_same(&known.device, device));
            if !is_known {
                let matched = self.match_device(device, driver.clone());
                self.devices.insert(*address, matched);
            }
        }
    }

    fn match_device(&self, device: &PciDevice, driver: Option<String>) -> Matched {
        let attributes = attributes::of_pci(device, driver.as_deref(), &self.numa);
        let (choice, failed_exclude) = self.choose(Subject::Pci { device, driver: driver.as_deref() }, &attributes);
        let attributes = Arc::new(attributes);
        let published = match choice {
            Choice::Rule(index) => self.config.devices.get(index).map(|rule| with_rule(&attributes, rule)),
            _ => None,
        };
        let published = published.unwrap_or_else(|| attributes.clone());
        Matched { device: device.clone(), driver, attributes, published, choice, failed_exclude }
    }

    /// Matches a parent of mediated devices that is no PCI device.
    pub(crate) fn match_parent(&self, parent: &MdevParent) -> Choice {
        self.choose(Subject::Parent(&parent.name), &attributes::of_other_mdev(&parent.name)).0
    }

    /// Chooses a rule. Also returns why it is not known whether `exclude` matches.
    fn choose(&self, subject: Subject<'_>, attributes: &Attributes) -> (Choice, Option<String>) {
        let failed = |message: String| (Choice::Failed(message.clone()), Some(message));
        let value = match cel_value(attributes) {
            Ok(value) => value,
            Err(error) => return failed(error.to_string()),
        };
        for (index, exclude) in self.config.exclude.iter().enumerate() {
            match exclude.matches(subject, &value) {
                Ok(true) => return (Choice::Excluded(index), None),
                Ok(false) => {}
                Err(error) => return failed(format!("exclude[{index}].cel: {error}")),
            }
        }
        (self.choose_rule(subject, &value), None)
    }

    fn choose_rule(&self, subject: Subject<'_>, value: &DeviceValue) -> Choice {
        for (index, rule) in self.config.devices.iter().enumerate() {
            match rule.matches.matches(subject, value) {
                Ok(true) => return Choice::Rule(index),
                Ok(false) => {}
                Err(error) => return Choice::Failed(format!("devices[{index}].match.cel: {error}")),
            }
        }
        Choice::Unmatched
    }

    /// Returns the devices of which it is not known whether `exclude` matches, and why.
    pub(crate) fn failed_excludes(&self) -> BTreeMap<PciAddress, String> {
        let failed =
            self.devices.iter().filter_map(|(address, matched)| Some((*address, matched.failed_exclude.clone()?)));
        failed.collect()
    }

    /// Returns the devices whose choice is as wanted.
    pub(crate) fn addresses(&self, wanted: impl Fn(&Choice) -> bool) -> BTreeSet<PciAddress> {
        self.devices.iter().filter(|(_, matched)| wanted(&matched.choice)).map(|(address, _)| *address).collect()
    }
}

fn with_rule(attributes: &Attributes, rule: &Rule) -> Arc<Attributes> {
    let mut attributes = attributes.clone();
    attributes::add_rule(&mut attributes, rule);
    Arc::new(attributes)
}

/// Returns whether a device still has the properties that matching depends on. Its link, its power state and its virtual
/// functions change more often than those.
fn is_same(known: &PciDevice, device: &PciDevice) -> bool {
    let identity = |device: &PciDevice| {
        (device.vendor, device.device, device.subsystem_vendor, device.subsystem_device, device.class)
    };
    let place = |device: &PciDevice| (device.iommu_group, device.numa_node, device.physical_function);
    let total = |device: &PciDevice| device.sriov.as_ref().map(|sriov| sriov.total_vfs);
    identity(known) == identity(device)
        && place(known) == place(device)
        && known.pcie_root == device.pcie_root
        && total(known) == total(device)
}
