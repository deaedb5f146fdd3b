//! Opening, identifying and entering namespaces.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use drakkar_netlink::{Connection, Error, Namespace};

use crate::support::TestNamespace;

#[test]
fn a_new_namespace_has_only_a_loopback_interface_and_an_identity_of_its_own() {
    let Some(mut host) = TestNamespace::new() else { return };
    assert_eq!(host.names(), ["lo"]);
    let lo = host.link("lo");
    assert!(lo.is_loopback && !lo.is_up);
    let current = Namespace::current().unwrap();
    assert_ne!(host.namespace.id(), current.id());
    assert_eq!(Namespace::current().unwrap().id(), current.id());
}

#[test]
fn a_namespace_is_opened_by_its_path_and_its_socket_works_from_any_thread() {
    let Some(mut host) = TestNamespace::new() else { return };
    host.veth("left", "right");
    let path = format!("/proc/self/fd/{}", host.namespace.as_fd().as_raw_fd());
    let opened = Namespace::open(&path).unwrap();
    assert_eq!(opened.id(), host.namespace.id());
    assert_eq!(Namespace::identify(Path::new(&path)).unwrap(), Some(opened.id()));
    assert!(Namespace::exists(&path));
    let mut connection = Connection::open(&opened).unwrap();
    std::thread::spawn(move || assert!(connection.link_by_name("left").unwrap().is_some())).join().unwrap();
}

#[test]
fn a_function_runs_inside_and_leaves_the_callers_namespace_alone() {
    let Some(mut host) = TestNamespace::new() else { return };
    host.veth("left", "right");
    let before = Namespace::current().unwrap().id();
    let inside = host.namespace.run(|| std::fs::read_dir("/proc/sys/net/ipv4/conf/left").is_ok()).unwrap();
    assert!(inside);
    assert_eq!(Namespace::current().unwrap().id(), before);
    assert!(std::fs::read_dir("/proc/sys/net/ipv4/conf/left").is_err());
}

#[test]
fn settings_are_those_of_the_namespace() {
    let Some(mut host) = TestNamespace::new() else { return };
    host.veth("left", "right");
    let path = "net/ipv4/conf/left/arp_ignore";
    assert_eq!(host.namespace.setting(path).unwrap(), "0");
    host.namespace.set_settings([(path, "2"), ("net/ipv4/conf/left/arp_announce", "1")]).unwrap();
    assert_eq!(host.namespace.setting(path).unwrap(), "2");

    let error = host.namespace.set_settings([("net/ipv4/conf/missing/arp_ignore", "1")]).unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("net/ipv4/conf/missing/arp_ignore"), "{error}");
    let error = host.namespace.set_settings([(path, "many")]).unwrap_err();
    assert_eq!(error.errno(), Some(drakkar_netlink::Errno::INVAL), "{error}");
}

#[test]
fn what_is_no_network_namespace_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    File::create(&file).unwrap();
    assert!(matches!(Namespace::open(&file), Err(Error::NotANamespace { .. })));
    assert!(matches!(Namespace::open("/proc/self/ns/mnt"), Err(Error::NotANamespace { .. })));
    assert!(!Namespace::exists(&file));
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(matches!(Namespace::open(&socket), Err(Error::NotANamespace { .. })));

    let missing = directory.path().join("missing");
    let error = Namespace::open(&missing).unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("missing"), "{error}");
    assert_eq!(Namespace::identify(&missing).unwrap(), None);
}
