//! A randomized attack on the command: random roots that a container could have made, read with limited memory and time.
//!
//! `cargo test` runs a few trees; `DRAKKAR_CAMPAIGN_SECONDS=600` runs as many as fit into the time, and
//! `DRAKKAR_CAMPAIGN_SEED` repeats the trees of a seed.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use drakkar_metadata::{Versions, encode};
use snapbox::cmd::cargo_bin;

use crate::hostile::limited;
use crate::support::{Container, claim, device, metadata};

/// The number of trees if no time is given.
const TREES: usize = 2;
/// The timeout of a command. A search ends after ten seconds; the machine may be busy.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);
const BASES: [&str; 3] = [
    "var/run/kubernetes.io/dra-device-attributes/resourceclaims",
    "var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates",
    "var/run/dra-device-attributes",
];

/// Random numbers from a seed (`SplitMix64`), and a factor for sizes.
struct Random {
    state: u64,
    scale: usize,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    fn text(&mut self) -> String {
        let pieces =
            ["a", "-", "é", "\u{1b}[2J", "\n", "\u{202e}", "\u{300}", "\u{3164}", "=", "$(x)", "'", "日", "\u{e0041}"];
        let length = [1, 4, 60, 70_000][self.below(4)];
        (0..length).map(|_| self.pick(&pieces)).collect()
    }
}

