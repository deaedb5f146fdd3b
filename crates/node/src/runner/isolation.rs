//! How containers are isolated from the host, and which isolation works here.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::{fmt, fs};

use super::error::Error;
use super::root::MountPoints;
use super::{capabilities, namespaces, native, oci, syscalls};

/// How containers are isolated from the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Isolation {
    /// The first that works of root, user namespace and show only.
    #[default]
    Auto,
    /// Namespaces for mounts, processes, IPC, host name and cgroups. Needs root.
    Root,
    /// A user namespace with namespaces for mounts, IPC, host name and cgroups, for any user, where the system allows it. The
    /// caller is root in the container. Processes are the host's.
    UserNamespace,
    /// An OCI runtime, `runc` or `crun`, by its path.
    Oci(PathBuf),
    /// Containers are not run; their edits are only reported.
    ShowOnly,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Root => f.write_str("root"),
            Self::UserNamespace => f.write_str("user namespace"),
            Self::Oci(path) => write!(f, "OCI runtime {}", path.display()),
            Self::ShowOnly => f.write_str("show only"),
        }
    }
}

impl Isolation {
    /// Describes what isolates containers from the host.
    pub(super) fn summary(&self) -> String {
        let user_namespace = match self {
            Self::Root => false,
            Self::UserNamespace => true,
            other => return other.to_string(),
        };
        let set = namespaces::Set { user: user_namespace, network: false };
        let namespaces: Vec<&str> = namespaces::kinds(set).iter().map(|kind| namespaces::name(*kind)).collect();
        let capabilities = capabilities::ALLOWED.iter().count();
        let filter = if syscalls::can_be_filtered() { ", seccomp" } else { "" };
        format!("namespaces ({}), {capabilities} capabilities{filter}", namespaces.join(", "))
    }
}

/// Finds the isolation to use by trying it, and why it is not a better one. A configured isolation must work.
pub(super) fn choose(config: &Isolation, mount_points: &MountPoints<'_>) -> Result<(Isolation, Vec<String>), Error> {
    let refuse = |reason: String| Error::Isolation { isolation: config.to_string(), reason };
    let chosen = |notes| (config.clone(), notes);
    match config {
        Isolation::Root => root(mount_points).map(|()| chosen(Vec::new())).map_err(refuse),
        Isolation::UserNamespace => probe(true, mount_points).map(|()| chosen(Vec::new())).map_err(refuse),
        Isolation::Oci(path) => oci::probe(path).map(|version| chosen(vec![version])).map_err(refuse),
        Isolation::ShowOnly => Ok(chosen(vec!["containers are configured not to run".to_owned()])),
        Isolation::Auto => Ok(best(mount_points)),
    }
}

fn best(mount_points: &MountPoints<'_>) -> (Isolation, Vec<String>) {
    let mut notes = Vec::new();
    match root(mount_points) {
        Ok(()) => return (Isolation::Root, notes),
        Err(reason) => notes.push(format!("not as root: {reason}")),
    }
    match probe(true, mount_points) {
        Ok(()) => return (Isolation::UserNamespace, notes),
        Err(reason) => notes.push(format!("not in a user namespace: {reason}")),
    }
    (Isolation::ShowOnly, notes)
}

fn root(mount_points: &MountPoints<'_>) -> Result<(), String> {
    let user = rustix::process::geteuid();
    if !user.is_root() {
        return Err(format!("the user is {}", user.as_raw()));
    }
    probe(false, mount_points)
}

/// Tries to start a container. What worked once in this process is not tried again on the same file system: that costs a
/// fork and many mounts, and there may be many runners.
fn probe(user_namespace: bool, mount_points: &MountPoints<'_>) -> Result<(), String> {
    static WORKED: Mutex<BTreeSet<(bool, u64)>> = Mutex::new(BTreeSet::new());
    let root = mount_points.root;
    let device = fs::metadata(root).map_err(|error| format!("{}: {error}", root.display()))?.dev();
    // Nothing panics while it is locked.
    let worked = || WORKED.lock().unwrap_or_else(PoisonError::into_inner);
    if worked().contains(&(user_namespace, device)) {
        return Ok(());
    }
    native::probe(user_namespace, mount_points)?;
    worked().insert((user_namespace, device));
    Ok(())
}
