//! Containers without a runtime: processes that set up their own root in their own namespaces.

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
use super::child_action::ChildAction;
use super::exec::Connection;
use super::limit::Limit;
use super::namespaces::{self, Namespaces};
use super::pod_namespaces::PodNamespaces;
use super::root::{self, HostDirectories, InvalidPath, MountPoints, c_path};
use super::spawn::{PidNamespace, SpawnError, Spawned, spawn};
use super::syscalls;

/// The umask while the root is set up, and for the program.
const NO_MASK: Mode = Mode::empty();
const MASK: Mode = Mode::from_raw_mode(0o022);

/// Why a program could not be started.
#[derive(Debug)]
pub(super) enum Failure {
    Path(InvalidPath),
    /// The action that failed.
    Setup(String, io::Error),
    Program(io::Error),
}

impl From<InvalidPath> for Failure {
    fn from(invalid: InvalidPath) -> Self {
        Self::Path(invalid)
    }
}

/// What a container has besides its root and its program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extras {
    /// The namespaces of its pod.
    pub(crate) pod: Option<Arc<PodNamespaces>>,
    /// Resource limits.
    pub(crate) limits: Vec<Limit>,
    /// The adjustment of its score for the kernel's OOM killer.
    pub(crate) oom_score_adj: Option<i64>,
}

/// A program to run.
#[derive(Debug)]
pub(super) struct Program<'a> {
    pub command: &'a [String],
    pub env: &'a [(String, String)],
    pub working_dir: &'a str,
    pub groups: &'a [u32],
}

/// The longest host name of a pod, as in the kubelet.
const MAX_HOST_NAME: usize = 63;

/// Runs a program in a new container, with its output in a file.
pub(super) fn start(
    user_namespace: bool,
    host_name: &str,
    program: &Program<'_>,
    edits: &Edits,
    extras: &Extras,
    mount_points: &MountPoints<'_>,
    log: File,
) -> Result<Spawned, Failure> {
    let mut actions = setup_actions(user_namespace, host_name, edits, extras, program.working_dir, mount_points)?;
    actions.extend(extras.limits.iter().map(Limit::action));
    actions.extend(final_actions(user_namespace, program)?);
    let mut command = command(program);
    command.stderr(log.try_clone().map_err(Failure::Program)?).stdout(log);
    run(command, actions, pid_namespace(user_namespace))
}

/// Runs a program in the namespaces of a running container, with its input and output connected.
pub(super) fn join(
    namespaces: &Namespaces,
    program: &Program<'_>,
    connection: &Connection,
) -> Result<Spawned, Failure> {
    let mut actions = session(connection)?;
    let processes = namespaces.get(LinkNameSpaceType::ProcessID);
    for (kind, namespace) in namespaces.iter().filter(|(kind, _)| *kind != LinkNameSpaceType::ProcessID) {
        actions.push(ChildAction::Join { namespace: namespace.try_clone().map_err(Failure::Program)?, kind });
    }
    actions.extend(final_actions(namespaces.get(LinkNameSpaceType::User).is_some(), program)?);
    let mut command = command(program);
    connect(&mut command, connection)?;
    run(command, actions, processes.map_or(PidNamespace::Inherit, |namespace| PidNamespace::Join(namespace.as_fd())))
}

/// Runs a command without isolation, in a session of its own; it is killed when we end.
pub(super) fn run_plain(command: Command) -> Result<Spawned, Failure> {
    let actions = vec![ChildAction::Session, ChildAction::CloseOthers, die_with_parent()?];
    run(command, actions, PidNamespace::Inherit)
}

/// Runs a command like [`run_plain`], with its input and output connected.
pub(super) fn run_connected(mut command: Command, connection: &Connection) -> Result<Spawned, Failure> {
    connect(&mut command, connection)?;
    let mut actions = session(connection)?;
    actions.extend([ChildAction::CloseOthers, die_with_parent()?]);
    run(command, actions, PidNamespace::Inherit)
}

fn session(connection: &Connection) -> Result<Vec<ChildAction>, Failure> {
    let mut actions = vec![ChildAction::Session];
    if let Connection::Terminal(terminal) = connection {
        actions.push(ChildAction::ControllingTerminal(terminal.try_clone().map_err(Failure::Program)?));
    }
    Ok(actions)
}

