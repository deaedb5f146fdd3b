//! Moves an interface from a pod to the host.

use drakkar_netlink::{Errno, Link, LinkChange, Result};

use crate::attach::Former;
use crate::kernel::Network;

/// The names that an interface gets whose former name is taken: this, and the first free number.
const FALLBACK: &str = "drakkar";
/// The answers of kernels that cannot give an interface an index.
const INDEX_REFUSED: [Errno; 4] = [Errno::INVAL, Errno::BUSY, Errno::EXIST, Errno::OPNOTSUPP];

/// Moves an interface to the host, under its former name and index if these are free there.
///
/// The kernel moves nothing if the name is taken at the destination, so a free one is chosen before.
pub(super) fn bring_back(host: &mut Network, pod: &mut Network, link: &Link, former: &Former) -> Result<()> {
    let name = if host.link_by_name(&former.identity.name)?.is_none() {
        former.identity.name.clone()
    } else {
        free_name(host, former.identity.index)?
    };
    // The kernel moves nothing whose alternative name is taken at the destination, and a program in the pod can have given it any.
    let foreign = former.foreign_alt_names(link);
    if !foreign.is_empty() {
        pod.delete_alt_names(link, &foreign)?;
    }
    let index = former.identity.index;
    let is_index_free = host.link(index)?.is_none();
    let address = former.hardware_address.as_ref().filter(|address| link.address.as_ref() != Some(*address));
    let change = LinkChange {
        // The kernel keeps the index of the pod if that is free on the host, and the host's own tools may know the former one.
        index: (is_index_free && index != link.index).then_some(index),
        name: Some(&name),
        mtu: (link.mtu != former.mtu).then_some(former.mtu),
        address,
        ..LinkChange::default()
    };
    match pod.move_link(link, host, &change) {
        Ok(()) => Ok(()),
        // A part that the kernel refuses comes after the move. If it is on the host, the repair tells what is missing.
        Err(_) if pod.link(link.index)?.is_none_or(|present| present.alias != link.alias) => Ok(()),
        // Kernels before 5.13 do not know the index, or it was taken a moment ago: without it.
        Err(error) if change.index.is_some() && error.errno().is_some_and(|errno| INDEX_REFUSED.contains(&errno)) => {
            tracing::warn!(%error, interface = link.name, "moving back under the former index failed, trying without it");
            pod.move_link(link, host, &LinkChange { index: None, ..change })
        }
        Err(error) => Err(error),
    }
}

fn free_name(host: &mut Network, first: u32) -> Result<String> {
    let mut number = first;
    loop {
        let name = format!("{FALLBACK}{number}");
        if host.link_by_name(&name)?.is_none() {
            return Ok(name);
        }
        number = number.wrapping_add(1) % 10_000_000;
    }
}
