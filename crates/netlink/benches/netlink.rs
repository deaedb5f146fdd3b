//! The time for reading 1,000 interfaces, for one of them among 1,000, and for one move.
//!
//! Needs root: `cargo bench -p drakkar-netlink`.

#![allow(clippy::unwrap_used, missing_docs)]

use divan::Bencher;
use drakkar_netlink::{Connection, LinkChange, Namespace, NewLink, NewLinkKind};

fn main() {
    divan::main();
}

/// A namespace with so many interfaces beside the loopback interface.
fn host(interfaces: usize) -> (Namespace, Connection) {
    let namespace = Namespace::unshared().unwrap();
    let mut connection = Connection::open(&namespace).unwrap();
    for number in 0..interfaces / 2 {
        let peer = format!("b{number}");
        let kind = NewLinkKind::Veth { peer: &peer, peer_namespace: None };
        connection.create_link(&NewLink::new(&format!("a{number}"), kind)).unwrap();
    }
    (namespace, connection)
}

#[divan::bench(args = [2, 100, 1000])]
fn list(bencher: Bencher<'_, '_>, interfaces: usize) {
    let (_namespace, mut connection) = host(interfaces);
    bencher.bench_local(|| assert_eq!(connection.links().unwrap().len(), interfaces + 1));
}

#[divan::bench(args = [2, 1000])]
fn get_one(bencher: Bencher<'_, '_>, interfaces: usize) {
    let (_namespace, mut connection) = host(interfaces);
    bencher.bench_local(|| connection.link_by_name("a0").unwrap().unwrap());
}

#[divan::bench]
fn open_a_connection(bencher: Bencher<'_, '_>) {
    let namespace = Namespace::unshared().unwrap();
    bencher.bench_local(|| Connection::open(&namespace).unwrap());
}

/// To another namespace under another name, and back.
#[divan::bench(args = [2, 1000], sample_count = 20)]
fn move_there_and_back(bencher: Bencher<'_, '_>, interfaces: usize) {
    let (host_namespace, mut host) = host(interfaces);
    let pod_namespace = Namespace::unshared().unwrap();
    let mut pod = Connection::open(&pod_namespace).unwrap();
    let link = host.link_by_name("a0").unwrap().unwrap();
    bencher.bench_local(|| {
        let there = LinkChange { namespace: Some(&pod_namespace), name: Some("net1"), ..LinkChange::default() };
        host.change_link(&link, &there).unwrap();
        let back = LinkChange { namespace: Some(&host_namespace), name: Some("a0"), ..LinkChange::default() };
        pod.change_link(&link, &back).unwrap();
    });
}
