//! Components of the node and the driver stop and start again: pods keep running, new ones start, nothing leaks.
//!
//! These tests stop what other tests need, so they run one after the other and not together with others.

use std::path::Path;
use std::time::Duration;

use drakkar_e2e::Component;
use drakkar_node::ClaimSpec;
use serde_json::Value;

use crate::support::{Driver, TestEnv, attribute, devices, index_of, kep_path};

fn one(driver: &Driver) -> ClaimSpec {
    ClaimSpec::default().request("gpu", &driver.name, 1)
}

/// A pod that runs before the disruption and has to run unchanged after it.
struct SurvivingPod {
    pod: String,
    uid: Value,
    container: Value,
}

impl SurvivingPod {
    async fn new(env: &TestEnv, driver: &Driver) -> Self {
        env.claim("before", one(driver)).await;
        let pod = env.run(env.sleeper("before", "before")).await;
        let object = env.pod(&pod).await.unwrap();
        let container = object["status"]["containerStatuses"][0]["containerID"].clone();
        Self { pod, uid: object["metadata"]["uid"].clone(), container }
    }

    /// Checks that pod and container are the same as before, and the metadata file too.
    async fn still_runs(&self, env: &TestEnv, driver: &Driver) {
        let object = env.running(&self.pod).await;
        assert_eq!(object["metadata"]["uid"], self.uid);
        assert_eq!(
            object["status"]["containerStatuses"][0]["containerID"], self.container,
            "the container was restarted"
        );
        check_file(env, driver, &self.pod, "before").await;
    }
}

