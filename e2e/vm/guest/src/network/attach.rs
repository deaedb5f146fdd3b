//! The driver's attach and restore on the real kernel, without Kubernetes: interfaces of each kind go to pods, work there, and
//! everything is as it was afterwards, whatever happens to the driver, the pod and the device in between.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use drakkar_net::attach::{Attached, Attachment, Identity, InterfacePlan, Limits, attach};
use drakkar_net::claim_config::DuplicateDetection;
use drakkar_net::kernel::{Call, Faults, Kernel};
use drakkar_net::restore::{Outcome, restore, restore_within};
use drakkar_netlink::{
    Child, Errno, IpvlanFlag, IpvlanMode, Link, LinkChange, LinkKind, MacvlanMode, NewAddress, NewLinkKind, NewRoute,
    NewRule, VlanProtocol,
};

use super::iproute::Iproute;
use super::traffic::exchange;
use super::{Network, make_functions, modprobe_with};
use crate::ensure_eq;
use crate::guest::{Guest, wait};

/// The host's namespace, for whoever runs in it.
const HOST: &str = "/proc/self/ns/net";
const JOURNAL: &str = "/run/journal.json";
/// The processor is emulated, on a host with other work.
const PATIENCE: Duration = Duration::from_secs(60);
const SIGABRT: i32 = 6;
/// More calls than an attach and a restore make.
const MANY_CALLS: usize = 200;

/// The machine as a node: two cards, two virtual functions and a dummy that was in use.
struct Node {
    host: Network,
    cards: [Link; 2],
    functions: [Link; 2],
    dummy: Link,
}

impl Node {
    fn new(guest: &mut Guest) -> Result<Self> {
        modprobe_with("dummy", &["numdummies=0"])?;
        let mut host = Network::host()?;
        let physical = host.device(guest.address("sriov")?)?;
        host.set_up(&physical)?;
        let cards = [host.device(guest.address("nic0")?)?, host.device(guest.address("nic1")?)?];
        let functions = make_functions(guest, 2)?;
        let functions = [host.device(functions[0])?, host.device(functions[1])?];
        let dummy = host.create("dummy1", NewLinkKind::Dummy)?;
        // What has to come back: an address, a route, an alias, another MTU.
        for (number, link) in [&functions[0], &dummy].into_iter().enumerate() {
            let change = LinkChange { alias: Some("uplink"), mtu: Some(1450), up: Some(true), ..LinkChange::default() };
            host.connection.change_link(link, &change)?;
            host.add(link, &format!("198.18.{number}.1/24"))?;
            let gateway = Some(format!("198.18.{number}.254").parse()?);
            let route = NewRoute::new(format!("198.19.{number}.0/24").parse()?, link.index);
            host.connection.add_route(&NewRoute { gateway, ..route })?;
        }
        Ok(Self { host, cards, functions, dummy })
    }
}

/// What a claim can ask for, all of it.
pub(crate) fn plan(link: &Link, child: Option<Child>, number: u8) -> Result<InterfacePlan> {
    // An ipvlan interface has the hardware address of its parent.
    let has_own_address = !matches!(child, Some(Child::Ipvlan { .. }));
    let rule = NewRule {
        is_ipv6: false,
        priority: Some(100),
        from: Some(format!("192.0.2.{number}/32").parse()?),
        to: None,
        input: None,
        output: None,
        mark: None,
        table: 77,
    };
    let gateway = Some("192.0.2.254".parse()?);
    let route = NewRoute { gateway, table: 77, interface: None, ..NewRoute::new("198.51.100.0/24".parse()?, 0) };
    Ok(InterfacePlan {
        mark: format!("drakkar/claim-{number}/{}", link.name),
        host: Identity::from(link),
        child,
        name: "net1".to_owned(),
        mtu: Some(1400),
        hardware_address: if has_own_address { Some(format!("02:00:5e:10:00:{number:02x}").parse()?) } else { None },
        addresses: vec![
            NewAddress::new(format!("192.0.2.{number}/24").parse()?),
            NewAddress::new(format!("2001:db8::{number}/64").parse()?),
        ],
        duplicate_detection: DuplicateDetection::default(),
        routes: vec![route],
        rules: vec![rule],
        settings: BTreeMap::from([("net/ipv4/conf/IFNAME/arp_ignore".to_owned(), "2".to_owned())]),
        rdma: None,
    })
}

