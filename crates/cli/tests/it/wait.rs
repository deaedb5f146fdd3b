//! `wait`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use drakkar_metadata::{Versions, encode};
use snapbox::cmd::cargo_bin;
use snapbox::str;

use crate::support::{Container, claim, nic};

#[test]
fn wait_returns_at_once_if_the_metadata_is_complete() {
    Container::with_gpus().drakkar(["wait", "devices/gpu"]).assert().success().stdout_eq("").stderr_eq("");
}

#[test]
fn wait_ends_when_the_driver_writes_the_file_in_place() {
    let container = Container::new();
    let path = container.write(&claim("net", "eth", "net.example.com"), "");
    let mut waiting = spawn(&container, &["wait", "net/eth", "--for", "ips", "--timeout", "10m"]);
    until_watching(&waiting);

    let updated = Instant::now();
    File::options().write(true).open(path).unwrap().write_all_at(&encode(&nic(), &Versions::default()), 0).unwrap();
    assert!(waiting.wait().unwrap().success());
    assert!(updated.elapsed() < Duration::from_secs(300), "woken by the timeout only");
}

#[test]
fn wait_times_out_and_reports_what_is_missing() {
    let container = Container::new();
    let query = ["wait", "net/eth", "--timeout", "50ms"];
    container.drakkar(query).assert().code(3).stderr_eq(str![[r#"
drakkar: timed out after [..] s: no metadata for net/eth: looked in [..]
hint: `drakkar list` shows the requests of this container

"#]]);

    container.write(&claim("net", "eth", "net.example.com"), "");
    container.drakkar(query).assert().code(4).stderr_eq(str![[r#"
drakkar: timed out after [..] s: [..]/resourceclaims/net/eth/net.example.com-metadata.json: not written yet

"#]]);

    container.write(&claim("net", "eth", "net.example.com"), encode(&nic(), &Versions::default()));
    container.drakkar(query).assert().success();
    container
        .drakkar(["wait", "net/eth", "--for", "ips", "--for", "mtu", "--timeout", "0"])
        .assert()
        .code(4)
        .stderr_eq(str![[r#"
drakkar: timed out after [..] s: net/eth does not meet the condition: device eth1 has no mtu

"#]]);

    container.write(&claim("net", "eth", "net.example.com"), "{");
    container.drakkar(query).assert().code(5);
}

fn spawn(container: &Container, arguments: &[&str]) -> Child {
    Process::new(cargo_bin!("drakkar"))
        .env("DRAKKAR_ROOT", container.root())
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until the process has an inotify watch, as its file descriptors in `/proc` show.
pub(crate) fn until_watching(child: &Child) {
    let deadline = Instant::now() + Duration::from_secs(180);
    let directory = format!("/proc/{}/fdinfo", child.id());
    loop {
        let mut infos = std::fs::read_dir(&directory).unwrap().flatten();
        let is_watching = |entry: std::fs::DirEntry| {
            std::fs::read_to_string(entry.path()).is_ok_and(|info| info.contains("inotify wd:"))
        };
        if infos.any(is_watching) {
            return;
        }
        assert!(Instant::now() < deadline, "the command added no watch");
        std::thread::yield_now();
    }
}
