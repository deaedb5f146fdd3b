//! Parts of the node end and come back: pods keep running, new ones start, nothing leaks.
//!
//! These stop what other tests need, so they run one after the other, when nothing else does.

use std::path::Path;
use std::time::Duration;

use drakkar_e2e::Component;
use drakkar_node::ClaimSpec;
use serde_json::Value;

use crate::support::{Driver, Lab, attribute, devices, index_of, kep_path};

fn one(driver: &Driver) -> ClaimSpec {
    ClaimSpec::default().request("gpu", &driver.name, 1)
}

/// A pod that runs before something happens, and what has to be so afterwards.
struct Witness {
    pod: String,
    uid: Value,
    container: Value,
}

impl Witness {
    async fn new(lab: &Lab, driver: &Driver) -> Self {
        lab.claim("before", one(driver)).await;
        let pod = lab.run(lab.sleeper("before", "before")).await;
        let object = lab.pod(&pod).await.unwrap();
        let container = object["status"]["containerStatuses"][0]["containerID"].clone();
        Self { pod, uid: object["metadata"]["uid"].clone(), container }
    }

    /// The pod is the same, its container too, and its file is as it was.
    async fn still_runs(&self, lab: &Lab, driver: &Driver) {
        let object = lab.running(&self.pod).await;
        assert_eq!(object["metadata"]["uid"], self.uid);
        assert_eq!(object["status"]["containerStatuses"][0]["containerID"], self.container, "it was not restarted");
        check_file(lab, driver, &self.pod, "before").await;
    }
}

