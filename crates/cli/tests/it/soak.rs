//! Pods come and go for a given time while what serves them is disturbed, and nothing may grow: `cargo xtask soak`.
//!
//! Two drivers run on an embedded node. One is disturbed: killed, replaced by another instance beside it, cut off from the API server.
//! The other runs from the first to the last minute, so that its memory, descriptors and threads can be compared; its metadata comes
//! later than the containers, so each of its claims is updated and reported. The kubelet is killed for both.
//!
//! From time to time all pods end, and what remains is measured. The first measurement is taken after the warm-up, a tenth of the time.

mod growth;

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use drakkar_node::api::{Identity, Partition};
use drakkar_node::{ClaimSpec, Container, DriverProcess, Node, Pod, assert_eventually};
use tokio::sync::RwLock;

use self::growth::{Process, growth_of_counts};
use crate::chaos::{FILE as GPU_FILE, READ_LOOP, Random};

const DISTURBED: &str = "gpu.example.com";
const STEADY: &str = "net.example.com";
/// The users of the disturbed driver, and the devices that they compete for.
const GPU_USERS: usize = 8;
const GPUS: usize = 6;
/// The users of the steady driver, which has two interfaces.
const NET_USERS: usize = 3;
/// The measurements, the first of which is the one that the others are compared with.
const MEASUREMENTS: usize = 10;
/// The time without a finished pod after which the test fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Longer than anything takes: the progress of all pods together is watched.
const NO_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

const NET_FILE: &str =
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/nets/eth/net.example.com-metadata.json";
/// Waits for the addresses, which come after the container has started.
const WAIT_FOR_ADDRESSES: &str = r#"
    while :; do
        text=
        while IFS= read -r line; do text="$text$line"; done < "$FILE" || { echo "no file"; exit 3; }
        case "$text" in *'"ips"'*) exit 0 ;; esac
        sleep 0.02
    done
"#;

/// What pods do, and what happens to those who serve them.
#[derive(Default)]
struct Counts {
    pods: AtomicUsize,
    kills: AtomicUsize,
    rollouts: AtomicUsize,
    kubelet_kills: AtomicUsize,
    outages: AtomicUsize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        write!(
            f,
            "{} pods; the driver killed {} times and replaced {} times, the kubelet killed {} times, the API server out of reach {} times",
            of(&self.pods),
            of(&self.kills),
            of(&self.rollouts),
            of(&self.kubelet_kills),
            of(&self.outages)
        )
    }
}

/// What all tasks share.
struct Soak {
    node: Node,
    counts: Counts,
    is_over: AtomicBool,
    /// Held by each pod and each disturbance. A measurement waits until all are done.
    activity: RwLock<()>,
}

impl Soak {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn start_driver(&self, driver: &str, arguments: &[&str]) -> DriverProcess {
        let mut command = Command::new(env!("CARGO_BIN_EXE_drakkar"));
        command.arg("sample-driver").args(arguments).arg("--enable-device-metadata");
        self.node.spawn(driver, command).unwrap()
    }

    /// Starts an instance of the disturbed driver. Instances beside each other need names of their own.
    fn start_gpus(&self, instance: usize) -> DriverProcess {
        let uid = format!("--pod-uid=00000000-0000-4000-8000-{instance:012}");
        self.start_driver(DISTURBED, &["gpu", "--count", &GPUS.to_string(), &uid])
    }

    /// Runs pods of one kind, one after the other, until the time is up.
    async fn use_pods(self: Arc<Self>, kind: Kind, user: usize) {
        let mut number = 0;
        while !self.is_over() {
            let _active = self.activity.read().await;
            let pod = kind.pod(&format!("{}-{user}-{number}", kind.claim()));
            let pod = self.node.create_pod(pod).await.unwrap().with_timeout(NO_TIMEOUT);
            let phase = pod.finished().await.unwrap();
            assert_eq!(phase, "Succeeded", "{}: {:?}", pod.name(), pod.logs("main"));
            pod.delete().await.unwrap();
            self.counts.pods.fetch_add(1, Ordering::SeqCst);
            number += 1;
        }
    }

