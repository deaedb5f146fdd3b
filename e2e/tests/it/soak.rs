//! Pods come and go for a given time while driver, kubelet, container runtime and API server are killed: `cargo xtask soak --cluster`.
//!
//! As on the embedded node, one driver is disturbed, and others run all the time and must not grow: one whose metadata comes late, and
//! drakkar-net with an interface that pods share. Each round starts pods of all of them, disturbs something while they start, and ends
//! when all of them have read their files and nothing of them is left.

#[path = "../../../crates/cli/tests/it/soak/growth.rs"]
mod growth;

use std::path::Path;
use std::time::{Duration, Instant};

use drakkar_e2e::Component;
use drakkar_node::{ClaimSpec, Container, Pod};
use http::Method;
use serde_json::{Value, json};

use self::growth::{Process, growth_of_counts};
use crate::disruption::{node_is_ready, processes_of};
use crate::network::{claim, file_of_template, network_process};
use crate::support::{Driver, NET_DRIVER, NetDriver, TestEnv, template_path};

/// The pods of each simulated driver in a round.
const PODS: usize = 4;
/// The pods with an interface in a round.
const NETWORK_PODS: usize = 3;
/// The kubelet is killed in one of so many turns. It removes what is left of ended pods a minute after its start at the earliest, and a
/// runtime with everything that ever ran tells its plugins of all that whenever they connect.
const KUBELET_TURNS: usize = 3;
/// Where containerd keeps the sandboxes that it knows.
const SANDBOXES: &str = "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes";
/// How long the pods of a round may take, with a component of the cluster killed meanwhile.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What a round disturbs, in this order.
#[derive(Debug, Clone, Copy)]
enum Disturbance {
    None,
    KillDriver,
    ReplaceDriver,
    UpdateDriver,
    KillKubelet,
    KillContainerd,
    KillApiServer,
}

const DISTURBANCES: [Disturbance; 7] = [
    Disturbance::None,
    Disturbance::KillDriver,
    Disturbance::ReplaceDriver,
    Disturbance::UpdateDriver,
    Disturbance::KillKubelet,
    Disturbance::KillContainerd,
    Disturbance::KillApiServer,
];

impl Disturbance {
    async fn happen(self, env: &TestEnv, driver: &Driver, round: usize) {
        match self {
            Self::None => {}
            Self::KillDriver => {
                for process in processes_of(driver) {
                    let process = rustix::process::Pid::from_raw(process).unwrap();
                    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
                }
            }
            Self::ReplaceDriver => driver.replace_pod(env).await,
            // A changed label of the pod's template stands for a new version.
            Self::UpdateDriver => {
                let patch = format!(r#"{{"spec":{{"template":{{"metadata":{{"labels":{{"round":"r{round}"}}}}}}}}}}"#);
                let set = ["patch", "daemonset", "driver", "-n", &driver.namespace, "-p", &patch];
                env.kubectl(&set, "").unwrap();
            }
            Self::KillKubelet => {
                env.cluster.kill(Component::Kubelet).unwrap();
                env.cluster.start(Component::Kubelet).unwrap();
                node_is_ready(env).await;
            }
            Self::KillContainerd => {
                env.cluster.kill(Component::Containerd).unwrap();
                env.cluster.start(Component::Containerd).unwrap();
                node_is_ready(env).await;
            }
            Self::KillApiServer => {
                for component in [Component::ApiServer, Component::ControllerManager, Component::Scheduler] {
                    env.cluster.kill(component).unwrap();
                    env.cluster.start(component).unwrap();
                }
                // The client has connections to the one that was killed.
                let node = format!("/api/v1/nodes/{}", env.cluster.node());
                env.eventually("the API server answers", async || env.call(Method::GET, &node, None).await.ok()).await;
                node_is_ready(env).await;
            }
        }
    }
}

/// The processes of the drivers that run all the time, and what there is while no pod is.
#[derive(Debug, Clone, Copy)]
struct Measurement {
    steady: Process,
    network: Process,
    files: usize,
    specs: usize,
    slices: usize,
    devices: usize,
    /// The sandboxes that the runtime knows: up to a minute's pods. Not compared.
    sandboxes: usize,
}

impl Measurement {
    async fn take(env: &TestEnv, steady: &Driver, disturbed: &Driver) -> Self {
        let processes = processes_of(steady);
        let [process] = processes[..] else { panic!("processes of {}: {processes:?}", steady.name) };
        let all = [steady.name.as_str(), disturbed.name.as_str(), NET_DRIVER];
        let mut files = 0;
        let mut slices = Vec::new();
        for driver in all {
            files += count_files(&env.cluster.host_path(format!("/var/lib/kubelet/plugins/{driver}")));
            let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{driver}");
            slices.extend(env.list(&path).await);
        }
        let devices = |slice: &Value| slice["spec"]["devices"].as_array().map_or(0, Vec::len);
        Self {
            steady: Process::of(process.unsigned_abs()),
            network: Process::of(network_process(env).unsigned_abs()),
            files,
            specs: std::fs::read_dir(env.cdi_directory()).unwrap().count(),
            slices: slices.len(),
            devices: slices.iter().map(devices).sum(),
            sandboxes: std::fs::read_dir(env.cluster.host_path(SANDBOXES)).unwrap().count(),
        }
    }

