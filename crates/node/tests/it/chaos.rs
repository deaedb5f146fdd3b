//! Many pods, and parts that die at any moment.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use drakkar_node::{ClaimSpec, Container, DriverProcess, Node, Pod, assert_eventually};

use crate::support::DRIVER;

const PODS: usize = 1000;
/// How many pods there are at once.
const AT_ONCE: usize = 50;
/// Fewer than pods, so that devices go from one to the next at once.
const DEVICES: usize = 40;

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

/// 1,000 pods through one driver, with random kills of driver and kubelet: at the end no file, no CDI spec, no socket and no
/// claim is left, and every running container had its metadata at every moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_pods_and_random_kills() {
    let node = Arc::new(Node::start().await.unwrap());
    node.create(drakkar_node::device_class(DRIVER)).await.unwrap();
    node.create(ClaimSpec::default().request("gpu", DRIVER, 1).template("one-gpu")).await.unwrap();

    let is_over = Arc::new(AtomicBool::new(false));
    let killer = tokio::spawn(kill_at_random(node.clone(), is_over.clone()));
    let next = Arc::new(AtomicUsize::new(0));
    let users: Vec<_> = (0..AT_ONCE).map(|_| tokio::spawn(use_pods(node.clone(), next.clone()))).collect();
    for user in users {
        user.await.unwrap();
    }
    is_over.store(true, Ordering::SeqCst);
    let (driver, kills) = killer.await.unwrap();
    assert!(kills > 10, "only {kills} kills");
    // The last driver may have been started just now: whoever prepares a claim is up, and will hear that it is to end.
    use_pods(node.clone(), Arc::new(AtomicUsize::new(PODS - 1))).await;

    assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty(), "{:?}", node.leftovers(DRIVER).await);
    driver.terminate().await.unwrap();
    assert_eq!(node.sockets().unwrap(), Vec::<String>::new());
    assert_eq!(node.claims().await.unwrap(), Vec::new());
}

/// Pods, one after the other, until there were enough.
async fn use_pods(node: Arc<Node>, next: Arc<AtomicUsize>) {
    loop {
        let number = next.fetch_add(1, Ordering::SeqCst);
        if number >= PODS {
            return;
        }
        let main = Container::new("main", ["sh", "-c", LOOK]).request("gpus", "gpu").env("FILE", FILE);
        let pod = Pod::new(&format!("pod-{number}")).template("gpus", "one-gpu").container(main);
        let pod = node.create_pod(pod).await.unwrap();
        let phase = pod.finished().await.unwrap();
        assert_eq!(phase, "Succeeded", "{}: {:?}", pod.name(), pod.logs("main"));
        pod.delete().await.unwrap();
    }
}

/// Kills the driver or the kubelet at random moments. Both come back at once, as they do on a node.
async fn kill_at_random(node: Arc<Node>, is_over: Arc<AtomicBool>) -> (DriverProcess, usize) {
    let mut random = Random(0x5eed);
    let mut driver = start_driver(&node);
    let mut kills = 0;
    while !is_over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(100 + random.below(900))).await;
        match random.below(2) {
            0 => {
                driver.kill().await.unwrap();
                driver = start_driver(&node);
            }
            _ => {
                node.kill_kubelet().await;
                node.start_kubelet().await.unwrap();
            }
        }
        kills += 1;
    }
    (driver, kills)
}

fn start_driver(node: &Node) -> DriverProcess {
    let mut command = Command::new(sample_driver());
    command.args(["gpu", "--enable-device-metadata", "--count", &DEVICES.to_string()]);
    node.spawn(DRIVER, command).unwrap()
}

/// The example of this crate, which cargo builds with the tests.
fn sample_driver() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let driver = profile.join("examples/sample_driver");
    assert!(
        driver.exists(),
        "{} is not there: cargo test builds it, unless it is told to build less",
        driver.display()
    );
    driver
}

/// Numbers that look random and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
