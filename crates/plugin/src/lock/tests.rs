//! Tests of the locks. Two `Locks` on one file have two open file descriptions, as two processes have; one test runs a real
//! second process.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Stdio};
use std::task::{Context, Wake};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tempfile::TempDir;

use super::*;

/// Far longer than any test takes, so that a lock that is never granted fails the test instead of hanging it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Set for a copy of the test binary that acts as the other process.
const OTHER_PROCESS: &str = "DRAKKAR_TEST_LOCK_FILE";

fn namespace() -> Namespace {
    "default".parse().unwrap()
}

fn name(name: &str) -> ClaimName {
    name.parse().unwrap()
}

/// Opens the lock file as an instance built with the Go framework does.
fn go_instance(path: &Path) -> LockFile {
    LockFile::open(path).unwrap()
}

/// Waits for a lock that is free or becomes free.
async fn granted<G>(lock: impl Future<Output = Result<G, LockError>>) -> G {
    tokio::time::timeout(LOCK_TIMEOUT, lock).await.expect("the lock was not granted").unwrap()
}

/// A lock that is not granted yet.
type Pending<'a, G> = BoxFuture<'a, Result<G, LockError>>;

/// Checks that no lock is granted now; returns the pending ones of the claim and of a driver call.
fn all_pending<'a>(
    locks: &'a Locks,
    namespace: &'a Namespace,
    name: &'a ClaimName,
) -> (Pending<'a, ClaimGuard>, Pending<'a, DriverCallGuard>) {
    let mut claim = locks.claim(namespace, name).boxed();
    let mut driver_call = locks.driver_call().boxed();
    assert!((&mut claim).now_or_never().is_none());
    assert!((&mut driver_call).now_or_never().is_none());
    assert!(locks.everything().now_or_never().is_none());
    (claim, driver_call)
}

struct Node {
    directory: TempDir,
}

impl Node {
    fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(FILE)
    }

    fn instance(&self) -> Locks {
        Locks::shared(&self.path()).unwrap()
    }
}

/// Returns pairs of locks that must exclude each other: within a process, and in two processes.
fn pairs(node: &Node) -> [(&'static str, Locks, Locks); 3] {
    let alone = Locks::in_process();
    let shared = node.instance();
    [
        ("in one process", alone.clone(), alone),
        ("in one process with a shared file", shared.clone(), shared),
        ("in two processes", node.instance(), node.instance()),
    ]
}

#[tokio::test]
async fn a_claim_lock_is_exclusive() {
    let node = Node::new();
    for (title, one, other) in pairs(&node) {
        let held = granted(one.claim(&namespace(), &name("train"))).await;
        let namespace = namespace();
        let train = name("train");
        let mut waiting = Box::pin(other.claim(&namespace, &train));
        assert!((&mut waiting).now_or_never().is_none(), "{title}");
        drop(held);
        let held = granted(waiting).await;
        assert!(one.claim(&namespace, &train).now_or_never().is_none(), "{title}");
        drop(held);
    }
}

#[tokio::test]
async fn different_claims_do_not_wait_for_each_other() {
    let node = Node::new();
    for (_, one, other) in pairs(&node) {
        let _train = granted(one.claim(&namespace(), &name("train"))).await;
        let _serve = granted(other.claim(&namespace(), &name("serve"))).await;
        let _elsewhere = granted(other.claim(&"elsewhere".parse().unwrap(), &name("train"))).await;
        let _driver_call = granted(other.driver_call()).await;
    }
}

#[tokio::test]
async fn the_driver_call_lock_is_exclusive() {
    let node = Node::new();
    for (title, one, other) in pairs(&node) {
        let held = granted(one.driver_call()).await;
        let mut waiting = Box::pin(other.driver_call());
        assert!((&mut waiting).now_or_never().is_none(), "{title}");
        drop(held);
        let held = granted(waiting).await;
        assert!(one.driver_call().now_or_never().is_none(), "{title}");
        drop(held);
    }
}

/// A process holds many bytes of the file at once; unlocking one must not unlock another.
#[tokio::test]
async fn dropping_a_guard_unlocks_one_claim_and_no_other() {
    let node = Node::new();
    let one = node.instance();
    let other = node.instance();
    let names: Vec<ClaimName> = (0..64).map(|number| name(&format!("claim-{number}"))).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(granted(one.claim(&namespace(), name)).await);
    }
    let driver_call = granted(one.driver_call()).await;
    for (name, guard) in names.iter().zip(guards) {
        assert!(other.claim(&namespace(), name).now_or_never().is_none(), "{name}");
        drop(guard);
        drop(granted(other.claim(&namespace(), name)).await);
        assert!(other.driver_call().now_or_never().is_none());
    }
    drop(driver_call);
    assert!(go_instance(&node.path()).set(libc::F_WRLCK, WHOLE_FILE).is_ok(), "something is still locked");
}