fn limits() -> Limits {
    Limits { dad: PATIENCE, ..Limits::default() }
}

/// Attaches to a pod.
pub(crate) fn to_pod(plan: InterfacePlan, pod: &Network) -> Result<(Attachment, Attached)> {
    let kernel = Kernel::new(HOST);
    let attachment = Attachment::inspect(&kernel, plan, &pod.path(), &limits())?;
    let attached = attach(&kernel, &attachment, &limits())?;
    Ok((attachment, attached))
}

/// Restores; nothing may be left to do.
pub(crate) fn back(attachment: &Attachment) -> Result<Outcome> {
    let restored = restore_within(&Kernel::new(HOST), attachment, PATIENCE)?;
    ensure!(restored.is_complete(), "{restored:?}");
    Ok(restored.outcome)
}

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let iproute = Iproute::new()?;
    let mut node = Node::new(guest)?;
    let [card, other_card] = node.cards.clone();
    let functions = node.functions.clone();
    let ipvlan = |mode| Some(Child::Ipvlan { mode, flag: IpvlanFlag::Bridge });
    let vlan = Some(Child::Vlan { id: 42, protocol: VlanProtocol::Dot1Q });
    let macvlan = Some(Child::Macvlan { mode: MacvlanMode::Bridge });
    let pairs = [
        (&card, ipvlan(IpvlanMode::L2), &card, "two claims share a card by ipvlan, l2"),
        (&card, ipvlan(IpvlanMode::L3s), &card, "two claims share a card by ipvlan, l3s"),
        (&card, macvlan, &card, "two claims share a card by macvlan"),
        (&card, vlan, &other_card, "the same VLAN on two cards"),
        (&functions[0], None, &functions[1], "two virtual functions"),
        (&functions[1], None, &other_card, "a virtual function and a card"),
    ];
    // A parent that was down is up afterwards: others may be on it.
    node.host.set_up(&card)?;
    node.host.set_up(&other_card)?;
    let before = node.host.state()?;
    for (left, child, right, what) in pairs {
        println!("{what}");
        let (mut one, mut two) = (Network::new()?, Network::new()?);
        let empty = one.state()?;
        let (first, attached) = to_pod(plan(left, child, 1)?, &one)?;
        let (second, other) = to_pod(plan(right, child, 2)?, &two)?;
        same_as_iproute(&iproute, &one, &attached)?;
        same_as_iproute(&iproute, &two, &other)?;
        exchange(&one.namespace, "192.0.2.1".parse()?, &two.namespace, "192.0.2.2".parse()?)?;
        exchange(&two.namespace, "2001:db8::2".parse()?, &one.namespace, "2001:db8::1".parse()?)?;
        for (attachment, link) in [(&first, left), (&second, right)] {
            let expected = if child.is_some() { Outcome::Deleted } else { Outcome::OnHost(link.name.clone()) };
            ensure_eq!(back(attachment)?, expected);
            // Once more: nothing to do.
            ensure_eq!(back(attachment)?, expected);
        }
        ensure_eq!((one.state()?, two.state()?), (empty.clone(), empty));
        same(&mut node.host, &before, what)?;
    }
    println!("a dummy");
    let mut pod = Network::new()?;
    let (attachment, attached) = to_pod(plan(&node.dummy, None, 1)?, &pod)?;
    same_as_iproute(&iproute, &pod, &attached)?;
    ensure_eq!(pod.link("net1")?.kind, LinkKind::Dummy);
    ensure_eq!(back(&attachment)?, Outcome::OnHost("dummy1".to_owned()));
    same(&mut node.host, &before, "a dummy")
}

