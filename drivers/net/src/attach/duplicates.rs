//! Looks for other hosts that have an address of the plan, before the pod uses it.
//!
//! | detection | IPv4 | IPv6 |
//! |---|---|---|
//! | off | none | none |
//! | quick | one ARP probe, 3 ms for an answer | the kernel's, with three questions of 100 ms |
//! | full | three ARP probes, 100 ms for an answer to each | as quick |
//!
//! An answer within one network segment takes well below a millisecond. Without a carrier nobody can be asked, and the addresses are
//! as good as the carrier is.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use drakkar_netlink::{ConflictMonitor, ConflictProtocol, DadState, Errno, Link, NewAddress};

use super::Limits;
use super::error::{AttachFailure, Holder};
use super::plan::InterfacePlan;
use crate::claim_config::DuplicateDetection;
use crate::kernel::Network;

/// The time for an answer to the only probe of the quick detection.
const QUICK: Duration = Duration::from_millis(3);
/// The probes of the full detection.
const FULL_PROBES: u32 = 3;
/// The time for an answer to each of them.
const FULL: Duration = Duration::from_millis(100);

/// Asks other hosts for the IPv4 addresses that are about to be added. The interface is up.
pub(super) fn probe(
    pod: &mut Network,
    link: &Link,
    missing: &[&NewAddress],
    plan: &InterfacePlan,
    limits: &Limits,
) -> Result<(), AttachFailure> {
    let (probes, wait) = match plan.duplicate_detection {
        DuplicateDetection::Off => return Ok(()),
        DuplicateDetection::Quick => (1, QUICK),
        DuplicateDetection::Full => (FULL_PROBES, FULL),
    };
    let addresses = missing.iter().filter_map(|address| match address.address.addr() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    let addresses: Vec<Ipv4Addr> = addresses.collect();
    let Some(first) = addresses.first().copied() else { return Ok(()) };
    if !has_carrier(pod, link)? {
        return Ok(());
    }
    let mut monitor = match pod.monitor_conflicts(link, ConflictProtocol::Arp) {
        Ok(Some(monitor)) => monitor,
        Ok(None) => return Ok(()),
        Err(error) if error.errno() == Some(Errno::PERM) => {
            if plan.duplicate_detection == DuplicateDetection::Full {
                return Err(AttachFailure::NotAsked { address: first.into() });
            }
            tracing::warn!(
                interface = link.name,
                "addresses not probed for duplicates, which needs the capability NET_RAW"
            );
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    for _ in 0..probes {
        let until = Instant::now() + limits.arp.unwrap_or(wait);
        let until = limits.deadline.map_or(until, |deadline| until.min(deadline));
        if let Some(conflict) = pod.probe(&mut monitor, &addresses, until)? {
            let holder = Holder::OtherHost(Some(conflict.hardware_address));
            return Err(AttachFailure::AddressTaken { address: conflict.address, holder });
        }
    }
    Ok(())
}

/// Listens to the answers to the kernel's duplicate address detection, which says whether it failed but not because of whom. `None` if
/// there is nothing to detect, or no permission to listen.
pub(super) fn watch_dad(
    pod: &mut Network,
    link: &Link,
    missing: &[&NewAddress],
) -> Result<Option<ConflictMonitor>, AttachFailure> {
    if !missing.iter().any(|address| is_detected(address)) {
        return Ok(None);
    }
    match pod.monitor_conflicts(link, ConflictProtocol::NeighborDiscovery) {
        Err(error) if error.errno() == Some(Errno::PERM) => Ok(None),
        monitor => Ok(monitor?),
    }
}

/// Waits for the kernel's duplicate address detection of the plan's IPv6 addresses.
pub(super) fn wait_for_dad(
    pod: &mut Network,
    link: &Link,
    plan: &InterfacePlan,
    limits: &Limits,
    answers: Option<ConflictMonitor>,
) -> Result<(), AttachFailure> {
    if !has_carrier(pod, link)? {
        return Ok(());
    }
    let until = Instant::now() + limits.dad;
    let until = limits.deadline.map_or(until, |deadline| until.min(deadline));
    for found in pod.wait_for_dad(link.index, until)? {
        let address = found.address.addr();
        let is_planned = plan.addresses.iter().any(|planned| planned.address == found.address);
        match found.dad {
            DadState::Failed if is_planned => {
                // What was received before the kernel failed is in the socket already.
                let conflict = answers.map(|mut answers| answers.wait(&[address], Instant::now())).transpose()?;
                let holder = Holder::OtherHost(conflict.flatten().map(|conflict| conflict.hardware_address));
                return Err(AttachFailure::AddressTaken { address, holder });
            }
            DadState::Tentative if is_planned => return Err(AttachFailure::AddressUndecided { address }),
            _ => {}
        }
    }
    Ok(())
}

/// Returns whether the kernel looks for duplicates of an address.
pub(super) fn is_detected(address: &NewAddress) -> bool {
    address.address.addr().is_ipv6() && !address.no_dad
}

fn has_carrier(pod: &mut Network, link: &Link) -> Result<bool, AttachFailure> {
    Ok(pod.link(link.index)?.is_some_and(|link| link.carrier != Some(false)))
}
