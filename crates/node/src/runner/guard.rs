//! A process that outlives ours for a moment, to kill what containers leave behind when we are killed.
//!
//! The kernel kills the first process of a container when we die, and with it all others of its pid namespace. In a user
//! namespace containers have no pid namespace, and children would live on. So a runner of these starts a guard, which holds
//! the mount namespaces of its containers open, and a socket to us. When the socket closes, however we end, the guard kills
//! all processes in these namespaces, and exits. It has a session of its own, so that Ctrl-C does not end it together with
//! us.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::child_action::ChildAction;
use super::leftovers;
use super::spawn::{PidNamespace, SpawnError, Spawned, spawn};

/// The number of namespaces that a guard can hold. Further containers run unguarded.
const SLOTS: usize = 512;

/// Our side of the guard. Dropping it ends the process, which takes a millisecond.
#[derive(Debug)]
pub(super) struct Guard {
    socket: Option<OwnedFd>,
    process: Child,
    /// Which slots are in use.
    used: Mutex<[bool; SLOTS]>,
}

/// Keeps a namespace guarded until it is dropped.
#[derive(Debug)]
pub(super) struct Guarded {
    guard: Arc<Guard>,
    slot: usize,
}

impl Guard {
    pub(super) fn start() -> io::Result<Self> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("guard");
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        match spawn(command, Arc::from([ChildAction::Session, ChildAction::Guard]), PidNamespace::Inherit) {
            Ok(Spawned { child, .. }) => {
                Ok(Self { socket: Some(ours), process: child, used: Mutex::new([false; SLOTS]) })
            }
            Err(SpawnError::Action(_, error) | SpawnError::Program(error) | SpawnError::PidNamespace(error)) => {
                Err(error)
            }
        }
    }

    /// Guards a namespace.
    pub(super) fn watch(self: &Arc<Self>, namespace: &OwnedFd) -> io::Result<Guarded> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let free = used.iter_mut().enumerate().find(|(_, used)| !**used);
        let (slot, used) = free.ok_or_else(|| io::Error::other("too many containers at a time"))?;
        self.send(slot, Some(namespace.as_fd()))?;
        *used = true;
        Ok(Guarded { guard: Arc::clone(self), slot })
    }

    /// Sends a namespace for a slot, or clears the slot.
    fn send(&self, slot: usize, namespace: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(Errno::BADF)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(namespace) = &namespace {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(namespace)));
        }
        sendmsg(socket, &[IoSlice::new(&slot.to_ne_bytes())], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let mut used = self.guard.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.guard.send(self.slot, None) {
            // The slot stays in use.
            tracing::warn!(%error, "sending to the guard of containers failed");
        } else if let Some(used) = used.get_mut(self.slot) {
            *used = false;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.socket = None;
        if let Err(error) = self.process.wait() {
            tracing::error!(%error, "waiting for the guard of containers failed");
        }
    }
}

/// Waits until the other end of a socket, on which nothing is sent, closes. Only makes system calls.
pub(super) fn wait(socket: BorrowedFd<'_>) {
    while let Err(Errno::INTR) = rustix::io::read(socket, &mut [0]) {}
}

/// Runs the guard, with the socket as its standard input. Only makes system calls.
pub(super) fn run(socket: BorrowedFd<'_>) {
    let mut held = [const { None }; SLOTS];
    let mut slot = [0; size_of::<usize>()];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(socket, &mut [IoSliceMut::new(&mut slot)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == slot.len() => {}
            Err(Errno::INTR) => continue,
            // The runner is gone.
            Ok(_) | Err(_) => break,
        }
        let mut namespace = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = message {
                namespace = files.next();
            }
        }
        if let Some(held) = held.get_mut(usize::from_ne_bytes(slot)) {
            *held = namespace;
        }
    }
    for namespace in held.iter().flatten() {
        // A failure cannot be reported to anyone.
        let _ = leftovers::kill(namespace);
    }
}
