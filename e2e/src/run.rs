//! Running commands and waiting for conditions.

use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};

/// How long a condition rests between two looks at it.
const INTERVAL: Duration = Duration::from_millis(100);

/// Runs a command to its end and gives what it printed on its standard output; fails when it fails.
///
/// # Errors
///
/// The command cannot be started, or does not succeed: then with the end of what it printed.
pub fn run(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stdout));
    Err(Error::Command { command: line(command), status: output.status.to_string(), output: tail(&said, 20) })
}

/// Runs a command, whether it succeeds or not.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().doing(|| format!("run `{}`", line(command)))
}

/// Waits until a condition holds; an error ends the wait.
///
/// # Errors
///
/// It does not hold in time, or cannot be looked at.
pub fn wait_until(what: &str, within: Duration, see: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + within;
    while !condition()? {
        if Instant::now() >= end {
            return Err(Error::Timeout { what: what.to_owned(), within, see: see.to_owned() });
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

/// The command line, for people.
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
    fn a_failed_command_is_told_with_what_it_said() {
        let error = run(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such thing"), "{error}");
    }

    #[test]
    fn a_wait_that_is_in_vain_ends_with_what_was_waited_for() {
        let error = wait_until("rain", Duration::ZERO, "look up", || Ok(false)).unwrap_err().to_string();
        assert_eq!(error, "rain did not come about within 0 s; look up");
    }

    #[test]
    fn the_tail_of_a_short_text_is_all_of_it() {
        assert_eq!(tail("a\nb\n", 5), "a\nb");
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
    }
}
