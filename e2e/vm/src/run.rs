//! Running commands, and reporting long steps.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::error::{Error, IoContext, Result};

/// Runs a command and returns its standard output.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("run `{}`", line(command)))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
    printed.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(Error::Command { command: line(command), status: output.status.to_string(), output: tail(&printed, 20) })
}

/// Runs a shell pipeline whose parameters are `$1`, `$2` and so on; it fails if one of its commands does.
pub(crate) fn shell(script: &str, parameters: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Vec<u8>> {
    let mut command = Command::new("bash");
    run(command.args(["-euo", "pipefail", "-c", script, "drakkar-vm"]).args(parameters))
}

/// Says what is being done, for steps that take many seconds. It goes to standard error, past the capture of tests.
pub(crate) fn report(step: &str) -> Result<()> {
    writeln!(std::io::stderr().lock(), "vm: {step}").with_context(|| "write to standard error".to_owned())
}

/// The last lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The command line, for error messages.
pub(crate) fn line(command: &Command) -> String {
    let parts = std::iter::once(command.get_program()).chain(command.get_args());
    parts.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_fails_if_its_first_command_does() {
        let error = shell("{ echo \"no $1\" >&2; exit 3; } | cat", ["disk"]).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no disk"), "{error}");
    }
}
