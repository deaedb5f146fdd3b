//! Removal of stale sockets, which killed instances of this driver have left.
//!
//! A kubelet that restarts dials every socket that it finds, and dead ones forever. A socket is removed if it has a name of
//! this driver and refuses connections; a live socket belongs to a running instance and stays. No failure here prevents an
//! instance from starting: [`Sweep`] lists the errors.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use drakkar_metadata::name::DriverName;

use super::file::{Found, SocketError, remove_if_dead};
use super::name::{REGISTRATION_SUFFIX, staging_prefix};

/// The suffix of the Go framework's registration sockets.
const GO_REGISTRATION_SUFFIX: &str = "-reg.sock";

/// The sockets of other instances that a sweep found.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// Dead sockets, which have been removed.
    pub(crate) removed: Vec<PathBuf>,
    /// Sockets of running instances.
    pub(crate) live: Vec<PathBuf>,
    /// Sockets that could not be probed or removed.
    pub(crate) failed: Vec<SocketError>,
}

/// Removes dead registration sockets of this driver from the kubelet's registry directory, named by us or by the Go
/// framework.
pub(crate) fn sweep_registry(registry: &Path, driver: &DriverName) -> Sweep {
    sweep(registry, |name| is_registration_socket(name, driver) || is_staged(name, driver))
}

/// Removes dead DRA sockets from the driver's own directory.
pub(crate) fn sweep_plugin_directory(directory: &Path, driver: &DriverName) -> Sweep {
    sweep(directory, |name| is_dra_socket(name) || is_staged(name, driver))
}

fn sweep(directory: &Path, is_ours: impl Fn(&str) -> bool) -> Sweep {
    let mut sweep = Sweep::default();
    let failed = |source| SocketError::Io { action: "read directory", path: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            sweep.failed.push(failed(error));
            return sweep;
        }
    };
    for entry in entries {
        let path = match entry {
            Ok(entry) if entry.file_name().to_str().is_some_and(&is_ours) => entry.path(),
            Ok(_) => continue,
            Err(error) => {
                sweep.failed.push(failed(error));
                break;
            }
        };
        match remove_if_dead(&path) {
            Ok(Found::Removed) => sweep.removed.push(path),
            Ok(Found::Live) => sweep.live.push(path),
            Ok(Found::Nothing | Found::Other(_)) => {}
            Err(error) => sweep.failed.push(error),
        }
    }
    sweep
}

/// Whether this is the name of a registration socket of the driver, given by us or by the Go framework.
pub(crate) fn is_registration_socket(name: &str, driver: &DriverName) -> bool {
    let (stem, ours) = match (name.strip_suffix(REGISTRATION_SUFFIX), name.strip_suffix(GO_REGISTRATION_SUFFIX)) {
        (Some(stem), _) => (stem, true),
        (_, Some(stem)) => (stem, false),
        _ => return false,
    };
    // A hash does not identify the driver, but any socket named by us that refuses connections is dead. A Go driver's could
    // be about to listen.
    if ours && stem.strip_prefix("dra-").is_some_and(is_hash::<16>) {
        return true;
    }
    // `gpu.example.com-vf` may be another driver, so only a UID or a hash may follow.
    match stem.strip_prefix(driver.as_str()) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('-').is_some_and(|pod| is_pod_uid(pod) || is_hash::<8>(pod)),
        None => false,
    }
}

/// Whether this is the name of a DRA socket in the driver's own directory, given by us or by the Go framework.
pub(crate) fn is_dra_socket(name: &str) -> bool {
    let starts = ["dra@", "d@", "dra-"];
    name == "dra.sock" || (name.ends_with(".sock") && starts.iter().any(|start| name.starts_with(start)))
}

/// Whether this is the name of a staged socket. If it belongs to a live process that has not called `listen` yet, that
/// process binds another.
fn is_staged(name: &str, driver: &DriverName) -> bool {
    name.strip_prefix(&staging_prefix(driver)).is_some_and(|random| random.len() == 3)
}

/// Whether this is the UID of a pod: a UUID, or the 32 digits of a static pod.
fn is_pod_uid(text: &str) -> bool {
    let uuid =
        text.len() == 36 && text.bytes().enumerate().all(|(at, byte)| (byte == b'-') == [8, 13, 18, 23].contains(&at));
    (uuid || text.len() == 32) && text.bytes().all(|byte| byte.is_ascii_hexdigit() || (uuid && byte == b'-'))
}

