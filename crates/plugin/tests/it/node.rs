//! Tests of a driver on an embedded node with a kubelet and pods, through restarts and updates of kubelet and driver.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drakkar_node::kubelet::{DraService, HealthVersion, Release};
use drakkar_node::{Node, PodHandle, Timing, assert_eventually};
use drakkar_plugin::{
    BoxError, Claim, ClaimRef, Device, DeviceHealth, DraPlugin, HealthMonitor, Helper, PluginBuilder,
    RegistrationStatus, Services,
};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::example;
use crate::support::{DRIVER, TestDriver, in_time, one_gpu, pod_with, read_metadata};

fn plugin(node: &Node) -> PluginBuilder {
    PluginBuilder::new(DRIVER).on(node.environment(DRIVER).unwrap())
}

/// Returns a driver that prepares all allocated devices without CDI devices of its own, since the runtime resolves every one.
fn driver() -> TestDriver {
    TestDriver::preparing(|claim| Ok(claim.results().map(Device::from).collect()))
}

/// Starts an instance of a driver with rolling updates.
async fn instance(node: &Node, pod: &str, driver: &TestDriver) -> Helper {
    let builder = plugin(node).device_metadata(true).rolling_update(pod);
    builder.start(driver.clone()).await.unwrap()
}

/// Returns the sockets of the registered instances, sorted.
async fn endpoints(node: &Node) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = node.registered().await.into_iter().map(|plugin| plugin.endpoint).collect();
    found.sort();
    found
}

/// Creates a claim and a pod of the same name, and waits until the pod runs.
async fn run<'a>(node: &'a Node, name: &str) -> PodHandle<'a> {
    node.create(one_gpu(name)).await.unwrap();
    let pod = node.create_pod(pod_with(name, name)).await.unwrap();
    pod.running().await.unwrap();
    pod
}

async fn assert_no_leftovers(node: &Node) {
    assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty(), "{:?}", node.leftovers(DRIVER).await);
}

/// A driver that starts before the kubelet is registered, and again after each restart of the kubelet or of the driver.
#[tokio::test(flavor = "multi_thread")]
async fn every_kubelet_finds_the_driver() {
    // On a real node the kubelet creates the registry directory, so a kubelet has run before the driver starts.
    let node = Node::start().await.unwrap();
    node.stop_kubelet().await;
    let helper = plugin(&node).start(driver()).await.unwrap();
    let mut status = helper.registration_status();
    assert_eq!(*status.borrow(), RegistrationStatus::Waiting);
    node.start_kubelet().await.unwrap();
    in_time(status.wait_for(|status| *status == RegistrationStatus::Registered)).await.unwrap();
    assert_eventually!(endpoints(&node).await == [helper.dra_socket().unwrap()]);

    for restart in 0..3 {
        if restart == 0 {
            node.stop_kubelet().await;
        } else {
            node.kill_kubelet().await;
        }
        node.start_kubelet().await.unwrap();
        node.wait_registered(DRIVER).await.unwrap();
        assert_eq!(*helper.registration_status().borrow(), RegistrationStatus::Registered);
    }

    helper.stop().await.unwrap();
    assert_eventually!(node.registered().await.is_empty());
    let again = plugin(&node).start(driver()).await.unwrap();
    let mut status = again.registration_status();
    in_time(status.wait_for(|status| *status == RegistrationStatus::Registered)).await.unwrap();
    again.stop().await.unwrap();
}

