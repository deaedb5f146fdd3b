//! Tests of preparing and unpreparing claims, with every kind of response of a plugin.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::time::Duration;

use drakkar_kubelet_api::dra_v1::{Device as WireDevice, NodePrepareResourceResponse};
use serde_json::{Value, json};
use tonic::Code;

use super::*;
use crate::kubelet::Kubelet;
use crate::kubelet::testing::{DRIVER, TestNode, TestPlugin, claim, connected, eventually, pod};

const OTHER: &str = "net.example.com";

/// A node whose kubelet ignores the pods of the tests: none is bound to the node.
struct Bench {
    node: TestNode,
    kubelet: Kubelet,
    plugin: TestPlugin,
}

async fn bench() -> Bench {
    let mut node = TestNode::new().await;
    node.timing.orphan_interval = Duration::from_secs(3600);
    let (kubelet, plugin) = node.with_plugin().await;
    Bench { node, kubelet, plugin }
}

impl Bench {
    fn manager(&self) -> &Manager {
        self.kubelet.pods.manager()
    }

    /// Creates a pod with claims that are reserved for it.
    async fn pod(&self, name: &str, claims: &[Value]) -> Pod {
        let names: Vec<&str> = claims.iter().map(|claim| claim["metadata"]["name"].as_str().unwrap()).collect();
        let uid = self.node.api.create_pod(&pod(name, &names)).await;
        for claim in claims {
            self.node.api.reserve(claim, &uid).await;
        }
        self.fetch(name).await
    }

    async fn fetch(&self, name: &str) -> Pod {
        self.node.api.pods().get(name).await.unwrap()
    }

    fn calls(&self) -> Vec<String> {
        self.node.log.of(&["prepare", "unprepare"])
    }

    async fn prepare_error(&self, pod: &Pod) -> String {
        self.manager().prepare(pod).await.unwrap_err().to_string()
    }

    fn cached(&self, name: &str) -> Option<CachedClaim> {
        self.manager().claims().into_iter().find(|entry| entry.claim.name == name)
    }
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap()
}

fn devices(devices: &[(&str, &[&str], &[&str])]) -> Option<NodePrepareResourceResponse> {
    let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let device = |(name, requests, ids): &(&str, &[&str], &[&str])| WireDevice {
        pool_name: "pool".to_owned(),
        device_name: (*name).to_owned(),
        request_names: list(requests),
        cdi_device_ids: list(ids),
        share_id: None,
    };
    Some(NodePrepareResourceResponse { devices: devices.iter().map(device).collect(), error: String::new() })
}

#[tokio::test]
async fn all_claims_of_a_pod_are_prepared_in_one_call_for_each_driver() {
    let bench = bench().await;
    let other = TestPlugin::start(&bench.node.registry(), OTHER, "", bench.node.log.clone()).await;
    connected(&bench.kubelet, 2).await;
    let pod = bench.pod("p", &[claim("a", &[]), claim("b", &[DRIVER, OTHER]), claim("c", &[])]).await;
    bench.manager().prepare(&pod).await.unwrap();
    let mut calls = bench.calls();
    calls.sort();
    assert_eq!(calls, ["prepare gpu.example.com a b c", "prepare net.example.com b"]);
    assert!(bench.manager().claims().iter().all(|entry| entry.prepared));
    drop(other);
}

#[tokio::test]
async fn a_claim_that_this_kubelet_has_prepared_is_not_prepared_again() {
    let bench = bench().await;
    let shared = claim("shared", &[]);
    let first = bench.pod("first", std::slice::from_ref(&shared)).await;
    let second = bench.pod("second", &[shared, claim("own", &[])]).await;
    bench.manager().prepare(&first).await.unwrap();
    bench.manager().prepare(&second).await.unwrap();
    assert_eq!(bench.calls(), ["prepare gpu.example.com shared", "prepare gpu.example.com own"]);
    assert_eq!(bench.cached("shared").unwrap().pods.len(), 2);
}

