//! Server-side apply, as drivers use it for device status.

use http::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::support::{CLAIMS, Client, server};

fn device(driver: &str, name: &str, more: &Value) -> Value {
    let mut device = json!({ "driver": driver, "pool": "node-a", "device": name });
    device.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    device
}

/// A claim with devices of two drivers, one of them shared.
async fn allocated() -> Client {
    let api = server().await;
    let claim = json!({
        "metadata": { "name": "c" },
        "spec": { "devices": { "requests": [{ "name": "r", "exactly": { "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1 } }] } },
    });
    assert_eq!(api.post(CLAIMS, &claim).await.0, 201);
    let share = "11111111-2222-3333-4444-555555555555";
    let results: Vec<Value> = [("one", "x"), ("one", "y"), ("two", "x"), ("two", "y")]
        .iter()
        .map(|(driver, name)| device(&format!("{driver}.example.com"), name, &json!({ "request": "r" })))
        .chain([device("one.example.com", "x", &json!({ "request": "r", "shareID": share }))])
        .collect();
    let status = json!({ "status": { "allocation": { "devices": { "results": results } } } });
    let (code, answer) = api.merge(&format!("{CLAIMS}/c/status"), &status).await;
    assert_eq!(code, 200, "{answer}");
    api
}

async fn apply(api: &Client, manager: &str, force: bool, devices: &Value) -> (u16, Value) {
    let body = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "name": "c" },
        "status": { "devices": devices },
    });
    apply_body(api, manager, force, &body).await
}

async fn apply_body(api: &Client, manager: &str, force: bool, body: &Value) -> (u16, Value) {
    let path = format!("{CLAIMS}/c/status?fieldManager={manager}&force={force}");
    api.send(Method::PATCH, &path, "application/apply-patch+yaml", body.to_string()).await.unwrap()
}

/// Returns driver and name of each device in the status, with its share and data.
fn shown(claim: &Value) -> Vec<String> {
    let devices = claim["status"]["devices"].as_array().cloned().unwrap_or_default();
    devices
        .iter()
        .map(|device| {
            let text = |field: &str| device[field].as_str().unwrap_or_default().to_owned();
            let driver = text("driver").split('.').next().unwrap().to_owned();
            let share = if device["shareID"].is_null() { "" } else { "+share" };
            format!("{driver}/{}{share} {}", text("device"), device["data"])
        })
        .collect()
}

fn one(name: &str, data: &Value) -> Value {
    device("one.example.com", name, &json!({ "data": data }))
}

fn two(name: &str, data: &Value) -> Value {
    device("two.example.com", name, &json!({ "data": data }))
}

fn shared(data: &Value) -> Value {
    device("one.example.com", "x", &json!({ "data": data, "shareID": "11111111-2222-3333-4444-555555555555" }))
}

#[rstest]
#[case::two_managers_with_two_devices_each(
    vec![("a", json!([one("x", &json!({ "n": 1 })), one("y", &json!({ "n": 2 }))])), ("b", json!([two("x", &json!({ "n": 3 })), two("y", &json!({ "n": 4 }))]))],
    vec![r#"one/x {"n":1}"#, r#"one/y {"n":2}"#, r#"two/x {"n":3}"#, r#"two/y {"n":4}"#],
)]
#[case::a_device_that_is_left_out_goes(
    vec![("a", json!([one("x", &json!({})), one("y", &json!({}))])), ("b", json!([two("x", &json!({}))])), ("a", json!([one("y", &json!({}))]))],
    vec!["one/y {}", "two/x {}"],
)]
#[case::all_that_are_left_out_go(
    vec![("a", json!([one("x", &json!({}))])), ("b", json!([two("x", &json!({}))])), ("a", json!([]))],
    vec!["two/x {}"],
)]
#[case::the_last_one_that_is_left_out_goes(
    vec![("a", json!([one("x", &json!({}))])), ("a", json!([]))],
    vec![],
)]
#[case::a_field_that_is_left_out_goes(
    vec![("a", json!([one("x", &json!({ "m": 1, "n": 2 }))])), ("a", json!([one("x", &json!({ "n": 3 }))]))],
    vec![r#"one/x {"n":3}"#],
)]
#[case::what_another_manager_applied_too_stays(
    vec![("a", json!([one("x", &json!({ "n": 1 }))])), ("b", json!([one("x", &json!({ "n": 1 }))])), ("a", json!([]))],
    vec![r#"one/x {"n":1}"#],
)]
#[case::a_share_is_another_device(
    vec![("a", json!([one("x", &json!({ "n": 1 }))])), ("b", json!([shared(&json!({ "n": 2 }))]))],
    vec![r#"one/x {"n":1}"#, r#"one/x+share {"n":2}"#],
)]
#[case::a_share_goes_alone(
    vec![("a", json!([one("x", &json!({ "n": 1 })), shared(&json!({ "n": 2 }))])), ("a", json!([shared(&json!({ "n": 3 }))]))],
    vec![r#"one/x+share {"n":3}"#],
)]
#[tokio::test]
async fn applies_without_conflict(#[case] applies: Vec<(&str, Value)>, #[case] expected: Vec<&str>) {
    let api = allocated().await;
    for (manager, devices) in applies {
        let (code, answer) = apply(&api, manager, false, &devices).await;
        assert_eq!(code, 200, "{answer}");
    }
    assert_eq!(shown(&api.get(&format!("{CLAIMS}/c")).await.1), expected);
}

