//! `drakkar demo --keep`, and commands beside it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use drakkar_interop::{ProgramError, build_kubectl};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A demo that keeps running; dropping it ends it.
pub struct Demo {
    process: Child,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    directory: TempDir,
}

impl Demo {
    /// Starts a demo, and waits until it invites to look around. `None` without Go, or without the command.
    pub fn start() -> Option<Self> {
        let kubectl = kubectl()?;
        let drakkar = command()?;
        let directory = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(directory.path().join("errors")).unwrap();
        let mut process = Command::new(drakkar)
            .args(["demo", "--keep"])
            .env("TMPDIR", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut kubeconfig = None;
        let mut printed = String::new();
        for line in lines {
            if let Some(path) = line.trim().strip_prefix("export KUBECONFIG=") {
                kubeconfig = Some(PathBuf::from(path));
            }
            printed += &format!("{line}\n");
            if line.starts_with("Ctrl-C") {
                break;
            }
        }
        let Some(kubeconfig) = kubeconfig else {
            let errors = std::fs::read_to_string(directory.path().join("errors")).unwrap();
            panic!("the demo names no kubeconfig:\n{printed}{errors}");
        };
        Some(Self { process, kubeconfig, kubectl: kubectl.to_owned(), directory })
    }

    /// Returns a command of the shell, with `kubectl` in its path.
    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        let path = std::env::var("PATH").unwrap();
        command
            .args(["-c", script])
            .env("PATH", format!("{}:{path}", self.kubectl.parent().unwrap().display()))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECACHEDIR", self.directory.path().join("cache"))
            .env("HOME", self.directory.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command of the shell. Returns its exit code, and its output and errors together.
    pub fn run(&self, script: &str) -> (i32, String) {
        let output = self.command(&format!("{{ {script}\n}} 2>&1")).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    }

    /// Runs a command of the shell that succeeds. Returns what it prints.
    pub fn shell(&self, script: &str) -> String {
        let (code, output) = self.run(script);
        assert_eq!(code, 0, "$ {script}\n{output}");
        output
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let id = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        if let Some(id) = id {
            // It may have ended by itself, which the test has noticed.
            let _ = kill_process(id, Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

/// Returns the path of `kubectl`, built once.
fn kubectl() -> Option<&'static Path> {
    static KUBECTL: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = KUBECTL.get_or_init(|| match build_kubectl(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(path) => Ok(path),
        Err(ProgramError::Unavailable(reason)) => Err(reason),
        Err(error) => panic!("{error}"),
    });
    if let Err(reason) = built {
        skip(reason);
    }
    built.as_deref().ok()
}

/// Returns the command `drakkar` of the same build as this test.
fn command() -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("drakkar");
    if !path.exists() {
        skip("the command drakkar is not built: cargo build --workspace, or cargo xtask test drakkar-interop kubectl");
        return None;
    }
    Some(path)
}

/// Prints why a test is skipped, also where the output of tests is captured.
fn skip(reason: &str) {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    std::io::stderr().write_all(format!("{name}: skipped: {reason}\n").as_bytes()).unwrap();
}
