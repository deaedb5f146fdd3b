//! Builds and runs the Go program of this directory, for the tests that compare Kubernetes' Go library with ours.

#![forbid(unsafe_code)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;

/// Why the Go program cannot be built or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The host lacks Go or the modules; the program itself may be fine.
    #[error("{0}")]
    Unavailable(String),
    /// The program does not compile.
    #[error("the Go program does not compile:\n{0}")]
    Build(String),
    /// The program failed, or printed something other than lines of JSON.
    #[error("interop {command}: {reason}")]
    Failed {
        /// The command, with its arguments.
        command: String,
        /// The reason.
        reason: String,
    },
}

/// The built Go program.
#[derive(Debug, Clone)]
pub struct Program(PathBuf);

impl Program {
    /// Builds the program into a directory, with Go's build cache.
    ///
    /// Needs the Go version of `go.mod`, and the modules of `go.sum` from Go's cache or its proxy.
    pub fn build(directory: &Path) -> Result<Self, ProgramError> {
        Self::build_from(".", directory, "interop")
    }

    /// Builds the program of `nri-0.8`: the part of this one that is about NRI, on an older library.
    pub fn build_nri_0_8(directory: &Path) -> Result<Self, ProgramError> {
        Self::build_from("nri-0.8", directory, "nri08")
    }

    fn build_from(module: &str, directory: &Path, name: &str) -> Result<Self, ProgramError> {
        // Two builds must not write the same file at once.
        static BUILD_LOCK: Mutex<()> = Mutex::new(());
        let _guard = BUILD_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        go(module, &["version"]).map_err(|reason| ProgramError::Unavailable(format!("cannot run `go`: {reason}")))?;
        // Separate from the build: missing modules skip the tests, while a compile error fails them.
        go(module, &["mod", "download"])
            .map_err(|reason| ProgramError::Unavailable(format!("Go cannot download modules: {reason}")))?;
        let program = directory.join(name);
        // `-trimpath` makes the build cache independent of the checkout's path. NRI plugins in WebAssembly need a runtime of
        // their own, which takes long to compile.
        let output = program.to_string_lossy();
        go(module, &["build", "-trimpath", "-tags", "nri nri_no_wasm", "-o", &output, "."])
            .map_err(ProgramError::Build)?;
        Ok(Self(program))
    }

    /// The path of the program.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Runs a command that reads and writes lines of JSON, and returns the answers.
    pub fn ask(&self, arguments: &[&str], questions: &[Value]) -> Result<Vec<Value>, ProgramError> {
        let failed = |reason: String| ProgramError::Failed { command: arguments.join(" "), reason };
        let mut child = Command::new(&self.0)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no pipes".to_owned()));
        };
        let answers = std::thread::scope(|scope| {
            // Written by another thread: the program answers while it reads, so both pipes would fill up otherwise.
            let writer = scope.spawn(move || questions.iter().try_for_each(|question| writeln!(input, "{question}")));
            let answers: Result<Vec<Value>, String> = BufReader::new(output)
                .split(b'\n')
                .map(|line| {
                    let line = line.map_err(|error| error.to_string())?;
                    let show = |error| format!("{error} in {:?}", String::from_utf8_lossy(&line));
                    serde_json::from_slice(&line).map_err(show)
                })
                .collect();
            match writer.join() {
                Ok(Ok(())) => answers,
                Ok(Err(error)) => answers.and(Err(error.to_string())),
                Err(_) => Err("the thread that writes the questions panicked".to_owned()),
            }
        });
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        // An error of reading or writing is reported first: it can be the cause of a failed exit status.
        let answers = answers.map_err(failed)?;
        if status.success() { Ok(answers) } else { Err(failed(status.to_string())) }
    }
}

/// The module that has the release of Kubernetes for real clusters.
const KUBERNETES: &str = "../cluster/kubernetes";

/// Builds the `kubectl` of the release that real clusters are built from into a directory, with Go's build cache, and returns
/// its path.
pub fn build_kubectl(directory: &Path) -> Result<PathBuf, ProgramError> {
    let unavailable = |reason: String| ProgramError::Unavailable(reason);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(KUBERNETES).join("go.mod");
    let manifest = std::fs::read_to_string(manifest).map_err(|error| unavailable(format!("read go.mod: {error}")))?;
    let version = manifest.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes ")?.split(' ').next());
    let version = version.ok_or_else(|| unavailable("go.mod does not require k8s.io/kubernetes".to_owned()))?;
    go(KUBERNETES, &["version"]).map_err(|reason| unavailable(format!("cannot run `go`: {reason}")))?;
    go(KUBERNETES, &["mod", "download", "k8s.io/kubernetes", "k8s.io/kubectl"])
        .map_err(|reason| unavailable(format!("Go cannot download modules: {reason}")))?;
    let program = directory.join("kubectl");
    // The flags of the real cluster's build, whose cache is used too.
    let flags = format!(
        "-s -w -X k8s.io/component-base/version.gitVersion={version} -X k8s.io/client-go/pkg/version.gitVersion={version}"
    );
    let mut build = Command::new("go");
    build.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &flags, "-o"]).arg(&program);
    build.arg("k8s.io/kubernetes/cmd/kubectl").env("CGO_ENABLED", "0");
    run_go(KUBERNETES, &mut build).map_err(ProgramError::Build)?;
    Ok(program)
}

/// Runs the `go` command in the directory of a module.
fn go(module: &str, arguments: &[&str]) -> Result<(), String> {
    run_go(module, Command::new("go").args(arguments))
}

fn run_go(module: &str, command: &mut Command) -> Result<(), String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(module);
    let output = command.current_dir(directory).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
