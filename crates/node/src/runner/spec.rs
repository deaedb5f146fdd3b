//! What a container is to be, and what became of it.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

/// A container to start. There are no images: its programs are those of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerSpec {
    /// The UID of its pod.
    pub pod_uid: String,
    /// The name of its pod, which is also its host name in the environment.
    pub pod_name: String,
    /// The namespace of its pod.
    pub namespace: String,
    /// Its name in the pod.
    pub name: String,
    /// Program and arguments; the program is looked for in the container's own `PATH`.
    pub command: Vec<String>,
    /// Variables. Only `PATH` and `HOSTNAME` are there besides, and those of CDI.
    pub env: Vec<(String, String)>,
    /// Where to start; made if it is not there. The root directory by default.
    pub working_dir: Option<PathBuf>,
    /// Qualified names of CDI devices.
    pub cdi_devices: Vec<String>,
    /// Files and directories of the host to mount.
    pub host_paths: Vec<HostPath>,
}

/// A file or directory of the host in a container, with the mounts below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// The path on the host.
    pub host: PathBuf,
    /// The path in the container.
    pub container: PathBuf,
    /// Whether the container may not write to it. As in Kubernetes, that leaves out mounts below it.
    pub read_only: bool,
}

/// Names a container for as long as its [`Runner`](super::Runner) lives: 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub(crate) String);

impl ContainerId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A container that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerInfo {
    /// Its id.
    pub id: ContainerId,
    /// Its name in the pod.
    pub name: String,
    /// The UID of its pod.
    pub pod_uid: String,
    /// The name of its pod.
    pub pod_name: String,
    /// The namespace of its pod.
    pub namespace: String,
    /// Whether it runs.
    pub state: State,
    /// When it was started.
    pub started: SystemTime,
    /// When it ended.
    pub finished: Option<SystemTime>,
    /// What its devices want and it does not have, for humans.
    pub notes: Vec<String>,
}

/// Whether a container runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It does.
    Running {
        /// The id of its first process on the host; with an OCI runtime, that of the runtime.
        pid: u32,
    },
    /// It does not any more, or never did.
    Exited(Exit),
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 and the signal's number if it was a signal, 128 if the program could not be started.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// In the words of Kubernetes: `Completed`, `Error` or `StartError`.
    pub reason: String,
    /// More for humans; empty unless it could not be started.
    pub message: String,
}

impl Exit {
    pub(super) fn new(code: i32, signal: Option<i32>) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        Self { code, signal, reason: reason.to_owned(), message: String::new() }
    }

    pub(super) fn not_started(message: String) -> Self {
        Self { code: 128, signal: None, reason: "StartError".to_owned(), message }
    }
}
