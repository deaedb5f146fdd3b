//! The answers to reviews, without a server.

use rstest::rstest;

use super::*;

fn answer(review: &Value, policy: &Policy) -> Value {
    let answer = super::review(review.to_string().as_bytes(), policy).unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    answer["response"].clone()
}

fn strict() -> Policy {
    Policy { behaviour: Behaviour::Strict, ..Policy::default() }
}

#[rstest]
#[case::create("CREATE")]
#[case::update("UPDATE")]
fn a_valid_object_is_allowed(#[case] operation: &str) {
    let response = answer(&review_of(operation, &vmi("gpu")), &Policy::default());
    let uid = "705ab4f5-6393-11e8-b7cc-42010a800002";
    assert_eq!(response, json!({"uid": uid, "allowed": true}));
}

#[test]
fn a_violation_is_answered_as_by_kubevirt() {
    let response = answer(&review_of("CREATE", &vmi("other")), &Policy::default());
    assert_eq!(response["allowed"], false);
    let status = &response["status"];
    assert_eq!(status["code"], 422);
    assert_eq!(status["reason"], "Invalid");
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1);
    assert_eq!(causes[0]["reason"], "FieldValueInvalid");
    assert_eq!(causes[0]["field"], "spec.resourceClaims");
    assert_eq!(causes[0]["message"], status["message"]);
    assert!(status["message"].as_str().unwrap().ends_with(r#"missing "gpu" (used by gpus[0])"#));
    assert_eq!(response["warnings"].as_array().unwrap().len(), 1, "the claim \"other\" is not used");
}

#[test]
fn the_template_of_a_vm_is_checked_with_its_prefix() {
    let mut vm = vmi("other");
    vm = json!({"kind": "VirtualMachine", "apiVersion": "kubevirt.io/v1", "metadata": vm["metadata"],
                "spec": {"template": {"spec": vm["spec"]}}});
    let response = answer(&review_of("UPDATE", &vm), &Policy::default());
    assert_eq!(response["status"]["details"]["causes"][0]["field"], "spec.template.spec.resourceClaims");
}

/// Ten causes, and the number of the others at the end of the message.
#[rstest]
#[case::ten(10, "field")]
#[case::twenty_one(21, ", and 11 more validation errors")]
fn at_most_ten_causes_are_listed(#[case] claims: usize, #[case] end: &str) {
    let mut object = vmi("gpu");
    object["spec"]["resourceClaims"] = (0..claims).map(|_| json!({"resourceClaimName": "a"})).collect();
    object["spec"]["domain"]["devices"] = json!({});
    let response = answer(&review_of("CREATE", &object), &Policy::default());
    assert_eq!(response["status"]["details"]["causes"].as_array().unwrap().len(), 10);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.ends_with(end), "{message}");
}

#[test]
fn strict_refuses_null_by_the_schema_and_extended_takes_it_as_absent() {
    let mut object = vmi("gpu");
    object["spec"]["domain"]["devices"]["gpus"][0]["requestName"] = Value::Null;
    let response = answer(&review_of("CREATE", &object), &strict());
    let message = r#"spec.domain.devices.gpus.requestName in body must be of type string: "null""#;
    assert_eq!(response["status"]["details"]["causes"], json!([{ "message": message }]));
    assert_eq!(response["status"]["message"], message);
    assert_eq!(response["status"]["code"], 422);

    let response = answer(&review_of("CREATE", &object), &Policy::default());
    assert_eq!(response["status"]["details"]["causes"][0]["field"], "spec.domain.devices.gpus[0].requestName");
}

#[test]
fn strict_has_no_warnings_and_does_not_name_the_claim() {
    let response = answer(&review_of("CREATE", &vmi("other")), &strict());
    assert_eq!(response["warnings"], Value::Null);
    assert!(!response["status"]["message"].as_str().unwrap().contains("\"gpu\""));
}

