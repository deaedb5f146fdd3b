//! Mediated devices: how many of each type a parent can have.
//!
//! The kernel says how many more instances of a type can be made now. What a device can have altogether follows from that while
//! it has no instances, so the largest numbers are remembered; NVIDIA's driver also writes them into the description. Where only
//! instances are seen from the start, the number is too low until they are gone: devices are missing then, never too many.

use std::collections::{BTreeMap, BTreeSet};

use drakkar_sysfs::{Inventory, MdevParentName, MdevType};

use super::Held;
use super::counters::Fractions;
use crate::target::Target;

/// The largest number of instances that was seen, by parent and type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MaxInstances(BTreeMap<(MdevParentName, String), u32>);

impl MaxInstances {
    /// Takes in what the kernel says now.
    pub(crate) fn update(&mut self, inventory: &Inventory) {
        let functions =
            inventory.devices.values().map(|device| (MdevParentName::Pci(device.address), &device.mdev_types));
        let others = inventory
            .mdev_parents
            .values()
            .map(|parent| (MdevParentName::Other(parent.name.clone()), &parent.mdev_types));
        for (parent, types) in functions.chain(others) {
            let is_empty = types.iter().all(|mdev_type| mdev_type.instances == 0);
            for mdev_type in types {
                let seen = mdev_type.available_instances.saturating_add(mdev_type.instances);
                let max = described(mdev_type).unwrap_or(0).max(seen);
                let known = self.0.entry((parent.clone(), mdev_type.id.clone())).or_default();
                // The kernel's two numbers can be read while an instance comes or goes. Without any they are right.
                *known = if is_empty && max > 0 { max } else { max.max(*known) };
            }
        }
    }

    fn get(&self, parent: &MdevParentName, type_id: &str) -> u32 {
        self.0.get(&(parent.clone(), type_id.to_owned())).copied().unwrap_or_default()
    }
}

/// Returns the `max_instance=N` that NVIDIA's driver has in the description of its types.
fn described(mdev_type: &MdevType) -> Option<u32> {
    let description = mdev_type.description.as_deref()?;
    let mut parts = description.split([',', '\n']).map(str::trim);
    parts.find_map(|part| part.strip_prefix("max_instance=")?.trim().parse().ok())
}

/// Returns the UUIDs of the instances of a type.
fn instances<'a>(
    inventory: &'a Inventory,
    parent: &'a MdevParentName,
    type_id: &'a str,
) -> impl Iterator<Item = &'a str> {
    let mdevs = inventory.mdevs.values();
    let same = mdevs.filter(move |mdev| mdev.parent == *parent && mdev.type_id.as_deref() == Some(type_id));
    same.map(|mdev| mdev.uuid.as_str())
}

/// The devices of a type.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    pub(super) mdev_type: MdevType,
    /// The units of each device.
    pub(super) units: u64,
    pub(super) targets: Vec<Target>,
    /// Whether the rule still publishes the type. If not, these are devices of claims.
    pub(super) is_selected: bool,
}

/// The mediated devices that a parent can have.
#[derive(Debug, Clone, Default)]
pub(super) struct MdevLayout {
    /// The units of the parent that are not taken by instances of others.
    pub(super) units: u64,
    /// The devices to publish of each type.
    pub(super) slots: Vec<Slots>,
    /// The instances that others have made, with their types.
    pub(super) existing: Vec<(String, MdevType)>,
}

impl MdevLayout {
    /// Lays out the types of a parent that are to be published.
    pub(super) fn new(
        parent: &MdevParentName,
        types: &[MdevType],
        publishes: impl Fn(&MdevType) -> bool,
        inventory: &Inventory,
        held: &BTreeMap<Target, Held>,
        own: &BTreeSet<String>,
        max_instances: &MaxInstances,
    ) -> Self {
        let fractions = Fractions::new(
            types.iter().map(|mdev_type| (mdev_type.id.as_str(), max_instances.get(parent, &mdev_type.id))),
        );
        let mut layout = Self { units: fractions.total, ..Self::default() };
        let mut used = 0;
        for mdev_type in types {
            let unit = fractions.of(&mdev_type.id).unwrap_or_default();
            for uuid in instances(inventory, parent, &mdev_type.id) {
                used += unit;
                if !own.contains(uuid) {
                    layout.units = layout.units.saturating_sub(unit);
                    if publishes(mdev_type) {
                        layout.existing.push((uuid.to_owned(), mdev_type.clone()));
                    }
                }
            }
        }
        let free = fractions.total.saturating_sub(used);
        for mdev_type in types {
            let is_selected = publishes(mdev_type);
            let Some(unit) = fractions.of(&mdev_type.id) else { continue };
            let mut slots: BTreeSet<u32> =
                held.keys().filter_map(|target| slot_of(target, parent, &mdev_type.id)).collect();
            let others = layout.existing.iter().filter(|(_, existing)| existing.id == mdev_type.id).count();
            let max =
                max_instances.get(parent, &mdev_type.id).saturating_sub(u32::try_from(others).unwrap_or(u32::MAX));
            // Some devices take instances of one type only, as soon as there is one: the kernel then offers fewer than the
            // free units would hold. Otherwise all are published, so that slices do not change with every claim.
            let offers_less = u64::from(mdev_type.available_instances) < free / unit.max(1);
            let count = if offers_less {
                u32::try_from(slots.len()).unwrap_or(u32::MAX).saturating_add(mdev_type.available_instances).min(max)
            } else {
                max
            };
            // What claims have takes its units, whatever the rule says now.
            let free_slots = if is_selected { 0..max } else { 0..0 };
            for slot in free_slots {
                if slots.len() >= usize::try_from(count).unwrap_or(usize::MAX) {
                    break;
                }
                slots.insert(slot);
            }
            let target = |slot| Target::NewMdev { parent: parent.clone(), type_id: mdev_type.id.clone(), slot };
            if !slots.is_empty() {
                let targets = slots.into_iter().map(target).collect();
                layout.slots.push(Slots { mdev_type: mdev_type.clone(), units: unit, targets, is_selected });
            }
        }
        layout
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// Returns whether a device is made of a parent for a claim.
pub(super) fn is_of(target: &Target, of_parent: &MdevParentName) -> bool {
    matches!(target, Target::NewMdev { parent, .. } if parent == of_parent)
}

fn slot_of(target: &Target, of_parent: &MdevParentName, of_type: &str) -> Option<u32> {
    match target {
        Target::NewMdev { parent, type_id, slot } if parent == of_parent && type_id == of_type => Some(*slot),
        _ => None,
    }
}