#[tokio::test]
async fn a_pod_may_only_use_claims_that_are_allocated_reserved_for_it_and_its_own() {
    let bench = bench().await;
    let api = &bench.node.api;
    let pod = bench.pod("p", &[claim("a", &[])]).await;
    api.set_claim_status("a", json!({"reservedFor": null})).await;
    assert!(bench.prepare_error(&pod).await.contains("is not reserved for this pod"));
    let mut unallocated = claim("b", &[]);
    unallocated["status"] = json!({});
    let waiting = bench.pod("waiting", &[unallocated]).await;
    assert!(bench.prepare_error(&waiting).await.contains("is not reserved for this pod"));

    // With a template, the pod's status names the claim, and the pod must own it.
    let template = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t", "namespace": "default"},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "template"}],
            "containers": [{"name": "main", "image": "none"}]},
    });
    let template_uid = api.create_pod(&template).await;
    let templated = bench.fetch("t").await;
    assert!(bench.prepare_error(&templated).await.contains("has not been created yet"));
    api.reserve(&claim("generated", &[]), &template_uid).await;
    api.set_pod_status("t", json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "generated"}]}))
        .await;
    let templated = bench.fetch("t").await;
    assert!(bench.prepare_error(&templated).await.contains("the pod is not its owner"));
    // A claim that is not needed is skipped.
    api.set_pod_status("t", json!({"resourceClaimStatuses": [{"name": "gpu"}]})).await;
    bench.manager().prepare(&bench.fetch("t").await).await.unwrap();
    assert!(bench.calls().is_empty() && bench.manager().claims().is_empty());
}

#[tokio::test]
async fn a_generated_claim_that_the_pod_owns_and_an_extended_resource_claim_are_prepared() {
    let bench = bench().await;
    let api = &bench.node.api;
    let template = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t", "namespace": "default"},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "template"}],
            "containers": [{"name": "main", "image": "none"}, {"name": "other", "image": "none"}]},
    });
    let uid = api.create_pod(&template).await;
    for name in ["generated", "extended"] {
        let mut owned = claim(name, &[]);
        owned["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "t", "uid": uid, "controller": true}]);
        api.reserve(&owned, &uid).await;
    }
    let mapping = json!([{"containerName": "main", "resourceName": "example.com/gpu", "requestName": "gpu"}]);
    api.set_pod_status(
        "t",
        json!({
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "generated"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "extended", "requestMappings": mapping},
        }),
    )
    .await;
    let pod = bench.fetch("t").await;
    bench.manager().prepare(&pod).await.unwrap();
    assert_eq!(bench.calls(), ["prepare gpu.example.com extended generated"]);
    // Only the container of the mapping gets the extended resource.
    let containers = &pod.spec.as_ref().unwrap().containers;
    assert_eq!(bench.manager().cdi_devices(&pod, &containers[0]).unwrap(), ["gpu.example.com/gpu=extended"]);
    assert!(bench.manager().cdi_devices(&pod, &containers[1]).unwrap().is_empty());
}

#[tokio::test]
async fn a_driver_that_is_not_registered_fails_the_pod_before_anything_is_recorded() {
    let bench = bench().await;
    let pod = bench.pod("p", &[claim("a", &[]), claim("b", &[OTHER])]).await;
    assert!(bench.prepare_error(&pod).await.contains("DRA driver net.example.com is not registered"));
    assert!(bench.manager().claims().is_empty() && bench.calls().is_empty());
}

#[tokio::test]
async fn a_response_without_success_for_all_claims_fails_the_pod_and_all_are_prepared_again() {
    let bench = bench().await;
    let pod = bench.pod("p", &[claim("a", &[]), claim("b", &[])]).await;
    let script = bench.plugin.script.clone();
    let manager = bench.manager();

    *script.call_error.lock().unwrap() = Some(Status::new(Code::Aborted, "no"));
    assert!(bench.prepare_error(&pod).await.contains("NodePrepareResources of gpu.example.com: "));
    *script.call_error.lock().unwrap() = None;
    bench.plugin.prepare_with(|claim| match claim.name.as_str() {
        "a" => Some(NodePrepareResourceResponse { devices: vec![], error: "broken".to_owned() }),
        _ => devices(&[]),
    });
    assert!(bench.prepare_error(&pod).await.ends_with(": broken"));
    bench.plugin.prepare_with(|claim| (claim.name == "a").then(NodePrepareResourceResponse::default));
    assert!(bench.prepare_error(&pod).await.ends_with("skipped 1 claims"));
    bench.plugin.prepare_with(|_| devices(&[]));
    *script.extra.lock().unwrap() = vec!["unknown".to_owned()];
    assert!(bench.prepare_error(&pod).await.contains("claim uid unknown, which was not asked for"));
    assert!(manager.claims().iter().all(|entry| !entry.prepared && entry.pods.contains(uid(&pod))));

    // Success without devices is a success.
    script.extra.lock().unwrap().clear();
    manager.prepare(&pod).await.unwrap();
    assert_eq!(bench.calls(), vec!["prepare gpu.example.com a b"; 5]);
}

