//! Opaque parameters of device classes and claims for this driver.
//!
//! ```yaml
//! config:
//! - requests: [fast]
//!   opaque:
//!     driver: net.drakkar.dev
//!     parameters:
//!       apiVersion: net.drakkar.dev/v1alpha1
//!       kind: ClaimConfig
//!       interfaceName: data0
//!       mtu: 9000
//!       addresses: [192.0.2.10/24]
//!       routes:
//!       - {destination: 198.51.100.0/24, gateway: 192.0.2.1}
//! ```
//!
//! Parameters are read in two phases. [`parse`](ClaimConfig::parse) accepts known fields of the right form, each value within the
//! kernel's limits, and nothing else. [`validate`](ClaimConfig::validate) checks what several fields say together, on the parameters
//! that apply to a device: those of the claim over those of its class over those of the device's rule ([`Merged`]). Both
//! report everything that is wrong at once, each error with the path of its field.
//!
//! A field that is not set overrides nothing; a list overrides as a whole. `addresses` and `addressRanges` override each other,
//! and so do `macvlan`, `ipvlan` and `vlan`: a claim with static addresses does not also get one from the range of its class.
//!
//! This module is all that the `drakkar` command needs of this crate: it has no async, no Kubernetes client and no netlink.

mod documents;
mod fields;
mod merge;
#[cfg(feature = "driver")]
mod of_claim;
mod parse;
mod range;
mod sysctl;
#[cfg(test)]
mod tests;
mod validate;
mod values;
mod words;

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use self::documents::{Checked, check_document};
pub use self::merge::{Layer, Merged};
#[cfg(feature = "driver")]
pub use self::of_claim::ClaimConfigError;
pub use self::sysctl::{PLACEHOLDER, Sysctl};
pub use self::values::{AddressRange, Family, InterfaceName, Ipvlan, MacAddress, Macvlan, Route, Rule, Vlan};
pub use self::words::{
    DeviceDriver, DuplicateDetection, IpvlanFlag, IpvlanMode, MacvlanMode, RouteScope, VlanProtocol,
};

/// The version of the parameters.
pub const API_VERSION: &str = "net.drakkar.dev/v1alpha1";
/// The kind of the parameters.
pub const KIND: &str = "ClaimConfig";
/// The most addresses of a device: what the API server takes in `networkData.ips`.
pub const MAX_ADDRESSES: usize = 16;

/// What a class, a claim or a rule asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClaimConfig {
    /// The name of the interface in the pod. By default the name that it has on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// The MTU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<MacAddress>,
    /// Static addresses with prefix lengths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<IpNet>>,
    /// Ranges of which the interface gets one address each. They are of this node: nodes do not share a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_ranges: Option<Vec<AddressRange>>,
    /// How is looked for other hosts that have one of the addresses. Quick by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate_detection: Option<DuplicateDetection>,
    /// Routes through the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routes: Option<Vec<Route>>,
    /// Policy routing rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<Rule>>,
    /// Kernel settings of the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysctls: Option<BTreeMap<Sysctl, i64>>,
    /// Gives the pod a macvlan interface on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macvlan: Option<Macvlan>,
    /// Gives the pod an ipvlan interface on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipvlan: Option<Ipvlan>,
    /// Gives the pod a VLAN interface on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// Moves the device's RDMA device along, for this pod alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma_exclusive: Option<bool>,
    /// The driver of the device: that of the kernel, or one for programs in user space (DPDK).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<DeviceDriver>,
}

/// A field that is wrong: where, what, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldError {
    /// The path of the field, such as `config[0].opaque.parameters.routes[1].gateway`.
    pub path: String,
    /// What is wrong with it, and what is right.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

impl ClaimConfig {
    /// Reads parameters. `path` is where they are, for the errors; all that are found are returned.
    pub fn parse(value: &serde_json::Value, path: &str) -> Result<Self, Vec<FieldError>> {
        parse::document(value, path)
    }

    /// Checks what several fields say together. Returns all errors, with paths relative to the parameters.
    pub fn validate(&self) -> Vec<FieldError> {
        validate::validate(self)
    }

    /// Returns whether programs in user space drive the device, so that there is no interface.
    pub fn is_userspace(&self) -> bool {
        self.driver.is_some_and(DeviceDriver::is_userspace)
    }

    /// Returns whether the pod gets an interface of its own on top of the device, which stays on the host.
    pub fn has_child(&self) -> bool {
        self.macvlan.is_some() || self.ipvlan.is_some() || self.vlan.is_some()
    }
}
