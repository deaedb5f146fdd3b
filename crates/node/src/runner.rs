//! The container runner, in the place of containerd: real processes, each in namespaces of its own, with CDI devices.
//!
//! A container sees the host's programs in a root of its own, exactly the mounts, device nodes and variables of its pod and
//! its CDI devices, and nothing of the process that started it. Containers run until they exit, are stopped, or their
//! [`Runner`] is dropped, which leaves no process, mount or file of them. If the runner's process is killed, no process and
//! no mount remains, but files in the state directory do.
//!
//! A container has namespaces of its own, a few capabilities, no way to gain more, and a seccomp filter. As root it sees only
//! its own processes; in a user namespace it sees those of the host. Nevertheless it is made to show what a driver does to a
//! container, not to confine untrusted code: programs and their files are the host's, and so are the network (except on a node
//! with [NRI](crate::nri)), the user ids of root's containers, and CPU and memory, which are not limited.
//!
//! ```no_run
//! # async fn example() -> Result<(), drakkar_node::runner::Error> {
//! use drakkar_node::runner::{Config, ContainerSpec, Runner};
//!
//! let runner = Runner::new(Config::new(["/var/run/cdi"], "/tmp/containers"))?;
//! let spec = ContainerSpec {
//!     name: "train".into(),
//!     command: vec!["ls".into(), "/dev/example".into()],
//!     cdi_devices: vec!["example.com/gpu=0".into()],
//!     ..ContainerSpec::default()
//! };
//! let id = runner.start(spec).await?;
//! println!("{:?}", runner.wait(&id).await?);
//! # Ok(())
//! # }
//! ```

mod capabilities;
pub mod cdi;
mod child_action;
mod containers;
mod error;
mod exec;
mod guard;
mod isolation;
mod launch;
mod leftovers;
mod limit;
mod mount_options;
mod namespaces;
mod native;
mod oci;
pub(crate) mod pod_namespaces;
mod root;
mod spawn;
mod spawner;
mod spec;
mod syscalls;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Output};
use std::sync::Arc;
use std::time::Duration;

use drakkar_apiserver::{ExecOptions, ExecSession};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::watch;

pub use error::Error;
pub use isolation::Isolation;
pub(crate) use limit::Limit;
pub(crate) use mount_options::ignored as ignored_mount_options;
pub(crate) use native::Extras;
pub use spec::{ContainerId, ContainerInfo, ContainerSpec, Exit, HostPath, State};

use cdi::{Cache, Edits, Specs};
use containers::Containers;
use exec::Connection;
use guard::Guard;
use launch::{Launch, Launcher};
use root::MountPoints;
use spawner::Spawner;

/// The configuration of a runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The CDI spec directories; later ones have priority. They need not exist.
    pub cdi_dirs: Vec<PathBuf>,
    /// The directory for logs and bundles; created if necessary. Several runners can share it.
    pub state_dir: PathBuf,
    /// How containers are isolated from the host.
    pub isolation: Isolation,
}

impl Config {
    /// Configures containers with these CDI directories, in the best isolation that works.
    pub fn new<P: Into<PathBuf>>(cdi_dirs: impl IntoIterator<Item = P>, state_dir: impl Into<PathBuf>) -> Self {
        let cdi_dirs = cdi_dirs.into_iter().map(Into::into).collect();
        Self { cdi_dirs, state_dir: state_dir.into(), isolation: Isolation::Auto }
    }
}

/// Runs containers. Dropping it kills them all, and blocks for some milliseconds until they have exited.
#[derive(Debug)]
pub struct Runner {
    // Dropped in this order: the thread that starts containers, then their files.
    spawner: Option<Spawner>,
    containers: Arc<Containers>,
    launcher: Arc<Launcher>,
    notes: Vec<String>,
    /// The directory of the containers' files, removed with its content.
    state: Option<TempDir>,
    /// The configured state directory, if this runner has created it.
    created_dir: Option<PathBuf>,
}