/// G12: a wait can be cancelled.
#[tokio::test]
async fn a_cancelled_wait_leaves_nothing_locked() {
    let node = Node::new();
    for (title, one, other) in pairs(&node) {
        let namespace = namespace();
        let train = name("train");
        let claim = granted(one.claim(&namespace, &train)).await;
        let driver_call = granted(one.driver_call()).await;
        assert!(tokio::time::timeout(Duration::from_millis(5), other.claim(&namespace, &train)).await.is_err());
        assert!(tokio::time::timeout(Duration::from_millis(5), other.driver_call()).await.is_err());
        drop((claim, driver_call));
        drop(granted(one.claim(&namespace, &train)).await);
        drop(granted(one.driver_call()).await);
        for locks in [one, other] {
            assert!(locks.claims.slots().is_empty(), "{title}: {:?}", locks.claims);
        }
        assert!(go_instance(&node.path()).set(libc::F_WRLCK, WHOLE_FILE).is_ok(), "{title}");
    }
}

/// Many tasks for a few claims: never two for one claim or two in the driver, and no memory is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_tasks_exclude_each_other_and_leave_an_empty_table() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let node = Node::new();
    for (title, one, other) in pairs(&node) {
        let at_claim: Arc<Vec<AtomicUsize>> = Arc::new((0..5).map(|_| AtomicUsize::new(0)).collect());
        let in_driver = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..400)
            .map(|number| {
                let locks = if number % 2 == 0 { one.clone() } else { other.clone() };
                let at_claim = Arc::clone(&at_claim);
                let in_driver = Arc::clone(&in_driver);
                tokio::spawn(async move {
                    let claim = number % at_claim.len();
                    let _claim = granted(locks.claim(&namespace(), &name(&format!("claim-{claim}")))).await;
                    assert_eq!(at_claim[claim].fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    let driver_call = granted(locks.driver_call()).await;
                    assert_eq!(in_driver.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    in_driver.fetch_sub(1, Ordering::SeqCst);
                    drop(driver_call);
                    at_claim[claim].fetch_sub(1, Ordering::SeqCst);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap_or_else(|error| panic!("{title}: {error}"));
        }
        for locks in [one, other] {
            assert!(locks.claims.slots().is_empty(), "{title}: {:?}", locks.claims);
        }
    }
}

#[tokio::test]
async fn a_claim_passed_on_within_a_process_stays_locked_for_the_other_process() {
    let node = Node::new();
    let one = node.instance();
    let other = node.instance();
    let namespace = namespace();
    let train = name("train");
    let first = granted(one.claim(&namespace, &train)).await;
    let mut second = Box::pin(one.claim(&namespace, &train));
    assert!((&mut second).now_or_never().is_none());
    drop(first);
    let _second = granted(second).await;
    assert!(other.claim(&namespace, &train).now_or_never().is_none());
}

/// A waker that records whether the file is unlocked at the moment when the next task of the process is woken.
struct Probe {
    file: LockFile,
    was_free: Mutex<Option<bool>>,
}

impl Wake for Probe {
    fn wake(self: Arc<Self>) {
        let is_free = self.file.set(libc::F_WRLCK, WHOLE_FILE).is_ok();
        self.file.set(libc::F_UNLCK, WHOLE_FILE).unwrap();
        *self.was_free.lock().unwrap() = Some(is_free);
    }
}

/// In the other order, the late unlock would release the byte that the next task has locked: to the kernel both are the same.
#[tokio::test]
async fn the_byte_is_unlocked_before_the_next_task_of_the_process_is_woken() {
    let node = Node::new();
    let locks = node.instance();
    let namespace = namespace();
    let train = name("train");
    let probe = || Arc::new(Probe { file: go_instance(&node.path()), was_free: Mutex::default() });

    let claim_probe = probe();
    let held = granted(locks.claim(&namespace, &train)).await;
    let mut next = Box::pin(locks.claim(&namespace, &train));
    assert!(next.as_mut().poll(&mut Context::from_waker(&Arc::clone(&claim_probe).into())).is_pending());
    drop(held);
    assert_eq!(*claim_probe.was_free.lock().unwrap(), Some(true));
    drop(next);

    let driver_call_probe = probe();
    let held = granted(locks.driver_call()).await;
    let mut next = Box::pin(locks.driver_call());
    assert!(next.as_mut().poll(&mut Context::from_waker(&Arc::clone(&driver_call_probe).into())).is_pending());
    drop(held);
    assert_eq!(*driver_call_probe.was_free.lock().unwrap(), Some(true));
}

/// A Go instance locks the whole file around each of its calls.
#[tokio::test]
async fn an_instance_of_the_go_framework_excludes_all_of_ours_and_ours_exclude_it() {
    let node = Node::new();
    let ours = node.instance();
    let go = go_instance(&node.path());
    go.set(libc::F_WRLCK, WHOLE_FILE).unwrap();
    let namespace = namespace();
    let train = name("train");
    let (claim, driver_call) = all_pending(&ours, &namespace, &train);
    go.set(libc::F_UNLCK, WHOLE_FILE).unwrap();

    let claim = granted(claim).await;
    assert_eq!(go.set(libc::F_WRLCK, WHOLE_FILE), Err(Errno::EAGAIN));
    drop(claim);
    let driver_call = granted(driver_call).await;
    assert_eq!(go.set(libc::F_WRLCK, WHOLE_FILE), Err(Errno::EAGAIN));
    drop(driver_call);
    let everything = granted(ours.everything()).await;
    assert_eq!(go.set(libc::F_WRLCK, WHOLE_FILE), Err(Errno::EAGAIN));
    drop(everything);
    assert_eq!(go.set(libc::F_WRLCK, WHOLE_FILE), Ok(()));
}

#[tokio::test]
async fn a_start_waits_for_all_work_of_the_other_instance_and_delays_its_new_work() {
    let node = Node::new();
    let running = node.instance();
    let starting = node.instance();
    let claim = granted(running.claim(&namespace(), &name("train"))).await;
    let mut everything = Box::pin(starting.everything());
    assert!((&mut everything).now_or_never().is_none());
    drop(claim);
    let everything = granted(everything).await;
    assert!(running.claim(&namespace(), &name("train")).now_or_never().is_none());
    assert!(running.driver_call().now_or_never().is_none());
    // A start that overlaps with work of its own process is a bug, but a safe one: the work waits.
    assert!(starting.driver_call().now_or_never().is_none());
    drop(everything);
    drop(granted(running.driver_call()).await);
}

#[tokio::test]
async fn the_only_instance_does_not_wait_at_its_start() {
    let locks = Locks::in_process();
    let _everything = granted(locks.everything()).await;
    let _again = granted(locks.everything()).await;
    drop(granted(locks.claim(&namespace(), &name("train"))).await);
}

/// Work continues when the kubelet cancels the call that started it; the claim stays locked until the work is done.
#[tokio::test]
async fn a_guard_lasts_as_long_as_the_thread_that_it_was_moved_to() {
    let node = Node::new();
    let one = node.instance();
    let other = node.instance();
    let guards = (granted(one.claim(&namespace(), &name("train"))).await, granted(one.driver_call()).await);
    let (done, work) = std::sync::mpsc::channel::<()>();
    let thread = tokio::task::spawn_blocking(move || {
        let _guards = guards;
        work.recv().unwrap_err();
    });
    assert!(other.claim(&namespace(), &name("train")).now_or_never().is_none());
    drop(done);
    thread.await.unwrap();
    drop(granted(other.claim(&namespace(), &name("train"))).await);
}

/// Both instances of a rolling update must lock the same byte, even if their versions differ.
#[test]
fn the_slot_of_a_claim_never_changes() {
    assert_eq!(slot(&namespace(), &name("train")), SLOT_OF_TRAIN);
    for number in 0..1000 {
        let slot = slot(&namespace(), &name(&format!("claim-{number}")));
        assert!(slot >= 2 && slot % 2 == 0 && slot <= 1 << 31, "{slot}");
    }
}

/// `printf default/train | sha256sum` begins with this.
const SLOT_OF_TRAIN: i64 = 2 * ((0x466e_40ae >> 2) + 1);

/// With a real second process, which is killed while it holds locks.
#[tokio::test]
async fn another_process_excludes_this_one_until_it_dies() {
    if let Some(path) = std::env::var_os(OTHER_PROCESS) {
        return run_other_process(Path::new(&path)).await;
    }
    let node = Node::new();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "lock::tests::another_process_excludes_this_one_until_it_dies"])
        .env(OTHER_PROCESS, node.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "locked"), "the other process ended");

    let ours = node.instance();
    drop(granted(ours.claim(&namespace(), &name("serve"))).await);
    let namespace = namespace();
    let train = name("train");
    let (claim, driver_call) = all_pending(&ours, &namespace, &train);
    other.kill().unwrap();
    other.wait().unwrap();
    drop((granted(claim).await, granted(driver_call).await));
    drop(granted(ours.everything()).await);
}

