//! A running virtual machine.
//!
//! QEMU runs as a child process, dies with the thread that started it, and is killed when the [`Vm`] is dropped. It has two
//! serial ports: the first is the log, the second the line to the program in the machine (`control`). The machine ends when its
//! program ends; QEMU's exit status has the program's.
//!
//! Waiting is limited by progress: as long as something is written to the log or asked on the line, the machine lives.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cache::Cache;
use crate::error::{Error, IoContext, Result};
use crate::image::Image;
use crate::machine::Machine;
use crate::program;
use crate::qmp::Qmp;
use crate::release::Release;
use crate::run::{report, tail};

/// How long a machine may show no progress. An idle host boots it in five seconds.
const STALL: Duration = Duration::from_secs(180);

/// How often exit and log are looked at while nothing arrives.
const INTERVAL: Duration = Duration::from_millis(100);

/// Lines of the log in an error.
const TAIL: usize = 60;

/// A running virtual machine whose init waits for a program.
#[derive(Debug)]
pub struct Vm {
    child: Child,
    qmp: Qmp,
    control: Control,
    /// Sockets, QEMU's messages and the directory that is shared with the machine.
    directory: TempDir,
    log: PathBuf,
    release: Release,
}

impl Vm {
    /// Starts a machine and returns when its init waits for a program. It is resumed from a saved state, which the first call
    /// makes, or booted if it cannot be saved. `name` is the name of the log.
    ///
    /// # Errors
    ///
    /// QEMU does not start, or the machine does not boot.
    pub fn start(cache: &Cache, image: &Image, machine: &Machine, name: &str) -> Result<Self> {
        if !machine.is_savable {
            return Self::boot(cache, image, machine, name);
        }
        let inputs = [image.id(), machine.name.as_bytes(), machine.arguments.join("\n").as_bytes()].map(<[u8]>::to_vec);
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let state = cache.get("state", &inputs, |directory| {
            report(&format!("booting the machine `{}` and saving its state", machine.name))?;
            Self::boot(cache, image, machine, &format!("{}-boot", machine.name))?.save(&directory.join("memory"))
        })?;
        let mut vm = Self::spawn(cache, image, machine, name, &["-incoming", "defer"])?;
        vm.migrate("migrate-incoming", &format!("exec:cat '{}'", state.join("memory").display()))?;
        vm.qmp.execute("cont", Value::Null)?;
        Ok(vm)
    }

    /// Boots a machine and returns when its init waits for a program.
    ///
    /// # Errors
    ///
    /// QEMU does not start, or the machine does not boot.
    pub fn boot(cache: &Cache, image: &Image, machine: &Machine, name: &str) -> Result<Self> {
        let mut vm = Self::spawn(cache, image, machine, name, &[])?;
        match vm.line("it boots")? {
            Some(line) if line == "ready" => Ok(vm),
            Some(line) => {
                Err(Error::Format { path: "the line to init".to_owned(), reason: format!("it says `{line}`") })
            }
            None => Err(vm.ended("it boots")),
        }
    }

    /// The directory that the machine sees as `/test`, as soon as the program runs.
    pub fn shared_directory(&self) -> PathBuf {
        self.directory.path().join("test")
    }

    /// Executes a QMP command.
    ///
    /// # Errors
    ///
    /// QEMU refuses it.
    pub fn qmp(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.qmp.execute(command, arguments)
    }

