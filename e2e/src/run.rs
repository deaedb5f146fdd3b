//! Running commands and waiting for conditions.

use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, IoContext, Result};

/// The polling interval of `wait_until`.
const INTERVAL: Duration = Duration::from_millis(100);

/// Runs a command and returns its standard output.
///
/// # Errors
///
/// The command cannot be started, or fails; the error then has the end of its output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut printed = String::from_utf8_lossy(&output.stderr).into_owned();
    printed.push_str(&String::from_utf8_lossy(&output.stdout));
    Err(Error::Command { command: line(command), status: output.status.to_string(), output: tail(&printed, 20) })
}

/// Runs a command and returns its output, whether it succeeds or not.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("run `{}`", line(command)))
}

/// Waits until a condition holds.
///
/// # Errors
///
/// The condition does not hold within the timeout, or returns an error, which is returned at once.
pub fn wait_until(
    what: &str,
    timeout: Duration,
    hint: &str,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    while !condition()? {
        if Instant::now() >= deadline {
            return Err(Error::Timeout { what: what.to_owned(), timeout, hint: hint.to_owned() });
        }
        thread::sleep(INTERVAL);
    }
    Ok(())
}

/// The last lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The command line, for error messages.
fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_failed_command_has_its_output() {
        let error = run(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such thing"), "{error}");
    }

    #[test]
    fn a_timeout_names_the_condition_and_the_hint() {
        let error = wait_until("the node", Duration::ZERO, "see its log", || Ok(false)).unwrap_err().to_string();
        assert_eq!(error, "timed out after 0 s waiting for the node; see its log");
    }

    #[test]
    fn the_tail_of_a_short_text_is_the_whole_text() {
        assert_eq!(tail("a\nb\n", 5), "a\nb");
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
    }
}