/// What is reported is what `ip -j addr` says in the pod.
fn same_as_iproute(iproute: &Iproute, pod: &Network, attached: &Attached) -> Result<()> {
    let seen = iproute.list(&pod.namespace, &format!("ip -j addr show dev {}", attached.name))?;
    let seen = seen.first().context("the interface")?;
    let addresses = seen["addr_info"].as_array().context("addresses")?.iter();
    let global = addresses.filter(|address| address["scope"] == "global");
    let mut theirs: Vec<String> = global
        .map(|address| format!("{}/{}", address["local"].as_str().unwrap_or_default(), address["prefixlen"]))
        .collect();
    let mut ours: Vec<String> = attached.ips().iter().map(ToString::to_string).collect();
    theirs.sort();
    ours.sort();
    ensure_eq!((ours.len(), &ours), (2, &theirs));
    ensure_eq!(attached.hardware_address.as_ref().map(ToString::to_string).as_deref(), seen["address"].as_str());
    ensure_eq!((u64::from(attached.mtu), attached.mtu), (seen["mtu"].as_u64().unwrap_or_default(), 1400));
    let setting = pod.namespace.setting(&format!("net/ipv4/conf/{}/arp_ignore", attached.name))?;
    ensure_eq!(setting, "2");
    Ok(())
}

pub(crate) fn same(host: &mut Network, before: &str, what: &str) -> Result<()> {
    let now = host.state()?;
    let lines = |text: &str, other: &str| {
        let other: Vec<&str> = other.lines().collect();
        text.lines().filter(|line| !other.contains(line)).collect::<Vec<_>>().join("\n")
    };
    ensure!(
        now == before,
        "{what}: the host is not as it was\nbefore:\n{}\nnow:\n{}",
        lines(before, &now),
        lines(&now, before)
    );
    Ok(())
}

/// Pods and devices that vanish.
pub(crate) fn faults(guest: &mut Guest) -> Result<()> {
    let mut node = Node::new(guest)?;
    let function = node.functions[0].clone();
    let before = node.host.state()?;

    println!("the namespace of a pod with a virtual function is gone");
    let pod = Network::new()?;
    let (attachment, _) = to_pod(plan(&function, None, 1)?, &pod)?;
    drop(pod);
    ensure_eq!(back(&attachment)?, Outcome::OnHost(function.name.clone()));
    same(&mut node.host, &before, "after the namespace is gone")?;

    println!("and its name in the pod is taken on the host");
    let pod = Network::new()?;
    let (attachment, _) = to_pod(plan(&function, None, 1)?, &pod)?;
    let taken = node.host.create("net1", NewLinkKind::Dummy)?;
    drop(pod);
    ensure_eq!(back(&attachment)?, Outcome::OnHost(function.name.clone()));
    node.host.connection.delete_link(&taken)?;
    same(&mut node.host, &before, "after the name was taken")?;

    println!("the kernel gives the interface another index in the pod");
    let mut pod = Network::new()?;
    let names: Vec<_> = (0..10).map(|number| format!("other{number}")).collect();
    for name in &names {
        pod.create(name, NewLinkKind::Dummy)?;
    }
    let (attachment, attached) = to_pod(plan(&function, None, 1)?, &pod)?;
    println!("index {} is {} in the pod", function.index, attached.index);
    ensure!(attached.index != function.index);
    ensure_eq!(back(&attachment)?, Outcome::OnHost(function.name.clone()));
    same(&mut node.host, &before, "after another index")?;

    println!("a VLAN and its pod");
    let pod = Network::new()?;
    let vlan = Some(Child::Vlan { id: 42, protocol: VlanProtocol::Dot1Q });
    let card = node.cards[0].clone();
    let (attachment, _) = to_pod(plan(&card, vlan, 1)?, &pod)?;
    drop(pod);
    ensure_eq!(back(&attachment)?, Outcome::Deleted);
    let card = node.host.link(&card.name)?;
    ensure!(card.is_up, "its parent was set up for it");

    println!("a card of a pod is unplugged");
    let pod = Network::new()?;
    let (attachment, _) = to_pod(plan(&node.cards[1], None, 2)?, &pod)?;
    guest.unplug("nic1")?;
    let Outcome::Lost(reason) = back(&attachment)? else { bail!("it was unplugged") };
    println!("{reason}");
    ensure!(reason.contains("removed from the machine"), "{reason}");

    println!("the virtual functions of a pod are removed");
    let pod = Network::new()?;
    let (attachment, _) = to_pod(plan(&function, None, 1)?, &pod)?;
    let physical = guest.address("sriov")?;
    drakkar_sysfs::set_num_vfs(&guest.sysfs, physical, 0, |_| None)?;
    let Outcome::Lost(reason) = back(&attachment)? else { bail!("it was removed") };
    println!("{reason}");

    println!("a dummy is deleted with its pod");
    let pod = Network::new()?;
    let (attachment, _) = to_pod(plan(&node.dummy, None, 1)?, &pod)?;
    drop(pod);
    wait("the kernel to delete it", || {
        Ok(matches!(restore(&Kernel::new(HOST), &attachment)?.outcome, Outcome::Lost(_)))
    })?;
    let Outcome::Lost(reason) = back(&attachment)? else { bail!("it was deleted") };
    println!("{reason}");
    Ok(())
}