    /// Runs a program in the machine, with the host's libraries if it is not static, and returns the log when it has ended. Meanwhile QMP commands that it asks for
    /// (see [`crate::guest::Host`]) are executed.
    ///
    /// # Errors
    ///
    /// The program fails, or makes no progress.
    pub fn run(mut self, program: &Path, arguments: &[&str]) -> Result<String> {
        let arguments = arguments.join(" ");
        program::install(&self.release, program, &self.shared_directory())?;
        self.control.send(&format!("run {} {arguments}", program::PROGRAM))?;
        let doing = format!("`{arguments}` runs");
        let mut answers = 0;
        while let Some(line) = self.line(&doing)? {
            let answer = match serde_json::from_str::<Value>(&line) {
                Ok(mut request) => {
                    let command = request["execute"].as_str().unwrap_or_default().to_owned();
                    match self.qmp.execute(&command, request["arguments"].take()) {
                        Ok(result) => json!({ "return": result }),
                        Err(error) => json!({ "error": error.to_string() }),
                    }
                }
                Err(error) => json!({ "error": format!("not JSON: {error}") }),
            };
            // An answer can be longer than the buffers of a serial line, so it is a file, and the line says that it is there.
            answers += 1;
            let path = self.shared_directory().join(format!("answer-{answers}"));
            fs::write(&path, answer.to_string()).with_context(|| format!("write {}", path.display()))?;
            self.control.send(&format!("answer-{answers}"))?;
        }
        let status = self.child.wait().with_context(|| "wait for QEMU".to_owned())?;
        let log = self.read_log();
        match program_status(status) {
            Some(0) => Ok(log),
            Some(status) => Err(Error::Program {
                program: arguments,
                status,
                log: self.log.display().to_string(),
                tail: tail(&log, TAIL),
            }),
            None => Err(self.ended(&doing)),
        }
    }

