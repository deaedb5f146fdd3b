//! The plan: every device that is published, what it consumes, and why the others are not.
//!
//! A plan is a function of the inventory, the selection, what the host uses and what claims hold. It has no other state, so it
//! is made anew after every event and published if it differs.
//!
//! # Parts and counters
//!
//! A function, its virtual functions and its mediated devices exclude each other. A function with parts has a counter set with
//! one counter, `units` ([`counters`]): the function takes all units, a virtual function its share, a mediated device the
//! fraction of its type. Functions that share an IOMMU group exclude each other with a set of one unit ([`groups`]), because a group
//! goes to one claim.
//!
//! # Devices of claims
//!
//! A device that a claim holds stays in the plan, whatever happens: a scheduler that does not see it would think that what it
//! consumes is free. What overlaps with it without a counter between them is refused ([`keep`]). If no rule selects it any more, it
//! is tainted `pci.drakkar.dev/unselected:NoSchedule`, if the hardware is gone `pci.drakkar.dev/gone:NoExecute`. When the claim
//! ends it is dropped, or the taint is.

mod build;
mod counters;
mod groups;
mod keep;
mod mdev;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drakkar_plugin::{DriverResources, Pool, PublishedDevice};
use drakkar_sysfs::{ConfigSpace, HostUse, Inventory, PciAddress, Sysfs};

pub(crate) use self::mdev::MaxInstances;
use crate::attributes::Attributes;
use crate::mode::{IommuBackend, Mode};
use crate::protect::{Refusal, direct_use};
use crate::select::{Choice, Selection};
use crate::target::Target;

/// The taint of a device that is gone while a claim holds it.
pub const GONE: &str = "pci.drakkar.dev/gone";
/// The taint of a device that no rule selects any more while a claim holds it.
pub const UNSELECTED: &str = "pci.drakkar.dev/unselected";
/// The taint of a device that does not answer.
pub const UNRESPONSIVE: &str = "pci.drakkar.dev/unresponsive";

/// The name of the counter in every counter set.
const UNITS: &str = "units";
/// The most devices in a slice: the API's limit for tainted ones, so that a taint does not split slices.
const DEVICES_PER_SLICE: usize = 64;

/// A published device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) target: Target,
    /// Shared with the selection and with other devices: most plans differ from the one before in one device.
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) settings: Settings,
    /// The counter sets and the units that it takes of each.
    consumes: Vec<(String, u64)>,
    pub(crate) taint: Option<Taint>,
}

/// How the rule of a device says that it is handed out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) iommu_backend: IommuBackend,
    /// The devices that are bound to vfio-pci with it.
    pub(crate) companions: Vec<PciAddress>,
    /// The number of virtual functions to make of its physical function.
    pub(crate) virtual_functions: u16,
}

/// Why no pod should use a device now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taint {
    Gone,
    Unselected,
    Unresponsive,
}

impl Taint {
    /// Returns the key of the taint.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Gone => GONE,
            Self::Unselected => UNSELECTED,
            Self::Unresponsive => UNRESPONSIVE,
        }
    }

    /// Returns the effect of the taint. Only what is gone costs a pod its life.
    fn effect(self) -> &'static str {
        match self {
            Self::Gone => "NoExecute",
            Self::Unselected | Self::Unresponsive => "NoSchedule",
        }
    }
}

/// A device that a claim holds, and what was made for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The address of the function.
    pub(crate) address: Option<PciAddress>,
    /// The UUID of the mediated device.
    pub(crate) uuid: Option<String>,
    /// Whether it is prepared. Before, what is to be made for it does not exist yet.
    pub(crate) is_prepared: bool,
}

/// What becomes of a PCI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The rule that it belongs to.
    pub choice: Choice,
    /// Why the whole function is not published.
    pub refusal: Option<Refusal>,
    /// The names of the devices that are published of it.
    pub names: Vec<String>,
    /// What else is to be known of a device that is not published.
    pub note: Option<Note>,
}

