//! Create, read, update and delete.

use serde_json::json;

use super::support::{CLAIMS, SLICES, server, slice};

#[tokio::test]
async fn an_object_has_system_fields_and_exists_until_it_is_deleted() {
    let api = server().await;
    let slice = json!({
        "metadata": { "generateName": "node-a-" },
        "spec": { "driver": "gpu.example.com", "nodeName": "a", "pool": { "name": "a", "generation": 1, "resourceSliceCount": 1 }, "devices": [{ "name": "gpu-0" }], "unknown": 1 },
    });
    let (code, made) = api.post(SLICES, &slice).await;
    assert_eq!(code, 201, "{made}");
    let name = made["metadata"]["name"].as_str().unwrap();
    assert_eq!(name.len(), "node-a-".len() + 5);
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!((&made["kind"], &made["apiVersion"]), (&json!("ResourceSlice"), &json!("resource.k8s.io/v1")));
    assert_eq!(made["spec"].get("unknown"), None, "unknown fields are dropped");
    assert_eq!(made["metadata"]["uid"].as_str().unwrap().len(), 36);

    let path = format!("{SLICES}/{name}");
    assert_eq!(api.get(&path).await, (200, made.clone()));
    let mut changed = made.clone();
    changed["spec"]["devices"] = json!([]);
    let (code, updated) = api.put(&path, &changed).await;
    assert_eq!((code, &updated["metadata"]["generation"]), (200, &json!(2)), "{updated}");
    let (code, refused) = api.put(&path, &changed).await;
    assert_eq!((code, refused["reason"].as_str()), (409, Some("Conflict")), "{refused}");
    assert_eq!(
        refused["message"],
        format!(
            "Operation cannot be fulfilled on resourceslices.resource.k8s.io \"{name}\": the object has been modified; please apply your changes to the latest version and try again"
        ),
    );
    assert_eq!(api.delete(&path, &json!(null)).await.0, 200);
    let (code, gone) = api.get(&path).await;
    assert_eq!(code, 404);
    assert_eq!(gone["details"], json!({ "name": name, "group": "resource.k8s.io", "kind": "resourceslices" }));
}

#[tokio::test]
async fn spec_and_status_are_written_separately() {
    let api = server().await;
    let claim = json!({
        "metadata": { "name": "c" },
        "spec": { "devices": { "requests": [{ "name": "r", "exactly": { "deviceClassName": "gpu" } }] } },
        "status": { "reservedFor": [{ "resource": "pods", "name": "p", "uid": "1" }] },
    });
    let (code, made) = api.post(CLAIMS, &claim).await;
    assert_eq!((code, &made["status"]), (201, &json!({})), "{made}");
    let status = json!({ "status": { "allocation": { "devices": { "results": [{ "request": "r", "driver": "d", "pool": "p", "device": "x" }] } } }, "spec": { "devices": {} }, "metadata": { "labels": { "a": "b" } } });
    let (code, changed) = api.merge(&format!("{CLAIMS}/c/status"), &status).await;
    assert_eq!(code, 200, "{changed}");
    assert_eq!(changed["spec"], made["spec"]);
    assert_eq!(changed["metadata"].get("labels"), None);
    assert_eq!(changed["status"]["allocation"]["devices"]["results"][0]["device"], "x");
    let (_, changed) =
        api.merge(&format!("{CLAIMS}/c"), &json!({ "metadata": { "labels": { "a": "b" } }, "status": null })).await;
    assert_eq!(changed["metadata"]["labels"], json!({ "a": "b" }));
    assert_eq!(changed["status"]["allocation"]["devices"]["results"][0]["device"], "x");
}

#[tokio::test]
async fn refusals_are_worded_as_in_kubernetes() {
    let api = server().await;
    let (_, made) = api.post(SLICES, &slice("a")).await;
    let with = |field: &str, value: &str| {
        let mut object = slice("a");
        object["metadata"][field] = value.into();
        object
    };
    let path = format!("{SLICES}/a");
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let cases = [
        (api.post(SLICES, &slice("a")).await, 409, "resourceslices.resource.k8s.io \"a\" already exists".to_owned()),
        (api.post(SLICES, &with("name", "")).await, 422, "ResourceSlice.resource.k8s.io \"\" is invalid: metadata.name: Required value: name or generateName is required".to_owned()),
        (api.post(SLICES, &with("resourceVersion", "1")).await, 500, "resourceVersion should not be set on objects to be created".to_owned()),
        (api.post(&CLAIMS.replace("default", "none"), &super::support::claim("c")).await, 404, "namespaces \"none\" not found".to_owned()),
        (api.put(&path, &with("name", "b")).await, 400, "the name of the object (b) does not match the name on the URL (a)".to_owned()),
        (api.put(&path, &with("uid", "u")).await, 409, format!("Operation cannot be fulfilled on resourceslices.resource.k8s.io \"a\": StorageError: invalid object, Code: 4, Key: /registry/resourceslices/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: u, UID in object meta: {uid}")),
        (api.put(&format!("{SLICES}/b"), &slice("b")).await, 404, "resourceslices.resource.k8s.io \"b\" not found".to_owned()),
        (api.post(&path, &slice("a")).await, 405, "the server does not allow this method on the requested resource".to_owned()),
    ];
    for ((code, answer), expected, message) in cases {
        assert_eq!((code, answer["message"].as_str().unwrap()), (expected, message.as_str()));
    }
}

#[tokio::test]
async fn concurrent_writers_of_one_object_lose_nothing() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    let writes = (0..20).map(|index| {
        let api = &api;
        async move {
            let label = format!("l{index}");
            api.merge(&format!("{SLICES}/a"), &json!({ "metadata": { "labels": { label: "x" } } })).await
        }
    });
    for (code, _) in futures::future::join_all(writes).await {
        assert_eq!(code, 200);
    }
    let (_, object) = api.get(&format!("{SLICES}/a")).await;
    assert_eq!(object["metadata"]["labels"].as_object().unwrap().len(), 20);
}

#[tokio::test]
async fn a_dry_run_stores_nothing() {
    let api = server().await;
    assert_eq!(api.post(&format!("{SLICES}?dryRun=All"), &slice("a")).await.0, 201);
    assert_eq!(api.get(&format!("{SLICES}/a")).await.0, 404);
}

#[tokio::test]
async fn unknown_fields_are_refused_only_with_strict_validation() {
    let api = server().await;
    let mut object = slice("a");
    object["spec"]["gadget"] = 1.into();
    let (code, refused) = api.post(&format!("{SLICES}?fieldValidation=Strict"), &object).await;
    assert_eq!(code, 400);
    assert!(refused["message"].as_str().unwrap().ends_with("strict decoding error: unknown field \"spec.gadget\""));
    assert_eq!(api.post(SLICES, &object).await.0, 201);
}