impl Runner {
    /// Creates a runner, and finds out which isolation works. Blocks for some milliseconds.
    pub fn new(config: Config) -> Result<Self, Error> {
        let Config { cdi_dirs, state_dir, isolation } = config;
        let create_dir = !state_dir.exists();
        let failed = |action| {
            let path = state_dir.clone();
            move |source: io::Error| Error::State { action, path, source }
        };
        fs::create_dir_all(&state_dir).map_err(failed("create directory"))?;
        let state_dir = fs::canonicalize(&state_dir).map_err(failed("find"))?;
        let created_dir = create_dir.then(|| state_dir.clone());
        let state = tempfile::Builder::new()
            .prefix("runner-")
            .tempdir_in(&state_dir)
            .map_err(failed("create a directory in"))?;
        let spawner = Spawner::start().map_err(|error| Error::Thread(format!("start a thread: {error}")))?;
        let root = state.path().join("root");
        let scratch = state.path().join("scratch");
        for path in [&root, &scratch] {
            let failed = |source| Error::State { action: "create directory", path: path.clone(), source };
            fs::create_dir(path).map_err(failed)?;
        }
        let (isolation, notes) = isolation::choose(&isolation, &MountPoints { root: &root, scratch: &scratch })?;
        let guard = match isolation {
            Isolation::UserNamespace => {
                Some(Guard::start().map_err(|error| Error::Thread(format!("start a guard: {error}")))?)
            }
            _ => None,
        };
        let containers = Arc::new(Containers::new());
        let launcher = Launcher {
            cdi: Cache::new(cdi_dirs),
            directory: state.path().to_owned(),
            root,
            scratch,
            isolation,
            isolation_notes: notes.join("; "),
            containers: Arc::clone(&containers),
            guard: guard.map(Arc::new),
        };
        Ok(Self {
            spawner: Some(spawner),
            containers,
            launcher: Arc::new(launcher),
            notes,
            state: Some(state),
            created_dir,
        })
    }

    /// Returns the isolation in use; never [`Isolation::Auto`].
    pub fn isolation(&self) -> &Isolation {
        &self.launcher.isolation
    }

    /// Describes what isolates containers from the host. It is not a sandbox; see the [module](self).
    pub fn isolation_summary(&self) -> String {
        self.launcher.isolation.summary()
    }

    /// Returns why a better isolation is not used. Empty if the best is used.
    pub fn isolation_notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the CDI specs as a container runtime sees them now, with their problems. Blocks.
    pub fn specs(&self) -> Arc<Specs> {
        self.launcher.cdi.specs()
    }

    /// Returns what a container would get besides the host's programs, and which edits of its devices are ignored. Blocks.
    pub fn resolve(&self, spec: &ContainerSpec) -> Result<(Edits, Vec<String>), Error> {
        self.launcher.resolve(spec)
    }

    /// Starts a container. If the future is dropped, the container may be started nevertheless, as with a real runtime; it is
    /// then in the [list](Self::list).
    ///
    /// A container whose program could not be started is in the list, too: see [`Error::is_start_error`].
    pub async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, Error> {
        let launcher = Arc::clone(&self.launcher);
        let outcome = self.spawner()?.run(move |result| {
            // The caller may be gone; the container is in the list.
            let _ = result.send(launcher.start(&spec));
        })?;
        outcome.await.map_err(|_closed| gone())?
    }

    /// Returns what a container would get, like [`resolve`](Self::resolve), without blocking the caller's thread.
    pub(crate) async fn resolve_container(&self, spec: &ContainerSpec) -> Result<Edits, Error> {
        let launcher = Arc::clone(&self.launcher);
        let spec = spec.clone();
        let outcome = self.spawner()?.run(move |result| {
            let _ = result.send(launcher.resolve(&spec));
        })?;
        let (edits, _) = outcome.await.map_err(|_closed| gone())??;
        Ok(edits)
    }

    /// Applies further CDI devices to the edits of a container.
    pub(crate) async fn inject(
        &self,
        spec: &ContainerSpec,
        devices: Vec<String>,
        mut edits: Edits,
    ) -> Result<Edits, Error> {
        let launcher = Arc::clone(&self.launcher);
        let spec = spec.clone();
        let outcome = self.spawner()?.run(move |result| {
            let _ = result.send(launcher.inject(&spec, &devices, &mut edits).map(|()| edits));
        })?;
        outcome.await.map_err(|_closed| gone())?
    }

    /// Returns the id for a new container.
    pub(crate) fn new_id(spec: &ContainerSpec) -> ContainerId {
        launch::new_id(spec)
    }

    /// Starts a container whose edits are resolved, under an id of [`new_id`](Self::new_id).
    pub(crate) async fn start_resolved(
        &self,
        id: ContainerId,
        spec: ContainerSpec,
        edits: Edits,
        extras: Extras,
    ) -> Result<ContainerId, Error> {
        let launcher = Arc::clone(&self.launcher);
        let outcome = self.spawner()?.run(move |result| {
            let notes = launcher.notes(&edits);
            // The caller may be gone; the container is in the list.
            let _ = result.send(launcher.launch(&Launch { id, spec, edits, notes, extras }));
        })?;
        outcome.await.map_err(|_closed| gone())?
    }

    /// Adds a container that was created, and whose start was refused, to the list. Returns the error.
    pub(crate) fn add_failed(
        &self,
        id: ContainerId,
        spec: ContainerSpec,
        reason: String,
    ) -> Result<ContainerId, Error> {
        let launch = Launch { id, spec, edits: Edits::default(), notes: Vec::new(), extras: Extras::default() };
        Err(self.launcher.add_failed(&launch, reason))
    }

    /// Returns the containers of a pod, in the order in which they were started.
    pub fn list(&self, pod_uid: &str) -> Vec<ContainerInfo> {
        self.containers.list(|info| info.pod_uid == pod_uid)
    }

