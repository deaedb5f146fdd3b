//! Answers to container events, as the runtime reads them.

use drakkar_nri::api::{
    CreateContainerRequest, CreateContainerResponse, Hook, Hooks, LinuxDevice, LinuxSeccomp, StopContainerResponse,
    UpdateContainerResponse,
};
use drakkar_nri::{Adjustments, ContainerAdjustment, ContainerUpdate, Resources};

use crate::plugin::start;
use crate::runtime::{Runtime, container, pod};

fn request() -> CreateContainerRequest {
    CreateContainerRequest { pod: Some(pod("train")), container: Some(container("main")) }
}

#[tokio::test]
async fn an_adjustment_arrives_with_all_its_parts() {
    let runtime = Runtime::new();
    let (_handle, recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    let hook = Hook { path: "/bin/true".to_owned(), ..Hook::default() };
    *recorder.adjustments.lock().unwrap() = Adjustments::from(
        ContainerAdjustment::new()
            .annotation("a", "1")
            .remove_annotation("b")
            .bind_mount("/host", "/in", ["ro"])
            .remove_mount("/proc/kcore")
            .env("A", "1")
            .remove_env("B")
            .hooks(Hooks { poststop: vec![hook], ..Hooks::default() })
            .rlimit("RLIMIT_MEMLOCK", 2, 1)
            .cdi_device("example.com/net=eth1")
            .override_args(["run"])
            .device(LinuxDevice { path: "/dev/x".to_owned(), ..LinuxDevice::default() })
            .remove_device("/dev/y")
            .resources(Resources::new().cpu_set("0-1").memory_limit(5).unified("memory.high", "max"))
            .cgroups_path("/p")
            .oom_score_adj(-3)
            .seccomp(LinuxSeccomp { default_action: "SCMP_ACT_ERRNO".to_owned(), ..LinuxSeccomp::default() })
            .namespace("network", "/n")
            .remove_namespace("ipc")
            .sysctl("net.ipv4.ip_forward", "1")
            .net_device("ens1", "eth1"),
    )
    .update(ContainerUpdate::new("other", Resources::new().cpu_shares(9)).ignore_failure())
    .evict("third", "in the way");
    let answer: CreateContainerResponse = peer.call("CreateContainer", &request()).await.unwrap();
    let adjust = answer.adjust.unwrap();
    assert_eq!(adjust.annotations, [("a".into(), "1".into()), ("-b".into(), String::new())].into());
    let mounts: Vec<_> = adjust.mounts.iter().map(|mount| (&*mount.destination, mount.options.join(","))).collect();
    assert_eq!(mounts, [("/in", "rbind,ro".to_owned()), ("-/proc/kcore", String::new())]);
    assert_eq!(adjust.env.iter().map(|env| &*env.key).collect::<Vec<_>>(), ["A", "-B"]);
    assert_eq!(adjust.hooks.unwrap().poststop.len(), 1);
    assert_eq!((adjust.rlimits[0].hard, adjust.rlimits[0].soft), (2, 1));
    assert_eq!(adjust.cdi_devices[0].name, "example.com/net=eth1");
    assert_eq!(adjust.args, ["", "run"]);
    let linux = adjust.linux.unwrap();
    assert_eq!(linux.devices.iter().map(|device| &*device.path).collect::<Vec<_>>(), ["/dev/x", "-/dev/y"]);
    let resources = linux.resources.unwrap();
    assert_eq!((&*resources.cpu.unwrap().cpus, resources.memory.unwrap().limit.unwrap().value), ("0-1", 5));
    assert_eq!(resources.unified["memory.high"], "max");
    assert_eq!((&*linux.cgroups_path, linux.oom_score_adj.unwrap().value), ("/p", -3));
    assert_eq!(linux.seccomp_policy.unwrap().default_action, "SCMP_ACT_ERRNO");
    assert_eq!(linux.namespaces.iter().map(|name| &*name.r#type).collect::<Vec<_>>(), ["network", "-ipc"]);
    assert_eq!(linux.sysctl["net.ipv4.ip_forward"], "1");
    assert_eq!(linux.net_devices["ens1"].name, "eth1");
    assert_eq!((&*answer.update[0].container_id, answer.update[0].ignore_failure), ("other", true));
    assert_eq!((&*answer.evict[0].container_id, &*answer.evict[0].reason), ("third", "in the way"));
}

#[tokio::test]
async fn updates_are_in_the_answers_of_the_other_events() {
    let runtime = Runtime::new();
    let (_handle, recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    let update = ContainerUpdate::new("other", Resources::new().cpu_quota(-1));
    *recorder.adjustments.lock().unwrap() = Adjustments::default().update(update).evict("third", "why");
    let answer: UpdateContainerResponse = peer.call("UpdateContainer", &request()).await.unwrap();
    assert_eq!((answer.update.len(), answer.evict.len()), (1, 1));
    let answer: StopContainerResponse = peer.call("StopContainer", &request()).await.unwrap();
    assert_eq!(answer.update[0].container_id, "other");
}

#[tokio::test]
async fn no_adjustment_is_an_empty_answer() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    let answer: CreateContainerResponse = peer.call("CreateContainer", &request()).await.unwrap();
    assert_eq!(answer, CreateContainerResponse::default());
}

/// The test's runtime reads as Go does, which fails on a long first frame.
#[tokio::test]
async fn a_large_answer_is_readable_and_a_too_large_one_is_an_error() {
    let runtime = Runtime::new();
    let (_handle, recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    for length in [4000, 4096, 20_000, 3 << 20] {
        let adjustment = ContainerAdjustment::new().env("BIG", "x".repeat(length));
        *recorder.adjustments.lock().unwrap() = adjustment.into();
        let answer: CreateContainerResponse = peer.call("CreateContainer", &request()).await.unwrap();
        assert_eq!(answer.adjust.unwrap().env[0].value.len(), length);
    }
    *recorder.adjustments.lock().unwrap() = ContainerAdjustment::new().env("BIG", "x".repeat(4 << 20)).into();
    let error = peer.call::<()>("CreateContainer", &request()).await.unwrap_err();
    assert_eq!(error.code, 8);
}
