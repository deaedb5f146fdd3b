//! Networks and the interfaces that connect to them.

use serde::Deserialize;

use super::{ClaimRequest, domain::object_present, null_as_default};

/// An entry of `spec.networks`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Network {
    /// The name, which an interface repeats.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// Whether the network is the pod's: the object is present.
    #[serde(deserialize_with = "object_present")]
    pub pod: bool,
    /// A network of Multus.
    pub multus: Option<MultusNetwork>,
    /// A device of a claim.
    pub resource_claim: Option<ClaimRequest>,
}

/// `spec.networks[].multus`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MultusNetwork {
    /// The `NetworkAttachmentDefinition`.
    #[serde(deserialize_with = "null_as_default")]
    pub network_name: String,
    /// Whether the network is the default one.
    #[serde(deserialize_with = "null_as_default")]
    pub default: bool,
}

/// An entry of `spec.domain.devices.interfaces`. Exactly one of the bindings is to be present.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// The name of the network.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// Binding `bridge`.
    #[serde(deserialize_with = "object_present")]
    pub bridge: bool,
    /// Binding `masquerade`.
    #[serde(deserialize_with = "object_present")]
    pub masquerade: bool,
    /// Binding `sriov`.
    #[serde(deserialize_with = "object_present")]
    pub sriov: bool,
    /// Binding `slirp`, which KubeVirt no longer supports.
    #[serde(deserialize_with = "object_present")]
    pub slirp: bool,
    /// Binding `macvtap`, which KubeVirt no longer supports.
    #[serde(deserialize_with = "object_present")]
    pub macvtap: bool,
    /// Binding `passt`, which KubeVirt no longer supports.
    #[serde(deserialize_with = "object_present")]
    pub passt: bool,
    /// Binding `passtBinding`.
    #[serde(deserialize_with = "object_present")]
    pub passt_binding: bool,
    /// A binding plugin.
    #[serde(deserialize_with = "object_present")]
    pub binding: bool,
    /// The order in which the guest tries to boot.
    pub boot_order: Option<u32>,
    /// The address in the guest.
    #[serde(deserialize_with = "null_as_default")]
    pub pci_address: String,
    /// The hardware address in the guest.
    #[serde(deserialize_with = "null_as_default")]
    pub mac_address: String,
    /// The interface's state: empty, `up`, `down` or `absent`.
    #[serde(deserialize_with = "null_as_default")]
    pub state: String,
}

impl Interface {
    /// How many bindings the interface has; one is right. The bindings that KubeVirt no longer supports do not count.
    #[must_use]
    pub fn bindings(&self) -> usize {
        [self.bridge, self.masquerade, self.sriov, self.passt_binding, self.binding]
            .into_iter()
            .filter(|&present| present)
            .count()
    }
}
