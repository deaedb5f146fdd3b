//! Finds an interface wherever it is, whatever its name and index are there.

use drakkar_netlink::{HardwareAddress, Link, Result};

use crate::attach::{Attachment, Former, Identity};
use crate::kernel::Network;

/// Finds an interface on the host: by a mark, else by its device, else under its former index and name.
///
/// A mark counts only on an interface of the same kind and device: a program in a pod can give any interface any alias, and the kernel
/// brings devices back with the alias of the pod. The first look is at its former index, so that the number of interfaces of a host does not matter where nothing has moved.
pub(crate) fn on_host(host: &mut Network, mark: Option<&str>, identity: &Identity) -> Result<Option<Link>> {
    let is_marked = |link: &Link| mark.is_some() && link.alias.as_deref() == mark && identity.is_like(link);
    let former = host.link(identity.index)?;
    if let Some(link) = former.as_ref().filter(|link| is_marked(link) || identity.is_on_host(link)) {
        return Ok(Some(link.clone()));
    }
    let mut links = host.links()?;
    let found = links.iter().position(is_marked);
    let found = found.or_else(|| links.iter().position(|link| identity.is_device_of(link)));
    Ok(found.map(|index| links.swap_remove(index)))
}

/// Finds an interface that was moved on the host: as [`on_host`], else by its device with the hardware address that it got for
/// the pod, else under its former index or name with its former hardware address.
///
/// The last is how a virtual interface is recognized that was brought back without its name or index.
pub(crate) fn former_on_host(host: &mut Network, attachment: &Attachment, former: &Former) -> Result<Option<Link>> {
    let found = on_host(host, Some(&attachment.plan.mark), &former.identity)?;
    if found.is_some() {
        return Ok(found);
    }
    let links = host.links()?;
    let identity = &former.identity;
    let has_address = |link: &Link| {
        let is_known = link.address.is_some() && link.address == former.hardware_address;
        is_known && link.kind.name() == identity.kind && link.device == identity.device
    };
    let is_it = |link: &&Link| {
        is_changed_device(attachment, link)
            || (has_address(link) && (link.index == identity.index || link.name == identity.name))
    };
    Ok(links.iter().find(is_it).cloned())
}

/// Finds the interface of an attachment in the pod: by its index there, else by its mark, as on the host, else by its device.
///
/// Of several with the mark, it is the one with the hardware address that the interface had in the pod.
pub(crate) fn in_pod(pod: &mut Network, attachment: &Attachment) -> Result<Option<Link>> {
    let mark = attachment.plan.mark.as_str();
    let mut links = pod.links()?;
    let is_like = |link: &Link| attachment.former.as_ref().is_none_or(|former| former.identity.is_like(link));
    let is_marked = |link: &Link| link.alias.as_deref() == Some(mark) && is_like(link);
    let address = attachment.former.as_ref().and_then(|former| expected_address(attachment, former));
    let has_index = |link: &Link| attachment.index == Some(link.index) && is_like(link);
    let has_address = |link: &Link| address.is_some() && link.address.as_ref() == address && is_marked(link);
    let found = links.iter().position(has_index);
    let found = found.or_else(|| links.iter().position(has_address));
    let found = found.or_else(|| links.iter().position(is_marked));
    let found = found.or_else(|| {
        let former = attachment.former.as_ref()?;
        let is_it = |link: &Link| former.identity.is_device_of(link) || is_changed_device(attachment, link);
        links.iter().position(is_it)
    });
    Ok(found.map(|index| links.swap_remove(index)))
}

/// Returns whether an interface that [`in_pod`] has found is the one of the attachment, whatever is on the host. A virtual one with another
/// alias or index may be one that the pod has made since the interface came back.
pub(super) fn is_certain(attachment: &Attachment, link: &Link) -> bool {
    let is_marked = link.alias.as_deref() == Some(&attachment.plan.mark);
    link.device.is_some() || (is_marked && attachment.index.is_none_or(|index| index == link.index))
}

/// Finds a virtual interface in the pod whose mark was taken away, by its kind and hardware address. For one that is not on the host.
pub(super) fn unmarked_in_pod(pod: &mut Network, attachment: &Attachment, former: &Former) -> Result<Option<Link>> {
    let address = expected_address(attachment, former);
    let links = pod.links()?.into_iter();
    let mut found = links.filter(|link| former.identity.is_like(link) && link.address.as_ref() == address);
    Ok(found.next().filter(|_| address.is_some()))
}

/// Returns the hardware address that an interface got for the pod.
fn expected_address<'a>(attachment: &'a Attachment, former: &'a Former) -> Option<&'a HardwareAddress> {
    attachment.plan.hardware_address.as_ref().or(former.hardware_address.as_ref())
}

/// Returns whether an interface is of the same device, with the hardware address that it got for the pod as its permanent one: some
/// drivers of virtual functions take the current address for the permanent one.
fn is_changed_device(attachment: &Attachment, link: &Link) -> bool {
    let device = attachment.former.as_ref().and_then(|former| former.identity.device.as_ref());
    let address = attachment.plan.hardware_address.as_ref();
    device.is_some()
        && address.is_some()
        && link.device.as_ref() == device
        && link.permanent_address.as_ref() == address
}
