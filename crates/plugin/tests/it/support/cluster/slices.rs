//! The slices of a cluster's driver.

use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use super::Cluster;
use crate::support::{Asked, PATIENCE};

impl Cluster {
    /// All slices of the server, as an administrator has them.
    pub fn slice_api(&self) -> Api<ResourceSlice> {
        Api::all(self.admin())
    }

    /// The driver's slices, in the order of their names.
    pub async fn slices(&self) -> Vec<ResourceSlice> {
        let ours = ListParams::default().fields(&format!("spec.driver={}", self.names.driver));
        let mut slices = self.slice_api().list(&ours).await.unwrap().items;
        slices.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        slices
    }

    /// Deletes all slices of the node, as a kubelet does that starts.
    pub async fn wipe(&self) {
        let selector = ListParams::default().fields(&format!("spec.nodeName={}", self.names.node));
        let api: Api<ResourceSlice> = Api::all(self.server.kubelet(&self.names));
        let _ = api.delete_collection(&DeleteParams::default(), &selector).await.unwrap();
    }

    /// What the driver asked of the server about slices since the last time, but for the watches.
    pub fn take_requests(&self) -> Vec<&'static str> {
        let is_meant = |asked: &Asked| asked.is_about("resourceslices") && asked.verb != "watch";
        self.wire.take_asked().into_iter().filter(is_meant).map(|asked| asked.verb).collect()
    }

    /// Waits until slices are as somebody wants them.
    pub async fn until(&self, what: &str, is_so: impl Fn(&[ResourceSlice]) -> bool) -> Vec<ResourceSlice> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let slices = self.slices().await;
            if is_so(&slices) {
                return slices;
            }
            assert!(tokio::time::Instant::now() < deadline, "waited in vain: {what}: {slices:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
