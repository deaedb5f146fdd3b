//! Refusals: the interfaces that are not published although a rule matches them, each with its reason.
//!
//! An interface that the host or its pods need is published only if the rule has its name in `allow`: the way out (default routes
//! of all tables), the node's addresses, what those depend on, the cables and bridges of pods, tunnels, what belongs to a bridge or
//! bond, and what somebody has routed over it. What the kernel cannot do is refused whatever the rule says.
//!
//! An interface that is shared stays on the host. So what depends on it, and what is routed over it, is no reason to refuse it.
//!
//! Netlink has all tables and all next hops, and reports their changes. So the routes are not those of
//! [`HostUse`](drakkar_sysfs::HostUse), which reads files that have neither.

mod bridges;
mod functions;
mod host_needs;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use drakkar_netlink::LinkKind;
use drakkar_sysfs::PciAddress;

pub(crate) use self::functions::refuse_function;
pub(crate) use self::host_needs::HostNeeds;
use crate::config::{Mode, Rule, ShareKind};
use crate::inventory::{HostInterface, Inventory};

/// The link layer type of Ethernet (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;

/// The reason why an interface is not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is the loopback interface.
    #[error("it is the loopback interface, which every network namespace has for itself")]
    Loopback,
    /// The host's way out goes over it.
    #[error("the host's default route ({destination} in table {table}) goes over it; {}", allow(.name))]
    DefaultRoute {
        /// The interface.
        name: String,
        /// The destination of the route.
        destination: String,
        /// The table of the route.
        table: u32,
    },
    /// It has an address of the node.
    #[error("it has the node's address {address}; {}", allow(.name))]
    NodeAddress {
        /// The interface.
        name: String,
        /// The address.
        address: IpAddr,
    },
    /// An interface that the host needs depends on it, or it depends on one.
    #[error("it is {relation} {other}, which the host needs: {reason}; {}", allow(.name))]
    Related {
        /// The interface.
        name: String,
        /// How it is related.
        relation: &'static str,
        /// The interface that the host needs.
        other: String,
        /// Why the host needs that one.
        reason: String,
    },
    /// A bridge, a bond or the like has it.
    #[error("it is part of {master}, which would lose it; {}", allow(.name))]
    Member {
        /// The interface.
        name: String,
        /// What it is part of.
        master: String,
    },
    /// A shared interface must not be part of another.
    #[error("it is part of {master}, so nothing can be made on top of it: share {master} instead")]
    MemberShared {
        /// What it is part of.
        master: String,
    },
    /// It is the host's end of a pod's cable.
    #[error("its other end is in another network namespace: it is the cable of a pod; {}", allow(.name))]
    OfPod {
        /// The interface.
        name: String,
    },
    /// It belongs to the network of pods.
    #[error("it belongs to the network of pods or containers: {reason}; {}", allow(.name))]
    PodNetwork {
        /// The interface.
        name: String,
        /// How that is known.
        reason: String,
    },
    /// It is a tunnel.
    #[error("it is a tunnel ({kind}), whose packets other interfaces carry; {}", allow(.name))]
    Tunnel {
        /// The interface.
        name: String,
        /// The kind of the tunnel.
        kind: String,
    },
    /// Somebody has configured a route over it.
    #[error("the host's route to {destination} goes over it and would be lost; {}", allow(.name))]
    Route {
        /// The interface.
        name: String,
        /// The destination of the route.
        destination: String,
    },
    /// It stands for a function in the switch of a card.
    #[error("it is the representor {port} of a function in the card's switch, which the host switches by; {}", allow(.name))]
    Representor {
        /// The interface.
        name: String,
        /// The name of the port.
        port: String,
    },
    /// The kernel cannot move it.
    #[error("the kernel does not move a {kind} to another network namespace: share it (share: {{kind: macvlan}})")]
    Fixed {
        /// The kind of the interface.
        kind: String,
    },
    /// Nothing can be made on top of it.
    #[error("nothing can be made on top of it: a {kind} interface needs an Ethernet interface, and this is a {of}")]
    NotEthernet {
        /// What would be made.
        kind: &'static str,
        /// The kind of the interface.
        of: String,
    },
    /// There is something else on top of it already.
    #[error(
        "{child} is on top of it, a {of}: an interface has macvlan or ipvlan interfaces, not both; set share.kind: {of}"
    )]
    OtherChild {
        /// The interface on top.
        child: String,
        /// Its kind.
        of: &'static str,
    },
    /// It is no PCI function.
    #[error("it has no PCI function that could be bound to vfio-pci: remove mode: dpdk")]
    NoFunction,
    /// A function without an interface cannot be moved or shared.
    #[error("it has no interface on the host ({}): bind it to its kernel driver, or set mode: dpdk", driver_text(.driver.as_deref()))]
    NoInterface {
        /// Its driver.
        driver: Option<String>,
    },
    /// The interface of the function is somewhere else.
    #[error(
        "it is bound to {driver} and has no interface on the host: that is in another network namespace, where somebody uses it"
    )]
    Elsewhere {
        /// Its driver.
        driver: String,
    },
    /// The function cannot be isolated.
    #[error(
        "it has no IOMMU group, so vfio-pci cannot isolate it: enable the IOMMU in the firmware and with intel_iommu=on or \
         amd_iommu=on"
    )]
    NoIommuGroup,
    /// VFIO has made the function's IOMMU group although there is no IOMMU.
    #[error(
        "its IOMMU group {group} has no IOMMU behind it (vfio-noiommu), so it could read and write all memory of the host: enable \
         the IOMMU in the firmware"
    )]
    NoIommu {
        /// The group.
        group: u32,
    },
    /// Another device is in the IOMMU group.
    #[error(
        "its IOMMU group {group} also has {member}, which would be taken from the host with it: enable ACS in the firmware, or \
         publish both with drakkar-pci"
    )]
    GroupShared {
        /// The group.
        group: u32,
        /// The other device.
        member: PciAddress,
    },
    /// A claim holds a device of this name.
    #[error(
        "a claim holds {device}, which has the same name and is another interface: it is published when that claim ends"
    )]
    Held {
        /// The name of the device.
        device: String,
    },
    /// Another interface is published under its name.
    #[error("{other} is published as {device} already: two interfaces of one function cannot be told apart")]
    NameTaken {
        /// The name of the device.
        device: String,
        /// The other interface.
        other: String,
    },
}

