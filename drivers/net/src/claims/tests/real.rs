//! Claims with the parameters that users write, on the kernel of this machine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use drakkar_driver_kit::files::SystemFiles;
use drakkar_metadata::name::ClaimUid;
use drakkar_netlink::{Errno, LinkChange, LinkKind, NewLink, NewLinkKind};
use drakkar_plugin::{BoxError, ClaimRef};
use drakkar_sysfs::PciAddress;
use tempfile::TempDir;

use super::node::retry;
use crate::attach::Identity;
use crate::attach::tests::machine::{Machine, PATIENCE, Place, talk};
use crate::attacher::{PodInterface, Sandbox};
use crate::binder::{Binder, BoundFunction};
use crate::claims::{Claims, Patience, Wanted};
use crate::journal::{Phase, Record};
use crate::kernel::{Call, Faults, Kernel};
use crate::published::Found;

/// No device here is for user space.
#[derive(Debug)]
struct NoBinder;

impl Binder for NoBinder {
    fn bind(&self, _: &ClaimRef, _: &[PciAddress]) -> Result<Vec<BoundFunction>, BoxError> {
        Ok(Vec::new())
    }

    fn release(&self, _: &ClaimUid) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A driver process on a machine. Another one on the same journal is the process after a restart.
pub(crate) fn driver(machine: &Machine, journal: &TempDir) -> Claims {
    driver_on(machine.kernel(), journal)
}

fn driver_on(kernel: Kernel, journal: &TempDir) -> Claims {
    let attacher = Arc::new(kernel);
    let files = Arc::new(SystemFiles);
    let claims =
        Claims::open_with(attacher, Arc::new(NoBinder), journal.path().to_owned(), files, Path::new("/proc")).unwrap();
    let recovery = claims.recover().unwrap();
    assert!(recovery.errors.is_empty() && recovery.problems.is_empty(), "{recovery:?}");
    claims
}

pub(crate) fn claim(name: &str) -> ClaimRef {
    ClaimRef {
        namespace: "default".parse().unwrap(),
        name: name.parse().unwrap(),
        uid: format!("uid-of-{name}").parse().unwrap(),
    }
}

pub(crate) fn wanted(machine: &Machine, interface: &str, config: &str) -> Wanted {
    Wanted {
        request: "net".to_owned(),
        pool: "node-1".to_owned(),
        device: interface.to_owned(),
        share_id: None,
        config: serde_json::from_str(config).unwrap(),
        found: Found {
            interface: Some(Identity::from(&machine.host.link(interface))),
            addresses: vec!["192.0.2.100/24".parse().unwrap(), "2001:db8::100/64".parse().unwrap()],
            ..Found::default()
        },
        rdma: None,
    }
}

fn sandbox(pod: &Place, name: &str) -> Sandbox {
    Sandbox {
        id: format!("sandbox-of-{name}"),
        pod_uid: name.to_owned(),
        pod: format!("default/{name}"),
        namespace: pod.path(),
    }
}

pub(crate) fn attached(records: &[Record]) -> Vec<PodInterface> {
    let interfaces = records.iter().flat_map(Record::interfaces);
    let interfaces = interfaces.filter_map(|interface| match &interface.phase {
        Phase::Attached { interface, .. } => Some(interface.clone()),
        _ => None,
    });
    interfaces.collect()
}

const PATIENT: Patience<'static> = Patience { deadline: None, is_over: &|| false };

#[test]
fn two_pods_talk_over_the_interfaces_of_their_claims_and_a_restart_in_between_changes_nothing() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let journal = tempfile::tempdir().unwrap();
    let claims = driver(&machine, &journal);
    let config = |number: u8| {
        format!(
            r#"{{
                "interfaceName": "data0", "mtu": 1400, "macAddress": "02:00:5e:10:00:0{number}",
                "addresses": ["10.1.0.{number}/24", "fd00::{number}/64"],
                "routes": [{{"destination": "198.51.100.0/24", "gateway": "10.1.0.9", "table": 77, "metric": 5}},
                           {{"destination": "203.0.113.0/24", "scope": "link"}}],
                "rules": [{{"from": "10.1.0.{number}/32", "table": 77, "priority": 100}}, {{"fwmark": 7, "table": 77}}],
                "sysctls": {{"net.ipv4.conf.IFNAME.rp_filter": 2}}
            }}"#
        )
    };
    for (number, (interface, pod)) in [("fast0", "pod-1"), ("fast1", "pod-2")].into_iter().enumerate() {
        let wanted = wanted(&machine, interface, &config(number as u8 + 1));
        claims.prepare(&claim(interface), &[pod.to_owned()], &[wanted]).unwrap();
        let claims = claims.attach(&sandbox(&machine.pods[number], pod), &PATIENT).unwrap();
        let interfaces = attached(&claims.into_iter().map(|claim| claim.record).collect::<Vec<_>>());
        let [interface] = interfaces.as_slice() else { panic!("{interfaces:?}") };
        let (address, mtu, addresses) = machine.pods[number].ip_command("data0");
        assert_eq!(interface.name, "data0");
        assert_eq!(interface.hardware_address.as_ref(), Some(&address));
        assert_eq!(u64::from(interface.mtu), mtu);
        assert_eq!(interface.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), addresses);
    }
    let pod = &machine.pods[0];
    assert_eq!(pod.namespace.setting("net/ipv4/conf/data0/rp_filter").unwrap(), "2");
    assert_eq!(pod.connection().rules().unwrap().iter().filter(|rule| rule.table == Some(77)).count(), 3);
    let routes = pod.connection().routes().unwrap();
    assert!(routes.iter().any(|route| route.table == 77 && route.metric == Some(5)), "{routes:?}");
    talk(&machine.pods[0], "10.1.0.1", &machine.pods[1], "10.1.0.2");

    drop(claims);
    let claims = driver(&machine, &journal);
    assert_eq!(attached(&claims.of_pod("pod-1"))[0].name, "data0");
    talk(&machine.pods[1], "fd00::2", &machine.pods[0], "fd00::1");

    claims.detach("sandbox-of-pod-1").unwrap();
    // The second sandbox is never stopped.
    for interface in ["fast0", "fast1"] {
        claims.unprepare(&claim(interface).uid).unwrap();
    }
    assert_eq!(machine.host.state(), before);
    assert_eq!(std::fs::read_dir(journal.path()).unwrap().count(), 0);
}

