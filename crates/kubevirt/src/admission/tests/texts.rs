//! What the messages tell, and the configuration from a KubeVirt object.

use super::*;

fn row(id: &str) -> (Workload, FeatureGates) {
    let row = Row::<Expected>::find(FILE, id);
    (row.workload(), row.gates())
}

#[test]
fn a_missing_claim_is_named_unless_strict() {
    let (workload, gates) = row("A20");
    let message = |behaviour| validate(&workload, &gates, behaviour)[0].message.clone();
    assert!(message(Behaviour::Extended).ends_with(r#"missing "c2" (used by gpus[1])"#));
    assert!(!message(Behaviour::Strict).contains("c2"));
}

/// A message names a few of many: it is shown on a terminal, and is part of an answer of bounded size.
#[test]
fn a_few_of_many_missing_claims_are_named() {
    let gpus: Vec<_> =
        (0..1000).map(|n| json!({"name": "g", "claimName": format!("c{n}"), "requestName": "r"})).collect();
    let json = json!({"kind": "VirtualMachineInstance", "spec": {"domain": {"devices": {"gpus": gpus}}}});
    let workload = Workload::from_json(&json.to_string()).unwrap();
    let causes = validate(&workload, &FeatureGates::default(), Behaviour::Extended);
    assert_eq!(causes.len(), 1);
    let message = &causes[0].message;
    assert!(message.ends_with(r#""c4" (used by gpus[4]), and 995 more"#), "{message}");
}

/// Every row of the table with its gates on: with unknown gates the same causes, and a warning per gate that is off by
/// default.
#[rstest]
#[case::a13("A13", &[])]
#[case::a36("A36", &["spec.networks"])]
#[case::n_hd("N-HD", &["spec.HostDevices"])]
fn with_unknown_gates_only_what_holds_for_all_gates_is_refused(#[case] id: &str, #[case] warned: &[&str]) {
    let (workload, _) = row(id);
    let (causes, warnings) = validate_without_gates(&workload, Behaviour::Strict);
    assert!(causes.iter().all(|cause| !cause.message.contains("gate")), "{causes:?}");
    let fields: Vec<_> = warnings
        .iter()
        .map(|warning| match warning {
            Warning::FeatureGate { field, .. } => &**field,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(fields, warned);
}

#[rstest]
#[case::a32("A32", &["\"s/a\"", "GPUs[0]", "HostDevices[0]"])]
#[case::a34("A34", &["\"c/vf\"", "GPUs[0]", "Networks[0]"])]
#[case::a35("A35", &["\"c/vf\"", "HostDevices[0]", "Networks[0]"])]
#[case::a13("A13", &["GPUsWithDRA"])]
#[case::a14("A14", &["HostDevicesWithDRA"])]
#[case::a36("A36", &["NetworkDevicesWithDRA"])]
#[case::a05("A05", &["resourceClaims[0].name", "RFC 1123 label"])]
fn a_message_names_what_it_is_about(#[case] id: &str, #[case] parts: &[&str]) {
    let (workload, gates) = row(id);
    let causes = validate(&workload, &gates, Behaviour::Strict);
    for part in parts {
        assert!(causes[0].message.contains(part), "{id}: {:?} does not name {part}", causes[0].message);
    }
}

#[test]
fn gates_come_from_the_kubevirt_object() {
    let kubevirt = KubeVirt::from_yaml(
        "
kind: KubeVirt
spec:
  configuration:
    developerConfiguration:
      featureGates: [HostDevices, NetworkDevicesWithDRA]
      disabledFeatureGates: [GPUsWithDRA, HostDevices]
",
    )
    .unwrap();
    let gates = FeatureGates::from_kubevirt(&kubevirt);
    let (workload, _) = row("A32");
    let causes = validate(&workload, &gates, Behaviour::Extended);
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert!(causes[0].message.contains("GPUsWithDRA"));
}
