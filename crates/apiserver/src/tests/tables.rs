//! Tables and metadata in place of objects.

use serde_json::{Value, json};

use super::support::{CLAIMS, SLICES, claim, server, slice};

const TABLE: &str =
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                        application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

fn columns(table: &Value) -> Vec<&str> {
    let columns = table["columnDefinitions"].as_array().unwrap();
    columns.iter().filter(|column| column["priority"] == 0).map(|column| column["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_list_can_be_a_table() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    api.post(SLICES, &slice("b")).await;
    let (code, _, table) = api.get_as(SLICES, TABLE).await;
    assert_eq!((code, &table["kind"], &table["apiVersion"]), (200, &json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(columns(&table), ["Name", "Node", "Driver", "Pool", "Age"]);
    let row = &table["rows"][1];
    let cells = row["cells"].as_array().unwrap();
    assert_eq!(cells[..4], [json!("b"), json!("node-b"), json!("d.example.com"), json!("node-b")]);
    assert!(cells[4].as_str().unwrap().ends_with('s'), "{cells:?}");
    assert_eq!((&row["object"]["kind"], &row["object"]["spec"]), (&json!("PartialObjectMetadata"), &Value::Null));
    assert_eq!(row["object"]["metadata"]["name"], "b");
    let (_, list) = api.get(SLICES).await;
    assert_eq!(table["metadata"]["resourceVersion"], list["metadata"]["resourceVersion"]);

    let (_, _, first) = api.get_as(&format!("{SLICES}?limit=1"), TABLE).await;
    assert_eq!((first["rows"].as_array().unwrap().len(), &first["metadata"]["remainingItemCount"]), (1, &json!(1)));
    let (_, _, whole) = api.get_as(&format!("{SLICES}?includeObject=Object"), TABLE).await;
    let object = &whole["rows"][0]["object"];
    assert_eq!((&object["kind"], &object["spec"]["driver"]), (&json!("ResourceSlice"), &json!("d.example.com")));
    let (_, _, bare) = api.get_as(&format!("{SLICES}?includeObject=None"), TABLE).await;
    assert_eq!(bare["rows"][0]["object"], Value::Null);
    assert_eq!(api.get_as(&format!("{SLICES}?includeObject=Some"), TABLE).await.0, 400);
}

#[tokio::test]
async fn an_object_can_be_a_table_and_a_failure_stays_one() {
    let api = server().await;
    api.post(CLAIMS, &claim("c")).await;
    let (_, _, table) = api.get_as(&format!("{CLAIMS}/c"), TABLE).await;
    assert_eq!(columns(&table), ["Name", "State", "Age"]);
    assert_eq!(table["rows"][0]["cells"][1], "pending");
    let (code, _, failure) = api.get_as(&format!("{CLAIMS}/none"), TABLE).await;
    assert_eq!((code, &failure["kind"]), (404, &json!("Status")));
    let unknown = "application/json;as=Picture;v=v1;g=meta.k8s.io";
    assert_eq!(api.get_as(&format!("{CLAIMS}/c"), unknown).await.0, 406);
    let (_, _, object) = api.get_as(&format!("{CLAIMS}/c"), &format!("{unknown},application/json")).await;
    assert_eq!(object["kind"], "ResourceClaim");
}

#[tokio::test]
async fn a_watch_of_tables_has_the_columns_once() {
    let api = server().await;
    api.post(CLAIMS, &claim("a")).await;
    let mut watch = api.watch_as(&format!("{CLAIMS}?watch=true"), TABLE).await;
    api.post(CLAIMS, &claim("b")).await;
    let first = watch.next().await.unwrap();
    assert_eq!((&first["type"], columns(&first["object"]).len()), (&json!("ADDED"), 3));
    let second = watch.next().await.unwrap();
    assert_eq!(second["object"]["columnDefinitions"], json!([]));
    assert_eq!(second["object"]["rows"][0]["cells"][0], "b");
}

#[tokio::test]
async fn only_metadata_can_be_asked_for() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    let (_, _, one) = api.get_as(&format!("{SLICES}/a"), METADATA).await;
    assert_eq!((&one["kind"], &one["metadata"]["name"]), (&json!("PartialObjectMetadata"), &json!("a")));
    assert_eq!(one["spec"], Value::Null);
    let (_, _, list) = api.get_as(SLICES, &METADATA.replace("Metadata;", "MetadataList;")).await;
    assert_eq!((&list["kind"], &list["items"][0]["kind"]), (&json!("PartialObjectMetadataList"), &one["kind"]));
}

#[tokio::test]
async fn events_of_both_groups_have_the_same_table() {
    let api = server().await;
    let event = json!({
        "metadata": { "name": "e" }, "regarding": { "kind": "Pod", "name": "p", "namespace": "default" }, "reason": "Failed",
        "note": "a note", "type": "Warning", "action": "Prepare", "reportingController": "k8s.io/kubelet",
        "reportingInstance": "a", "eventTime": "2024-01-01T00:00:00.000000Z",
    });
    api.post("/apis/events.k8s.io/v1/namespaces/default/events", &event).await;
    for path in ["/apis/events.k8s.io/v1/namespaces/default/events", "/api/v1/namespaces/default/events"] {
        let (_, _, table) = api.get_as(path, TABLE).await;
        assert_eq!(columns(&table), ["Last Seen", "Type", "Reason", "Object", "Message"]);
        assert_eq!(table["rows"][0]["cells"][3], "pod/p");
    }
}

#[tokio::test]
async fn config_maps_services_and_leases_are_stored() {
    let api = server().await;
    let map = json!({ "metadata": { "name": "m" }, "data": { "a": "1", "b": "2" } });
    assert_eq!(api.post("/api/v1/namespaces/default/configmaps", &map).await.0, 201);
    let (_, _, table) = api.get_as("/api/v1/namespaces/default/configmaps", TABLE).await;
    assert_eq!(table["rows"][0]["cells"][1], 2);
    let service = json!({ "metadata": { "name": "s" }, "spec": { "ports": [{ "port": 80 }] } });
    let (_, made) = api.post("/api/v1/namespaces/default/services", &service).await;
    assert_eq!((&made["spec"]["type"], &made["spec"]["ports"][0]["protocol"]), (&json!("ClusterIP"), &json!("TCP")));
    let lease = json!({ "metadata": { "name": "l" }, "spec": { "holderIdentity": "me" } });
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    assert_eq!(api.post(leases, &lease).await.0, 201);
    let (_, _, table) = api.get_as(leases, TABLE).await;
    assert_eq!((&table["rows"][0]["cells"][0], &table["rows"][0]["cells"][1]), (&json!("l"), &json!("me")));
}
