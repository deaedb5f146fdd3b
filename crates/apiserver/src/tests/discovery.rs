//! Discovery in both forms.

use http::Method;
use serde_json::{Value, json};

use super::support::{server, server_with};
use crate::{Config, DraVersion};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

fn texts<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap()).collect()
}

#[tokio::test]
async fn discovery_lists_groups_versions_and_resources() {
    let api = server().await;
    assert_eq!(api.server.admin().apiserver_version().await.unwrap().minor, "37");
    let (_, groups) = api.get("/apis").await;
    assert_eq!(
        texts(&groups["groups"], "name"),
        ["authentication.k8s.io", "authorization.k8s.io", "coordination.k8s.io", "events.k8s.io", "resource.k8s.io"]
    );
    assert_eq!(groups["groups"][4]["preferredVersion"]["groupVersion"], "resource.k8s.io/v1");
    assert_eq!(api.get("/apis/resource.k8s.io").await.1["kind"], "APIGroup");
    let (_, resources) = api.get("/apis/resource.k8s.io/v1").await;
    let names = texts(&resources["resources"], "name");
    assert!(names.contains(&"resourceclaims/status") && names.contains(&"deviceclasses"), "{names:?}");
    let (_, core) = api.get("/api/v1").await;
    let pods = core["resources"].as_array().unwrap().iter().find(|resource| resource["name"] == "pods").unwrap();
    assert_eq!((&pods["shortNames"], &pods["categories"]), (&json!(["po"]), &json!(["all"])));
    let (code, answer) = api.get("/apis/resource.k8s.io/v1beta1").await;
    assert_eq!((code, answer["reason"].as_str()), (404, Some("NotFound")));
    assert_eq!(api.get("/apis/other.example.com/v1").await, (404, json!("404 page not found\n")));
    assert_eq!(api.json(Method::POST, "/apis", &json!({})).await.0, 405);
}

#[tokio::test]
async fn discovery_in_one_response_has_the_same_resources() {
    let versions = vec![DraVersion::V1, DraVersion::V1beta1];
    let api = server_with(Config { versions, ..Config::default() }).await;
    let (code, kind, core) = api.get_as("/api", AGGREGATED).await;
    assert_eq!((code, kind.as_str()), (200, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"));
    assert_eq!(core["kind"], "APIGroupDiscoveryList");
    let pods = core["items"][0]["versions"][0]["resources"].as_array().unwrap();
    let pods = pods.iter().find(|resource| resource["resource"] == "pods").unwrap();
    assert_eq!((&pods["scope"], &pods["responseKind"]["kind"]), (&json!("Namespaced"), &json!("Pod")));
    assert_eq!(texts(&pods["subresources"], "subresource"), ["binding", "exec", "log", "status"]);

    let (_, _, groups) = api.get_as("/apis", AGGREGATED).await;
    for group in groups["items"].as_array().unwrap() {
        let name = group["metadata"]["name"].as_str().unwrap();
        for version in group["versions"].as_array().unwrap() {
            let version_name = version["version"].as_str().unwrap();
            let (_, list) = api.get(&format!("/apis/{name}/{version_name}")).await;
            let mut listed = texts(&list["resources"], "name");
            listed.retain(|name| !name.contains('/'));
            assert_eq!(texts(&version["resources"], "resource"), listed, "{name}/{version_name}");
        }
    }
    let dra = groups["items"].as_array().unwrap().last().unwrap();
    assert_eq!(texts(&dra["versions"], "version"), ["v1", "v1beta1"]);
    // A client that does not ask for it gets the older form.
    assert_eq!(api.get_as("/apis", "application/json").await.2["kind"], "APIGroupList");
}