/// A gate that is turned off refuses new machines, and leaves those alone that exist.
#[test]
fn a_gate_turned_off_does_not_hold_up_what_exists() {
    let policy = Policy { gates: Some(FeatureGates::default().with(Gate::GpusWithDra, false)), ..Policy::default() };
    assert_eq!(answer(&review_of("CREATE", &vmi("gpu")), &policy)["allowed"], false);

    let mut labelled = vmi("gpu");
    labelled["metadata"]["labels"] = json!({"kubevirt.io/nodeName": "node-1"});
    let mut update = review_of("UPDATE", &labelled);
    update["request"]["oldObject"] = vmi("gpu");
    assert_eq!(answer(&update, &policy)["allowed"], true, "the specification is the same");

    update["request"]["oldObject"] = vmi("other");
    assert_eq!(answer(&update, &policy)["allowed"], false, "the specification is another");

    update["request"]["object"]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(answer(&update, &policy)["allowed"], true, "finalizers of a deleted object can be removed");
}

/// A VM with a host device of a device plugin, valid where the gate `HostDevices` is on.
#[rstest]
#[case::extended(Behaviour::Extended)]
#[case::strict(Behaviour::Strict)]
fn what_depends_on_an_unknown_gate_is_warned_about_and_not_refused(#[case] behaviour: Behaviour) {
    let mut object = vmi("gpu");
    object["spec"]["domain"]["devices"]["hostDevices"] = json!([{"name": "h", "deviceName": "vendor.example/d"}]);
    let create = review_of("CREATE", &object);
    let response = answer(&create, &Policy { gates: None, behaviour });
    assert_eq!(response["allowed"], true);
    let text =
        "spec.HostDevices: needs KubeVirt's feature gate HostDevices, which is off unless your cluster turns it on";
    assert_eq!(response["warnings"], json!([text]));

    let off = FeatureGates::default();
    assert_eq!(answer(&create, &Policy { gates: Some(off), behaviour })["allowed"], false);
    let on = off.with(Gate::HostDevices, true);
    let response = answer(&create, &Policy { gates: Some(on), behaviour });
    assert_eq!((&response["allowed"], &response["warnings"]), (&json!(true), &Value::Null));

    object["spec"]["resourceClaims"] = json!([]);
    let response = answer(&review_of("CREATE", &object), &Policy { gates: None, behaviour });
    assert_eq!(response["allowed"], false, "the claim is missing whatever the gates are");
}

#[rstest]
#[case::delete("DELETE", "")]
#[case::connect("CONNECT", "console")]
#[case::status("UPDATE", "status")]
fn other_operations_and_subresources_are_allowed(#[case] operation: &str, #[case] subresource: &str) {
    let mut review = review_of(operation, &json!({"kind": "ConsoleOptions"}));
    review["request"]["subResource"] = json!(subresource);
    assert_eq!(answer(&review, &Policy::default())["allowed"], true);
    assert_eq!(answer(&review, &strict())["allowed"], true);
    review["request"]["object"] = Value::Null;
    assert_eq!(answer(&review, &Policy::default())["allowed"], true);
}

#[rstest]
#[case::extended(Policy::default())]
#[case::strict(strict())]
fn another_kind_is_refused_by_name(#[case] policy: Policy) {
    let mut review = review_of("CREATE", &json!({"apiVersion": "v1", "kind": "Pod", "spec": {}}));
    review["request"]["kind"]["group"] = json!("");
    let response = answer(&review, &policy);
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 400);
    assert!(response["status"]["message"].as_str().unwrap().contains("not Pod of \"\""), "{response}");
}

#[rstest]
#[case::type_of_a_list(json!({"kind": "VirtualMachineInstance", "spec": {"resourceClaims": "c"}}), "expected a sequence")]
#[case::type_of_a_name(
    json!({"kind": "VirtualMachineInstance", "spec": {"domain": {"devices": {"gpus": [{"name": 5}]}}}}), "expected a string"
)]
#[case::no_object(Value::Null, "the CREATE request has no object")]
fn an_object_that_cannot_be_read_is_refused(#[case] object: Value, #[case] text: &str) {
    let mut review = review_of("CREATE", &vmi("gpu"));
    review["request"]["object"] = object;
    for policy in [Policy::default(), strict()] {
        let response = answer(&review, &policy);
        assert_eq!(response["status"]["code"], 400);
        assert!(response["status"]["message"].as_str().unwrap().contains(text), "{response}");
    }
}

