//! Forks, runs [steps](super::step) and a program, and tells which step failed: the one place with unsafe code.
//!
//! The child of a fork in a process with many threads may only make system calls until it runs a program. So all that
//! needs memory is made before, as a flat list of steps; the child tells the parent the index of the one that failed, and
//! the parent knows its name. The system tells the parent only the error number.

#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
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

use super::step::{Attributes, Progress, Step};
use super::{guard, namespaces};

/// What the child says when it hands over its namespaces.
pub(super) const NAMESPACES: [u8; 4] = [0xff; 4];

/// A program that runs, and the namespaces that it sent.
#[derive(Debug)]
pub(super) struct Spawned {
    pub child: Child,
    pub namespaces: Vec<OwnedFd>,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum SpawnError {
    /// The step with this index failed.
    Step(usize, io::Error),
    /// The program cannot be run, all steps being done, or nothing could be forked.
    Program(io::Error),
    /// The process namespace cannot be made or joined.
    Processes(io::Error),
}

/// The process namespace that a new process is in.
#[derive(Debug, Clone, Copy)]
pub(super) enum Processes<'a> {
    /// That of the caller.
    Same,
    /// A new one, whose first process it is.
    New,
    /// This one.
    Of(BorrowedFd<'a>),
}

/// Runs the command in a new process after the steps. The calling thread must live as long as the process, if there is a
/// step [`DieWithParent`](Step::DieWithParent).
pub(super) fn spawn(mut command: Command, steps: Arc<[Step]>, processes: Processes<'_>) -> Result<Spawned, SpawnError> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| SpawnError::Program(errno.into()))?;
    let run = move || {
        let mut progress = Progress::new(theirs.as_fd());
        for (index, step) in steps.iter().enumerate() {
            if let Err(errno) = step.run(&mut progress) {
                report(theirs.as_fd(), index);
                return Err(errno.into());
            }
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec. It makes system calls on memory that was made before the fork,
    // and neither allocates (an io::Error of an error number does not), nor locks, nor panics: see `Step::run`.
    unsafe { command.pre_exec(run) };
    let own = enter(processes).map_err(|errno| SpawnError::Processes(errno.into()))?;
    let mut spawned = command.spawn();
    if let Some(Err(errno)) = own.map(|own| leave(&own)) {
        // This thread can start neither threads nor containers any more. What it has just started is not to be lost.
        if let Ok(child) = &mut spawned {
            let _ = child.kill().and_then(|()| child.wait());
        }
        return Err(SpawnError::Processes(errno.into()));
    }
    // The child is a program by now, or gone: what it had to say is there.
    let (namespaces, failed) = listen(&ours);
    match (spawned, failed) {
        (Ok(child), _) => Ok(Spawned { child, namespaces }),
        (Err(error), Some(step)) => Err(SpawnError::Step(step, error)),
        (Err(error), None) => Err(SpawnError::Program(error)),
    }
}

fn report(channel: BorrowedFd<'_>, index: usize) {
    let index = u32::try_from(index).unwrap_or(0).to_ne_bytes();
    // Nobody to tell if it fails; the parent still gets the error number.
    let _ = sendmsg(channel, &[IoSlice::new(&index)], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
}

fn listen(channel: &OwnedFd) -> (Vec<OwnedFd>, Option<usize>) {
    let (mut namespaces, mut failed) = (Vec::new(), None);
    let mut text = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(namespaces::MAX))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(channel, &mut [IoSliceMut::new(&mut text)], &mut control, flags) {
            Ok(message) if message.bytes == text.len() => {}
            Err(Errno::INTR) => continue,
            // Nothing more.
            Ok(_) | Err(_) => return (namespaces, failed),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                namespaces.extend(files);
            }
        }
        if text != NAMESPACES {
            failed = usize::try_from(u32::from_ne_bytes(text)).ok();
        }
    }
}

/// Makes the next processes of the calling thread, and only these, members of a process namespace. Gives a handle to the
/// thread's own, to go back to.
fn enter(processes: Processes<'_>) -> rustix::io::Result<Option<OwnedFd>> {
    if matches!(processes, Processes::Same) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let own = rustix::fs::openat(CWD, c"/proc/thread-self/ns/pid", flags, Mode::empty())?;
    match processes {
        Processes::Of(namespace) => {
            rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::ProcessID))?;
        }
        // SAFETY: the table of open files is not unshared.
        _ => unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWPID) }?,
    }
    Ok(Some(own))
}

fn leave(own: &OwnedFd) -> rustix::io::Result<()> {
    rustix::thread::move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))
}

/// Goes into new namespaces. For the child of a fork.
pub(super) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the table of open files is not unshared.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Restricts a mount that is not attached yet. Linux 5.12; rustix does not have the call.
pub(super) fn set_attributes(tree: BorrowedFd<'_>, attributes: Attributes) -> rustix::io::Result<()> {
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    let attributes_to_set = bit(attributes.read_only, libc::MOUNT_ATTR_RDONLY)
        | bit(attributes.no_suid, libc::MOUNT_ATTR_NOSUID)
        | bit(attributes.no_devices, libc::MOUNT_ATTR_NODEV)
        | bit(attributes.no_programs, libc::MOUNT_ATTR_NOEXEC);
    let change = libc::mount_attr { attr_set: attributes_to_set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if attributes.all { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string and the structure has the size that is told; the kernel reads both and keeps neither.
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

/// Has the kernel filter the system calls of this process and its children. For the child of a fork.
pub(super) fn filter_calls(filter: &[libc::sock_filter]) -> rustix::io::Result<()> {
    let len = libc::c_ushort::try_from(filter.len()).map_err(|_too_long| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program and its instructions are as long as they say; the kernel copies them and writes to neither.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
}

/// Makes all open files but the first three close when a program is run. For the child of a fork. Linux 5.11.
pub(super) fn close_others_at_exec() -> rustix::io::Result<()> {
    // SAFETY: only numbers are passed, and no file is closed before a program is run, where all of this process ends.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(result)
}

/// Becomes the guard of a runner, with a socket to it as standard input. For the child of a fork; returns only if it
/// cannot.
pub(super) fn stand_guard() -> rustix::io::Result<()> {
    rustix::thread::set_name(c"container-guard")?;
    rustix::process::chdir(c"/")?;
    // SAFETY: only numbers are passed. What is closed is not used any more: this process does nothing but what follows.
    // With them the parent's pipe is closed, which then takes us for a program.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) })?;
    // SAFETY: standard input is the socket, and nothing closes it.
    guard::stand(unsafe { BorrowedFd::borrow_raw(0) });
    // SAFETY: nothing of this process is to be run any more.
    unsafe { libc::_exit(0) }
}

fn check(result: libc::c_long) -> rustix::io::Result<()> {
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
