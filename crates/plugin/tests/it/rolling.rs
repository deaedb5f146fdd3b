//! Tests of two instances of a driver on one node.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drakkar_plugin::{DraPlugin, Helper, PluginBuilder, RegistrationStatus};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rstest::rstest;
use tonic::Code;

use crate::support::{
    Kubelet, Node, SlowDriver, TIMEOUT, TestClaim, TestDriver, eventually, http_get, in_time, info, notify,
    numbered_device,
};

const OLD: &str = "ad4af911-5bcd-47c5-a554-f35cea869472";
const NEW: &str = "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11";

async fn start(node: &Node, pod: &str) -> Helper {
    start_driver(node, pod, TestDriver::default()).await
}

async fn start_driver(node: &Node, pod: &str, driver: impl DraPlugin) -> Helper {
    node.builder().rolling_update(pod).start(driver).await.unwrap()
}

/// Stops instances, one after the other.
async fn stop(instances: [Helper; 2]) {
    for instance in instances {
        instance.stop().await.unwrap();
    }
}

fn train() -> TestClaim {
    TestClaim::new("train", "uid-1").device("gpu", "gpu-0")
}

/// An instance of the driver built with the Go framework: it locks the whole file around each of its calls.
struct GoInstance(File);

impl GoInstance {
    fn new(node: &Node) -> Self {
        let path = node.plugin_directory().join("serialize.lock");
        Self(File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap())
    }

    /// An instance in a call.
    fn locking(node: &Node) -> Self {
        let instance = Self::new(node);
        instance.lock().unwrap();
        instance
    }

