//! Publishing to a cluster whose `etcd` was restored from a backup: resource versions go back, and objects are gone or older.

use drakkar_node::api::Snapshot;
use drakkar_plugin::Pool;

use super::publishing::{names, publish, published};
use super::{gpu, gpus, resources};
use crate::support::{Cluster, Fault, TestDriver, Times, eventually};

fn model(model: &str) -> Pool {
    Pool::default().device(gpu("gpu-0").attribute("model", model))
}

/// Returns the model of the only device.
async fn stored_model(cluster: &Cluster) -> Option<String> {
    let slices = cluster.slices().await;
    let device = slices.first()?.spec.devices.as_ref()?.first()?;
    device.attributes.as_ref()?.get("model")?.string.clone()
}

/// Restores the server, and waits until the driver lists slices because its watch has expired.
async fn restore_and_list(cluster: &Cluster, backup: &Snapshot) {
    cluster.take_slice_verbs();
    cluster.proxy.fail("watch", "resourceslices", Fault::Expired, Times::Next(1));
    cluster.restore(backup);
    let lists = || cluster.proxy.requests().iter().filter(|request| request.verb == "list").count();
    eventually("slices are listed", || (lists() > 0).then_some(())).await;
}

#[tokio::test]
async fn slices_that_a_backup_does_not_have_are_published_again() {
    let Some(cluster) = Cluster::embedded().await else { return };
    let helper = cluster.start(&TestDriver::default()).await;
    let backup = cluster.snapshot();
    publish(&helper, resources(gpus(300))).await;
    restore_and_list(&cluster, &backup).await;
    let count = |slices: &[_]| slices.iter().map(|slice| names(slice).len()).sum::<usize>();
    cluster.until("all devices are there again", |slices| count(slices) == 300).await;
    published(&helper).await;
}

#[tokio::test]
async fn slices_that_are_older_in_a_backup_are_updated() {
    let Some(cluster) = Cluster::embedded().await else { return };
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(model("m1"))).await;
    let backup = cluster.snapshot();
    publish(&helper, resources(model("m2"))).await;
    publish(&helper, resources(model("m3"))).await;
    restore_and_list(&cluster, &backup).await;
    cluster
        .until("what was published last is stored", |slices| {
            let device = slices[0].spec.devices.iter().flatten().next().unwrap();
            device.attributes.as_ref().unwrap()["model"].string.as_deref() == Some("m3")
        })
        .await;
    publish(&helper, resources(model("m4"))).await;
    assert_eq!(stored_model(&cluster).await.as_deref(), Some("m4"));
}

/// The watch does not notice the restore: only writes fail.
#[tokio::test]
async fn repeated_conflicts_of_writes_lead_to_a_list() {
    let Some(cluster) = Cluster::embedded().await else { return };
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(model("m1"))).await;
    let backup = cluster.snapshot();
    publish(&helper, resources(model("m2"))).await;
    let watches = || cluster.proxy.requests().iter().filter(|request| request.verb == "watch").count();
    eventually("there is a watch", || (watches() > 0).then_some(())).await;
    cluster.restore(&backup);
    cluster.take_slice_verbs();
    publish(&helper, resources(model("m3"))).await;
    assert_eq!(stored_model(&cluster).await.as_deref(), Some("m3"));
    let verbs = cluster.take_slice_verbs();
    let count = |expected: &str| verbs.iter().filter(|verb| **verb == expected).count();
    assert!((1..=3).contains(&count("list")) && count("update") <= 6, "{verbs:?}");
}
