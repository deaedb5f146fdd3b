//! Containers through an OCI runtime, `runc` or `crun`, which is given a bundle and does the rest, including the hooks of CDI
//! devices.
//!
//! The runtime stays in the foreground as the parent of the container, so that its exit code is the container's. Its state is
//! in the runner's directory. One thing differs from other containers: if this process is killed, the runtime is killed too,
//! but not what it has started.

mod config;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open};

use super::cdi::Edits;
use super::containers::pid;
use super::exec::Connection;
use super::native::{Extras, Program};
use super::root::HostDirectories;

/// The timeout for starting a container.
const START_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A container of an OCI runtime.
#[derive(Debug, Clone)]
pub(super) struct OciContainer {
    pub runtime: PathBuf,
    /// The runtime's state directory.
    pub state: PathBuf,
    /// The bundle: configuration, root, and the runtime's log.
    pub bundle: PathBuf,
    pub id: String,
}

impl OciContainer {
    /// Writes the bundle.
    pub(super) fn write_bundle(
        &self,
        program: &Program<'_>,
        host_name: &str,
        edits: &Edits,
        extras: &Extras,
    ) -> io::Result<()> {
        let root = self.bundle.join("rootfs");
        fs::create_dir_all(&root)?;
        let host = HostDirectories::read()?;
        config::create_root(&root, &host)?;
        let mut config = config::config(program, host_name, edits, &host);
        config::add_extras(&mut config, extras);
        fs::write(self.bundle.join("config.json"), serde_json::to_vec_pretty(&config)?)
    }

    /// Returns the command that runs the container and exits with it.
    pub(super) fn run(&self) -> Command {
        let mut command = self.command();
        command.arg("--log").arg(self.log()).arg("run").arg("--bundle").arg(&self.bundle);
        command.arg("--pid-file").arg(self.pid_file()).arg(&self.id).stdin(Stdio::null());
        command
    }

    /// Returns the command that runs a program in the container.
    pub(super) fn exec(&self, program: &[String], connection: &Connection) -> Command {
        let mut command = self.command();
        command.arg("exec");
        if matches!(connection, Connection::Terminal(_)) {
            command.arg("--tty");
        }
        command.arg(&self.id).args(program);
        command
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let mut command = self.command();
        command.arg("kill").arg(&self.id).arg(signal.as_raw().to_string());
        self.execute(command)
    }

    /// Removes the container, even if it is running or only partly created.
    pub(super) fn delete(&self) -> io::Result<()> {
        let mut command = self.command();
        command.arg("delete").arg("--force").arg(&self.id);
        self.execute(command)
    }

    /// Waits until the container runs. If the runtime exits before, its log is the error.
    pub(super) fn started(&self, watch: &Watch, runtime: &Child) -> Result<(), String> {
        let runtime = pidfd_open(pid(runtime), PidfdFlags::empty()).map_err(|errno| errno.to_string())?;
        loop {
            if self.pid_file().exists() {
                return Ok(());
            }
            let mut files = [PollFd::new(&watch.0, PollFlags::IN), PollFd::new(&runtime, PollFlags::IN)];
            let ready = match poll(&mut files, Some(&START_TIMEOUT)) {
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.to_string()),
                Ok(0) => return Err("the container did not start in time".to_owned()),
                Ok(_) => files.map(|file| !file.revents().is_empty()),
            };
            let [changed, ended] = ready;
            if changed {
                watch.clear().map_err(|error| error.to_string())?;
            } else if ended && !self.pid_file().exists() {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                return Err(log.trim().to_owned());
            }
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.runtime);
        command.arg("--root").arg(&self.state);
        command
    }

    fn execute(&self, mut command: Command) -> io::Result<()> {
        let output = command.stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{}: {}", self.runtime.display(), message.trim())))
    }

    fn log(&self) -> PathBuf {
        self.bundle.join("runtime.log")
    }

    fn pid_file(&self) -> PathBuf {
        self.bundle.join("pid")
    }
}

/// An inotify watch for new files in a bundle.
#[derive(Debug)]
pub(super) struct Watch(OwnedFd);

impl Watch {
    pub(super) fn new(bundle: &Path) -> io::Result<Self> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&watch, bundle, inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO)?;
        Ok(Self(watch))
    }

    fn clear(&self) -> io::Result<()> {
        let mut events = [0; 4096];
        loop {
            match rustix::io::read(&self.0, &mut events) {
                Err(Errno::AGAIN) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Checks that there is such a runtime, and returns its version.
pub(super) fn probe(runtime: &Path) -> Result<String, String> {
    let output = Command::new(runtime).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("run {}: {error}", runtime.display()))?;
    if !output.status.success() {
        return Err(format!("{} --version: {}", runtime.display(), output.status));
    }
    let version = String::from_utf8_lossy(&output.stdout);
    Ok(version.lines().next().unwrap_or_default().to_owned())
}