fn allow(name: &str) -> String {
    format!("to publish it all the same, add {name} to the rule's allow")
}

fn driver_text(driver: Option<&str>) -> String {
    driver.map_or_else(|| "no driver".to_owned(), |driver| format!("driver {driver}"))
}

impl Refusal {
    /// Returns a short name of the reason, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::DefaultRoute { .. } => "default_route",
            Self::NodeAddress { .. } => "node_address",
            Self::Related { .. } => "related",
            Self::Member { .. } | Self::MemberShared { .. } => "member",
            Self::OfPod { .. } => "pod",
            Self::PodNetwork { .. } => "pod_network",
            Self::Tunnel { .. } => "tunnel",
            Self::Route { .. } => "route",
            Self::Representor { .. } => "representor",
            Self::Fixed { .. } => "fixed",
            Self::NotEthernet { .. } | Self::OtherChild { .. } => "not_shareable",
            Self::NoFunction | Self::NoInterface { .. } => "no_device",
            Self::Elsewhere { .. } => "elsewhere",
            Self::NoIommuGroup | Self::NoIommu { .. } => "no_iommu",
            Self::GroupShared { .. } => "group_shared",
            Self::Held { .. } => "held",
            Self::NameTaken { .. } => "name_taken",
        }
    }
}

/// Returns why an interface must not be handed out by a rule.
pub(crate) fn refuse(
    inventory: &Inventory,
    needs: &HostNeeds,
    interface: &HostInterface,
    rule: &Rule,
) -> Option<Refusal> {
    if interface.link.is_loopback {
        return Some(Refusal::Loopback);
    }
    if let Some(refusal) = impossible(inventory, interface, rule.mode) {
        return Some(refusal);
    }
    if rule.allow.contains(&interface.link.name) {
        return None;
    }
    needed(inventory, needs, interface, rule.mode)
}

