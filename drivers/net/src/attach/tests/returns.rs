//! Interfaces that come back in other ways than by a restore, or not at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use drakkar_netlink::{BusAddress, Child, Errno, LinkChange, MacvlanMode, NewAddress, NewLink, NewLinkKind, NewRoute};
use rstest::rstest;

use super::machine::{Machine, PATIENCE, UP};
use crate::attach::{Attachment, InterfacePlan};
use crate::kernel::{Call, Faults};
use crate::restore::{Outcome, restore, restore_within};

const DOWN: LinkChange<'static> = LinkChange { up: Some(false), ..UP };

#[test]
fn an_interface_that_is_back_under_the_pods_name_is_repaired() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let (attachment, attached) = machine.attach(machine.full_plan("fast0", 1), 0);
    // What the kernel does when a namespace ends, with a device: the alias stays, name, MTU and address are the pod's.
    let back = LinkChange { namespace: Some(&machine.host.namespace), name: Some("dev7"), ..LinkChange::default() };
    machine.pods[0].change(&attached.name, &back);
    assert_eq!(machine.restore(&attachment), Outcome::OnHost("fast0".to_owned()));
    let link = machine.host.link("fast0");
    assert_eq!((link.mtu, link.alias.as_deref(), link.is_up), (1450, Some("uplink to storage"), true));
    // Its index is that of the pod, which a move alone can change.
    let index = |text: &str| text.replace(&format!("index: {}", link.index), "index: _");
    let former = before.replace(&format!("index: {}", attachment.plan.host.index), "index: _");
    let mut lines: Vec<String> = index(&machine.host.state()).lines().map(str::to_owned).collect();
    let mut expected: Vec<String> = former.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    expected.sort_unstable();
    let interface = format!("interface: Some({})", link.index);
    let lines: Vec<String> = lines.iter().map(|line| line.replace(&interface, "interface: _")).collect();
    let interface = format!("interface: Some({})", attachment.plan.host.index);
    let expected: Vec<String> = expected.iter().map(|line| line.replace(&interface, "interface: _")).collect();
    assert_eq!(lines, expected);
}

#[test]
fn a_virtual_interface_that_died_with_its_namespace_is_reported_as_lost() {
    let Some(mut machine) = Machine::new() else { return };
    let (attachment, _) = machine.attach(machine.full_plan("fast0", 1), 0);
    machine.replace_pod(0);
    let start = Instant::now();
    // The kernel deletes it in its own time; the other end tells.
    while machine.switch.find("port-fast0").is_some() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let restored = restore_within(&machine.kernel(), &attachment, PATIENCE).unwrap();
    assert!(restored.is_complete());
    let Outcome::Lost(text) = restored.outcome else { panic!("{restored:?}") };
    assert!(text.contains("interface fast0") && text.contains("deleted with the pod's network namespace"), "{text}");
}

#[test]
fn a_virtual_interface_comes_back_although_the_runtime_has_ended_its_namespace_first() {
    let Some(mut machine) = Machine::new() else { return };
    let before = machine.host.state();
    let kernel = machine.kernel();
    let (attachment, _) = machine.attach(machine.full_plan("fast0", 1), 0);
    kernel.keep(&attachment);
    machine.pods[0] = Machine::new().unwrap().pods.into_iter().next().unwrap();
    let restored = restore(&kernel, &attachment).unwrap();
    assert_eq!((restored.is_complete(), restored.outcome), (true, Outcome::OnHost("fast0".to_owned())));
    assert_eq!(machine.host.state(), before);
    kernel.release(&attachment);
    let gone = kernel.pod_if_there(&attachment.namespace.path, attachment.namespace.id).unwrap();
    assert!(gone.is_none(), "it is not kept any longer");
}