#[tokio::test]
async fn a_second_response_replaces_the_devices_of_the_first() {
    let bench = bench().await;
    let pod = bench.pod("p", &[claim("a", &[]), claim("b", &[])]).await;
    bench.plugin.prepare_with(|claim| match claim.name.as_str() {
        "a" => devices(&[("one", &[], &[]), ("two", &[], &[])]),
        _ => None,
    });
    bench.prepare_error(&pod).await;
    assert_eq!(bench.cached("a").unwrap().drivers[DRIVER].len(), 2);
    bench.plugin.prepare_with(|_| devices(&[("three", &[], &[])]));
    bench.manager().prepare(&pod).await.unwrap();
    assert_eq!(bench.cached("a").unwrap().drivers[DRIVER][0].device_name, "three");
    assert_eq!(bench.cached("a").unwrap().drivers[DRIVER].len(), 1);
}

#[tokio::test]
async fn a_claim_of_the_same_name_and_another_uid_is_refused_while_the_older_one_exists() {
    let bench = bench().await;
    let first = bench.pod("first", &[claim("a", &[])]).await;
    bench.manager().prepare(&first).await.unwrap();
    bench.node.api.claims().delete("a", &kube::api::DeleteParams::default()).await.unwrap();
    let second = bench.pod("second", &[claim("a", &[])]).await;
    assert!(bench.prepare_error(&second).await.contains("an older claim of that name"));
    bench.manager().unprepare(uid(&first)).await.unwrap();
    bench.manager().prepare(&second).await.unwrap();
}

#[tokio::test]
async fn a_claim_that_is_being_unprepared_is_refused() {
    let bench = bench().await;
    let shared = claim("a", &[]);
    let first = bench.pod("first", std::slice::from_ref(&shared)).await;
    bench.manager().prepare(&first).await.unwrap();
    let second = bench.pod("second", &[shared]).await;
    bench.plugin.script.gate.forget_permits(usize::MAX);
    let unprepare = bench.manager().unprepare(uid(&first));
    let meanwhile = async {
        bench.node.log.wait_for("unprepare", 1).await;
        assert!(bench.prepare_error(&second).await.contains("is being unprepared"));
        bench.plugin.script.gate.add_permits(10);
    };
    let (unprepared, ()) = tokio::join!(unprepare, meanwhile);
    unprepared.unwrap();
    bench.manager().prepare(&second).await.unwrap();
}

#[tokio::test]
async fn only_the_last_pod_of_a_claim_unprepares_it() {
    let bench = bench().await;
    let shared = claim("shared", &[]);
    let first = bench.pod("first", std::slice::from_ref(&shared)).await;
    let second = bench.pod("second", &[shared]).await;
    bench.manager().prepare(&first).await.unwrap();
    bench.manager().prepare(&second).await.unwrap();
    bench.manager().unprepare(uid(&first)).await.unwrap();
    assert_eq!(bench.node.log.count("unprepare"), 0);
    bench.manager().unprepare(uid(&second)).await.unwrap();
    assert_eq!(bench.node.log.of(&["unprepare"]), ["unprepare gpu.example.com shared"]);
    assert!(bench.manager().claims().is_empty());
    // A pod without claims has nothing to unprepare.
    bench.manager().unprepare(uid(&second)).await.unwrap();
}

#[tokio::test]
async fn a_failed_unprepare_keeps_the_claim_and_is_retried_with_all_its_drivers() {
    let bench = bench().await;
    let pod = bench.pod("p", &[claim("a", &[])]).await;
    bench.manager().prepare(&pod).await.unwrap();
    bench.plugin.unprepare_with("busy");
    let error = bench.manager().unprepare(uid(&pod)).await.unwrap_err().to_string();
    assert!(error.contains("NodeUnprepareResources of gpu.example.com") && error.ends_with(": busy"), "{error}");
    assert_eq!(bench.cached("a").map(|entry| entry.unpreparing), Some(false));
    bench.plugin.unprepare_with("");
    bench.manager().unprepare(uid(&pod)).await.unwrap();
    assert!(bench.cached("a").is_none());
}

#[tokio::test]
async fn unprepare_is_called_even_if_prepare_never_succeeded() {
    let bench = bench().await;
    let pod = bench.pod("p", &[claim("a", &[])]).await;
    *bench.plugin.script.call_error.lock().unwrap() = Some(Status::internal("no"));
    bench.prepare_error(&pod).await;
    *bench.plugin.script.call_error.lock().unwrap() = None;
    bench.manager().unprepare(uid(&pod)).await.unwrap();
    assert_eq!(bench.calls(), ["prepare gpu.example.com a", "unprepare gpu.example.com a"]);
}

