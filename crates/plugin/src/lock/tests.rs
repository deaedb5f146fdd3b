//! Two `Locks` over one file have two open file descriptions, which is what two processes have; one test has a real
//! second process.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Stdio};
use std::task::{Context, Wake};

use futures::FutureExt as _;
use tempfile::TempDir;

use super::*;

/// Far longer than anything here takes, so that a lock that never comes is a failure and not a hang.
const SOON: Duration = Duration::from_secs(30);
/// Tells the test binary, started by itself, to be the other process.
const OTHER_PROCESS: &str = "DRAKKAR_TEST_LOCK_FILE";

fn namespace() -> Namespace {
    "default".parse().unwrap()
}

fn name(name: &str) -> ClaimName {
    name.parse().unwrap()
}

/// The lock of a Go instance: all of the file.
fn foreign(path: &Path) -> LockFile {
    LockFile::open(path).unwrap()
}

/// Waits for a lock that is or becomes free.
async fn soon<G>(lock: impl Future<Output = Result<G, LockError>>) -> G {
    tokio::time::timeout(SOON, lock).await.expect("the lock never came").unwrap()
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

/// Each form of the locks as two that must exclude each other: within a process, and two processes.
fn pairs(node: &Node) -> [(&'static str, Locks, Locks); 3] {
    let (alone, shared) = (Locks::in_process(), node.instance());
    [
        ("in one process", alone.clone(), alone),
        ("in one process that shares", shared.clone(), shared),
        ("in two processes", node.instance(), node.instance()),
    ]
}

#[tokio::test]
async fn a_claim_is_worked_on_by_one_at_a_time() {
    let node = Node::new();
    for (title, one, other) in pairs(&node) {
        let held = soon(one.claim(&namespace(), &name("train"))).await;
        let (namespace, train) = (namespace(), name("train"));
        let mut waiting = Box::pin(other.claim(&namespace, &train));
        assert!((&mut waiting).now_or_never().is_none(), "{title}");
        drop(held);
        let held = soon(waiting).await;
        assert!(one.claim(&namespace, &train).now_or_never().is_none(), "{title}");
        drop(held);
    }
}

#[tokio::test]
async fn different_claims_do_not_wait_for_each_other() {
    let node = Node::new();
    for (_, one, other) in pairs(&node) {
        let _train = soon(one.claim(&namespace(), &name("train"))).await;
        let _serve = soon(other.claim(&namespace(), &name("serve"))).await;
        let _elsewhere = soon(other.claim(&"elsewhere".parse().unwrap(), &name("train"))).await;
        let _turn = soon(other.turn()).await;
    }
}

#[tokio::test]
async fn the_driver_is_entered_by_one_at_a_time() {
    let node = Node::new();
    for (title, one, other) in pairs(&node) {
        let held = soon(one.turn()).await;
        let mut waiting = Box::pin(other.turn());
        assert!((&mut waiting).now_or_never().is_none(), "{title}");
        drop(held);
        let held = soon(waiting).await;
        assert!(one.turn().now_or_never().is_none(), "{title}");
        drop(held);
    }
}

/// One process holds many bytes of the file at a time; letting go of one must not let go of another.
#[tokio::test]
async fn what_is_let_go_of_is_one_claim_and_no_other() {
    let node = Node::new();
    let (one, other) = (node.instance(), node.instance());
    let names: Vec<ClaimName> = (0..64).map(|number| name(&format!("claim-{number}"))).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(soon(one.claim(&namespace(), name)).await);
    }
    let turn = soon(one.turn()).await;
    for (name, guard) in names.iter().zip(guards) {
        assert!(other.claim(&namespace(), name).now_or_never().is_none(), "{name}");
        drop(guard);
        drop(soon(other.claim(&namespace(), name)).await);
        assert!(other.turn().now_or_never().is_none());
    }
    drop(turn);
    assert!(foreign(&node.path()).set(libc::F_WRLCK, WHOLE).is_ok(), "nothing is held any more");
}

/// G12: whoever gives up waits no more, and holds nothing.
#[tokio::test]
async fn a_waiter_that_gives_up_leaves_nothing_held() {
    let node = Node::new();
    for (title, one, other) in pairs(&node) {
        let (namespace, train) = (namespace(), name("train"));
        let claim = soon(one.claim(&namespace, &train)).await;
        let turn = soon(one.turn()).await;
        assert!(tokio::time::timeout(Duration::from_millis(5), other.claim(&namespace, &train)).await.is_err());
        assert!(tokio::time::timeout(Duration::from_millis(5), other.turn()).await.is_err());
        drop((claim, turn));
        drop(soon(one.claim(&namespace, &train)).await);
        drop(soon(one.turn()).await);
        for locks in [one, other] {
            assert!(locks.claims.slots().is_empty(), "{title}: {:?}", locks.claims);
        }
        assert!(foreign(&node.path()).set(libc::F_WRLCK, WHOLE).is_ok(), "{title}");
    }
}

/// Many tasks at a few claims: no two at one claim, no two in the driver, and no memory is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_exclude_each_other_and_leave_an_empty_table() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let node = Node::new();
    for (title, one, other) in pairs(&node) {
        let at_claim: Arc<Vec<AtomicUsize>> = Arc::new((0..5).map(|_| AtomicUsize::new(0)).collect());
        let in_driver = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..400)
            .map(|number| {
                let locks = if number % 2 == 0 { one.clone() } else { other.clone() };
                let (at_claim, in_driver) = (Arc::clone(&at_claim), Arc::clone(&in_driver));
                tokio::spawn(async move {
                    let claim = number % at_claim.len();
                    let _claim = soon(locks.claim(&namespace(), &name(&format!("claim-{claim}")))).await;
                    assert_eq!(at_claim[claim].fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    let turn = soon(locks.turn()).await;
                    assert_eq!(in_driver.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    in_driver.fetch_sub(1, Ordering::SeqCst);
                    drop(turn);
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
async fn a_claim_that_is_handed_on_within_a_process_stays_closed_to_the_other_process() {
    let node = Node::new();
    let (one, other) = (node.instance(), node.instance());
    let (namespace, train) = (namespace(), name("train"));
    let first = soon(one.claim(&namespace, &train)).await;
    let mut second = Box::pin(one.claim(&namespace, &train));
    assert!((&mut second).now_or_never().is_none());
    drop(first);
    let _second = soon(second).await;
    assert!(other.claim(&namespace, &train).now_or_never().is_none());
}

/// Is woken when the next in the process can have a lock, and sees whether the file is free at that moment.
struct Probe {
    file: LockFile,
    was_free: Mutex<Option<bool>>,
}

impl Wake for Probe {
    fn wake(self: Arc<Self>) {
        let is_free = self.file.set(libc::F_WRLCK, WHOLE).is_ok();
        self.file.set(libc::F_UNLCK, WHOLE).unwrap();
        *self.was_free.lock().unwrap() = Some(is_free);
    }
}

/// In the other order, the next one's lock of the byte, which is no other to the kernel, would be unlocked under it.
#[tokio::test]
async fn the_byte_is_free_before_the_next_in_the_process_is_let_in() {
    let node = Node::new();
    let locks = node.instance();
    let (namespace, train) = (namespace(), name("train"));
    let probe = || Arc::new(Probe { file: foreign(&node.path()), was_free: Mutex::default() });

    let (claim_probe, held) = (probe(), soon(locks.claim(&namespace, &train)).await);
    let mut next = Box::pin(locks.claim(&namespace, &train));
    assert!(next.as_mut().poll(&mut Context::from_waker(&Arc::clone(&claim_probe).into())).is_pending());
    drop(held);
    assert_eq!(*claim_probe.was_free.lock().unwrap(), Some(true));
    drop(next);

    let (turn_probe, held) = (probe(), soon(locks.turn()).await);
    let mut next = Box::pin(locks.turn());
    assert!(next.as_mut().poll(&mut Context::from_waker(&Arc::clone(&turn_probe).into())).is_pending());
    drop(held);
    assert_eq!(*turn_probe.was_free.lock().unwrap(), Some(true));
}

/// A Go instance locks the whole file around each of its calls.
#[tokio::test]
async fn an_instance_built_on_go_excludes_all_of_ours_and_ours_exclude_it() {
    let node = Node::new();
    let (ours, go) = (node.instance(), foreign(&node.path()));
    go.set(libc::F_WRLCK, WHOLE).unwrap();
    let (namespace, train) = (namespace(), name("train"));
    let mut claim = Box::pin(ours.claim(&namespace, &train));
    let mut turn = Box::pin(ours.turn());
    assert!((&mut claim).now_or_never().is_none());
    assert!((&mut turn).now_or_never().is_none());
    assert!(ours.everything().now_or_never().is_none());
    go.set(libc::F_UNLCK, WHOLE).unwrap();

    let claim = soon(claim).await;
    assert_eq!(go.set(libc::F_WRLCK, WHOLE), Err(Errno::EAGAIN));
    drop(claim);
    let turn = soon(turn).await;
    assert_eq!(go.set(libc::F_WRLCK, WHOLE), Err(Errno::EAGAIN));
    drop(turn);
    let everything = soon(ours.everything()).await;
    assert_eq!(go.set(libc::F_WRLCK, WHOLE), Err(Errno::EAGAIN));
    drop(everything);
    assert_eq!(go.set(libc::F_WRLCK, WHOLE), Ok(()));
}

#[tokio::test]
async fn a_start_waits_for_all_work_of_the_other_instance_and_holds_up_its_new_work() {
    let node = Node::new();
    let (running, starting) = (node.instance(), node.instance());
    let claim = soon(running.claim(&namespace(), &name("train"))).await;
    let mut everything = Box::pin(starting.everything());
    assert!((&mut everything).now_or_never().is_none());
    drop(claim);
    let everything = soon(everything).await;
    assert!(running.claim(&namespace(), &name("train")).now_or_never().is_none());
    assert!(running.turn().now_or_never().is_none());
    // A start that overlaps with work of its own process is a mistake, but one that lets nobody in.
    assert!(starting.turn().now_or_never().is_none());
    drop(everything);
    drop(soon(running.turn()).await);
}

#[tokio::test]
async fn a_process_alone_waits_for_nothing_at_its_start() {
    let locks = Locks::in_process();
    let _everything = soon(locks.everything()).await;
    let _again = soon(locks.everything()).await;
    drop(soon(locks.claim(&namespace(), &name("train"))).await);
}

/// The work that a call started goes on when the kubelet gives up on the call; the claim stays locked until it is done.
#[tokio::test]
async fn a_guard_lasts_as_long_as_the_thread_that_it_was_moved_to() {
    let node = Node::new();
    let (one, other) = (node.instance(), node.instance());
    let guards = (soon(one.claim(&namespace(), &name("train"))).await, soon(one.turn()).await);
    let (done, work) = std::sync::mpsc::channel::<()>();
    let thread = tokio::task::spawn_blocking(move || {
        let _guards = guards;
        work.recv().unwrap_err();
    });
    assert!(other.claim(&namespace(), &name("train")).now_or_never().is_none());
    drop(done);
    thread.await.unwrap();
    drop(soon(other.claim(&namespace(), &name("train"))).await);
}

/// Both instances of a rolling update must look in the same place, also when they are not of the same version.
#[test]
fn the_place_of_a_claims_lock_never_changes() {
    assert_eq!(slot(&namespace(), &name("train")), SLOT_OF_TRAIN);
    for number in 0..1000 {
        let slot = slot(&namespace(), &name(&format!("claim-{number}")));
        assert!(slot >= 2 && slot % 2 == 0 && slot <= 1 << 31, "{slot}");
    }
}

/// `printf default/train | sha256sum` begins with this.
const SLOT_OF_TRAIN: i64 = 2 * ((0x466e_40ae >> 2) + 1);

/// The real thing: another process, that is killed with its locks held.
#[tokio::test]
async fn another_process_excludes_this_one_until_it_is_dead() {
    if let Some(path) = std::env::var_os(OTHER_PROCESS) {
        return be_the_other_process(Path::new(&path)).await;
    }
    let node = Node::new();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "lock::tests::another_process_excludes_this_one_until_it_is_dead"])
        .env(OTHER_PROCESS, node.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "locked"), "the other process ended");

    let ours = node.instance();
    drop(soon(ours.claim(&namespace(), &name("serve"))).await);
    let (namespace, train) = (namespace(), name("train"));
    let mut claim = Box::pin(ours.claim(&namespace, &train));
    let mut turn = Box::pin(ours.turn());
    assert!((&mut claim).now_or_never().is_none());
    assert!((&mut turn).now_or_never().is_none());
    assert!(ours.everything().now_or_never().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
    drop((soon(claim).await, soon(turn).await));
    drop(soon(ours.everything()).await);
}

/// Holds locks until it is killed, or its parent is dead.
async fn be_the_other_process(path: &Path) {
    let locks = Locks::shared(path).unwrap();
    let _guards = (soon(locks.claim(&namespace(), &name("train"))).await, soon(locks.turn()).await);
    println!("\nlocked");
    io::stdin().lock().lines().count();
}

#[test]
fn the_file_is_made_once_and_never_cut() {
    let node = Node::new();
    drop(node.instance());
    let kind = fs::symlink_metadata(node.path()).unwrap();
    assert!(kind.is_file());
    assert_eq!(kind.permissions().mode() & 0o111, 0);
    fs::write(node.path(), "what somebody wrote").unwrap();
    drop(node.instance());
    assert_eq!(fs::read_to_string(node.path()).unwrap(), "what somebody wrote");
}

#[test]
fn what_is_planted_at_the_files_path_is_neither_followed_nor_waited_for() {
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
fn a_directory_that_is_not_there_is_an_error_that_names_the_file() {
    let node = Node::new();
    let path = node.directory.path().join("nowhere").join(FILE);
    let error = Locks::shared(&path).unwrap_err().to_string();
    assert!(error.starts_with(&format!("open lock file {}: No such file", path.display())), "{error}");
}