/// A container sees the file of its claim.
async fn check_file(lab: &Lab, driver: &Driver, pod: &str, claim: &str) {
    let file = lab
        .eventually("exec works", async || {
            let text = lab.exec(pod, "main", &["cat", &kep_path(claim, "gpu", driver)]).ok()?;
            Some(serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{claim}: {error}: {text:?}")))
        })
        .await;
    let allocated = lab.allocated(claim, driver).await;
    assert_eq!(devices(&file), allocated);
    assert_eq!(attribute(&file, "index"), index_of(&allocated[0]));
}

/// A new pod starts, sees its file, and goes; then the one from before goes, and nothing is left.
async fn life_goes_on(lab: Lab, driver: Driver, witness: Witness) {
    witness.still_runs(&lab, &driver).await;
    lab.claim("after", one(&driver)).await;
    let after = lab.run(lab.sleeper("after", "after")).await;
    check_file(&lab, &driver, &after, "after").await;
    for pod in [&after, &witness.pod] {
        lab.delete_pod(pod).await;
    }
    driver.end(&lab).await;
    lab.end().await;
}

/// Waits until a kubelet that started since says that the node is ready.
async fn node_is_ready(lab: &Lab) {
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", lab.cluster.node());
    let renewed = async || Some(lab.get(&lease).await?["spec"]["renewTime"].clone());
    let before = renewed().await;
    lab.eventually("the kubelet renews its lease", async || (renewed().await != before).then_some(())).await;
    let node = format!("/api/v1/nodes/{}", lab.cluster.node());
    lab.eventually("the node is ready", async || {
        let node = lab.get(&node).await?;
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        node["status"]["conditions"].as_array()?.iter().any(is_ready).then_some(())
    })
    .await;
}

async fn scene(name: &str) -> (Lab, Driver, Witness) {
    let lab = Lab::new(name).await;
    let driver = Driver::new(name).deploy(&lab).await;
    let witness = Witness::new(&lab, &driver).await;
    (lab, driver, witness)
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_kubelet_restarts() {
    let (lab, driver, witness) = scene("kubelet").await;
    lab.cluster.kill(Component::Kubelet).unwrap();
    lab.cluster.start(Component::Kubelet).unwrap();
    node_is_ready(&lab).await;
    // A kubelet wipes the slices of drivers that do not register soon. They are all there again.
    lab.eventually("the slices are there", async || (!lab.slices(&driver).await.is_empty()).then_some(())).await;
    life_goes_on(lab, driver, witness).await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn containerd_restarts() {
    let (lab, driver, witness) = scene("containerd").await;
    lab.cluster.kill(Component::Containerd).unwrap();
    lab.cluster.start(Component::Containerd).unwrap();
    node_is_ready(&lab).await;
    life_goes_on(lab, driver, witness).await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_drivers_pod_is_replaced() {
    let (lab, driver, witness) = scene("replaced").await;
    driver.replace_pod(&lab).await;
    life_goes_on(lab, driver, witness).await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_driver_is_killed() {
    let (lab, driver, witness) = scene("killed").await;
    let restarts = async || {
        let pods = driver.pods(&lab).await;
        let status = &pods[0]["status"]["containerStatuses"][0];
        (status["ready"] == true).then(|| status["restartCount"].as_u64().unwrap())
    };
    assert_eq!(restarts().await, Some(0));
    for process in processes_of(&driver) {
        let process = rustix::process::Pid::from_raw(process).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }
    lab.eventually("the kubelet starts the driver again", async || (restarts().await? == 1).then_some(())).await;
    life_goes_on(lab, driver, witness).await;
}

/// The processes of a driver, by their command lines.
fn processes_of(driver: &Driver) -> Vec<i32> {
    let name = format!("--driver-name={}", driver.name);
    let is_it = |path: &Path| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == name.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let number = |path: &Path| path.file_name()?.to_str()?.parse().ok();
    let found: Vec<i32> = entries
        .filter_map(|path| Some((number(&path)?, path)))
        .filter(|(_, path)| is_it(path))
        .map(|(pid, _)| pid)
        .collect();
    assert!(!found.is_empty(), "no process of {}", driver.name);
    found
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_driver_is_updated_while_pods_come_and_go() {
    let (lab, driver, witness) = scene("rolling").await;
    let old = driver.pod(&lab).await;
    // Another argument is another version of the driver. The new pod starts beside the old one (maxSurge).
    let driver = driver.argument("--health");
    let rolling = async {
        driver.apply(&lab).await;
        assert_ne!(driver.pod(&lab).await, old);
    };
    let pods = async {
        for number in 0..5 {
            let name = format!("during-{number}");
            lab.claim(&name, one(&driver)).await;
            let pod = lab.run(lab.sleeper(&name, &name)).await;
            check_file(&lab, &driver, &pod, &name).await;
            lab.delete_pod(&pod).await;
        }
    };
    tokio::join!(rolling, pods);
    life_goes_on(lab, driver, witness).await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_api_server_is_away_for_a_minute() {
    let (lab, driver, witness) = scene("away").await;
    lab.cluster.kill(Component::ApiServer).unwrap();
    // Nothing can be asked meanwhile; that nothing happens is what is to be seen.
    tokio::time::sleep(Duration::from_secs(60)).await;
    lab.cluster.start(Component::ApiServer).unwrap();
    // Where there are several of these, they end when they cannot renew their lease, and are started again. Here there is
    // one of each and no lease, and they would look for the API server again after up to a minute.
    for component in [Component::ControllerManager, Component::Scheduler] {
        lab.cluster.kill(component).unwrap();
        lab.cluster.start(component).unwrap();
    }
    node_is_ready(&lab).await;
    life_goes_on(lab, driver, witness).await;
}

/// As after a reboot: the CDI directory is on a tmpfs and empty, no container runs, and the kubelet starts before the driver.
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_node_reboots() {
    let (lab, driver, witness) = scene("reboot").await;
    lab.cluster.stop(Component::Kubelet).unwrap();
    let files = lab.files(&driver);
    assert!(files.iter().any(|file| file.starts_with(lab.cdi_directory())), "{files:?}");
    for entry in std::fs::read_dir(lab.cdi_directory()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    end_all_containers(&lab).await;
    lab.cluster.start(Component::Kubelet).unwrap();
    node_is_ready(&lab).await;
    lab.eventually("the container is another one", async || {
        let pod = lab.pod(&witness.pod).await?;
        let status = &pod["status"]["containerStatuses"][0];
        (status["ready"] == true && status["containerID"] != witness.container).then_some(())
    })
    .await;
    check_file(&lab, &driver, &witness.pod, "before").await;
    let container = lab.pod(&witness.pod).await.unwrap()["status"]["containerStatuses"][0]["containerID"].clone();
    life_goes_on(lab, driver, Witness { container, ..witness }).await;
}

/// Ends all containers and sandboxes at once, as a power cut does.
async fn end_all_containers(lab: &Lab) {
    lab.eventually("no container runs", async || {
        let tasks = drakkar_e2e::run(lab.cluster.ctr().args(["tasks", "list"])).unwrap();
        let running: Vec<_> = tasks.lines().filter(|line| line.contains("RUNNING")).collect();
        for task in running.iter().filter_map(|line| line.split_whitespace().next()) {
            // One may have ended since it was listed; those that have not are listed again.
            if let Err(error) =
                drakkar_e2e::run(lab.cluster.ctr().args(["tasks", "kill", "--signal", "SIGKILL", "--all", task]))
            {
                eprintln!("{error}");
            }
        }
        running.is_empty().then_some(())
    })
    .await;
}
