//! The container runner: plays containerd. Real processes, each in namespaces of its own, with what CDI says.
//!
//! A container sees the host's programs in a root of its own, exactly the mounts, device nodes and variables that its pod
//! and its CDI devices say, and nothing of the process that started it. Containers live until they end, are stopped, or
//! their [`Runner`] is dropped: then nothing of them is left, no process, mount or file. When its process is killed, no
//! process and no mount is left, but files in the state directory are.
//!
//! A container has namespaces of its own, a few capabilities, no way to more, and a filter for system calls. As root it sees
//! its own processes only; in a user namespace it sees those of the host. It is all the same made to show what a driver does
//! to a container, not to hold code that nobody trusts: programs and their files are the host's, and so are the network,
//! the user ids of root's containers, and processor and memory, which nothing limits.
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
mod containers;
mod error;
mod guard;
mod isolation;
mod launch;
mod leftovers;
mod mount_options;
mod namespaces;
mod native;
mod oci;
mod root;
mod spawn;
mod spawner;
mod spec;
mod step;
mod syscalls;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};
use tempfile::TempDir;
use tokio::sync::watch;

pub use error::Error;
pub use isolation::Isolation;
pub use spec::{ContainerId, ContainerInfo, ContainerSpec, Exit, HostPath, State};

use cdi::{Cache, Edits, Specs};
use containers::Containers;
use guard::Guard;
use launch::Launcher;
use root::Workplace;
use spawner::Spawner;

/// How containers are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// CDI spec directories; a later one has priority. They need not be there.
    pub cdi_dirs: Vec<PathBuf>,
    /// Where logs and bundles are; made if it is not there. Several runners can share it.
    pub state_dir: PathBuf,
    /// How containers are kept apart from the host.
    pub isolation: Isolation,
}

impl Config {
    /// Containers with these CDI directories, in the best isolation that works.
    pub fn new<P: Into<PathBuf>>(cdi_dirs: impl IntoIterator<Item = P>, state_dir: impl Into<PathBuf>) -> Self {
        let cdi_dirs = cdi_dirs.into_iter().map(Into::into).collect();
        Self { cdi_dirs, state_dir: state_dir.into(), isolation: Isolation::Auto }
    }
}

/// Runs containers, all of which end with it. Dropping it blocks until they have, for some milliseconds.
#[derive(Debug)]
pub struct Runner {
    // Dropped in this order: the thread that starts containers, then their files.
    spawner: Option<Spawner>,
    containers: Arc<Containers>,
    launcher: Arc<Launcher>,
    notes: Vec<String>,
    /// Where containers' files are, removed with all that is in it.
    state: Option<TempDir>,
    /// The directory above it, if it was made for that.
    made: Option<PathBuf>,
}