    /// Disturbs the driver and the kubelet, each time after some pods have finished since the last time.
    async fn disturb(self: Arc<Self>) -> DriverProcess {
        let mut random = Random::new(0x50a4);
        let mut instance = 0;
        let mut driver = self.start_gpus(instance);
        while !self.is_over() {
            let enough = self.counts.pods.load(Ordering::SeqCst) + 5 + random.below(20);
            while self.counts.pods.load(Ordering::SeqCst) < enough && !self.is_over() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let _active = self.activity.read().await;
            let count = match random.below(4) {
                0 => {
                    driver.kill().await.unwrap();
                    driver = self.start_gpus(instance);
                    &self.counts.kills
                }
                1 => {
                    instance += 1;
                    let next = self.start_gpus(instance);
                    self.node_has_instances(2).await;
                    driver.terminate().await.unwrap();
                    self.node_has_instances(1).await;
                    driver = next;
                    &self.counts.rollouts
                }
                2 => {
                    self.node.kill_kubelet().await;
                    self.node.start_kubelet().await.unwrap();
                    &self.counts.kubelet_kills
                }
                _ => {
                    let kind = if random.below(2) == 0 { Partition::Cut } else { Partition::Silent };
                    self.partition(kind, Duration::from_millis(200 + random.below(2000) as u64)).await;
                    &self.counts.outages
                }
            };
            count.fetch_add(1, Ordering::SeqCst);
        }
        driver
    }

    /// Waits until the disturbed driver has so many registration sockets that the kubelet knows.
    async fn node_has_instances(&self, count: usize) {
        let registered = async || {
            let all = self.node.registered().await;
            all.iter().filter(|plugin| plugin.driver == DISTURBED).count()
        };
        let sockets = || {
            let all = self.node.sockets().unwrap();
            all.iter().filter(|path| path.contains("plugins_registry") && path.contains(DISTURBED)).count()
        };
        assert_eventually!(
            within STALL_TIMEOUT,
            sockets() == count && registered().await >= 1,
            "{:?}",
            self.node.sockets()
        );
    }

    /// Keeps the API server out of reach of drivers and kubelet for a time. The length of the outage is what is tested.
    async fn partition(&self, kind: Partition, time: Duration) {
        let faults = self.node.api().faults();
        let node = Identity::Node(self.node.name().to_owned());
        for client in [node, self.node.driver_identity(DISTURBED), self.node.driver_identity(STEADY)] {
            faults.partition(Some(&client), kind);
        }
        tokio::time::sleep(time).await;
        faults.heal();
    }

