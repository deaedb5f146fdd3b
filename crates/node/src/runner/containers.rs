//! The containers of a runner: what is known of each, and the threads that wait for their ends.
//!
//! A process is reaped only under the lock and together with the change of its state. So while the state says that it
//! runs, its number is its own, and a signal cannot hit another process.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::watch;

use super::error::Error;
use super::guard::Ticket;
use super::leftovers;
use super::oci::OciContainer;
use super::spec::{ContainerId, ContainerInfo, Exit, State};

/// How long a runner waits for its killed containers when it is dropped.
const LAST_BREATH: Duration = Duration::from_secs(10);

/// All containers that were not removed.
#[derive(Debug)]
pub(super) struct Containers {
    table: Mutex<HashMap<ContainerId, Container>>,
    exited: Condvar,
    changed: watch::Sender<u64>,
}

/// One container.
#[derive(Debug)]
pub(super) struct Container {
    pub info: ContainerInfo,
    /// Its files on the host.
    pub directory: PathBuf,
    /// For programs that are run in it later.
    pub inside: Arc<Inside>,
}

/// What a program needs to be in the container, too.
#[derive(Debug)]
pub(super) struct Inside {
    pub env: Vec<(String, String)>,
    pub working_dir: String,
    pub groups: Vec<u32>,
    /// Who takes care of its processes.
    pub keeper: Keeper,
}

/// Who takes care of a container's processes.
#[derive(Debug)]
pub(super) enum Keeper {
    /// We do; they are in these namespaces, as long as it runs.
    Own(Mutex<Option<Arc<Namespaces>>>),
    /// An OCI runtime.
    Oci(OciContainer),
}

/// The namespaces of a container.
#[derive(Debug)]
pub(super) struct Namespaces {
    pub mounts: OwnedFd,
    /// If it has its own.
    pub users: Option<OwnedFd>,
    /// Kept only to be dropped.
    pub _guarded: Option<Ticket>,
}

impl Keeper {
    pub(super) fn own(namespaces: Option<Namespaces>) -> Self {
        Self::Own(Mutex::new(namespaces.map(Arc::new)))
    }
}

impl Containers {
    pub(super) fn new() -> Self {
        Self { table: Mutex::default(), exited: Condvar::new(), changed: watch::Sender::new(0) }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn table(&self) -> MutexGuard<'_, HashMap<ContainerId, Container>> {
        // Nothing panics while it is locked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        self.exited.notify_all();
    }

    /// Takes a container in, and its process into the care of a thread.
    pub(super) fn add(self: &Arc<Self>, container: Container, process: Option<Child>) -> Result<(), Error> {
        let id = container.info.id.clone();
        let inside = Arc::clone(&container.inside);
        self.table().insert(id.clone(), container);
        self.tell();
        let Some(process) = process else { return Ok(()) };
        let (own, entry) = (Arc::clone(self), id.clone());
        let waiter = Builder::new().name("container-waiter".to_owned()).stack_size(128 << 10);
        // The process is moved only once the thread is there: otherwise it is killed and reaped here.
        let process = Arc::new(Mutex::new(Some(process)));
        let care = Arc::clone(&process);
        let take = |process: &Mutex<Option<Child>>| process.lock().unwrap_or_else(PoisonError::into_inner).take();
        let spawned = waiter.spawn(move || {
            if let Some(process) = take(&care) {
                own.wait_for(&id, &inside.keeper, process);
            }
        });
        let Err(error) = spawned else { return Ok(()) };
        if let Some(mut process) = take(&process) {
            let _ = process.kill().and_then(|()| process.wait());
        }
        self.table().remove(&entry);
        Err(Error::Thread(format!("start a thread that waits for a container: {error}")))
    }

