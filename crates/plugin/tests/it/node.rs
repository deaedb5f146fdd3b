//! A driver on a whole node: a kubelet finds it, pods use it, and either of them goes and comes back.

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

/// Prepares what was allocated, with nothing for containers but metadata: the runtime resolves every CDI device.
fn driver() -> TestDriver {
    TestDriver::preparing(|claim| Ok(claim.results().map(Device::from).collect()))
}

/// An instance of a driver that is updated while it runs.
async fn instance(node: &Node, pod: &str, driver: &TestDriver) -> Helper {
    let builder = plugin(node).device_metadata(true).rolling_update(pod);
    builder.start(driver.clone()).await.unwrap()
}

/// The sockets of the instances that the kubelet knows.
async fn endpoints(node: &Node) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = node.registered().await.into_iter().map(|plugin| plugin.endpoint).collect();
    found.sort();
    found
}

/// Claim and pod of the same name; the pod runs.
async fn run<'a>(node: &'a Node, name: &str) -> PodHandle<'a> {
    node.create(one_gpu(name)).await.unwrap();
    let pod = node.create_pod(pod_with(name, name)).await.unwrap();
    pod.running().await.unwrap();
    pod
}

async fn nothing_is_left(node: &Node) {
    assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty(), "{:?}", node.leftovers(DRIVER).await);
}