    fn set(&self, kind: libc::c_int) -> Result<(), Errno> {
        let lock = libc::flock {
            l_type: libc::c_short::try_from(kind).unwrap(),
            l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap(),
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        fcntl(&self.0, FcntlArg::F_OFD_SETLK(&lock)).map(drop)
    }

    fn lock(&self) -> Result<(), Errno> {
        self.set(libc::F_WRLCK)
    }

    fn unlock(&self) {
        self.set(libc::F_UNLCK).unwrap();
    }
}

/// G7: an update of a `DaemonSet` with `maxSurge`; no claim is affected.
#[tokio::test]
async fn the_new_instance_takes_over_before_the_old_one_stops() {
    let node = Node::default();
    let claim = node.claim(train());
    let old = start(&node, OLD).await;
    Kubelet::of(&old).await.prepare_one(&claim).await.unwrap();
    let new = start(&node, NEW).await;
    assert_eq!(
        node.sockets(),
        [
            format!("dra@{NEW}.sock"),
            format!("dra@{OLD}.sock"),
            format!("gpu.example.com-{NEW}@reg.sock"),
            format!("gpu.example.com-{OLD}@reg.sock"),
        ],
    );
    for instance in [&old, &new] {
        assert_eq!(Path::new(&info(instance).await.unwrap().endpoint), instance.dra_socket().unwrap());
        notify(instance, None).await.unwrap();
        assert_eq!(*instance.registration_status().borrow(), RegistrationStatus::Registered);
    }

    old.stop().await.unwrap();
    assert_eq!(node.sockets(), [format!("dra@{NEW}.sock"), format!("gpu.example.com-{NEW}@reg.sock")]);
    assert!(node.is_prepared(&claim), "claims stay prepared when an instance stops");
    let kubelet = Kubelet::of(&new).await;
    kubelet.prepare_one(&claim).await.unwrap();
    assert_eq!(
        new.handles().update_request_metadata(&claim.reference(), "gpu", numbered_device("gpu-0", 1)).await.unwrap(),
        2
    );
    kubelet.unprepare_one(&claim).await.unwrap();
    assert!(!node.is_prepared(&claim));
    new.stop().await.unwrap();
    assert_eq!(node.sockets(), [""; 0]);
}

/// G7: an instance removes the socket that it created, and not one that has replaced it.
#[tokio::test]
async fn an_instance_that_stops_does_not_remove_a_socket_of_another() {
    let node = Node::default();
    let old = node.start(&TestDriver::default()).await;
    std::fs::remove_file(old.dra_socket().unwrap()).unwrap();
    std::fs::remove_file(old.registration_socket().unwrap()).unwrap();
    let new = node.start(&TestDriver::default()).await;
    assert_eq!(old.dra_socket(), new.dra_socket());
    old.stop().await.unwrap();
    assert_eq!(node.sockets(), ["dra@kubelet.sock", "gpu.example.com@reg.sock"]);
    let claim = node.claim(train());
    Kubelet::of(&new).await.prepare_one(&claim).await.unwrap();
    info(&new).await.unwrap();
    new.stop().await.unwrap();
}

/// G4: the kubelet would dial the sockets of killed instances forever.
#[tokio::test]
async fn sockets_of_dead_instances_are_removed_and_those_of_running_ones_stay() {
    let node = Node::default();
    let old = start(&node, OLD).await;
    let dead = "2f9a1d06-73c1-4a7f-8b8c-6f54e9f3a001";
    let registry = node.root.path().join("plugins_registry");
    for path in [
        node.plugin_directory().join(format!("dra@{dead}.sock")),
        registry.join(format!("gpu.example.com-{dead}@reg.sock")),
        registry.join(format!("gpu.example.com-{dead}-reg.sock")),
        registry.join("net.example.com@reg.sock"),
    ] {
        drop(UnixListener::bind(path).unwrap());
    }
    let new = start(&node, NEW).await;
    assert_eq!(
        node.sockets(),
        [
            format!("dra@{NEW}.sock"),
            format!("dra@{OLD}.sock"),
            format!("gpu.example.com-{NEW}@reg.sock"),
            format!("gpu.example.com-{OLD}@reg.sock"),
            "net.example.com@reg.sock".into(),
        ],
    );
    info(&old).await.unwrap();
    stop([old, new]).await;
}

/// G2, G3: names that the Go framework cannot bind, at the lengths at which its choice of a socket name changes.
#[rstest]
#[case(27)]
#[case(28)]
#[case(36)]
#[case(37)]
#[case(53)]
#[case(61)]
#[tokio::test]
async fn a_driver_with_a_long_name_has_sockets_that_can_be_bound(#[case] length: usize) {
    // About as long as the kubelet's own directory.
    let root = tempfile::Builder::new().prefix("kubelet").rand_bytes(4).tempdir_in("/tmp").unwrap();
    std::fs::create_dir(root.path().join("plugins_registry")).unwrap();
    let node = Node { root, ..Node::default() };
    let name = "d".repeat(length);
    let builder =
        |pod| PluginBuilder::new(&name).client(node.api.client()).kubelet_root(node.root.path()).rolling_update(pod);
    let old = builder(OLD).start(TestDriver::default()).await.unwrap();
    let new = builder(NEW).start(TestDriver::default()).await.unwrap();
    for instance in [&old, &new] {
        let dra = instance.dra_socket().unwrap();
        let registration = instance.registration_socket().unwrap();
        assert!(dra.as_os_str().len() <= 107 && registration.as_os_str().len() <= 107, "{dra:?} {registration:?}");
        let info = info(instance).await.unwrap();
        assert_eq!((info.name.as_str(), Path::new(&info.endpoint)), (name.as_str(), dra));
        Kubelet::of(instance).await.call().await.unwrap();
    }
    assert_ne!(old.dra_socket(), new.dra_socket());
    assert_ne!(old.registration_socket(), new.registration_socket());
    stop([old, new]).await;
}

/// Section 4.6: an instance built with the Go framework excludes this one.
#[tokio::test]
async fn a_prepare_waits_for_a_call_of_a_go_instance() {
    let node = Node::default();
    let driver = TestDriver::default();
    let helper = start_driver(&node, NEW, driver.clone()).await;
    let claim = node.claim(train());
    let go = GoInstance::locking(&node);
    let kubelet = Kubelet::of(&helper).await;
    let prepare = tokio::spawn(async move { (kubelet.prepare_one(&claim).await, claim) });
    eventually("the claim is fetched", || (!node.api.take_log().is_empty()).then_some(())).await;
    assert_eq!(driver.take_calls(), [""; 0]);
    assert!(!prepare.is_finished());
    go.unlock();
    let (response, claim) = in_time(prepare).await.unwrap();
    response.unwrap();
    assert!(node.is_prepared(&claim));
    helper.stop().await.unwrap();
}

/// Section 4.6, the other way round.
#[tokio::test]
async fn a_go_instance_waits_for_a_prepare() {
    let node = Node::default();
    let driver = SlowDriver::default();
    let helper = start_driver(&node, NEW, driver.clone()).await;
    let claim = node.claim(TestClaim::new("slow", "uid-1").device("gpu", "gpu-0"));
    let go = GoInstance::locking(&node);
    go.unlock();
    let kubelet = Kubelet::of(&helper).await;
    let prepare = tokio::spawn(async move { kubelet.prepare_one(&claim).await });
    driver.wait_for(1).await;
    assert_eq!(go.lock(), Err(Errno::EAGAIN));
    driver.permits.add_permits(1);
    in_time(prepare).await.unwrap().unwrap();
    go.lock().unwrap();
    go.unlock();
    helper.stop().await.unwrap();
}

/// G12: the kubelet's deadline ends the wait for a lock, and the claim is not prepared later.
#[tokio::test]
async fn a_prepare_that_waits_for_another_instance_ends_at_the_deadline() {
    let node = Node::default();
    let driver = TestDriver::default();
    let builder = node.builder().rolling_update(NEW).http_endpoint("127.0.0.1:0".parse().unwrap());
    let helper = builder.start(driver.clone()).await.unwrap();
    let claim = node.claim(train());
    let go = GoInstance::locking(&node);
    let kubelet = Kubelet::of(&helper).await;
    let error = in_time(kubelet.prepare_within(Duration::from_millis(100), &claim)).await.unwrap_err();
    assert!(matches!(error.code(), Code::DeadlineExceeded | Code::Cancelled), "{error}");
    // The kubelet has cancelled the call; the framework notices a moment later.
    let metrics = helper.http_address().unwrap();
    let ended = "drakkar_plugin_grpc_calls_in_flight{method=\"prepare\"} 0\n";
    in_time(async { while !http_get(metrics, "/metrics").await.1.contains(ended) {} }).await;
    go.unlock();
    // The cancelled call does not reach the driver: the next one is the first.
    let other = node.claim(TestClaim::new("other", "uid-2").device("gpu", "gpu-1"));
    kubelet.prepare_one(&other).await.unwrap();
    assert_eq!(driver.take_calls(), ["prepare other"]);
    assert!(!node.is_prepared(&claim));
    kubelet.prepare_one(&claim).await.unwrap();
    helper.stop().await.unwrap();
}

/// The kubelet calls the new instance to prepare the next claim, and the old one to unprepare the last.
#[tokio::test]
async fn a_prepare_waits_for_a_device_that_the_other_instance_unprepares() {
    let node = Node::default();
    let builder = || node.builder().device_timeout(TIMEOUT);
    let old = builder().rolling_update(OLD).start(TestDriver::default()).await.unwrap();
    let new = builder().rolling_update(NEW).start(TestDriver::default()).await.unwrap();
    let first = node.claim(train());
    let second = node.claim(TestClaim::new("second", "uid-2").device("gpu", "gpu-0"));
    let by_old = Kubelet::of(&old).await;
    let by_new = Kubelet::of(&new).await;
    by_old.prepare_one(&first).await.unwrap();

    let (prepared, ()) = tokio::join!(by_new.prepare_one(&second), async {
        eventually("the second claim waits", || (node.api.gets(first.name()) >= 2).then_some(())).await;
        by_old.unprepare_one(&first).await.unwrap();
    });

    assert_eq!(prepared.unwrap().len(), 1);
    stop([old, new]).await;
}

/// G21: the kubelet may call either instance, so each knows what the other has prepared, even after both have started.
#[tokio::test]
async fn a_device_that_the_other_instance_has_prepared_is_refused() {
    let node = Node::default();
    let old = start(&node, OLD).await;
    let new = start(&node, NEW).await;
    let first = node.claim(train());
    let second = node.claim(TestClaim::new("second", "uid-2").device("gpu", "gpu-0"));
    let by_old = Kubelet::of(&old).await;
    let by_new = Kubelet::of(&new).await;

    by_new.prepare_one(&first).await.unwrap();
    let error = by_old.prepare_one(&second).await.unwrap_err();
    assert!(error.contains("is still prepared for claim default/train"), "{error}");
    new.stop().await.unwrap();
    let error = by_old.prepare_one(&second).await.unwrap_err();
    assert!(error.contains("is still prepared for claim default/train"), "{error}");

    by_old.unprepare_one(&first).await.unwrap();
    by_old.prepare_one(&second).await.unwrap();
    old.stop().await.unwrap();
}

/// Recovery runs only while no instance works on a claim.
#[tokio::test]
async fn a_start_waits_for_the_call_of_another_instance() {
    let node = Node::default();
    let half = node.plugin_directory().join("dra-device-metadata/default_half");
    std::fs::create_dir_all(&half).unwrap();
    let go = GoInstance::locking(&node);
    let starting = tokio::spawn(node.builder().rolling_update(NEW).start(TestDriver::default()));
    // The file is open three times, for the Go instance, for single claims and for the whole file: now the start waits.
    let path = node.plugin_directory().join("serialize.lock").canonicalize().unwrap();
    let descriptors =
        || std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.unwrap().path().read_link().ok());
    eventually("the start waits", || (descriptors().filter(|target| *target == path).count() == 3).then_some(())).await;
    assert!(!starting.is_finished() && node.sockets().is_empty());
    assert!(half.exists(), "recovery ran during a call of another instance");
    go.unlock();
    let helper = in_time(starting).await.unwrap().unwrap();
    assert_eq!(node.files(), ["plugins/gpu.example.com/dra-device-metadata"]);
    helper.stop().await.unwrap();
}

