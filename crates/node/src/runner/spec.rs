//! The spec of a container, and its state.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

/// A container to start. There are no images: its programs are those of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerSpec {
    /// The UID of the pod.
    pub pod_uid: String,
    /// The name of the pod, which is also the host name.
    pub pod_name: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// The name in the pod.
    pub name: String,
    /// The program and its arguments; the program is searched in the container's own `PATH`.
    pub command: Vec<String>,
    /// Environment variables. `PATH`, `HOSTNAME` and those of CDI devices are added.
    pub env: Vec<(String, String)>,
    /// The working directory; created if necessary. The root directory by default.
    pub working_dir: Option<PathBuf>,
    /// The qualified names of CDI devices.
    pub cdi_devices: Vec<String>,
    /// Files and directories of the host to mount.
    pub host_paths: Vec<HostPath>,
}

/// A file or directory of the host to mount, with its submounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// The path on the host.
    pub host: PathBuf,
    /// The path in the container.
    pub container: PathBuf,
    /// Whether the mount is read-only. As in Kubernetes, that excludes submounts.
    pub read_only: bool,
}

/// The id of a container, unique while its [`Runner`](super::Runner) lives: 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub(crate) String);

impl ContainerId {
    /// Returns the id as text.
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
    /// The id.
    pub id: ContainerId,
    /// The name in the pod.
    pub name: String,
    /// The UID of the pod.
    pub pod_uid: String,
    /// The name of the pod.
    pub pod_name: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// Whether it is running.
    pub state: State,
    /// When it was started.
    pub started: SystemTime,
    /// When it exited.
    pub finished: Option<SystemTime>,
    /// The edits of its devices that are ignored.
    pub notes: Vec<String>,
}

impl ContainerInfo {
    /// Describes a container of this spec that has not finished.
    pub(crate) fn new(id: ContainerId, spec: &ContainerSpec, state: State, started: SystemTime) -> Self {
        Self {
            id,
            name: spec.name.clone(),
            pod_uid: spec.pod_uid.clone(),
            pod_name: spec.pod_name.clone(),
            namespace: spec.namespace.clone(),
            state,
            started,
            finished: None,
            notes: Vec::new(),
        }
    }
}

/// The state of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The container is running.
    Running {
        /// The process id on the host of its first process, or of the OCI runtime.
        pid: u32,
    },
    /// The container has exited, or could not be started.
    Exited(Exit),
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 plus the signal's number after a signal, 128 if the program could not be started.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The reason in Kubernetes' terms: `Completed`, `Error` or `StartError`.
    pub reason: String,
    /// Details; empty unless it could not be started.
    pub message: String,
}

impl Exit {
    pub(super) fn new(code: i32, signal: Option<i32>) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        Self { code, signal, reason: reason.to_owned(), message: String::new() }
    }

    pub(crate) fn not_started(message: String) -> Self {
        Self { code: 128, signal: None, reason: "StartError".to_owned(), message }
    }
}
