//! Drivers that die at any step, disks that are full, and files that are damaged.

use std::collections::BTreeSet;

use drakkar_driver_kit::files::faults::Life;
use proptest::prelude::*;

use super::node::{Node, claim, patient, phases, pods, retry, wanted};
use crate::claims::Claims;

/// The life of two claims of a pod. Errors are those of a driver that dies.
fn work(node: &Node, claims: &Claims) {
    let _ = claims.recover();
    let data = wanted(1, r#"{"interfaceName": "data0", "mtu": 9000}"#);
    let _ = claims.prepare(&claim("a"), &pods(&["pod"]), &[data, wanted(2, r#"{"vlan": {"id": 7}}"#)]);
    let _ = claims.prepare(&claim("b"), &pods(&["pod"]), &[wanted(3, r#"{"driver": "vfio-pci"}"#)]);
    let _ = claims.attach(&node.sandbox("pod", "s1"), &patient());
    let _ = claims.mark_published(&claim("a").uid, "s1");
    let _ = claims.detach("s1");
    let _ = claims.unprepare(&claim("a").uid);
    let _ = claims.unprepare(&claim("b").uid);
}

#[test]
fn a_driver_that_dies_at_any_step_loses_no_interface() {
    let steps = {
        let node = Node::new();
        let life = Life::endless();
        work(&node, &node.mortal(&life));
        assert!(node.is_as_it_was());
        life.used()
    };
    assert!(steps > 20, "{steps}");
    let mut seen = BTreeSet::new();
    for step in 0..steps {
        let node = Node::new();
        let life = Life::of(step);
        work(&node, &node.mortal(&life));
        assert!(life.is_dead(), "at {step}");
        // The next driver finds interfaces on the host, or in the pod with a record that says so.
        let (claims, recovery) = node.restart();
        assert!(recovery.errors.is_empty() && recovery.problems.is_empty(), "at {step}: {recovery:?}");
        for record in claims.of_pod("pod") {
            for phase in phases(&record) {
                assert!(matches!(phase, "prepared" | "attached"), "at {step}: {phase}");
                seen.insert(phase);
            }
        }
        assert!(claims.left_over_sandboxes().is_empty(), "at {step}");
        claims.attach(&node.sandbox("pod", "s2"), &patient()).unwrap();
        for name in ["a", "b"] {
            claims.unprepare(&claim(name).uid).unwrap();
        }
        assert!(node.is_as_it_was(), "at {step}: {:?}", node.kernel.lock().unwrap());
        assert_eq!(node.journal_files(), 0, "at {step}");
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["attached", "prepared"]);
}

#[test]
fn a_journal_of_an_earlier_boot_is_dropped() {
    let node = Node::new();
    node.start().prepare(&claim("a"), &pods(&["pod"]), &[wanted(1, "{}")]).unwrap();
    node.reboot();
    let (claims, recovery) = node.restart();
    assert_eq!(recovery.earlier_boot, [claim("a")]);
    assert_eq!((claims.held().len(), node.journal_files()), (0, 0));
}

#[test]
fn an_attached_claim_survives_a_restart_and_one_whose_namespace_is_gone_comes_back() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["p1"]), &[wanted(1, "{}")]).unwrap();
    claims.prepare(&claim("b"), &pods(&["p2"]), &[wanted(2, r#"{"interfaceName": "x"}"#)]).unwrap();
    claims.attach(&node.sandbox("p1", "s1"), &patient()).unwrap();
    let second = node.sandbox("p2", "s2");
    claims.attach(&second, &patient()).unwrap();
    node.kernel.lock().unwrap().end_namespace(&second.namespace);
    let (claims, recovery) = node.restart();
    assert_eq!((recovery.kept, recovery.restored), (vec![claim("a")], vec![claim("b")]));
    assert_eq!(node.place(1).namespace, Some("/var/run/netns/s1".into()));
    assert_eq!((node.place(2).namespace, node.place(2).name), (None, "eth2".to_owned()));
    claims.unprepare(&claim("a").uid).unwrap();
    assert!(node.is_as_it_was());
}

#[test]
fn another_namespace_at_the_same_path_is_not_the_pods() {
    let node = Node::new();
    let claims = node.start();
    claims.prepare(&claim("a"), &pods(&["pod"]), &[wanted(1, "{}")]).unwrap();
    let sandbox = node.sandbox("pod", "s1");
    claims.attach(&sandbox, &patient()).unwrap();
    node.kernel.lock().unwrap().end_namespace(&sandbox.namespace);
    node.kernel.lock().unwrap().namespaces.insert(sandbox.namespace, 7);
    assert!(!claims.left_over_sandboxes().is_empty());
}

#[test]
fn a_damaged_record_is_reported_and_goes_with_its_claim() {
    let node = Node::new();
    node.start().prepare(&claim("a"), &pods(&["pod"]), &[wanted(1, "{}")]).unwrap();
    let file = node.journal().join(format!("{}.json", claim("a").uid));
    let content = std::fs::read(&file).unwrap();
    std::fs::write(&file, &content[..content.len() / 2]).unwrap();
    let (claims, recovery) = node.restart();
    assert_eq!(recovery.problems.len(), 1);
    assert!(recovery.problems[0].to_string().contains("torn"), "{}", recovery.problems[0]);
    claims.unprepare(&claim("a").uid).unwrap();
    assert_eq!(node.journal_files(), 0);
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Prepare { claim: usize, device: u32 },
    Unprepare { claim: usize },
    Attach { pod: usize, sandbox: usize },
    Detach { sandbox: usize },
    EndNamespace { sandbox: usize },
    Retry,
    Die { steps: u64 },
}

const CLAIMS: [&str; 3] = ["a", "b", "c"];
const PODS: [&str; 2] = ["p1", "p2"];
const SANDBOXES: [&str; 3] = ["s1", "s2", "s3"];

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => (0..CLAIMS.len(), 1..=3u32).prop_map(|(claim, device)| Action::Prepare { claim, device }),
        2 => (0..CLAIMS.len()).prop_map(|claim| Action::Unprepare { claim }),
        4 => (0..PODS.len(), 0..SANDBOXES.len()).prop_map(|(pod, sandbox)| Action::Attach { pod, sandbox }),
        2 => (0..SANDBOXES.len()).prop_map(|sandbox| Action::Detach { sandbox }),
        1 => (0..SANDBOXES.len()).prop_map(|sandbox| Action::EndNamespace { sandbox }),
        1 => Just(Action::Retry),
        2 => (0..25u64).prop_map(|steps| Action::Die { steps }),
    ];
    prop::collection::vec(action, 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_everything_is_as_it_was_in_the_end(actions in actions()) {
        let node = Node::new();
        let mut claims = node.start();
        for action in actions {
            match action {
                Action::Prepare { claim: name, device } => {
                    let config = if device == 3 { r#"{"ipvlan": {}}"# } else { r#"{"interfaceName": "data%d"}"# };
                    drop(claims.prepare(&claim(CLAIMS[name]), &pods(&[PODS[name % 2]]), &[wanted(device, config)]));
                }
                Action::Unprepare { claim: name } => drop(claims.unprepare(&claim(CLAIMS[name]).uid)),
                Action::Attach { pod, sandbox } => {
                    drop(claims.attach(&node.sandbox(PODS[pod], SANDBOXES[sandbox]), &patient()));
                }
                Action::Detach { sandbox } => drop(claims.detach(SANDBOXES[sandbox])),
                Action::EndNamespace { sandbox } => {
                    node.kernel.lock().unwrap().end_namespace(format!("/var/run/netns/{}", SANDBOXES[sandbox]).as_ref());
                }
                Action::Retry => drop(retry(&claims)),
                Action::Die { steps } => {
                    claims = node.mortal(&Life::of(steps));
                    drop(claims.recover());
                }
            }
        }
        let (claims, recovery) = node.restart();
        prop_assert!(recovery.errors.is_empty(), "{:?}", recovery.errors);
        for name in CLAIMS {
            claims.unprepare(&claim(name).uid).unwrap();
        }
        prop_assert!(node.is_as_it_was(), "{:?}", node.kernel.lock().unwrap());
        prop_assert_eq!(node.journal_files(), 0);
    }
}