/// Driver calls are serialized across instances.
#[tokio::test]
async fn driver_calls_of_two_instances_are_serialized() {
    let node = Node::default();
    let driver = SlowDriver::default();
    let old = start_driver(&node, OLD, driver.clone()).await;
    let new = start_driver(&node, NEW, driver.clone()).await;
    let mut calls = Vec::new();
    for (index, instance) in [&old, &new, &old, &new].into_iter().enumerate() {
        let claim = TestClaim::new(&format!("slow-{index}"), &format!("uid-{index}"));
        let claim = node.claim(claim.device("gpu", &format!("gpu-{index}")));
        let kubelet = Kubelet::of(instance).await;
        calls.push(tokio::spawn(async move { kubelet.prepare_one(&claim).await }));
    }
    for _ in 0..4 {
        driver.wait_for(1).await;
        driver.permits.add_permits(1);
    }
    for call in calls {
        in_time(call).await.unwrap().unwrap();
    }
    assert_eq!(driver.max_in_flight.load(std::sync::atomic::Ordering::SeqCst), 1);
    stop([old, new]).await;
}

/// G29: an update through the old instance races an unprepare through the new one. In either order no files are left, and the
/// update succeeds or fails because the claim is not prepared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_in_one_instance_and_an_unprepare_in_the_other_exclude_each_other() {
    let node = Node::default();
    let claim = node.claim(train());
    let old = Arc::new(start(&node, OLD).await);
    let new = start(&node, NEW).await;
    let kubelet = Kubelet::of(&new).await;
    let prepare = Kubelet::of(&old).await;
    for round in 0..50 {
        prepare.prepare_one(&claim).await.unwrap();
        let updates: Vec<_> = (0..3)
            .map(|number| {
                let old = old.clone();
                let reference = claim.reference();
                tokio::spawn(async move {
                    old.handles()
                        .update_request_metadata(&reference, "gpu", numbered_device("gpu-0", round * 10 + number))
                        .await
                })
            })
            .collect();
        kubelet.unprepare_one(&claim).await.unwrap();
        for update in updates {
            if let Err(error) = update.await.unwrap() {
                assert!(error.is_not_prepared(), "{error}");
            }
        }
        assert!(!node.is_prepared(&claim), "round {round}");
    }
    assert_eq!(node.files(), ["plugins/gpu.example.com/dra-device-metadata"]);
    Arc::into_inner(old).unwrap().stop().await.unwrap();
    new.stop().await.unwrap();
}

