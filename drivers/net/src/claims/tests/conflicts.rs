//! What a prepare refuses, and what it chooses.

use rstest::rstest;

use super::node::{Node, claim, pods, wanted};
use crate::claims::{Claims, Wanted};

fn error(claims: &Claims, name: &str, pod: &str, wanted: &[Wanted]) -> String {
    claims.prepare(&claim(name), &pods(&[pod]), wanted).unwrap_err().to_string()
}

fn names(claims: &Claims, name: &str, pod: &str, wanted: &[Wanted]) -> Vec<String> {
    let record = claims.prepare(&claim(name), &pods(&[pod]), wanted).unwrap().record;
    record.interfaces().map(|interface| interface.plan.name.clone()).collect()
}

#[rstest]
#[case(&[], "is reserved for no pod")]
#[case(&["p1", "p2"], "is reserved for 2 pods: an interface can be in one pod only")]
fn an_interface_is_for_one_pod(#[case] consumers: &[&str], #[case] expected: &str) {
    let node = Node::new();
    let claims = node.start();
    let error = claims.prepare(&claim("a"), &pods(consumers), &[wanted(1, "{}")]).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    assert_eq!((claims.held().len(), node.journal_files()), (0, 0));
    claims.prepare(&claim("a"), &pods(&["p1"]), &[wanted(1, "{}")]).unwrap();
    assert!(
        claims.prepare(&claim("a"), &pods(consumers), &[wanted(1, "{}")]).is_err(),
        "nor is it when it is prepared again"
    );
}

#[test]
fn a_device_is_in_one_claim_unless_each_gets_an_interface_on_top_of_it() {
    let node = Node::new();
    let claims = node.start();
    let child = r#"{"macvlan": {}}"#;
    claims.prepare(&claim("a"), &pods(&["p1"]), &[wanted(1, "{}"), wanted(2, child)]).unwrap();
    for config in ["{}", child] {
        let refused = error(&claims, "b", "p2", &[wanted(1, config)]);
        assert!(refused.contains("request request-1: device eth1 is held by claim default/a"), "{refused}");
    }
    assert!(error(&claims, "b", "p2", &[wanted(2, "{}")]).contains("held by claim default/a"));
    claims.prepare(&claim("b"), &pods(&["p2"]), &[wanted(2, child)]).unwrap();
}

#[test]
fn a_static_address_that_another_claim_has_is_refused_and_free_after_it() {
    let node = Node::new();
    let claims = node.start();
    let fixed = r#"{"addresses": ["192.0.2.7/24"]}"#;
    claims.prepare(&claim("a"), &pods(&["p1"]), &[wanted(1, fixed)]).unwrap();
    let refused = error(&claims, "b", "p2", &[wanted(2, fixed)]);
    assert!(refused.contains("device eth2: the address 192.0.2.7 is in use by claim default/a"), "{refused}");
    assert_eq!(claims.held().len(), 1, "a refused claim has nothing");
    claims.unprepare(&claim("a").uid).unwrap();
    claims.prepare(&claim("b"), &pods(&["p2"]), &[wanted(2, fixed)]).unwrap();
}

