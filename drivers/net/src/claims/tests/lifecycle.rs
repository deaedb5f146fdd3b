//! Claims and pods that come and go, in the order of a runtime and in others.

use std::path::PathBuf;

use super::node::{Node, Place, claim, patient, phases, pods, retry, wanted};
use crate::claims::Patience;

#[test]
fn an_interface_goes_to_the_pod_and_comes_back() {
    let node = Node::new();
    let claims = node.start();
    let wanted = [wanted(1, r#"{"interfaceName": "data0", "mtu": 9000, "addresses": ["192.0.2.7/24"]}"#)];
    let prepared = claims.prepare(&claim("a"), &pods(&["pod"]), &wanted).unwrap();
    assert!(node.is_as_it_was(), "prepare changes nothing");
    assert_eq!(phases(&prepared.record), ["prepared"]);
    let attached = claims.attach(&node.sandbox("pod", "s1"), &patient()).unwrap();
    assert_eq!(phases(&attached[0].record), ["attached"]);
    let namespace = Some(PathBuf::from("/var/run/netns/s1"));
    assert_eq!(node.place(1), Place { namespace: namespace.clone(), name: "data0".into(), mtu: 9000 });
    assert_eq!(claims.held()[0].device, "eth1");
    assert_eq!((claims.count().devices, claims.count().attached), (1, 1));
    claims.detach("s1").unwrap();
    assert!(node.is_as_it_was());
    claims.unprepare(&claim("a").uid).unwrap();
    assert_eq!((node.journal_files(), claims.held().len()), (0, 0));
}

#[test]
fn repeated_calls_change_nothing() {
    let node = Node::new();
    let claims = node.start();
    let wanted = [wanted(1, r#"{"addressRanges": [{"subnet": "192.0.2.0/24"}]}"#)];
    let first = claims.prepare(&claim("a"), &pods(&["pod"]), &wanted).unwrap();
    assert_eq!(claims.prepare(&claim("a"), &pods(&["pod"]), &wanted).unwrap(), first);
    let sandbox = node.sandbox("pod", "s1");
    let attached = claims.attach(&sandbox, &patient()).unwrap();
    assert!(attached[0].is_new);
    assert!(claims.mark_published(&claim("a").uid, "s1").unwrap());
    let again = claims.attach(&sandbox, &patient()).unwrap();
    assert!(!again[0].is_new, "the metadata file has it");
    let prepared = claims.prepare(&claim("a"), &pods(&["pod"]), &wanted).unwrap();
    assert_eq!(phases(&prepared.record), ["attached"], "a kubelet that restarts leaves it in the pod");
    claims.detach("s1").unwrap();
    claims.detach("s1").unwrap();
    claims.unprepare(&claim("a").uid).unwrap();
    claims.unprepare(&claim("a").uid).unwrap();
    assert!(node.is_as_it_was());
}

#[test]
fn an_unprepare_brings_back_what_no_stop_has() {
    let node = Node::new();
    let claims = node.start();
    claims
        .prepare(
            &claim("a"),
            &pods(&["pod"]),
            &[wanted(1, r#"{"interfaceName": "x"}"#), wanted(2, r#"{"macvlan": {}}"#)],
        )
        .unwrap();
    claims.attach(&node.sandbox("pod", "s1"), &patient()).unwrap();
    assert_eq!(node.kernel.lock().unwrap().children.len(), 1);
    claims.unprepare(&claim("a").uid).unwrap();
    assert!(node.is_as_it_was());
}

#[test]
fn all_claims_of_a_pod_are_attached_or_none() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["pod"]), &[wanted(1, "{}")]).unwrap();
    claims.prepare(&claim("b"), &pods(&["pod"]), &[wanted(2, "{}"), wanted(3, r#"{"interfaceName": "bad"}"#)]).unwrap();
    node.kernel.lock().unwrap().refused.insert("bad".to_owned());
    let error = claims.attach(&node.sandbox("pod", "s1"), &patient()).unwrap_err().to_string();
    let expected = "claim default/b (uid uid-of-b): request request-3: device eth3: not attached to pod default/pod: the pod already has an interface bad: choose another interfaceName";
    assert_eq!(error, expected);
    assert!(node.is_as_it_was());
    node.kernel.lock().unwrap().refused.clear();
    assert_eq!(claims.attach(&node.sandbox("pod", "s2"), &patient()).unwrap().len(), 2);
}

#[test]
fn a_pod_without_claims_is_nobodys_business() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["pod"]), &[wanted(1, "{}")]).unwrap();
    assert!(claims.has_interfaces_for("pod") && !claims.has_interfaces_for("other"));
    assert_eq!(claims.attach(&node.sandbox("other", "s1"), &patient()).unwrap(), []);
    assert_eq!(claims.detach("s1").unwrap(), []);
    assert!(node.is_as_it_was());
}

#[test]
fn the_next_sandbox_of_a_pod_takes_the_interface_over_and_a_late_stop_of_the_first_does_nothing() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["pod"]), &[wanted(1, "{}")]).unwrap();
    claims.attach(&node.sandbox("pod", "s1"), &patient()).unwrap();
    claims.attach(&node.sandbox("pod", "s2"), &patient()).unwrap();
    claims.detach("s1").unwrap();
    assert_eq!(node.place(1).namespace, Some(PathBuf::from("/var/run/netns/s2")));
    assert!(!claims.mark_published(&claim("a").uid, "s1").unwrap());
}

