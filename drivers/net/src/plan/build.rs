//! Entries of everything that rules select.

use std::collections::BTreeSet;

use drakkar_netlink::BusAddress;
use drakkar_sysfs::{PciAddress, PciDevice};

use super::{Decision, Entry, HeldInterface, Holding, Inputs, Plan};
use crate::config::{Mode, Rule};
use crate::device_name;
use crate::inventory::{HostInterface, Identity};
use crate::protect::{HostNeeds, Refusal, refuse, refuse_function};
use crate::select::{Choice, Key, Matched};

/// Builds the entries of everything that rules select.
pub(super) fn build(inputs: Inputs<'_>) -> Plan {
    let needs = HostNeeds::new(inputs.inventory, inputs.node_addresses);
    let mut plan = Plan::default();
    for (index, interface) in &inputs.inventory.interfaces {
        let refuse = |rule: &Rule| refuse(inputs.inventory, &needs, interface, rule);
        let device = || (device_name::of_interface(interface), interface.identity(), interface.pci());
        plan.decide(inputs, Key::Interface(*index), refuse, device);
    }
    let in_pods: BTreeSet<PciAddress> = inputs.held.iter().filter_map(moved_function).collect();
    let functions = inputs.inventory.functions_without_interface();
    for function in functions.filter(|function| !in_pods.contains(&function.address)) {
        let address = function.address;
        let refuse = |rule: &Rule| refuse_function(inputs.inventory, function, rule.mode);
        let device = || (device_name::of_function(address), function_identity(function), Some(address));
        plan.decide(inputs, Key::Function(address), refuse, device);
    }
    plan
}

/// Returns the function of an interface that is in a pod: it is there, and its interface is not.
fn moved_function(held: &HeldInterface) -> Option<PciAddress> {
    let device = held.identity.device.as_ref().filter(|device| device.bus == "pci")?;
    if held.holding == Holding::Moved { device.name.parse().ok() } else { None }
}

/// Returns how a function without an interface is recognized.
pub(crate) fn function_identity(device: &PciDevice) -> Identity {
    let bus = BusAddress { bus: "pci".to_owned(), name: device.address.to_string() };
    Identity { device: Some(bus), ..Identity::default() }
}

impl Plan {
    /// Decides what becomes of an interface or a function. Its name and identity are made if it is published.
    fn decide(
        &mut self,
        inputs: Inputs<'_>,
        key: Key,
        refuse: impl Fn(&Rule) -> Option<Refusal>,
        device: impl Fn() -> (String, Identity, Option<PciAddress>),
    ) {
        let Some(matched) = inputs.selection.get(&key) else { return };
        let mut decision = Decision { choice: matched.choice.clone(), refusal: None, device: None };
        if let Some(rule) = inputs.selection.rule(&matched.choice) {
            decision.refusal = refuse(rule);
            if decision.refusal.is_none() {
                let (name, identity, pci) = device();
                match self.entries.get(&name) {
                    Some(other) => {
                        decision.refusal = Some(Refusal::NameTaken { device: name, other: other.identity.to_string() });
                    }
                    None => {
                        self.entries.insert(name.clone(), Entry::on_host(identity, pci, matched, rule.mode));
                        decision.device = Some(name);
                    }
                }
            }
        }
        self.decisions.insert(key, decision);
    }
}

impl Entry {
    fn on_host(identity: Identity, pci: Option<PciAddress>, matched: &Matched, mode: Mode) -> Self {
        let rule = match matched.choice {
            Choice::Rule(index) => Some(index),
            _ => None,
        };
        let (facts, attributes) = (matched.facts.clone(), matched.published.clone());
        Self { identity, pci, facts, attributes, mode, rule, is_on_host: true, taint: None }
    }
}

/// Returns whether an interface of the host is the one of a claim.
pub(super) fn is_held(held: &HeldInterface, interface: &HostInterface) -> bool {
    // Most are of other claims or of none: the index alone is compared first where there is no device.
    match (&held.identity.device, &interface.link.device) {
        (None, None) => held.identity.index == interface.link.index,
        (Some(one), Some(two)) => one == two && held.identity.is_same(&interface.identity()),
        _ => false,
    }
}
