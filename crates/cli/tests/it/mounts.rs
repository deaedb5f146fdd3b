//! A host file that is really mounted, read-only, at both paths of a container, and updated in place from outside while the
//! command waits in the container.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command as Process, Stdio};

use drakkar_metadata::{Versions, encode};
use snapbox::cmd::cargo_bin;

use crate::support::{Container, claim, kep, nic};
use crate::wait::until_watching;

/// Mounts a file read-only at the other arguments, then runs a script: the arguments are script, file, mount points.
const MOUNT: &str = r#"
set -eu
script=$1 file=$2; shift 2
for target in "$@"; do
    mount --bind "$file" "$target"
    mount -o remount,bind,ro "$target"
done
exec sh -euc "$script"
"#;

#[test]
fn an_update_on_the_host_wakes_a_container_that_has_the_file_mounted_twice() {
    let container = Container::new();
    let files = [claim("net", "eth", "net.example.com"), kep("net", "eth", "net.example.com")];
    let targets = files.map(|file| container.write(&file, ""));
    let host_file = container.root().join("host.json");
    fs::write(&host_file, "").unwrap();

    let in_namespace = |script: &str| {
        let mut process = Process::new("unshare");
        process.args(["--user", "--map-root-user", "--mount", "sh", "-euc", MOUNT, "sh", script]);
        process.arg(&host_file).args(&targets).env("DRAKKAR_ROOT", container.root()).env("NO_COLOR", "1");
        process.env("DRAKKAR", cargo_bin!("drakkar")).stdin(Stdio::null());
        process
    };
    let possible = in_namespace("true").output();
    if !possible.as_ref().is_ok_and(|output| output.status.success()) {
        return println!("skipped: no unprivileged mount namespaces on this machine: {possible:?}");
    }

    let mut waiting =
        in_namespace("exec \"$DRAKKAR\" wait net/eth --for ips --timeout 1m").stderr(Stdio::piped()).spawn().unwrap();
    until_watching(&waiting);
    File::options()
        .write(true)
        .open(&host_file)
        .unwrap()
        .write_all_at(&encode(&nic(), &Versions::default()), 0)
        .unwrap();
    let status = waiting.wait().unwrap();
    assert!(status.success(), "{status}");

    let listed = in_namespace("exec \"$DRAKKAR\" list").output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout),
        "CLAIM  REQUEST  DRIVER           DEVICE  DETAILS\nnet    eth      net.example.com  eth1    net1 10.9.0.5/24\n"
    );
    // Outside the mount namespace the mount points are still empty.
    assert_eq!(fs::read(&targets[0]).unwrap(), b"");
}
