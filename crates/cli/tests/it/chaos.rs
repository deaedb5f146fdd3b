//! Many pods, with random kills of the driver and the kubelet.
//!
//! The test is driven by progress, not by the clock: the next kill comes only after the driver has prepared claims since the
//! last one, and slowness is no failure, only a standstill is.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use drakkar_node::{ClaimSpec, Container, DriverProcess, Node, Pod, assert_eventually};
use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::Api;

/// The name of the sample driver of GPUs.
const DRIVER: &str = "gpu.example.com";

/// The number of pods at a time.
const AT_ONCE: usize = 50;
/// The number of devices: fewer than pods, so that devices are reused at once.
const DEVICES: usize = 40;
/// The least number of kills. More pods are created if there were fewer.
const KILLS: usize = 12;
/// The time without progress after which the test fails: far more than any part takes on the slowest machine.
const STALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Longer than anything takes: [`Progress::stalled`] watches what is waited for.
const NO_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The metadata file of every pod, by the pod's own name for its claim.
pub(crate) const FILE: &str =
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpus/gpu/gpu.example.com-metadata.json";

/// Reads its metadata file again and again, and checks that it is complete.
pub(crate) const READ_LOOP: &str = r#"
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        text=
        while IFS= read -r line; do text="$text$line"; done < "$FILE" || { echo "no file in read $i"; exit 3; }
        case "$text" in
            "{"*'"kind": "DeviceMetadata"'*'/pciBusID"'*"}") ;;
            *) echo "read $i found: $text"; exit 4 ;;
        esac
        sleep 0.01
    done
"#;

/// The progress of the test.
#[derive(Debug, Default)]
struct Progress {
    created: AtomicUsize,
    finished: AtomicUsize,
    deleted: AtomicUsize,
    prepared: AtomicUsize,
    kills: AtomicUsize,
    is_over: AtomicBool,
}

