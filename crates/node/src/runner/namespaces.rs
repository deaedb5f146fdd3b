//! The namespaces of a container, and handles to them.
//!
//! The network is the host's, or that of the container's pod. In a user namespace the processes are the host's: entering a new
//! pid namespace without a second fork needs privileges.

use std::ffi::CStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Result;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socket_with,
};
use rustix::thread::{LinkNameSpaceType as Kind, UnshareFlags};

use super::guard::Guarded;

/// The most namespaces that a container has.
pub(super) const MAX: usize = 6;

/// Which namespaces a container has besides those that all have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Set {
    /// A user namespace, instead of a pid namespace.
    pub user: bool,
    /// The network namespace of a pod.
    pub network: bool,
}

/// Returns the kinds of namespaces that a container has, in the order in which they are joined: first the user namespace,
/// which gives the privileges to join the others, and last the mount namespace.
pub(super) fn kinds(set: Set) -> &'static [Kind] {
    use Kind::{ControlGroup, HostNameAndNISDomainName, InterProcessCommunication, Mount, Network, ProcessID, User};
    match (set.user, set.network) {
        (true, false) => &[User, InterProcessCommunication, HostNameAndNISDomainName, ControlGroup, Mount],
        (true, true) => &[User, InterProcessCommunication, HostNameAndNISDomainName, ControlGroup, Network, Mount],
        (false, false) => &[ProcessID, InterProcessCommunication, HostNameAndNISDomainName, ControlGroup, Mount],
        (false, true) => {
            &[ProcessID, InterProcessCommunication, HostNameAndNISDomainName, ControlGroup, Network, Mount]
        }
    }
}

/// Returns the flags to unshare them. The pid namespace is not among them: it is for children; nor is the network namespace,
/// which the pod has already.
pub(super) fn flags(user_namespace: bool) -> UnshareFlags {
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS | UnshareFlags::NEWCGROUP;
    flags.set(UnshareFlags::NEWUSER, user_namespace);
    flags
}

/// Returns the usual name of a kind.
pub(super) fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Mount => "mount",
        Kind::ControlGroup => "cgroup",
        Kind::HostNameAndNISDomainName => "uts",
        Kind::InterProcessCommunication => "ipc",
        Kind::User => "user",
        Kind::ProcessID => "pid",
        Kind::Network => "network",
        Kind::Time => "time",
    }
}

fn path(kind: Kind) -> &'static CStr {
    match kind {
        Kind::Mount => c"/proc/self/ns/mnt",
        Kind::ControlGroup => c"/proc/self/ns/cgroup",
        Kind::HostNameAndNISDomainName => c"/proc/self/ns/uts",
        Kind::InterProcessCommunication => c"/proc/self/ns/ipc",
        Kind::User => c"/proc/self/ns/user",
        Kind::ProcessID => c"/proc/self/ns/pid",
        Kind::Network => c"/proc/self/ns/net",
        Kind::Time => c"/proc/self/ns/time",
    }
}

/// Sends handles to the namespaces of the calling process, with this text. Only makes system calls.
pub(super) fn send(channel: BorrowedFd<'_>, kinds: &[Kind], text: &[u8]) -> Result<()> {
    let mut files = [const { None }; MAX];
    for (file, kind) in files.iter_mut().zip(kinds) {
        *file = Some(rustix::fs::openat(CWD, path(*kind), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    }
    send_files(channel, &files, text)
}

/// Sends a socket for the network configuration of the calling process's network namespace, with this text. Only makes
/// system calls.
pub(super) fn send_network_socket(channel: BorrowedFd<'_>, text: &[u8]) -> Result<()> {
    let mut files = [const { None }; MAX];
    // The first protocol, that of links, addresses and routes, is the default.
    files[0] = Some(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?);
    send_files(channel, &files, text)
}

fn send_files(channel: BorrowedFd<'_>, files: &[Option<OwnedFd>; MAX], text: &[u8]) -> Result<()> {
    let mut sent = [channel; MAX];
    let mut count = 0;
    for (slot, file) in sent.iter_mut().zip(files.iter().flatten()) {
        *slot = OwnedFd::as_fd(file);
        count += 1;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(sent.get(..count).unwrap_or_default()));
    sendmsg(channel, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Handles to the namespaces of a container. They keep the namespaces and the container's own file systems alive.
#[derive(Debug)]
pub(super) struct Namespaces {
    handles: Vec<(Kind, OwnedFd)>,
    /// Held only for its drop.
    guarded: Option<Guarded>,
}

impl Namespaces {
    /// Creates them from handles in the order of [`kinds`]; `None` if some are missing.
    pub(super) fn new(set: Set, handles: Vec<OwnedFd>) -> Option<Self> {
        let kinds = kinds(set);
        let complete = handles.len() == kinds.len();
        complete.then(|| Self { handles: kinds.iter().copied().zip(handles).collect(), guarded: None })
    }

    pub(super) fn guard_with(&mut self, guarded: Guarded) {
        self.guarded = Some(guarded);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Kind, &OwnedFd)> {
        self.handles.iter().map(|(kind, handle)| (*kind, handle))
    }

    pub(super) fn get(&self, kind: Kind) -> Option<&OwnedFd> {
        self.iter().find(|(other, _)| *other == kind).map(|(_, handle)| handle)
    }

    /// Reports whether there is a pid namespace, whose processes end with the first of them.
    pub(super) fn has_pid_namespace(&self) -> bool {
        self.get(Kind::ProcessID).is_some()
    }
}