#[test]
fn a_parent_is_shared_by_claims_with_macvlan_interfaces() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let journal = tempfile::tempdir().unwrap();
    let claims = driver(&machine, &journal);
    for (number, pod) in ["pod-1", "pod-2"].into_iter().enumerate() {
        let address = number + 1;
        let config = format!(
            r#"{{"interfaceName": "net1", "macvlan": {{"mode": "bridge"}}, "addresses": ["10.1.0.{address}/24"]}}"#
        );
        let share_id = Some(format!("share-{number}"));
        let wanted = Wanted { share_id, ..wanted(&machine, "fast0", &config) };
        claims.prepare(&claim(pod), &[pod.to_owned()], &[wanted]).unwrap();
        claims.attach(&sandbox(&machine.pods[number], pod), &PATIENT).unwrap();
    }
    assert!(matches!(machine.pods[1].link("net1").kind, LinkKind::Macvlan { .. }));
    talk(&machine.pods[0], "10.1.0.1", &machine.pods[1], "10.1.0.2");
    for pod in ["pod-1", "pod-2"] {
        claims.unprepare(&claim(pod).uid).unwrap();
    }
    assert_eq!(machine.pods[1].find("net1"), None);
    assert_eq!(machine.host.state(), before);
}

#[test]
fn a_virtual_interface_whose_pod_has_ended_comes_back_at_unprepare() {
    let Some(mut machine) = Machine::new() else { return };
    let before = machine.host.state();
    let journal = tempfile::tempdir().unwrap();
    let claims = driver(&machine, &journal);
    let wanted = wanted(&machine, "fast0", r#"{"interfaceName": "net1"}"#);
    claims.prepare(&claim("a"), &["pod-1".to_owned()], &[wanted]).unwrap();
    claims.attach(&sandbox(&machine.pods[0], "pod-1"), &PATIENT).unwrap();
    assert_eq!(machine.pods[0].ip_command("net1").2, ["192.0.2.100/24", "2001:db8::100/64"], "they go along");
    // While it runs, the driver keeps the namespace; so does one that was started after the attach.
    drop(claims);
    let claims = driver(&machine, &journal);
    machine.replace_pod(0);
    claims.unprepare(&claim("a").uid).unwrap();
    assert_eq!(machine.host.state(), before);
    assert_eq!(std::fs::read_dir(journal.path()).unwrap().count(), 0);
}

#[test]
fn an_interface_of_the_same_kind_that_the_pod_gives_mark_and_address_of_the_claims_stays_in_the_pod() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let pod = &machine.pods[0];
    // First, so that it is the first that is found.
    let kind = NewLinkKind::Veth { peer: "forged-peer", peer_namespace: None };
    pod.connection().create_link(&NewLink::new("forged", kind)).unwrap();
    let journal = tempfile::tempdir().unwrap();
    let claims = driver(&machine, &journal);
    let wanted = wanted(&machine, "fast0", r#"{"interfaceName": "net1"}"#);
    claims.prepare(&claim("a"), &["pod-1".to_owned()], &[wanted]).unwrap();
    claims.attach(&sandbox(pod, "pod-1"), &PATIENT).unwrap();
    let link = pod.link("net1");
    let other = "02:00:5e:10:00:99".parse().unwrap();
    let disguise = LinkChange { alias: Some("mine"), address: Some(&other), up: Some(false), ..LinkChange::default() };
    pod.change("net1", &disguise);
    let forgery = LinkChange { alias: link.alias.as_deref(), address: link.address.as_ref(), ..LinkChange::default() };
    pod.change("forged", &forgery);
    // The process after a restart knows its own, too.
    drop(claims);
    let claims = driver(&machine, &journal);
    claims.unprepare(&claim("a").uid).unwrap();
    assert_eq!(machine.host.state(), before);
    assert_eq!(pod.link("forged").alias, link.alias);
}

/// A kernel that fails from the first address on, until it is repaired.
#[derive(Debug, Default)]
struct Breakdown {
    is_broken: AtomicBool,
    is_repaired: AtomicBool,
}

impl Faults for Breakdown {
    fn before(&self, call: Call) -> Result<(), Errno> {
        self.is_broken.fetch_or(call == Call::AddAddress, Ordering::SeqCst);
        let fails = self.is_broken.load(Ordering::SeqCst) && !self.is_repaired.load(Ordering::SeqCst);
        if fails { Err(Errno::NOBUFS) } else { Ok(()) }
    }

    fn after(&self, _: Call) -> Result<(), Errno> {
        Ok(())
    }
}

#[test]
fn a_virtual_interface_that_could_not_be_taken_back_is_not_lost_when_the_runtime_ends_the_sandbox() {
    let Some(mut machine) = Machine::new() else { return };
    let before = machine.host.state();
    let journal = tempfile::tempdir().unwrap();
    let breakdown = Arc::<Breakdown>::default();
    let claims = driver_on(machine.kernel().with_faults(breakdown.clone()), &journal);
    let wanted = wanted(&machine, "fast0", r#"{"interfaceName": "net1", "addresses": ["10.1.0.1/24"]}"#);
    claims.prepare(&claim("a"), &["pod-1".to_owned()], &[wanted]).unwrap();
    let error = claims.attach(&sandbox(&machine.pods[0], "pod-1"), &PATIENT).unwrap_err();
    assert!(error.to_string().contains("could not be taken back"), "{error}");
    assert_eq!(machine.host.find("fast0"), None, "it is in the pod");
    machine.replace_pod(0);
    breakdown.is_repaired.store(true, Ordering::SeqCst);
    claims.unprepare(&claim("a").uid).unwrap();
    assert_eq!(machine.host.state(), before);
}

/// Without a driver nothing keeps the pod's namespace, and the kernel deletes a virtual interface with it.
#[test]
fn a_claim_whose_interface_was_lost_while_no_driver_ran_can_still_be_unprepared() {
    let Some(mut machine) = Machine::new() else { return };
    let journal = tempfile::tempdir().unwrap();
    let claims = driver(&machine, &journal);
    let wanted = wanted(&machine, "fast0", r#"{"interfaceName": "net1"}"#);
    claims.prepare(&claim("a"), &["pod-1".to_owned()], &[wanted]).unwrap();
    claims.attach(&sandbox(&machine.pods[0], "pod-1"), &PATIENT).unwrap();
    drop(claims);
    machine.replace_pod(0);
    let start = Instant::now();
    while machine.switch.find("port-fast0").is_some() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let claims = driver(&machine, &journal);
    claims.unprepare(&claim("a").uid).unwrap();
    assert_eq!(std::fs::read_dir(journal.path()).unwrap().count(), 0);
}

#[test]
fn an_interface_whose_pod_ended_without_a_word_is_brought_back_by_a_retry() {
    let Some(mut machine) = Machine::new() else { return };
    let journal = tempfile::tempdir().unwrap();
    let claims = driver(&machine, &journal);
    let wanted = wanted(&machine, "fast0", r#"{"interfaceName": "net1", "mtu": 1400}"#);
    claims.prepare(&claim("a"), &["pod-1".to_owned()], &[wanted]).unwrap();
    claims.attach(&sandbox(&machine.pods[0], "pod-1"), &PATIENT).unwrap();
    // As the kernel does it with a device: under the pod's name.
    let back = LinkChange { namespace: Some(&machine.host.namespace), ..LinkChange::default() };
    machine.pods[0].change("net1", &back);
    machine.replace_pod(0);
    let retried = retry(&claims);
    assert!(matches!(retried.as_slice(), [Ok(records)] if records.len() == 1), "{retried:?}");
    let link = machine.host.link("fast0");
    assert_eq!((link.mtu, link.is_up, link.alias.as_deref()), (1450, true, Some("uplink to storage")));
    assert_eq!(machine.host.ip_command("fast0").2, ["192.0.2.100/24", "2001:db8::100/64"]);
}