impl Progress {
    fn finished(&self) -> usize {
        self.finished.load(Ordering::SeqCst)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Returns the number of the next pod, unless there were enough pods and kills.
    fn next_pod(&self, pods: usize) -> Option<usize> {
        let number = self.created.load(Ordering::SeqCst);
        let more = number < pods || self.kills.load(Ordering::SeqCst) < KILLS;
        more.then(|| self.created.fetch_add(1, Ordering::SeqCst))
    }

    /// Returns the progress when it has not changed for a long time.
    async fn stalled(&self) -> String {
        let mut last = String::new();
        let mut since = Instant::now();
        loop {
            let now = format!("{self:?}");
            if now != last {
                last = now;
                since = Instant::now();
            } else if since.elapsed() > STALL_TIMEOUT {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Many pods use one driver while driver and kubelet are killed at random. At the end no file, CDI spec, socket or claim
/// remains, and every running container had its metadata all the time. `DRAKKAR_CHAOS_PODS` sets the number of pods.
#[tokio::test(flavor = "multi_thread")]
async fn many_pods_and_random_kills() {
    let pods = std::env::var("DRAKKAR_CHAOS_PODS").map_or(150, |pods| pods.parse().unwrap());
    let started = Instant::now();
    let node = Arc::new(Node::start().await.unwrap());
    node.create(drakkar_node::device_class(DRIVER)).await.unwrap();
    node.create(ClaimSpec::default().request("gpu", DRIVER, 1).template("one-gpu")).await.unwrap();

    let progress = Arc::new(Progress::default());
    let killer = tokio::spawn(kill_at_random(node.clone(), progress.clone()));
    let users: Vec<_> = (0..AT_ONCE).map(|_| tokio::spawn(use_pods(node.clone(), progress.clone(), pods))).collect();
    tokio::select! {
        () = async {
            for user in users {
                user.await.unwrap();
            }
        } => {}
        last = progress.stalled() => panic!("no progress for {STALL_TIMEOUT:?}: {last}"),
    }
    progress.is_over.store(true, Ordering::SeqCst);
    let driver = killer.await.unwrap();
    let pods = progress.finished();
    let kills = progress.kills.load(Ordering::SeqCst);
    assert!(kills >= KILLS, "only {kills} kills");
    // The last driver may have just been started: once it has prepared a claim, it also handles SIGTERM.
    use_pod(&node, "last", &progress).await;

    assert_eventually!(
        within STALL_TIMEOUT,
        node.leftovers(DRIVER).await.unwrap().is_empty(),
        "{:?}",
        node.leftovers(DRIVER).await
    );
    driver.terminate().await.unwrap();
    assert_eq!(node.sockets().unwrap(), Vec::<String>::new());
    assert_eq!(node.claims().await.unwrap(), Vec::new());
    eprintln!("chaos: {pods} pods, {kills} kills in {:.1} s", started.elapsed().as_secs_f64());
}

/// Creates and deletes pods, one after the other, until there were enough.
async fn use_pods(node: Arc<Node>, progress: Arc<Progress>, pods: usize) {
    while let Some(number) = progress.next_pod(pods) {
        use_pod(&node, &format!("pod-{number}"), &progress).await;
    }
}

async fn use_pod(node: &Node, name: &str, progress: &Progress) {
    let main = Container::new("main", ["sh", "-c", READ_LOOP]).request("gpus", "gpu").env("FILE", FILE);
    let pod = Pod::new(name).template("gpus", "one-gpu").container(main);
    let pod = node.create_pod(pod).await.unwrap().with_timeout(NO_TIMEOUT);
    let phase = pod.finished().await.unwrap();
    if phase != "Succeeded" {
        let pods: Api<PodObject> = Api::namespaced(node.client(), "default");
        let status = pods.get(pod.name()).await.map(|pod| pod.status);
        panic!("{}: {phase}, {:?}, {:?}, {status:?}", pod.name(), pod.logs("main"), pod.events().await);
    }
    progress.finished.fetch_add(1, Ordering::SeqCst);
    pod.delete().await.unwrap();
    progress.deleted.fetch_add(1, Ordering::SeqCst);
}

/// Kills the driver or the kubelet at random moments. Both are restarted at once, as on a real node, and must have prepared a
/// claim before the next kill.
async fn kill_at_random(node: Arc<Node>, progress: Arc<Progress>) -> DriverProcess {
    let mut random = Random::new(0x5eed);
    let mut driver = start_driver(&node);
    loop {
        let finished = progress.finished() + random.below(4);
        wait_for_prepare(&node, &progress).await;
        while progress.finished() < finished && !progress.is_over() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Right after a pod has finished, others are often at the same point; a random delay varies that.
        tokio::time::sleep(Duration::from_millis(random.below(50) as u64)).await;
        if progress.is_over() {
            return driver;
        }
        if random.below(2) == 0 {
            driver.kill().await.unwrap();
            driver = start_driver(&node);
        } else {
            node.kill_kubelet().await;
            node.start_kubelet().await.unwrap();
        }
        progress.kills.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until a claim is prepared that was not prepared when this was called.
async fn wait_for_prepare(node: &Node, progress: &Progress) {
    let before = prepared(node).await;
    while !progress.is_over() {
        if prepared(node).await.difference(&before).next().is_some() {
            progress.prepared.fetch_add(1, Ordering::SeqCst);
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns the UIDs of the claims that the kubelet has prepared.
async fn prepared(node: &Node) -> BTreeSet<String> {
    let claims = node.kubelet_claims().await.into_iter();
    claims.filter(|claim| claim.prepared).map(|claim| claim.claim.uid).collect()
}

fn start_driver(node: &Node) -> DriverProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drakkar"));
    command.args(["sample-driver", "gpu", "--enable-device-metadata", "--count", &DEVICES.to_string()]);
    node.spawn(DRIVER, command).unwrap()
}

/// A pseudo-random sequence that is the same in each run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The remainder fits a usize.
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
