//! A process that outlives ours, for a moment: it kills what containers leave behind when we are killed.
//!
//! The first process of a container dies with us, since the kernel sees to that, and so do all others of its process
//! namespace. In a user namespace containers have no such namespace, and children live on. So a runner of these has a guard, which holds the mount namespaces of its containers open, and a socket to us. When the socket closes, however we
//! end, it kills all that is in these namespaces, and is gone. It is in a session of its own, so that Ctrl-C does not end it
//! together with us.

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

use super::leftovers;
use super::spawn::{Processes, SpawnError, Spawned, spawn};
use super::step::Step;

/// How many namespaces a guard can hold. More containers at a time run unguarded.
const PLACES: usize = 512;

/// The guard, from our side. Dropping it ends the process, which takes a millisecond.
#[derive(Debug)]
pub(super) struct Guard {
    socket: Option<OwnedFd>,
    process: Child,
    /// Which places are taken.
    taken: Mutex<[bool; PLACES]>,
}

/// A namespace is guarded, until this is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    guard: Arc<Guard>,
    place: usize,
}

impl Guard {
    pub(super) fn start() -> io::Result<Self> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("guard");
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        match spawn(command, Arc::from([Step::Session, Step::Guard]), Processes::Same) {
            Ok(Spawned { child, .. }) => {
                Ok(Self { socket: Some(ours), process: child, taken: Mutex::new([false; PLACES]) })
            }
            Err(SpawnError::Step(_, error) | SpawnError::Program(error) | SpawnError::Processes(error)) => Err(error),
        }
    }

    /// Guards a namespace.
    pub(super) fn watch(self: &Arc<Self>, namespace: &OwnedFd) -> io::Result<Ticket> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = taken.iter_mut().enumerate().find(|(_, taken)| !**taken);
        let (place, taken) = free.ok_or_else(|| io::Error::other("too many containers at a time"))?;
        self.tell(place, Some(namespace.as_fd()))?;
        *taken = true;
        Ok(Ticket { guard: Arc::clone(self), place })
    }

    /// Puts a namespace in a place, or takes out the one that is there.
    fn tell(&self, place: usize, namespace: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(Errno::BADF)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(namespace) = &namespace {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(namespace)));
        }
        sendmsg(socket, &[IoSlice::new(&place.to_ne_bytes())], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut taken = self.guard.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.guard.tell(self.place, None) {
            // Its place stays taken.
            tracing::warn!(%error, "the guard of containers does not listen");
        } else if let Some(taken) = taken.get_mut(self.place) {
            *taken = false;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.socket = None;
        if let Err(error) = self.process.wait() {
            tracing::error!(%error, "the guard of containers may be left");
        }
    }
}

/// What the guard does, with the socket as its standard input. Makes system calls and nothing else.
pub(super) fn stand(socket: BorrowedFd<'_>) {
    let mut held = [const { None }; PLACES];
    let mut place = [0; size_of::<usize>()];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(socket, &mut [IoSliceMut::new(&mut place)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == place.len() => {}
            Err(Errno::INTR) => continue,
            // Nobody is there any more.
            Ok(_) | Err(_) => break,
        }
        let mut namespace = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = message {
                namespace = files.next();
            }
        }
        if let Some(held) = held.get_mut(usize::from_ne_bytes(place)) {
            *held = namespace;
        }
    }
    for namespace in held.iter().flatten() {
        // Nobody to tell if it fails.
        let _ = leftovers::kill(namespace);
    }
}
