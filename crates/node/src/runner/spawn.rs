//! Forks, runs [actions](super::child_action) in the child, and executes a program: the one place with unsafe code.
//!
//! After a fork of a process with many threads, the child may only make system calls until it executes a program. So
//! everything that needs memory is prepared before, as a flat list of actions. If one fails, the child sends its index to
//! the parent, which knows its name; the standard library only passes the error number.

#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;

use nix::libc;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags,
    SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::child_action::{ChildAction, ChildState, MountAttributes};
use super::namespaces;

/// The message with which the child sends its namespaces.
pub(super) const NAMESPACES: [u8; 4] = [0xff; 4];

/// A started program, and the namespaces that it sent.
#[derive(Debug)]
pub(super) struct Spawned {
    pub child: Child,
    pub namespaces: Vec<OwnedFd>,
}

/// Why a program could not be started.
#[derive(Debug)]
pub(super) enum SpawnError {
    /// The action with this index failed.
    Action(usize, io::Error),
    /// The program cannot be executed after all actions have succeeded, or the fork failed.
    Program(io::Error),
    /// The pid namespace cannot be created or joined.
    PidNamespace(io::Error),
}

/// The pid namespace of a new process.
#[derive(Debug, Clone, Copy)]
pub(super) enum PidNamespace<'a> {
    /// That of the caller.
    Inherit,
    /// A new one, of which it is the first process.
    New,
    /// This one.
    Join(BorrowedFd<'a>),
}

/// Executes the command in a new process, after the actions. With the action [`DieWithParent`](ChildAction::DieWithParent)
/// the calling thread must live as long as the process.
pub(super) fn spawn(
    command: Command,
    actions: Arc<[ChildAction]>,
    namespace: PidNamespace<'_>,
) -> Result<Spawned, SpawnError> {
    let Outcome { spawned, files, failed } = fork(command, actions, namespace)?;
    match (spawned, failed) {
        (Ok(child), _) => Ok(Spawned { child, namespaces: files }),
        (Err(error), Some(index)) => Err(SpawnError::Action(index, error)),
        (Err(error), None) => Err(SpawnError::Program(error)),
    }
}

/// Runs the actions in a new process that executes no program, and returns the files that it sent.
pub(super) fn run_actions(mut actions: Vec<ChildAction>) -> Result<Vec<OwnedFd>, SpawnError> {
    let last = actions.len();
    actions.push(ChildAction::Abort);
    let Outcome { spawned, files, failed } = fork(Command::new(""), actions.into(), PidNamespace::Inherit)?;
    match (spawned, failed) {
        (Err(_), Some(index)) if index == last => Ok(files),
        (Err(error), Some(index)) => Err(SpawnError::Action(index, error)),
        (Err(error), None) => Err(SpawnError::Program(error)),
        // The last action prevents that.
        (Ok(_), _) => Err(SpawnError::Program(io::Error::other("a process without a program runs"))),
    }
}

/// What became of a fork.
struct Outcome {
    spawned: io::Result<Child>,
    /// The files that the child sent.
    files: Vec<OwnedFd>,
    /// The action that failed.
    failed: Option<usize>,
}

fn fork(mut command: Command, actions: Arc<[ChildAction]>, namespace: PidNamespace<'_>) -> Result<Outcome, SpawnError> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| SpawnError::Program(errno.into()))?;
    let run = move || {
        let mut state = ChildState::new(theirs.as_fd());
        for (index, action) in actions.iter().enumerate() {
            if let Err(errno) = action.run(&mut state) {
                report(theirs.as_fd(), index);
                return Err(errno.into());
            }
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec. It makes system calls on memory that was allocated before the fork,
    // and neither allocates (an io::Error of an error number does not), nor locks, nor panics: see `ChildAction::run`.
    unsafe { command.pre_exec(run) };
    let own = enter(namespace).map_err(|errno| SpawnError::PidNamespace(errno.into()))?;
    let mut spawned = command.spawn();
    if let Some(Err(errno)) = own.map(|own| leave(&own)) {
        // This thread can no longer start threads or containers. The child that it has just started must not be leaked.
        if let Ok(child) = &mut spawned {
            let _ = child.kill().and_then(|()| child.wait());
        }
        return Err(SpawnError::PidNamespace(errno.into()));
    }
    // The child has executed its program, or exited: all its messages have arrived.
    let (files, failed) = receive(&ours);
    Ok(Outcome { spawned, files, failed })
}

fn report(channel: BorrowedFd<'_>, index: usize) {
    let index = u32::try_from(index).unwrap_or(0).to_ne_bytes();
    // If sending fails, the parent still gets the error number.
    let _ = sendmsg(channel, &[IoSlice::new(&index)], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
}

fn receive(channel: &OwnedFd) -> (Vec<OwnedFd>, Option<usize>) {
    let mut received = Vec::new();
    let mut failed = None;
    let mut text = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(namespaces::MAX))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(channel, &mut [IoSliceMut::new(&mut text)], &mut control, flags) {
            Ok(message) if message.bytes == text.len() => {}
            Err(Errno::INTR) => continue,
            // No more messages.
            Ok(_) | Err(_) => return (received, failed),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                received.extend(files);
            }
        }
        if text != NAMESPACES {
            failed = usize::try_from(u32::from_ne_bytes(text)).ok();
        }
    }
}