    fn growth_since(&self, first: &Self) -> Vec<String> {
        let mut grown = self.steady.growth_since(first.steady, "the steady driver");
        grown.extend(self.network.growth_since(first.network, "drakkar-net"));
        grown.extend(growth_of_counts([
            ("files", first.files, self.files),
            ("CDI specs", first.specs, self.specs),
            ("slices", first.slices, self.slices),
            ("devices", first.devices, self.devices),
        ]));
        grown
    }
}

/// Counts the files below a directory, without sockets of instances.
fn count_files(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let count = |entry: std::fs::DirEntry| {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() { count_files(&entry.path()) } else { usize::from(kind.is_file()) }
    };
    entries.map(count).sum()
}

/// The drivers and their networks.
struct Drivers {
    steady: Driver,
    disturbed: Driver,
    network: NetDriver,
}

/// Creates the pods of a round. A pod whose file has no data never ends, so the round fails. One whose container was killed by a disturbance
/// is started again.
async fn create_pods(env: &TestEnv, drivers: &Drivers, round: usize) {
    let wait = |driver: &Driver| {
        let path = template_path("devices", "gpu", driver);
        format!("until grep -q interfaceName {path}; do sleep 1; done")
    };
    // The gate is closed until the interface is there, so the first look must find everything.
    let file = file_of_template();
    let look = format!(
        "ip -4 address show dev share0 | grep -q inet && grep -q '\"share0\"' {file} && exit 0; \
         echo 'no network'; exec sleep 1000000"
    );
    let kinds = [
        ("steady", "devices", wait(&drivers.steady), PODS),
        ("disturbed", "devices", wait(&drivers.disturbed), PODS),
        ("network", "net", look, NETWORK_PODS),
    ];
    for (template, claim, script, count) in &kinds {
        for pod in 0..*count {
            let main = Container::new("main", ["sh", "-c", script]).claim(claim);
            let name = format!("pod-{round}-{template}-{pod}");
            let pod = Pod::new(&name).template(claim, template).container(main);
            env.create_pod(pod.restart_policy("OnFailure")).await;
        }
    }
}

/// Starts pods of all drivers, disturbs something and waits until all pods have read their files and are gone.
async fn round(env: &TestEnv, drivers: &Drivers, number: usize) {
    create_pods(env, drivers, number).await;
    let disturbance = match DISTURBANCES[number % DISTURBANCES.len()] {
        Disturbance::KillKubelet if !(number / DISTURBANCES.len()).is_multiple_of(KUBELET_TURNS) => Disturbance::None,
        disturbance => disturbance,
    };
    disturbance.happen(env, &drivers.disturbed, number).await;
    let path = format!("/api/v1/namespaces/{}/pods", env.namespace);
    let not_succeeded = format!("{path}?fieldSelector=status.phase!%3DSucceeded&limit=1");
    let what = format!("all pods of a round have ended ({disturbance:?})");
    env.eventually_within(TIMEOUT, &what, async || env.list(&not_succeeded).await.is_empty().then_some(())).await;
    env.delete(&path).await;
    env.eventually_within(TIMEOUT, "all pods are gone", async || env.list(&path).await.is_empty().then_some(())).await;
    for driver in [&drivers.steady, &drivers.disturbed] {
        env.no_leftovers(driver).await;
    }
    drivers.network.all_back(env).await;
    let claims = env.claims("");
    env.eventually("all claims are gone", async || env.list(&claims).await.is_empty().then_some(())).await;
    // An update that is not finished would be another instance in the next round's way.
    let pods = format!("/api/v1/namespaces/{}/pods", drivers.disturbed.namespace);
    env.eventually("one pod of the driver is ready", async || {
        let pods = env.list(&pods).await;
        let [pod] = pods.as_slice() else { return None };
        (pod["status"]["containerStatuses"][0]["ready"] == true).then_some(())
    })
    .await;
}

/// `DRAKKAR_SOAK_MINUTES` sets how long it runs.
#[tokio::test]
#[ignore = "needs a real cluster, for minutes: cargo xtask soak --cluster"]
async fn nothing_grows_while_pods_come_and_go_and_everything_is_killed() {
    let minutes: f64 = std::env::var("DRAKKAR_SOAK_MINUTES").map_or(5.0, |minutes| minutes.parse().unwrap());
    let time = Duration::from_secs_f64(minutes * 60.0);
    let env = TestEnv::new("soak").await;
    // Its metadata comes after the containers have started, so each claim is updated and reported.
    let steady = Driver::new("steady").argument("--metadata=deferred").argument("--status").deploy(&env).await;
    let disturbed = Driver::new("disturbed").deploy(&env).await;
    let drivers = Drivers { steady, disturbed, network: NetDriver::deploy(&env, 0).await };
    for (template, driver) in [("steady", &drivers.steady), ("disturbed", &drivers.disturbed)] {
        env.template(template, ClaimSpec::default().request("gpu", &driver.name, 1)).await;
    }
    let range = json!({"interfaceName": "share0", "addressRanges": [{"subnet": "198.19.0.0/28"}]});
    env.template("network", claim("shared", &range)).await;

    println!(
        "| minute | rounds | pods | memory | descriptors | threads | drakkar-net: memory | descriptors | threads | files | CDI specs | slices \
         | devices | sandboxes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let started = Instant::now();
    let mut measurements = Vec::new();
    let mut rounds = 0;
    // Whole turns: each measurement has seen every disturbance once more.
    while measurements.len() < 2 || started.elapsed() < time {
        for _ in 0..DISTURBANCES.len() {
            round(&env, &drivers, rounds).await;
            rounds += 1;
        }
        let now = Measurement::take(&env, &drivers.steady, &drivers.disturbed).await;
        println!(
            "| {:.1} | {rounds} | {} | {:.1} MB | {} | {} | {:.1} MB | {} | {} | {} | {} | {} | {} | {} |",
            started.elapsed().as_secs_f64() / 60.0,
            rounds * (2 * PODS + NETWORK_PODS),
            now.steady.megabytes(),
            now.steady.descriptors,
            now.steady.threads,
            now.network.megabytes(),
            now.network.descriptors,
            now.network.threads,
            now.files,
            now.specs,
            now.slices,
            now.devices,
            now.sandboxes
        );
        // What is compared starts after the warm-up, a tenth of the time.
        if started.elapsed() >= time / 10 {
            measurements.push(now);
        }
    }
    let grown = measurements[measurements.len() - 1].growth_since(&measurements[0]);
    assert!(grown.is_empty(), "{}", grown.join("\n"));
    drivers.steady.clean_up(&env).await;
    drivers.disturbed.clean_up(&env).await;
    drivers.network.clean_up(&env).await;
    env.clean_up().await;
}