/// A driver that is killed before any of its calls, and the next one that knows only the journal. Every other time the pod's
/// namespace is gone by then, too.
pub(crate) fn kills(guest: &mut Guest) -> Result<()> {
    let mut node = Node::new(guest)?;
    let (card, function) = (node.cards[0].clone(), node.functions[0].clone());
    node.host.set_up(&card)?;
    let ipvlan = Some(Child::Ipvlan { mode: IpvlanMode::L2, flag: IpvlanFlag::Bridge });
    for (link, child, what) in [(&function, None, "a virtual function"), (&card, ipvlan, "an ipvlan interface")] {
        let before = node.host.state()?;
        let mut pod = Network::new()?;
        for call in 0..MANY_CALLS {
            let attachment = Attachment::inspect(&Kernel::new(HOST), plan(link, child, 1)?, &pod.path(), &limits())?;
            fs::write(JOURNAL, serde_json::to_vec(&attachment)?)?;
            let mut driver = Command::new(env::current_exe()?);
            let status = driver.args(["die", "attach", &call.to_string()]).status()?;
            ensure!(status.success() || status.signal() == Some(SIGABRT), "{what}, call {call}: {status}");
            if call % 2 == 1 {
                pod = Network::new()?;
            }
            let attachment: Attachment = serde_json::from_slice(&fs::read(JOURNAL)?)?;
            back(&attachment).with_context(|| format!("{what}, killed before call {call}"))?;
            same(&mut node.host, &before, &format!("{what}, killed before call {call}"))?;
            ensure_eq!(pod.names()?, ["lo"]);
            if status.success() {
                println!("{what}: killed before each of {call} calls");
                ensure!(call > 20, "there are more calls than {call}");
                break;
            }
        }
    }
    Ok(())
}

/// The process that is killed: `die attach NUMBER`.
pub(crate) fn die(number: &str) -> Result<()> {
    let attachment: Attachment = serde_json::from_slice(&fs::read(JOURNAL)?)?;
    let kernel = Kernel::new(HOST).with_faults(Arc::new(Dying(AtomicUsize::new(number.parse()?))));
    attach(&kernel, &attachment, &limits())?;
    let restored = restore(&kernel, &attachment)?;
    ensure!(restored.is_complete(), "{restored:?}");
    Ok(())
}

/// Ends the process before one of its calls.
#[derive(Debug)]
struct Dying(AtomicUsize);

impl Faults for Dying {
    fn before(&self, _: Call) -> Result<(), Errno> {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 0 {
            std::process::abort();
        }
        Ok(())
    }

    fn after(&self, _: Call) -> Result<(), Errno> {
        Ok(())
    }
}