fn connect(command: &mut Command, connection: &Connection) -> Result<(), Failure> {
    match connection {
        Connection::Pipes { stdin } => {
            command.stdin(if *stdin { Stdio::piped() } else { Stdio::null() });
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        Connection::Terminal(terminal) => {
            let end = || terminal.try_clone().map_err(Failure::Program);
            command.stdin(end()?).stdout(end()?).stderr(end()?);
        }
    }
    Ok(())
}

/// Tries to set up a container, and returns what fails.
pub(super) fn probe(user_namespace: bool, mount_points: &MountPoints<'_>) -> Result<(), String> {
    let program = Program { command: &[], env: &[], working_dir: "/", groups: &[] };
    let attempt = || {
        let extras = Extras::default();
        let mut actions = setup_actions(user_namespace, "probe", &Edits::default(), &extras, "/", mount_points)?;
        actions.extend(final_actions(user_namespace, &program)?);
        actions.push(ChildAction::Abort);
        run(command(&program), actions, pid_namespace(user_namespace))
    };
    match attempt() {
        // The last action prevents that: there is no program.
        Ok(_) => Err("a process without a program runs".to_owned()),
        Err(Failure::Setup(_, error)) if error.raw_os_error() == Some(Errno::CANCELED.raw_os_error()) => Ok(()),
        Err(Failure::Setup(action, error)) => Err(format!("{action}: {error}")),
        Err(Failure::Path(InvalidPath { what, path, problem })) => Err(format!("{what} {path:?}: {problem}")),
        Err(Failure::Program(error)) => Err(format!("start a process: {error}")),
    }
}

/// Returns the pid namespace of a new container. In a user namespace, creating one would need a second fork.
fn pid_namespace(user_namespace: bool) -> PidNamespace<'static> {
    if user_namespace { PidNamespace::Inherit } else { PidNamespace::New }
}

/// Returns the actions that set up a container's namespaces and root.
fn setup_actions(
    user_namespace: bool,
    host_name: &str,
    edits: &Edits,
    extras: &Extras,
    working_dir: &str,
    mount_points: &MountPoints<'_>,
) -> Result<Vec<ChildAction>, Failure> {
    let host = HostDirectories::read().map_err(|error| Failure::Setup("read directory /".to_owned(), error))?;
    let mut actions = vec![ChildAction::Session];
    if let Some(adjustment) = extras.oom_score_adj {
        let text = adjustment.to_string().into_bytes();
        actions.push(ChildAction::Write { path: c"/proc/self/oom_score_adj", text });
    }
    if let Some(pod) = &extras.pod {
        actions.extend(pod.join().map_err(Failure::Program)?);
    }
    let new_user_namespace = user_namespace && extras.pod.is_none();
    actions.push(ChildAction::Unshare(namespaces::flags(new_user_namespace)));
    if new_user_namespace {
        actions.extend(map_user());
    }
    let set = namespaces::Set { user: user_namespace, network: extras.pod.is_some() };
    actions.push(ChildAction::SendNamespaces(namespaces::kinds(set)));
    // Names of pods are ASCII; a truncated one must not end with a separator.
    let host_name = host_name.get(..MAX_HOST_NAME).unwrap_or(host_name).trim_end_matches(['-', '.']);
    if !host_name.is_empty() {
        actions.push(ChildAction::HostName(host_name.as_bytes().to_vec()));
    }
    actions.extend([ChildAction::PrivateMounts, ChildAction::Umask(NO_MASK)]);
    actions.extend(root::actions(&host, edits, working_dir, user_namespace, mount_points)?);
    actions.push(ChildAction::Pivot);
    Ok(actions)
}

/// Returns the actions that make the caller root in a new user namespace.
pub(super) fn map_user() -> [ChildAction; 3] {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let write = |path, text: String| ChildAction::Write { path, text: text.into_bytes() };
    [
        write(c"/proc/self/setgroups", "deny".to_owned()),
        write(c"/proc/self/uid_map", format!("0 {uid} 1\n")),
        write(c"/proc/self/gid_map", format!("0 {gid} 1\n")),
    ]
}

/// Returns the last actions, in the container's root.
fn final_actions(user_namespace: bool, program: &Program<'_>) -> Result<Vec<ChildAction>, Failure> {
    let mut actions = vec![ChildAction::Umask(MASK)];
    if !user_namespace {
        actions.push(ChildAction::Groups(program.groups.iter().copied().map(Gid::from_raw).collect()));
    }
    actions.push(ChildAction::WorkingDirectory(c_path(Path::new(program.working_dir), "working directory")?));
    actions.extend([ChildAction::DropCapabilities, ChildAction::NoNewPrivileges]);
    actions.extend(syscalls::filter().map(ChildAction::FilterCalls));
    // `DieWithParent` must come last: changes of credentials reset it.
    actions.extend([ChildAction::CloseOthers, die_with_parent()?]);
    Ok(actions)
}

fn die_with_parent() -> Result<ChildAction, Failure> {
    let parent = pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    parent.map(ChildAction::DieWithParent).map_err(|errno| Failure::Program(errno.into()))
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

fn run(command: Command, actions: Vec<ChildAction>, namespace: PidNamespace<'_>) -> Result<Spawned, Failure> {
    let actions: Arc<[ChildAction]> = actions.into();
    spawn(command, Arc::clone(&actions), namespace).map_err(|error| match error {
        SpawnError::Action(index, error) => {
            let action = actions.get(index).map_or_else(|| format!("action {index}"), ToString::to_string);
            Failure::Setup(action, error)
        }
        SpawnError::Program(error) => Failure::Program(error),
        SpawnError::PidNamespace(error) => Failure::Setup("enter a process namespace".to_owned(), error),
    })
}
