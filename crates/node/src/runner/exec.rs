//! Programs that run in a container besides its own.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, PoisonError};
use std::thread::Builder;

use drakkar_apiserver::{ExecOptions, ExecSession};
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::net::UnixStream;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::oneshot;

use super::containers::{Backend, ExecContext, pid};
use super::error::Error;
use super::launch::{Launcher, explain};
use super::native::{self, Program};
use super::spawn;
use super::spec::{ContainerId, State};

/// What the input and the output of a program are connected to.
#[derive(Debug)]
pub(super) enum Connection {
    /// Pipes.
    Pipes { stdin: bool },
    /// A terminal, by the end of the program.
    Terminal(OwnedFd),
}

/// The type of a terminal whose type is not known.
const TERM: (&str, &str) = ("TERM", "xterm");

/// A program that runs in a container. Dropping it kills the program.
#[derive(Debug)]
pub(super) struct ExecProcess {
    handle: Option<OwnedFd>,
}

impl ExecProcess {
    /// Lets the program be: it has exited.
    pub(super) fn exited(mut self) {
        self.handle = None;
    }
}

impl Drop for ExecProcess {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            // It may have exited already.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

/// A program that was started, with pipes or a terminal.
#[derive(Debug)]
pub(super) struct Attached {
    child: Child,
    terminal: Option<OwnedFd>,
}

impl Launcher {
    /// Starts a program in a running container.
    pub(super) fn attach(&self, id: &ContainerId, options: &ExecOptions) -> Result<Attached, Error> {
        let ExecOptions { command, stdin, tty, .. } = options;
        if !tty {
            let child = self.spawn_exec(id, command, &Connection::Pipes { stdin: *stdin })?;
            return Ok(Attached { child, terminal: None });
        }
        let failed = |errno: rustix::io::Errno| Error::Setup {
            container: id.to_string(),
            action: "open a terminal".to_owned(),
            source: errno.into(),
        };
        let (ours, theirs) = spawn::open_terminal().map_err(failed)?;
        let child = self.spawn_exec(id, command, &Connection::Terminal(theirs))?;
        Ok(Attached { child, terminal: Some(ours) })
    }

    /// Starts a program in a running container, with its input and output connected.
    pub(super) fn spawn_exec(
        &self,
        id: &ContainerId,
        command: &[String],
        connection: &Connection,
    ) -> Result<Child, Error> {
        let Some(program_name) = command.first() else {
            return Err(Error::NoCommand { container: id.to_string() });
        };
        let context = self.containers.with(id, |container| {
            matches!(container.info.state, State::Running { .. }).then(|| Arc::clone(&container.exec_context))
        })?;
        let context = context.ok_or_else(|| Error::NotRunning(id.clone()))?;
        let ExecContext { env, working_dir, groups, backend, .. } = &*context;
        let mut env = env.clone();
        if matches!(connection, Connection::Terminal(_)) && env.iter().all(|(name, _)| name != TERM.0) {
            env.push((TERM.0.to_owned(), TERM.1.to_owned()));
        }
        let spawned = match backend {
            Backend::Native(namespaces) => {
                let namespaces = namespaces.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // The container may have exited meanwhile.
                let namespaces = namespaces.ok_or_else(|| Error::NotRunning(id.clone()))?;
                let program = Program { command, env: &env, working_dir, groups };
                native::join(&namespaces, &program, connection)
            }
            Backend::Oci(container) => native::run_connected(container.exec(command, connection), connection),
        };
        Ok(spawned.map_err(|failure| explain(id.as_str(), program_name, failure))?.child)
    }
}

/// Starts a thread that waits for a child in its own way. Returns what kills the child, and what the thread returns.
pub(super) fn wait_on_thread<T: Send + 'static>(
    child: Child,
    wait: impl FnOnce(Child) -> T + Send + 'static,
) -> Result<(ExecProcess, oneshot::Receiver<T>), Error> {
    let handle = pidfd_open(pid(&child), PidfdFlags::empty());
    let (sender, waited) = oneshot::channel();
    let waiter = Builder::new().name("container-exec".to_owned()).stack_size(128 << 10);
    // If the thread cannot be started, the child is dropped unreaped: it is killed and reaped below.
    let started = waiter.spawn(move || {
        let _ = sender.send(wait(child));
    });
    if let Err(error) = started {
        if let Ok(handle) = &handle {
            let _ = pidfd_send_signal(handle, Signal::KILL)
                .and_then(|()| waitid(WaitId::PidFd(handle.as_fd()), WaitIdOptions::EXITED));
        }
        return Err(Error::Thread(format!("start a thread that waits for a program: {error}")));
    }
    Ok((ExecProcess { handle: handle.ok() }, waited))
}

impl Attached {
    /// Connects the program to the async runtime.
    pub(super) fn session(self, options: &ExecOptions) -> Result<ExecSession, Error> {
        let Self { mut child, terminal } = self;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (process, waited) = wait_on_thread(child, |mut child| child.wait())?;
        let exit = Box::pin(async move {
            let status = waited.await.map_err(|_closed| io::Error::other("the runner is gone"))??;
            process.exited();
            Ok(exit_code(status))
        });
        let failed = |error: io::Error| Error::Thread(format!("connect to a program: {error}"));
        if let Some(terminal) = terminal {
            let (output, input) = bridge(&terminal).map_err(failed)?.into_split();
            return Ok(ExecSession {
                stdin: options.stdin.then(|| Box::new(input) as _),
                stdout: options.stdout.then(|| Box::new(output) as _),
                stderr: None,
                resize: Some(Box::new(move |columns, rows| resize(&terminal, columns, rows))),
                exit,
            });
        }
        let (stdin, stdout, stderr) = pipes;
        let stdin = stdin.map(ChildStdin::from_std).transpose().map_err(failed)?;
        let stdout = stdout.map(ChildStdout::from_std).transpose().map_err(failed)?;
        let stderr = stderr.map(ChildStderr::from_std).transpose().map_err(failed)?;
        Ok(ExecSession {
            stdin: stdin.map(|stdin| Box::new(stdin) as _),
            stdout: stdout.map(|stdout| Box::new(stdout) as _),
            stderr: stderr.map(|stderr| Box::new(stderr) as _),
            resize: None,
            exit,
        })
    }
}

/// Returns the exit code as a shell does: 128 plus the signal's number after a signal.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(255)
}

/// Connects our end of a terminal to a socket, since the async runtime cannot wait for terminals. Two threads copy, until the
/// program has closed its end.
fn bridge(terminal: &OwnedFd) -> io::Result<UnixStream> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let (mut output, mut input) = (File::from(terminal.try_clone()?), File::from(terminal.try_clone()?));
    let (mut from_socket, mut to_socket) = (theirs.try_clone()?, theirs);
    let copier = |name: &str| Builder::new().name(name.to_owned()).stack_size(128 << 10);
    copier("terminal-output").spawn(move || {
        // Ends with an error when the program has closed its end, or nobody reads any more.
        let _ = io::copy(&mut output, &mut to_socket);
        // Ends the other thread, too.
        let _ = to_socket.shutdown(std::net::Shutdown::Both);
    })?;
    copier("terminal-input").spawn(move || {
        // Ends when nobody writes any more.
        let _ = io::copy(&mut from_socket, &mut input);
    })?;
    UnixStream::from_std(ours)
}

fn resize(terminal: &OwnedFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    if let Err(error) = tcsetwinsize(terminal, size) {
        tracing::debug!(%error, "changing the size of a terminal failed");
    }
}
