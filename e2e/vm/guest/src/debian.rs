//! Debian in the machine: the unpacked release that the host shares, with what must be writable in memory.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use drakkar_sysfs::PciAddress;
use serde_json::{Value, json};

use crate::guest::{run, wait};

/// The mounted release. Programs run in it with [`Debian::command`].
#[derive(Debug)]
pub(crate) struct Debian {
    root: PathBuf,
}

impl Debian {
    /// Mounts the release: read-only from the host, with a layer in memory above it.
    pub(crate) fn mount() -> Result<Self> {
        let root = Path::new("/mnt/root");
        let directories = ["/mnt/debian", "/mnt/memory", "/mnt/root"];
        for directory in directories {
            fs::create_dir_all(directory).with_context(|| format!("create {directory}"))?;
        }
        let mount = |arguments: &[&str]| run(Command::new("mount").args(arguments));
        // The release does not change, so the kernel may keep what it has read.
        let options = "trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose";
        mount(&["-t", "9p", "-o", options, "debian", "/mnt/debian"])?;
        mount(&["-t", "tmpfs", "tmpfs", "/mnt/memory"])?;
        fs::create_dir_all("/mnt/memory/upper").and_then(|()| fs::create_dir_all("/mnt/memory/work"))?;
        let layers = "lowerdir=/mnt/debian,upperdir=/mnt/memory/upper,workdir=/mnt/memory/work";
        mount(&["-t", "overlay", "-o", layers, "overlay", "/mnt/root"])?;
        for directory in ["dev", "proc", "sys", "test"] {
            let target = root.join(directory);
            fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
            mount(&["--bind", &format!("/{directory}"), &target.to_string_lossy()])?;
        }
        for directory in ["run", "tmp"] {
            mount(&["-t", "tmpfs", "tmpfs", &root.join(directory).to_string_lossy()])?;
        }
        // A link to `/run` in an installed system; some packages have a directory there.
        let old = root.join("var/run");
        fs::create_dir_all(&old).with_context(|| format!("create {}", old.display()))?;
        mount(&["--bind", &root.join("run").to_string_lossy(), &old.to_string_lossy()])?;
        Ok(Self { root: root.to_owned() })
    }

    /// The path of a file of the release.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A command that runs a program of the release.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("chroot");
        command.arg(&self.root).arg(program);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
        command
    }

    /// Starts a virtual machine in the virtual machine, which does not run yet, with these devices. The inner error is QEMU's
    /// refusal.
    pub(crate) fn start_qemu(&self, devices: &[PciAddress]) -> Result<Result<Qemu, String>> {
        let socket = "/tmp/qmp";
        fs::remove_file(self.path(socket)).ok();
        let mut command = self.command("/usr/bin/qemu-system-x86_64");
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-S", "-machine", "q35", "-m", "64"]);
        command.args(["-accel", "tcg", "-qmp", &format!("unix:{socket},server=on,wait=off")]);
        for address in devices {
            command.args(["-device", &format!("vfio-pci,host={address},bus=pcie.0")]);
        }
        let messages = self.path("/tmp/messages");
        let errors = File::create(&messages).with_context(|| format!("create {}", messages.display()))?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn()?;
        let mut qemu = Qemu { child, stream: None };
        let mut refusal = None;
        wait("QEMU in the machine", || {
            if let Ok(stream) = UnixStream::connect(self.path(socket)) {
                qemu.stream = Some(BufReader::new(stream));
                return Ok(true);
            }
            if qemu.child.try_wait()?.is_some() {
                refusal = Some(fs::read_to_string(&messages)?);
            }
            Ok(refusal.is_some())
        })?;
        // The socket is there before the devices are.
        if refusal.is_none() && qemu.greet().is_err() {
            qemu.child.wait()?;
            refusal = Some(fs::read_to_string(&messages)?);
        }
        Ok(refusal.map_or(Ok(qemu), Err))
    }
}

/// A virtual machine in the virtual machine.
#[derive(Debug)]
pub(crate) struct Qemu {
    child: Child,
    stream: Option<BufReader<UnixStream>>,
}

impl Qemu {
    fn greet(&mut self) -> Result<()> {
        self.receive()?;
        self.query("qmp_capabilities").map(drop)
    }

    /// Executes a QMP command without arguments.
    pub(crate) fn query(&mut self, command: &str) -> Result<Value> {
        let message = format!("{}\n", json!({ "execute": command }));
        self.stream.as_mut().context("no connection")?.get_mut().write_all(message.as_bytes())?;
        loop {
            let mut received = self.receive()?;
            ensure!(received.get("error").is_none(), "{command}: {received}");
            if let Some(result) = received.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self.stream.as_mut().context("no connection")?.read_line(&mut line)?;
        ensure!(read > 0, "QEMU has ended");
        Ok(serde_json::from_str(&line)?)
    }

    /// Ends it.
    pub(crate) fn quit(mut self) -> Result<()> {
        self.query("quit")?;
        ensure!(self.child.wait()?.success());
        Ok(())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
