//! API discovery: groups, versions, resources.

use drakkar_client::DraVersion;
use serde_json::{Value, json};

use super::resource::{DRA_GROUP, Resource};

/// The reported Kubernetes version.
const RELEASE: &str = "v1.37.1";

/// Returns the response to a discovery path, or `None` for other paths.
pub(crate) fn answer(segments: &[&str], served: &[DraVersion], address: &str) -> Option<Value> {
    match *segments {
        ["version"] => Some(json!({
            "major": "1", "minor": "37", "gitVersion": RELEASE, "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64",
        })),
        ["api"] => Some(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": address }],
        })),
        ["apis"] => Some(json!({
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [group("events.k8s.io", &["v1"]), dra_group(served)],
        })),
        ["apis", "events.k8s.io"] => Some(api_group(group("events.k8s.io", &["v1"]))),
        ["apis", DRA_GROUP] => Some(api_group(dra_group(served))),
        ["api", "v1"] => Some(resources("v1", "")),
        ["apis", "events.k8s.io", "v1"] => Some(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "events.k8s.io/v1",
            "resources": [resource(Resource::Event)],
        })),
        ["apis", DRA_GROUP, version] if served.iter().any(|known| known.name() == version) => {
            Some(resources(&format!("{DRA_GROUP}/{version}"), DRA_GROUP))
        }
        _ => None,
    }
}

fn dra_group(served: &[DraVersion]) -> Value {
    let names: Vec<&str> = served.iter().map(|version| version.name()).collect();
    group(DRA_GROUP, &names)
}

fn group(name: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({ "groupVersion": format!("{name}/{version}"), "version": version }))
        .collect();
    json!({ "name": name, "preferredVersion": versions.first(), "versions": versions })
}

fn api_group(mut group: Value) -> Value {
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    group
}

fn resources(group_version: &str, group: &str) -> Value {
    let mut list = Vec::new();
    for known in Resource::ALL.into_iter().filter(|known| known.group() == group) {
        list.push(resource(known));
        if known.has_status() {
            list.push(json!({
                "name": format!("{}/status", known.plural()), "singularName": "", "namespaced": known.namespaced(),
                "kind": known.kind(), "verbs": ["get", "patch", "update"],
            }));
        }
        if known == Resource::Pod {
            list.push(json!({
                "name": "pods/binding", "singularName": "", "namespaced": true, "kind": "Binding", "verbs": ["create"],
            }));
        }
    }
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list })
}

fn resource(resource: Resource) -> Value {
    let mut described = json!({
        "name": resource.plural(),
        "singularName": resource.singular(),
        "namespaced": resource.namespaced(),
        "kind": resource.kind(),
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    });
    if !resource.short_names().is_empty() {
        described["shortNames"] = json!(resource.short_names());
    }
    described
}
