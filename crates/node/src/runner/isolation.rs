//! How containers are kept apart from the host, and what of that works here.

use std::fmt;
use std::path::PathBuf;

use super::error::Error;
use super::root::Workplace;
use super::{native, oci};

/// How containers are kept apart from the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Isolation {
    /// The first that works of root, user namespace and show only.
    #[default]
    Auto,
    /// A mount namespace, which needs root.
    Root,
    /// A mount namespace in a user namespace, which works for everybody where the system allows it. The caller is root
    /// in the container.
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

/// Finds the isolation to use by trying, and says why it is not a better one. What was asked for by name must work.
pub(super) fn choose(wanted: &Isolation, workplace: &Workplace<'_>) -> Result<(Isolation, Vec<String>), Error> {
    let refuse = |why: String| Error::Isolation { wanted: wanted.to_string(), why };
    let chosen = |notes| (wanted.clone(), notes);
    match wanted {
        Isolation::Root => root(workplace).map(|()| chosen(Vec::new())).map_err(refuse),
        Isolation::UserNamespace => native::probe(true, workplace).map(|()| chosen(Vec::new())).map_err(refuse),
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
    match native::probe(true, workplace) {
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
    native::probe(false, workplace)
}
