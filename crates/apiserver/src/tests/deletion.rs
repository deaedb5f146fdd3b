//! DELETE.

use serde_json::{Value, json};

use super::support::{CLAIMS, Client, PODS, SLICES, claim, names, server, slice};

async fn pod(api: &Client, node: Option<&str>) -> String {
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let (code, made) = api.post(PODS, &pod).await;
    assert_eq!((code, &made["status"]["phase"]), (201, &json!("Pending")), "{made}");
    if let Some(node) = node {
        let binding = json!({ "metadata": { "name": "p" }, "target": { "kind": "Node", "name": node } });
        assert_eq!(api.post(&format!("{PODS}/p/binding"), &binding).await.0, 201);
    }
    format!("{PODS}/p")
}

#[tokio::test]
async fn a_bound_pod_is_deleted_gracefully_and_removed_by_its_kubelet() {
    let api = server().await;
    let path = pod(&api, Some("a")).await;
    let (code, going) = api.delete(&path, &json!({ "gracePeriodSeconds": 50 })).await;
    assert_eq!((code, &going["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(50)));
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    let (_, longer) = api.delete(&path, &json!({ "gracePeriodSeconds": 60 })).await;
    assert_eq!(longer, going, "a second delete can only shorten the grace period");
    let (_, shorter) = api.delete(&path, &json!({ "gracePeriodSeconds": 40 })).await;
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 40);
    assert_eq!(api.get(&path).await.0, 200);
    assert_eq!(api.delete(&path, &json!({ "gracePeriodSeconds": 0 })).await.0, 200);
    assert_eq!(api.get(&path).await.0, 404);
}

#[tokio::test]
async fn the_default_grace_period_is_that_of_the_pod() {
    let api = server().await;
    let path = pod(&api, Some("a")).await;
    assert_eq!(api.delete(&path, &Value::Null).await.1["metadata"]["deletionGracePeriodSeconds"], 30);
}

/// With a body, the kube-apiserver does not read the query, not even to validate it.
#[tokio::test]
async fn options_are_read_from_the_body_or_else_from_the_query() {
    let api = server().await;
    let path = pod(&api, Some("a")).await;
    let (_, going) = api.delete(&format!("{path}?gracePeriodSeconds=x"), &json!({})).await;
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    let (code, refused) = api.delete(&format!("{path}?gracePeriodSeconds=x"), &Value::Null).await;
    assert_eq!((code, &refused["message"]), (400, &json!("strconv.ParseInt: parsing \"x\": invalid syntax")));
    assert_eq!(api.delete(&format!("{path}?gracePeriodSeconds=0&dryRun=All"), &Value::Null).await.0, 200);
    assert_eq!(api.get(&path).await.0, 200);
    api.delete(&format!("{path}?dryRun=All"), &json!({ "gracePeriodSeconds": 0 })).await;
    assert_eq!(api.get(&path).await.0, 404);
    let path = pod(&api, Some("a")).await;
    api.delete(&format!("{path}?gracePeriodSeconds=0"), &Value::Null).await;
    assert_eq!(api.get(&path).await.0, 404);
}

#[tokio::test]
async fn a_pod_that_no_kubelet_runs_is_removed_at_once() {
    let api = server().await;
    let path = pod(&api, None).await;
    api.delete(&path, &Value::Null).await;
    assert_eq!(api.get(&path).await.0, 404);
    let path = pod(&api, Some("a")).await;
    api.merge(&format!("{path}/status"), &json!({ "status": { "phase": "Succeeded" } })).await;
    api.delete(&path, &Value::Null).await;
    assert_eq!(api.get(&path).await.0, 404);
}

#[tokio::test]
async fn an_object_with_finalizers_is_removed_with_the_last_of_them() {
    let api = server().await;
    let mut object = claim("c");
    object["metadata"]["finalizers"] = json!(["a.example.com/x", "b.example.com/y"]);
    api.post(CLAIMS, &object).await;
    let path = format!("{CLAIMS}/c");
    let (code, going) = api.delete(&path, &Value::Null).await;
    assert_eq!((code, &going["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(0)));
    let (_, again) = api.delete(&path, &Value::Null).await;
    assert_eq!(again, going);
    api.merge(&path, &json!({ "metadata": { "finalizers": ["b.example.com/y"] } })).await;
    assert_eq!(api.get(&path).await.0, 200);
    assert_eq!(api.merge(&path, &json!({ "metadata": { "finalizers": null } })).await.0, 200);
    assert_eq!(api.get(&path).await.0, 404);
}

#[tokio::test]
async fn preconditions_are_checked() {
    let api = server().await;
    let (_, made) = api.post(CLAIMS, &claim("c")).await;
    let path = format!("{CLAIMS}/c");
    for precondition in [json!({ "uid": "other" }), json!({ "resourceVersion": "1" })] {
        let (code, refused) = api.delete(&path, &json!({ "preconditions": precondition })).await;
        assert_eq!((code, refused["reason"].as_str()), (409, Some("Conflict")), "{refused}");
    }
    let right = json!({ "uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"] });
    assert_eq!(api.delete(&path, &json!({ "preconditions": right })).await.0, 200);
}

#[tokio::test]
async fn a_collection_delete_removes_the_selected_objects() {
    let api = server().await;
    for name in ["a", "b", "c"] {
        api.post(SLICES, &slice(name)).await;
    }
    let (code, gone) = api.delete(&format!("{SLICES}?fieldSelector=spec.nodeName!%3Dnode-b"), &Value::Null).await;
    assert_eq!((code, names(&gone)), (200, vec!["a".to_owned(), "c".to_owned()]));
    assert_eq!(names(&api.get(SLICES).await.1), ["b"]);
}