#[test]
fn an_interface_that_was_deleted_in_the_pod_is_reported_as_lost() {
    let Some(machine) = Machine::new() else { return };
    let (attachment, attached) = machine.attach(machine.full_plan("fast0", 1), 0);
    let pod = &machine.pods[0];
    pod.connection().delete_link(&pod.link(&attached.name)).unwrap();
    let Outcome::Lost(text) = machine.restore(&attachment) else { panic!("it is not lost") };
    assert!(text.contains("deleted while it was in the pod"), "{text}");
}

#[test]
fn another_interface_that_the_pod_gives_the_mark_stays_in_the_pod() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let (attachment, attached) = machine.attach(machine.full_plan("fast0", 1), 0);
    let pod = &machine.pods[0];
    let kind =
        NewLinkKind::Child { parent: pod.link("eth0").index, child: Child::Macvlan { mode: MacvlanMode::Bridge } };
    pod.connection().create_link(&NewLink::new("forged", kind)).unwrap();
    let mark = attachment.plan.mark.as_str();
    // A program in the pod with `CAP_NET_ADMIN` reads the alias, and can give it to whatever it makes.
    pod.change(&attached.name, &LinkChange { alias: Some("mine"), name: Some("renamed"), ..DOWN });
    pod.change("forged", &LinkChange { alias: Some(mark), ..LinkChange::default() });
    assert_eq!(machine.restore(&attachment), Outcome::OnHost("fast0".to_owned()));
    assert_eq!(machine.host.state(), before);
    assert_eq!(pod.link("forged").alias.as_deref(), Some(mark));
}

#[test]
fn of_several_interfaces_with_the_mark_the_one_with_the_hardware_address_comes_back() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let pod = &machine.pods[0];
    let kind = NewLinkKind::Veth { peer: "forged-peer", peer_namespace: None };
    pod.connection().create_link(&NewLink::new("forged", kind)).unwrap();
    let (attachment, attached) = machine.attach(machine.full_plan("fast0", 1), 0);
    assert!(pod.link("forged").index < attached.index, "it is the first that is found");
    let mark = attachment.plan.mark.as_str();
    pod.change("forged", &LinkChange { alias: Some(mark), ..LinkChange::default() });
    // The index in the pod is not known: as after a crash during the attach, or in the journal of an earlier version.
    assert_eq!(attachment.index, None);
    assert_eq!(machine.restore(&attachment), Outcome::OnHost("fast0".to_owned()));
    assert_eq!(machine.host.state(), before);
    assert_eq!(pod.link("forged").alias.as_deref(), Some(mark));
    // Once more, as after a crash before the journal was updated.
    let attachment = Attachment { index: Some(attached.index), ..attachment.clone() };
    assert_eq!(machine.restore(&attachment), Outcome::OnHost("fast0".to_owned()));
    assert_eq!(machine.host.state(), before);
    assert_eq!(pod.link("forged").alias.as_deref(), Some(mark));
}

/// A kernel that deletes no rules.
#[derive(Debug)]
struct KeepsRules;

impl Faults for KeepsRules {
    fn before(&self, call: Call) -> Result<(), Errno> {
        if call == Call::DeleteRule { Err(Errno::NOBUFS) } else { Ok(()) }
    }

    fn after(&self, _: Call) -> Result<(), Errno> {
        Ok(())
    }
}

#[rstest]
#[case(None, Outcome::OnHost("fast0".to_owned()))]
#[case(Some(Child::Macvlan { mode: MacvlanMode::Bridge }), Outcome::Deleted)]
fn a_rule_that_cannot_be_deleted_is_reported_and_does_not_keep_the_interface_in_the_pod(
    #[case] child: Option<Child>,
    #[case] expected: Outcome,
) {
    let Some(machine) = Machine::new() else { return };
    let before = (machine.host.state(), machine.pods[0].state());
    let (attachment, attached) = machine.attach(InterfacePlan { child, ..machine.full_plan("fast0", 1) }, 0);
    let restored = restore(&machine.kernel().with_faults(Arc::new(KeepsRules)), &attachment).unwrap();
    assert_eq!((&restored.outcome, restored.is_complete()), (&expected, false));
    assert!(restored.to_string().contains("DeleteRule"), "{restored}");
    assert_eq!(machine.pods[0].find(&attached.name), None);
    assert_eq!(machine.restore(&attachment), expected);
    assert_eq!((machine.host.state(), machine.pods[0].state()), before);
}

