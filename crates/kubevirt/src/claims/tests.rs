use super::*;

fn vm(devices: &Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "train", "namespace": "lab"},
        "spec": {"template": {"spec": {"domain": {"devices": devices, "memory": {"guest": "4Gi"}}}}},
    })
}

fn two_gpus_and_a_disk() -> Value {
    vm(&json!({
        "gpus": [
            {"name": "g0", "deviceClassName": "gpu.example.com"},
            {"name": "g1", "deviceClassName": "gpu.example.com", "deviceSelector": "device.driver == 'a'"},
        ],
        "hostDevices": [{"name": "nvme", "deviceClassName": "nvme.example.com"}],
    }))
}

#[test]
fn each_device_gets_a_template_of_its_own() {
    let generated = generate(&two_gpus_and_a_disk(), &ClaimOptions::default()).unwrap();
    let names: Vec<_> = generated.claims.iter().map(|claim| claim["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["train-g0", "train-g1", "train-nvme"]);
    let second = &generated.claims[1];
    assert_eq!(second["kind"], "ResourceClaimTemplate");
    assert_eq!(second["metadata"]["namespace"], "lab");
    assert_eq!(
        second["spec"]["spec"]["devices"]["requests"],
        json!([{"name": "gpu", "exactly": {
            "deviceClassName": "gpu.example.com",
            "selectors": [{"cel": {"expression": "device.driver == 'a'"}}],
        }}])
    );
    let spec = &generated.workload["spec"]["template"]["spec"];
    assert_eq!(
        spec["resourceClaims"],
        json!([
            {"name": "g0", "resourceClaimTemplateName": "train-g0"},
            {"name": "g1", "resourceClaimTemplateName": "train-g1"},
            {"name": "nvme", "resourceClaimTemplateName": "train-nvme"},
        ])
    );
    assert_eq!(
        spec["domain"]["devices"]["gpus"],
        json!([
            {"name": "g0", "claimName": "g0", "requestName": "gpu"},
            {"name": "g1", "claimName": "g1", "requestName": "gpu"},
        ])
    );
    assert_eq!(
        spec["domain"]["devices"]["hostDevices"],
        json!([{"name": "nvme", "claimName": "nvme", "requestName": "device"}])
    );
    assert_eq!(spec["domain"]["memory"]["guest"], "4Gi", "the rest of the document stays");
}

#[test]
fn one_claim_has_a_request_per_device_and_its_constraints() {
    let options =
        ClaimOptions { one_claim: true, same: vec!["resource.kubernetes.io/numaNode".into()], ..Default::default() };
    let generated = generate(&two_gpus_and_a_disk(), &options).unwrap();
    assert_eq!(generated.claims.len(), 1);
    let devices = &generated.claims[0]["spec"]["spec"]["devices"];
    let requests: Vec<_> = devices["requests"].as_array().unwrap().iter().map(|request| &request["name"]).collect();
    assert_eq!(requests, ["g0", "g1", "nvme"]);
    assert_eq!(devices["constraints"], json!([{"matchAttribute": "resource.kubernetes.io/numaNode"}]));
    let spec = &generated.workload["spec"]["template"]["spec"];
    assert_eq!(
        spec["domain"]["devices"]["gpus"][1],
        json!({"name": "g1", "claimName": "devices", "requestName": "g1"})
    );
    assert_eq!(spec["resourceClaims"], json!([{"name": "devices", "resourceClaimTemplateName": "train-devices"}]));
}

#[test]
fn persistent_claims_are_objects_that_outlive_the_pod() {
    let options = ClaimOptions { persistent: true, ..Default::default() };
    let generated = generate(&two_gpus_and_a_disk(), &options).unwrap();
    assert_eq!(generated.claims[0]["kind"], "ResourceClaim");
    assert_eq!(generated.claims[0]["spec"]["devices"]["requests"][0]["name"], "gpu");
    let entry = &generated.workload["spec"]["template"]["spec"]["resourceClaims"][0];
    assert_eq!(entry, &json!({"name": "g0", "resourceClaimName": "train-g0"}));
}

#[test]
fn devices_with_other_sources_and_other_claims_stay() {
    let mut document = vm(&json!({"hostDevices": [
        {"name": "old", "deviceName": "vendor.example/x"},
        {"name": "new", "deviceClassName": "c.example.com"},
    ]}));
    document["spec"]["template"]["spec"]["resourceClaims"] = json!([{"name": "mine", "resourceClaimName": "mine"}]);
    let generated = generate(&document, &ClaimOptions::default()).unwrap();
    let spec = &generated.workload["spec"]["template"]["spec"];
    assert_eq!(spec["domain"]["devices"]["hostDevices"][0], json!({"name": "old", "deviceName": "vendor.example/x"}));
    assert_eq!(spec["resourceClaims"][0], json!({"name": "mine", "resourceClaimName": "mine"}));
    assert_eq!(spec["resourceClaims"][1]["name"], "new");
}

#[test]
fn what_cannot_become_a_claim_is_refused_by_field() {
    let refused = |document: &Value| generate(document, &ClaimOptions::default()).unwrap_err().to_string();
    let gpus = |gpus: Value| vm(&json!({ "gpus": gpus }));
    assert!(refused(&json!({"kind": "Pod"})).starts_with("the document is a Pod"));
    assert!(refused(&gpus(json!([{"name": "g", "deviceName": "a/b"}]))).starts_with("no device has a deviceClassName"));
    let both = refused(&gpus(json!([{"name": "g", "deviceName": "a/b", "deviceClassName": "c"}])));
    assert!(
        both.starts_with("spec.template.spec.domain.devices.gpus[0] has a deviceClassName and a deviceName"),
        "{both}"
    );
    let name = refused(&gpus(json!([{"name": "G 0", "deviceClassName": "c"}])));
    assert!(name.contains("gpus[0].name: \"G 0\" is not a DNS label"), "{name}");
    let class = refused(&gpus(json!([{"name": "g", "deviceClassName": "../c"}])));
    assert!(class.contains("deviceClassName: \"../c\""), "{class}");
    let twice = refused(&gpus(json!([{"name": "g", "deviceClassName": "c"}, {"name": "g", "deviceClassName": "c"}])));
    assert!(twice.contains("gpus[1]: the name \"g\" is already taken"), "{twice}");
    let mut taken = gpus(json!([{"name": "g", "deviceClassName": "c"}]));
    taken["spec"]["template"]["spec"]["resourceClaims"] = json!([{"name": "g", "resourceClaimName": "x"}]);
    assert!(refused(&taken).contains("already taken"));
    let options = ClaimOptions { same: vec!["a.b/c".into()], ..Default::default() };
    let across = generate(&two_gpus_and_a_disk(), &options).unwrap_err();
    assert!(matches!(across, ClaimsError::MatchAcrossClaims(_)), "{across}");
}

#[test]
fn constraints_name_an_attribute_of_a_domain() {
    let generated = |name: &str| {
        let options = ClaimOptions { one_claim: true, same: vec![name.to_owned()], ..Default::default() };
        generate(&two_gpus_and_a_disk(), &options)
    };
    assert!(generated("resource.kubernetes.io/pcieRoot").is_ok());
    let long = format!("a.b/{}", "x".repeat(33));
    for name in ["foo/bar/baz", "numaNode", "/numaNode", "a.b/", "a.b/numa-node", "A B/c", &*long] {
        assert_eq!(generated(name).unwrap_err(), ClaimsError::Attribute(name.to_owned()));
    }
}
