//! Entries and counters of all selected devices.

use std::collections::BTreeSet;
use std::sync::Arc;

use drakkar_sysfs::{MdevParentName, MdevType, PciAddress, PciDevice};

use super::mdev::{MdevLayout, Slots, is_of};
use super::{Decision, Entry, Inputs, Plan, Settings, Taint};
use crate::attributes::{self, Attributes, MDEV_UUID, add_rule, add_type};
use crate::config::{Config, Rule};
use crate::mode::Mode;
use crate::protect::{Protection, Refusal};
use crate::select::{Choice, Selection};
use crate::target::Target;

/// Builds the entries of everything that rules select.
pub(super) fn build(inputs: Inputs<'_>) -> Plan {
    let mut selected = inputs.selection.addresses(|choice| matches!(choice, Choice::Rule(_)));
    let is_managed = |device: &&PciDevice| {
        device.physical_function.is_some_and(|physical| managing_rule(inputs.selection, physical).is_some())
    };
    selected.extend(inputs.inventory.devices.values().filter(is_managed).map(|device| device.address));
    let excluded = inputs.selection.addresses(|choice| matches!(choice, Choice::Excluded(_)));
    let failed = inputs.selection.failed_excludes();
    let own_physical: BTreeSet<PciAddress> = inputs.held.keys().filter_map(physical_function).collect();
    let protection = Protection {
        inventory: inputs.inventory,
        host_use: inputs.host_use,
        selected: &selected,
        excluded: &excluded,
        failed: &failed,
        own_mdevs: inputs.made,
        own_physical: &own_physical,
    };
    let mut builder = Builder { inputs, protection, plan: Plan::default() };
    for device in inputs.inventory.devices.values() {
        builder.function(device);
    }
    builder.other_parents();
    builder.plan
}

struct Builder<'a> {
    inputs: Inputs<'a>,
    protection: Protection<'a>,
    plan: Plan,
}

/// A function in the hands of a rule.
#[derive(Clone, Copy)]
struct Part<'a> {
    device: &'a PciDevice,
    rule: &'a Rule,
}

