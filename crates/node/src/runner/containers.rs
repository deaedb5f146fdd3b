//! The containers of a runner: what is known of each, and the threads that wait for their ends.
//!
//! A process is reaped only under the lock and together with the change of its state. So while the state says that it
//! runs, its number is its own, and a signal cannot hit another process.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use rustix::thread::LinkNameSpaceType;
use tokio::sync::watch;

use super::error::Error;
use super::leftovers;
use super::namespaces::Namespaces;
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
    /// The signal that SIGKILL was sent in place of; 0 for none. See [`is_shielded`].
    pub killed_for: AtomicI32,
}

/// Who takes care of a container's processes.
#[derive(Debug)]
pub(super) enum Keeper {
    /// We do; they are in these namespaces, as long as it runs.
    Own(Mutex<Option<Arc<Namespaces>>>),
    /// An OCI runtime.
    Oci(OciContainer),
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
                own.wait_for(&id, &inside, process);
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
    fn wait_for(&self, id: &ContainerId, inside: &Inside, mut process: Child) {
        let pid = pid(&process);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
        // It is a zombie now, which keeps its number and that of its group.
        let cleaned = match &inside.keeper {
            Keeper::Own(namespaces) => {
                // Let go of afterwards: they hold all that was in the container's own file systems.
                let namespaces = namespaces.lock().unwrap_or_else(PoisonError::into_inner).take();
                match namespaces.as_deref() {
                    // The kernel has ended all that were in it before its first process was one that had ended.
                    Some(own) if own.has_processes() => Ok(()),
                    own => kill_group(pid, Signal::KILL).and_then(|()| {
                        let mounts = own.and_then(|own| own.get(LinkNameSpaceType::Mount));
                        mounts.map_or(Ok(()), |mounts| Ok(leftovers::kill(mounts)?))
                    }),
                }
            }
            Keeper::Oci(container) => container.delete(),
        };
        if let Err(error) = cleaned {
            tracing::error!(container = %id, %error, "processes of a container that ended may still run");
        }
        let mut table = self.table();
        let exit = match process.wait() {
            Ok(status) => {
                let stands_for = Some(inside.killed_for.load(Ordering::Relaxed)).filter(|signal| *signal != 0);
                let killed = |signal: &i32| *signal == Signal::KILL.as_raw();
                let signal = status.signal().map(|signal| stands_for.filter(|_| killed(&signal)).unwrap_or(signal));
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
            (State::Running { pid }, Keeper::Own(namespaces)) => {
                let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
                let namespaces = namespaces.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let is_first = namespaces.is_some_and(|own| own.has_processes());
                if is_first && signal != Signal::KILL && is_shielded(pid, signal) {
                    container.inside.killed_for.store(signal.as_raw(), Ordering::Relaxed);
                    return kill_group(pid, Signal::KILL).map(|()| None);
                }
                kill_group(pid, signal).map(|()| None)
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

/// Whether the kernel would keep a signal from a process because it is the first of its namespace: that is so for all that it
/// does not handle. Anybody else would end by SIGTERM, and so shall a `sleep` in a container, without having to be waited
/// for until its grace period is over.
fn is_shielded(pid: Pid, signal: Signal) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())) else { return false };
    let has = |field: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim);
        // What cannot be read is as good as handled: nobody is killed for that.
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .is_none_or(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
    };
    !["SigBlk:", "SigIgn:", "SigCgt:"].into_iter().any(has)
}

fn kill_group(pid: Pid, signal: Signal) -> io::Result<()> {
    match kill_process_group(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