    /// Returns all containers, in the order in which they were started.
    pub fn all(&self) -> Vec<ContainerInfo> {
        self.containers.list(|_| true)
    }

    /// Returns a container.
    pub fn info(&self, id: &ContainerId) -> Result<ContainerInfo, Error> {
        self.containers.with(id, |container| container.info.clone())
    }

    /// Waits until the container has exited, with all its processes. Returns at once if it already has.
    pub async fn wait(&self, id: &ContainerId) -> Result<Exit, Error> {
        let mut changes = self.containers.subscribe();
        loop {
            if let Some(exit) = self.containers.exit(id)? {
                return Ok(exit);
            }
            changes.changed().await.map_err(|_closed| gone())?;
        }
    }

    /// Stops a container: sends SIGTERM to its process group, and SIGKILL after the grace period. Returns when it has exited. A
    /// program without a handler for SIGTERM is killed at once, even if it is the first process of a pid namespace.
    pub async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<Exit, Error> {
        self.signal(id, Signal::TERM).await?;
        if let Ok(exit) = tokio::time::timeout(grace, self.wait(id)).await {
            return exit;
        }
        self.kill(id).await
    }

    /// Sends SIGKILL to a container's process group. Returns when it has exited.
    pub async fn kill(&self, id: &ContainerId) -> Result<Exit, Error> {
        self.signal(id, Signal::KILL).await?;
        self.wait(id).await
    }

    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<(), Error> {
        let containers = Arc::clone(&self.containers);
        let id = id.clone();
        let outcome = self.spawner()?.run(move |result| {
            let _ = result.send(containers.signal(&id, signal));
        })?;
        outcome.await.map_err(|_closed| gone())?
    }

    /// Removes a container that has exited, and its log. Succeeds if there is no such container.
    pub fn remove(&self, id: &ContainerId) -> Result<(), Error> {
        self.containers.remove(id)
    }

    /// Returns what the container has written to its standard output and error so far.
    pub fn logs(&self, id: &ContainerId) -> io::Result<Vec<u8>> {
        fs::read(self.log_file(id)?)
    }

    /// Returns the file that the container writes its standard output and error to. It is removed with the container.
    pub fn log_file(&self, id: &ContainerId) -> io::Result<PathBuf> {
        let directory = self.containers.with(id, |container| container.directory.clone());
        Ok(launch::log(&directory.map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?))
    }

    /// Runs a program in a running container, with the container's variables and working directory, and returns its output. If
    /// the future is dropped the program is killed; it also ends with the container.
    pub async fn exec(&self, id: &ContainerId, command: &[String]) -> Result<Output, Error> {
        let launcher = Arc::clone(&self.launcher);
        let id = id.clone();
        let command = command.to_vec();
        let outcome = self.spawner()?.run(move |result| {
            let child = launcher.spawn_exec(&id, &command, &Connection::Pipes { stdin: false });
            // If the caller is gone, dropping the process kills the program.
            let _ = result.send(child.and_then(|child| exec::wait_on_thread(child, Child::wait_with_output)));
        })?;
        let (process, output) = outcome.await.map_err(|_closed| gone())??;
        let output = output.await.map_err(|_closed| gone())?;
        process.exited();
        output.map_err(|error| Error::Thread(format!("read the output of a program: {error}")))
    }

    /// Starts a program in a running container, with its input and output connected. Needs a tokio runtime with IO. Dropping
    /// the session kills the program; it also ends with the container.
    pub async fn attach(&self, id: &ContainerId, options: ExecOptions) -> Result<ExecSession, Error> {
        let launcher = Arc::clone(&self.launcher);
        let id = id.clone();
        let wanted = options.clone();
        let outcome = self.spawner()?.run(move |result| {
            // If the caller is gone, the program ends when it reads or writes.
            let _ = result.send(launcher.attach(&id, &wanted));
        })?;
        outcome.await.map_err(|_closed| gone())??.session(&options)
    }

    /// Returns a counter that changes whenever a container starts, exits or is removed.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.containers.subscribe()
    }

    fn spawner(&self) -> Result<&Spawner, Error> {
        self.spawner.as_ref().ok_or_else(gone)
    }
}

fn gone() -> Error {
    Error::Thread("the runner is gone".to_owned())
}

impl Drop for Runner {
    fn drop(&mut self) {
        // First the thread, so that a container that it is just starting is in the list. Its end kills containers, too.
        self.spawner = None;
        self.containers.kill_all();
        let removed = self.state.take().map_or(Ok(()), TempDir::close);
        let removed = removed.and_then(|()| match &self.created_dir {
            // Another runner may use it by now.
            Some(path) => fs::remove_dir(path).or_else(|error| match error.kind() {
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            None => Ok(()),
        });
        if let Err(error) = removed {
            tracing::error!(%error, "removing the files of containers failed");
        }
    }
}