    /// Waits for the end of a process and all that it leaves behind.
    fn wait_for(&self, id: &ContainerId, keeper: &Keeper, mut process: Child) {
        let pid = pid(&process);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
        // It is a zombie now, which keeps its number and that of its group.
        let cleaned = match keeper {
            Keeper::Own(namespaces) => {
                // Let go of afterwards: they hold all that was in the container's own file systems.
                let namespaces = namespaces.lock().unwrap_or_else(PoisonError::into_inner).take();
                let group = kill_group(pid, Signal::KILL);
                group.and_then(|()| namespaces.map_or(Ok(()), |own| Ok(leftovers::kill(&own.mounts)?)))
            }
            Keeper::Oci(container) => container.delete(),
        };
        if let Err(error) = cleaned {
            tracing::error!(container = %id, %error, "processes of a container that ended may still run");
        }
        let mut table = self.table();
        let exit = match process.wait() {
            Ok(status) => {
                let signal = status.signal();
                Exit::new(status.code().or(signal.map(|signal| 128 + signal)).unwrap_or(255), signal)
            }
            Err(error) => {
                tracing::error!(container = %id, %error, "the exit status of a container is lost");
                Exit::new(255, None)
            }
        };
        if let Some(container) = table.get_mut(id) {
            container.info.state = State::Exited(exit);
            container.info.finished = Some(SystemTime::now());
        }
        drop(table);
        self.tell();
    }

    pub(super) fn list(&self, wanted: impl Fn(&ContainerInfo) -> bool) -> Vec<ContainerInfo> {
        let mut list: Vec<ContainerInfo> =
            self.table().values().map(|container| &container.info).filter(|info| wanted(info)).cloned().collect();
        list.sort_by(|a, b| (a.started, &a.id).cmp(&(b.started, &b.id)));
        list
    }

    pub(super) fn with<T>(&self, id: &ContainerId, look: impl FnOnce(&Container) -> T) -> Result<T, Error> {
        self.table().get(id).map(look).ok_or_else(|| Error::Unknown(id.clone()))
    }

    /// How it ended, if it has.
    pub(super) fn exit(&self, id: &ContainerId) -> Result<Option<Exit>, Error> {
        self.with(id, |container| match &container.info.state {
            State::Running { .. } => None,
            State::Exited(exit) => Some(exit.clone()),
        })
    }

    /// Sends a signal to a container's process group, if it runs. With an OCI runtime blocks for its command.
    pub(super) fn signal(&self, id: &ContainerId, signal: Signal) -> Result<(), Error> {
        let send = |container: &Container| match (&container.info.state, &container.inside.keeper) {
            (State::Exited(_), _) => Ok(None),
            (State::Running { .. }, Keeper::Oci(_)) => Ok(Some(Arc::clone(&container.inside))),
            (State::Running { pid }, Keeper::Own(_)) => {
                let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
                pid.map_or(Ok(()), |pid| kill_group(pid, signal)).map(|()| None)
            }
        };
        let failed = |source| Error::Setup { container: id.to_string(), step: format!("send {signal:?}"), source };
        let inside = self.with(id, send)?.map_err(failed)?;
        match inside.as_deref().map(|inside| &inside.keeper) {
            Some(Keeper::Oci(container)) => container.signal(signal).map_err(failed),
            _ => Ok(()),
        }
    }

    /// Forgets a container that does not run, and removes its files.
    pub(super) fn remove(&self, id: &ContainerId) -> Result<(), Error> {
        let mut table = self.table();
        match table.get(id).map(|container| &container.info.state) {
            None => return Ok(()),
            Some(State::Running { .. }) => return Err(Error::StillRunning(id.clone())),
            Some(State::Exited(_)) => {}
        }
        let Some(container) = table.remove(id) else { return Ok(()) };
        drop(table);
        self.tell();
        let path = container.directory;
        fs::remove_dir_all(&path).map_err(|source| Error::State { action: "remove", path, source })
    }

    /// Kills all containers and waits for their ends. Blocks.
    pub(super) fn kill_all(&self) {
        let running = |info: &ContainerInfo| matches!(info.state, State::Running { .. });
        for info in self.list(running) {
            if let Err(error) = self.signal(&info.id, Signal::KILL) {
                tracing::error!(container = %info.id, %error, "a container cannot be killed");
            }
        }
        let some_run = |table: &mut HashMap<ContainerId, Container>| table.values().any(|c| running(&c.info));
        let waited = self.exited.wait_timeout_while(self.table(), LAST_BREATH, some_run);
        if waited.map_or_else(|error| error.into_inner().1, |(_, timeout)| timeout).timed_out() {
            tracing::error!("containers that were killed do not end");
        }
    }
}

/// The process's number. It has not been reaped, so it is still its own.
pub(super) fn pid(process: &Child) -> Pid {
    Pid::from_child(process)
}

fn kill_group(pid: Pid, signal: Signal) -> io::Result<()> {
    match kill_process_group(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