#[rstest]
#[case::no_json("{", "the request is not an AdmissionReview: EOF")]
#[case::empty("", "the request is not an AdmissionReview: EOF")]
#[case::list("[]", "the request is not an AdmissionReview")]
#[case::other_kind(r#"{"kind": "Pod", "apiVersion": "v1"}"#, "found kind \"Pod\" of apiVersion \"v1\"")]
#[case::other_version(
    r#"{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "1"}}"#,
    "v1beta1"
)]
#[case::no_request(r#"{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}"#, "has no request")]
#[case::no_uid(r#"{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {}}"#, "has no uid")]
#[case::trailing(r#"{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"} x"#, "trailing characters")]
fn a_malformed_review_is_an_error(#[case] body: &str, #[case] text: &str) {
    for policy in [Policy::default(), strict()] {
        let error = review(body.as_bytes(), &policy).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

/// Deep nesting ends in an error, not in an overflow of the stack.
#[test]
fn deep_nesting_is_an_error() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let body = format!(r#"{{"kind": "AdmissionReview", "request": {{"uid": "1", "object": {{"x": {deep}}}}}}}"#);
    review(body.as_bytes(), &Policy::default()).unwrap_err();
    review(body.as_bytes(), &strict()).unwrap_err();
}

/// The largest review takes time in proportion to its size: work that grows with the square would take minutes here.
#[test]
fn the_largest_review_is_answered_in_time() {
    let numbered = |make: fn(usize) -> Value| (0..8_000).map(make).collect::<Vec<_>>();
    let mut object = vmi("gpu");
    object["spec"]["resourceClaims"] = numbered(|i| json!({"name": format!("c{i}"), "resourceClaimName": "c"})).into();
    object["spec"]["domain"]["devices"] = json!({
        "gpus": numbered(|i| json!({"name": format!("g{i}"), "claimName": format!("x{i}"), "requestName": "r"})),
        "hostDevices": numbered(|i| json!({"name": format!("h{i}"), "claimName": format!("c{i}"), "requestName": "r"})),
        "interfaces": numbered(|i| json!({"name": format!("n{i}"), "sriov": {}})),
    });
    object["spec"]["networks"] = numbered(
        |i| json!({"name": format!("n{i}"), "resourceClaim": {"claimName": format!("c{i}"), "requestName": "r"}}),
    )
    .into();
    let gates = FeatureGates::default().with(Gate::NetworkDevicesWithDra, true).with(Gate::HostDevices, true);
    let review = review_of("CREATE", &object);
    assert!(review.to_string().len() < 3 << 20);
    let cpu_time = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
    let start = cpu_time();
    let message = answer(&review, &Policy { gates: Some(gates), ..Policy::default() })["status"]["message"].clone();
    assert!(cpu_time() - start < 20);
    assert!(message.as_str().unwrap().ends_with(", and 7991 more validation errors"), "{message}");
}

/// The manifest sends what the webhook reviews, where it answers.
#[test]
fn the_manifest_fits_the_webhook() {
    let manifest = include_str!("../../../manifests/webhook.yaml");
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
    let [_, configuration, service, _] = &*documents else { panic!("four documents") };
    let webhook = &configuration["webhooks"][0];
    assert_eq!(webhook["admissionReviewVersions"], json!(["v1"]));
    let rule = json!({
        "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["virtualmachineinstances", "virtualmachines"], "scope": "Namespaced",
    });
    assert_eq!(webhook["rules"], json!([rule]));
    let target = &webhook["clientConfig"]["service"];
    assert_eq!(target["path"], "/validate");
    assert_eq!(
        (&target["namespace"], &target["name"]),
        (&service["metadata"]["namespace"], &service["metadata"]["name"])
    );
    let timeout = Options::new(([0, 0, 0, 0], 0).into(), "", "").request_timeout;
    assert_eq!(webhook["timeoutSeconds"], timeout.as_secs(), "the API server waits as long as the webhook works");
}
