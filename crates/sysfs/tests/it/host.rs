//! The kernel of the machine that the tests run on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use drakkar_sysfs::{Action, DeviceEvent, HostUse, Inventory, ScanError, Sysfs, Uevent, UeventSocket, WriteError};
use rustix::net::netlink::SocketAddrNetlink;

/// A device that every kernel has, and whose events mean nothing to anyone.
const NULL: &str = "/sys/devices/virtual/mem/null/uevent";
const LIMIT: Duration = Duration::from_secs(60);
/// Set in the process that runs in a network namespace of its own.
const IN_NAMESPACE: &str = "DRAKKAR_TEST_IN_NAMESPACE";

#[test]
fn the_devices_of_this_machine_are_read_without_problems() {
    let sysfs = Sysfs::default();
    let inventory = match Inventory::scan(&sysfs) {
        Ok(inventory) => inventory,
        Err(error @ ScanError::List { .. }) => return eprintln!("skipped: this machine has no PCI devices: {error}"),
        Err(error) => panic!("{error}"),
    };
    assert!(inventory.problems.is_empty(), "{:?}", inventory.problems);
    for (address, device) in &inventory.devices {
        assert!(device.problems.is_empty(), "{address}: {:?}", device.problems);
        assert_ne!(device.vendor, 0, "{address}");
        assert!(device.pcie_root.is_some(), "{address}");
        let class = std::fs::read_to_string(sysfs.roots().pci_device(address).join("class")).unwrap();
        assert_eq!(class.trim(), format!("{:#08x}", device.class));
    }
}

#[test]
fn the_disk_and_the_route_of_this_machine_are_in_use() {
    let sysfs = Sysfs::default();
    let Ok(inventory) = Inventory::scan(&sysfs) else { return eprintln!("skipped: this machine has no PCI devices") };
    let found = HostUse::find(&sysfs, &inventory);
    for (address, uses) in &found.devices {
        assert!(inventory.devices.contains_key(address), "{address} is not a device: {uses:?}");
        assert!(!uses.is_empty());
    }
    eprintln!("{found:?}");
}

#[test]
fn an_event_of_the_kernel_arrives() {
    let socket = UeventSocket::open().unwrap();
    if let Err(error) = trigger("A=1") {
        return eprintln!("skipped: {error}; this test needs root and a writable sysfs");
    }
    let event = next(&socket, "A", "1");
    assert_eq!(event.action, Action::Change);
    assert_eq!(event.path, PathBuf::from("devices/virtual/mem/null"));
    assert_eq!(event.subsystem, "mem");
    assert_eq!(event.property("DEVNAME"), Some("null"));
}

#[test]
fn an_event_of_the_kernel_arrives_in_another_network_namespace() {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return an_event_of_the_kernel_arrives();
    }
    let works = Command::new("unshare").args(["--net", "true"]).status();
    if !works.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: this test needs the program unshare and the right to make network namespaces");
    }
    let mut child = Command::new("unshare");
    child.arg("--net").arg(std::env::current_exe().unwrap()).env(IN_NAMESPACE, "1");
    let test = "host::an_event_of_the_kernel_arrives_in_another_network_namespace";
    let output = child.args(["--exact", test, "--nocapture"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

#[test]
fn lost_events_are_reported() {
    let socket = UeventSocket::open().unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    for number in 0..100 {
        if let Err(error) = trigger(&format!("LOST={number}")) {
            return eprintln!("skipped: {error}; this test needs root and a writable sysfs");
        }
    }
    let events = socket.receive_all(1000).unwrap();
    assert!(events.contains(&Uevent::Overflow), "{events:?}");
    assert!(events.len() < 100);
    trigger("AFTERWARDS=1").unwrap();
    next(&socket, "AFTERWARDS", "1");
}

#[test]
fn a_message_of_another_process_is_ignored() {
    let socket = UeventSocket::open().unwrap();
    let own: SocketAddrNetlink = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let kind = rustix::net::SocketType::DGRAM;
    let protocol = Some(rustix::net::netlink::KOBJECT_UEVENT);
    let sender = rustix::net::socket_with(rustix::net::AddressFamily::NETLINK, kind, flags, protocol).unwrap();
    let message = b"remove@/devices/pci0000:00/0000:00:02.0\0SUBSYSTEM=pci\0FORGED=1\0";
    let to = SocketAddrNetlink::new(own.pid(), 0);
    if let Err(error) = rustix::net::sendto(&sender, message, rustix::net::SendFlags::empty(), &to) {
        return eprintln!("skipped: sending to the socket: {error}; this test needs root");
    }
    assert!(socket.wait(LIMIT).unwrap(), "the message did not come");
    let events = socket.receive_all(1000).unwrap();
    let is_forged = |event: &Uevent| matches!(event, Uevent::Device(event) if event.property("FORGED").is_some());
    assert!(!events.iter().any(is_forged), "{events:?}");
}

/// Lets the kernel send an event with a property of ours.
fn trigger(property: &str) -> Result<(), WriteError> {
    Sysfs::default().write(&"null", Path::new(NULL), &format!("change 7f3e1d2c-0000-4000-8000-0123456789ab {property}"))
}

/// Returns the event that [`trigger`] caused. Other tests, and other programs, cause events too.
fn next(socket: &UeventSocket, name: &str, value: &str) -> DeviceEvent {
    let until = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < until, "no event came");
        socket.wait(Duration::from_secs(1)).unwrap();
        while let Some(event) = socket.receive().unwrap() {
            if let Uevent::Device(event) = event
                && event.property(&format!("SYNTH_ARG_{name}")) == Some(value)
            {
                return event;
            }
        }
    }
}
