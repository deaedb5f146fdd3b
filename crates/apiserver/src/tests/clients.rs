//! Connections, identities and versions.

use http::{Method, Request};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

use super::support::{CLAIMS, SLICES, claim, server, server_with, slice};
use crate::{ApiServer, Config, DraVersion, Identity};

fn driver() -> Identity {
    Identity::Driver {
        namespace: "kube-system".to_owned(),
        service_account: "gpu".to_owned(),
        node_name: "node-a".to_owned(),
    }
}

#[rstest::rstest]
#[tokio::test]
async fn a_kubeconfig_connects_to_the_server(#[values(false, true)] tls: bool) {
    let server = ApiServer::start(Config { tls, ..Config::default() }).await.unwrap();
    assert!(server.url().starts_with(if tls { "https://127.0.0.1:" } else { "http://127.0.0.1:" }));
    let file = Kubeconfig::from_yaml(&server.kubeconfig(&Identity::Admin).unwrap()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    let client = kube::Client::try_from(config).unwrap();
    let namespaces = Api::<Namespace>::all(client).list(&ListParams::default()).await.unwrap();
    let names: Vec<_> = namespaces.items.iter().filter_map(|namespace| namespace.metadata.name.as_deref()).collect();
    assert_eq!(names, ["default", "kube-node-lease", "kube-system"]);
    Api::<Namespace>::all(server.admin()).get("default").await.unwrap();
}

#[tokio::test]
async fn typed_objects_are_written_and_read() {
    let server = ApiServer::start(Config::default()).await.unwrap();
    let slices: Api<ResourceSlice> = Api::all(server.admin());
    let object: ResourceSlice = serde_json::from_value(slice("a")).unwrap();
    let made = slices.create(&PostParams::default(), &object).await.unwrap();
    assert_eq!(slices.get("a").await.unwrap(), made);
    let error = Api::<Pod>::namespaced(server.admin(), "default").get("none").await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.is_not_found()));
}

#[tokio::test]
async fn unauthenticated_clients_reach_only_health_and_version() {
    let server = ApiServer::start(Config::default()).await.unwrap();
    let anonymous = kube::Client::try_from(kube::Config::new(server.url().parse().unwrap())).unwrap();
    let status = async |path: &str| {
        let answer = anonymous.send(Request::get(path).body(kube::client::Body::empty()).unwrap()).await.unwrap();
        answer.status().as_u16()
    };
    assert_eq!(status(SLICES).await, 401);
    assert_eq!(status("/apis").await, 401);
    assert_eq!(status("/readyz").await, 200);
    assert_eq!(status("/version").await, 200);
}

#[tokio::test]
async fn a_driver_has_the_permissions_of_a_driver() {
    let api = server().await;
    let driver = api.of(&driver());
    assert_eq!(driver.post(SLICES, &slice("a")).await.0, 201);
    let (code, refused) = driver.post(CLAIMS, &claim("c")).await;
    assert_eq!((code, refused["reason"].as_str()), (403, Some("Forbidden")), "{refused}");
    assert_eq!(refused["details"], json!({ "group": "resource.k8s.io", "kind": "resourceclaims" }));
}

#[tokio::test]
async fn an_invalid_object_is_refused_with_all_its_errors() {
    let api = server().await;
    let mut object = slice("a");
    object["spec"]["driver"] = "Not A Driver".into();
    object["spec"]["pool"]["resourceSliceCount"] = 0.into();
    let (code, refused) = api.post(SLICES, &object).await;
    assert_eq!((code, refused["reason"].as_str()), (422, Some("Invalid")), "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(message.starts_with("ResourceSlice.resource.k8s.io \"a\" is invalid: ["), "{message}");
    let fields: Vec<&str> =
        refused["details"]["causes"].as_array().unwrap().iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    assert!(fields.contains(&"spec.driver") && fields.contains(&"spec.pool.resourceSliceCount"), "{fields:?}");
}

#[tokio::test]
async fn requests_are_logged_with_their_user() {
    let api = server().await;
    let driver = driver();
    api.of(&driver).get(SLICES).await;
    api.of(&driver).post(SLICES, &slice("a")).await;
    let lines: Vec<_> = api.server.requests().into_iter().filter(|line| line.user == driver.user_name()).collect();
    assert_eq!(lines.iter().map(|line| (line.verb, line.status)).collect::<Vec<_>>(), [("list", 200), ("create", 201)]);
    assert_eq!(lines.iter().filter(|line| line.is_write()).count(), 1);
    api.server.clear_requests();
    assert_eq!(api.server.requests(), []);
}

#[tokio::test]
async fn a_resumed_server_has_the_same_address_and_objects() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    let mut watch = api.watch(&format!("{SLICES}?watch=true")).await;
    watch.brief().await;
    let url = api.server.url();
    api.server.stop().await;
    assert!(!matches!(watch.try_next().await, Ok(Some(_))), "the watch ends");
    assert!(api.send(Method::GET, SLICES, "", String::new()).await.is_err());
    api.server.resume().await.unwrap();
    assert_eq!(api.server.url(), url);
    assert_eq!(api.get(&format!("{SLICES}/a")).await.0, 200);
}

#[tokio::test]
async fn older_versions_serve_the_same_objects_in_their_own_form() {
    let versions = vec![DraVersion::V1, DraVersion::V1beta2, DraVersion::V1beta1];
    let api = server_with(Config { versions, ..Config::default() }).await;
    let old = |path: &str| path.replace("/v1/", "/v1beta1/");
    let mut object = slice("a");
    object["spec"]["devices"] = json!([{ "name": "x", "basic": { "attributes": { "a": { "int": 1 } } } }]);
    let (code, made) = api.post(&old(SLICES), &object).await;
    assert_eq!((code, &made["apiVersion"]), (201, &json!("resource.k8s.io/v1beta1")), "{made}");
    assert_eq!(made["spec"]["devices"], object["spec"]["devices"]);
    let (_, new) = api.get(&format!("{SLICES}/a")).await;
    assert_eq!(new["spec"]["devices"], json!([{ "name": "x", "attributes": { "a": { "int": 1 } } }]));
    let (_, beta2) = api.get(&format!("{SLICES}/a").replace("/v1/", "/v1beta2/")).await;
    assert_eq!((&beta2["apiVersion"], &beta2["spec"]), (&json!("resource.k8s.io/v1beta2"), &new["spec"]));
    assert_eq!(api.post(CLAIMS, &claim("c")).await.0, 201);
    let (_, flat) = api.get(&old(&format!("{CLAIMS}/c"))).await;
    assert_eq!(flat["spec"]["devices"]["requests"][0]["deviceClassName"], "gpu");
}

#[tokio::test]
async fn events_are_the_same_in_both_groups() {
    let api = server().await;
    let event = json!({
        "metadata": { "name": "e" }, "regarding": { "kind": "Pod", "name": "p", "namespace": "default" }, "reason": "Failed",
        "note": "a note", "type": "Warning", "action": "Prepare", "reportingController": "k8s.io/kubelet",
        "reportingInstance": "a", "eventTime": "2024-01-01T00:00:00.000000Z",
    });
    let (code, made) = api.post("/apis/events.k8s.io/v1/namespaces/default/events", &event).await;
    assert_eq!((code, &made["note"]), (201, &json!("a note")), "{made}");
    let (_, core) = api.get("/api/v1/namespaces/default/events/e").await;
    assert_eq!((&core["message"], &core["involvedObject"]["name"]), (&json!("a note"), &json!("p")));
}