impl Runner {
    /// Prepares to run containers: tries out what isolation there is. Blocks for some milliseconds.
    pub fn new(config: Config) -> Result<Self, Error> {
        let Config { cdi_dirs, state_dir, isolation } = config;
        let made = !state_dir.exists();
        let failed = |action| {
            let path = state_dir.clone();
            move |source: io::Error| Error::State { action, path, source }
        };
        fs::create_dir_all(&state_dir).map_err(failed("make directory"))?;
        let state_dir = fs::canonicalize(&state_dir).map_err(failed("find"))?;
        let made = made.then(|| state_dir.clone());
        let state =
            tempfile::Builder::new().prefix("runner-").tempdir_in(&state_dir).map_err(failed("make a directory in"))?;
        let spawner = Spawner::start().map_err(|error| Error::Thread(format!("start a thread: {error}")))?;
        let (root, scratch) = (state.path().join("root"), state.path().join("scratch"));
        for path in [&root, &scratch] {
            let failed = |source| Error::State { action: "make directory", path: path.clone(), source };
            fs::create_dir(path).map_err(failed)?;
        }
        let (isolation, notes) = isolation::choose(&isolation, &Workplace { root: &root, scratch: &scratch })?;
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
            why: notes.join("; "),
            containers: Arc::clone(&containers),
            guard: guard.map(Arc::new),
        };
        Ok(Self { spawner: Some(spawner), containers, launcher: Arc::new(launcher), notes, state: Some(state), made })
    }

    /// The isolation that is used; never [`Isolation::Auto`].
    pub fn isolation(&self) -> &Isolation {
        &self.launcher.isolation
    }

    /// What containers are kept apart from the host by, for humans. It is not a sandbox; see the top.
    pub fn kept_apart_by(&self) -> String {
        self.launcher.isolation.means()
    }

    /// Why the isolation is not a better one, for humans. Empty if there is none.
    pub fn isolation_notes(&self) -> &[String] {
        &self.notes
    }

    /// The CDI specs as a container runtime knows them now, with what is wrong with them. Blocks.
    pub fn specs(&self) -> Arc<Specs> {
        self.launcher.cdi.specs()
    }

    /// What a container would have besides the host's programs, and what its devices want in vain. Blocks.
    pub fn resolve(&self, spec: &ContainerSpec) -> Result<(Edits, Vec<String>), Error> {
        self.launcher.resolve(spec)
    }

    /// Starts a container. When the future is dropped the container may be started all the same, as with a real runtime
    /// that nobody waits for; it is then in the [list](Self::list).
    ///
    /// A container whose program could not be started is in the list, too: see [`Error::is_start_error`].
    pub async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, Error> {
        let launcher = Arc::clone(&self.launcher);
        let outcome = self.spawner()?.run(move |answer| {
            // Nobody may be waiting; the container is in the list.
            let _ = answer.send(launcher.start(&spec));
        })?;
        outcome.await.map_err(|_closed| gone())?
    }

    /// The containers of a pod, in the order of their starts.
    pub fn list(&self, pod_uid: &str) -> Vec<ContainerInfo> {
        self.containers.list(|info| info.pod_uid == pod_uid)
    }

    /// All containers, in the order of their starts.
    pub fn all(&self) -> Vec<ContainerInfo> {
        self.containers.list(|_| true)
    }

    /// One container.
    pub fn info(&self, id: &ContainerId) -> Result<ContainerInfo, Error> {
        self.containers.with(id, |container| container.info.clone())
    }

    /// Waits until the container has ended, with all its processes. Many may wait, also for one that has ended already.
    pub async fn wait(&self, id: &ContainerId) -> Result<Exit, Error> {
        let mut changes = self.containers.subscribe();
        loop {
            if let Some(exit) = self.containers.exit(id)? {
                return Ok(exit);
            }
            changes.changed().await.map_err(|_closed| gone())?;
        }
    }

    /// Stops a container: SIGTERM to its process group, and SIGKILL when the time is over. Returns when it has ended. A program
    /// that does not handle SIGTERM ends at once, also as the first process of a process namespace.
    pub async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<Exit, Error> {
        self.signal(id, Signal::TERM).await?;
        if let Ok(exit) = tokio::time::timeout(grace, self.wait(id)).await {
            return exit;
        }
        self.kill(id).await
    }

    /// Kills a container: SIGKILL to its process group. Returns when it has ended.
    pub async fn kill(&self, id: &ContainerId) -> Result<Exit, Error> {
        self.signal(id, Signal::KILL).await?;
        self.wait(id).await
    }

    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<(), Error> {
        let (containers, id) = (Arc::clone(&self.containers), id.clone());
        let outcome = self.spawner()?.run(move |answer| {
            let _ = answer.send(containers.signal(&id, signal));
        })?;
        outcome.await.map_err(|_closed| gone())?
    }

    /// Forgets a container that has ended, and removes its log. One that is not known is fine.
    pub fn remove(&self, id: &ContainerId) -> Result<(), Error> {
        self.containers.remove(id)
    }

    /// What the container has written to its standard output and error so far.
    pub fn logs(&self, id: &ContainerId) -> io::Result<Vec<u8>> {
        let directory = self.containers.with(id, |container| container.directory.clone());
        fs::read(launch::log(&directory.map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?))
    }

    /// Runs a program in a container that runs, with its variables and working directory, until it ends. When the future
    /// is dropped the program is killed; with the container it ends, too.
    pub async fn exec(&self, id: &ContainerId, command: &[String]) -> Result<Output, Error> {
        let (launcher, id, command) = (Arc::clone(&self.launcher), id.clone(), command.to_vec());
        let outcome = self.spawner()?.run(move |answer| {
            // If nobody waits the guard in it kills the program.
            let _ = answer.send(launcher.exec(&id, &command));
        })?;
        let mut running = outcome.await.map_err(|_closed| gone())??;
        let output = (&mut running.output).await.map_err(|_closed| gone())?;
        running.process = None;
        output.map_err(|error| Error::Thread(format!("read the output of a program: {error}")))
    }

    /// Changes whenever a container starts, ends or is removed.
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

/// A program in a container; killed when nobody wants its output any more.
#[derive(Debug)]
struct Running {
    process: Option<std::os::fd::OwnedFd>,
    output: tokio::sync::oneshot::Receiver<io::Result<Output>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            // It may be gone already.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // First the thread: what it was about to start is then in the list. Its end kills containers as well.
        self.spawner = None;
        self.containers.kill_all();
        let removed = self.state.take().map_or(Ok(()), TempDir::close);
        let removed = removed.and_then(|()| match &self.made {
            // Somebody else may use it by now.
            Some(path) => fs::remove_dir(path).or_else(|error| match error.kind() {
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            None => Ok(()),
        });
        if let Err(error) = removed {
            tracing::error!(%error, "files of containers are left behind");
        }
    }
}