/// G21: a device that the other instance has unprepared is free in this one too.
#[tokio::test]
async fn a_device_that_the_other_instance_has_unprepared_is_free() {
    let node = Node::default();
    let claim = node.claim(train());
    let old = start(&node, OLD).await;
    Kubelet::of(&old).await.prepare_one(&claim).await.unwrap();
    let new = start(&node, NEW).await;
    let other = node.claim(TestClaim::new("other", "uid-2").device("gpu", "gpu-0"));
    let kubelet = Kubelet::of(&new).await;
    kubelet.prepare_one(&other).await.unwrap_err();
    Kubelet::of(&old).await.unprepare_one(&claim).await.unwrap();
    kubelet.prepare_one(&other).await.unwrap();
    stop([old, new]).await;
}

/// G21, G26: a Go instance prepares a claim after our start; then the kubelet prepares it again with our instance.
#[tokio::test]
async fn a_claim_that_a_concurrent_go_instance_has_prepared_is_adopted() {
    use std::os::unix::fs::MetadataExt as _;
    let node = Node::default();
    let driver = TestDriver::default();
    // Files as the Go framework leaves them: ours without the record.
    let claim = node.claim(TestClaim::new("x", "uid-x").device("gpu", "gpu-0"));
    let old = start_driver(&node, "pod-1", driver.clone()).await;
    let new = start_driver(&node, "pod-2", driver.clone()).await;
    Kubelet::of(&old).await.prepare_one(&claim).await.unwrap();
    std::fs::remove_file(node.claim_directory(&claim).join(".claim.json")).unwrap();
    let inode = std::fs::metadata(node.metadata_file(&claim, "gpu")).unwrap().ino();
    let rival = node.claim(TestClaim::new("y", "uid-y").device("gpu", "gpu-0"));
    let kubelet = Kubelet::of(&new).await;
    let error = kubelet.prepare_one(&rival).await.unwrap_err();
    assert!(error.contains("is still prepared for claim default/x"), "{error}");
    assert_eq!(
        new.handles().update_request_metadata(&claim.reference(), "gpu", numbered_device("gpu-0", 1)).await.unwrap(),
        2
    );
    kubelet.prepare_one(&claim).await.unwrap();
    let after = std::fs::metadata(node.metadata_file(&claim, "gpu")).unwrap().ino();
    assert_eq!(inode, after, "a file in use was replaced");
}