/// What is to be known of a device that is not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// It is bound to vfio-pci together with a published device.
    CompanionOf(String),
    /// The host uses it, for this.
    HostUses(String),
}

/// Every device that is published, and what becomes of each PCI device.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) entries: BTreeMap<String, Entry>,
    pub(crate) decisions: BTreeMap<PciAddress, Decision>,
    /// The units of each counter set.
    sets: BTreeMap<String, u64>,
}

/// What a plan is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) inventory: &'a Inventory,
    pub(crate) selection: &'a Selection,
    pub(crate) host_use: &'a HostUse,
    pub(crate) held: &'a BTreeMap<Target, Held>,
    /// The held devices whose hardware is gone.
    pub(crate) gone: &'a BTreeSet<Target>,
    /// The mediated devices that the driver has made, those included that it has removed a moment ago.
    pub(crate) made: &'a BTreeSet<String>,
    pub(crate) max_instances: &'a MaxInstances,
    /// The plan before, in which the entries of held devices are found that are in no rule any more.
    pub(crate) previous: Option<&'a Plan>,
}

impl Plan {
    /// Makes the plan.
    pub(crate) fn new(inputs: Inputs<'_>) -> Self {
        let mut plan = build::build(inputs);
        plan.keep_held(inputs);
        plan.refuse_overlapping(inputs);
        plan.exclude_within_groups(inputs);
        plan.taint(inputs);
        plan.annotate(inputs.host_use);
        plan
    }

    fn taint(&mut self, inputs: Inputs<'_>) {
        for entry in self.entries.values_mut() {
            if inputs.gone.contains(&entry.target) {
                entry.taint = Some(Taint::Gone);
            } else if entry.taint.is_none() && is_silent(&entry.target, inputs) {
                entry.taint = Some(Taint::Unresponsive);
            }
        }
    }

    /// Adds what is to be known of devices that are not published.
    fn annotate(&mut self, host_use: &HostUse) {
        let companions: BTreeMap<PciAddress, &String> = self
            .entries
            .iter()
            .flat_map(|(name, entry)| entry.settings.companions.iter().map(move |companion| (*companion, name)))
            .collect();
        for (address, decision) in self.decisions.iter_mut().filter(|(_, decision)| decision.names.is_empty()) {
            let companion = companions.get(address).map(|name| Note::CompanionOf((*name).clone()));
            decision.note = companion.or_else(|| direct_use(host_use, *address).map(Note::HostUses));
        }
    }

    /// Returns whether another plan publishes the same.
    pub(crate) fn publishes_the_same(&self, other: &Self) -> bool {
        self.entries == other.entries && self.sets == other.sets
    }

    /// Returns the resources to publish: one pool with the name of the node.
    pub(crate) fn resources(&self, node: &str) -> DriverResources {
        let mut entries: Vec<_> = self.entries.iter().collect();
        // The scheduler takes the first device that fits: parts before the whole of which they are parts.
        entries.sort_by(|(_, one), (_, other)| {
            rank(&one.target).cmp(&rank(&other.target)).then(one.target.cmp(&other.target))
        });
        let devices = entries.into_iter().map(|(name, entry)| entry.published(name));
        let mut pool = Pool { devices_per_slice: Some(DEVICES_PER_SLICE), ..Pool::default() }.devices(devices);
        for (set, units) in &self.sets {
            pool = pool.counter_set(set, [(UNITS, units.to_string())]);
        }
        DriverResources::default().pool(node, pool)
    }
}

impl Entry {
    #[cfg(test)]
    pub(crate) fn with_attributes(target: Target, attributes: Attributes) -> Self {
        Self {
            target,
            attributes: Arc::new(attributes),
            settings: Settings::default(),
            consumes: Vec::new(),
            taint: None,
        }
    }

    fn published(&self, name: &str) -> PublishedDevice {
        let mut device =
            PublishedDevice { attributes: Attributes::clone(&self.attributes), ..PublishedDevice::new(name) };
        for (set, units) in &self.consumes {
            device = device.consumes(set, [(UNITS, units.to_string())]);
        }
        match self.taint {
            None => device,
            Some(taint) => device.taint(taint.key(), "", taint.effect()),
        }
    }
}

