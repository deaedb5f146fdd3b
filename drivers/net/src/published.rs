//! The seam to what is published: what a prepare has to know of an allocated device.

use std::fmt;

use drakkar_netlink::AddressScope;
use drakkar_plugin::BoxError;
use drakkar_sysfs::PciAddress;
use ipnet::IpNet;

use crate::attach;
use crate::attributes::Attributes;
use crate::claim_config::ClaimConfig;
use crate::config::Mode;
use crate::interfaces::Interfaces;
use crate::inventory::{HostInterface, Identity};

/// A published device, as claims see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    /// How it is recognized by those who publish it.
    pub(crate) identity: Identity,
    /// Its interface on the host. `None`: it has none, or a claim has it.
    pub(crate) interface: Option<attach::Identity>,
    /// The name of its RDMA device.
    pub(crate) rdma: Option<String>,
    /// Its PCI address, if it is a PCI device.
    pub(crate) pci: Option<PciAddress>,
    /// Whether several claims share it.
    pub(crate) is_shared: bool,
    /// The MTU that it has, and those that it can have.
    pub(crate) mtu: Option<MtuLimits>,
    /// The addresses that its interface has on the host and that others can reach.
    pub(crate) addresses: Vec<IpNet>,
    /// What its rule says that claims do not.
    pub(crate) defaults: ClaimConfig,
    /// What is known of it.
    pub(crate) facts: Attributes,
    /// What is published of it.
    pub(crate) attributes: Attributes,
}

/// The MTU of an interface, and those that it can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MtuLimits {
    pub(crate) now: u32,
    pub(crate) min: Option<u32>,
    pub(crate) max: Option<u32>,
}

/// The published devices. All methods block.
pub(crate) trait Published: fmt::Debug + Send + Sync + 'static {
    /// Returns a device, as it is now, for a claim that is about to get it. An error says why it cannot be handed out.
    fn require(&self, device: &str) -> Result<Found, BoxError>;
    /// Takes in that claims have got these devices or given them back.
    fn claims_changed(&self, devices: Vec<String>);
}

impl Published for Interfaces {
    fn require(&self, device: &str) -> Result<Found, BoxError> {
        let published = Self::require(self, device)?;
        let on_host = self.host_interface(device);
        Ok(Found {
            interface: on_host.as_ref().map(|interface| attach::Identity::from(&interface.link)),
            rdma: on_host.as_ref().and_then(|interface| interface.rdma.clone()),
            mtu: on_host.as_ref().map(mtu),
            addresses: on_host.as_ref().map(addresses).unwrap_or_default(),
            identity: published.identity,
            pci: published.pci,
            is_shared: matches!(published.mode, Mode::Share(_)),
            defaults: published.defaults,
            facts: Attributes::clone(&published.facts),
            attributes: Attributes::clone(&published.attributes),
        })
    }

    fn claims_changed(&self, devices: Vec<String>) {
        if let Err(error) = Self::claims_changed(self, devices) {
            tracing::warn!(%error, "interfaces of a claim not read");
        }
    }
}

fn mtu(interface: &HostInterface) -> MtuLimits {
    let link = &interface.link;
    MtuLimits { now: link.mtu, min: link.min_mtu, max: link.max_mtu }
}

/// Returns the addresses that somebody has configured and that others can reach.
fn addresses(interface: &HostInterface) -> Vec<IpNet> {
    let is_configured = |address: &&drakkar_netlink::Address| {
        address.is_permanent && matches!(address.scope, AddressScope::Global | AddressScope::Site)
    };
    interface.addresses.iter().filter(is_configured).map(|address| address.address).collect()
}