/// Checks the metadata file that a container sees.
async fn check_file(env: &TestEnv, driver: &Driver, pod: &str, claim: &str) {
    let file = env
        .eventually("exec works", async || {
            let text = env.exec(pod, "main", &["cat", &kep_path(claim, "gpu", driver)]).ok()?;
            Some(serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{claim}: {error}: {text:?}")))
        })
        .await;
    let allocated = env.allocated(claim, driver).await;
    assert_eq!(devices(&file), allocated);
    assert_eq!(attribute(&file, "index"), index_of(&allocated[0]));
}

/// Checks that the pod from before still runs and that a new pod starts and sees its file; then deletes both and checks for
/// leftovers.
async fn verify_and_clean_up(env: TestEnv, driver: Driver, survivor: SurvivingPod) {
    survivor.still_runs(&env, &driver).await;
    env.claim("after", one(&driver)).await;
    let after = env.run(env.sleeper("after", "after")).await;
    check_file(&env, &driver, &after, "after").await;
    for pod in [&after, &survivor.pod] {
        env.delete_pod(pod).await;
    }
    driver.clean_up(&env).await;
    env.clean_up().await;
}

/// Waits until the restarted kubelet has renewed its lease and reports the node as ready.
pub(crate) async fn node_is_ready(env: &TestEnv) {
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", env.cluster.node());
    let renewed = async || Some(env.get(&lease).await?["spec"]["renewTime"].clone());
    let before = renewed().await;
    env.eventually("the kubelet renews its lease", async || (renewed().await != before).then_some(())).await;
    let node = format!("/api/v1/nodes/{}", env.cluster.node());
    env.eventually("the node is ready", async || {
        let node = env.get(&node).await?;
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        node["status"]["conditions"].as_array()?.iter().any(is_ready).then_some(())
    })
    .await;
}

async fn set_up(name: &str) -> (TestEnv, Driver, SurvivingPod) {
    let env = TestEnv::new(name).await;
    let driver = Driver::new(name).deploy(&env).await;
    let survivor = SurvivingPod::new(&env, &driver).await;
    (env, driver, survivor)
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_kubelet_restarts() {
    let (env, driver, survivor) = set_up("kubelet").await;
    env.cluster.kill(Component::Kubelet).unwrap();
    env.cluster.start(Component::Kubelet).unwrap();
    node_is_ready(&env).await;
    // A restarted kubelet deletes the slices of drivers that do not register soon. The driver publishes them again.
    env.eventually("the slices exist", async || (!env.slices(&driver).await.is_empty()).then_some(())).await;
    verify_and_clean_up(env, driver, survivor).await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn containerd_restarts() {
    let (env, driver, survivor) = set_up("containerd").await;
    env.cluster.kill(Component::Containerd).unwrap();
    env.cluster.start(Component::Containerd).unwrap();
    node_is_ready(&env).await;
    verify_and_clean_up(env, driver, survivor).await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_drivers_pod_is_replaced() {
    let (env, driver, survivor) = set_up("replaced").await;
    driver.replace_pod(&env).await;
    verify_and_clean_up(env, driver, survivor).await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_driver_is_killed() {
    let (env, driver, survivor) = set_up("killed").await;
    let restarts = async || {
        let pods = driver.pods(&env).await;
        let status = &pods[0]["status"]["containerStatuses"][0];
        (status["ready"] == true).then(|| status["restartCount"].as_u64().unwrap())
    };
    assert_eq!(restarts().await, Some(0));
    for process in processes_of(&driver) {
        let process = rustix::process::Pid::from_raw(process).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }
    env.eventually("the kubelet starts the driver again", async || (restarts().await? == 1).then_some(())).await;
    verify_and_clean_up(env, driver, survivor).await;
}

/// Finds the processes of a driver by their command lines.
pub(crate) fn processes_of(driver: &Driver) -> Vec<i32> {
    let name = format!("--driver-name={}", driver.name);
    let is_driver = |path: &Path| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == name.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let number = |path: &Path| path.file_name()?.to_str()?.parse().ok();
    let found: Vec<i32> = entries
        .filter_map(|path| Some((number(&path)?, path)))
        .filter(|(_, path)| is_driver(path))
        .map(|(pid, _)| pid)
        .collect();
    assert!(!found.is_empty(), "no process of {}", driver.name);
    found
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_driver_is_updated_while_pods_come_and_go() {
    let (env, driver, survivor) = set_up("rolling").await;
    let old = driver.pod(&env).await;
    // A changed argument stands for a new version of the driver. The new pod starts beside the old one (maxSurge).
    let driver = driver.argument("--health");
    let rolling = async {
        driver.apply(&env).await;
        assert_ne!(driver.pod(&env).await, old);
    };
    let pods = async {
        for number in 0..5 {
            let name = format!("during-{number}");
            env.claim(&name, one(&driver)).await;
            let pod = env.run(env.sleeper(&name, &name)).await;
            check_file(&env, &driver, &pod, &name).await;
            env.delete_pod(&pod).await;
        }
    };
    tokio::join!(rolling, pods);
    verify_and_clean_up(env, driver, survivor).await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_api_server_is_unavailable_for_a_minute() {
    let (env, driver, survivor) = set_up("away").await;
    env.cluster.kill(Component::ApiServer).unwrap();
    // Not a wait for a condition: the length of the outage is what is tested.
    tokio::time::sleep(Duration::from_secs(60)).await;
    env.cluster.start(Component::ApiServer).unwrap();
    // With leader election these exit when they cannot renew their lease, and are restarted. Here they have no lease, and
    // would back off for up to a minute before they reconnect.
    for component in [Component::ControllerManager, Component::Scheduler] {
        env.cluster.kill(component).unwrap();
        env.cluster.start(component).unwrap();
    }
    node_is_ready(&env).await;
    verify_and_clean_up(env, driver, survivor).await;
}

/// The state after a reboot: the CDI directory, a tmpfs, is empty, no container runs, and the kubelet starts before the
/// driver.
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_node_reboots() {
    let (env, driver, survivor) = set_up("reboot").await;
    env.cluster.stop(Component::Kubelet).unwrap();
    let files = env.files(&driver);
    assert!(files.iter().any(|file| file.starts_with(env.cdi_directory())), "{files:?}");
    for entry in std::fs::read_dir(env.cdi_directory()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    kill_all_containers(&env).await;
    env.cluster.start(Component::Kubelet).unwrap();
    node_is_ready(&env).await;
    env.eventually("the container is replaced", async || {
        let pod = env.pod(&survivor.pod).await?;
        let status = &pod["status"]["containerStatuses"][0];
        (status["ready"] == true && status["containerID"] != survivor.container).then_some(())
    })
    .await;
    check_file(&env, &driver, &survivor.pod, "before").await;
    let container = env.pod(&survivor.pod).await.unwrap()["status"]["containerStatuses"][0]["containerID"].clone();
    verify_and_clean_up(env, driver, SurvivingPod { container, ..survivor }).await;
}

/// Kills all containers and sandboxes, as a power failure does.
async fn kill_all_containers(env: &TestEnv) {
    env.eventually("no container runs", async || {
        let tasks = drakkar_e2e::run(env.cluster.ctr().args(["tasks", "list"])).unwrap();
        let running: Vec<_> = tasks.lines().filter(|line| line.contains("RUNNING")).collect();
        for task in running.iter().filter_map(|line| line.split_whitespace().next()) {
            // A task may have exited since it was listed; the others are listed again.
            if let Err(error) =
                drakkar_e2e::run(env.cluster.ctr().args(["tasks", "kill", "--signal", "SIGKILL", "--all", task]))
            {
                eprintln!("{error}");
            }
        }
        running.is_empty().then_some(())
    })
    .await;
}
