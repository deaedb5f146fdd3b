//! Devices of claims: they stay in the plan as they were when the claim got them.

use std::sync::Arc;

use super::build::is_held;
use super::{Entry, HeldInterface, Holding, Inputs, Plan, Taint};
use crate::attributes::Attributes;
use crate::config::{Mode, Share, ShareKind};
use crate::protect::Refusal;
use crate::select::{Choice, Key};

impl Plan {
    /// Keeps the devices of claims.
    pub(super) fn keep_held(&mut self, inputs: Inputs<'_>) {
        for held in inputs.held {
            let known = self.entries.get(&held.device);
            let is_same = known.is_some_and(|entry| entry.is_on_host && entry.identity.is_same(&held.identity));
            if let Some(entry) = self.entries.get_mut(&held.device).filter(|_| is_same) {
                entry.hold(held, inputs);
                continue;
            }
            // Of a shared interface that is gone, the first claim has made the entry.
            if self.entries.get(&held.device).is_some_and(|entry| !entry.is_on_host) {
                continue;
            }
            self.refuse_other(&held.device);
            let entry = self.recorded(held, inputs);
            self.entries.insert(held.device.clone(), entry);
        }
    }

    /// Takes the interface out of the plan that has the name of a claim's device and is another one.
    fn refuse_other(&mut self, device: &str) {
        self.entries.remove(device);
        let is_published = |decision: &&mut super::Decision| decision.device.as_deref() == Some(device);
        if let Some(decision) = self.decisions.values_mut().find(is_published) {
            decision.device = None;
            decision.refusal = Some(Refusal::Held { device: device.to_owned() });
        }
    }

    /// Returns the entry of a device that is not published of the host: its interface is in a pod, gone, refused or not selected.
    fn recorded(&self, held: &HeldInterface, inputs: Inputs<'_>) -> Entry {
        let on_host = inputs.inventory.interfaces.values().find(|interface| is_held(held, interface));
        let matched = inputs.selection.get(&Key::Held(held.device.clone()));
        let before = inputs.previous.and_then(|plan| plan.entries.get(&held.device));
        let (facts, attributes, choice) = match (matched, before) {
            (Some(matched), _) => (matched.facts.clone(), matched.published.clone(), Some(&matched.choice)),
            (None, Some(before)) => (before.facts.clone(), before.attributes.clone(), None),
            (None, None) => (Arc::default(), Arc::<Attributes>::default(), None),
        };
        let rule = match choice {
            Some(Choice::Rule(index)) => Some(*index),
            Some(_) => None,
            None => before.and_then(|before| before.rule),
        };
        let is_refused = on_host.is_some();
        let taint =
            if held.is_gone { Some(Taint::Gone) } else { (is_refused || rule.is_none()).then_some(Taint::Unselected) };
        let pci = before.and_then(|before| before.pci).or_else(|| on_host?.pci());
        let device = held.identity.device.as_ref().filter(|device| device.bus == "pci");
        let mode = mode_of(
            held,
            rule.and_then(|rule| inputs.selection.config().devices.get(rule)).map(|rule| rule.mode),
            inputs,
        );
        Entry {
            identity: held.identity.clone(),
            pci: pci.or_else(|| device?.name.parse().ok()),
            facts,
            attributes,
            mode,
            rule,
            is_on_host: on_host.is_some(),
            taint,
        }
    }
}

impl Entry {
    /// Keeps what a claim got a device by, and how it has it.
    fn hold(&mut self, held: &HeldInterface, inputs: Inputs<'_>) {
        self.mode = mode_of(held, Some(self.mode), inputs);
        if held.is_gone {
            self.taint = Some(Taint::Gone);
        }
        // A shared interface is the host's: what is known of it is what it is now.
        if held.holding == Holding::Shared {
            return;
        }
        if let Some(matched) = inputs.selection.get(&Key::Held(held.device.clone()))
            && matches!(matched.choice, Choice::Rule(_))
        {
            self.facts = matched.facts.clone();
            self.attributes = matched.published.clone();
        }
    }
}

/// Returns the mode of a device that a claim has: the mode of its rule, unless the claim has it in another way. A device that changed
/// from one claim to many, or back, would be given to others while the claim has it.
fn mode_of(held: &HeldInterface, mode: Option<Mode>, inputs: Inputs<'_>) -> Mode {
    match (held.holding, mode) {
        (Holding::Shared, Some(mode @ Mode::Share(_))) => mode,
        (Holding::Shared, _) => {
            let claims = inputs.held.iter().filter(|other| other.device == held.device).count();
            let before =
                inputs.previous.and_then(|plan| plan.entries.get(&held.device)).and_then(|entry| entry.mode.share());
            let kind = before.map_or(ShareKind::Macvlan(Default::default()), |share| share.kind);
            Mode::Share(Share { kind, max: u32::try_from(claims).unwrap_or(u32::MAX) })
        }
        (Holding::Moved, _) => Mode::Move,
        (Holding::Dpdk, _) => Mode::Dpdk,
    }
}
