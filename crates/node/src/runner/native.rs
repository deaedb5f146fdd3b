//! Containers without a runtime: a process that makes its own root in its own namespaces.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::fs::{Gid, Mode};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::thread::LinkNameSpaceType;

use super::cdi::Edits;
use super::namespaces::{self, Namespaces};
use super::root::{self, BadPath, Bases, Workplace, c_path};
use super::spawn::{Processes, SpawnError, Spawned, spawn};
use super::step::Step;
use super::syscalls;

/// Masks of new files: while the root is made, and for the program.
const NO_MASK: Mode = Mode::empty();
const MASK: Mode = Mode::from_raw_mode(0o022);

/// Why a program does not run in a container.
#[derive(Debug)]
pub(super) enum Failure {
    Path(BadPath),
    /// The step that failed, for humans.
    Step(String, io::Error),
    Program(io::Error),
}

impl From<BadPath> for Failure {
    fn from(bad: BadPath) -> Self {
        Self::Path(bad)
    }
}

/// A program to run.
#[derive(Debug)]
pub(super) struct Program<'a> {
    pub command: &'a [String],
    pub env: &'a [(String, String)],
    pub working_dir: &'a str,
    pub groups: &'a [u32],
}

/// The longest name that a host can have in a pod, as the kubelet has it.
const MAX_HOST_NAME: usize = 63;

/// Runs a program in a container of its own, with its output in a file.
pub(super) fn start(
    user_namespace: bool,
    host_name: &str,
    program: &Program<'_>,
    edits: &Edits,
    workplace: &Workplace<'_>,
    log: File,
) -> Result<Spawned, Failure> {
    let mut steps = fresh(user_namespace, host_name, edits, program.working_dir, workplace)?;
    steps.extend(last(user_namespace, program)?);
    let mut command = command(program);
    command.stderr(log.try_clone().map_err(Failure::Program)?).stdout(log);
    run(command, steps, new_processes(user_namespace))
}

/// Runs a program in the namespaces of a container that runs, with its output in pipes.
pub(super) fn join(namespaces: &Namespaces, program: &Program<'_>) -> Result<Spawned, Failure> {
    let mut steps = vec![Step::Session];
    let processes = namespaces.get(LinkNameSpaceType::ProcessID);
    for (kind, namespace) in namespaces.iter().filter(|(kind, _)| *kind != LinkNameSpaceType::ProcessID) {
        steps.push(Step::Join { namespace: namespace.try_clone().map_err(Failure::Program)?, kind });
    }
    steps.extend(last(namespaces.get(LinkNameSpaceType::User).is_some(), program)?);
    let mut command = command(program);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    run(command, steps, processes.map_or(Processes::Same, |namespace| Processes::Of(namespace.as_fd())))
}

/// Runs a command as it is, but in a session of its own and only as long as we live.
pub(super) fn plain(command: Command) -> Result<Spawned, Failure> {
    run(command, vec![Step::Session, Step::CloseOthers, die_with_us()?], Processes::Same)
}

/// Tries whether a container could be started, and says what fails.
pub(super) fn probe(user_namespace: bool, workplace: &Workplace<'_>) -> Result<(), String> {
    let program = Program { command: &[], env: &[], working_dir: "/", groups: &[] };
    let attempt = || {
        let mut steps = fresh(user_namespace, "probe", &Edits::default(), "/", workplace)?;
        steps.extend(last(user_namespace, &program)?);
        steps.push(Step::Stop);
        run(command(&program), steps, new_processes(user_namespace))
    };
    match attempt() {
        // It does not get to the program, which has no name.
        Ok(_) => Err("a process without a program runs".to_owned()),
        Err(Failure::Step(_, error)) if error.raw_os_error() == Some(Errno::CANCELED.raw_os_error()) => Ok(()),
        Err(Failure::Step(step, error)) => Err(format!("{step}: {error}")),
        Err(Failure::Path(BadPath { what, path, problem })) => Err(format!("{what} {path:?}: {problem}")),
        Err(Failure::Program(error)) => Err(format!("start a process: {error}")),
    }
}

/// In a user namespace, only its own processes may make process namespaces, for their children.
fn new_processes(user_namespace: bool) -> Processes<'static> {
    if user_namespace { Processes::Same } else { Processes::New }
}

fn fresh(
    user_namespace: bool,
    host_name: &str,
    edits: &Edits,
    working_dir: &str,
    workplace: &Workplace<'_>,
) -> Result<Vec<Step>, Failure> {
    let bases = Bases::read().map_err(|error| Failure::Step("read directory /".to_owned(), error))?;
    let mut steps = vec![Step::Session, Step::Unshare(namespaces::flags(user_namespace))];
    if user_namespace {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let write = |path, text: String| Step::Write { path, text: text.into_bytes() };
        steps.push(write(c"/proc/self/setgroups", "deny".to_owned()));
        steps.push(write(c"/proc/self/uid_map", format!("0 {uid} 1\n")));
        steps.push(write(c"/proc/self/gid_map", format!("0 {gid} 1\n")));
    }
    steps.push(Step::SendNamespaces(namespaces::kinds(user_namespace)));
    // Names of pods are ASCII; what is cut off must leave a name.
    let host_name = host_name.get(..MAX_HOST_NAME).unwrap_or(host_name).trim_end_matches(['-', '.']);
    if !host_name.is_empty() {
        steps.push(Step::HostName(host_name.as_bytes().to_vec()));
    }
    steps.extend([Step::PrivateMounts, Step::Umask(NO_MASK)]);
    steps.extend(root::steps(&bases, edits, working_dir, user_namespace, workplace)?);
    steps.push(Step::Pivot);
    Ok(steps)
}

/// What is left to do in the container's root.
fn last(user_namespace: bool, program: &Program<'_>) -> Result<Vec<Step>, Failure> {
    let mut steps = vec![Step::Umask(MASK)];
    if !user_namespace {
        steps.push(Step::Groups(program.groups.iter().copied().map(Gid::from_raw).collect()));
    }
    steps.push(Step::WorkingDirectory(c_path(Path::new(program.working_dir), "working directory")?));
    steps.extend([Step::DropCapabilities, Step::NoNewPrivileges]);
    steps.extend(syscalls::filter().map(Step::FilterCalls));
    // The last is the last: changes of what a process may do undo it.
    steps.extend([Step::CloseOthers, die_with_us()?]);
    Ok(steps)
}

fn die_with_us() -> Result<Step, Failure> {
    let ours = pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    ours.map(Step::DieWithParent).map_err(|errno| Failure::Program(errno.into()))
}

fn command(program: &Program<'_>) -> Command {
    let (name, arguments) =
        program.command.split_first().map_or(("", Default::default()), |(name, rest)| (name.as_str(), rest));
    let mut command = Command::new(name);
    command
        .args(arguments)
        .env_clear()
        .envs(program.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null());
    command
}

fn run(command: Command, steps: Vec<Step>, processes: Processes<'_>) -> Result<Spawned, Failure> {
    let steps: Arc<[Step]> = steps.into();
    spawn(command, Arc::clone(&steps), processes).map_err(|error| match error {
        SpawnError::Step(index, error) => {
            let step = steps.get(index).map_or_else(|| format!("step {index}"), ToString::to_string);
            Failure::Step(step, error)
        }
        SpawnError::Program(error) => Failure::Program(error),
        SpawnError::Processes(error) => Failure::Step("enter a process namespace".to_owned(), error),
    })
}
