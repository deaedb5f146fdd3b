//! Tests of the modes of files and directories that a driver creates on the host, whatever its umask is.
//!
//! A umask applies to a whole process, so each case runs in its own process: this test binary again, with the one test that is
//! ignored otherwise.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::Mode;

use crate::support::{Kubelet, Node, TestClaim, TestDriver, numbered_device};

/// The environment variable with the umask of the other process, in octal digits.
const UMASK: &str = "DRAKKAR_TEST_UMASK";

/// Runs the ignored test in a process with this umask.
fn run_with(umask: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "modes::a_driver_in_a_process_of_its_own", "--ignored", "--nocapture"])
        .env(UMASK, umask)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "umask {umask}: {text}");
}

#[test]
fn other_users_cannot_write_to_a_drivers_files_even_without_a_umask() {
    run_with("000");
}

#[test]
fn containers_can_read_their_files_whatever_the_umask_is() {
    run_with("077");
}

#[tokio::test]
#[ignore = "run by the other tests of this module, with a umask"]
async fn a_driver_in_a_process_of_its_own() {
    let Ok(umask) = std::env::var(UMASK) else { return };
    let node = Node::default();
    rustix::process::umask(Mode::from_raw_mode(u32::from_str_radix(&umask, 8).unwrap()));
    let claim = node.claim(TestClaim::new("train", "uid-1").device("gpu", "gpu-0"));
    let cdi = node.root.path().join("run/cdi");
    let builder = node.builder().cdi_directory(&cdi).rolling_update("ad4af911-5bcd-47c5-a554-f35cea869472");
    let helper = builder.start(TestDriver::default()).await.unwrap();
    Kubelet::of(&helper).await.prepare_one(&claim).await.unwrap();
    helper.handles().update_request_metadata(&claim.reference(), "gpu", numbered_device("gpu-0", 1)).await.unwrap();

    let mut found = Vec::new();
    for made in ["plugins", "plugins_registry", "run"] {
        walk(&node.root.path().join(made), &mut found);
    }
    let of = |path: &Path| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    let mut sockets = 0;
    let mut files = 0;
    for path in &found {
        let kind = std::fs::symlink_metadata(path).unwrap().file_type();
        if path.ends_with("plugins_registry") {
            // Created by the kubelet.
            continue;
        }
        assert_eq!(of(path) & 0o022, 0, "{}: others can write: {:o}", path.display(), of(path));
        if kind.is_socket() {
            assert_eq!(of(path), 0o600, "{}", path.display());
            sockets += 1;
        }
        if path.ends_with("metadata.json") {
            assert_eq!(of(path), 0o644, "{}", path.display());
            files += 1;
        }
    }
    assert_eq!((sockets, files), (2, 1), "{found:?}");
    assert_eq!(of(&node.plugin_directory()), 0o750);
    assert_eq!(of(&node.plugin_directory().join("dra-device-metadata")), 0o755);
    assert_eq!(of(&cdi), 0o755);
    assert_eq!(of(&node.plugin_directory().join("serialize.lock")), 0o600);
    helper.stop().await.unwrap();
}

fn walk(path: &Path, found: &mut Vec<PathBuf>) {
    found.push(path.to_owned());
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            walk(&entry.unwrap().path(), found);
        }
    }
}
