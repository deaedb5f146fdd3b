//! The containers of a runner: the state of each, and the threads that wait for their exit.
//!
//! A process is reaped only under the lock, together with the change of its state. So while the state is `Running`, its
//! process id cannot have been reused, and a signal cannot hit another process.

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

/// How long a dropped runner waits for its killed containers.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// All containers that have not been removed.
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
    /// The directory of its files on the host.
    pub directory: PathBuf,
    /// For programs that are run in it later.
    pub exec_context: Arc<ExecContext>,
}

/// What is needed to run another program in the container.
#[derive(Debug)]
pub(super) struct ExecContext {
    pub env: Vec<(String, String)>,
    pub working_dir: String,
    pub groups: Vec<u32>,
    pub backend: Backend,
    /// The signal in place of which SIGKILL was sent; 0 for none. See [`is_dropped_for_init`].
    pub killed_for: AtomicI32,
}

/// What manages a container's processes.
#[derive(Debug)]
pub(super) enum Backend {
    /// This runner; the namespaces are held while the container runs.
    Native(Mutex<Option<Arc<Namespaces>>>),
    /// An OCI runtime.
    Oci(OciContainer),
}

impl Backend {
    pub(super) fn native(namespaces: Option<Namespaces>) -> Self {
        Self::Native(Mutex::new(namespaces.map(Arc::new)))
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

    fn notify(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        self.exited.notify_all();
    }

    /// Adds a container, and starts the thread that waits for its process.
    pub(super) fn add(self: &Arc<Self>, container: Container, process: Option<Child>) -> Result<(), Error> {
        let id = container.info.id.clone();
        let context = Arc::clone(&container.exec_context);
        self.table().insert(id.clone(), container);
        self.notify();
        let Some(process) = process else { return Ok(()) };
        let containers = Arc::clone(self);
        let entry = id.clone();
        let waiter = Builder::new().name("container-waiter".to_owned()).stack_size(128 << 10);
        // Taken out by the thread once it runs; if it cannot be started, the process is killed and reaped here.
        let process = Arc::new(Mutex::new(Some(process)));
        let shared = Arc::clone(&process);
        let take = |process: &Mutex<Option<Child>>| process.lock().unwrap_or_else(PoisonError::into_inner).take();
        let spawned = waiter.spawn(move || {
            if let Some(process) = take(&shared) {
                containers.wait_for(&id, &context, process);
            }
        });
        let Err(error) = spawned else { return Ok(()) };
        if let Some(mut process) = take(&process) {
            let _ = process.kill().and_then(|()| process.wait());
        }
        self.table().remove(&entry);
        Err(Error::Thread(format!("start a thread that waits for a container: {error}")))
    }

    /// Waits for the exit of a container's first process, and ends all others.
    fn wait_for(&self, id: &ContainerId, context: &ExecContext, mut process: Child) {
        let pid = pid(&process);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
        // It is a zombie now, which keeps its process id and process group id.
        let cleaned = match &context.backend {
            Backend::Native(namespaces) => {
                // Dropped at the end of this block: they keep the container's own file systems.
                let namespaces = namespaces.lock().unwrap_or_else(PoisonError::into_inner).take();
                match namespaces.as_deref() {
                    // The kernel has killed all others of the pid namespace before its first process became a zombie.
                    Some(own) if own.has_pid_namespace() => Ok(()),
                    own => kill_group(pid, Signal::KILL).and_then(|()| {
                        let mounts = own.and_then(|own| own.get(LinkNameSpaceType::Mount));
                        mounts.map_or(Ok(()), |mounts| Ok(leftovers::kill(mounts)?))
                    }),
                }
            }
            Backend::Oci(container) => container.delete(),
        };
        if let Err(error) = cleaned {
            tracing::error!(container = %id, %error, "cleaning up after a container failed, processes may remain");
        }
        let mut table = self.table();
        let exit = match process.wait() {
            Ok(status) => {
                let stands_for = Some(context.killed_for.load(Ordering::Relaxed)).filter(|signal| *signal != 0);
                let killed = |signal: &i32| *signal == Signal::KILL.as_raw();
                let signal = status.signal().map(|signal| stands_for.filter(|_| killed(&signal)).unwrap_or(signal));
                Exit::new(status.code().or(signal.map(|signal| 128 + signal)).unwrap_or(255), signal)
            }
            Err(error) => {
                tracing::error!(container = %id, %error, "reading the exit status of a container failed");
                Exit::new(255, None)
            }
        };
        if let Some(container) = table.get_mut(id) {
            container.info.state = State::Exited(exit);
            container.info.finished = Some(SystemTime::now());
        }
        drop(table);
        self.notify();
    }

    pub(super) fn list(&self, filter: impl Fn(&ContainerInfo) -> bool) -> Vec<ContainerInfo> {
        let mut list: Vec<ContainerInfo> =
            self.table().values().map(|container| &container.info).filter(|info| filter(info)).cloned().collect();
        list.sort_by(|a, b| (a.started, &a.id).cmp(&(b.started, &b.id)));
        list
    }

    pub(super) fn with<T>(&self, id: &ContainerId, read: impl FnOnce(&Container) -> T) -> Result<T, Error> {
        self.table().get(id).map(read).ok_or_else(|| Error::Unknown(id.clone()))
    }

    /// Returns the exit of a container, if it has exited.
    pub(super) fn exit(&self, id: &ContainerId) -> Result<Option<Exit>, Error> {
        self.with(id, |container| match &container.info.state {
            State::Running { .. } => None,
            State::Exited(exit) => Some(exit.clone()),
        })
    }

    /// Sends a signal to the process group of a running container. Blocks for the command of an OCI runtime.
    pub(super) fn signal(&self, id: &ContainerId, signal: Signal) -> Result<(), Error> {
        let send = |container: &Container| match (&container.info.state, &container.exec_context.backend) {
            (State::Exited(_), _) => Ok(None),
            (State::Running { .. }, Backend::Oci(_)) => Ok(Some(Arc::clone(&container.exec_context))),
            (State::Running { pid }, Backend::Native(namespaces)) => {
                let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
                let namespaces = namespaces.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let is_init = namespaces.is_some_and(|own| own.has_pid_namespace());
                if is_init && signal != Signal::KILL && is_dropped_for_init(pid, signal) {
                    container.exec_context.killed_for.store(signal.as_raw(), Ordering::Relaxed);
                    return kill_group(pid, Signal::KILL).map(|()| None);
                }
                kill_group(pid, signal).map(|()| None)
            }
        };
        let failed = |source| Error::Setup { container: id.to_string(), action: format!("send {signal:?}"), source };
        let context = self.with(id, send)?.map_err(failed)?;
        match context.as_deref().map(|context| &context.backend) {
            Some(Backend::Oci(container)) => container.signal(signal).map_err(failed),
            _ => Ok(()),
        }
    }

    /// Removes a container that is not running, and its files.
    pub(super) fn remove(&self, id: &ContainerId) -> Result<(), Error> {
        let mut table = self.table();
        match table.get(id).map(|container| &container.info.state) {
            None => return Ok(()),
            Some(State::Running { .. }) => return Err(Error::StillRunning(id.clone())),
            Some(State::Exited(_)) => {}
        }
        let Some(container) = table.remove(id) else { return Ok(()) };
        drop(table);
        self.notify();
        let path = container.directory;
        fs::remove_dir_all(&path).map_err(|source| Error::State { action: "remove", path, source })
    }

    /// Kills all containers and waits for their exit. Blocks.
    pub(super) fn kill_all(&self) {
        let running = |info: &ContainerInfo| matches!(info.state, State::Running { .. });
        for info in self.list(running) {
            if let Err(error) = self.signal(&info.id, Signal::KILL) {
                tracing::error!(container = %info.id, %error, "killing a container failed");
            }
        }
        let some_run = |table: &mut HashMap<ContainerId, Container>| table.values().any(|c| running(&c.info));
        let waited = self.exited.wait_timeout_while(self.table(), KILL_TIMEOUT, some_run);
        if waited.map_or_else(|error| error.into_inner().1, |(_, timeout)| timeout).timed_out() {
            tracing::error!("killed containers did not exit in time");
        }
    }
}

/// Returns the process id. It is not reused, since the process has not been reaped.
pub(super) fn pid(process: &Child) -> Pid {
    Pid::from_child(process)
}

/// Reports whether the kernel drops a signal because the process is the first of its pid namespace and has no handler for
/// it. Elsewhere SIGTERM would end such a process, and so it should end a `sleep` in a container, without waiting for the
/// grace period.
fn is_dropped_for_init(pid: Pid, signal: Signal) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())) else { return false };
    let has = |field: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim);
        // An unreadable mask counts as handled, so that no process is killed because of it.
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