/// G7: a rolling update, as of a `DaemonSet` with `maxSurge`. Pods keep running, new ones start before, during and after the
/// time with two instances, and slices are not deleted.
#[tokio::test(flavor = "multi_thread")]
async fn pods_keep_running_and_new_ones_start_during_a_rolling_update() {
    let node = Node::start().await.unwrap();
    let old_driver = driver();
    let new_driver = driver();
    let old = instance(&node, "pod-old", &old_driver).await;
    node.wait_registered(DRIVER).await.unwrap();
    node.publish(DRIVER, &["gpu-0", "gpu-1", "gpu-2"]).await.unwrap();
    let slices: Vec<_> = node.slices(DRIVER).await.unwrap().into_iter().map(|slice| slice.metadata.uid).collect();
    let before = run(&node, "before").await;
    let process = before.process("main");
    let metadata = read_metadata(&before, "before").await;

    let new = instance(&node, "pod-new", &new_driver).await;
    let both = [new.dra_socket().unwrap(), old.dra_socket().unwrap()];
    assert_eventually!(endpoints(&node).await == both);
    let during = run(&node, "during").await;
    assert_eq!(new_driver.take_calls(), ["prepare during"], "the kubelet calls the newest instance");
    assert_eq!(old_driver.take_calls(), ["prepare before"]);

    old.stop().await.unwrap();
    assert_eventually!(endpoints(&node).await == [new.dra_socket().unwrap()]);
    let after = run(&node, "after").await;
    assert_eq!((before.process("main"), read_metadata(&before, "before").await), (process, metadata));
    for pod in [before, during, after] {
        pod.delete().await.unwrap();
    }
    assert_eq!(new_driver.take_calls(), ["prepare after", "unprepare before", "unprepare during", "unprepare after"]);
    assert_eq!(old_driver.take_calls(), [""; 0]);
    assert_no_leftovers(&node).await;
    let slices_after: Vec<_> = node.slices(DRIVER).await.unwrap().into_iter().map(|slice| slice.metadata.uid).collect();
    assert_eq!(slices_after, slices, "the kubelet deleted slices during the update");
    new.stop().await.unwrap();
    assert_eq!(node.sockets().unwrap(), [""; 0]);
}

/// Many updates in a row, while pods are created and deleted all the time and one keeps running.
#[tokio::test(flavor = "multi_thread")]
async fn pods_are_created_and_deleted_during_many_rolling_updates() {
    let node = Arc::new(Node::start().await.unwrap());
    let driver = driver();
    let mut current = instance(&node, "pod-0", &driver).await;
    node.wait_registered(DRIVER).await.unwrap();
    node.publish(DRIVER, &["gpu-0", "gpu-1", "gpu-2"]).await.unwrap();
    let stays = run(&node, "stays").await;
    let process = stays.process("main");

    let (stop, stopped) = watch::channel(false);
    let users: Vec<_> = (0..2)
        .map(|user| {
            let node = node.clone();
            let stopped = stopped.clone();
            tokio::spawn(async move {
                let mut pods = 0;
                while !*stopped.borrow() {
                    let name = format!("user-{user}-{pods}");
                    let pod = run(&node, &name).await;
                    assert_eq!(read_metadata(&pod, &name).await["metadata"]["name"], name);
                    pod.delete().await.unwrap();
                    pods += 1;
                }
                pods
            })
        })
        .collect();
    for update in 1..=5 {
        let next = instance(&node, &format!("pod-{update}"), &driver).await;
        assert_eventually!(endpoints(&node).await.contains(&next.dra_socket().unwrap().to_owned()));
        current.stop().await.unwrap();
        current = next;
        assert_eventually!(endpoints(&node).await == [current.dra_socket().unwrap()]);
    }
    stop.send_replace(true);
    for user in users {
        assert!(user.await.unwrap() > 0, "no pod was created and deleted");
    }
    assert_eq!(stays.process("main"), process);
    stays.delete().await.unwrap();
    assert_no_leftovers(&node).await;
    assert_eq!(*driver.errors.lock().unwrap(), [""; 0]);
    current.stop().await.unwrap();
}

