//! Builds and asks the Go programs of this directory, which answer questions about a VMI with KubeVirt's own code.
//!
//! A host without Go or without the modules is no failure of the code under test: [`ProgramError::Unavailable`] says what is
//! missing. Every step has a time limit.

#![forbid(unsafe_code)]

mod process;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

/// The release of KubeVirt whose code the programs contain, as in their `go.mod`.
pub const KUBEVIRT_VERSION: &str = "1.9.0";

/// The time limit for downloading modules that are not in Go's cache.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(300);
/// The time limit for a build with an empty cache on a slow machine.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// The time limit for all questions of one call.
const ANSWER_LIMIT: Duration = Duration::from_secs(600);

/// Why a program cannot be built or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The host lacks Go, a C compiler or the modules; the program itself may be fine.
    #[error("{0}")]
    Unavailable(String),
    /// The program does not compile.
    #[error("the Go program {name} does not compile:\n{reason}")]
    Build {
        /// The name of the program.
        name: &'static str,
        /// The compiler's messages.
        reason: String,
    },
    /// The program failed, took too long, or answered something else than it was asked.
    #[error("the Go program {name}: {reason}")]
    Failed {
        /// The name of the program.
        name: &'static str,
        /// The reason.
        reason: String,
    },
}

/// A built Go program.
#[derive(Debug, Clone)]
pub struct Program {
    name: &'static str,
    path: PathBuf,
}

impl Program {
    /// Builds the light program: the rules about claims and networks, the metadata reader, DRA host devices, PCI addresses.
    ///
    /// # Errors
    ///
    /// Go, its version or modules are missing, or the program does not compile.
    pub fn light(directory: &Path) -> Result<Self, ProgramError> {
        Self::build("light", &[], directory)
    }

    /// Builds the full program: also both webhooks, the pod, device plugins, SR-IOV, the converter and hooks.
    ///
    /// # Errors
    ///
    /// Go, its version, a C compiler or modules are missing, or the program does not compile.
    pub fn full(directory: &Path) -> Result<Self, ProgramError> {
        let compiler = process::output(Command::new("cc").arg("--version"), DOWNLOAD_LIMIT);
        compiler.map_err(|reason| ProgramError::Unavailable(format!("cannot run `cc`: {reason}")))?;
        // The bindings of libvirt load the library when they are used, which is never here.
        Self::build("full", &["-tags", "libvirt_dlopen"], directory)
    }

    fn build(name: &'static str, flags: &[&str], directory: &Path) -> Result<Self, ProgramError> {
        // Two builds must not write the same file at once.
        static BUILD_LOCK: Mutex<()> = Mutex::new(());
        let _guard = BUILD_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let go = |arguments: &[&str], limit| {
            // Another toolchain is not downloaded: the build would depend on it silently.
            let mut command = Command::new("go");
            process::output(command.args(arguments).current_dir(&source).env("GOTOOLCHAIN", "local"), limit)
        };
        let unavailable = |what| move |reason| ProgramError::Unavailable(format!("{what}: {reason}"));
        go(&["version"], DOWNLOAD_LIMIT).map_err(unavailable("cannot run `go`"))?;
        // Separate from the build: missing modules skip the tests, while a compile error fails them.
        go(&["mod", "download"], DOWNLOAD_LIMIT).map_err(unavailable("Go cannot download modules"))?;
        let path = directory.join(format!("kubevirt-{name}"));
        let output = path.to_string_lossy();
        // `-trimpath` makes the build cache independent of the checkout's path.
        let arguments = [&["build", "-trimpath", "-o", &*output], flags, &["."]].concat();
        go(&arguments, BUILD_LIMIT).map_err(|reason| ProgramError::Build { name, reason })?;
        Ok(Self { name, path })
    }

    /// The path of the program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks questions in one run of the program. The answers have the order of the questions.
    ///
    /// # Errors
    ///
    /// The program fails, takes too long, or leaves a question unanswered.
    pub fn ask(&self, questions: &[Value]) -> Result<Vec<Value>, ProgramError> {
        self.ask_in(Command::new(&self.path), questions)
    }

    /// Asks questions in one run of a command that runs the program, such as `unshare`.
    ///
    /// # Errors
    ///
    /// The command fails, takes too long, or leaves a question unanswered.
    pub fn ask_in(&self, command: Command, questions: &[Value]) -> Result<Vec<Value>, ProgramError> {
        let failed = |reason: String| ProgramError::Failed { name: self.name, reason };
        let input: String = questions.iter().map(|question| format!("{question}\n")).collect();
        let output = process::converse(command, input, ANSWER_LIMIT).map_err(failed)?;
        let answers = output.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
        let answers = answers.map_err(|error| failed(format!("an answer is no JSON: {error}")))?;
        let ids = |values: &[Value]| values.iter().map(|value| value["id"].clone()).collect::<Vec<_>>();
        if ids(&answers) != ids(questions) {
            return Err(failed(format!("{} questions got {} answers", questions.len(), answers.len())));
        }
        Ok(answers)
    }
}