#[tokio::test]
async fn a_conflict_names_manager_and_field_and_can_be_forced() {
    let api = allocated().await;
    apply(&api, "a", false, &json!([one("x", &json!({ "n": 1 }))])).await;
    let (code, refused) = apply(&api, "b", false, &json!([one("x", &json!({ "n": 2 }))])).await;
    let field = r#".status.devices[device="x",driver="one.example.com",pool="node-a"].data"#;
    assert_eq!((code, refused["reason"].as_str()), (409, Some("Conflict")), "{refused}");
    assert_eq!(
        refused["message"],
        format!("Apply failed with 1 conflict: conflict with \"a\" with subresource \"status\": {field}"),
    );
    assert_eq!(
        refused["details"]["causes"],
        json!([{ "reason": "FieldManagerConflict", "message": "conflict with \"a\" with subresource \"status\"", "field": field }]),
    );
    let (code, forced) = apply(&api, "b", true, &json!([one("x", &json!({ "n": 2 }))])).await;
    assert_eq!((code, shown(&forced)), (200, vec![r#"one/x {"n":2}"#.to_owned()]));
    // b owns the field now: it stays when a applies nothing.
    let (_, left) = apply(&api, "a", false, &json!([])).await;
    assert_eq!(shown(&left), [r#"one/x {"n":2}"#]);
    let (_, left) = apply(&api, "b", false, &json!([])).await;
    assert_eq!(shown(&left), Vec::<String>::new());
}

#[tokio::test]
async fn an_update_takes_over_fields_and_is_recorded_in_managed_fields() {
    let api = allocated().await;
    apply(&api, "a", false, &json!([one("x", &json!({ "n": 1 }))])).await;
    let (_, mut claim) = api.get(&format!("{CLAIMS}/c")).await;
    claim["status"]["devices"][0]["data"]["n"] = 5.into();
    let (code, updated) = api.put(&format!("{CLAIMS}/c/status?fieldManager=plain"), &claim).await;
    assert_eq!(code, 200, "{updated}");
    let entries = updated["metadata"]["managedFields"].as_array().unwrap();
    let plain = entries.iter().find(|entry| entry["manager"] == "plain").unwrap();
    assert_eq!((plain["operation"].as_str(), plain["subresource"].as_str()), (Some("Update"), Some("status")));
    let key = r#"k:{"device":"x","driver":"one.example.com","pool":"node-a"}"#;
    assert_eq!(plain["fieldsV1"], json!({ "f:status": { "f:devices": { key: { "f:data": {} } } } }));
    let (code, refused) = apply(&api, "a", false, &json!([one("x", &json!({ "n": 1 }))])).await;
    assert_eq!(code, 409, "{refused}");
    let message = refused["details"]["causes"][0]["message"].as_str().unwrap();
    assert_eq!(message, "conflict with \"plain\" with subresource \"status\" using resource.k8s.io/v1");
}

#[tokio::test]
async fn the_same_apply_again_changes_nothing() {
    let api = allocated().await;
    let (_, first) = apply(&api, "a", true, &json!([one("x", &json!({ "n": 1 }))])).await;
    let (_, again) = apply(&api, "a", true, &json!([one("x", &json!({ "n": 1 }))])).await;
    assert_eq!(first, again);
}

#[rstest]
#[case::no_manager("", json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim" }), 422, "fieldManager: Required value")]
#[case::no_kind("a", json!({ "apiVersion": "resource.k8s.io/v1" }), 400, "invalid object type: resource.k8s.io/v1, Kind=")]
#[case::managed_fields("a", json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "managedFields": [] } }), 400, "managedFields must be nil")]
#[case::unknown_field("a", json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "status": { "gadgets": [] } }), 500, ".status.gadgets: field not declared in schema")]
#[case::old_version("a", json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "resourceVersion": "2" } }), 409, "the object has been modified")]
#[case::other_uid("a", json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "uid": "other" } }), 422, "metadata.uid: Invalid value: \"other\": field is immutable")]
#[case::other_uid_of_old_version("a", json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "uid": "other", "resourceVersion": "2" } }), 409, "the object has been modified")]
#[tokio::test]
async fn invalid_applies_are_refused(
    #[case] manager: &str,
    #[case] body: Value,
    #[case] code: u16,
    #[case] message: &str,
) {
    let api = allocated().await;
    let (found, answer) = apply_body(&api, manager, false, &body).await;
    assert_eq!(found, code, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains(message), "{answer}");
}

#[tokio::test]
async fn an_apply_creates_a_missing_object_and_accepts_yaml() {
    let api = server().await;
    let yaml = "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  labels:\n    x: z\n";
    let path = "/api/v1/nodes/a?fieldManager=m";
    let (code, node) = api.send(Method::PATCH, path, "application/apply-patch+yaml", yaml.to_owned()).await.unwrap();
    assert_eq!((code, &node["metadata"]["labels"]), (201, &json!({ "x": "z" })), "{node}");
    assert_eq!(
        node["metadata"]["managedFields"][0]["fieldsV1"],
        json!({ "f:metadata": { "f:labels": { "f:x": {} } } })
    );
    let missing = api
        .send(
            Method::PATCH,
            "/api/v1/nodes/b/status?fieldManager=m",
            "application/apply-patch+yaml",
            yaml.replace(": a", ": b"),
        )
        .await
        .unwrap();
    assert_eq!(missing.0, 404);
}
