//! Puts a device of a claim into a pod's network namespace: moved or made, renamed and configured.
//!
//! The order, which makes a crash between any two calls harmless:
//!
//! 1. [`Attachment::inspect`] only reads: what the interface is, whether name and addresses are free in the pod.
//! 2. The caller writes the [`Attachment`] to the journal. From here on everything can be taken back by it alone.
//! 3. [`attach`] marks the interface on the host (its alias becomes the claim's mark), moves it with name, MTU and hardware
//!    address in one request, and configures it in the pod: settings, up, addresses that no other host has, routes, rules, RDMA device.
//! 4. [`attach`] reads it back. What is reported is what the kernel has, not what was asked for.
//!
//! Each step looks first and does what is missing. If one fails, what was done is taken back with
//! [`restore`], which needs nothing but the attachment and the kernel's state. An interface on top of
//! another (macvlan, ipvlan, VLAN) is made directly in the pod's namespace; its parent stays where it is, but is set up if it was down,
//! because nothing gets through a parent that is down, and it stays up, because others may be on it.

mod configure;
mod duplicates;
mod error;
mod former;
mod identity;
mod place;
mod plan;
#[cfg(test)]
pub(crate) mod tests;

use std::path::Path;
use std::time::{Duration, Instant};

use drakkar_netlink::{Address, AddressScope, HardwareAddress};
use ipnet::IpNet;

pub use self::error::{AttachError, AttachFailure, Holder};
pub use self::former::{Attachment, Former, PodNamespace};
pub use self::identity::Identity;
pub(crate) use self::place::is_child;
pub use self::plan::{InterfacePlan, PLACEHOLDER, RdmaIdentity};
use crate::kernel::Kernel;
use crate::restore::{Outcome, restore};

/// The time limits of an attach.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The moment at which nothing more is begun, and what was done is taken back.
    pub deadline: Option<Instant>,
    /// The time for duplicate address detection of IPv6.
    pub dad: Duration,
    /// The time to wait for the answer to an ARP probe, instead of the one that the plan's detection has.
    pub arp: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { deadline: None, dad: Duration::from_secs(1), arp: None }
    }
}

/// An attached interface, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The name in the pod.
    pub name: String,
    /// The index in the pod.
    pub index: u32,
    /// The hardware address.
    pub hardware_address: Option<HardwareAddress>,
    /// The MTU.
    pub mtu: u32,
    /// Whether there is a carrier.
    pub carrier: Option<bool>,
    /// All addresses, the kernel's own link-local ones among them.
    pub addresses: Vec<Address>,
}

impl Attached {
    /// Returns the addresses that are valid beyond the link, for network data.
    pub fn ips(&self) -> Vec<IpNet> {
        let global = self.addresses.iter().filter(|address| address.scope != AddressScope::Link);
        global.map(|address| address.address).collect()
    }
}

impl Attachment {
    /// Looks at the interface and the pod, changes nothing, and returns what has to be in the journal before [`attach`].
    pub fn inspect(
        kernel: &Kernel,
        mut plan: InterfacePlan,
        namespace: &Path,
        limits: &Limits,
    ) -> Result<Self, AttachFailure> {
        let mut host = kernel.host(limits.deadline)?;
        let mut pod = kernel.pod(namespace, limits.deadline)?;
        if pod.id() == host.id() {
            return Err(AttachFailure::HostNamespace { path: namespace.to_owned() });
        }
        let link = place::find_on_host(&mut host, &plan)?;
        // As it is now: its index may have changed since it was published.
        plan.host = Identity::from(&link);
        let former = if plan.child.is_some() { None } else { Some(Former::read(&mut host, &link)?) };
        let links = pod.links()?;
        let is_taken =
            |name: &str| links.iter().any(|link| link.name == name || link.alt_names.iter().any(|alt| alt == name));
        let name = plan.choose_name(is_taken).ok_or_else(|| AttachFailure::NameTaken { name: plan.name.clone() })?;
        configure::check_addresses(&mut pod, &links, &plan)?;
        let namespace = PodNamespace { path: namespace.to_owned(), id: pod.id() };
        Ok(Self { plan, name, namespace, index: None, former })
    }
}

/// Attaches a device. The attachment is in the journal already.
///
/// If this fails, everything is as it was, or the error says what is not.
pub fn attach(kernel: &Kernel, attachment: &Attachment, limits: &Limits) -> Result<Attached, AttachError> {
    let cause = match try_attach(kernel, attachment, limits) {
        Ok(attached) => return Ok(attached),
        Err(cause) => cause,
    };
    let is_missing = matches!(cause, AttachFailure::NotFound(_));
    let undo = match restore(kernel, attachment) {
        // What was not there before the first step cannot be brought back.
        Ok(restored) if restored.is_complete() || (is_missing && restored.outcome == Outcome::NotFound) => None,
        Ok(restored) => Some(restored.to_string()),
        Err(error) => Some(error.to_string()),
    };
    Err(AttachError { cause, undo })
}

fn try_attach(kernel: &Kernel, attachment: &Attachment, limits: &Limits) -> Result<Attached, AttachFailure> {
    let mut host = kernel.host(limits.deadline)?;
    let mut pod = kernel.pod(&attachment.namespace.path, limits.deadline)?;
    let link = match attachment.plan.child {
        Some(child) => place::make_child(&mut host, &mut pod, attachment, child)?,
        None => place::move_to_pod(&mut host, &mut pod, attachment)?,
    };
    configure::configure(&mut pod, &link, &attachment.plan, limits)?;
    configure::move_rdma(&host, &pod, &attachment.plan)?;
    configure::read_back(&mut pod, &link, &attachment.plan)
}
