//! The directory of each pod: its volumes, and a record of the pod for a kubelet that starts after it is gone.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::kubelet::registry::create_directory;

/// The grace period of pods that have none.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The directories of all pods, by UID.
#[derive(Debug, Clone)]
pub(super) struct Directories(PathBuf);

impl Directories {
    pub(super) fn new(root: PathBuf) -> Self {
        Self(root)
    }

    pub(super) fn of(&self, uid: &str) -> PathBuf {
        self.0.join(uid)
    }

    /// Creates the directory of a pod, and records its grace period.
    pub(super) fn create(&self, uid: &str, pod: &Pod) -> io::Result<()> {
        let directory = self.of(uid);
        create_directory(&directory)?;
        std::fs::write(directory.join("grace"), grace(pod).as_secs().to_string())
    }

    /// Returns the UIDs of pods that have a directory.
    pub(super) fn pods(&self) -> Vec<String> {
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::error!(directory = %self.0.display(), %error, "kubelet: listing pods of earlier kubelets failed");
                return Vec::new();
            }
        };
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    /// Returns the grace period of a pod that is gone.
    pub(super) fn grace(&self, uid: &str) -> Duration {
        let recorded = std::fs::read_to_string(self.of(uid).join("grace")).ok();
        recorded.and_then(|seconds| seconds.parse().ok()).map_or(DEFAULT_GRACE, Duration::from_secs)
    }

    pub(super) fn remove(&self, uid: &str) {
        match std::fs::remove_dir_all(self.of(uid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(pod = uid, %error, "kubelet: removing a pod's directory failed");
            }
            _ => {}
        }
    }
}

/// Returns the grace period of a pod's containers.
pub(super) fn grace(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = pod.metadata.deletion_grace_period_seconds.or(spec);
    seconds.map_or(DEFAULT_GRACE, |seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}
