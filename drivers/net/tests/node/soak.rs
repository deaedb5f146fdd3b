//! Pods with interfaces come and go for a given time while the runtime, the kubelet and the API server are disturbed, and nothing may grow:
//! `cargo xtask soak`.
//!
//! The program runs from the first to the last minute. Pods compete for two moved interfaces and share another one. From time to time all
//! pods end, all interfaces are on the host again, and what remains is measured; the first measurement is taken after a tenth of the time.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use drakkar_net::DRIVER_NAME;
use drakkar_node::api::{Identity, Partition};
use drakkar_node::{ClaimSpec, Container, Pod, assert_eventually};
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::growth::{Process, growth_of_counts};
use crate::program::Bench;
use crate::support::PLUGIN;

const CONFIG: &str = "
apiVersion: net.drakkar.dev/v1alpha1
kind: DriverConfig
devices:
- {name: fast, match: {names: ['fast*']}}
- {name: shared, match: {names: [shared0]}, share: {kind: macvlan, max: 8}}
";
const INTERFACES: &str = "
ip link add fast0 mtu 1450 type veth peer name to-fast0
ip link add fast1 mtu 1450 type veth peer name to-fast1
ip link add shared0 type veth peer name to-shared0
ip address add 192.0.2.200/24 dev fast0
ip link set to-shared0 up
ip link set shared0 up
";
/// The rules of the interfaces, and the pods at a time of each.
const USERS: [(&str, usize); 2] = [("fast", 3), ("shared", 3)];
/// The measurements, the first of which is the one that the last is compared with.
const MEASUREMENTS: usize = 10;
/// The time without a finished pod after which the test fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Longer than anything takes: the progress of all pods together is watched.
const NO_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// A container starts with its interface and with its file, so it looks once.
const LOOK: &str = r#"
    case "$(cat /proc/net/dev)" in *data0:*) ;; *) echo "no interface"; exit 3 ;; esac
    text=$(cat "$FILE") || { echo "no file"; exit 4; }
    case "$text" in *'"interfaceName": "data0"'*) exit 0 ;; *) echo "no data: $text"; exit 5 ;; esac
"#;
const FILE: &str =
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/net/link/net.drakkar.dev-metadata.json";

/// Pods, and what happens to those who serve them.
#[derive(Default)]
struct Counts {
    pods: AtomicUsize,
    runtime_restarts: AtomicUsize,
    cuts: AtomicUsize,
    kubelet_kills: AtomicUsize,
    outages: AtomicUsize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        write!(
            f,
            "{} pods; the runtime restarted {} times, its connection cut {} times, the kubelet killed {} times, the API server out of reach \
             {} times",
            of(&self.pods),
            of(&self.runtime_restarts),
            of(&self.cuts),
            of(&self.kubelet_kills),
            of(&self.outages)
        )
    }
}

struct Soak {
    bench: Bench,
    /// The host's interfaces before any pod.
    interfaces: BTreeSet<String>,
    counts: Counts,
    is_over: AtomicBool,
    /// Held by each pod and each disturbance. A measurement waits until all are done.
    activity: RwLock<()>,
}

impl Soak {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn finished_pods(&self) -> usize {
        self.counts.pods.load(Ordering::SeqCst)
    }

    /// Runs pods with interfaces of a rule, one after the other, until the time is up.
    async fn use_pods(self: Arc<Self>, rule: &'static str, user: usize) {
        let mut number = 0;
        while !self.is_over() {
            let _active = self.activity.read().await;
            let main = Container::new("main", ["sh", "-c", LOOK]).claim("net").env("FILE", FILE);
            let pod = Pod::new(&format!("{rule}-{user}-{number}")).template("net", rule).container(main);
            let pod = self.bench.node.create_pod(pod).await.unwrap().with_timeout(NO_TIMEOUT);
            let phase = pod.finished().await.unwrap();
            assert_eq!(phase, "Succeeded", "{}: {:?}", pod.name(), pod.logs("main"));
            pod.delete().await.unwrap();
            self.counts.pods.fetch_add(1, Ordering::SeqCst);
            number += 1;
        }
    }