fn is_hash<const BYTES: usize>(text: &str) -> bool {
    BASE64_URL_SAFE_NO_PAD.decode(text).is_ok_and(|bytes| bytes.len() == BYTES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::socket::{PodUid, dra_socket, listen, registration_socket};

    const UID: &str = "ad4af911-5bcd-47c5-a554-f35cea869472";

    fn driver() -> DriverName {
        DriverName::new("gpu.example.com").unwrap()
    }

    fn leave_dead_socket(path: &Path) {
        drop(UnixListener::bind(path).unwrap());
    }

    fn names(paths: &[PathBuf]) -> BTreeSet<&str> {
        paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect()
    }

    /// G4: names of ours and of the Go framework, with and without rolling update.
    #[test]
    fn dead_registration_sockets_of_this_driver_are_removed_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let staged = format!("{}abc", staging_prefix(&driver()));
        let ours = [
            "gpu.example.com-reg.sock",
            "gpu.example.com@reg.sock",
            "gpu.example.com-ad4af911-5bcd-47c5-a554-f35cea869472-reg.sock",
            "gpu.example.com-ad4af911-5bcd-47c5-a554-f35cea869472@reg.sock",
            "gpu.example.com-0123456789abcdef0123456789abcdef@reg.sock",
            "gpu.example.com-Jk8-oymVURI-reg.sock",
            "gpu.example.com-Jk8-oymVURI@reg.sock",
            "dra-i1uYBA3g7FMHZvgPIxSbNw@reg.sock",
            &staged,
        ];
        let others = [
            "net.example.com-reg.sock",
            "net.example.com@reg.sock",
            "gpu.example.com.au-reg.sock",
            "gpu.example.com-vf-reg.sock",
            "gpu.example.com-accelerator-reg.sock",
            "gpu.example.com-vf-ad4af911-5bcd-47c5-a554-f35cea869472-reg.sock",
            "dra-i1uYBA3g7FMHZvgPIxSbNw-reg.sock",
            "csi.example.com.sock",
            ".@xxxabc",
        ];
        for name in ours.iter().chain(&others) {
            leave_dead_socket(&directory.path().join(name));
        }
        let sweep = sweep_registry(directory.path(), &driver());
        assert_eq!(names(&sweep.removed), BTreeSet::from(ours));
        assert!(sweep.live.is_empty() && sweep.failed.is_empty(), "{sweep:?}");
        let remaining: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names(&remaining), BTreeSet::from(others));
    }

    /// G4: an instance recognizes every socket name that another may have chosen.
    #[test]
    fn every_socket_name_is_recognized_by_the_sweep() {
        for length in [1, 15, 34, 53, 63] {
            let driver = DriverName::new("d".repeat(length)).unwrap();
            for pod in [None, Some(PodUid::new(UID).unwrap())] {
                let file_name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
                let registry = Path::new("/var/lib/kubelet/plugins_registry");
                let name = file_name(registration_socket(registry, &driver, pod.as_ref()).unwrap());
                assert!(is_registration_socket(&name, &driver), "{name}");
                let directory = Path::new("/var/lib/kubelet/plugins").join("d".repeat(length.min(61)));
                let name = file_name(dra_socket(&directory, pod.as_ref()).unwrap());
                assert!(is_dra_socket(&name), "{name}");
            }
        }
    }

    /// G4: the other instance of a rolling update is alive.
    #[test]
    fn live_sockets_and_files_of_other_kinds_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let live = directory.path().join(format!("dra-{UID}.sock"));
        let (_listener, _file) = listen(&live, &driver()).unwrap();
        leave_dead_socket(&directory.path().join("dra-dead.sock"));
        leave_dead_socket(&directory.path().join("dra.sock"));
        leave_dead_socket(&directory.path().join("other.sock"));
        fs::write(directory.path().join("dra-file.sock"), "").unwrap();
        let sweep = sweep_plugin_directory(directory.path(), &driver());
        assert_eq!(names(&sweep.removed), BTreeSet::from(["dra-dead.sock", "dra.sock"]));
        assert_eq!(names(&sweep.live), BTreeSet::from([format!("dra-{UID}.sock").as_str()]));
        UnixStream::connect(&live).unwrap();
        assert!(directory.path().join("dra-file.sock").exists() && directory.path().join("other.sock").exists());
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let sweep = sweep_registry(&directory.path().join("missing"), &driver());
        assert!(sweep.failed[0].to_string().starts_with("read directory /"), "{sweep:?}");
    }
}
