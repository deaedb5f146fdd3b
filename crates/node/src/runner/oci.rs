//! Containers through an OCI runtime, `runc` or `crun`: a bundle is written, and the runtime does the rest, hooks of CDI
//! devices included.
//!
//! The runtime stays in the foreground as the parent of the container, so that its exit code is the container's. Its own
//! state is in the runner's directory. What the kernel does for other containers it cannot do here: when this process is
//! killed, the runtime is too, but not what it has started.

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
use super::native::Program;
use super::root::Bases;

/// How long a runtime may take to start a container.
const START: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A container in the care of a runtime.
#[derive(Debug, Clone)]
pub(super) struct OciContainer {
    pub runtime: PathBuf,
    /// The runtime's own state.
    pub state: PathBuf,
    /// The bundle: configuration, root, and what the runtime writes about itself.
    pub bundle: PathBuf,
    pub id: String,
}

impl OciContainer {
    /// Writes the bundle: nothing runs yet.
    pub(super) fn write_bundle(&self, program: &Program<'_>, host_name: &str, edits: &Edits) -> io::Result<()> {
        let root = self.bundle.join("rootfs");
        fs::create_dir_all(&root)?;
        let bases = Bases::read()?;
        config::make_root(&root, &bases)?;
        let config = config::config(program, host_name, edits, &bases);
        fs::write(self.bundle.join("config.json"), serde_json::to_vec_pretty(&config)?)
    }

    /// The command that runs the container and ends with it.
    pub(super) fn run(&self) -> Command {
        let mut command = self.command();
        command.arg("--log").arg(self.log()).arg("run").arg("--bundle").arg(&self.bundle);
        command.arg("--pid-file").arg(self.pid_file()).arg(&self.id).stdin(Stdio::null());
        command
    }

    /// The command that runs a program in the container.
    pub(super) fn exec(&self, program: &[String]) -> Command {
        let mut command = self.command();
        command.arg("exec").arg(&self.id).args(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let mut command = self.command();
        command.arg("kill").arg(&self.id).arg(signal.as_raw().to_string());
        self.done(command)
    }

    /// Removes what there may be of the container, also when it runs.
    pub(super) fn delete(&self) -> io::Result<()> {
        let mut command = self.command();
        command.arg("delete").arg("--force").arg(&self.id);
        self.done(command)
    }

    /// Waits until the container runs, or the runtime has ended without; then its words are the error.
    pub(super) fn started(&self, watch: &Watch, runtime: &Child) -> Result<(), String> {
        let runtime = pidfd_open(pid(runtime), PidfdFlags::empty()).map_err(|errno| errno.to_string())?;
        loop {
            let there = self.pid_file().exists();
            if there {
                return Ok(());
            }
            let mut files = [PollFd::new(&watch.0, PollFlags::IN), PollFd::new(&runtime, PollFlags::IN)];
            let ready = match poll(&mut files, Some(&START)) {
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.to_string()),
                Ok(0) => return Err("the container does not start".to_owned()),
                Ok(_) => files.map(|file| !file.revents().is_empty()),
            };
            let [changed, ended] = ready;
            if changed {
                watch.clear().map_err(|error| error.to_string())?;
            } else if ended && !self.pid_file().exists() {
                let words = fs::read_to_string(self.log()).unwrap_or_default();
                return Err(words.trim().to_owned());
            }
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.runtime);
        command.arg("--root").arg(&self.state);
        command
    }

    fn done(&self, mut command: Command) -> io::Result<()> {
        let output = command.stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{}: {}", self.runtime.display(), words.trim())))
    }

    fn log(&self) -> PathBuf {
        self.bundle.join("runtime.log")
    }

    fn pid_file(&self) -> PathBuf {
        self.bundle.join("pid")
    }
}

/// Tells when something appears in a bundle.
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

/// Whether there is such a runtime, and what it says of itself.
pub(super) fn probe(runtime: &Path) -> Result<String, String> {
    let output = Command::new(runtime).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("run {}: {error}", runtime.display()))?;
    if !output.status.success() {
        return Err(format!("{} --version: {}", runtime.display(), output.status));
    }
    let words = String::from_utf8_lossy(&output.stdout);
    Ok(words.lines().next().unwrap_or_default().to_owned())
}