/// Returns why the kernel cannot do with an interface what a mode is.
fn impossible(inventory: &Inventory, interface: &HostInterface, mode: Mode) -> Option<Refusal> {
    let kind = inventory.kind(interface);
    match mode {
        Mode::Move => kind.is_fixed().then(|| Refusal::Fixed { kind: kind.to_string() }),
        Mode::Share(share) => unshareable(inventory, interface, share.kind),
        Mode::Dpdk => match inventory.function(interface) {
            Some(device) => functions::isolation(inventory, device),
            None => Some(Refusal::NoFunction),
        },
    }
}

/// Returns why nothing can be made on top of an interface.
fn unshareable(inventory: &Inventory, interface: &HostInterface, kind: ShareKind) -> Option<Refusal> {
    let link = &interface.link;
    let other = match kind {
        ShareKind::Macvlan(_) => "ipvlan",
        ShareKind::Ipvlan(_) => "macvlan",
    };
    if link.layer != ETHERNET || link.kind.name() == "ipvlan" {
        return Some(Refusal::NotEthernet { kind: kind.as_str(), of: inventory.kind(interface).to_string() });
    }
    if let Some(master) = master_of(inventory, interface) {
        return Some(Refusal::MemberShared { master });
    }
    let is_other = |child: &&HostInterface| {
        let is_on_top =
            child.link.parent.is_some_and(|parent| parent.namespace.is_none() && parent.index == link.index);
        is_on_top && child.link.kind.name() == other
    };
    let child = inventory.interfaces.values().find(is_other)?;
    Some(Refusal::OtherChild { child: child.link.name.clone(), of: other })
}

/// Returns why the host or its pods need an interface.
fn needed(inventory: &Inventory, needs: &HostNeeds, interface: &HostInterface, mode: Mode) -> Option<Refusal> {
    let name = interface.link.name.clone();
    let stays = mode.share().is_some();
    if let Some(refusal) = needs.direct(interface) {
        return Some(refusal);
    }
    if let Some(refusal) = needs.related(interface).filter(|_| !stays) {
        return Some(refusal);
    }
    if interface.is_of_pod() {
        return Some(Refusal::OfPod { name });
    }
    if let Some(reason) = bridges::pod_network(inventory, interface) {
        return Some(Refusal::PodNetwork { name, reason });
    }
    let kind = inventory.kind(interface);
    if kind.is_tunnel() {
        return Some(Refusal::Tunnel { name, kind: kind.to_string() });
    }
    if interface.is_representor() {
        let port = interface.device.port_name.clone().unwrap_or_default();
        return Some(Refusal::Representor { name, port });
    }
    if stays {
        return None;
    }
    if let Some(master) = master_of(inventory, interface) {
        return Some(Refusal::Member { name, master });
    }
    let route = interface.routes.first()?;
    Some(Refusal::Route { name, destination: route.destination.to_string() })
}

/// Returns the name of the bridge, bond or the like that has an interface.
fn master_of(inventory: &Inventory, interface: &HostInterface) -> Option<String> {
    let index = interface.link.master?;
    let master = inventory.interfaces.get(&index);
    Some(master.map_or_else(|| format!("the interface with index {index}"), |master| master.link.name.clone()))
}

/// Returns the interface that another is on top of, if both are on the host. The other end of a cable does not count.
pub(crate) fn parent_of<'a>(inventory: &'a Inventory, interface: &HostInterface) -> Option<&'a HostInterface> {
    let parent = interface.link.parent.filter(|parent| parent.namespace.is_none())?;
    if interface.link.kind == LinkKind::Veth { None } else { inventory.interfaces.get(&parent.index) }
}
