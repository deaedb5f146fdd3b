//! What an interface was before it was attached. It is in the journal before anything is changed.

use std::path::PathBuf;

use drakkar_netlink::{AddressScope, HardwareAddress, Link, NamespaceId, NewAddress, NewRoute, Result, RouteType};
use serde::{Deserialize, Serialize};

use super::identity::Identity;
use super::plan::InterfacePlan;
use crate::kernel::Network;

/// The origins of routes that somebody configured: "boot", which is what tools without an origin of their own have, and
/// "static". Those of routers, DHCP clients and routing daemons come back by themselves.
const CONFIGURED: [u8; 2] = [3, 4];

/// An attachment: what is to be done for a device of a claim, where, and what was before. A journal record holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// What the device shall be.
    pub plan: InterfacePlan,
    /// The name in the pod.
    pub name: String,
    /// The pod's network namespace.
    pub namespace: PodNamespace,
    /// The index in the pod, once it is known. A program there can give any interface the mark, and none the index of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// What the interface was. `None` for an interface on top of another, which did not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<Former>,
}

/// The network namespace of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNamespace {
    /// The path.
    pub path: PathBuf,
    /// The identity, by which another namespace at the same path is recognized.
    pub id: NamespaceId,
}

/// What an interface was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Former {
    /// What it is recognized by, with its former name and index.
    #[serde(flatten)]
    pub identity: Identity,
    /// The alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The alternative names. `None`: it was recorded by an earlier version, which did not read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alt_names: Option<Vec<String>>,
    /// The MTU.
    pub mtu: u32,
    /// The hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_address: Option<HardwareAddress>,
    /// Whether it was up.
    pub is_up: bool,
    /// The index of the bridge, bond or VRF that it belonged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<u32>,
    /// The configured addresses. Those with a lifetime, and the kernel's own link-local ones, come back by themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NewAddress>,
    /// The configured routes over it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<NewRoute>,
}

impl Former {
    /// Reads what an interface on the host is.
    pub(crate) fn read(host: &mut Network, link: &Link) -> Result<Self> {
        let mut addresses = host.addresses_of(link.index)?;
        addresses.retain(|address| {
            let is_automatic = address.address.addr().is_ipv6() && address.scope == AddressScope::Link;
            address.is_permanent && !is_automatic
        });
        let mut routes = host.routes_of(link.index)?;
        routes.retain(|route| {
            CONFIGURED.contains(&route.protocol) && route.kind == RouteType::Unicast && route.next_hops.is_empty()
        });
        Ok(Self {
            identity: Identity::from(link),
            alias: link.alias.clone(),
            alt_names: Some(link.alt_names.clone()),
            mtu: link.mtu,
            hardware_address: link.address.clone(),
            is_up: link.is_up,
            master: link.master,
            addresses: addresses.iter().map(NewAddress::from).collect(),
            routes: routes.iter().map(NewRoute::from).collect(),
        })
    }

    /// Returns the alternative names of the interface that it did not have.
    pub(crate) fn foreign_alt_names(&self, link: &Link) -> Vec<String> {
        let Some(former) = &self.alt_names else { return Vec::new() };
        link.alt_names.iter().filter(|name| !former.contains(name)).cloned().collect()
    }
}
