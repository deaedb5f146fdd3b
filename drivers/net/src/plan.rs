//! The plan: every device that is published, and why the other interfaces are not.
//!
//! A plan is a function of the inventory, the selection, the addresses of the node and what claims hold. It has no other state, so it
//! is made anew after every change and published if it differs.
//!
//! # Devices of claims
//!
//! A device that a claim holds stays in the plan, also while its interface is in a pod and not on the host: a scheduler that does not
//! see it would forget the claim. It is published with what was known of it when the claim got it, so nothing changes while the
//! pod configures it ([`keep`]). If no rule selects it any more, it is tainted `net.drakkar.dev/unselected:NoSchedule`, if it is gone
//! `net.drakkar.dev/gone:NoExecute`. When the claim ends, the taint or the device goes.
//!
//! # Shared interfaces
//!
//! A shared interface allows multiple allocations. It has the capacity `shares`, of which each claim takes one.

mod build;
mod keep;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use drakkar_plugin::k8s_openapi::api::resource::v1::CapacityRequestPolicy;
use drakkar_plugin::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use drakkar_plugin::{Capacity, DriverResources, Pool, PublishedDevice};
use drakkar_sysfs::PciAddress;

use crate::attributes::Attributes;
use crate::config::Mode;
use crate::inventory::{Identity, Inventory};
use crate::protect::Refusal;
use crate::select::{Choice, Key, Selection};

/// The taint of a device that is gone while a claim holds it.
pub const GONE: &str = "net.drakkar.dev/gone";
/// The taint of a device that no rule selects any more while a claim holds it.
pub const UNSELECTED: &str = "net.drakkar.dev/unselected";
/// The capacity of a shared interface: the number of claims that can have it.
pub const SHARES: &str = "shares";

/// The most devices in a slice: the API's limit for tainted ones, so that a taint does not split slices.
const DEVICES_PER_SLICE: usize = 64;

/// A device that a claim holds, from the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldInterface {
    /// The name of the device.
    pub device: String,
    /// How its interface is recognized.
    pub identity: Identity,
    /// How the claim has it.
    pub holding: Holding,
    /// What was known of it when the claim got it ([`Interface::facts`](crate::Interface::facts)). `None`: the plan before is used,
    /// which a new process does not have.
    pub facts: Option<Attributes>,
    /// Whether it is neither on the host nor in its pod any more.
    pub is_gone: bool,
}

/// How a claim has a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// Alone: it is in a pod, or will be.
    Moved,
    /// With other claims: it is on the host.
    Shared,
    /// Alone, bound for programs in user space.
    Dpdk,
}

/// A published device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) identity: Identity,
    pub(crate) pci: Option<PciAddress>,
    /// What is known of it, without what its rule adds.
    pub(crate) facts: Arc<Attributes>,
    /// What is published of it.
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) mode: Mode,
    /// The number of its rule.
    pub(crate) rule: Option<usize>,
    /// Whether its interface, or its function without one, is on the host.
    pub(crate) is_on_host: bool,
    pub(crate) taint: Option<Taint>,
}

/// Why no pod should use a device now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taint {
    Gone,
    Unselected,
}

impl Taint {
    /// Returns the key of the taint.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Gone => GONE,
            Self::Unselected => UNSELECTED,
        }
    }

    /// Returns the effect of the taint. Only what is gone costs a pod its life.
    fn effect(self) -> &'static str {
        match self {
            Self::Gone => "NoExecute",
            Self::Unselected => "NoSchedule",
        }
    }
}

/// What becomes of an interface, or of a function without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The rule that it belongs to.
    pub choice: Choice,
    /// Why it is not published.
    pub refusal: Option<Refusal>,
    /// The name of the device that is published of it.
    pub device: Option<String>,
}

/// Every device that is published, and what becomes of each interface.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) entries: BTreeMap<String, Entry>,
    pub(crate) decisions: BTreeMap<Key, Decision>,
}

/// What a plan is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) inventory: &'a Inventory,
    pub(crate) selection: &'a Selection,
    pub(crate) node_addresses: &'a [IpAddr],
    pub(crate) held: &'a [HeldInterface],
    /// The plan before, in which the entries of held devices are found of which no facts were recorded.
    pub(crate) previous: Option<&'a Plan>,
}

impl Plan {
    /// Makes the plan.
    pub(crate) fn new(inputs: Inputs<'_>) -> Self {
        let mut plan = build::build(inputs);
        plan.keep_held(inputs);
        plan
    }

    /// Returns whether another plan publishes the same.
    pub(crate) fn publishes_the_same(&self, other: &Self) -> bool {
        let same = |(one_name, one): (&String, &Entry), (name, entry): (&String, &Entry)| {
            one_name == name && one.attributes == entry.attributes && one.mode == entry.mode && one.taint == entry.taint
        };
        self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(|(one, other)| same(one, other))
    }

    /// Returns the resources to publish: one pool with the name of the node.
    pub(crate) fn resources(&self, node: &str) -> DriverResources {
        let devices = self.entries.iter().map(|(name, entry)| entry.published(name));
        let pool = Pool { devices_per_slice: Some(DEVICES_PER_SLICE), ..Pool::default() }.devices(devices);
        DriverResources::default().pool(node, pool)
    }
}

impl Entry {
    fn published(&self, name: &str) -> PublishedDevice {
        let mut device =
            PublishedDevice { attributes: Attributes::clone(&self.attributes), ..PublishedDevice::new(name) };
        if let Some(share) = self.mode.share() {
            let one = Quantity("1".to_owned());
            let policy = CapacityRequestPolicy {
                default: Some(one.clone()),
                valid_values: Some(vec![one]),
                ..CapacityRequestPolicy::default()
            };
            let capacity = Capacity::from(share.max.to_string()).request_policy(policy);
            device = device.allow_multiple_allocations().capacity(SHARES, capacity);
        }
        match self.taint {
            None => device,
            Some(taint) => device.taint(taint.key(), "", taint.effect()),
        }
    }
}
