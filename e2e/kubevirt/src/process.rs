//! Commands with a time limit. A command that exceeds it is killed together with its children.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// The delay between two looks at a running command.
const POLL: Duration = Duration::from_millis(5);
/// How much of the end of standard error an error message contains.
const MESSAGE_BYTES: usize = 4000;

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command, limit: Duration) -> Result<String, String> {
    run(command.stdin(Stdio::null()), None, limit)
}

/// Runs a command with the given standard input and returns its standard output.
pub(crate) fn converse(mut command: Command, input: String, limit: Duration) -> Result<String, String> {
    run(command.stdin(Stdio::piped()), Some(input), limit)
}

fn run(command: &mut Command, input: Option<String>, limit: Duration) -> Result<String, String> {
    // A process group of its own: the Go command runs compilers, which must end with it.
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // All pipes at once, so that none of them fills up while another is waited for.
    let writer = thread::spawn(move || match (pipes.0, input) {
        (Some(mut pipe), Some(input)) => pipe.write_all(input.as_bytes()),
        _ => Ok(()),
    });
    let stdout = reader(pipes.1);
    let stderr = reader(pipes.2);
    let status = wait(&mut child, limit);
    let joined = |thread: thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    let (stdout, stderr) = (joined(stdout), joined(stderr));
    let stderr = String::from_utf8_lossy(&stderr);
    let start = stderr.ceil_char_boundary(stderr.len().saturating_sub(MESSAGE_BYTES));
    let status = status?;
    if !status.success() {
        return Err(format!("{status}: {}", stderr[start..].trim()));
    }
    match writer.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(format!("writing standard input: {error}")),
        Err(_) => return Err("the thread that writes standard input panicked".to_owned()),
    }
    String::from_utf8(stdout).map_err(|error| error.to_string())
}

fn reader<R: std::io::Read + Send + 'static>(pipe: Option<R>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is enough: the exit status tells the rest.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}

fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            Ok(None) => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    Err(format!("took longer than {} seconds", limit.as_secs()))
}
