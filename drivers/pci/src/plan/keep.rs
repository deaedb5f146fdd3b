//! Devices of claims: they stay in the plan, and nothing that overlaps with them is offered.
//!
//! A reload or a restart can leave a claim's device without its rule, and so without what it consumes. Then the scheduler does not see
//! that the function of which it is a part, or the same function under another name, is not free: those are refused until the claim
//! ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drakkar_sysfs::{MdevParentName, PciAddress};

use super::{Entry, Inputs, Plan, Settings, Taint, function_of, parent_address};
use crate::attributes::{self, Attributes, MDEV_UUID, add_type};
use crate::protect::Refusal;
use crate::target::Target;

/// A place in the tree of a function, its virtual functions, and the mediated devices of both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Function(PciAddress),
    /// Something that has no address, or none yet.
    Part(Target),
}

impl Plan {
    /// Keeps the entries of held devices that are in no rule any more, with what they consume.
    pub(super) fn keep_held(&mut self, inputs: Inputs<'_>) {
        for target in inputs.held.keys() {
            let name = target.name();
            if self.entries.contains_key(&name) {
                continue;
            }
            let before = inputs.previous.and_then(|plan| plan.entries.get(&name));
            let mut entry = before.cloned().unwrap_or_else(|| Entry {
                target: target.clone(),
                attributes: Arc::new(derived(target, inputs)),
                settings: Settings::default(),
                consumes: Vec::new(),
                taint: None,
            });
            entry.taint = Some(Taint::Unselected);
            // Sets of groups are made anew; of the others, those count that still exist.
            entry.consumes.retain(|(set, _)| self.sets.contains_key(set));
            self.entries.insert(name, entry);
        }
    }

    /// Takes devices out of the plan that overlap with a device of a claim, unless a counter keeps them apart.
    pub(super) fn refuse_overlapping(&mut self, inputs: Inputs<'_>) {
        let mut places: BTreeMap<Place, Vec<String>> = BTreeMap::new();
        let mut ends: BTreeMap<Place, String> = BTreeMap::new();
        for target in inputs.held.keys() {
            let path = path(target, inputs);
            ends.extend(path.last().map(|end| (end.clone(), target.name())));
            for place in path {
                places.entry(place).or_default().push(target.name());
            }
        }
        let made: BTreeSet<PciAddress> = inputs.held.keys().filter_map(super::build::physical_function).collect();
        let mut refused = Vec::new();
        for (name, entry) in self.entries.iter().filter(|(_, entry)| !inputs.held.contains_key(&entry.target)) {
            let path = path(&entry.target, inputs);
            let Some((end, above)) = path.split_last() else { continue };
            let is_part_apart =
                |other: &&String| self.entries.get(*other).is_some_and(|part| self.excludes(entry, part));
            let is_whole_apart =
                |other: &&String| self.entries.get(*other).is_some_and(|whole| self.excludes(whole, entry));
            // Two names of one function share no counter of which one of them takes all.
            let same = ends.get(end);
            let mut parts = places.get(end).into_iter().flatten();
            let mut wholes = above.iter().filter_map(|place| ends.get(place));
            let overlapping = same
                .or_else(|| parts.find(|part| !is_part_apart(part)))
                .or_else(|| wholes.find(|whole| !is_whole_apart(whole)));
            let temporary = || {
                let Target::Function(address) = entry.target else { return None };
                let physical = inputs.inventory.devices.get(&address)?.physical_function?;
                let is_part = |target: &&Target| super::build::physical_function(target) == Some(physical);
                made.contains(&physical).then(|| inputs.held.keys().find(is_part).map(Target::name)).flatten()
            };
            if let Some(other) = overlapping.cloned().or_else(temporary) {
                refused.push((name.clone(), function_of(&entry.target, inputs), Refusal::Held { device: other }));
            }
        }
        for (name, address, refusal) in refused {
            self.refuse(&name, address, refusal);
        }
    }
}

impl Plan {
    /// Returns whether a counter keeps a whole from being allocated beside its part: the whole takes all of it.
    fn excludes(&self, whole: &Entry, part: &Entry) -> bool {
        let takes = |entry: &Entry, of: &String| entry.consumes.iter().any(|(set, units)| set == of && *units > 0);
        let mut all = whole.consumes.iter().filter(|(set, units)| self.sets.get(set) == Some(units));
        all.any(|(set, _)| takes(whole, set) && takes(part, set))
    }
}

/// Returns where a device is: the functions of which it is a part, and itself.
fn path(target: &Target, inputs: Inputs<'_>) -> Vec<Place> {
    let of_function = |address: PciAddress| {
        let physical = inputs.inventory.devices.get(&address).and_then(|device| device.physical_function);
        physical.into_iter().chain([address]).map(Place::Function).collect::<Vec<_>>()
    };
    let of_part = |parent: Option<PciAddress>| {
        let mut path = parent.map(of_function).unwrap_or_default();
        path.push(Place::Part(target.clone()));
        path
    };
    match target {
        Target::Function(address) => of_function(*address),
        Target::VirtualFunction { physical, .. } => match function_of(target, inputs) {
            Some(address) => vec![Place::Function(*physical), Place::Function(address)],
            None => of_part(Some(*physical)),
        },
        Target::NewMdev { parent, .. } => of_part(parent_address(parent)),
        Target::Mdev { uuid } => {
            of_part(inputs.inventory.mdevs.get(uuid).and_then(|mdev| parent_address(&mdev.parent)))
        }
    }
}

/// Returns the attributes of a device that no rule selects.
fn derived(target: &Target, inputs: Inputs<'_>) -> Attributes {
    let numa = inputs.selection.numa();
    let device = |address: PciAddress| inputs.inventory.devices.get(&address);
    let function = |address: PciAddress| inputs.selection.devices.get(&address).map(|known| known.attributes.as_ref());
    let of_parent = |parent: &MdevParentName| match parent {
        MdevParentName::Pci(address) => device(*address).map(|parent| attributes::of_mdev(parent, numa)),
        MdevParentName::Other(name) => Some(attributes::of_other_mdev(name)),
    };
    let of_type = |parent: &MdevParentName, type_id: &str| {
        let mut attributes = of_parent(parent)?;
        let types = match parent {
            MdevParentName::Pci(address) => &device(*address)?.mdev_types,
            MdevParentName::Other(name) => &inputs.inventory.mdev_parents.get(name)?.mdev_types,
        };
        if let Some(mdev_type) = types.iter().find(|mdev_type| mdev_type.id == type_id) {
            add_type(&mut attributes, mdev_type);
        }
        Some(attributes)
    };
    let attributes = match target {
        Target::Function(address) => function(*address).cloned(),
        Target::VirtualFunction { physical, index } => {
            let made = function_of(target, inputs).and_then(function).cloned();
            let attributes = made.or_else(|| Some(attributes::of_planned_vf(device(*physical)?, numa)));
            attributes.map(|mut attributes| {
                attributes.insert("vfIndex".to_owned(), i64::from(*index).into());
                attributes
            })
        }
        Target::NewMdev { parent, type_id, .. } => of_type(parent, type_id),
        Target::Mdev { uuid } => inputs.inventory.mdevs.get(uuid).and_then(|mdev| {
            let mut attributes = of_type(&mdev.parent, mdev.type_id.as_deref().unwrap_or_default())?;
            attributes.insert(MDEV_UUID.to_owned(), uuid.clone().into());
            Some(attributes)
        }),
    };
    attributes.unwrap_or_default()
}