#[test]
fn a_route_whose_router_is_behind_another_route_comes_back_at_once() {
    let Some(machine) = Machine::new() else { return };
    let index = machine.host.link("fast0").index;
    let direct = NewRoute::new("10.9.0.0/24".parse().unwrap(), index);
    // The kernel lists it before the other.
    let gateway = Some("10.9.0.1".parse().unwrap());
    let routed = NewRoute { gateway, ..NewRoute::new("10.1.0.0/16".parse().unwrap(), index) };
    for route in [direct, routed] {
        machine.host.connection().add_route(&route).unwrap();
    }
    let before = machine.host.state();
    let (attachment, _) = machine.attach(machine.plan("fast0", "net1"), 0);
    assert_eq!(machine.restore(&attachment), Outcome::OnHost("fast0".to_owned()));
    assert_eq!(machine.host.state(), before);
}

#[test]
fn a_route_from_an_address_that_the_kernel_still_looks_for_comes_back() {
    let Some(machine) = Machine::new() else { return };
    let link = machine.host.link("fast0");
    let mut host = machine.host.connection();
    let address: NewAddress = NewAddress::new("2001:db8:1::5/64".parse().unwrap());
    host.add_address(&link, &address).unwrap();
    host.wait_for_dad(link.index, Instant::now() + PATIENCE).unwrap();
    let source = Some(address.address.addr());
    host.add_route(&NewRoute { source, ..NewRoute::new("2001:db8:7::/64".parse().unwrap(), link.index) }).unwrap();
    let before = machine.host.state();
    let (attachment, _) = machine.attach(machine.plan("fast0", "net1"), 0);
    let start = Instant::now();
    // On a busy machine the kernel can take longer than a restore waits, which is tried again.
    while !restore(&machine.kernel(), &attachment).unwrap().is_complete() {
        assert!(start.elapsed() < PATIENCE);
    }
    host.wait_for_dad(machine.host.link("fast0").index, Instant::now() + PATIENCE).unwrap();
    assert_eq!(machine.host.state(), before);
}

#[test]
fn alternative_names_that_the_pod_gives_an_interface_do_not_keep_it_there() {
    let Some(machine) = Machine::new() else { return };
    let host = machine.host.link("fast0");
    machine.host.connection().add_alt_names(&host, &["storage-uplink".to_owned()]).unwrap();
    let before = machine.host.state();
    let (attachment, attached) = machine.attach(machine.full_plan("fast0", 1), 0);
    let pod = &machine.pods[0];
    let link = pod.link(&attached.name);
    pod.connection().delete_alt_names(&link, &link.alt_names).unwrap();
    // The kernel moves nothing whose alternative name is taken at the destination.
    pod.connection().add_alt_names(&link, &["fast1".to_owned(), "left-by-the-pod".to_owned()]).unwrap();
    assert_eq!(machine.restore(&attachment), Outcome::OnHost("fast0".to_owned()));
    assert_eq!(machine.host.state(), before);
}

#[test]
fn a_former_name_that_is_taken_is_reported_and_the_interface_is_on_the_host_under_another() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let (attachment, _) = machine.attach(machine.full_plan("fast0", 1), 0);
    let name = format!("drakkar{}", attachment.plan.host.index);
    machine.host.connection().create_link(&NewLink::new("fast0", NewLinkKind::Bridge)).unwrap();
    for _ in 0..2 {
        let restored = restore(&machine.kernel(), &attachment).unwrap();
        assert_eq!((&restored.outcome, restored.is_complete()), (&Outcome::OnHost(name.clone()), true));
        let text = restored.to_string();
        assert!(text.contains("cannot have its former name fast0") && text.contains("rename that one"), "{text}");
    }
    let link = machine.host.link(&name);
    assert_eq!((link.mtu, link.is_up, link.alias.as_deref()), (1450, true, Some("uplink to storage")));

    machine.host.connection().delete_link(&machine.host.link("fast0")).unwrap();
    assert_eq!(machine.restore(&attachment), Outcome::OnHost("fast0".to_owned()));
    // The kernel keeps the label that an address was added with.
    assert_eq!(machine.host.state().replace(&name, "fast0"), before);
}