impl<'a> Builder<'a> {
    fn config(&self) -> &'a Config {
        self.inputs.selection.config()
    }

    /// Adds a function that is not a managed virtual function, with all its parts.
    fn function(&mut self, device: &'a PciDevice) {
        let Some(matched) = self.inputs.selection.devices.get(&device.address) else { return };
        let choice = matched.choice.clone();
        if let Some((physical, rule)) = self.managed_by(device) {
            // The physical function adds it; the decision says under which name.
            let choice = match choice {
                Choice::Excluded(index) => Choice::Excluded(index),
                Choice::Failed(message) if self.protection.failed.contains_key(&device.address) => {
                    Choice::Failed(message)
                }
                _ => self.inputs.selection.devices.get(&physical).map_or(choice, |physical| physical.choice.clone()),
            };
            let is_selected = matches!(choice, Choice::Rule(_));
            let refusal = is_selected.then(|| self.protection.refusal(device, rule)).flatten();
            let index = self.index_of(physical, device.address).filter(|_| is_selected && refusal.is_none());
            let names = index.map(|index| Target::VirtualFunction { physical, index }.name()).into_iter().collect();
            self.plan.decisions.insert(device.address, Decision { choice, refusal, names, note: None });
            return;
        }
        let mut decision = Decision { choice, refusal: None, names: Vec::new(), note: None };
        if let Choice::Rule(index) = decision.choice
            && let Some(rule) = self.config().devices.get(index)
        {
            let part = Part { device, rule };
            (decision.names, decision.refusal) = self.selected(part, &matched.published);
        }
        self.plan.decisions.insert(device.address, decision);
    }

    /// Adds a selected function: its mediated devices, its virtual functions, itself.
    fn selected(&mut self, part: Part<'a>, attributes: &Arc<Attributes>) -> (Vec<String>, Option<Refusal>) {
        let refusal = self.protection.refusal(part.device, part.rule);
        let layout = self.layout(part.device, part.rule);
        let functions = self.virtual_functions(part.device, part.rule);
        let weights: u64 = functions.iter().map(|(_, _, layout)| layout.units.max(1)).sum();
        let has_parts = !layout.is_empty() || !functions.is_empty();
        // Without the whole, virtual functions compete for nothing.
        let needs_set = has_parts && (refusal.is_none() || !layout.is_empty());
        let total = layout.units + weights;
        let mut names = Vec::new();
        let set = needs_set.then(|| set_name(part.device.address));
        let outer = set.as_deref();
        self.mdevs(part, &layout, outer, None, &mut names);
        for (target, function, layout) in &functions {
            self.virtual_function(part, target, *function, layout, outer, &mut names);
        }
        if refusal.is_none() {
            let consumes = set.iter().map(|set| (set.clone(), total)).collect();
            let target = Target::Function(part.device.address);
            names.push(self.add(target, attributes.clone(), self.settings(part), consumes));
        }
        if let Some(set) = set {
            self.plan.sets.insert(set, total);
        }
        (names, refusal)
    }

    /// Adds a managed virtual function, which exists or not, with its mediated devices.
    fn virtual_function(
        &mut self,
        physical: Part<'a>,
        target: &Target,
        function: Option<&'a PciDevice>,
        layout: &MdevLayout,
        outer: Option<&str>,
        names: &mut Vec<String>,
    ) {
        let Target::VirtualFunction { index, .. } = target else { return };
        let rule = physical.rule;
        let mut attributes = match function.and_then(|device| self.inputs.selection.devices.get(&device.address)) {
            Some(matched) => Attributes::clone(&matched.attributes),
            None => attributes::of_planned_vf(physical.device, self.inputs.selection.numa()),
        };
        attributes.insert("vfIndex".to_owned(), i64::from(*index).into());
        add_rule(&mut attributes, rule);
        let refusal = function.and_then(|device| self.protection.refusal(device, rule));
        let set = function.map(|device| set_name(device.address)).filter(|_| !layout.is_empty());
        if let (Some(device), Some(set)) = (function, &set) {
            let part = Part { device, rule };
            self.mdevs(part, layout, Some(set), outer, names);
            self.plan.sets.insert(set.clone(), layout.units);
        }
        // The decision about the virtual function says why.
        if refusal.is_some() {
            return;
        }
        let own = set.map(|set| (set, layout.units));
        let of_physical = outer.map(|outer| (outer.to_owned(), layout.units.max(1)));
        let mut settings = self.settings(Part { device: function.unwrap_or(physical.device), rule });
        if function.is_none() {
            // Its group is known when it exists.
            settings.companions.clear();
        }
        settings.virtual_functions = self.count(physical.device, rule);
        let consumes = own.into_iter().chain(of_physical).collect();
        names.push(self.add(target.clone(), Arc::new(attributes), settings, consumes));
    }

    /// Adds the mediated devices of a function: of `set`, and of the set of its physical function.
    fn mdevs(
        &mut self,
        part: Part<'a>,
        layout: &MdevLayout,
        set: Option<&str>,
        outer: Option<&str>,
        names: &mut Vec<String>,
    ) {
        let base = attributes::of_mdev(part.device, self.inputs.selection.numa());
        self.mdev_entries(part.rule, &base, layout, [set, outer], names);
    }

    fn mdev_entries(
        &mut self,
        rule: &'a Rule,
        base: &Attributes,
        layout: &MdevLayout,
        sets: [Option<&str>; 2],
        names: &mut Vec<String>,
    ) {
        let settings = Settings { mode: rule.mode, iommu_backend: rule.iommu_backend, ..Settings::default() };
        let of_type = |mdev_type: &MdevType| {
            let mut attributes = base.clone();
            add_type(&mut attributes, mdev_type);
            add_rule(&mut attributes, rule);
            attributes
        };
        for (uuid, mdev_type) in &layout.existing {
            let mut attributes = of_type(mdev_type);
            attributes.insert(MDEV_UUID.to_owned(), uuid.clone().into());
            let target = Target::Mdev { uuid: uuid.clone() };
            names.push(self.add(target, Arc::new(attributes), settings.clone(), Vec::new()));
        }
        for Slots { mdev_type, units, targets, is_selected } in &layout.slots {
            // There can be dozens of a type.
            let attributes = Arc::new(of_type(mdev_type));
            let consumes: Vec<_> = sets.iter().flatten().map(|set| ((*set).to_owned(), *units)).collect();
            for target in targets {
                let name = self.add(target.clone(), attributes.clone(), settings.clone(), consumes.clone());
                if let Some(entry) = self.plan.entries.get_mut(&name).filter(|_| !is_selected) {
                    entry.taint = Some(Taint::Unselected);
                }
                names.push(name);
            }
        }
    }

    /// Adds the mediated devices of parents that are no PCI devices.
    fn other_parents(&mut self) {
        for parent in self.inputs.inventory.mdev_parents.values() {
            let Choice::Rule(index) = self.inputs.selection.match_parent(parent) else { continue };
            let Some(rule) = self.config().devices.get(index) else { continue };
            let name = MdevParentName::Other(parent.name.clone());
            let layout = self.layout_of(&name, &parent.mdev_types, rule);
            let set = Target::Mdev { uuid: parent.name.clone() }.name().replacen("mdev-", "parent-", 1);
            let base = attributes::of_other_mdev(&parent.name);
            self.mdev_entries(rule, &base, &layout, [Some(&set), None], &mut Vec::new());
            if !layout.is_empty() {
                self.plan.sets.insert(set, layout.units);
            }
        }
    }

    fn add(
        &mut self,
        target: Target,
        attributes: Arc<Attributes>,
        settings: Settings,
        consumes: Vec<(String, u64)>,
    ) -> String {
        let name = target.name();
        self.plan.entries.insert(name.clone(), Entry { target, attributes, settings, consumes, taint: None });
        name
    }

    fn settings(&self, part: Part<'_>) -> Settings {
        Settings {
            mode: part.rule.mode,
            iommu_backend: part.rule.iommu_backend,
            // In other modes nothing was checked of the group: a claim that asks for vfio all the same gets the device alone.
            companions: match part.rule.mode {
                Mode::Vfio => self.protection.companions(part.device),
                Mode::Kernel | Mode::None => Vec::new(),
            },
            virtual_functions: 0,
        }
    }

    /// Returns the physical function of a managed virtual function, and its rule.
    fn managed_by(&self, device: &PciDevice) -> Option<(PciAddress, &'a Rule)> {
        let physical = device.physical_function?;
        Some((physical, managing_rule(self.inputs.selection, physical)?))
    }

    fn index_of(&self, physical: PciAddress, function: PciAddress) -> Option<u16> {
        let sriov = self.inputs.inventory.devices.get(&physical)?.sriov.as_ref()?;
        let index = sriov.virtual_functions.iter().position(|address| *address == function)?;
        u16::try_from(index).ok()
    }

    /// Returns the number of virtual functions that a rule wants of a device.
    fn count(&self, physical: &PciDevice, rule: &Rule) -> u16 {
        let total = physical.sriov.as_ref().map_or(0, |sriov| sriov.total_vfs);
        rule.virtual_functions.map_or(0, |functions| functions.count.of(total))
    }

    /// Returns the managed virtual functions: those that exist, and on demand those that do not exist yet.
    fn virtual_functions(&self, physical: &PciDevice, rule: &Rule) -> Vec<(Target, Option<&'a PciDevice>, MdevLayout)> {
        let Some(wanted) = rule.virtual_functions else { return Vec::new() };
        let Some(sriov) = &physical.sriov else { return Vec::new() };
        let existing = u16::try_from(sriov.virtual_functions.len()).unwrap_or(u16::MAX);
        let limit = self.count(physical, rule);
        // The kernel makes virtual functions only all at once: with some there, no more can be added.
        let count = if existing > 0 || !wanted.on_demand { existing.min(limit) } else { limit };
        let function = |index: u16| {
            let address = sriov.virtual_functions.get(usize::from(index));
            let device = address.and_then(|address| self.inputs.inventory.devices.get(address));
            let is_excluded = device.is_some_and(|device| self.protection.is_excluded(device.address));
            let layout = device.map(|device| self.layout(device, rule)).unwrap_or_default();
            let target = Target::VirtualFunction { physical: physical.address, index };
            (!is_excluded).then_some((target, device, layout))
        };
        (0..count).filter_map(function).collect()
    }

    fn layout(&self, device: &PciDevice, rule: &Rule) -> MdevLayout {
        self.layout_of(&MdevParentName::Pci(device.address), &device.mdev_types, rule)
    }

    fn layout_of(&self, parent: &MdevParentName, types: &[MdevType], rule: &Rule) -> MdevLayout {
        let Inputs { inventory, held, made, max_instances, .. } = self.inputs;
        let publishes = |mdev_type: &MdevType| rule.publishes_type(&mdev_type.id, mdev_type.name.as_deref());
        if rule.mdev_types.is_empty() && !held.keys().any(|target| is_of(target, parent)) {
            return MdevLayout::default();
        }
        MdevLayout::new(parent, types, publishes, inventory, held, made, max_instances)
    }
}

/// Returns the physical function of a device that is a virtual function made by the driver.
pub(super) fn physical_function(target: &Target) -> Option<PciAddress> {
    match target {
        Target::VirtualFunction { physical, .. } => Some(*physical),
        _ => None,
    }
}

/// Returns the rule that manages the virtual functions of a physical function.
fn managing_rule(selection: &Selection, physical: PciAddress) -> Option<&Rule> {
    let Choice::Rule(index) = selection.devices.get(&physical)?.choice else { return None };
    selection.config().devices.get(index).filter(|rule| rule.virtual_functions.is_some())
}

/// Returns the name of the counter set of a function.
fn set_name(address: PciAddress) -> String {
    Target::Function(address).name()
}
