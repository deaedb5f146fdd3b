//! OpenAPI documents.

use serde_json::{Value, json};

use super::support::server;
#[cfg(feature = "descriptions")]
use super::support::server_with;

#[tokio::test]
async fn version_3_has_a_document_for_each_version_of_the_api() {
    let api = server().await;
    let (_, index) = api.get("/openapi/v3").await;
    let paths = index["paths"].as_object().unwrap();
    let names: Vec<&str> = paths.keys().map(String::as_str).collect();
    assert_eq!(names, ["api/v1", "apis/coordination.k8s.io/v1", "apis/events.k8s.io/v1", "apis/resource.k8s.io/v1"]);
    for document in paths.values() {
        let (code, document) = api.get(document["serverRelativeURL"].as_str().unwrap()).await;
        assert_eq!((code, &document["openapi"]), (200, &json!("3.0.0")));
    }
    assert_eq!(api.get("/openapi/v3/apis/resource.k8s.io/v1beta1").await.0, 404);
}

#[tokio::test]
async fn a_patch_names_its_kind_parameters_and_forms() {
    let api = server().await;
    let (_, document) = api.get("/openapi/v3/api/v1").await;
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"], json!({ "group": "", "version": "v1", "kind": "Pod" }));
    let parameters = patch["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|parameter| parameter["name"] == "fieldValidation" && parameter["in"] == "query"));
    assert!(patch["requestBody"]["content"]["application/strategic-merge-patch+json"].is_object());
}

/// Returns the type that a field of version 3 refers to, with a description beside the reference or without.
fn reference(property: &Value) -> &str {
    let reference = property.get("allOf").map_or(property, |all| &all[0]);
    reference["$ref"].as_str().unwrap()
}

#[tokio::test]
async fn types_are_described_with_how_they_are_merged() {
    let api = server().await;
    let (_, document) = api.get("/openapi/v3/api/v1").await;
    let schemas = &document["components"]["schemas"];
    let pod = &schemas["io.k8s.api.core.v1.Pod"];
    assert_eq!(pod["x-kubernetes-group-version-kind"], json!([{ "group": "", "version": "v1", "kind": "Pod" }]));
    assert_eq!(reference(&pod["properties"]["spec"]), "#/components/schemas/io.k8s.api.core.v1.PodSpec");
    assert!(pod["description"].is_string());
    let metadata = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"];
    assert_eq!(metadata["labels"]["additionalProperties"], json!({ "type": "string" }));
    let time = &metadata["creationTimestamp"];
    assert_eq!((&time["type"], &time["format"]), (&json!("string"), &json!("date-time")));
    let resources = &schemas["io.k8s.api.core.v1.ResourceRequirements"]["properties"];
    assert_eq!(resources["limits"]["additionalProperties"], json!({ "type": "string", "format": "quantity" }));
    let action = &schemas["io.k8s.api.core.v1.HTTPGetAction"]["properties"];
    assert_eq!(action["port"]["format"], "int-or-string");
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    let mounts = &schemas["io.k8s.api.core.v1.Container"]["properties"]["volumeMounts"];
    assert_eq!(mounts["x-kubernetes-patch-merge-key"], "mountPath");

    let (_, document) = api.get("/openapi/v3/apis/resource.k8s.io/v1").await;
    let status = &document["components"]["schemas"]["io.k8s.api.resource.v1.ResourceClaimStatus"]["properties"];
    assert_eq!(status["devices"]["x-kubernetes-list-map-keys"], json!(["driver", "device", "pool", "shareID"]));
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let finalizers = &document["components"]["schemas"][meta]["properties"]["finalizers"];
    assert_eq!(
        (&finalizers["x-kubernetes-list-type"], &finalizers["x-kubernetes-patch-strategy"]),
        (&json!("set"), &json!("merge"))
    );
}

/// What `kubectl explain` prints: every type and every field of DRA's objects, in every version, has a description.
#[cfg(feature = "descriptions")]
#[tokio::test]
async fn every_field_of_the_dra_types_has_a_description() {
    use drakkar_client::DraVersion;

    let versions = vec![DraVersion::V1, DraVersion::V1beta2, DraVersion::V1beta1];
    let api = server_with(crate::Config { versions: versions.clone(), ..Default::default() }).await;
    let (_, old) = api.get("/openapi/v2").await;
    for version in versions {
        let (_, document) = api.get(&format!("/openapi/v3/apis/resource.k8s.io/{version}")).await;
        let package = format!("io.k8s.api.resource.{version}.");
        for types in [&document["components"]["schemas"], &old["definitions"]] {
            let types = types.as_object().unwrap().iter().filter(|(name, _)| name.starts_with(&package));
            let mut fields = 0;
            for (name, definition) in types {
                assert!(definition["description"].is_string(), "{name}");
                for (field, property) in definition["properties"].as_object().into_iter().flatten() {
                    assert!(property["description"].is_string(), "{name}.{field}");
                    fields += 1;
                }
            }
            assert!(fields > 100, "{version}: {fields}");
        }
    }
    let pod = &old["definitions"]["io.k8s.api.core.v1.PodSpec"];
    assert_eq!(pod["required"], json!(["containers"]));
    let claims = pod["properties"]["resourceClaims"]["description"].as_str().unwrap();
    assert!(claims.starts_with("ResourceClaims defines which ResourceClaims must be allocated"), "{claims}");
}

#[tokio::test]
async fn every_reference_leads_to_a_type() {
    fn check(value: &Value, prefix: &str, types: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    let name = reference.strip_prefix(prefix).unwrap();
                    assert!(types[name].is_object(), "{name}");
                }
                fields.values().for_each(|below| check(below, prefix, types));
            }
            Value::Array(items) => items.iter().for_each(|below| check(below, prefix, types)),
            _ => {}
        }
    }
    let api = server().await;
    for path in ["api/v1", "apis/coordination.k8s.io/v1", "apis/events.k8s.io/v1", "apis/resource.k8s.io/v1"] {
        let (_, document) = api.get(&format!("/openapi/v3/{path}")).await;
        check(&document, "#/components/schemas/", &document["components"]["schemas"]);
    }
    let (_, document) = api.get("/openapi/v2").await;
    check(&document, "#/definitions/", &document["definitions"]);
    assert!(document["definitions"].as_object().unwrap().len() > 100);
    let patch = &document["paths"]["/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"]["patch"];
    assert!(patch["consumes"].as_array().unwrap().contains(&json!("application/apply-patch+yaml")));
    // Old clients ask for version 2 in protobuf alone: the error names what there is.
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    assert_eq!(api.get_as("/openapi/v2", protobuf).await.0, 406);
}
