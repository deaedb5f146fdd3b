//! What a cluster answers: KubeVirt's mutating webhook has been there before.

use super::*;

fn vmi(spec: &serde_json::Value) -> String {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"}, "spec": spec})
        .to_string()
}

fn devices(devices: &serde_json::Value) -> String {
    vmi(&json!({"resourceClaims": [{"name": "c", "resourceClaimName": "c"}], "domain": {"devices": devices}}))
}

fn live(json: &str, gates: FeatureGates) -> Vec<(String, String)> {
    let workload = as_remarshalled(Workload::from_json(json).unwrap());
    let causes = validate(&workload, &gates, Behaviour::Strict);
    causes.into_iter().map(|cause| (cause.reason.to_string(), cause.field)).collect()
}

fn all_on() -> FeatureGates {
    FeatureGates::default().with(Gate::HostDevices, true)
}

/// Row 1: empty names are dropped, so both empty, or only an empty `claimName`, is no claim request at all.
#[rstest]
#[case::a17_both_empty(json!([{"name": "g", "claimName": "", "requestName": ""}]), "FieldValueRequired", "")]
#[case::only_claim_name(json!([{"name": "g", "claimName": ""}]), "FieldValueRequired", "")]
#[case::beside_a_dra_gpu(
    json!([{"name": "g", "claimName": ""}, {"name": "h", "claimName": "c", "requestName": "r"}]), "FieldValueInvalid", ""
)]
#[case::a15_one_name_stays(json!([{"name": "g", "claimName": "", "requestName": "r"}]), "FieldValueRequired", "[0].claimName")]
fn row_1_empty_names_are_dropped(#[case] gpus: serde_json::Value, #[case] reason: &str, #[case] below: &str) {
    let causes = live(&devices(&json!({ "gpus": gpus })), all_on());
    assert_eq!(causes, [(reason.to_owned(), format!("spec.domain.devices.gpus{below}"))]);
}

#[rstest]
#[case::a18_both_empty(json!([{"name": "h", "claimName": "", "requestName": ""}]))]
#[case::a28_after_others(json!([{"name": "p", "deviceName": "v.example/d"}, {"name": "h", "requestName": ""}]))]
fn row_1_empty_names_of_host_devices_are_dropped(#[case] host_devices: serde_json::Value) {
    let causes = live(&devices(&json!({ "hostDevices": host_devices })), all_on());
    assert_eq!(causes, [("FieldValueRequired".to_owned(), "spec.domain.devices.hostDevices".to_owned())]);
}

/// Row 2: `null` and unknown keys are refused before any rule, with a message only.
#[test]
fn row_2_null_and_unknown_keys_are_refused_by_the_schema() {
    let json = vmi(&json!({
        "resourceClaims": [{"name": "c", "resourceClaimName": null}],
        "domain": {"devices": {
            "gpus": [{"name": "g", "claimName": null, "requestName": "r"}, {"name": "g", "foo": 1}],
            "hostDevices": [{"name": "h", "claimName": "c", "requestName": "r"}],
        }},
    }));
    let causes = schema_violations(&json).unwrap();
    let messages: Vec<&str> = causes.iter().map(|cause| &*cause.message).collect();
    assert_eq!(
        messages,
        [
            r#"spec.domain.devices.gpus.claimName in body must be of type string: "null""#,
            "spec.domain.devices.gpus.foo in body is a forbidden property",
            r#"spec.resourceClaims.resourceClaimName in body must be of type string: "null""#,
        ]
    );
    assert_eq!(serde_json::to_value(&causes[1]).unwrap(), json!({"message": messages[1]}));
}

#[test]
fn row_2_holds_for_the_claims_of_networks() {
    let json = vmi(&json!({"networks": [
        {"name": "pod", "pod": {}},
        {"name": "a", "resourceClaim": {"claimName": null, "requestName": "r", "foo": 1}},
        {"name": "b", "resourceClaim": null},
    ]}));
    let messages: Vec<String> = schema_violations(&json).unwrap().into_iter().map(|cause| cause.message).collect();
    assert_eq!(
        messages,
        [
            r#"spec.networks.resourceClaim.claimName in body must be of type string: "null""#,
            "spec.networks.resourceClaim.foo in body is a forbidden property",
            r#"spec.networks.resourceClaim in body must be of type object: "null""#,
        ]
    );
}

#[test]
fn row_2_holds_for_the_template_of_a_vm() {
    let json = json!({
        "kind": "VirtualMachine",
        "spec": {"template": {"spec": {"domain": {"devices": {"hostDevices": [{"name": "h", "requestName": null}]}}}}},
    });
    let causes = schema_violations(&json.to_string()).unwrap();
    assert_eq!(causes.len(), 1);
    let text = r#"spec.template.spec.domain.devices.hostDevices.requestName in body must be of type string: "null""#;
    assert_eq!(causes[0].to_string(), text);
}

/// Row 3: `hostDevices: []` needs no gate, and a GPU needs no name.
#[test]
fn row_3_an_empty_list_and_a_gpu_without_name_pass() {
    let gpus = json!([{"claimName": "c", "requestName": "r"}]);
    let json = devices(&json!({"hostDevices": [], "gpus": gpus}));
    assert_eq!(live(&json, FeatureGates::default()), []);
    let raw = validate(&Workload::from_json(&json).unwrap(), &FeatureGates::default(), Behaviour::Strict);
    assert_eq!(found(&raw), [ExpectedCause { reason: "FieldValueInvalid".into(), field: "spec.HostDevices".into() }]);
}

/// The defaults turn a frame buffer without `enabled` on, in a VMI. KubeVirt's rule does not count it before.
#[test]
fn a_frame_buffer_without_enabled_counts_once_defaults_are_applied() {
    let gpu = |name: &str| json!({"name": name, "claimName": "c", "requestName": name, "virtualGPUOptions": {"display": {"ramFB": {}}}});
    let json = devices(&json!({"gpus": [gpu("a"), gpu("b")]}));
    let expected = [("FieldValueInvalid".to_owned(), "spec.GPUs".to_owned())];
    assert_eq!(live(&json, all_on()), expected);
    let raw = Workload::from_json(&json).unwrap();
    assert_eq!(validate(&raw, &all_on(), Behaviour::Strict), []);
    assert_eq!(validate(&raw, &all_on(), Behaviour::Extended).len(), 1);
}