fn rank(target: &Target) -> u8 {
    match target {
        Target::Mdev { .. } => 0,
        Target::NewMdev { .. } => 1,
        Target::VirtualFunction { .. } => 2,
        Target::Function(_) => 3,
    }
}

/// Returns the held devices whose hardware is gone.
///
/// The inventory alone does not tell: it may not have seen yet what was made a moment ago, and a device that is taken for gone
/// costs its pod its life. So the kernel is asked, too.
pub(crate) fn gone(held: &BTreeMap<Target, Held>, inventory: &Inventory, sysfs: &Sysfs) -> BTreeSet<Target> {
    let exists = |path: std::path::PathBuf| path.symlink_metadata().is_ok();
    let has_function =
        |address: &PciAddress| inventory.devices.contains_key(address) || exists(sysfs.roots().pci_device(address));
    let has_mdev = |uuid: &str| inventory.mdevs.contains_key(uuid) || exists(sysfs.roots().mdev(uuid));
    let is_gone = |target: &Target, held: &Held| match target {
        Target::Function(address) => !has_function(address),
        Target::VirtualFunction { physical, .. } => !has_function(held.address.as_ref().unwrap_or(physical)),
        Target::NewMdev { .. } => held.uuid.as_deref().is_some_and(|uuid| !has_mdev(uuid)),
        Target::Mdev { uuid } => !has_mdev(uuid),
    };
    let gone = held.iter().filter(|(target, held)| held.is_prepared && is_gone(target, held));
    gone.map(|(target, _)| target.clone()).collect()
}

/// Returns the function that a device is. `None` for mediated devices, and for virtual functions that do not exist.
fn function_of(target: &Target, inputs: Inputs<'_>) -> Option<PciAddress> {
    match target {
        Target::Function(address) => Some(*address),
        Target::VirtualFunction { physical, index } => {
            let sriov = inputs.inventory.devices.get(physical).and_then(|device| device.sriov.as_ref());
            let now = sriov.and_then(|sriov| sriov.virtual_functions.get(usize::from(*index))).copied();
            now.or_else(|| inputs.held.get(target).and_then(|held| held.address))
        }
        Target::NewMdev { .. } | Target::Mdev { .. } => None,
    }
}

/// Returns whether the PCI function behind a device does not answer.
fn is_silent(target: &Target, inputs: Inputs<'_>) -> bool {
    let address = match target {
        Target::Function(address) => Some(*address),
        Target::VirtualFunction { physical, .. } => Some(*physical),
        Target::NewMdev { parent, .. } => parent_address(parent),
        Target::Mdev { uuid } => inputs.inventory.mdevs.get(uuid).and_then(|mdev| parent_address(&mdev.parent)),
    };
    let device = address.and_then(|address| inputs.inventory.devices.get(&address));
    device.is_some_and(|device| device.config == ConfigSpace::Gone)
}

pub(crate) fn parent_address(parent: &drakkar_sysfs::MdevParentName) -> Option<PciAddress> {
    match parent {
        drakkar_sysfs::MdevParentName::Pci(address) => Some(*address),
        drakkar_sysfs::MdevParentName::Other(_) => None,
    }
}

/// Updates the UUIDs of the mediated devices that the driver has made for claims.
///
/// A UUID is known before its device exists, and forgotten when the inventory has seen that it is gone. In between, when the claim
/// has ended and the event has not come, the device must not be taken for one that somebody else has made.
pub(crate) fn update_made(made: &mut BTreeSet<String>, held: &BTreeMap<Target, Held>, inventory: &Inventory) {
    made.retain(|uuid| inventory.mdevs.contains_key(uuid));
    let of_claims = held.iter().filter(|(target, _)| matches!(target, Target::NewMdev { .. }));
    made.extend(of_claims.filter_map(|(_, held)| held.uuid.clone()));
}