#[test]
fn a_former_index_that_is_taken_does_not_keep_the_interface_from_coming_back() {
    let Some(machine) = Machine::new() else { return };
    let (attachment, _) = machine.attach(machine.full_plan("fast0", 1), 0);
    let index = attachment.plan.host.index;
    // An interface that comes from elsewhere with exactly that index.
    let other = &machine.pods[1];
    let change = LinkChange { namespace: Some(&machine.host.namespace), index: Some(index), ..LinkChange::default() };
    other.change("eth0", &change);
    assert_eq!(machine.host.link("eth0").index, index);
    assert_eq!(machine.restore(&attachment), Outcome::OnHost("fast0".to_owned()));
    assert_ne!(machine.host.link("fast0").index, index);
    let addresses = machine.host.connection().addresses_of(machine.host.link("fast0").index).unwrap();
    assert!(addresses.iter().any(|address| address.address.to_string() == "192.0.2.100/24"));
}

#[test]
fn a_device_that_was_removed_from_the_machine_is_reported_as_lost_and_one_that_is_there_is_waited_for() {
    let Some(machine) = Machine::new() else { return };
    let (mut attachment, attached) = machine.attach(machine.full_plan("fast0", 1), 0);
    let pod = &machine.pods[0];
    pod.connection().delete_link(&pod.link(&attached.name)).unwrap();
    // As if it were a device.
    let sysfs = tempfile::tempdir().unwrap();
    let devices = sysfs.path().join("bus/pci/devices");
    std::fs::create_dir_all(devices.join("0000:03:00.0")).unwrap();
    let identity = &mut attachment.former.as_mut().unwrap().identity;
    identity.kind = String::new();
    identity.device = Some(BusAddress { bus: "pci".to_owned(), name: "0000:03:00.0".to_owned() });
    let kernel = machine.kernel().with_sysfs(sysfs.path());
    let restored = restore_within(&kernel, &attachment, Duration::from_millis(20)).unwrap();
    assert_eq!((&restored.outcome, restored.is_complete()), (&Outcome::NotFound, false));

    std::fs::remove_dir(devices.join("0000:03:00.0")).unwrap();
    let restored = restore(&kernel, &attachment).unwrap();
    let Outcome::Lost(text) = restored.outcome else { panic!("{restored}") };
    assert!(text.contains("fast0 (pci 0000:03:00.0)") && text.contains("removed from the machine"), "{text}");
}

#[test]
fn another_namespace_at_the_same_path_is_left_alone() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let (attachment, _) = machine.attach(machine.full_plan("fast0", 1), 0);
    let mut elsewhere = attachment.clone();
    elsewhere.namespace.path = machine.pods[1].path();
    let pod = machine.pods[1].state();
    let restored = restore(&machine.kernel(), &elsewhere).unwrap();
    assert!(matches!(restored.outcome, Outcome::Lost(_)), "{restored}");
    assert_eq!(machine.pods[1].state(), pod);
    machine.restore(&attachment);
    assert_eq!(machine.host.state(), before);
}

#[test]
fn an_attachment_of_which_nothing_was_done_is_restored_by_doing_nothing() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let attachment = machine.attachment(machine.full_plan("fast0", 1), 0);
    assert_eq!(machine.restore(&attachment), Outcome::OnHost("fast0".to_owned()));
    assert_eq!(machine.host.state(), before);
}
