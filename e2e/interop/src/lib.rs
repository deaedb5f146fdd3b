//! The Go program of this directory, for those who run it: tests, and benchmarks that measure its driver beside ours.

#![forbid(unsafe_code)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;

/// Why there is no Go program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// This machine cannot build it, which is no fault of the program.
    #[error("{0}")]
    Unavailable(String),
    /// It does not compile.
    #[error("the Go program does not compile:\n{0}")]
    Build(String),
    /// It failed, or said something else than lines of JSON.
    #[error("interop {command}: {problem}")]
    Failed {
        /// What it was to do.
        command: String,
        /// What went wrong.
        problem: String,
    },
}

/// The Go program, built.
#[derive(Debug, Clone)]
pub struct Program(PathBuf);

impl Program {
    /// Builds it into a directory; Go itself remembers what is built already.
    ///
    /// Needs Go of the version in `go.mod`, and the modules in `go.sum`: from Go's cache, or from wherever Go gets them.
    pub fn build(directory: &Path) -> Result<Self, ProgramError> {
        // Two links of the same file at once would not do.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        go(&["version"]).map_err(|problem| ProgramError::Unavailable(format!("there is no Go here: {problem}")))?;
        // What is wrong with the program itself is found by building it, and is no reason to skip anything.
        go(&["mod", "download"])
            .map_err(|problem| ProgramError::Unavailable(format!("Go cannot get its modules: {problem}")))?;
        let program = directory.join("interop");
        // Without the paths of this machine Go recognizes what it has built from another directory.
        let output = program.to_string_lossy();
        go(&["build", "-trimpath", "-o", &output, "."]).map_err(ProgramError::Build)?;
        Ok(Self(program))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Runs one of its commands that speak lines of JSON, and gives the answers.
    pub fn ask(&self, arguments: &[&str], questions: &[Value]) -> Result<Vec<Value>, ProgramError> {
        let failed = |problem: String| ProgramError::Failed { command: arguments.join(" "), problem };
        let mut child = Command::new(&self.0)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("no pipes".to_owned()));
        };
        let answers = std::thread::scope(|scope| {
            // It answers while it is asked: whoever only asked would wait for ever.
            let asking = scope.spawn(move || questions.iter().try_for_each(|question| writeln!(input, "{question}")));
            let answers: Result<Vec<Value>, String> = BufReader::new(output)
                .split(b'\n')
                .map(|line| {
                    let line = line.map_err(|error| error.to_string())?;
                    let show = |error| format!("{error} in {:?}", String::from_utf8_lossy(&line));
                    serde_json::from_slice(&line).map_err(show)
                })
                .collect();
            match asking.join() {
                Ok(Ok(())) => answers,
                Ok(Err(error)) => answers.and(Err(error.to_string())),
                Err(_) => Err("asking it panicked".to_owned()),
            }
        });
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        // If it ended because nobody listened any more, why that was is the better answer.
        let answers = answers.map_err(failed)?;
        if status.success() { Ok(answers) } else { Err(failed(status.to_string())) }
    }
}

/// Runs the `go` command in this directory.
fn go(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("go")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