#[test]
fn an_attach_that_nobody_waits_for_is_taken_back() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["pod"]), &[wanted(1, "{}"), wanted(2, "{}")]).unwrap();
    let calls = std::sync::atomic::AtomicU32::new(0);
    let is_over = || calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1;
    let patience = Patience { deadline: None, is_over: &is_over };
    let error = claims.attach(&node.sandbox("pod", "s1"), &patience).unwrap_err();
    assert!(error.to_string().contains("the runtime no longer waits"), "{error}");
    assert!(node.is_as_it_was());
}

#[test]
fn an_interface_that_cannot_be_brought_back_is_tried_again() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["pod"]), &[wanted(1, "{}")]).unwrap();
    claims.attach(&node.sandbox("pod", "s1"), &patient()).unwrap();
    node.kernel.lock().unwrap().is_stuck = true;
    let error = claims.detach("s1").unwrap_err().to_string();
    assert!(
        error.contains("not brought back from pod default/pod, which is tried again: the interface is neither"),
        "{error}"
    );
    assert!(claims.unprepare(&claim("a").uid).is_err());
    assert!(!claims.left_over_sandboxes().is_empty());
    assert!(retry(&claims)[0].is_err());
    node.kernel.lock().unwrap().is_stuck = false;
    assert!(retry(&claims)[0].is_ok());
    assert!(node.is_as_it_was() && claims.left_over_sandboxes().is_empty());
    claims.unprepare(&claim("a").uid).unwrap();
}

#[test]
fn a_namespace_that_vanishes_without_a_word_gives_its_interface_back() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["pod"]), &[wanted(1, r#"{"interfaceName": "data0"}"#)]).unwrap();
    let sandbox = node.sandbox("pod", "s1");
    claims.attach(&sandbox, &patient()).unwrap();
    assert!(claims.left_over_sandboxes().is_empty());
    node.kernel.lock().unwrap().end_namespace(&sandbox.namespace);
    assert_eq!(node.place(1).name, "data0", "it came back under the name that it had in the pod");
    assert!(retry(&claims)[0].is_ok());
    assert!(node.is_as_it_was());
    claims.attach(&node.sandbox("pod", "s2"), &patient()).unwrap();
}

#[test]
fn a_claim_that_is_reserved_for_another_pod_now_leaves_the_first() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["pod-1"]), &[wanted(1, "{}")]).unwrap();
    claims.attach(&node.sandbox("pod-1", "s1"), &patient()).unwrap();
    claims.prepare(&claim("a"), &pods(&["pod-2"]), &[wanted(1, "{}")]).unwrap();
    assert!(node.is_as_it_was());
    claims.attach(&node.sandbox("pod-2", "s2"), &patient()).unwrap();
    assert_eq!(node.place(1).namespace, Some(PathBuf::from("/var/run/netns/s2")));
}

#[test]
fn a_device_for_user_space_is_bound_at_prepare_and_stays_out_of_hooks() {
    let node = Node::new();
    let claims = node.start();
    let prepared =
        claims.prepare(&claim("a"), &pods(&["pod-1", "pod-2"]), &[wanted(1, r#"{"driver": "vfio-pci"}"#)]).unwrap();
    assert_eq!(prepared.bound[0].address.to_string(), "0000:03:00.1");
    assert_eq!(prepared.bound[0].nodes, [PathBuf::from("/dev/vfio/7")]);
    assert!(!claims.has_interfaces_for("pod-1"));
    claims.unprepare(&claim("a").uid).unwrap();
    assert!(node.is_as_it_was());
}
