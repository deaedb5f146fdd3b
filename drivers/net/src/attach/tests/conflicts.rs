//! Names, addresses, routes and interfaces that are taken or gone.

use std::time::{Duration, Instant};

use drakkar_netlink::{Child, IpvlanFlag, IpvlanMode, LinkChange, NewAddress, NewRoute, VlanProtocol};
use rstest::rstest;

use super::machine::{Machine, PATIENCE, UP};
use crate::attach::{AttachFailure, Attachment, Holder, InterfacePlan, Limits, attach};
use crate::claim_config::DuplicateDetection;

/// Attaches, which has to fail and to leave everything as it was.
fn refused(machine: &Machine, plan: InterfacePlan, limits: &Limits) -> AttachFailure {
    let before = (machine.host.state(), machine.pods[0].state());
    let failure = match Attachment::inspect(&machine.kernel(), plan, &machine.pods[0].path(), limits) {
        Err(failure) => failure,
        Ok(attachment) => {
            let error = attach(&machine.kernel(), &attachment, limits).unwrap_err();
            assert_eq!(error.undo, None);
            error.cause
        }
    };
    assert_eq!((machine.host.state(), machine.pods[0].state()), before, "{failure}");
    failure
}

#[test]
fn a_name_that_the_pod_has_is_refused() {
    let Some(machine) = Machine::new() else { return };
    let failure = refused(&machine, machine.plan("fast0", "eth0"), &Limits::default());
    assert!(matches!(&failure, AttachFailure::NameTaken { name } if name == "eth0"), "{failure}");
    assert_eq!(failure.reason(), "InterfaceNameInUse");
}

#[test]
fn a_pod_whose_network_namespace_is_the_hosts_own_is_refused() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    // Another path than the driver's own: what counts is the namespace.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cni-1");
    std::os::unix::fs::symlink(machine.host.path(), &path).unwrap();
    let inspected = Attachment::inspect(&machine.kernel(), machine.plan("fast0", "net1"), &path, &Limits::default());
    let failure = inspected.unwrap_err();
    let text = failure.to_string();
    assert!(text.contains(&format!("network namespace {} is the host's own", path.display())), "{text}");
    assert_eq!((failure.reason(), machine.host.state()), ("HostNetwork", before));
}

#[test]
fn an_address_that_another_interface_of_the_pod_has_is_refused() {
    let Some(machine) = Machine::new() else { return };
    machine.pods[0].add_address("eth0", "10.1.0.1/16");
    let failure = refused(&machine, machine.full_plan("fast0", 1), &Limits::default());
    let text = failure.to_string();
    assert_eq!(text, "address 10.1.0.1 is already in use by interface eth0 of the pod");
    assert_eq!(failure.reason(), "AddressInUse");
}

#[test]
fn an_address_that_another_host_has_is_refused() {
    let Some(machine) = Machine::new() else { return };
    // Directly at the other end of the cable: a bridge lets nothing through in the first moments.
    machine.switch.change("port-fast0", &LinkChange { master: Some(0), ..UP });
    machine.switch.add_address("port-fast0", "fd00::1/64");
    let addresses = vec![NewAddress::new("fd00::1/64".parse().unwrap())];
    let plan = InterfacePlan { addresses, ..machine.plan("fast0", "net1") };
    let limits = Limits { dad: PATIENCE, ..Limits::default() };
    let failure = refused(&machine, plan, &limits);
    let other = machine.switch.link("port-fast0").address;
    assert!(
        matches!(&failure, AttachFailure::AddressTaken { holder: Holder::OtherHost(holder), .. } if *holder == other),
        "{failure}"
    );
}

#[test]
fn an_ipv4_address_that_another_host_has_is_refused_with_its_hardware_address() {
    let Some(machine) = Machine::new() else { return };
    machine.switch.change("port-fast0", &LinkChange { master: Some(0), ..UP });
    machine.switch.add_address("port-fast0", "10.1.0.1/24");
    let addresses = ["10.1.0.2/24", "10.1.0.1/24"].map(|address| NewAddress::new(address.parse().unwrap())).to_vec();
    let plan = |detection| InterfacePlan {
        addresses: addresses.clone(),
        duplicate_detection: detection,
        ..machine.plan("fast0", "net1")
    };
    // The other end of the cable may need a moment before it answers: the first question can be lost.
    let limits = Limits { arp: Some(Duration::from_secs(2)), ..Limits::default() };
    let failure = refused(&machine, plan(DuplicateDetection::Full), &limits);
    let other = machine.switch.link("port-fast0").address.unwrap();
    assert_eq!(
        failure.to_string(),
        format!("address 10.1.0.1 is already in use by another host on the network, {other}")
    );
    assert_eq!(failure.reason(), "AddressInUse");

    // Nobody is asked if the claim says so.
    let (attachment, attached) = machine.attach(plan(DuplicateDetection::Off), 0);
    assert_eq!(attached.ips().len(), 2);
    machine.restore(&attachment);
}

#[test]
fn an_interface_without_a_carrier_gets_its_addresses_without_a_question() {
    let Some(machine) = Machine::new() else { return };
    machine.switch.change("port-fast0", &LinkChange { up: Some(false), ..LinkChange::default() });
    let plan = InterfacePlan { duplicate_detection: DuplicateDetection::Full, ..machine.full_plan("fast0", 1) };
    let attachment = machine.attachment(plan, 0);
    let limits = Limits { arp: Some(PATIENCE * 100), ..Limits::default() };
    assert_eq!(attach(&machine.kernel(), &attachment, &limits).unwrap().ips().len(), 3);
    machine.restore(&attachment);
}