    fn spawn(cache: &Cache, image: &Image, machine: &Machine, name: &str, more: &[&str]) -> Result<Self> {
        let log = cache.subdirectory("log")?.join(format!("{name}.log"));
        File::create(&log).with_context(|| format!("create {}", log.display()))?;
        // Not in the cache: names of sockets may have 107 bytes at most.
        let directory = tempfile::Builder::new().prefix("drakkar-vm-").tempdir();
        let directory = directory.with_context(|| "create a directory for the virtual machine".to_owned())?;
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("test")).with_context(|| "create the shared directory".to_owned())?;
        let listen = |name: &str| {
            let listener =
                UnixListener::bind(path(name)).with_context(|| format!("listen on {}", path(name).display()))?;
            listener.set_nonblocking(true).with_context(|| "make a socket non-blocking".to_owned())?;
            Ok::<_, Error>(listener)
        };
        let (qmp, control) = (listen("qmp")?, listen("control")?);
        let messages =
            File::create(path("messages")).with_context(|| "create a file for QEMU's messages".to_owned())?;
        let errors = messages.try_clone().with_context(|| "clone a file".to_owned())?;
        let mut command = with_parent(&qemu(image, machine, &directory, &log));
        command.args(more).stdin(Stdio::null()).stdout(messages).stderr(errors);
        let child = command.spawn().with_context(|| format!("run {:?}", command.get_program()))?;
        let mut starting = Starting { child: Some(child), messages: path("messages") };
        let qmp = starting.accept(&qmp)?;
        let control = Control::new(starting.accept(&control)?)?;
        let qmp = Qmp::new(qmp).map_err(|error| starting.explain(error))?;
        let Some(child) = starting.child.take() else { unreachable!("only `accept` takes it, and then fails") };
        Ok(Self { child, qmp, control, directory, log, release: image.release().clone() })
    }

    /// Saves the state to a file; the machine is over.
    fn save(mut self, file: &Path) -> Result<()> {
        self.qmp.execute("stop", Value::Null)?;
        self.migrate("migrate", &format!("exec:cat >'{}'", file.display()))
    }

    /// Moves the state to or from a place, and waits until that is complete.
    fn migrate(&mut self, command: &str, place: &str) -> Result<()> {
        let events = json!({ "capabilities": [{ "capability": "events", "state": true }] });
        self.qmp.execute("migrate-set-capabilities", events)?;
        // The default is made for networks.
        self.qmp.execute("migrate-set-parameters", json!({ "max-bandwidth": 10_000_000_000_u64 }))?;
        self.qmp.execute(command, json!({ "uri": place }))?;
        let place = place.to_owned();
        self.qmp.wait_for("MIGRATION", |data| match data["status"].as_str() {
            Some("completed") => Ok(true),
            Some("failed" | "cancelled") => Err(Error::Refused { command: place.clone(), error: data.to_string() }),
            _ => Ok(false),
        })
    }

    /// Waits for a line on the second serial port; `None` when the machine has ended.
    fn line(&mut self, doing: &str) -> Result<Option<String>> {
        let mut progress = (self.log_size(), Instant::now());
        loop {
            match self.control.receive()? {
                Received::Line(line) => return Ok(Some(line)),
                Received::End => return Ok(None),
                Received::Nothing => {}
            }
            let size = self.log_size();
            if size != progress.0 {
                progress = (size, Instant::now());
            } else if progress.1.elapsed() > STALL {
                return Err(Error::Stalled {
                    while_: doing.to_owned(),
                    limit: STALL,
                    log: self.log.display().to_string(),
                    tail: tail(&self.read_log(), TAIL),
                });
            }
        }
    }

    fn log_size(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |data| data.len())
    }

    /// The log so far, for tests and errors; a log that cannot be read is empty.
    fn read_log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).replace('\r', "")
    }

    fn ended(&mut self, doing: &str) -> Error {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        Error::Ended {
            while_: doing.to_owned(),
            status,
            messages: fs::read_to_string(self.directory.path().join("messages")).unwrap_or_default(),
            log: self.log.display().to_string(),
            tail: tail(&self.read_log(), TAIL),
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // It may have ended; what cannot be killed has.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status of the program: QEMU exits with twice the byte that the machine wrote, plus one. An even status is QEMU's own.
fn program_status(status: ExitStatus) -> Option<u8> {
    let code = u8::try_from(status.code()?).ok()?;
    (code % 2 == 1).then_some(code / 2)
}

/// The command line of QEMU.
fn qemu(image: &Image, machine: &Machine, directory: &TempDir, log: &Path) -> Command {
    let release = image.release();
    let libraries = release.root().join("usr/lib/x86_64-linux-gnu");
    let share = release.root().join("usr/share");
    let mut qemu = release.command("usr/bin/qemu-system-x86_64");
    qemu.env("QEMU_MODULE_DIR", libraries.join("qemu"));
    qemu.arg("-L").arg(share.join("seabios")).arg("-L").arg(share.join("qemu"));
    qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    qemu.args(&machine.arguments);
    qemu.arg("-kernel").arg(image.kernel()).arg("-initrd").arg(image.initramfs());
    qemu.args(["-append", "console=ttyS0 quiet loglevel=4 intel_iommu=on panic=-1 mitigations=off no_timer_check"]);
    qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
    // A comma in the value of an option stands twice.
    let path = |path: &Path| path.display().to_string().replace(',', ",,");
    let inside = |name: &str| path(&directory.path().join(name));
    qemu.arg("-chardev").arg(format!("file,id=log,path={}", path(log))).args(["-serial", "chardev:log"]);
    qemu.arg("-chardev")
        .arg(format!("socket,id=control,path={}", inside("control")))
        .args(["-serial", "chardev:control"]);
    qemu.arg("-chardev")
        .arg(format!("socket,id=qmp,path={}", inside("qmp")))
        .args(["-mon", "chardev=qmp,mode=control"]);
    for (tag, options, slot) in [
        ("test", format!("path={}", inside("test")), "0x1c"),
        ("debian", format!("path={},readonly=on", path(release.root())), "0x1d"),
    ] {
        qemu.arg("-fsdev").arg(format!("local,id={tag},{options},security_model=none,multidevs=remap"));
        qemu.arg("-device")
            .arg(format!("virtio-9p-pci,id=share-{tag},fsdev={tag},mount_tag={tag},bus=pcie.0,addr={slot}"));
    }
    qemu
}

/// The command such that the process is killed when the thread that starts it ends, however that happens.
fn with_parent(command: &Command) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    let mut wrapped = if setpriv.exists() {
        let mut wrapped = Command::new(setpriv);
        wrapped.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program());
        wrapped
    } else {
        Command::new(command.get_program())
    };
    wrapped.args(command.get_args());
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped
}