/// A restarted kubelet prepares claims in use again when the next pod uses them, and gets the same response.
#[rstest]
#[case::stopped(false)]
#[case::killed(true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_kubelet_prepares_again_and_gets_the_same_response(#[case] killed: bool) {
    let node = Node::start().await.unwrap();
    let driver = driver();
    let helper = plugin(&node).device_metadata(true).start(driver.clone()).await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    let first = run(&node, "train").await;
    let process = first.process("main");
    let metadata = read_metadata(&first, "train").await;
    let response = node.kubelet_claims().await[0].drivers.clone();
    assert_eq!(driver.take_calls(), ["prepare train"]);

    if killed {
        node.kill_kubelet().await;
    } else {
        node.stop_kubelet().await;
    }
    node.start_kubelet().await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    let second = node.create_pod(pod_with("second", "train")).await.unwrap();
    second.running().await.unwrap();
    assert_eq!(driver.take_calls(), ["prepare train"]);
    let known = node.kubelet_claims().await;
    assert_eq!((known.len(), &known[0].drivers, known[0].pods.len()), (1, &response, 2));
    assert_eq!(first.process("main"), process);
    for pod in [&first, &second] {
        assert_eq!(read_metadata(pod, "train").await, metadata, "the file was written again");
    }
    first.delete().await.unwrap();
    assert_eq!(driver.take_calls(), [""; 0], "the claim is still in use");
    second.delete().await.unwrap();
    assert_eq!(driver.take_calls(), ["unprepare train"]);
    assert_no_leftovers(&node).await;
    helper.stop().await.unwrap();
}

/// While a killed driver is down, running pods keep their devices, and pods to start or delete wait. The next process serves
/// them, since it recovers the claims that the killed one has prepared.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_driver_resumes_with_its_pods_when_it_is_restarted() {
    // The test publishes the slices, not the driver, so the kubelet must not delete them while the driver is down.
    let node = Node::builder().timing(Timing { slice_grace: Duration::from_secs(600), ..Timing::fast() });
    let node = node.start().await.unwrap();
    let start = || {
        let mut command = example::command();
        command.arg("--enable-device-metadata");
        node.spawn(DRIVER, command).unwrap()
    };
    let process = start();
    node.wait_registered(DRIVER).await.unwrap();
    node.publish(DRIVER, &["gpu-0", "gpu-1", "gpu-2"]).await.unwrap();
    let stays = run(&node, "stays").await;
    let deleted = run(&node, "deleted").await;
    let container = stays.process("main");
    let metadata = read_metadata(&stays, "stays").await;

    process.kill().await.unwrap();
    assert_eventually!(node.registered().await.iter().all(|plugin| !plugin.connected));
    assert_eq!(read_metadata(&stays, "stays").await, metadata);
    // One more pod with a prepared claim does not need the driver.
    let shares = node.create_pod(pod_with("shares", "stays")).await.unwrap();
    shares.running().await.unwrap();
    assert_eq!(read_metadata(&shares, "stays").await, metadata);
    // Starting and deleting other pods needs it.
    deleted.start_deletion().await.unwrap();
    assert_eventually!(deleted.process("main").is_none());
    node.create(one_gpu("waits")).await.unwrap();
    let waits = node.create_pod(pod_with("waits", "waits")).await.unwrap();
    assert_eventually!(
        waits.events().await.unwrap().iter().any(|event| event.contains("FailedPrepareDynamicResources")),
        "{:?}",
        waits.events().await,
    );
    assert!(deleted.object().await.unwrap().is_some(), "deleted while its claim is still prepared");

    let process = start();
    waits.running().await.unwrap();
    deleted.gone().await.unwrap();
    assert_eq!((stays.process("main"), read_metadata(&stays, "stays").await), (container, metadata));
    assert_eq!(read_metadata(&waits, "waits").await["requests"][0]["devices"][0]["name"], "gpu-2");
    let next = run(&node, "next").await;
    for pod in [stays, shares, waits, next] {
        pod.delete().await.unwrap();
    }
    assert_no_leftovers(&node).await;
    assert!(process.terminate().await.unwrap().success());
    assert_eq!(node.sockets().unwrap(), [""; 0], "sockets of the killed process are left");
}

/// A driver that reports the health that the test sets.
struct HealthDriver(watch::Sender<DeviceHealth>);

impl DraPlugin for HealthDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        Ok(claim.results().map(Device::from).collect())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }

    fn health_monitor(&self) -> Option<HealthMonitor<Self>> {
        Some(HealthMonitor::<Self>::new(|driver, reports| async move {
            let mut health = driver.0.subscribe();
            loop {
                let device = health.borrow_and_update().clone();
                reports.report([device]).await;
                health.changed().await?;
            }
        }))
    }
}

