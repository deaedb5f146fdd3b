//! Runs `promtool`. Tests of drivers use this file, too.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Runs `promtool` with an input; `None` if it is not installed.
pub fn promtool(arguments: &[&str], input: &str) -> Option<Output> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            assert!(std::env::var_os("DRAKKAR_REQUIRE_PROMTOOL").is_none(), "promtool: {error}");
            eprintln!("skipped: promtool: {error} (Debian's package prometheus has it)");
            return None;
        }
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

/// Checks metrics in the text format. The tool exits with success after some of its findings, so it must have nothing to say.
pub fn check_metrics(text: &str) {
    let Some(output) = promtool(&["check", "metrics"], text) else { return };
    let findings = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && findings.trim().is_empty(), "{}: {findings}", output.status);
}