/// Whoever comes first, the kubelet or the driver: it is found, and found again by the next kubelet.
#[tokio::test(flavor = "multi_thread")]
async fn every_kubelet_finds_the_driver() {
    // Only kubelets make the directory in which they look for drivers.
    let node = Node::start().await.unwrap();
    node.stop_kubelet().await;
    let helper = plugin(&node).start(driver()).await.unwrap();
    let mut status = helper.registration_status();
    assert_eq!(*status.borrow(), RegistrationStatus::Waiting);
    node.start_kubelet().await.unwrap();
    in_time(status.wait_for(|status| *status == RegistrationStatus::Registered)).await.unwrap();
    assert_eventually!(endpoints(&node).await == [helper.dra_socket().unwrap()]);

    for restart in 0..3 {
        match restart {
            0 => node.stop_kubelet().await,
            _ => node.kill_kubelet().await,
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

/// G7: an update of the driver as a `DaemonSet` with `maxSurge` does it. Pods run on, new ones start before, while and after
/// both instances are there, and slices stay.
#[tokio::test(flavor = "multi_thread")]
async fn pods_run_on_and_new_ones_start_while_the_driver_is_updated() {
    let node = Node::start().await.unwrap();
    let (by_old, by_new) = (driver(), driver());
    let old = instance(&node, "pod-old", &by_old).await;
    node.wait_registered(DRIVER).await.unwrap();
    node.publish(DRIVER, &["gpu-0", "gpu-1", "gpu-2"]).await.unwrap();
    let slices: Vec<_> = node.slices(DRIVER).await.unwrap().into_iter().map(|slice| slice.metadata.uid).collect();
    let before = run(&node, "before").await;
    let (process, told) = (before.process("main"), read_metadata(&before, "before").await);

    let new = instance(&node, "pod-new", &by_new).await;
    let both = [new.dra_socket().unwrap(), old.dra_socket().unwrap()];
    assert_eventually!(endpoints(&node).await == both);
    let during = run(&node, "during").await;
    assert_eq!(by_new.take_calls(), ["prepare during"], "a kubelet calls the newest");
    assert_eq!(by_old.take_calls(), ["prepare before"]);

    old.stop().await.unwrap();
    assert_eventually!(endpoints(&node).await == [new.dra_socket().unwrap()]);
    let after = run(&node, "after").await;
    assert_eq!((before.process("main"), read_metadata(&before, "before").await), (process, told));
    for pod in [before, during, after] {
        pod.delete().await.unwrap();
    }
    assert_eq!(by_new.take_calls(), ["prepare after", "unprepare before", "unprepare during", "unprepare after"]);
    assert_eq!(by_old.take_calls(), [""; 0]);
    nothing_is_left(&node).await;
    let still: Vec<_> = node.slices(DRIVER).await.unwrap().into_iter().map(|slice| slice.metadata.uid).collect();
    assert_eq!(still, slices, "the kubelet took the update for the end of the driver");
    new.stop().await.unwrap();
    assert_eq!(node.sockets().unwrap(), [""; 0]);
}

/// The same under load: pods come and go all the time, and one stays, through many updates.
#[tokio::test(flavor = "multi_thread")]
async fn pods_come_and_go_through_many_updates() {
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
            let (node, stopped) = (node.clone(), stopped.clone());
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
        assert!(user.await.unwrap() > 0, "no pod came and went");
    }
    assert_eq!(stays.process("main"), process);
    stays.delete().await.unwrap();
    nothing_is_left(&node).await;
    assert_eq!(*driver.errors.lock().unwrap(), [""; 0]);
    current.stop().await.unwrap();
}

/// A kubelet that was restarted does not take its predecessor's word: it prepares again, and gets the same answer for what
/// is in use.
#[rstest]
#[case::stopped(false)]
#[case::killed(true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_kubelet_prepares_again_and_gets_the_same_answer(#[case] killed: bool) {
    let node = Node::start().await.unwrap();
    let driver = driver();
    let helper = plugin(&node).device_metadata(true).start(driver.clone()).await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    let first = run(&node, "train").await;
    let (process, told) = (first.process("main"), read_metadata(&first, "train").await);
    let answer = node.kubelet_claims().await[0].drivers.clone();
    assert_eq!(driver.take_calls(), ["prepare train"]);

    match killed {
        true => node.kill_kubelet().await,
        false => node.stop_kubelet().await,
    }
    node.start_kubelet().await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    let second = node.create_pod(pod_with("second", "train")).await.unwrap();
    second.running().await.unwrap();
    assert_eq!(driver.take_calls(), ["prepare train"]);
    let known = node.kubelet_claims().await;
    assert_eq!((known.len(), &known[0].drivers, known[0].pods.len()), (1, &answer, 2));
    assert_eq!(first.process("main"), process);
    for pod in [&first, &second] {
        assert_eq!(read_metadata(pod, "train").await, told, "neither file nor generation is new");
    }
    first.delete().await.unwrap();
    assert_eq!(driver.take_calls(), [""; 0], "the claim is still in use");
    second.delete().await.unwrap();
    assert_eq!(driver.take_calls(), ["unprepare train"]);
    nothing_is_left(&node).await;
    helper.stop().await.unwrap();
}

/// A driver that is killed costs no pod its devices. What a kubelet wants in the meantime waits, and is done by the next
/// process, which knows what the last one prepared.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_is_killed_is_back_for_the_pods_that_it_left() {
    // Slices of the hand of a test do not come back with the driver.
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
    let (stays, goes) = (run(&node, "stays").await, run(&node, "goes").await);
    let (container, told) = (stays.process("main"), read_metadata(&stays, "stays").await);

    process.kill().await.unwrap();
    assert_eventually!(node.registered().await.iter().all(|plugin| !plugin.connected));
    assert_eq!(read_metadata(&stays, "stays").await, told);
    // A claim that is prepared needs no driver for one more pod.
    let shares = node.create_pod(pod_with("shares", "stays")).await.unwrap();
    shares.running().await.unwrap();
    assert_eq!(read_metadata(&shares, "stays").await, told);
    // Others wait for it, to come and to go.
    goes.start_deletion().await.unwrap();
    assert_eventually!(goes.process("main").is_none());
    node.create(one_gpu("waits")).await.unwrap();
    let waits = node.create_pod(pod_with("waits", "waits")).await.unwrap();
    assert_eventually!(
        waits.events().await.unwrap().iter().any(|event| event.contains("FailedPrepareDynamicResources")),
        "{:?}",
        waits.events().await,
    );
    assert!(goes.object().await.unwrap().is_some(), "gone, and its claim is still prepared");

    let process = start();
    waits.running().await.unwrap();
    goes.gone().await.unwrap();
    assert_eq!((stays.process("main"), read_metadata(&stays, "stays").await), (container, told.clone()));
    assert_eq!(read_metadata(&waits, "waits").await["requests"][0]["devices"][0]["name"], "gpu-2");
    let next = run(&node, "next").await;
    for pod in [stays, shares, waits, next] {
        pod.delete().await.unwrap();
    }
    nothing_is_left(&node).await;
    assert!(process.terminate().await.unwrap().success());
    assert_eq!(node.sockets().unwrap(), [""; 0], "those of the killed process are gone too");
}