#[test]
fn a_route_that_another_interface_of_the_pod_has_is_refused() {
    let Some(machine) = Machine::new() else { return };
    let pod = &machine.pods[0];
    let eth0 = pod.link("eth0").index;
    let default = NewRoute::new("198.51.100.0/24".parse().unwrap(), eth0);
    pod.connection().add_route(&default).unwrap();
    let plan = InterfacePlan { routes: vec![NewRoute { interface: None, ..default }], ..machine.plan("fast0", "net1") };
    let failure = refused(&machine, plan, &Limits::default());
    assert!(failure.to_string().contains("already has a route to 198.51.100.0/24 in table 254"), "{failure}");
}

#[test]
fn an_interface_that_is_removed_before_it_is_attached_is_reported() {
    let Some(machine) = Machine::new() else { return };
    let attachment = machine.attachment(machine.plan("fast0", "net1"), 0);
    let mut connection = machine.host.connection();
    connection.delete_link(&machine.host.link("fast0")).unwrap();
    let error = attach(&machine.kernel(), &attachment, &Limits::default()).unwrap_err();
    assert!(matches!(error.cause, AttachFailure::NotFound(_)), "{error}");
    assert!(error.to_string().contains("fast0"), "{error}");
}

#[test]
fn an_interface_that_was_replaced_by_another_of_its_name_is_not_touched() {
    let Some(machine) = Machine::new() else { return };
    let plan = machine.plan("fast0", "net1");
    let mut connection = machine.host.connection();
    connection.delete_link(&machine.host.link("fast0")).unwrap();
    machine.host.change("fast1", &LinkChange { name: Some("fast0"), ..LinkChange::default() });
    let failure = refused(&machine, plan, &Limits::default());
    assert!(matches!(failure, AttachFailure::NotFound(_)), "{failure}");
}

#[test]
fn a_renamed_interface_is_not_mistaken_and_one_that_is_marked_is_found() {
    let Some(machine) = Machine::new() else { return };
    let attachment = machine.attachment(machine.plan("fast0", "net1"), 0);
    let mark = attachment.plan.mark.clone();
    machine.host.change("fast0", &LinkChange { alias: Some(&mark), ..LinkChange::default() });
    machine.host.change("fast0", &LinkChange { up: Some(false), ..LinkChange::default() });
    machine.host.change("fast0", &LinkChange { name: Some("renamed0"), ..UP });
    attach(&machine.kernel(), &attachment, &Limits::default()).unwrap();
    machine.restore(&attachment);
    assert!(machine.host.find("fast0").is_some());
}

#[test]
fn a_deadline_that_passes_ends_the_attach_and_everything_is_as_it_was() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let attachment = machine.attachment(machine.full_plan("fast0", 1), 0);
    let limits = Limits { deadline: Some(Instant::now()), ..Limits::default() };
    let error = attach(&machine.kernel(), &attachment, &limits).unwrap_err();
    assert_eq!((error.cause.reason(), error.undo), ("Timeout", None));
    assert_eq!(machine.host.state(), before);
}

#[test]
fn an_mtu_that_the_kernel_refuses_after_the_move_takes_the_interface_back() {
    let Some(machine) = Machine::new() else { return };
    let plan = InterfacePlan { mtu: Some(70_000), ..machine.full_plan("fast0", 1) };
    let failure = refused(&machine, plan, &Limits::default());
    assert!(failure.to_string().contains("mtu greater than device maximum"), "{failure}");
}

#[rstest]
#[case::vlan(Child::Vlan { id: 42, protocol: VlanProtocol::Dot1Q })]
#[case::ipvlan(Child::Ipvlan { mode: IpvlanMode::L2, flag: IpvlanFlag::Bridge })]
fn a_kind_that_the_kernel_may_lack_works_or_leaves_nothing_behind(#[case] child: Child) {
    let Some(machine) = Machine::new() else { return };
    let plan = InterfacePlan { child: Some(child), hardware_address: None, ..machine.full_plan("fast0", 1) };
    let before = (machine.host.state(), machine.pods[0].state());
    let attachment = machine.attachment(plan, 0);
    match attach(&machine.kernel(), &attachment, &Limits::default()) {
        Ok(attached) => {
            assert_eq!(attached.ips().len(), 3);
            machine.restore(&attachment);
        }
        Err(error) => {
            assert!(error.to_string().contains("Unknown device type") && error.undo.is_none(), "{error}");
        }
    }
    assert_eq!((machine.host.state(), machine.pods[0].state()), before);
}

#[test]
fn an_rdma_device_on_a_kernel_or_a_host_without_it_is_reported() {
    let Some(machine) = Machine::new() else { return };
    let rdma = crate::attach::RdmaIdentity { name: "rxe0".to_owned(), node_guid: drakkar_netlink::rdma::Guid(1) };
    let plan = InterfacePlan { rdma: Some(rdma), ..machine.full_plan("fast0", 1) };
    let failure = refused(&machine, plan, &Limits::default());
    assert!(failure.to_string().starts_with("RDMA device rxe0: "), "{failure}");
}
