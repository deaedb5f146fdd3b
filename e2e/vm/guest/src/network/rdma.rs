//! RDMA: `rdma_rxe` on a card, listed with its interface, in both modes, and moved in exclusive mode, by hand and for a claim.

use anyhow::{Context, Result, bail, ensure};
use drakkar_net::attach::{InterfacePlan, RdmaIdentity};
use drakkar_net::restore::Outcome;
use drakkar_netlink::Errno;
use drakkar_netlink::rdma::{Mode, Rdma};

use serde_json::json;

use super::Network;
use super::attach::{back, plan, same, to_pod};
use super::iproute::Iproute;
use crate::ensure_eq;
use crate::guest::{Guest, modprobe, wait};

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let iproute = Iproute::new()?;
    let mut host = Network::host()?;
    ensure_eq!(Rdma::open(&host.namespace)?.is_some(), false, "no module of RDMA is loaded");
    modprobe("crc32_generic")?;
    modprobe("rdma_rxe")?;
    let card = host.device(guest.address("nic0")?)?;
    host.set_up(&card)?;
    iproute.run(&host.namespace, &format!("rdma link add rxe0 type rxe netdev {}", card.name))?;
    let mut rdma = Rdma::open(&host.namespace)?.context("RDMA")?;
    ensure_eq!(rdma.mode()?, Mode::Shared);
    let devices = rdma.devices()?;
    let [device] = &devices[..] else { bail!("{devices:?}") };
    let seen = &iproute.list(&host.namespace, "rdma -j -d dev")?[0];
    ensure_eq!((json!(device.index), json!(device.name)), (seen["ifindex"].clone(), seen["ifname"].clone()));
    ensure_eq!(
        (json!(device.protocol), json!(device.node_guid.to_string())),
        (seen["protocol"].clone(), seen["node_guid"].clone())
    );
    let ports = rdma.ports(device)?;
    let [port] = &ports[..] else { bail!("{ports:?}") };
    ensure_eq!(
        (port.number, port.interface, port.interface_name.as_deref()),
        (1, Some(card.index), Some(card.name.as_str()))
    );
    ensure_eq!(port.is_active, true);
    ensure_eq!(rdma.device(device.index)?.as_ref(), Some(device));
    ensure_eq!(rdma.device(device.index + 1)?, None);

    // Shared: every namespace sees it, with its interface where that is.
    let pod = Network::new()?;
    let mut inside = Rdma::open(&pod.namespace)?.context("RDMA")?;
    ensure_eq!(inside.devices()?, devices);
    let port = &inside.ports(device)?[0];
    println!("in another namespace: {port:?}");
    ensure_eq!((port.interface, port.interface_name.as_deref()), (None, None));
    let refused = rdma.move_to(device, &pod.namespace).err().context("shared mode")?;
    println!("a move in shared mode: {refused}");
    ensure_eq!(refused.errno(), Some(Errno::OPNOTSUPP));
    drop(inside);

    println!("a claim that wants it exclusively, in shared mode");
    let plan = InterfacePlan {
        rdma: Some(RdmaIdentity { name: device.name.clone(), node_guid: device.node_guid }),
        ..plan(&card, None, 1)?
    };
    let before = host.state()?;
    let refused = to_pod(plan.clone(), &pod).err().context("shared mode")?;
    println!("{refused:#}");
    ensure!(format!("{refused:#}").contains("rdma system set netns exclusive"), "{refused:#}");
    same(&mut host, &before, "after shared mode")?;
    drop(pod);

    // Exclusive: only one namespace sees it. The mode changes as long as there is no other namespace.
    let mut last = String::new();
    let exclusive = wait("exclusive mode", || {
        let outcome = iproute.run(&host.namespace, "rdma system set netns exclusive");
        last = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        Ok(outcome.is_ok())
    });
    exclusive.with_context(|| last)?;
    ensure_eq!(rdma.mode()?, Mode::Exclusive);
    let pod = Network::new()?;
    let mut inside = Rdma::open(&pod.namespace)?.context("RDMA")?;
    ensure_eq!((inside.mode()?, inside.devices()?, inside.device(device.index)?), (Mode::Exclusive, vec![], None));
    rdma.move_to(device, &pod.namespace)?;
    ensure_eq!((rdma.devices()?, inside.devices()?), (vec![], devices.clone()));
    inside.move_to(device, &host.namespace)?;
    ensure_eq!((rdma.devices()?, inside.devices()?), (devices.clone(), vec![]));
    drop(inside);

    println!("a claim that wants it exclusively, in exclusive mode");
    let (attachment, attached) = to_pod(plan.clone(), &pod)?;
    let mut inside = Rdma::open(&pod.namespace)?.context("RDMA")?;
    ensure_eq!((rdma.devices()?, inside.devices()?), (vec![], devices.clone()));
    let port = &inside.ports(device)?[0];
    ensure_eq!((port.interface, port.interface_name.as_deref()), (Some(attached.index), Some("net1")));
    drop(inside);
    ensure_eq!(back(&attachment)?, Outcome::OnHost(card.name.clone()));
    ensure_eq!(rdma.devices()?, devices);
    same(&mut host, &before, "after exclusive mode")?;

    println!("and its pod vanishes");
    let (attachment, _) = to_pod(plan, &pod)?;
    drop(pod);
    ensure_eq!(back(&attachment)?, Outcome::OnHost(card.name.clone()));
    wait("the RDMA device to return", || Ok(rdma.devices()? == devices))?;
    ensure_eq!(rdma.ports(device)?[0].interface, Some(host.link(&card.name)?.index));
    same(&mut host, &before, "after the pod is gone")
}
