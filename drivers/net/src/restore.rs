//! Brings a device of a claim back to the host, from wherever attach, a crash or the kernel left it.
//!
//! All that this needs is the [`Attachment`] and the kernel's state. It can be called at any time and any number of times: before
//! the first step of an attach, after any of them, after the pod's namespace is gone, and again after it has succeeded.
//!
//! - An interface that was moved is looked for in the pod and on the host, by the claim's mark and by its device. It gets its
//!   former name, alternative names, index, MTU, hardware address, master, addresses, state and routes back, and its alias last: as long
//!   as anything is missing it has the mark. An alias is the pod's to change, so an interface of another kind or device is never taken
//!   for it, and a virtual one is found by its index in the pod first, without the mark also by its hardware address.
//! - When a namespace ends, the kernel moves devices to the host under the pod's name, or as `dev{index}` if that is taken, and
//!   deletes virtual interfaces. The first is repaired, the second is reported as [`Outcome::Lost`].
//! - An interface on top of another is deleted.

mod bring_back;
pub(crate) mod locate;
mod repair;

use std::fmt;
use std::time::{Duration, Instant};

use drakkar_netlink::rdma::Mode;
use drakkar_netlink::{LinkChange, Result};

use crate::attach::{Attachment, Identity, is_child};
use crate::kernel::{Kernel, Network};

/// What became of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Where it is.
    pub outcome: Outcome,
    /// What failed and may succeed later. A later restore tries again, as long as the attachment is in the journal.
    pub problems: Vec<String>,
    /// What is not as it was and stays so: the kernel refuses it, or another interface has the name.
    pub differences: Vec<String>,
}

/// Where a device is after a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is on the host, under this name.
    OnHost(String),
    /// The interface on top of another is deleted, or was never made.
    Deleted,
    /// It is neither in the pod nor on the host. The kernel may still be ending the namespace: try again.
    NotFound,
    /// It does not exist any more: it was deleted, as the kernel does it with virtual interfaces when their namespace ends, or
    /// its device was removed. There is nothing to restore.
    Lost(String),
}

impl Restored {
    /// An outcome without anything to complain about.
    pub fn new(outcome: Outcome) -> Self {
        Self { outcome, problems: Vec::new(), differences: Vec::new() }
    }

    /// Returns whether nothing is left to be done, so that the attachment can be removed from the journal.
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty() && self.outcome != Outcome::NotFound
    }
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::OnHost(name) => write!(f, "interface {name} is on the host")?,
            Outcome::Deleted => f.write_str("the pod's interface is deleted")?,
            Outcome::NotFound => {
                f.write_str("the interface is neither in the pod's network namespace nor on the host")?;
            }
            Outcome::Lost(reason) => f.write_str(reason)?,
        }
        self.problems.iter().chain(&self.differences).try_for_each(|text| write!(f, "; {text}"))
    }
}

