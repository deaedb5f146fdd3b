//! Many pods, and parts that die at any moment.
//!
//! What happens when follows what has been done, not the clock: there is a kill only when the driver has prepared claims
//! since the last one, and nothing fails for being slow, only if nothing at all moves any more.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use drakkar_node::{ClaimSpec, Container, DriverProcess, Node, Pod, assert_eventually};

/// The name of the sample driver of GPUs.
const DRIVER: &str = "gpu.example.com";

/// How many pods there are at once.
const AT_ONCE: usize = 50;
/// Fewer than pods, so that devices go from one to the next at once.
const DEVICES: usize = 40;
/// How many kills there are at least. Should the pods be through before, there are more.
const KILLS: usize = 12;
/// How long nothing may move. It is far more than any step takes on the slowest machine.
const STANDSTILL: Duration = Duration::from_secs(180);
/// Longer than anything takes: what is waited for is watched by [`Progress::stalled`].
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

/// The file of every pod, by the name that the pod has for its claim.
const FILE: &str =
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpus/gpu/gpu.example.com-metadata.json";

/// Looks at its metadata all the time: is it there, and is it all there?
const LOOK: &str = r#"
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        text=
        while IFS= read -r line; do text="$text$line"; done < "$FILE" || { echo "no file at look $i"; exit 3; }
        case "$text" in
            "{"*'"kind": "DeviceMetadata"'*'/pciBusID"'*"}") ;;
            *) echo "look $i found: $text"; exit 4 ;;
        esac
        sleep 0.01
    done
"#;

/// How far it has come.
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

    /// Whether there is to be one more pod: there were too few, or too few kills.
    fn wants_pod(&self, pods: usize) -> Option<usize> {
        let number = self.created.load(Ordering::SeqCst);
        let is_wanted = number < pods || self.kills.load(Ordering::SeqCst) < KILLS;
        is_wanted.then(|| self.created.fetch_add(1, Ordering::SeqCst))
    }

    /// Returns when nothing has moved for a long time, and says how far it has come.
    async fn stalled(&self) -> String {
        let (mut last, mut since) = (String::new(), Instant::now());
        loop {
            let now = format!("{self:?}");
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > STANDSTILL {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Pods through one driver, with random kills of driver and kubelet: at the end no file, no CDI spec, no socket and no
/// claim is left, and every running container had its metadata at every moment. `DRAKKAR_CHAOS_PODS` says how many pods.
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
        last = progress.stalled() => panic!("nothing has moved for {STANDSTILL:?}: {last}"),
    }
    progress.is_over.store(true, Ordering::SeqCst);
    let driver = killer.await.unwrap();
    let (pods, kills) = (progress.finished(), progress.kills.load(Ordering::SeqCst));
    assert!(kills >= KILLS, "only {kills} kills");
    // The last driver may have been started just now: whoever prepares a claim is up, and will hear that it is to end.
    use_pod(&node, "last", &progress).await;

    assert_eventually!(
        within STANDSTILL,
        node.leftovers(DRIVER).await.unwrap().is_empty(),
        "{:?}",
        node.leftovers(DRIVER).await
    );
    driver.terminate().await.unwrap();
    assert_eq!(node.sockets().unwrap(), Vec::<String>::new());
    assert_eq!(node.claims().await.unwrap(), Vec::new());
    eprintln!("chaos: {pods} pods, {kills} kills in {:.1} s", started.elapsed().as_secs_f64());
}

/// Pods, one after the other, until there were enough.
async fn use_pods(node: Arc<Node>, progress: Arc<Progress>, pods: usize) {
    while let Some(number) = progress.wants_pod(pods) {
        use_pod(&node, &format!("pod-{number}"), &progress).await;
    }
}

async fn use_pod(node: &Node, name: &str, progress: &Progress) {
    let main = Container::new("main", ["sh", "-c", LOOK]).request("gpus", "gpu").env("FILE", FILE);
    let pod = Pod::new(name).template("gpus", "one-gpu").container(main);
    let pod = node.create_pod(pod).await.unwrap().with_timeout(FOR_EVER);
    let phase = pod.finished().await.unwrap();
    assert_eq!(phase, "Succeeded", "{}: {:?}", pod.name(), pod.logs("main"));
    progress.finished.fetch_add(1, Ordering::SeqCst);
    pod.delete().await.unwrap();
    progress.deleted.fetch_add(1, Ordering::SeqCst);
}

/// Kills the driver or the kubelet at random moments. Both come back at once, as they do on a node, and have prepared a
/// claim before the next kill.
async fn kill_at_random(node: Arc<Node>, progress: Arc<Progress>) -> DriverProcess {
    let mut random = Random(0x5eed);
    let mut driver = start_driver(&node);
    loop {
        let finished = progress.finished() + random.below(4);
        prepares_a_claim(&node, &progress).await;
        while progress.finished() < finished && !progress.is_over() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // All pods are at the same point of their lives where one has just finished: not always.
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

/// Waits until a claim is prepared that was not when this was called.
async fn prepares_a_claim(node: &Node, progress: &Progress) {
    let before = prepared(node).await;
    while !progress.is_over() {
        if prepared(node).await.difference(&before).next().is_some() {
            progress.prepared.fetch_add(1, Ordering::SeqCst);
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The claims that the kubelet knows as prepared.
async fn prepared(node: &Node) -> BTreeSet<String> {
    let claims = node.kubelet_claims().await.into_iter();
    claims.filter(|claim| claim.prepared).map(|claim| claim.claim.uid).collect()
}

fn start_driver(node: &Node) -> DriverProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drakkar"));
    command.args(["sample-driver", "gpu", "--enable-device-metadata", "--count", &DEVICES.to_string()]);
    node.spawn(DRIVER, command).unwrap()
}

/// Numbers that look random and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The remainder is smaller than a usize.
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
