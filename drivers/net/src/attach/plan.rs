//! What a device shall be in a pod, in the kernel's terms: the claim's parameters after every choice has been made.

use std::collections::BTreeMap;

use drakkar_netlink::rdma::Guid;
use drakkar_netlink::{Child, HardwareAddress, NewAddress, NewRoute, NewRule};
use serde::{Deserialize, Serialize};

use super::identity::Identity;
use crate::claim_config::DuplicateDetection;

/// What a device of a claim shall be in the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfacePlan {
    /// The text by which the interface is found again wherever it is: `drakkar/{claim UID}/{device}`, with a share id if there
    /// is one. It is the interface's alias while it is attached, and unique on the node.
    pub mark: String,
    /// The interface on the host.
    pub host: Identity,
    /// The interface on top of it that the pod gets. `None` moves the interface itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Child>,
    /// The name in the pod. One that ends with `%d` gets the lowest free number there.
    pub name: String,
    /// The MTU, if it is to be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The hardware address, if it is to be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_address: Option<HardwareAddress>,
    /// The addresses. Duplicate address detection is waited for where it is not switched off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NewAddress>,
    /// How is looked for other hosts that have an IPv4 address.
    #[serde(default)]
    pub duplicate_detection: DuplicateDetection,
    /// The routes. Those without an interface go over this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<NewRoute>,
    /// The rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<NewRule>,
    /// Settings, by their paths below `/proc/sys` with `IFNAME` as the interface's directory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// The RDMA device that moves along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaIdentity>,
}

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RdmaIdentity {
    /// The name, such as `mlx5_0`.
    pub name: String,
    /// The GUID of the node.
    pub node_guid: Guid,
}

/// The directory in the path of a setting that stands for the interface.
pub const PLACEHOLDER: &str = "IFNAME";
/// The end of a name that stands for a number.
const NUMBER: &str = "%d";
/// The numbers that are tried for a name.
const NUMBERS: u32 = 1000;

impl InterfacePlan {
    /// Chooses the name in the pod. `None` if it is taken there.
    pub(crate) fn choose_name(&self, is_taken: impl Fn(&str) -> bool) -> Option<String> {
        match self.name.strip_suffix(NUMBER) {
            None => Some(self.name.clone()).filter(|name| !is_taken(name)),
            Some(stem) => (0..NUMBERS).map(|number| format!("{stem}{number}")).find(|name| !is_taken(name)),
        }
    }

    /// Returns the settings of the interface under its name.
    pub(crate) fn settings_of(&self, name: &str) -> Vec<(String, String)> {
        let path = |path: &String| {
            let parts: Vec<&str> = path.split('/').map(|part| if part == PLACEHOLDER { name } else { part }).collect();
            parts.join("/")
        };
        self.settings.iter().map(|(key, value)| (path(key), value.clone())).collect()
    }
}