/// Brings a device back to the host.
///
/// An error is a call that failed and may succeed later; what was done up to it stays done.
pub fn restore(kernel: &Kernel, attachment: &Attachment) -> Result<Restored> {
    let mut host = kernel.host(None)?;
    let mut pod = kernel.pod_if_there(&attachment.namespace.path, attachment.namespace.id)?;
    // What fails here does not keep the interface in the pod.
    let mut problems = Vec::new();
    if let Some(pod) = &mut pod {
        problems.extend(restore_rdma(&host, pod, attachment).err().map(|error| error.to_string()));
        let rules = attachment.plan.rules.iter();
        let failed = rules.filter_map(|rule| ignore_missing(pod.delete_rule(rule)).err());
        problems.extend(failed.map(|error| error.to_string()));
    }
    let Some(former) = &attachment.former else {
        if let Some(pod) = &mut pod {
            delete_child(pod, attachment)?;
        }
        return Ok(Restored { problems, ..Restored::new(Outcome::Deleted) });
    };
    let mut in_pod = match &mut pod {
        Some(pod) => locate::in_pod(pod, attachment)?,
        None => None,
    };
    let is_certain = in_pod.as_ref().is_some_and(|link| locate::is_certain(attachment, link));
    if let Some(pod) = &mut pod
        && !is_certain
    {
        in_pod = match (locate::former_on_host(&mut host, attachment, former)?, in_pod) {
            (Some(_), _) => None,
            (None, Some(link)) => Some(link),
            (None, None) => locate::unmarked_in_pod(pod, attachment, former)?,
        };
        let mark = attachment.plan.mark.as_str();
        if let Some(link) = in_pod.as_ref().filter(|link| link.alias.as_deref() != Some(mark)) {
            // From here on it is found wherever it is, again.
            pod.change_link(link, &LinkChange { alias: Some(mark), ..LinkChange::default() })?;
            in_pod = pod.link(link.index)?;
        }
    }
    if let (Some(pod), Some(link)) = (&mut pod, in_pod) {
        bring_back::bring_back(&mut host, pod, &link, former)?;
    }
    if let Some(link) = locate::former_on_host(&mut host, attachment, former)? {
        return repair::repair(&mut host, link, former, problems);
    }
    Ok(Restored { problems, ..Restored::new(missing(kernel, pod.is_some(), &former.identity)) })
}

/// Returns what became of an interface that is neither in the pod nor on the host.
fn missing(kernel: &Kernel, is_pod_there: bool, identity: &Identity) -> Outcome {
    let kind = &identity.kind;
    match &identity.device {
        Some(device) if !kernel.has_device(device) => {
            Outcome::Lost(format!("{identity} is gone: the device was removed from the machine"))
        }
        _ if kind.is_empty() => Outcome::NotFound,
        _ if is_pod_there => {
            Outcome::Lost(format!("{identity} was deleted while it was in the pod: it has to be made again"))
        }
        _ => Outcome::Lost(format!(
            "{identity} was deleted with the pod's network namespace, as the kernel does it with a {kind}: it has to be made again"
        )),
    }
}

/// Brings a device back to the host, and waits for the kernel to end the pod's namespace if it is still in there.
///
/// Runtimes may end the namespace before a driver hears of it, and the kernel takes its time. Returns what
/// [`restore`] returns at last.
pub fn restore_within(kernel: &Kernel, attachment: &Attachment, limit: Duration) -> Result<Restored> {
    let deadline = Instant::now() + limit;
    // Before the first look, so that an interface that comes back in between is noticed.
    let mut monitor = kernel.host(None)?.monitor()?;
    loop {
        let restored = restore(kernel, attachment)?;
        let remaining = deadline.saturating_duration_since(Instant::now());
        if restored.outcome != Outcome::NotFound || remaining.is_zero() {
            return Ok(restored);
        }
        monitor.wait(remaining)?;
    }
}

/// Deletes the interface on top of another. One that is gone is not an error.
fn delete_child(pod: &mut Network, attachment: &Attachment) -> Result<()> {
    let Some(child) = attachment.plan.child else { return Ok(()) };
    let Some(link) = pod.link_by_name(&attachment.name)? else { return Ok(()) };
    let is_ours =
        link.alias.as_deref() == Some(&attachment.plan.mark) || is_child(&link, child, attachment.plan.host.index);
    if !is_ours {
        return Ok(());
    }
    ignore_missing(pod.delete_link(&link))
}

/// Moves the RDMA device back, before its interface. The kernel does the same when the namespace ends.
fn restore_rdma(host: &Network, pod: &Network, attachment: &Attachment) -> Result<()> {
    let Some(wanted) = &attachment.plan.rdma else { return Ok(()) };
    let Some(mut rdma) = pod.rdma()? else { return Ok(()) };
    if rdma.mode()? == Mode::Shared {
        return Ok(());
    }
    match rdma.devices()?.iter().find(|device| device.node_guid == wanted.node_guid) {
        Some(device) => rdma.move_to(device, host),
        None => Ok(()),
    }
}

fn ignore_missing(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}
