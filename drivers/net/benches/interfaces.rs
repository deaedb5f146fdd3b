//! The time for reading 1,000 interfaces, and for an update after one event: with and without publishing.
//!
//! Needs root: `cargo bench -p drakkar-net --bench interfaces`.

#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use divan::Bencher;
use drakkar_net::attributes::Numa;
use drakkar_net::inventory::Host;
use drakkar_net::{Config, HostChanges, Interfaces, Settings};
use drakkar_netlink::{Connection, Event, Link, Namespace, NewLink, NewLinkKind};
use drakkar_plugin::attributes::NumaForm;
use drakkar_sysfs::{Roots, Sysfs};

fn main() {
    divan::main();
}

/// A namespace with so many interfaces beside the loopback interface.
fn namespace(interfaces: usize) -> (Namespace, Connection) {
    let namespace = Namespace::unshared().unwrap();
    let mut connection = Connection::open(&namespace).unwrap();
    for number in 0..interfaces / 2 {
        let peer = format!("b{number}");
        let kind = NewLinkKind::Veth { peer: &peer, peer_namespace: None };
        connection.create_link(&NewLink::new(&format!("a{number}"), kind)).unwrap();
    }
    (namespace, connection)
}

fn sysfs() -> Sysfs {
    Sysfs::at(Roots::below("/nonexistent"))
}

#[divan::bench(args = [2, 100, 1000], sample_count = 20)]
fn discovery(bencher: Bencher<'_, '_>, interfaces: usize) {
    let (namespace, _connection) = namespace(interfaces);
    let mut host = Host::open(&namespace, sysfs()).unwrap();
    bencher.bench_local(|| assert_eq!(host.scan().unwrap().interfaces.len(), interfaces + 1));
}

/// The interfaces of a host, and how often they were published.
struct Driver {
    interfaces: Interfaces,
    link: Link,
    publications: Arc<AtomicUsize>,
    _namespace: Namespace,
}

fn driver(interfaces: usize, rules: &str) -> Driver {
    let (namespace, mut connection) = namespace(interfaces);
    let link = connection.link_by_name("a0").unwrap().unwrap();
    let mut host = Host::open(&namespace, sysfs()).unwrap();
    let inventory = host.scan().unwrap();
    let yaml = format!("apiVersion: net.drakkar.dev/v1alpha1\nkind: DriverConfig\ndevices:\n{rules}\n");
    let settings = Settings {
        node: "node".to_owned(),
        config: Arc::new(Config::from_yaml(&yaml).unwrap()),
        numa: Numa::new("/nonexistent", NumaForm::Number),
        node_addresses: Vec::new(),
    };
    let publications = Arc::new(AtomicUsize::new(0));
    let count = publications.clone();
    let publish = move |resources| {
        divan::black_box(resources);
        count.fetch_add(1, Ordering::Relaxed);
    };
    let interfaces = Interfaces::new(host, inventory, settings, Vec::new, publish);
    interfaces.publish();
    Driver { interfaces, link, publications, _namespace: namespace }
}

fn event(link: &Link, mtu: u32) -> HostChanges {
    HostChanges { network: vec![Event::Link(Link { mtu, ..link.clone() })], devices: Vec::new() }
}

/// All interfaces are published, and the event changes one of them.
#[divan::bench(args = [2, 100, 1000], sample_count = 50)]
fn event_about_a_published_interface(bencher: Bencher<'_, '_>, interfaces: usize) {
    let driver = driver(interfaces, "- match: {names: ['*'], cel: \"device.attributes['net.drakkar.dev'].mtu > 100\"}");
    let mut mtu = 1000;
    bencher.bench_local(|| {
        mtu += 1;
        driver.interfaces.apply(&event(&driver.link, mtu)).unwrap();
    });
    assert!(driver.publications.load(Ordering::Relaxed) > 1);
}

/// One interface is published, and the event is about one of the others, such as that of a pod.
#[divan::bench(args = [2, 100, 1000], sample_count = 50)]
fn event_about_another_interface(bencher: Bencher<'_, '_>, interfaces: usize) {
    let driver = driver(interfaces, "- match: {names: [b0]}");
    let mut mtu = 1000;
    bencher.bench_local(|| {
        mtu += 1;
        driver.interfaces.apply(&event(&driver.link, mtu)).unwrap();
    });
    assert_eq!(driver.publications.load(Ordering::Relaxed), 1);
}
