//! Tests with failing servers, broken watches, restarted schedulers and very many pods.

use std::collections::HashSet;
use std::time::Instant;

use drakkar_apiserver::{Config, Fault, Filter, Resource, Times};
use futures::future::join_all;
use kube::api::ListParams;
use serde_json::json;

use super::{Cluster, devices, eventually, reserved};

/// Schedules pods with a claim each, and deletes them again.
async fn schedule_and_delete(count: usize) {
    let cluster = Cluster::start().await;
    cluster.gpus(count).await;
    cluster.template("gpu", &json!({"deviceClassName": "gpu"})).await;
    cluster.server.clear_requests();
    let started = Instant::now();
    let names: Vec<_> = (0..count).map(|number| format!("pod-{number}")).collect();
    for names in names.chunks(50) {
        join_all(names.iter().map(|name| cluster.templated(name))).await;
    }
    let created = started.elapsed();
    // The last ones are most likely the last to be bound.
    for name in names.iter().rev() {
        cluster.bound(name).await;
    }
    println!("{count} pods: created in {created:?}, all bound after {:?}", started.elapsed());
    let claims = cluster.claim_list().await;
    let used: HashSet<_> = claims.iter().flat_map(devices).collect();
    assert_eq!((claims.len(), used.len()), (count, count));
    // No conflicts and no duplicates: five writes per pod.
    let writes =
        cluster.server.requests().iter().filter(|line| line.is_write() && line.user != "kubernetes-admin").count();
    assert_eq!(writes, 5 * count);

    let started = Instant::now();
    for names in names.chunks(50) {
        join_all(names.iter().map(|name| cluster.delete_pod(name))).await;
    }
    eventually("few claims", async || (cluster.claim_count().await < 10).then_some(())).await;
    cluster.no_claims().await;
    println!("{count} pods: deleted and freed in {:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pods_at_once() {
    schedule_and_delete(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: run it alone, with --nocapture"]
async fn a_thousand_pods_within_seconds() {
    schedule_and_delete(1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_device_is_allocated_twice_while_pods_come_and_go() {
    let cluster = Cluster::start().await;
    cluster.gpus(7).await;
    cluster.template("gpu", &json!({"deviceClassName": "gpu"})).await;
    let names: Vec<_> = (0..60).map(|number| format!("pod-{number}")).collect();
    join_all(names.iter().map(|name| cluster.templated(name))).await;
    let mut remaining: HashSet<_> = names.into_iter().collect();
    while !remaining.is_empty() {
        let claims = cluster.claim_list().await;
        let used: Vec<_> = claims.iter().flat_map(devices).collect();
        assert_eq!(used.len(), used.iter().collect::<HashSet<_>>().len(), "{used:?}");
        let pods = cluster.pods().list(&ListParams::default()).await.unwrap().items;
        let bound = pods.into_iter().find(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
        match bound.and_then(|pod| pod.metadata.name) {
            Some(name) => {
                cluster.delete_pod(&name).await;
                remaining.remove(&name);
            }
            None => tokio::task::yield_now().await,
        }
    }
    cluster.no_claims().await;
}

#[tokio::test]
async fn server_errors_only_delay_scheduling() {
    let cluster = Cluster::start().await;
    cluster.gpus(2).await;
    cluster.template("gpu", &json!({"deviceClassName": "gpu"})).await;
    let faults = cluster.server.faults();
    let scheduler = || Filter::any().client(&drakkar_apiserver::Identity::Scheduler);
    for (verb, resource) in
        [("create", Resource::ResourceClaim), ("patch", Resource::ResourceClaim), ("create", Resource::Pod)]
    {
        for fault in [Fault::InternalError, Fault::Disconnect, Fault::LostResponse] {
            faults.fail(scheduler().verb(verb).resource(resource), fault, Times::Next(1));
        }
    }
    cluster.templated("train").await;
    cluster.bound("train").await;
    let reserved: Vec<_> = cluster.claim_list().await.iter().flat_map(reserved).collect();
    assert_eq!(reserved, ["train"]);
    cluster.delete_pod("train").await;
    // A lost answer can leave a second claim; it is deleted with the pod, too.
    cluster.no_claims().await;
}

#[tokio::test]
async fn broken_watches_are_resumed() {
    let cluster = Cluster::start().await;
    cluster.gpus(2).await;
    cluster.pod("before", &json!(null)).await;
    cluster.bound("before").await;
    cluster.server.faults().drop_watches();
    cluster.pod("between", &json!(null)).await;
    cluster.bound("between").await;
    cluster.server.stop().await;
    cluster.server.resume().await.unwrap();
    cluster.claim("shared").await;
    cluster.pod("after", &json!([{"name": "my-gpu", "resourceClaimName": "shared"}])).await;
    cluster.bound("after").await;
}

#[tokio::test]
async fn an_expired_watch_is_replaced_by_a_list() {
    let cluster = Cluster::with(Config { event_window: 2, ..Config::default() }).await;
    cluster.pod("before", &json!(null)).await;
    cluster.bound("before").await;
    cluster.server.faults().drop_watches();
    join_all((0..10).map(|number| cluster.server_pod(number))).await;
    for number in 0..10 {
        cluster.bound(&format!("pod-{number}")).await;
    }
}

impl Cluster {
    async fn server_pod(&self, number: usize) {
        self.pod(&format!("pod-{number}"), &json!(null)).await;
    }
}

#[tokio::test]
async fn another_scheduler_continues_where_one_stopped() {
    let mut cluster = Cluster::start().await;
    cluster.gpus(1).await;
    cluster.template("gpu", &json!({"deviceClassName": "gpu"})).await;
    cluster.templated("first").await;
    cluster.bound("first").await;
    cluster.stop_scheduler().await;
    cluster.delete_pod("first").await;
    cluster.templated("second").await;
    assert_eq!(cluster.claim_list().await.len(), 1);
    cluster.start_scheduler();
    cluster.bound("second").await;
}
