//! Configures an interface in a pod, and reads back what came out of it.

use drakkar_netlink::rdma::Mode;
use drakkar_netlink::{Link, LinkChange, NewAddress, NewRoute};

use super::duplicates::{self, is_detected};
use super::error::{AttachFailure, Holder};
use super::plan::InterfacePlan;
use super::{Attached, Limits};
use crate::kernel::Network;

/// The settings with which duplicate address detection is over within a pod's deadline, each below the interface's directory.
///
/// By default it takes one to two seconds: a random delay, one question, and a second for the answer. With these there is no delay,
/// three questions, and 100 ms for the answer to each.
const QUICK_DAD: [(&str, &str, &str); 3] = [
    ("net/ipv6/conf", "router_solicitation_delay", "0"),
    ("net/ipv6/conf", "dad_transmits", "3"),
    ("net/ipv6/neigh", "retrans_time_ms", "100"),
];

/// Checks that no other interface of the pod has one of the addresses. The kernel would accept it.
pub(super) fn check_addresses(pod: &mut Network, links: &[Link], plan: &InterfacePlan) -> Result<(), AttachFailure> {
    if plan.addresses.is_empty() {
        return Ok(());
    }
    for present in pod.addresses()? {
        let address = present.address.addr();
        if plan.addresses.iter().any(|planned| planned.address.addr() == address) {
            let name = links.iter().find(|link| link.index == present.index).map(|link| link.name.clone());
            let holder = Holder::Interface(name.unwrap_or_else(|| present.index.to_string()));
            return Err(AttachFailure::AddressTaken { address, holder });
        }
    }
    Ok(())
}

/// Does what is missing: settings, up, addresses, routes and rules.
pub(super) fn configure(
    pod: &mut Network,
    link: &Link,
    plan: &InterfacePlan,
    limits: &Limits,
) -> Result<(), AttachFailure> {
    let name = &link.name;
    let mut settings = Vec::new();
    if plan.addresses.iter().any(is_ipv6) {
        // Runtimes switch IPv6 off in pods of clusters without it. The claim asks for it on this interface.
        settings.push((format!("net/ipv6/conf/{name}/disable_ipv6"), "0".to_owned()));
    }
    let mut former_of_dad = Vec::new();
    if plan.addresses.iter().any(is_detected) {
        let of_dad = quick_dad(name);
        former_of_dad = pod.settings(&of_dad)?;
        settings.extend(of_dad);
    }
    settings.extend(plan.settings_of(name));
    pod.set_settings(&settings)?;

    if !link.is_up {
        pod.change_link(link, &LinkChange { up: Some(true), ..LinkChange::default() })?;
    }
    let present = pod.addresses_of(link.index)?;
    let is_missing = |address: &&NewAddress| !present.iter().any(|present| present.address == address.address);
    let missing: Vec<&NewAddress> = plan.addresses.iter().filter(is_missing).collect();
    duplicates::probe(pod, link, &missing, plan, limits)?;
    let answers = duplicates::watch_dad(pod, link, &missing)?;
    for address in missing {
        pod.add_address(link, address)?;
    }
    if plan.addresses.iter().any(is_detected) {
        duplicates::wait_for_dad(pod, link, plan, limits, answers)?;
        former_of_dad.extend(plan.settings_of(name));
        pod.set_settings(&former_of_dad)?;
    }
    add_routes(pod, link, plan)?;
    for rule in &plan.rules {
        match pod.add_rule(rule) {
            Err(error) if error.already_exists() => {}
            result => result?,
        }
    }
    Ok(())
}

/// Adds routes, first those that others need to reach their routers.
fn add_routes(pod: &mut Network, link: &Link, plan: &InterfacePlan) -> Result<(), AttachFailure> {
    let (direct, routed): (Vec<&NewRoute>, Vec<&NewRoute>) =
        plan.routes.iter().partition(|route| route.gateway.is_none());
    for route in direct.into_iter().chain(routed) {
        let route = NewRoute { interface: route.interface.or(Some(link.index)), ..route.clone() };
        match pod.add_route(&route) {
            Err(error) if error.already_exists() => {
                let present = pod.routes_of(link.index)?;
                let is_ours = present.iter().any(|present| {
                    (present.destination, present.table, present.gateway)
                        == (route.destination.trunc(), route.table, route.gateway)
                });
                if !is_ours {
                    return Err(AttachFailure::RouteTaken { destination: route.destination, table: route.table });
                }
            }
            result => result?,
        }
    }
    Ok(())
}

/// Moves the RDMA device of the plan into the pod, unless it is there already.
pub(super) fn move_rdma(host: &Network, pod: &Network, plan: &InterfacePlan) -> Result<(), AttachFailure> {
    let Some(wanted) = &plan.rdma else { return Ok(()) };
    let failed = |problem| AttachFailure::Rdma { name: wanted.name.clone(), problem };
    let mut of_host = host.rdma()?.ok_or_else(|| failed("this kernel has no RDMA"))?;
    if of_host.mode()? == Mode::Shared {
        return Err(failed(
            "every pod sees it, because the node's RDMA subsystem is in shared mode: set exclusive mode (rdma system set netns exclusive)",
        ));
    }
    let mut in_pod = pod.rdma()?.ok_or_else(|| failed("this kernel has no RDMA"))?;
    if in_pod.devices()?.iter().any(|device| device.node_guid == wanted.node_guid) {
        return Ok(());
    }
    let devices = of_host.devices()?;
    let device = devices.iter().find(|device| device.node_guid == wanted.node_guid);
    let device =
        device.ok_or_else(|| failed("it is not on the host: it was removed, or is in another network namespace"))?;
    Ok(of_host.move_to(device, pod)?)
}

/// Reads the interface as the kernel has it.
pub(super) fn read_back(pod: &mut Network, link: &Link, plan: &InterfacePlan) -> Result<Attached, AttachFailure> {
    let found = pod.link(link.index)?.filter(|found| found.alias.as_deref() == Some(&plan.mark));
    let Some(found) = found else {
        return Err(AttachFailure::Vanished { name: link.name.clone(), namespace: pod.path().to_owned() });
    };
    let addresses = pod.addresses_of(found.index)?;
    Ok(Attached {
        name: found.name,
        index: found.index,
        hardware_address: found.address,
        mtu: found.mtu,
        carrier: found.carrier,
        addresses,
    })
}

fn is_ipv6(address: &NewAddress) -> bool {
    address.address.addr().is_ipv6()
}

fn quick_dad(name: &str) -> Vec<(String, String)> {
    let setting = |(tree, setting, value)| (format!("{tree}/{name}/{setting}"), String::from(value));
    QUICK_DAD.map(setting).to_vec()
}
