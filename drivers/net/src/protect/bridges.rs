//! The interfaces of the network of pods and containers.

use drakkar_netlink::LinkKind;

use crate::inventory::{HostInterface, Inventory};

/// The names that container engines and network plugins give their interfaces. One that ends with `*` is a beginning.
const NAMES: [&str; 26] = [
    "docker*",
    "cni*",
    "cbr0",
    "podman*",
    "lxc*",
    "lxd*",
    "virbr*",
    "kube-*",
    "nodelocaldns",
    "flannel*",
    "cali*",
    "vxlan.calico",
    "wireguard.cali",
    "tunl0",
    "cilium_*",
    "weave*",
    "vethwe*",
    "antrea-*",
    "ovn-*",
    "ovs-*",
    "genev_sys*",
    "vxlan_sys*",
    "gre_sys*",
    "nerdctl*",
    "kindnet*",
    "azv*",
];

/// Returns how it is known that an interface belongs to the network of pods.
pub(super) fn pod_network(inventory: &Inventory, interface: &HostInterface) -> Option<String> {
    let name = interface.link.name.as_str();
    let pattern = NAMES.into_iter().find(|pattern| is_named(name, pattern));
    let pattern = pattern.or_else(|| is_docker_network(name).then_some("br-ID"));
    // No network plugin makes a device.
    if let Some(pattern) = pattern.filter(|_| interface.link.kind != LinkKind::Device) {
        return Some(format!("its name is of the form {pattern}"));
    }
    if interface.link.kind != LinkKind::Bridge {
        return None;
    }
    let is_member = |other: &&HostInterface| other.link.master == Some(interface.link.index) && other.is_of_pod();
    let member = inventory.interfaces.values().find(is_member)?;
    Some(format!("{}, whose other end is in another network namespace, is part of it", member.link.name))
}

fn is_named(name: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

/// Returns whether a name is that of a bridge that Docker makes for a network: `br-` and the beginning of the network's id.
fn is_docker_network(name: &str) -> bool {
    let id = name.strip_prefix("br-").filter(|id| id.len() == 12);
    id.is_some_and(|id| id.bytes().all(|letter| letter.is_ascii_hexdigit()))
}
