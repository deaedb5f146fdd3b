//! The slices of a cluster's driver.

use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use super::Cluster;
use crate::support::{RecordedRequest, TIMEOUT};

impl Cluster {
    /// Returns the API for all slices of the server, with an administrator's client.
    pub fn slice_api(&self) -> Api<ResourceSlice> {
        Api::all(self.admin())
    }

    /// Returns the driver's slices, sorted by name.
    pub async fn slices(&self) -> Vec<ResourceSlice> {
        let ours = ListParams::default().fields(&format!("spec.driver={}", self.names.driver));
        let mut slices = self.slice_api().list(&ours).await.unwrap().items;
        slices.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        slices
    }

    /// Deletes all slices of the node, as the kubelet does when it starts.
    pub async fn wipe(&self) {
        let selector = ListParams::default().fields(&format!("spec.nodeName={}", self.names.node));
        let api: Api<ResourceSlice> = Api::all(self.server.kubelet(&self.names));
        let _ = api.delete_collection(&DeleteParams::default(), &selector).await.unwrap();
    }

    /// Returns the verbs of the driver's requests for slices since requests were last taken, without watches.
    pub fn take_slice_verbs(&self) -> Vec<&'static str> {
        let is_counted = |request: &RecordedRequest| request.is_about("resourceslices") && request.verb != "watch";
        self.proxy.take_requests().into_iter().filter(is_counted).map(|request| request.verb).collect()
    }

    /// Waits until the driver's slices match, and returns them.
    pub async fn until(&self, what: &str, matches: impl Fn(&[ResourceSlice]) -> bool) -> Vec<ResourceSlice> {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let slices = self.slices().await;
            if matches(&slices) {
                return slices;
            }
            assert!(tokio::time::Instant::now() < deadline, "timed out: {what}: {slices:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