/// QEMU before it has connected.
struct Starting {
    child: Option<Child>,
    messages: PathBuf,
}

impl Starting {
    /// Waits for QEMU's connection.
    fn accept(&mut self, listener: &UnixListener) -> Result<UnixStream> {
        let deadline = Instant::now() + STALL;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).with_context(|| "make a socket blocking".to_owned())?;
                    return Ok(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).with_context(|| "accept QEMU's connection".to_owned()),
            }
            let status = self.child.as_mut().map(Child::try_wait).transpose();
            let status = status.with_context(|| "look after QEMU".to_owned())?.flatten();
            if let Some(status) = status {
                return Err(self.failed(status));
            }
            if Instant::now() > deadline {
                return Err(Error::Refused {
                    command: "connect".to_owned(),
                    error: format!("no connection within {} s", STALL.as_secs()),
                });
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Starting {
    /// QEMU connects before it looks at its other options: if it has ended, its message is the better error.
    fn explain(&mut self, error: Error) -> Error {
        let Some(mut child) = self.child.take() else { return error };
        let _ = child.kill();
        match child.wait() {
            Ok(status) if status.code().is_some() => self.failed(status),
            _ => error,
        }
    }

    fn failed(&self, status: ExitStatus) -> Error {
        Error::Command {
            command: "qemu-system-x86_64".to_owned(),
            status: status.to_string(),
            output: fs::read_to_string(&self.messages).unwrap_or_default(),
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What arrived on the second serial port.
enum Received {
    Line(String),
    Nothing,
    End,
}

/// The second serial port.
#[derive(Debug)]
struct Control {
    stream: UnixStream,
    received: Vec<u8>,
}

impl Control {
    fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(INTERVAL)).with_context(|| "set a limit".to_owned())?;
        Ok(Self { stream, received: Vec::new() })
    }

    fn send(&mut self, line: &str) -> Result<()> {
        self.stream.write_all(format!("{line}\n").as_bytes()).with_context(|| "write to the virtual machine".to_owned())
    }

    fn receive(&mut self) -> Result<Received> {
        let mut buffer = [0; 4096];
        if !self.received.contains(&b'\n') {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(Received::End),
                Ok(count) => self.received.extend(&buffer[..count]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                }
                // QEMU has ended with bytes for it unread.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Received::End),
                Err(error) => return Err(error).with_context(|| "read from the virtual machine".to_owned()),
            }
        }
        let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else { return Ok(Received::Nothing) };
        let line: Vec<u8> = self.received.drain(..=end).collect();
        Ok(Received::Line(String::from_utf8_lossy(&line).trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn the_status_of_the_program_is_in_that_of_qemu() {
        let status = |code: i32| program_status(ExitStatus::from_raw(code << 8));
        assert_eq!(status(1), Some(0));
        assert_eq!(status(7), Some(3));
        assert_eq!(status(255), Some(127));
        // QEMU's own: the machine was switched off, or QEMU failed in a way of its own.
        assert_eq!(status(0), None);
        assert_eq!(program_status(ExitStatus::from_raw(9)), None);
    }

    #[test]
    fn lines_arrive_whole() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut control = Control::new(ours).unwrap();
        theirs.write_all(b"rea").unwrap();
        assert!(matches!(control.receive().unwrap(), Received::Nothing));
        theirs.write_all(b"dy\r\nmore\n").unwrap();
        for expected in ["ready", "more"] {
            let Received::Line(line) = control.receive().unwrap() else { panic!("no line") };
            assert_eq!(line, expected);
        }
        drop(theirs);
        assert!(matches!(control.receive().unwrap(), Received::End));
    }
}