#[test]
fn an_address_that_comes_along_from_the_host_is_refused_if_another_claim_has_it() {
    let node = Node::new();
    let claims = node.start();
    let fixed = wanted(2, r#"{"addresses": ["192.0.2.7/24"]}"#);
    let mut bringing = wanted(1, "{}");
    bringing.found.addresses = vec!["198.51.100.7/24".parse().unwrap(), "192.0.2.7/24".parse().unwrap()];
    claims.prepare(&claim("b"), &pods(&["p2"]), std::slice::from_ref(&fixed)).unwrap();
    let refused = error(&claims, "a", "p1", std::slice::from_ref(&bringing));
    assert!(refused.contains("device eth1: the address 192.0.2.7 is in use by claim default/b"), "{refused}");
    assert_eq!(claims.held().len(), 1, "a refused claim has nothing");
    claims.unprepare(&claim("b").uid).unwrap();
    claims.prepare(&claim("a"), &pods(&["p1"]), &[bringing]).unwrap();
    let refused = error(&claims, "b", "p2", &[fixed]);
    assert!(refused.contains("the address 192.0.2.7 is in use by claim default/a"), "{refused}");
}

#[test]
fn an_interface_with_more_addresses_than_a_claim_can_have_is_refused_unless_they_stay_on_the_host() {
    let node = Node::new();
    let claims = node.start();
    let with = |count: u8, config: &str| {
        let mut wanted = wanted(1, config);
        wanted.found.addresses = (1..=count).map(|last| format!("192.0.2.{last}/24").parse().unwrap()).collect();
        wanted
    };
    let refused = error(&claims, "a", "p1", &[with(17, "{}")]);
    let expected = "device eth1: interface eth1 has 17 addresses on the host, which would go along, and a claim can have at most 16: set \
                    addresses or addressRanges";
    assert!(refused.contains(expected), "{refused}");
    assert_eq!(claims.held().len(), 0);
    for allowed in [with(16, "{}"), with(17, r#"{"addresses": []}"#), with(17, r#"{"macvlan": {}}"#)] {
        claims.prepare(&claim("a"), &pods(&["p1"]), &[allowed]).unwrap();
        claims.unprepare(&claim("a").uid).unwrap();
    }
}

#[test]
fn a_range_is_shared_by_claims_and_survives_a_restart() {
    let node = Node::new();
    let range = r#"{"addressRanges": [{"subnet": "192.0.2.0/30"}], "macvlan": {}}"#;
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["p1"]), &[wanted(1, range)]).unwrap();
    let claims = node.start();
    claims.prepare(&claim("b"), &pods(&["p2"]), &[wanted(1, range)]).unwrap();
    let refused = error(&claims, "c", "p3", &[wanted(1, range)]);
    assert!(refused.contains("the address range 192.0.2.0/30 is exhausted: all 2 addresses"), "{refused}");
}

#[test]
fn names_in_a_pod_differ() {
    let node = Node::new();
    let claims = node.start();
    let template = r#"{"interfaceName": "data%d", "macvlan": {}}"#;
    assert_eq!(names(&claims, "a", "p1", &[wanted(1, template), wanted(2, template)]), ["data0", "data1"]);
    assert_eq!(names(&claims, "b", "p1", &[wanted(1, template)]), ["data2"], "also in another claim of the pod");
    assert_eq!(names(&claims, "c", "p2", &[wanted(1, template)]), ["data0"], "another pod has names of its own");
    let refused = error(&claims, "d", "p1", &[wanted(3, r#"{"interfaceName": "data0"}"#)]);
    assert!(refused.contains("the pod gets another interface with the name data0"), "{refused}");
    let template = r#"{"interfaceName": "eth%d", "macvlan": {}}"#;
    assert_eq!(names(&claims, "e", "p3", &[wanted(1, template), wanted(2, template)]), ["eth1", "eth2"]);
}

#[test]
fn an_interface_keeps_its_name_unless_a_pod_cannot_have_it() {
    let node = Node::new();
    let claims = node.start();
    let mut primary = wanted(2, "{}");
    primary.found.interface.as_mut().unwrap().name = "eth0".to_owned();
    assert_eq!(names(&claims, "a", "p1", &[wanted(1, "{}"), primary]), ["eth1", "net0"]);
}

#[test]
fn a_device_without_what_its_parameters_need_is_refused() {
    let node = Node::new();
    let claims = node.start();
    let mut virtual_one = wanted(1, r#"{"driver": "vfio-pci"}"#);
    virtual_one.found.pci = None;
    assert!(error(&claims, "a", "p1", &[virtual_one]).contains("is not a PCI device"));
    let mut bound = wanted(1, "{}");
    bound.found.interface = None;
    assert!(error(&claims, "a", "p1", &[bound]).contains("has no interface: a driver for user space has it"));
    let interface = Wanted { request: "net/a".to_owned(), ..wanted(1, "{}") };
    let userspace = Wanted { request: "net/b".to_owned(), ..wanted(2, r#"{"driver": "vfio-pci"}"#) };
    assert!(error(&claims, "a", "p1", &[interface, userspace]).contains("use a request for each kind"));
    assert_eq!(claims.held().len(), 0);
}

#[test]
fn a_claim_with_other_devices_must_be_unprepared_first() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["p1"]), &[wanted(1, "{}")]).unwrap();
    assert!(error(&claims, "a", "p1", &[wanted(2, "{}")]).contains("was prepared with other devices (eth1)"));
}