    /// Disturbs something, each time after some pods have finished since the last time, one kind after the other.
    async fn disturb(self: Arc<Self>) {
        let nri = self.bench.node.nri().unwrap();
        for turn in 0.. {
            let enough = self.finished_pods() + 5 + turn % 13;
            while self.finished_pods() < enough && !self.is_over() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if self.is_over() {
                return;
            }
            let _active = self.activity.read().await;
            let count = match turn % 4 {
                0 => {
                    nri.restart().await.unwrap();
                    &self.counts.runtime_restarts
                }
                1 => {
                    self.bench.node.kill_kubelet().await;
                    self.bench.node.start_kubelet().await.unwrap();
                    &self.counts.kubelet_kills
                }
                2 => {
                    nri.cut(PLUGIN);
                    &self.counts.cuts
                }
                _ => {
                    let kind = if turn % 8 == 3 { Partition::Cut } else { Partition::Silent };
                    self.partition(kind).await;
                    &self.counts.outages
                }
            };
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Keeps the API server out of reach of driver and kubelet for a second. The length of the outage is what is tested.
    async fn partition(&self, kind: Partition) {
        let faults = self.bench.node.api().faults();
        let node = Identity::Node(self.bench.node.name().to_owned());
        for client in [node, self.bench.node.driver_identity(DRIVER_NAME)] {
            faults.partition(Some(&client), kind);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        faults.heal();
    }

    /// Returns when no pod has finished for a long time.
    async fn stalled(&self) {
        let mut last = (0, Instant::now());
        while last.1.elapsed() < STALL_TIMEOUT {
            let pods = self.finished_pods();
            if pods != last.0 {
                last = (pods, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until all pods are gone, everything about their claims, and all interfaces are on the host; measures what is left.
    async fn measure(&self) -> Measurement {
        let _quiet = self.activity.write().await;
        let node = &self.bench.node;
        assert_eventually!(
            within STALL_TIMEOUT,
            self.bench.leftovers().await.is_empty() && node.nri().unwrap().sandboxes().is_empty(),
            "{:?}, {:?}",
            self.bench.leftovers().await,
            node.nri().unwrap().sandboxes()
        );
        assert_eventually!(within STALL_TIMEOUT, node.claims().await.unwrap().is_empty());
        let interfaces = || BTreeSet::from_iter(self.bench.names());
        assert_eventually!(within STALL_TIMEOUT, interfaces() == self.interfaces, "{:?}", interfaces());
        // After a disturbance it connects, registers and publishes again.
        node.nri().unwrap().wait_plugin(PLUGIN).await.unwrap();
        node.wait_registered(DRIVER_NAME).await.unwrap();
        node.wait_published(DRIVER_NAME).await.unwrap();
        let slices = node.slices(DRIVER_NAME).await.unwrap();
        node.api().clear_requests();
        node.nri().unwrap().clear_log();
        Measurement {
            driver: Process::of(self.bench.driver.id().unwrap()),
            slices: slices.len(),
            devices: slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).count(),
        }
    }
}

/// What is there while no pod is.
#[derive(Debug, Clone, Copy)]
struct Measurement {
    driver: Process,
    slices: usize,
    devices: usize,
}

impl Measurement {
    fn growth_since(&self, first: &Self) -> Vec<String> {
        let mut grown = self.driver.growth_since(first.driver, "drakkar-net");
        grown.extend(growth_of_counts([
            ("slices", first.slices, self.slices),
            ("devices", first.devices, self.devices),
        ]));
        grown
    }
}

/// A template of claims for an interface of a rule, which pods have as `data0`.
fn template(rule: &str) -> Value {
    let expression = format!("device.attributes['{DRIVER_NAME}'].rule == '{rule}'");
    let mut parameters =
        json!({"apiVersion": "net.drakkar.dev/v1alpha1", "kind": "ClaimConfig", "interfaceName": "data0"});
    if rule == "shared" {
        parameters["addressRanges"] = json!([{"subnet": "203.0.113.0/28"}]);
    }
    let claim = ClaimSpec::default().request_with("link", DRIVER_NAME, 1, &expression);
    claim.parameters(&["link"], DRIVER_NAME, &parameters).template(rule)
}

/// `DRAKKAR_SOAK_MINUTES` sets how long it runs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for minutes: cargo xtask soak"]
async fn nothing_grows_while_pods_get_interfaces_and_everything_is_disturbed() {
    let minutes: f64 = std::env::var("DRAKKAR_SOAK_MINUTES").map_or(1.0, |minutes| minutes.parse().unwrap());
    let time = Duration::from_secs_f64(minutes * 60.0);
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), CONFIG).unwrap();
    let Some(bench) = Bench::start(config.path(), INTERFACES).await else { return };
    bench.node.create(drakkar_node::device_class(DRIVER_NAME)).await.unwrap();
    for (rule, _) in USERS {
        bench.node.create(template(rule)).await.unwrap();
    }
    let interfaces = BTreeSet::from_iter(bench.names());
    let before = bench.ip(&["address", "show", "dev", "fast0"]);
    let soak = Arc::new(Soak {
        bench,
        interfaces,
        counts: Counts::default(),
        is_over: AtomicBool::new(false),
        activity: RwLock::default(),
    });
    let disturbing = tokio::spawn(soak.clone().disturb());
    let mut users = Vec::new();
    for (rule, count) in USERS {
        users.extend((0..count).map(|user| tokio::spawn(soak.clone().use_pods(rule, user))));
    }

    println!("| minute | pods | memory | descriptors | threads | slices | devices |");
    println!("|---|---|---|---|---|---|---|");
    let started = Instant::now();
    let measuring = async {
        let mut measurements = Vec::new();
        for number in 1..=MEASUREMENTS {
            let due = time.mul_f64(number as f64 / MEASUREMENTS as f64);
            tokio::time::sleep(due.saturating_sub(started.elapsed())).await;
            let now = soak.measure().await;
            println!(
                "| {:.1} | {} | {:.1} MB | {} | {} | {} | {} |",
                started.elapsed().as_secs_f64() / 60.0,
                soak.finished_pods(),
                now.driver.megabytes(),
                now.driver.descriptors,
                now.driver.threads,
                now.slices,
                now.devices
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
    disturbing.await.unwrap();
    println!("\n{}", soak.counts);
    let grown = measurements.last().unwrap().growth_since(&measurements[0]);
    assert!(grown.is_empty(), "{}", grown.join("\n"));
    soak.measure().await;
    let facts = |links: &[Value]| {
        let addresses = links[0]["addr_info"].as_array().unwrap().iter().map(|address| address["local"].clone());
        json!({"mtu": links[0]["mtu"], "mac": links[0]["address"], "addresses": Vec::from_iter(addresses)})
    };
    assert_eq!(facts(&soak.bench.ip(&["address", "show", "dev", "fast0"])), facts(&before), "as it was before");
    let Ok(soak) = Arc::try_unwrap(soak).map_err(|_still_shared| ()) else { panic!("all tasks have ended") };
    soak.bench.stop().await;
}
