//! How containers are kept apart from the host, and what of that works here.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::{fmt, fs};

use super::error::Error;
use super::root::Workplace;
use super::{capabilities, namespaces, native, oci, syscalls};

/// How containers are kept apart from the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Isolation {
    /// The first that works of root, user namespace and show only.
    #[default]
    Auto,
    /// Namespaces for mounts, processes, IPC, host name and cgroups, which needs root.
    Root,
    /// A user namespace with namespaces for mounts, IPC, host name and cgroups, which works for everybody where the system
    /// allows it. The caller is root in the container. Processes are the host's.
    UserNamespace,
    /// An OCI runtime, `runc` or `crun`: its path.
    Oci(PathBuf),
    /// Containers are not run, only told what they would be.
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
    /// What containers are kept apart from the host by, for humans.
    pub(super) fn means(&self) -> String {
        let user_namespace = match self {
            Self::Root => false,
            Self::UserNamespace => true,
            other => return other.to_string(),
        };
        let namespaces: Vec<&str> =
            namespaces::kinds(user_namespace).iter().map(|kind| namespaces::name(*kind)).collect();
        let capabilities = capabilities::ALLOWED.iter().count();
        let filter = if syscalls::can_be_filtered() { ", seccomp" } else { "" };
        format!("namespaces ({}), {capabilities} capabilities{filter}", namespaces.join(", "))
    }
}

/// Finds the isolation to use by trying, and says why it is not a better one. What was asked for by name must work.
pub(super) fn choose(wanted: &Isolation, workplace: &Workplace<'_>) -> Result<(Isolation, Vec<String>), Error> {
    let refuse = |why: String| Error::Isolation { wanted: wanted.to_string(), why };
    let chosen = |notes| (wanted.clone(), notes);
    match wanted {
        Isolation::Root => root(workplace).map(|()| chosen(Vec::new())).map_err(refuse),
        Isolation::UserNamespace => probe(true, workplace).map(|()| chosen(Vec::new())).map_err(refuse),
        Isolation::Oci(path) => oci::probe(path).map(|version| chosen(vec![version])).map_err(refuse),
        Isolation::ShowOnly => Ok(chosen(vec!["containers are not to be run".to_owned()])),
        Isolation::Auto => Ok(best(workplace)),
    }
}

fn best(workplace: &Workplace<'_>) -> (Isolation, Vec<String>) {
    let mut notes = Vec::new();
    match root(workplace) {
        Ok(()) => return (Isolation::Root, notes),
        Err(why) => notes.push(format!("not as root: {why}")),
    }
    match probe(true, workplace) {
        Ok(()) => return (Isolation::UserNamespace, notes),
        Err(why) => notes.push(format!("not in a user namespace: {why}")),
    }
    (Isolation::ShowOnly, notes)
}

fn root(workplace: &Workplace<'_>) -> Result<(), String> {
    let user = rustix::process::geteuid();
    if !user.is_root() {
        return Err(format!("the user is {}", user.as_raw()));
    }
    probe(false, workplace)
}

/// Tries whether containers can be started. What worked once in this process is not tried again on the same file system:
/// that costs a fork and many mounts, and there may be many runners.
fn probe(user_namespace: bool, workplace: &Workplace<'_>) -> Result<(), String> {
    static WORKED: Mutex<BTreeSet<(bool, u64)>> = Mutex::new(BTreeSet::new());
    let device = fs::metadata(workplace.root).map_err(|error| format!("{}: {error}", workplace.root.display()))?.dev();
    // Nothing panics while it is locked.
    let worked = || WORKED.lock().unwrap_or_else(PoisonError::into_inner);
    if worked().contains(&(user_namespace, device)) {
        return Ok(());
    }
    native::probe(user_namespace, workplace)?;
    worked().insert((user_namespace, device));
    Ok(())
}