/// Makes the calling thread's next children members of a pid namespace. Returns a handle to the thread's own, to return to.
fn enter(namespace: PidNamespace<'_>) -> rustix::io::Result<Option<OwnedFd>> {
    if matches!(namespace, PidNamespace::Inherit) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let own = rustix::fs::openat(CWD, c"/proc/thread-self/ns/pid", flags, Mode::empty())?;
    match namespace {
        PidNamespace::Join(namespace) => {
            rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::ProcessID))?;
        }
        // SAFETY: the file descriptor table is not unshared.
        _ => unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWPID) }?,
    }
    Ok(Some(own))
}

fn leave(own: &OwnedFd) -> rustix::io::Result<()> {
    rustix::thread::move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))
}

/// Enters new namespaces. For the child of a fork.
pub(super) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the file descriptor table is not unshared.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Restricts a mount that is not attached yet. Needs Linux 5.12; rustix does not have the call.
pub(super) fn set_attributes(tree: BorrowedFd<'_>, attributes: MountAttributes) -> rustix::io::Result<()> {
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    let attributes_to_set = bit(attributes.read_only, libc::MOUNT_ATTR_RDONLY)
        | bit(attributes.no_suid, libc::MOUNT_ATTR_NOSUID)
        | bit(attributes.no_dev, libc::MOUNT_ATTR_NODEV)
        | bit(attributes.no_exec, libc::MOUNT_ATTR_NOEXEC);
    let change = libc::mount_attr { attr_set: attributes_to_set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if attributes.recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string and the structure has the given size; the kernel reads both and keeps neither.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result)
}

/// Opens a terminal: our end, and that of a program. rustix has the calls in a feature that nothing else here needs.
pub(super) fn open_terminal() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = rustix::fs::openat(CWD, c"/dev/ptmx", flags, Mode::empty())?;
    let unlocked: libc::c_int = 0;
    // SAFETY: the kernel reads the number that the pointer leads to, and keeps no pointer.
    if unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) } != 0 {
        return Err(last_error());
    }
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: only numbers are passed.
    let theirs = unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    if theirs < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just opened it for us, and nothing else has it.
    Ok((ours, unsafe { OwnedFd::from_raw_fd(theirs) }))
}

/// Installs a seccomp filter for this process and its children. For the child of a fork.
pub(super) fn filter_calls(filter: &[libc::sock_filter]) -> rustix::io::Result<()> {
    let len = libc::c_ushort::try_from(filter.len()).map_err(|_too_long| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program and its instructions have the given length; the kernel copies them and writes to neither.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
}

/// Sets close-on-exec for all file descriptors but the first three. For the child of a fork. Needs Linux 5.11.
pub(super) fn close_others_at_exec() -> rustix::io::Result<()> {
    // SAFETY: only numbers are passed, and no file is closed before exec, which ends everything of this process.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(result)
}

/// Becomes a guard of a runner, with a socket to it as standard input, and then exits. For the child of a fork; returns only if
/// it fails.
pub(super) fn become_guard(run: impl FnOnce(BorrowedFd<'_>)) -> rustix::io::Result<()> {
    rustix::thread::set_name(c"container-guard")?;
    rustix::process::chdir(c"/")?;
    // SAFETY: only numbers are passed. The closed files are not used again: this process does only what follows. It also
    // closes the parent's pipe, which the parent takes for a successful exec.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) })?;
    // SAFETY: standard input is the socket, and nothing closes it.
    run(unsafe { BorrowedFd::borrow_raw(0) });
    // SAFETY: nothing else of this process must run.
    unsafe { libc::_exit(0) }
}

fn check(result: libc::c_long) -> rustix::io::Result<()> {
    if result == 0 {
        return Ok(());
    }
    Err(last_error())
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