/// A driver whose devices are as a test says.
struct Watched(watch::Sender<DeviceHealth>);

impl DraPlugin for Watched {
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

/// What the status of a pod says of its one device: health and message.
async fn told_health(pod: &PodHandle<'_>) -> (Value, Value) {
    let pod = serde_json::to_value(pod.object().await.unwrap().unwrap()).unwrap();
    let all = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"];
    assert_eq!((&all[0]["name"], &all[1]), (&json!("claim:gpus"), &Value::Null), "{all}");
    let device = &all[0]["resources"][0];
    (device["health"].clone(), device["message"].clone())
}

/// A.6: what a driver reports is in the status of the pod that has the device, with kubelets of either generation; and
/// nothing is known of a device whose driver is gone.
#[rstest]
#[case::v1(Release::V1_37, HealthVersion::V1)]
#[case::v1alpha1(Release::V1_36, HealthVersion::V1alpha1)]
#[tokio::test(flavor = "multi_thread")]
async fn health_reaches_the_status_of_the_pod(#[case] release: Release, #[case] version: HealthVersion) {
    let node = Node::builder().release(release).start().await.unwrap();
    let (health, _) = watch::channel(DeviceHealth::healthy("node-1", "gpu-0"));
    let builder = plugin(&node).device_metadata(true);
    let helper = builder.start(Watched(health.clone())).await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    assert_eq!(node.registered().await[0].health, Some(version));
    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    let pod = run(&node, "train").await;
    assert_eventually!(told_health(&pod).await.0 == "Healthy", "{:?}", told_health(&pod).await);

    health.send_replace(DeviceHealth::unhealthy("node-1", "gpu-0", "fell off the bus"));
    let unhealthy = (json!("Unhealthy"), json!("fell off the bus"));
    assert_eventually!(told_health(&pod).await == unhealthy, "{:?}", told_health(&pod).await);
    health.send_replace(DeviceHealth::healthy("node-1", "gpu-0"));
    assert_eventually!(told_health(&pod).await.0 == "Healthy", "{:?}", told_health(&pod).await);

    // A kubelet that comes back asks again.
    health.send_replace(DeviceHealth::unhealthy("node-1", "gpu-0", "fell off the bus"));
    node.kill_kubelet().await;
    node.start_kubelet().await.unwrap();
    assert_eventually!(told_health(&pod).await == unhealthy, "{:?}", told_health(&pod).await);
    helper.stop().await.unwrap();
    assert_eventually!(told_health(&pod).await.0 == "Unknown", "{:?}", told_health(&pod).await);
}

/// Section 1.2: a kubelet before 1.34 knows v1beta1 of the service, and everything works with that.
#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_knows_only_v1beta1_goes_the_whole_way() {
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
    nothing_is_left(&node).await;
    helper.stop().await.unwrap();
}

/// A driver that has nothing to offer to a kubelet hears why it is not taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_without_a_service_of_the_kubelet_hears_why() {
    let node = Node::builder().release(Release::V1_33).start().await.unwrap();
    let helper = plugin(&node).services(Services::default().dra_v1beta1(false)).start(driver()).await.unwrap();
    let mut status = helper.registration_status();
    let status = in_time(status.wait_for(|status| *status != RegistrationStatus::Waiting)).await.unwrap().clone();
    let RegistrationStatus::Failed { error } = status else { panic!("{status:?}") };
    assert!(error.contains("[v1.DRAPlugin]"), "{error}");
    assert!(node.registered().await.is_empty());
    helper.stop().await.unwrap();
}
