//! Faults between the driver's records, the kubelet's checkpoint and the API server.

use std::fs;
use std::path::PathBuf;

use drakkar_kubelet_api::checkpoint::{self, ClaimState, Device, DriverState};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::node::{DRIVER, HealthyNode};
use drakkar_node::ClaimSpec;

fn checkpoint_file(node: &HealthyNode) -> PathBuf {
    node.node.kubelet_root().join(checkpoint::FILE)
}

/// Replaces the claims in the kubelet's checkpoint.
fn write_checkpoint(node: &HealthyNode, claims: &[ClaimState]) {
    fs::write(checkpoint_file(node), checkpoint::encode(claims).unwrap()).unwrap();
}

/// Deletes the claim although a pod uses it, as an administrator can.
pub(crate) async fn delete_claim(node: &HealthyNode) {
    // The kubelet and the controllers would clean up.
    node.node.kill_kubelet().await;
    let claims: Api<ResourceClaim> = Api::namespaced(node.node.client(), "default");
    let status = json!({"status": {"reservedFor": null, "allocation": null}});
    claims.patch_status("train", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let finalizers = json!({"metadata": {"finalizers": null}});
    claims.patch("train", &PatchParams::default(), &Patch::Merge(finalizers)).await.unwrap();
    claims.delete("train", &DeleteParams::default()).await.unwrap();
    assert!(node.node.claim("train").await.unwrap().is_none());
}

#[tokio::test]
async fn a_claim_that_was_deleted_in_the_api_server() {
    let node = HealthyNode::start().await;
    delete_claim(&node).await;
    node.report(&[]).await.assert_only("claim-gone", "default/train");
}

#[tokio::test]
async fn another_claim_of_the_same_name() {
    let node = HealthyNode::start().await;
    delete_claim(&node).await;
    node.node.create(ClaimSpec::default().request("gpu", DRIVER, 1).claim("train")).await.unwrap();
    let uid = node.node.claim_ref("train").await.unwrap().uid;
    node.report(&[]).await.assert_only("claim-replaced", &format!("the claim of that name now has uid {uid}"));
}

#[tokio::test]
async fn a_prepared_claim_that_is_no_longer_allocated() {
    let node = HealthyNode::start().await;
    node.node.kill_kubelet().await;
    let claims: Api<ResourceClaim> = Api::namespaced(node.node.client(), "default");
    let status = json!({"status": {"reservedFor": null, "allocation": null}});
    claims.patch_status("train", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    node.report(&[]).await.assert_only("allocation-differs", "it is prepared and not allocated");
}

#[tokio::test]
async fn a_record_of_a_claim_that_the_kubelet_does_not_know() {
    let node = HealthyNode::start().await;
    write_checkpoint(&node, &[]);
    node.report(&[]).await.assert_only("claim-unknown-to-kubelet", "the kubelet will never unprepare it");
}

#[tokio::test]
async fn a_claim_of_the_kubelet_that_the_driver_does_not_have() {
    let node = HealthyNode::start().await;
    let mut claims = checkpoint::decode(&fs::read(checkpoint_file(&node)).unwrap()).unwrap();
    let device = Device {
        pool_name: "node-1".into(),
        device_name: "gpu-1".into(),
        cdi_device_ids: vec![format!("{DRIVER}/metadata=u-2_gpu")],
        ..Device::default()
    };
    let state = DriverState { devices: vec![device] };
    claims.push(ClaimState {
        claim_uid: "u-2".into(),
        claim_name: "other".into(),
        namespace: "default".into(),
        driver_state: [(DRIVER.to_owned(), state)].into(),
        ..ClaimState::default()
    });
    write_checkpoint(&node, &claims);
    node.report(&[]).await.assert_only("claim-not-prepared", "claim default/other (uid u-2) as prepared");
    // A driver without metadata and edits has no records at all.
    claims[1].driver_state.get_mut(DRIVER).unwrap().devices[0].cdi_device_ids = vec!["vendor.com/gpu=1".into()];
    write_checkpoint(&node, &claims);
    assert_eq!(node.report(&[]).await.problems(), Vec::<String>::new());
}

#[tokio::test]
async fn a_checkpoint_that_the_kubelet_cannot_read() {
    let node = HealthyNode::start().await;
    let content = fs::read_to_string(checkpoint_file(&node)).unwrap();
    fs::write(checkpoint_file(&node), content.replace("train", "other")).unwrap();
    node.report(&[]).await.assert_only("checkpoint-unreadable", "dra_manager_state: the checksum is ");
}