    /// Returns when no pod has finished for a long time.
    async fn stalled(&self) {
        let mut last = (0, Instant::now());
        while last.1.elapsed() < STALL_TIMEOUT {
            let pods = self.counts.pods.load(Ordering::SeqCst);
            if pods != last.0 {
                last = (pods, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until all pods are gone and everything about their claims, and measures what is left.
    async fn measure(&self, steady: &DriverProcess) -> Measurement {
        let _quiet = self.activity.write().await;
        for driver in [DISTURBED, STEADY] {
            assert_eventually!(
                within STALL_TIMEOUT,
                self.node.leftovers(driver).await.unwrap().is_empty(),
                "{driver}: {:?}",
                self.node.leftovers(driver).await
            );
        }
        assert_eventually!(within STALL_TIMEOUT, self.node.claims().await.unwrap().is_empty());
        // A kubelet or a driver that was just started publishes and registers again.
        for driver in [DISTURBED, STEADY] {
            self.node.wait_registered(driver).await.unwrap();
            self.node.wait_published(driver).await.unwrap();
        }
        let mut slices = 0;
        let mut devices = 0;
        for driver in [DISTURBED, STEADY] {
            let all = self.node.slices(driver).await.unwrap();
            slices += all.len();
            devices += all.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).count();
        }
        self.node.api().clear_requests();
        Measurement {
            driver: Process::of(steady.id().unwrap()),
            peer: Process::of(std::process::id()),
            files: count_files(self.node.directory()),
            sockets: self.node.sockets().unwrap().len(),
            slices,
            devices,
        }
    }
}

/// The kinds of pods.
#[derive(Clone, Copy)]
enum Kind {
    Gpu,
    Net,
}

impl Kind {
    fn claim(self) -> &'static str {
        match self {
            Self::Gpu => "gpus",
            Self::Net => "nets",
        }
    }

    fn pod(self, name: &str) -> Pod {
        let (script, file, template) = match self {
            Self::Gpu => (READ_LOOP, GPU_FILE, "one-gpu"),
            Self::Net => (WAIT_FOR_ADDRESSES, NET_FILE, "one-net"),
        };
        let main = Container::new("main", ["sh", "-c", script]).claim(self.claim()).env("FILE", file);
        Pod::new(name).template(self.claim(), template).container(main)
    }
}

/// What is there while no pod is.
#[derive(Debug, Clone, Copy)]
struct Measurement {
    /// The driver that runs all the time.
    driver: Process,
    /// This process: API server, scheduler, kubelet and container runtime. Printed, and not compared: a peer of tests.
    peer: Process,
    files: usize,
    sockets: usize,
    slices: usize,
    devices: usize,
}

impl Measurement {
    fn growth_since(&self, first: &Self) -> Vec<String> {
        let mut grown = self.driver.growth_since(first.driver, "the driver that runs all the time");
        grown.extend(growth_of_counts([
            ("files", first.files, self.files),
            ("sockets", first.sockets, self.sockets),
            ("slices", first.slices, self.slices),
            ("devices", first.devices, self.devices),
        ]));
        grown
    }
}

/// Counts the files below a directory.
fn count_files(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| if entry.file_type().unwrap().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

/// `DRAKKAR_SOAK_MINUTES` sets how long it runs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for minutes: cargo xtask soak"]
async fn nothing_grows_while_pods_come_and_go_and_everything_is_disturbed() {
    let minutes: f64 = std::env::var("DRAKKAR_SOAK_MINUTES").map_or(1.0, |minutes| minutes.parse().unwrap());
    let time = Duration::from_secs_f64(minutes * 60.0);
    let node = Node::start().await.unwrap();
    for (driver, request, template) in [(DISTURBED, "gpu", "one-gpu"), (STEADY, "eth", "one-net")] {
        node.create(drakkar_node::device_class(driver)).await.unwrap();
        node.create(ClaimSpec::default().request(request, driver, 1).template(template)).await.unwrap();
    }
    let soak = Arc::new(Soak {
        node,
        counts: Counts::default(),
        is_over: AtomicBool::new(false),
        activity: RwLock::default(),
    });
    let steady = soak.start_driver(STEADY, &["net"]);
    let disturbing = tokio::spawn(soak.clone().disturb());
    let gpus = (0..GPU_USERS).map(|user| tokio::spawn(soak.clone().use_pods(Kind::Gpu, user)));
    let nets = (0..NET_USERS).map(|user| tokio::spawn(soak.clone().use_pods(Kind::Net, user)));
    let users: Vec<_> = gpus.chain(nets).collect();

    println!(
        "| minute | pods | memory | descriptors | threads | files | sockets | slices | devices | of the test's node |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let started = Instant::now();
    let measuring = async {
        let mut measurements = Vec::new();
        for number in 1..=MEASUREMENTS {
            let due = time.mul_f64(number as f64 / MEASUREMENTS as f64);
            tokio::time::sleep(due.saturating_sub(started.elapsed())).await;
            let now = soak.measure(&steady).await;
            println!(
                "| {:.1} | {} | {:.1} MB | {} | {} | {} | {} | {} | {} | {:.1} MB |",
                started.elapsed().as_secs_f64() / 60.0,
                soak.counts.pods.load(Ordering::SeqCst),
                now.driver.megabytes(),
                now.driver.descriptors,
                now.driver.threads,
                now.files,
                now.sockets,
                now.slices,
                now.devices,
                now.peer.megabytes()
            );
            measurements.push(now);
        }
        measurements
    };
    let measurements = tokio::select! {
        measurements = measuring => measurements,
        () = soak.stalled() => panic!("no pod has finished for {STALL_TIMEOUT:?}: {}", soak.counts),
    };
    soak.is_over.store(true, Ordering::SeqCst);
    for user in users {
        user.await.unwrap();
    }
    let disturbed = disturbing.await.unwrap();
    println!("\n{}", soak.counts);

    let grown = measurements.last().unwrap().growth_since(&measurements[0]);
    assert!(grown.is_empty(), "{}", grown.join("\n"));
    soak.measure(&steady).await;
    disturbed.terminate().await.unwrap();
    steady.terminate().await.unwrap();
    assert_eq!(soak.node.sockets().unwrap(), Vec::<String>::new());
}
