//! Makes an interface on the host what it was.
//!
//! It does what is missing, and what cannot be done does not keep the rest from being done: an interface with another
//! hardware address is better than one without addresses. The alias comes last, and only if nothing is left to be tried
//! again: as long as it has the mark, it is found.

use std::time::{Duration, Instant};

use drakkar_netlink::{DadState, Errno, Link, LinkChange, NewAddress, NewRoute, Result};

use crate::attach::Former;
use crate::kernel::Network;
use crate::restore::{Outcome, Restored};

/// The answers with which the kernel refuses a change for good. Trying again does not help.
const REFUSED: [Errno; 6] =
    [Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP, Errno::INVAL, Errno::ADDRNOTAVAIL, Errno::NOTUNIQ];

/// The time for duplicate address detection of addresses that routes have as their source. The kernel takes up to two seconds.
const DAD: Duration = Duration::from_secs(3);

/// What could not be done.
#[derive(Debug, Default)]
struct Findings {
    /// What may succeed later.
    problems: Vec<String>,
    /// What stays as it is.
    differences: Vec<String>,
}

/// Repairs an interface on the host. What has failed before may succeed later, too.
pub(super) fn repair(host: &mut Network, link: Link, former: &Former, problems: Vec<String>) -> Result<Restored> {
    let mut findings = Findings { problems, ..Findings::default() };
    let link = restore_link(host, link, former, &mut findings)?;
    restore_alt_names(host, &link, former, &mut findings);
    restore_master(host, &link, former, &mut findings)?;
    restore_addresses(host, &link, former, &mut findings)?;
    if link.is_up != former.is_up {
        note(host.change_link(&link, &LinkChange { up: Some(former.is_up), ..LinkChange::default() }), &mut findings);
    }
    restore_routes(host, &link, former, &mut findings)?;
    if findings.problems.is_empty() && link.alias != former.alias {
        let alias = former.alias.as_deref().unwrap_or_default();
        note(host.change_link(&link, &LinkChange { alias: Some(alias), ..LinkChange::default() }), &mut findings);
    }
    let Findings { problems, differences } = findings;
    for difference in &differences {
        tracing::warn!(interface = link.name, difference, "interface is not as it was");
    }
    Ok(Restored { outcome: Outcome::OnHost(link.name), problems, differences })
}

/// Restores name, MTU and hardware address.
fn restore_link(host: &mut Network, link: Link, former: &Former, findings: &mut Findings) -> Result<Link> {
    let wanted = former.identity.name.as_str();
    let mut name = (link.name != wanted).then_some(wanted);
    if name.is_some() && host.link_by_name(wanted)?.is_some() {
        findings.differences.push(format!(
            "interface {} cannot have its former name {wanted}, which another interface has now: rename that one",
            link.name
        ));
        name = None;
    }
    let address = former.hardware_address.as_ref().filter(|address| link.address.as_ref() != Some(*address));
    let mtu = (link.mtu != former.mtu).then_some(former.mtu);
    let mut changes = Vec::new();
    changes.extend(name.map(|name| LinkChange { name: Some(name), ..LinkChange::default() }));
    changes.extend(address.map(|address| LinkChange { address: Some(address), ..LinkChange::default() }));
    changes.extend(mtu.map(|mtu| LinkChange { mtu: Some(mtu), ..LinkChange::default() }));
    if changes.is_empty() {
        return Ok(link);
    }
    // Older kernels rename, and some drivers set an address, only while it is down.
    if link.is_up {
        note(host.change_link(&link, &LinkChange { up: Some(false), ..LinkChange::default() }), findings);
    }
    for change in &changes {
        note(host.change_link(&link, change), findings);
    }
    Ok(host.link(link.index)?.unwrap_or(link))
}

/// Restores the alternative names. The kernel brings an interface back with those of the pod.
fn restore_alt_names(host: &mut Network, link: &Link, former: &Former, findings: &mut Findings) {
    let foreign = former.foreign_alt_names(link);
    if !foreign.is_empty() {
        note(host.delete_alt_names(link, &foreign), findings);
    }
    let missing = former.alt_names.iter().flatten().filter(|name| !link.alt_names.contains(name));
    for name in missing {
        match host.add_alt_name(link, name) {
            // Another interface has it now.
            Err(error) if error.already_exists() => findings.differences.push(error.to_string()),
            result => note(result, findings),
        }
    }
}

fn restore_master(host: &mut Network, link: &Link, former: &Former, findings: &mut Findings) -> Result<()> {
    let Some(master) = former.master.filter(|master| link.master != Some(*master)) else { return Ok(()) };
    if host.link(master)?.is_some() {
        note(host.change_link(link, &LinkChange { master: Some(master), ..LinkChange::default() }), findings);
    } else {
        tracing::warn!(interface = link.name, master, "the former master is gone, left without one");
    }
    Ok(())
}

fn restore_addresses(host: &mut Network, link: &Link, former: &Former, findings: &mut Findings) -> Result<()> {
    if former.addresses.is_empty() {
        return Ok(());
    }
    let present = host.addresses_of(link.index)?;
    for address in &former.addresses {
        let is_present =
            present.iter().any(|present| (present.address, present.peer) == (address.address, address.peer));
        if !is_present {
            // A label begins with the name, which may be another one now.
            let label = address.label.clone().filter(|label| label.starts_with(&link.name));
            note(host.add_address(link, &NewAddress { label, ..address.clone() }), findings);
        }
    }
    Ok(())
}

fn restore_routes(host: &mut Network, link: &Link, former: &Former, findings: &mut Findings) -> Result<()> {
    if former.routes.is_empty() {
        return Ok(());
    }
    let present = host.routes_of(link.index)?;
    let is_missing = |route: &&NewRoute| {
        !present.iter().any(|present| {
            (present.destination, present.table, present.gateway, present.metric.unwrap_or(0))
                == (route.destination, route.table, route.gateway, route.metric.unwrap_or(0))
        })
    };
    // First those that others need to reach their routers.
    let (direct, routed): (Vec<&NewRoute>, Vec<&NewRoute>) =
        former.routes.iter().filter(is_missing).partition(|route| route.gateway.is_none());
    let missing: Vec<&NewRoute> = direct.into_iter().chain(routed).collect();
    // The kernel refuses a source that it has just got back, as it does one that it does not have.
    let needs_source = missing.iter().any(|route| route.source.is_some_and(|source| source.is_ipv6()));
    let addresses = if needs_source { host.wait_for_dad(link.index, Instant::now() + DAD)? } else { Vec::new() };
    let is_tentative = |route: &NewRoute| {
        let mut tentative = addresses.iter().filter(|address| address.dad == DadState::Tentative);
        tentative.any(|address| Some(address.address.addr()) == route.source)
    };
    for route in missing {
        match host.add_route(&NewRoute { interface: Some(link.index), ..route.clone() }) {
            // Without a carrier it stays so.
            Err(error)
                if is_tentative(route) && host.link(link.index)?.is_some_and(|link| link.carrier != Some(false)) =>
            {
                findings.problems.push(error.to_string());
            }
            result => note(result, findings),
        }
    }
    Ok(())
}

/// Notes a failure. What is there already is none.
fn note(result: Result<()>, findings: &mut Findings) {
    let Err(error) = result else { return };
    if error.already_exists() {
        return;
    }
    let is_refused = error.errno().is_some_and(|errno| REFUSED.contains(&errno));
    let list = if is_refused { &mut findings.differences } else { &mut findings.problems };
    list.push(error.to_string());
}
