//! An API server that logs the kubelet's changes.

use futures::FutureExt as _;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{DRIVER, Log, NODE, TIMEOUT};
use crate::{ApiServer, Identity};

/// Returns a pod `default/name` with one container `main` that uses claims, each under its own name.
pub(crate) fn pod(name: &str, claims: &[&str]) -> Value {
    let entries: Vec<Value> = claims.iter().map(|claim| json!({"name": claim, "resourceClaimName": claim})).collect();
    let references: Vec<Value> = claims.iter().map(|claim| json!({"name": claim})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 7, "resourceClaims": entries,
            "containers": [{"name": "main", "image": "none", "command": ["true"], "resources": {"claims": references}}],
        },
    })
}

/// Returns a claim `default/name` that is allocated, with a device of each driver.
pub(crate) fn claim(name: &str, drivers: &[&str]) -> Value {
    let drivers = if drivers.is_empty() { &[DRIVER] } else { drivers };
    let result = |driver: &&str| json!({"request": "gpu", "driver": driver, "pool": "pool", "device": name});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}},
        "status": {"allocation": {"devices": {"results": drivers.iter().map(result).collect::<Vec<_>>()}}},
    })
}

pub(crate) struct TestApi {
    pub(crate) server: ApiServer,
    log: Log,
}

impl TestApi {
    pub(crate) async fn start(log: Log) -> Self {
        Self { server: ApiServer::start(drakkar_apiserver::Config::default()).await.unwrap(), log }
    }

    /// Returns the kubelet's client, which logs the kubelet's changes.
    pub(crate) fn client(&self) -> kube::Client {
        let log = self.log.clone();
        let client = self.server.client(&Identity::Node(NODE.to_owned())).unwrap();
        let service = tower::service_fn(move |request: Request<Body>| {
            let log = log.clone();
            let client = client.clone();
            // Boxed, since a client's future is large.
            async move { client_call(&log, &client, request).await }.boxed()
        });
        kube::Client::new(service, "default")
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.server.admin(), "default")
    }

    pub(crate) fn claims(&self) -> Api<ResourceClaim> {
        Api::namespaced(self.server.admin(), "default")
    }

    /// Creates a pod, reserves claims for it, creating new ones, and binds it to the node.
    pub(crate) async fn run(&self, pod: &Value, claims: &[Value]) -> String {
        let uid = self.create_pod(pod).await;
        for claim in claims {
            self.reserve(claim, &uid).await;
        }
        self.bind(pod).await;
        uid
    }

    /// Creates an unbound pod, and returns its UID.
    pub(crate) async fn create_pod(&self, pod: &Value) -> String {
        let pod: Pod = decode(pod.clone());
        self.pods().create(&PostParams::default(), &pod).await.unwrap().metadata.uid.unwrap()
    }

    pub(crate) async fn bind(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": "default"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE}});
        let _: Value = self.pods().create_subresource("binding", name, &PostParams::default(), &binding).await.unwrap();
    }

    /// Creates a claim if it is new, and adds a reservation for a pod.
    pub(crate) async fn reserve(&self, claim: &Value, pod_uid: &str) {
        let name = claim["metadata"]["name"].as_str().unwrap();
        let found = match self.claims().get_opt(name).await.unwrap() {
            Some(found) => found,
            None => self.claims().create(&PostParams::default(), &decode(claim.clone())).await.unwrap(),
        };
        // The API server refuses the reservation of an unallocated claim.
        if claim["status"]["allocation"].is_null() {
            return;
        }
        let reserved = found.status.and_then(|status| status.reserved_for).unwrap_or_default();
        let mut reserved: Vec<Value> = reserved.iter().map(|consumer| json!(consumer)).collect();
        reserved.push(json!({"resource": "pods", "name": format!("pod-{}", reserved.len()), "uid": pod_uid}));
        self.set_claim_status(name, json!({"reservedFor": reserved, "allocation": claim["status"]["allocation"]}))
            .await;
    }

    pub(crate) async fn set_claim_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.claims().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn set_pod_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.pods().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Deletes a pod as a user does, with a grace period of three seconds.
    pub(crate) async fn delete(&self, name: &str) {
        self.pods()
            .delete(name, &DeleteParams { grace_period_seconds: Some(3), ..DeleteParams::default() })
            .await
            .unwrap();
    }

    /// Deletes a pod without a grace period: it is gone at once.
    pub(crate) async fn remove(&self, name: &str) {
        self.pods()
            .delete(name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() })
            .await
            .unwrap();
    }

    /// Waits until the condition holds for a pod, and returns it.
    pub(crate) async fn wait_for(&self, name: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let found = self.pods().get_opt(name).await.unwrap().map(|pod| json!(pod));
            match found {
                Some(pod) if condition(&pod) => return pod,
                found => {
                    assert!(tokio::time::Instant::now() < deadline, "timed out: {name}: {what}: {found:?}");
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn wait_for_phase(&self, name: &str, phase: &str) -> Value {
        self.wait_for(name, phase, |pod| pod["status"]["phase"] == phase).await
    }

    pub(crate) async fn wait_until_gone(&self, name: &str) {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while self.pods().get_opt(name).await.unwrap().is_some() {
            assert!(tokio::time::Instant::now() < deadline, "{name} is not deleted");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Returns the reason, message and count of each event.
    pub(crate) async fn events(&self) -> Vec<(String, String, i32)> {
        let api: Api<Event> = Api::namespaced(self.server.admin(), "default");
        let events = api.list(&ListParams::default()).await.unwrap();
        let event = |event: Event| {
            (event.reason.unwrap_or_default(), event.message.unwrap_or_default(), event.count.unwrap_or_default())
        };
        events.items.into_iter().map(event).collect()
    }
}

fn decode<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

async fn client_call(log: &Log, client: &kube::Client, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let query = parts.uri.query().unwrap_or_default().replace("%3D", "=").replace("%2C", ",");
    let path = parts.uri.path().to_owned();
    let path: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let line = match (&parts.method, path.as_slice()) {
        (&Method::PATCH, ["api", "v1", "namespaces", _, "pods", name, "status"]) => {
            let patch: Value = serde_json::from_slice(&body).unwrap();
            Some(format!("status {name} {}", patch["status"]["phase"].as_str().unwrap()))
        }
        (&Method::DELETE, ["api", "v1", "namespaces", _, "pods", name]) => {
            let options: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(options["gracePeriodSeconds"], 0);
            Some(format!("delete {name}"))
        }
        (&Method::DELETE, ["apis", "resource.k8s.io", "v1", "resourceslices"]) => {
            let selector = query.split('&').find_map(|part| part.strip_prefix("fieldSelector="));
            Some(format!("delete-slices {}", selector.unwrap()))
        }
        _ => None,
    };
    if let Some(line) = line {
        log.add(line);
    }
    client.send(Request::from_parts(parts, Body::from(body.to_vec()))).await
}
