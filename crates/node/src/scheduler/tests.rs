#![allow(clippy::unwrap_used, clippy::panic)]
//! Tests of the scheduler on the embedded API server, over HTTP.

mod faults;
mod life;

use std::time::Duration;

use drakkar_apiserver::{ApiServer, Config, Identity};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::Scheduler;

const NODE: &str = "worker";
const DRIVER: &str = "gpu.example.com";

/// An API server, and a scheduler for one node.
struct Cluster {
    server: ApiServer,
    scheduler: Option<Scheduler>,
}

impl Cluster {
    async fn start() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let server = ApiServer::start(config).await.unwrap();
        let mut cluster = Self { server, scheduler: None };
        cluster.start_scheduler();
        cluster
            .create::<DeviceClass>(
                "resource.k8s.io/v1",
                "DeviceClass",
                &json!({
                    "metadata": {"name": "gpu"},
                    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]},
                }),
            )
            .await;
        cluster
    }

    fn start_scheduler(&mut self) {
        let client = self.server.client(&Identity::Scheduler).unwrap();
        self.scheduler = Some(Scheduler::start(client, NODE));
    }

    async fn stop_scheduler(&mut self) {
        self.scheduler.take().unwrap().stop().await;
    }

    fn namespaced<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.server.admin(), "default")
    }

    fn pods(&self) -> Api<Pod> {
        self.namespaced()
    }

    fn claims(&self) -> Api<ResourceClaim> {
        self.namespaced()
    }

    /// Creates an object of any kind.
    async fn create<K>(&self, version: &str, kind: &str, object: &Value) -> K
    where
        K: kube::Resource<DynamicType = ()> + serde::Serialize + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
    {
        let mut object = object.clone();
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        let object: K = serde_json::from_value(object).unwrap();
        let client = self.server.admin();
        let url = K::url_path(&(), object.meta().namespace.as_deref());
        let request =
            kube::core::Request::new(url).create(&PostParams::default(), serde_json::to_vec(&object).unwrap());
        client.request(request.unwrap()).await.unwrap()
    }

    async fn slice(&self, name: &str, generation: i64, devices: &Value) {
        let spec = json!({
            "driver": DRIVER, "nodeName": NODE, "devices": devices,
            "pool": {"name": name, "generation": generation, "resourceSliceCount": 1},
        });
        let object = json!({"metadata": {"name": name}, "spec": spec});
        self.create::<ResourceSlice>("resource.k8s.io/v1", "ResourceSlice", &object).await;
    }

    async fn gpus(&self, count: usize) {
        for (number, names) in (0..count).collect::<Vec<_>>().chunks(128).enumerate() {
            let devices = names.iter().map(|name| json!({"name": format!("gpu-{name}")})).collect();
            self.slice(&format!("pool-{number}"), 1, &devices).await;
        }
    }

    async fn template(&self, name: &str, request: &Value) {
        let spec = json!({"devices": {"requests": [{"name": "gpu", "exactly": request}]}});
        let object = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"metadata": {"labels": {"made": "here"}}, "spec": spec},
        });
        self.create::<ResourceClaimTemplate>("resource.k8s.io/v1", "ResourceClaimTemplate", &object).await;
    }

    async fn claim(&self, name: &str) -> ResourceClaim {
        let spec = json!({"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}});
        let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        self.create("resource.k8s.io/v1", "ResourceClaim", &object).await
    }

    async fn pod(&self, name: &str, claims: &Value) -> Pod {
        self.pod_with(name, claims, &json!({})).await
    }

    async fn pod_with(&self, name: &str, claims: &Value, more: &Value) -> Pod {
        let mut spec = json!({"containers": [{"name": "main", "image": "none"}], "resourceClaims": claims});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        self.create("v1", "Pod", &object).await
    }

    /// Creates a pod with a claim from the template `gpu`.
    async fn templated(&self, name: &str) -> Pod {
        self.pod(name, &json!([{"name": "my-gpu", "resourceClaimTemplateName": "gpu"}])).await
    }

    async fn phase(&self, pod: &str, phase: &str) {
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        self.pods().patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn delete_pod(&self, name: &str) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.pods().delete(name, &now).await.unwrap();
    }

    async fn bound(&self, pod: &str) -> Pod {
        eventually(&format!("pod {pod} is bound"), async || {
            let pod = self.pods().get(pod).await.ok()?;
            pod.spec.as_ref()?.node_name.as_deref().filter(|node| *node == NODE)?;
            Some(pod)
        })
        .await
    }

    /// Waits until the pod's `PodScheduled` condition contains these words, and returns its message.
    async fn unschedulable(&self, pod: &str, words: &str) -> String {
        eventually(&format!("pod {pod} says {words:?}"), async || {
            let pod = self.pods().get(pod).await.ok()?;
            let conditions = pod.status?.conditions?;
            let condition = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled")?;
            assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("False", Some("Unschedulable")));
            condition.message.filter(|message| message.contains(words))
        })
        .await
    }

    async fn claim_list(&self) -> Vec<ResourceClaim> {
        self.claims().list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until the condition holds for a claim, and returns the claim.
    async fn claim_when(&self, name: &str, what: &str, condition: impl Fn(&ResourceClaim) -> bool) -> ResourceClaim {
        eventually(&format!("claim {name} {what}"), async || self.claims().get(name).await.ok().filter(&condition))
            .await
    }

    /// Counts the claims without reading them all.
    async fn claim_count(&self) -> usize {
        let few = ListParams { limit: Some(1), ..ListParams::default() };
        let list = self.claims().list(&few).await.unwrap();
        list.items.len() + usize::try_from(list.metadata.remaining_item_count.unwrap_or_default()).unwrap()
    }

    async fn no_claims(&self) {
        eventually("no claims", async || self.claim_list().await.is_empty().then_some(())).await;
    }
}

fn devices(claim: &ResourceClaim) -> Vec<String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref()?.devices.as_ref());
    let results = allocation.and_then(|devices| devices.results.clone()).unwrap_or_default();
    results.into_iter().map(|result| result.device).collect()
}

fn reserved(claim: &ResourceClaim) -> Vec<String> {
    let consumers = claim.status.as_ref().and_then(|status| status.reserved_for.clone()).unwrap_or_default();
    consumers.into_iter().map(|consumer| consumer.name).collect()
}

fn finalizers(claim: &ResourceClaim) -> &[String] {
    claim.metadata.finalizers.as_deref().unwrap_or_default()
}

/// Polls until there is a value.
async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), wait).await.unwrap_or_else(|_| panic!("never: {what}"))
}