/// Returns health and message of a pod's only device in the pod's status.
async fn reported_health(pod: &PodHandle<'_>) -> (Value, Value) {
    let pod = serde_json::to_value(pod.object().await.unwrap().unwrap()).unwrap();
    let all = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"];
    assert_eq!((&all[0]["name"], &all[1]), (&json!("claim:gpus"), &Value::Null), "{all}");
    let device = &all[0]["resources"][0];
    (device["health"].clone(), device["message"].clone())
}

/// A.6: the health that a driver reports is in the status of the pod with the device, with both versions of the service. It is
/// unknown after the driver has stopped.
#[rstest]
#[case::v1(Release::V1_37, HealthVersion::V1)]
#[case::v1alpha1(Release::V1_36, HealthVersion::V1alpha1)]
#[tokio::test(flavor = "multi_thread")]
async fn health_reaches_the_status_of_the_pod(#[case] release: Release, #[case] version: HealthVersion) {
    let node = Node::builder().release(release).start().await.unwrap();
    let (health, _) = watch::channel(DeviceHealth::healthy("node-1", "gpu-0"));
    let builder = plugin(&node).device_metadata(true);
    let helper = builder.start(HealthDriver(health.clone())).await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    assert_eq!(node.registered().await[0].health, Some(version));
    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    let pod = run(&node, "train").await;
    assert_eventually!(reported_health(&pod).await.0 == "Healthy", "{:?}", reported_health(&pod).await);

    health.send_replace(DeviceHealth::unhealthy("node-1", "gpu-0", "fell off the bus"));
    let unhealthy = (json!("Unhealthy"), json!("fell off the bus"));
    assert_eventually!(reported_health(&pod).await == unhealthy, "{:?}", reported_health(&pod).await);
    health.send_replace(DeviceHealth::healthy("node-1", "gpu-0"));
    assert_eventually!(reported_health(&pod).await.0 == "Healthy", "{:?}", reported_health(&pod).await);

    // A restarted kubelet watches health again.
    health.send_replace(DeviceHealth::unhealthy("node-1", "gpu-0", "fell off the bus"));
    node.kill_kubelet().await;
    node.start_kubelet().await.unwrap();
    assert_eventually!(reported_health(&pod).await == unhealthy, "{:?}", reported_health(&pod).await);
    helper.stop().await.unwrap();
    assert_eventually!(reported_health(&pod).await.0 == "Unknown", "{:?}", reported_health(&pod).await);
}

/// Section 1.2: kubelets before 1.34 know only v1beta1 of the service.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_with_a_kubelet_that_knows_only_v1beta1() {
    let node = Node::builder().release(Release::V1_33).start().await.unwrap();
    let driver = driver();
    let builder = plugin(&node).device_metadata(true);
    let helper = builder.start(driver.clone()).await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    assert_eq!(node.registered().await[0].service, DraService::V1beta1);
    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    let pod = run(&node, "train").await;
    assert_eq!(read_metadata(&pod, "train").await["requests"][0]["devices"][0]["name"], "gpu-0");
    node.kill_kubelet().await;
    node.start_kubelet().await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    pod.delete().await.unwrap();
    assert_eq!(driver.take_calls(), ["prepare train", "unprepare train"]);
    assert_no_leftovers(&node).await;
    helper.stop().await.unwrap();
}

/// The registration of a driver that serves no version that the kubelet knows fails with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_without_a_version_that_the_kubelet_knows_gets_the_registration_error() {
    let node = Node::builder().release(Release::V1_33).start().await.unwrap();
    let helper = plugin(&node).services(Services::default().dra_v1beta1(false)).start(driver()).await.unwrap();
    let mut status = helper.registration_status();
    let status = in_time(status.wait_for(|status| *status != RegistrationStatus::Waiting)).await.unwrap().clone();
    let RegistrationStatus::Failed { error } = status else { panic!("{status:?}") };
    assert!(error.contains("[v1.DRAPlugin]"), "{error}");
    assert!(node.registered().await.is_empty());
    helper.stop().await.unwrap();
}
