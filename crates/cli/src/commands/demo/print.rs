//! The output of the demo: numbered steps with their durations, and commands with their output.

use std::time::Instant;

use drakkar_node::PodHandle;

use super::COMMAND_IN_CONTAINER;
use crate::exit::{Code, Failure};
use crate::output::wrap::{COLUMNS, wrap};
use crate::output::{print, style, terminal_safe};

/// The width of a step's title, so that number, title and duration fit 80 columns.
const TITLE_WIDTH: usize = 66;

/// The completed steps of the demo.
pub(super) struct Progress {
    count: usize,
    since: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self { count: 0, since: Instant::now() }
    }
}

impl Progress {
    /// Prints a completed step, with the time since the previous one.
    pub(super) fn complete(&mut self, title: &str) -> Result<(), Failure> {
        self.count += 1;
        let header = style::HEADER;
        let time = style::HINT;
        let millis = self.since.elapsed().as_secs_f64() * 1000.0;
        self.since = Instant::now();
        let count = self.count;
        print_line(&format!("{header}{count:2}  {title:<TITLE_WIDTH$}{header:#}{time}{millis:7.1} ms{time:#}"))
    }

    /// Starts the clock of the next step again, to exclude the time since the previous one.
    pub(super) fn restart_clock(&mut self) {
        self.since = Instant::now();
    }
}

/// Runs this command in a container and prints its output. Returns whether it found metadata.
pub(super) async fn in_container(pod: &PodHandle<'_>, container: &str, arguments: &[&str]) -> Result<bool, Failure> {
    let prompt = style::HINT;
    let command = style::COMMAND;
    let line = arguments.join(" ");
    print_line(&format!("    {prompt}[{container}]{prompt:#} {command}$ drakkar {line}{command:#}"))?;
    let output = pod.exec(container, std::iter::once(COMMAND_IN_CONTAINER).chain(arguments.iter().copied())).await?;
    let found = output.status.success();
    let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !found && output.status.code() != Some(Code::NotFound as i32) {
        return Err(Failure::new(Code::Invalid, format!("in container {container}: drakkar {line}: {errors}")));
    }
    print_indented(&String::from_utf8_lossy(&output.stdout))?;
    if !found {
        let first = errors.lines().next().unwrap_or_default();
        print_indented(first.split_once(": nothing below").map_or(first, |(what, _)| what))?;
    }
    print_line("")?;
    Ok(found)
}

/// Prints a line.
pub(super) fn print_line(line: &str) -> Result<(), Failure> {
    Ok(print(&format!("{line}\n"))?)
}

/// Prints untrusted text in lines of at most 80 columns, where its words allow that.
pub(super) fn print_wrapped(text: &str) -> Result<(), Failure> {
    print_line(&format!("    {}", wrap(&terminal_safe(text.as_bytes()), 4, 6, Some(COLUMNS))))
}

/// Returns a number with its noun: `1 device`, `2 devices`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Prints untrusted text, indented.
pub(super) fn print_indented(text: &str) -> Result<(), Failure> {
    terminal_safe(text.as_bytes()).lines().try_for_each(|line| print_line(&format!("      {line}")))
}

/// Reports the leftovers of a deleted pod, which are an error.
pub(super) fn report_leftovers(leftovers: &[String]) -> Result<(), Failure> {
    if leftovers.is_empty() {
        return print_line("      No leftovers: no metadata file, no CDI spec, no claim in the kubelet.");
    }
    Err(Failure::new(Code::Invalid, format!("leftovers of the pod: {}", leftovers.join(", "))))
}

/// Reports the files that a driver keeps independent of claims, which is not an error.
pub(super) fn report_kept_files(kept: &[String]) -> Result<(), Failure> {
    if kept.is_empty() {
        return Ok(());
    }
    print_line("      The driver keeps these files of its own:")?;
    kept.iter().try_for_each(|file| print_indented(&format!("  {file}")))
}

pub(super) fn yaml(value: &serde_json::Value) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(|error| std::io::Error::other(error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!(counted(0, "device"), "0 devices");
        assert_eq!(counted(1, "ResourceSlice"), "1 ResourceSlice");
        assert_eq!(counted(2, "ResourceSlice"), "2 ResourceSlices");
    }
}