#[tokio::test]
async fn an_unprepare_needs_the_plugin() {
    let bench = bench().await;
    let pod = bench.pod("p", &[claim("a", &[])]).await;
    bench.manager().prepare(&pod).await.unwrap();
    let Bench { node, kubelet, plugin } = bench;
    drop(plugin);
    eventually("not registered", || kubelet.registered().is_empty().then_some(())).await;
    let error = kubelet.pods.manager().unprepare(uid(&pod)).await.unwrap_err().to_string();
    assert_eq!(error, "DRA driver gpu.example.com is not registered");
    assert_eq!(kubelet.claims().len(), 1);
    drop(node);
}

/// Returns the pod with these claims for its only container.
fn referring(pod: &Pod, claims: &Value) -> Pod {
    let mut pod = json!(pod);
    pod["spec"]["containers"][0]["resources"]["claims"] = claims.clone();
    serde_json::from_value(pod).unwrap()
}

#[tokio::test]
async fn a_container_gets_the_devices_of_the_requests_that_it_names() {
    let bench = bench().await;
    let pod = bench.pod("p", &[claim("a", &[])]).await;
    bench.plugin.prepare_with(|_| {
        devices(&[
            ("one", &["gpu"], &["x/gpu=one", "x/meta=one"]),
            ("two", &["nic", "gpu"], &["x/gpu=two"]),
            ("sub", &["gpu/large"], &["x/gpu=sub"]),
            ("all", &[], &["x/gpu=all"]),
            ("none", &["gpu"], &[]),
        ])
    });
    bench.manager().prepare(&pod).await.unwrap();
    let selected = |claims: Value| {
        let pod = referring(&pod, &claims);
        let devices = bench.manager().cdi_devices(&pod, &pod.spec.as_ref().unwrap().containers[0]).unwrap();
        devices.iter().map(|id| id.trim_start_matches("x/").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(selected(json!([{"name": "a"}])), ["gpu=one", "meta=one", "gpu=two", "gpu=sub", "gpu=all"]);
    assert_eq!(selected(json!([{"name": "a", "request": "gpu"}])), ["gpu=one", "meta=one", "gpu=two", "gpu=all"]);
    assert_eq!(selected(json!([{"name": "a", "request": "nic"}])), ["gpu=two", "gpu=all"]);
    assert_eq!(selected(json!([{"name": "a", "request": "gpu/large"}])), ["gpu=sub", "gpu=all"]);
    // A device of two requests occurs twice for a container that refers to both.
    let both = json!([{"name": "a", "request": "nic"}, {"name": "a", "request": "gpu"}]);
    assert_eq!(selected(both), ["gpu=two", "gpu=all", "gpu=one", "meta=one", "gpu=two", "gpu=all"]);
    assert!(selected(json!([])).is_empty());
}

#[tokio::test]
async fn the_health_of_devices_is_reported_under_their_first_cdi_id() {
    let bench = bench().await;
    let pod = bench.pod("p", &[claim("a", &[])]).await;
    bench.plugin.prepare_with(|_| {
        devices(&[("one", &["gpu"], &["x/gpu=one", "x/m=1"]), ("same", &["gpu"], &["x/gpu=one"]), ("bare", &[], &[])])
    });
    bench.manager().prepare(&pod).await.unwrap();
    bench.node.log.wait_for("health-v1 ", 1).await;
    bench.plugin.report(&[("one", 2, 0, "hot"), ("bare", 1, 0, "")]);
    eventually("health", || (bench.kubelet.health().len() == 2).then_some(())).await;
    let statuses = |claims: Value| {
        let pod = referring(&pod, &claims);
        json!(bench.manager().resource_statuses(&pod, &pod.spec.as_ref().unwrap().containers[0]))
    };
    let one = json!({"resourceID": "x/gpu=one", "health": "Unhealthy", "message": "hot"});
    let bare = json!({"resourceID": "gpu.example.com/pool/bare", "health": "Healthy"});
    assert_eq!(statuses(json!([{"name": "a"}])), json!([{"name": "claim:a", "resources": [one, bare]}]));
    assert_eq!(
        statuses(json!([{"name": "a", "request": "gpu"}])),
        json!([{"name": "claim:a/gpu", "resources": [one, bare]}])
    );
    assert_eq!(
        statuses(json!([{"name": "a", "request": "nic"}])),
        json!([{"name": "claim:a/nic", "resources": [bare]}])
    );
}