/// Returns unusual content of a metadata file.
fn odd_content(random: &mut Random) -> Vec<u8> {
    let document = |devices: &str| {
        format!(
            r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1","metadata":{{"name":"c"}},"requests":[{{"name":"r","devices":[{devices}]}}]}}"#
        )
    };
    match random.below(9) {
        0 => Vec::new(),
        1 => (0..random.below(5000)).map(|_| u8::try_from(random.below(256)).unwrap()).collect(),
        2 => "[".repeat(random.below(100_000)).into_bytes(),
        3 => document(&vec!["{}"; random.below(2_200 * random.scale)].join(",")).into_bytes(),
        4 => document(&vec![r#"{"attributes":{"a":{}}}"#; random.below(650 * random.scale)].join(",")).into_bytes(),
        5 => {
            let element = random.pick(&["\"\"", "1", "true"]);
            let kind = if element == "1" {
                "ints"
            } else if element == "true" {
                "bools"
            } else {
                "strings"
            };
            let elements = vec![element; random.below(50_000 * random.scale)].join(",");
            document(&format!(r#"{{"name":"n","attributes":{{"a":{{"{kind}":[{elements}]}}}}}}"#)).into_bytes()
        }
        6 => "{}\n".repeat(random.below(75_000 * random.scale)).into_bytes(),
        7 => {
            let name = random.text();
            let mut odd = metadata(&random.text(), &random.text(), "r", vec![device(&name, &name)]);
            odd.pod_claim_name = Some(random.text());
            odd.requests[0].devices[0].attributes.insert(random.text(), random.text().as_str().into());
            encode(&odd, &Versions::default())
        }
        _ => {
            let mut cut = encode(&metadata("c", "u", "r", vec![device("d", "n")]), &Versions::default());
            cut.truncate(random.below(cut.len()));
            cut
        }
    }
}

/// Opens a file of the tree for writing if it is missing or a regular file: a link could lead out of the tree, and opening a
/// FIFO without a reader blocks. Only one thread at a time changes a tree.
fn open_for_writing(file: &Path) -> io::Result<File> {
    match fs::symlink_metadata(file) {
        Ok(found) if !found.is_file() => Err(io::ErrorKind::AlreadyExists.into()),
        _ => File::create(file),
    }
}

fn put(file: &Path, content: &[u8]) -> io::Result<()> {
    open_for_writing(file)?.write_all(content)
}

/// Locks and sockets that are held while a tree is tested.
#[derive(Default)]
struct Held {
    locks: Vec<File>,
    sockets: Vec<UnixListener>,
}

/// Creates a random directory below one of the bases.
fn some_directory(root: &Path, random: &mut Random) -> PathBuf {
    let mut path = root.join(random.pick(&BASES));
    for _ in 0..random.below(4) {
        path.push(random.pick(&["c", "d", "r", "gpu.example.com", "Bad Name", "a\n\u{1b}b"]));
    }
    // It fails if a file or a link is in the way, which is fine.
    let _ = fs::create_dir_all(&path);
    path
}

/// Adds a random object to the tree. Errors mean that another object is in the way, which is fine.
fn add_object(root: &Path, random: &mut Random, held: &mut Held) {
    let directory = some_directory(root, random);
    let name = format!("{}-metadata.json", random.pick(&["a.x", "b.x", "", "\u{202e}", "a\nb"]));
    let file = directory.join(&name);
    match random.below(11) {
        0 => {
            let target = random.pick(&[
                "/",
                ".",
                "..",
                "/var/run",
                "/proc",
                "/proc/kmsg",
                "/proc/self/mem",
                "/dev/zero",
                "/dev/watchdog",
                "/sys/kernel/debug",
                "/etc/hostname",
                "nowhere",
                "/many",
                "../../..",
            ]);
            let _ = symlink(target, if random.below(2) == 0 { file } else { directory.join("link") });
        }
        1 => {
            let _ = Process::new("mkfifo").arg(file).stderr(Stdio::null()).status();
        }
        2 => held.sockets.extend(UnixListener::bind(root.join("s")).inspect(|_| {
            let _ = fs::rename(root.join("s"), &file);
        })),
        3 => {
            let size = 1_u64 << random.below(45);
            let _ = open_for_writing(&file).and_then(|file| file.set_len(size));
        }
        4 => {
            for number in 0..random.below(400 * random.scale) {
                let _ = symlink("/many", directory.join(format!("l{number}")));
            }
        }
        5 => {
            let many = root.join("many");
            let _ = fs::create_dir_all(&many);
            for number in 0..random.below(400 * random.scale) {
                let _ = symlink(random.pick(&["/many", "..", "/var/run"]), many.join(format!("m{number}")));
            }
        }
        6 => {
            for number in 0..random.below(200 * random.scale) {
                let _ = fs::create_dir_all(directory.join(format!("e{number}/r")));
            }
        }
        7 => {
            let _ = fs::create_dir_all(directory.join("n".repeat(255)).join("x\u{1b}".repeat(60)));
        }
        8 => {
            if put(&file, &odd_content(random)).is_ok()
                && let Ok(lock) = File::open(&file)
                && lock.try_lock().is_ok()
            {
                held.locks.push(lock);
            }
        }
        _ => {
            let _ = put(&file, &odd_content(random));
        }
    }
}

/// Changes the tree while commands read it.
fn keep_changing(root: &Path, seed: u64, done: &AtomicBool) {
    let mut random = Random { state: seed, scale: 1 };
    while !done.load(Ordering::Acquire) {
        let directory = some_directory(root, &mut random);
        let file = directory.join("a.x-metadata.json");
        let _ = match random.below(4) {
            0 => put(&file, &odd_content(&mut random)),
            1 => fs::rename(&file, directory.join("b.x-metadata.json")),
            2 => fs::remove_file(&file).and_then(|()| symlink("/proc/kmsg", &file)),
            _ => put(&file, b"{\"kind\":"),
        };
        thread::sleep(Duration::from_millis(5));
    }
}

/// The result of a command.
struct Completed {
    status: ExitStatus,
    stdout: String,
    stderr: String,
    took: Duration,
}

/// Runs a command, and fails if it hangs.
fn run(mut process: Process) -> Completed {
    let mut stdout = tempfile::tempfile().unwrap();
    let mut stderr = tempfile::tempfile().unwrap();
    process.stdin(Stdio::null()).stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    let start = Instant::now();
    let mut child = process.spawn().unwrap();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > HANG_TIMEOUT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{process:?} did not end within {HANG_TIMEOUT:?}");
        }
        thread::sleep(Duration::from_millis(1));
    };
    let took = start.elapsed();
    let text = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.take(4_000_000).read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Completed { status, stdout: text(&mut stdout), stderr: text(&mut stderr), took }
}

/// Returns the command in a mount namespace in which `/var/run` is that of the tree.
fn in_namespace(root: &Path, arguments: &[&str]) -> Process {
    let script = "mount --bind \"$ROOT/var/run\" \"$(readlink -f /var/run)\" && ulimit -d 65536 && exec \"$0\" \"$@\"";
    let mut process = Process::new("unshare");
    process.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(cargo_bin!("drakkar"));
    process.args(arguments).env("ROOT", root).env_remove("DRAKKAR_ROOT").env("NO_COLOR", "1");
    process
}

fn run_commands(root: &Path, file: &str, namespaces: bool, random: &mut Random, calls: &mut usize) {
    let commands: [&[&str]; 13] = [
        &["list"],
        &["list", "-o", "json"],
        &["list", "-o", "yaml"],
        &["get", "zz/r", "name"],
        &["get", "c/r", "name"],
        &["read", "c/r"],
        &["read", "c/r", "-o", "yaml"],
        &["read", "gpu/r", "-o", "json"],
        &["env"],
        &["env", "zz/r"],
        &["exec", "--request", "c/r", "--", "true"],
        &["validate", file],
        &["wait", "resourceclaimtemplates/nothing/r", "--timeout", "300ms"],
    ];
    for arguments in commands {
        let by_namespace = namespaces && random.below(3) == 0;
        let process = if by_namespace { in_namespace(root, arguments) } else { limited(root, arguments) };
        let completed = run(process);
        *calls += 1;
        let Completed { status, stdout, stderr, took } = &completed;
        let shown: String = stderr.chars().take(2000).collect();
        let context = format!("{arguments:?} (own root: {by_namespace}) in {took:?}: {status}\n{shown}");
        assert!(matches!(status.code(), Some(0..=5 | 126)), "{context}");
        assert!(!stderr.contains(|c: char| c.is_control() && c != '\n'), "{context}");
        let is_over_limit = ["which no container has", "the search timed out"].iter().any(|text| stderr.contains(text));
        match arguments[0] {
            "list" if !is_over_limit => assert!(stdout.contains("good"), "{context}"),
            "get" if arguments[1] == "zz/r" => {
                assert_eq!((status.code(), stdout.as_str()), (Some(0), "good\n"), "{context}");
            }
            "env" if arguments.len() > 1 => {
                assert!(status.success() && stdout.contains("DRA_ZZ_R_0_DEVICE=good"), "{context}");
            }
            "wait" => assert!(*took < Duration::from_secs(30), "{context}"),
            _ => {}
        }
    }
}

#[test]
fn hostile_roots_have_a_bounded_cost_and_hide_no_valid_claim() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let clock = SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    let seed = number("DRAKKAR_CAMPAIGN_SEED").unwrap_or(u64::from(clock));
    let seconds = number("DRAKKAR_CAMPAIGN_SECONDS");
    eprintln!("campaign hostile_roots: seed {seed}");
    let start = Instant::now();
    let mut random = Random { state: seed, scale: if seconds.is_some() { 4 } else { 1 } };
    let namespaces = run(in_namespace_probe()).status.success();
    let mut trees = 0;
    let mut calls = 0;
    let mut objects = 0;
    let is_running = |trees: usize| seconds.map_or(trees < TREES, |limit| start.elapsed() < Duration::from_secs(limit));
    while is_running(trees) {
        let container = Container::new();
        let root = container.root();
        let good = metadata("zz", "good-uid", "r", vec![device("a.example.com", "good")]);
        container.write(&claim("zz", "r", "a.example.com"), encode(&good, &Versions::default()));
        let mut held = Held::default();
        let count = 1 + random.below(25);
        for _ in 0..count {
            add_object(root, &mut random, &mut held);
        }
        let file = format!("/{}/c/r/a.x-metadata.json", BASES[0]);
        let done = AtomicBool::new(false);
        let changing = random.next();
        let outcome = thread::scope(|scope| {
            if trees % 2 == 1 {
                scope.spawn(|| keep_changing(root, changing, &done));
            }
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run_commands(root, &file, namespaces, &mut random, &mut calls);
            }));
            done.store(true, Ordering::Release);
            outcome
        });
        if outcome.is_err() {
            let kept = container.keep();
            panic!("seed {seed}, tree {trees}: see {}", kept.display());
        }
        trees += 1;
        objects += count;
    }
    let took = start.elapsed().as_secs_f32();
    eprintln!(
        "campaign hostile_roots: seed {seed}, {calls} calls, {trees} trees, {objects} objects, namespaces {namespaces}, in {took:.1} s"
    );
}

fn in_namespace_probe() -> Process {
    let mut process = Process::new("unshare");
    process.args(["--user", "--map-root-user", "--mount", "true"]);
    process
}
