//! Patches other than apply.

use serde_json::json;

use super::support::{SLICES, server, slice};

#[tokio::test]
async fn a_strategic_merge_patch_knows_the_keys_of_lists() {
    let api = server().await;
    let node = json!({
        "metadata": { "name": "a", "finalizers": ["x.example.com/y"] },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }, { "type": "Old", "status": "True" }] },
    });
    assert_eq!(api.post("/api/v1/nodes", &node).await.0, 201);
    let patch = json!({ "status": {
        "$setElementOrder/conditions": [{ "type": "Ready" }, { "type": "New" }],
        "conditions": [{ "type": "Ready", "status": "False" }, { "type": "New", "status": "True" }, { "type": "Old", "$patch": "delete" }],
    } });
    let (code, patched) = api.patch("strategic-merge-patch+json", "/api/v1/nodes/a/status", &patch).await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(
        patched["status"]["conditions"],
        json!([{ "type": "Ready", "status": "False" }, { "type": "New", "status": "True" }]),
    );
    let patch = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["x.example.com/y"], "finalizers": ["z.example.com/y"] } });
    let (_, patched) = api.patch("strategic-merge-patch+json", "/api/v1/nodes/a", &patch).await;
    assert_eq!(patched["metadata"]["finalizers"], json!(["z.example.com/y"]));
}

#[tokio::test]
async fn a_json_patch_is_applied_as_a_whole_or_not_at_all() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    let path = format!("{SLICES}/a");
    let patch = json!([
        { "op": "test", "path": "/spec/nodeName", "value": "node-a" },
        { "op": "add", "path": "/metadata/labels", "value": { "a/b": "c" } },
        { "op": "add", "path": "/spec/devices/-", "value": { "name": "y" } },
        { "op": "replace", "path": "/spec/devices/0/name", "value": "z" },
        { "op": "copy", "from": "/metadata/labels", "path": "/metadata/annotations" },
        { "op": "move", "from": "/metadata/labels/a~1b", "path": "/metadata/labels/d" },
    ]);
    let (code, patched) = api.patch("json-patch+json", &path, &patch).await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(patched["spec"]["devices"], json!([{ "name": "z" }, { "name": "y" }]));
    assert_eq!(patched["metadata"]["labels"], json!({ "d": "c" }));
    let patch = json!([{ "op": "remove", "path": "/spec/devices/0" }, { "op": "test", "path": "/spec/nodeName", "value": "b" }]);
    assert_eq!(api.patch("json-patch+json", &path, &patch).await.0, 422);
    assert_eq!(api.get(&path).await.1, patched);
}

#[tokio::test]
async fn a_patch_that_names_a_version_applies_only_to_that() {
    let api = server().await;
    let (_, made) = api.post(SLICES, &slice("a")).await;
    let path = format!("{SLICES}/a");
    let patch = |version: &str| json!({ "metadata": { "resourceVersion": version, "labels": { "v": version } } });
    assert_eq!(api.merge(&path, &patch("1")).await.0, 409);
    assert_eq!(api.merge(&path, &patch(made["metadata"]["resourceVersion"].as_str().unwrap())).await.0, 200);
}

#[tokio::test]
async fn a_patch_that_changes_nothing_keeps_the_version() {
    let api = server().await;
    let (_, made) = api.post(SLICES, &slice("a")).await;
    let same = json!({ "spec": { "nodeName": "node-a" } });
    assert_eq!(api.merge(&format!("{SLICES}/a"), &same).await, (200, made));
}

#[tokio::test]
async fn unknown_patch_types_are_refused() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    assert_eq!(api.patch("json", &format!("{SLICES}/a"), &json!({})).await.0, 415);
}

/// No patch changes the name or the UID. A stale resource version is reported first.
#[tokio::test]
async fn neither_name_nor_uid_can_be_patched() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    let path = format!("{SLICES}/a");
    let (code, refused) = api.merge(&path, &json!({ "metadata": { "name": "b" } })).await;
    let message = "the name of the object (b) does not match the name on the URL (a)";
    assert_eq!((code, &refused["message"]), (400, &json!(message)));
    let uid = "00000000-0000-0000-0000-000000000000";
    let (code, refused) = api.merge(&path, &json!({ "metadata": { "uid": uid } })).await;
    let message = format!("Invalid value: \"{uid}\": field is immutable");
    let cause = json!({ "field": "metadata.uid", "message": message, "reason": "FieldValueInvalid" });
    assert_eq!((code, &refused["details"]["causes"]), (422, &json!([cause])), "{refused}");
    let (code, refused) = api.merge(&path, &json!({ "metadata": { "uid": uid, "resourceVersion": "1" } })).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("Conflict")), "{refused}");
}

#[tokio::test]
async fn invalid_parameters_are_refused() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    let long = format!("fieldManager={}", "x".repeat(129));
    for (query, message) in [
        ("dryRun=Some", r#"dryRun: Unsupported value: ["Some"]: supported values: "All""#),
        (long.as_str(), "fieldManager: Too long: may not be more than 128 bytes"),
        (
            "fieldValidation=Nope",
            r#"fieldValidation: Unsupported value: "Nope": supported values: "", "Ignore", "Strict", "Warn""#,
        ),
        ("force=true", "force: Forbidden: may not be specified for non-apply patch"),
    ] {
        let (code, refused) = api.merge(&format!("{SLICES}/a?{query}"), &json!({})).await;
        let message = format!("PatchOptions.meta.k8s.io \"\" is invalid: {message}");
        assert_eq!((code, &refused["message"]), (422, &json!(message)));
    }
    let (code, refused) = api.post(&format!("{SLICES}?dryRun=Some"), &slice("b")).await;
    assert_eq!((code, &refused["details"]["kind"]), (422, &json!("CreateOptions")));
}
