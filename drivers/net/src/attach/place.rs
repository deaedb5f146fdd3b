//! Finds the interface on the host, and puts it or one on top of it into the pod.

use drakkar_netlink::{Child, Link, LinkChange, LinkKind, NewLink, NewLinkKind};

use super::error::AttachFailure;
use super::former::Attachment;
use super::plan::InterfacePlan;
use crate::kernel::Network;
use crate::restore::locate;

/// Finds the interface of a plan on the host.
pub(super) fn find_on_host(host: &mut Network, plan: &InterfacePlan) -> Result<Link, AttachFailure> {
    // An interface that is shared by others has no mark.
    let mark = if plan.child.is_some() { None } else { Some(plan.mark.as_str()) };
    let found = locate::on_host(host, mark, &plan.host)?;
    found.ok_or_else(|| AttachFailure::NotFound(Box::new(plan.host.clone())))
}

/// Moves the interface into the pod, unless it is there already. Returns it as it is there.
pub(super) fn move_to_pod(
    host: &mut Network,
    pod: &mut Network,
    attachment: &Attachment,
) -> Result<Link, AttachFailure> {
    let Attachment { plan, name, .. } = attachment;
    if let Some(link) = locate::in_pod(pod, attachment)? {
        return adjust(pod, link, attachment);
    }
    let link = find_on_host(host, plan)?;
    // First of all: with the mark it is found wherever the kernel puts it, whatever its name and index are there.
    if link.alias.as_deref() != Some(&plan.mark) {
        host.change_link(&link, &LinkChange { alias: Some(&plan.mark), ..LinkChange::default() })?;
    }
    let change = LinkChange {
        name: Some(name),
        mtu: plan.mtu,
        address: plan.hardware_address.as_ref(),
        ..LinkChange::default()
    };
    host.move_link(&link, pod, &change)?;
    let link = pod.link_by_name(name)?.filter(|link| link.alias.as_deref() == Some(&plan.mark));
    link.ok_or_else(|| vanished(pod, attachment))
}

/// Makes the interface on top of another, unless it is there already. Returns it.
pub(super) fn make_child(
    host: &mut Network,
    pod: &mut Network,
    attachment: &Attachment,
    child: Child,
) -> Result<Link, AttachFailure> {
    let Attachment { plan, name, .. } = attachment;
    let parent = find_on_host(host, plan)?;
    if let Some(link) = pod.link_by_name(name)? {
        let is_ours = is_child(&link, child, parent.index);
        return if is_ours {
            adjust(pod, link, attachment)
        } else {
            Err(AttachFailure::NameTaken { name: name.clone() })
        };
    }
    if !parent.is_up {
        host.change_link(&parent, &LinkChange { up: Some(true), ..LinkChange::default() })?;
    }
    let kind = NewLinkKind::Child { parent: parent.index, child };
    let new = NewLink { mtu: plan.mtu, address: plan.hardware_address.as_ref(), ..NewLink::new(name, kind) };
    host.create_link_in(pod, &new)?;
    let link = pod.link_by_name(name)?.ok_or_else(|| vanished(pod, attachment))?;
    adjust(pod, link, attachment)
}

/// Returns whether an interface in a pod is on top of an interface of the host, and of the kind that was asked for.
pub(crate) fn is_child(link: &Link, child: Child, parent: u32) -> bool {
    let is_kind = match (&link.kind, child) {
        (LinkKind::Vlan { id }, Child::Vlan { id: wanted, .. }) => *id == wanted,
        (LinkKind::Macvlan { .. }, Child::Macvlan { .. }) | (LinkKind::Ipvlan { .. }, Child::Ipvlan { .. }) => true,
        _ => false,
    };
    is_kind && link.parent.is_some_and(|link| link.index == parent)
}

/// Makes an interface in the pod have name, MTU, hardware address and mark. Does nothing if it has.
fn adjust(pod: &mut Network, link: Link, attachment: &Attachment) -> Result<Link, AttachFailure> {
    let Attachment { plan, name, .. } = attachment;
    let address = plan.hardware_address.as_ref();
    let change = LinkChange {
        name: (link.name != *name).then_some(name.as_str()),
        mtu: plan.mtu.filter(|mtu| *mtu != link.mtu),
        address: address.filter(|address| link.address.as_ref() != Some(*address)),
        alias: (link.alias.as_deref() != Some(&plan.mark)).then_some(plan.mark.as_str()),
        ..LinkChange::default()
    };
    let needs_change =
        change.name.is_some() || change.mtu.is_some() || change.address.is_some() || change.alias.is_some();
    if !needs_change {
        return Ok(link);
    }
    // Older kernels rename, and some drivers set an address, only while it is down.
    let needs_down = link.is_up && (change.name.is_some() || change.address.is_some());
    if needs_down {
        pod.change_link(&link, &LinkChange { up: Some(false), ..LinkChange::default() })?;
    }
    pod.change_link(&link, &change)?;
    pod.link(link.index)?.ok_or_else(|| vanished(pod, attachment))
}

fn vanished(pod: &Network, attachment: &Attachment) -> AttachFailure {
    AttachFailure::Vanished { name: attachment.name.clone(), namespace: pod.path().to_owned() }
}