/// Holds locks until it is killed or its parent dies.
async fn run_other_process(path: &Path) {
    let locks = Locks::shared(path).unwrap();
    let _guards = (granted(locks.claim(&namespace(), &name("train"))).await, granted(locks.driver_call()).await);
    println!("\nlocked");
    io::stdin().lock().lines().count();
}

#[test]
fn the_file_is_created_once_and_never_truncated() {
    let node = Node::new();
    drop(node.instance());
    let kind = fs::symlink_metadata(node.path()).unwrap();
    assert!(kind.is_file());
    assert_eq!(kind.permissions().mode() & 0o111, 0);
    fs::write(node.path(), "foreign content").unwrap();
    drop(node.instance());
    assert_eq!(fs::read_to_string(node.path()).unwrap(), "foreign content");
}

#[test]
fn an_entry_planted_at_the_files_path_is_neither_followed_nor_waited_for() {
    type Plant = fn(&Path);
    let plants: [(&str, Plant); 5] = [
        ("symbolic link", |path| {
            fs::write(path.with_file_name("target"), "").unwrap();
            symlink(path.with_file_name("target"), path).unwrap();
        }),
        ("symbolic link", |path| symlink(path.with_file_name("nowhere"), path).unwrap()),
        ("directory", |path| fs::create_dir(path).unwrap()),
        ("pipe or device", |path| {
            rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        }),
        ("socket or device", |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
    ];
    for (kind, plant) in plants {
        let node = Node::new();
        plant(&node.path());
        let error = Locks::shared(&node.path()).unwrap_err().to_string();
        let path = node.path();
        let expected = format!("lock file {}: is a {kind}, not a regular file: move it away", path.display());
        assert_eq!(error, expected);
        assert!(!path.with_file_name("nowhere").exists());
    }
}

#[test]
fn a_missing_directory_is_an_error_that_names_the_file() {
    let node = Node::new();
    let path = node.directory.path().join("nowhere").join(FILE);
    let error = Locks::shared(&path).unwrap_err().to_string();
    assert!(error.starts_with(&format!("open lock file {}: No such file", path.display())), "{error}");
}
