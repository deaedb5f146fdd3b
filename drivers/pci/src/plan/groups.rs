//! IOMMU groups: devices that share one exclude each other.
//!
//! A group goes to one claim, because who has its node reaches every member. Which claims ask for the group is not known when a plan is
//! made: a claim can choose the mode `vfio` whatever the rule says. So the mode of the rule does not count.

use std::collections::BTreeMap;

use drakkar_sysfs::PciAddress;

use super::{Inputs, Plan, function_of};
use crate::protect::Refusal;

/// The most counter sets of which a device can take something. It is a limit of the API.
const MAX_SETS: usize = 2;

/// A published device of a group.
struct Member {
    name: String,
    address: Option<PciAddress>,
    is_held: bool,
    /// Whether it can take something of another counter set.
    has_room: bool,
}

impl Plan {
    /// Makes devices that share an IOMMU group exclude each other.
    pub(super) fn exclude_within_groups(&mut self, inputs: Inputs<'_>) {
        for (group, mut members) in self.groups(inputs).into_iter().filter(|(_, members)| members.len() > 1) {
            // Without a counter, only one of them can be published: those that a claim has come first.
            let is_full = |member: &&Member| !member.has_room;
            let holds_all = members.iter().filter(is_full).any(|member| member.is_held);
            let (kept, refused): (Vec<_>, Vec<_>) =
                members.drain(..).partition(|member| member.is_held || (member.has_room && !holds_all));
            for member in refused {
                self.refuse(&member.name, member.address, Refusal::GroupShared { group });
            }
            let kept: Vec<_> = kept.into_iter().filter(|member| member.has_room).collect();
            if kept.len() < 2 {
                continue;
            }
            let set = format!("iommu-group-{group}");
            for member in kept {
                if let Some(entry) = self.entries.get_mut(&member.name) {
                    entry.consumes.push((set.clone(), 1));
                }
            }
            self.sets.insert(set, 1);
        }
    }

    /// Returns the published devices of each group.
    fn groups(&self, inputs: Inputs<'_>) -> BTreeMap<u32, Vec<Member>> {
        let mut groups: BTreeMap<u32, Vec<Member>> = BTreeMap::new();
        for (name, entry) in &self.entries {
            let Some(address) = function_of(&entry.target, inputs) else { continue };
            let group = match inputs.inventory.devices.get(&address) {
                Some(device) => device.iommu_group,
                // A claim whose device is gone still has the node of its group.
                None => entry.attributes.get("iommuGroup").and_then(|group| u32::try_from(group.int?).ok()),
            };
            let Some(group) = group else { continue };
            groups.entry(group).or_default().push(Member {
                name: name.clone(),
                address: Some(address),
                is_held: inputs.held.contains_key(&entry.target),
                has_room: entry.consumes.len() < MAX_SETS,
            });
        }
        groups
    }

    /// Takes a device out of the plan, and says why.
    pub(super) fn refuse(&mut self, name: &str, address: Option<PciAddress>, refusal: Refusal) {
        self.entries.remove(name);
        for decision in self.decisions.values_mut() {
            decision.names.retain(|published| published != name);
        }
        if let Some(decision) = address.and_then(|address| self.decisions.get_mut(&address)) {
            decision.refusal.get_or_insert(refusal);
        }
    }
}
