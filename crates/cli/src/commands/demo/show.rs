//! How the demo looks: numbered steps, each with the time that it took, and commands with what they print.

use std::time::Instant;

use drakkar_node::PodHandle;

use super::COMMAND_IN_CONTAINER;
use crate::exit::{Code, Failure};
use crate::output::{print, style, terminal_safe};

/// What fits beside the number and the time in 80 columns.
const WIDTH: usize = 66;

/// The steps of the demo.
pub(super) struct Steps {
    count: usize,
    since: Instant,
}

impl Default for Steps {
    fn default() -> Self {
        Self { count: 0, since: Instant::now() }
    }
}

impl Steps {
    /// The next step is done: its title, and the time since the last one.
    pub(super) fn step(&mut self, title: &str) -> Result<(), Failure> {
        self.count += 1;
        let (header, time) = (style::HEADER, style::HINT);
        let millis = self.since.elapsed().as_secs_f64() * 1000.0;
        self.since = Instant::now();
        let count = self.count;
        say(&format!("{header}{count:2}  {title:<WIDTH$}{header:#}{time}{millis:7.1} ms{time:#}"))
    }

    /// What comes now does not count: somebody was waited for, or shown something.
    pub(super) fn restart_clock(&mut self) {
        self.since = Instant::now();
    }
}

/// Runs this command in a container and shows it, also if there is nothing to be found; says whether there was.
pub(super) async fn in_container(pod: &PodHandle<'_>, container: &str, arguments: &[&str]) -> Result<bool, Failure> {
    let (place, command) = (style::HINT, style::COMMAND);
    let line = arguments.join(" ");
    say(&format!("    {place}[{container}]{place:#} {command}$ drakkar {line}{command:#}"))?;
    let output = pod.exec(container, std::iter::once(COMMAND_IN_CONTAINER).chain(arguments.iter().copied())).await?;
    let found = output.status.success();
    let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !found && output.status.code() != Some(Code::NotFound as i32) {
        return Err(Failure::new(Code::Invalid, format!("in container {container}: drakkar {line}: {errors}")));
    }
    indented(&String::from_utf8_lossy(&output.stdout))?;
    if !found {
        let first = errors.lines().next().unwrap_or_default();
        indented(first.split_once(": nothing below").map_or(first, |(what, _)| what))?;
    }
    say("")?;
    Ok(found)
}

/// Text for a reader, in lines of the same width.
pub(super) fn say(line: &str) -> Result<(), Failure> {
    Ok(print(&format!("{line}\n"))?)
}

/// Lines that belong to what was said before.
pub(super) fn indented(text: &str) -> Result<(), Failure> {
    terminal_safe(text.as_bytes()).lines().try_for_each(|line| say(&format!("      {line}")))
}

/// What is left of a pod that is gone: nothing, or something is wrong.
pub(super) fn tell_leftovers(left: &[String]) -> Result<(), Failure> {
    if left.is_empty() {
        return say("      Nothing is left: no metadata file, no CDI spec, no claim in the kubelet.");
    }
    Err(Failure::new(Code::Invalid, format!("this is left of the pod: {}", left.join(", "))))
}

/// What a driver keeps whether or not there are claims: good to know, and nothing is wrong with it.
pub(super) fn tell_kept(kept: &[String]) -> Result<(), Failure> {
    if kept.is_empty() {
        return Ok(());
    }
    say("      The driver keeps for itself:")?;
    kept.iter().try_for_each(|file| indented(&format!("  {file}")))
}

pub(super) fn yaml(value: &serde_json::Value) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(|error| std::io::Error::other(error).into())
}
