//! The actions of a child process between fork and exec: prepared before the fork, and identified by their index.
//!
//! [`ChildAction::run`] runs in a process that was forked from one with many threads: it makes system calls on data that the
//! action has ready, and does not allocate, lock or panic. The parent describes a failed action by its
//! [`Display`](fmt::Display).
//!
//! Paths in the container are always opened below the new root (`RESOLVE_IN_ROOT`): a symbolic link, even one in a directory
//! of the host that was mounted before, cannot lead out of it. Files are created only in the new root's own file systems, so
//! the target of a mount in a mounted directory must already exist.

use std::ffi::{CStr, CString};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::libc::sock_filter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Dev, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::{Errno, Result};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, move_mount,
    open_tree, unmount,
};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::{capabilities, guard, namespaces, spawn};

/// The most directories of the host in a root.
pub(super) const MAX_HOST_DIRECTORIES: usize = 32;
/// The number of attempts to open a path while something is renamed or mounted.
const MAX_OPEN_ATTEMPTS: usize = 16;

/// An action of a child process between fork and exec.
#[derive(Debug)]
pub(super) enum ChildAction {
    /// Starts a session, and so leaves that of the parent and its process group.
    Session,
    /// Makes a terminal the one of its session.
    ControllingTerminal(OwnedFd),
    /// Enters new namespaces.
    Unshare(UnshareFlags),
    /// Writes a kernel file: the maps of a user namespace.
    Write { path: &'static CStr, text: Vec<u8> },
    /// Sends handles to the namespaces to the parent, which could open them only while the process exists.
    SendNamespaces(&'static [LinkNameSpaceType]),
    /// Sends a socket for the configuration of the network namespace to the parent.
    SendNetworkSocket,
    /// Sets the host name, in a UTS namespace.
    HostName(Vec<u8>),
    /// Makes all mounts private, so that changes do not reach the host.
    PrivateMounts,
    /// Mounts an empty file system on a directory of the host: the new root.
    NewRoot { at: CString },
    /// Creates a directory, unless it exists.
    Directory { at: ContainerPath, mode: Mode },
    /// Creates a symbolic link.
    Link { to: CString, at: ContainerPath },
    /// Bind-mounts a file or directory of the host.
    Bind { source: CString, at: ContainerPath, recursive: bool, attributes: MountAttributes },
    /// Mounts an empty file system with these directories on a directory of the host, for the upper directories of overlays.
    Scratch { at: CString, directories: Vec<CString> },
    /// Mounts a directory of the host as an overlay, so that files created in it are not seen by the host.
    Overlay { at: ContainerPath, options: CString },
    /// Mounts a file system.
    Mount { kind: CString, source: CString, at: ContainerPath, flags: MountFlags, data: CString },
    /// Mounts something empty over a file or directory, if it exists.
    Hide(ContainerPath),
    /// Makes a file or directory read-only with all its submounts, if it exists.
    ReadOnly(ContainerPath),
    /// Creates a device node or named pipe.
    Node { at: ContainerPath, kind: FileType, mode: Mode, device: Dev, owner: Option<Uid>, group: Option<Gid> },
    /// Changes to the new root and unmounts the host's.
    Pivot,
    /// Joins a namespace of a running container, or of the container's pod.
    Join { namespace: OwnedFd, kind: LinkNameSpaceType },
    /// Sets the umask.
    Umask(Mode),
    /// Sets the supplementary groups.
    Groups(Vec<Gid>),
    /// Changes the working directory.
    WorkingDirectory(CString),
    /// Sets a resource limit.
    Limit { resource: Resource, limit: Rlimit },
    /// Drops all but a few [capabilities].
    DropCapabilities,
    /// Sets `no_new_privs`.
    NoNewPrivileges,
    /// Refuses some [system calls](super::syscalls).
    FilterCalls(Vec<sock_filter>),
    /// Closes the parent's files at exec.
    CloseOthers,
    /// Dies when the thread that forked ends. Has a handle to the parent, whose process id is not known in a pid namespace.
    DieWithParent(OwnedFd),
    /// Becomes the [guard](super::guard), and executes no program.
    Guard,
    /// Becomes a process that unmounts a directory when the socket that is its standard input closes, and executes no program.
    UnmountGuard(CString),
    /// Fails, which shows that all actions before it work.
    Abort,
}

/// A path in the container, relative to its root.
#[derive(Debug)]
pub(super) struct ContainerPath {
    path: CString,
    parent: CString,
    name: CString,
}

/// The restrictions of a mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MountAttributes {
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    /// Whether they apply to submounts, too.
    pub recursive: bool,
}

impl MountAttributes {
    pub(super) fn any(self) -> bool {
        self.read_only || self.no_suid || self.no_dev || self.no_exec
    }
}

impl ContainerPath {
    /// Joins the parts of a path below the root. No part may be `.` or `..`, or have a slash or zero byte.
    pub(super) fn new(parts: &[&str]) -> Option<Self> {
        let (name, parent) = parts.split_last()?;
        let valid = |part: &&str| !matches!(*part, "" | "." | "..") && !part.contains(['/', '\0']);
        let parent = if parent.is_empty() { ".".to_owned() } else { parent.join("/") };
        parts.iter().all(valid).then_some(())?;
        let text = |text: String| CString::new(text).ok();
        Some(Self { path: text(parts.join("/"))?, parent: text(parent)?, name: text((*name).to_owned())? })
    }
}

/// The state that actions share.
#[derive(Debug)]
pub(super) struct ChildState<'a> {
    /// The socket to the parent.
    pub channel: BorrowedFd<'a>,
    root: Option<Root>,
}

/// The new root, and the devices of the file systems in which files may be created.
#[derive(Debug)]
struct Root {
    directory: OwnedFd,
    devices: [Option<u64>; MAX_HOST_DIRECTORIES + 1],
}

impl<'a> ChildState<'a> {
    pub(super) fn new(channel: BorrowedFd<'a>) -> Self {
        Self { channel, root: None }
    }

    fn root(&self) -> Result<&Root> {
        self.root.as_ref().ok_or(Errno::BADF)
    }

    /// Allows the creation of files in a file system.
    fn allow_creation(&mut self, device: u64) -> Result<()> {
        let root = self.root.as_mut().ok_or(Errno::BADF)?;
        *root.devices.iter_mut().find(|slot| slot.is_none()).ok_or(Errno::NFILE)? = Some(device);
        Ok(())
    }
}

impl Root {
    fn open(&self, path: &CStr, flags: OFlags) -> Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let mut result = Err(Errno::AGAIN);
        for _ in 0..MAX_OPEN_ATTEMPTS {
            result = rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), resolve);
            if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        result
    }

    /// Opens the parent directory of a path that is to be created.
    fn parent(&self, at: &ContainerPath) -> Result<OwnedFd> {
        let parent = self.open(&at.parent, OFlags::DIRECTORY)?;
        let device = rustix::fs::fstat(&parent)?.st_dev;
        if self.devices.contains(&Some(device)) { Ok(parent) } else { Err(Errno::ROFS) }
    }

    /// Opens a path, and creates it if it does not exist.
    fn target(&self, at: &ContainerPath, directory: bool, mode: Mode) -> Result<OwnedFd> {
        let flags = if directory { OFlags::DIRECTORY } else { OFlags::empty() };
        match self.open(&at.path, flags) {
            Err(Errno::NOENT) => {}
            found => return found,
        }
        let parent = self.parent(at)?;
        if directory {
            rustix::fs::mkdirat(&parent, &*at.name, mode)?;
        } else {
            rustix::fs::mknodat(&parent, &*at.name, FileType::RegularFile, mode, 0)?;
        }
        self.open(&at.path, flags)
    }
}

/// The mode of mount targets, and of the directories above them.
const PLAIN: Mode = Mode::from_raw_mode(0o755);

impl ChildAction {
    /// Runs the action. Only makes system calls; see the top of this module.
    pub(super) fn run(&self, state: &mut ChildState<'_>) -> Result<()> {
        match self {
            Self::Session => rustix::process::setsid().map(drop),
            Self::ControllingTerminal(terminal) => rustix::process::ioctl_tiocsctty(terminal),
            Self::Unshare(flags) => spawn::unshare(*flags),
            Self::Write { path, text } => write(path, text),
            Self::SendNamespaces(kinds) => namespaces::send(state.channel, kinds, &spawn::NAMESPACES),
            Self::SendNetworkSocket => namespaces::send_network_socket(state.channel, &spawn::NAMESPACES),
            Self::HostName(name) => rustix::system::sethostname(name),
            Self::PrivateMounts => mount_change(c"/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE),
            Self::NewRoot { at } => {
                mount(c"tmpfs", &**at, c"tmpfs", MountFlags::NOSUID, c"mode=755")?;
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = rustix::fs::openat(CWD, &**at, flags, Mode::empty())?;
                let device = rustix::fs::fstat(&directory)?.st_dev;
                state.root = Some(Root { directory, devices: [None; MAX_HOST_DIRECTORIES + 1] });
                state.allow_creation(device)
            }
            Self::Directory { at, mode } => state.root()?.target(at, true, *mode).map(drop),
            Self::Link { to, at } => rustix::fs::symlinkat(&**to, state.root()?.parent(at)?, &*at.name),
            Self::Bind { source, at, recursive, attributes } => {
                bind(state.root()?, source, at, *recursive, *attributes)
            }
            Self::Scratch { at, directories } => {
                mount(c"tmpfs", &**at, c"tmpfs", MountFlags::NOSUID, c"mode=755")?;
                directories.iter().try_for_each(|directory| rustix::fs::mkdirat(CWD, &**directory, PLAIN))
            }
            Self::Overlay { at, options } => {
                let root = state.root()?;
                let target = root.target(at, true, PLAIN)?;
                with_path(&target, |path| mount(c"overlay", path, c"overlay", MountFlags::NOSUID, &**options))?;
                let device = rustix::fs::fstat(root.open(&at.path, OFlags::DIRECTORY)?)?.st_dev;
                state.allow_creation(device)
            }
            Self::Mount { kind, source, at, flags, data } => {
                let target = state.root()?.target(at, true, PLAIN)?;
                with_path(&target, |path| mount(&**source, path, &**kind, *flags, &**data))
            }
            Self::Hide(path) => hide(state.root()?, path),
            Self::ReadOnly(path) => make_read_only(state.root()?, path),
            Self::Node { at, kind, mode, device, owner, group } => {
                let parent = state.root()?.parent(at)?;
                rustix::fs::mknodat(&parent, &*at.name, *kind, *mode, *device)?;
                if owner.is_none() && group.is_none() {
                    return Ok(());
                }
                rustix::fs::chownat(&parent, &*at.name, *owner, *group, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            }
            Self::Pivot => {
                rustix::process::fchdir(&state.root()?.directory)?;
                // Onto itself: the old root is then mounted on top of the new one, and is unmounted.
                rustix::process::pivot_root(c".", c".")?;
                unmount(c".", UnmountFlags::DETACH)?;
                rustix::process::chdir(c"/")
            }
            Self::Join { namespace, kind } => rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(*kind)),
            Self::Umask(mask) => {
                rustix::process::umask(*mask);
                Ok(())
            }
            Self::Groups(groups) => rustix::thread::set_thread_groups(groups),
            Self::WorkingDirectory(path) => rustix::process::chdir(&**path),
            Self::Limit { resource, limit } => rustix::process::setrlimit(*resource, *limit),
            Self::DropCapabilities => capabilities::drop_others(),
            Self::NoNewPrivileges => rustix::thread::set_no_new_privs(true),
            Self::FilterCalls(filter) => spawn::filter_calls(filter),
            Self::CloseOthers => spawn::close_others_at_exec(),
            Self::DieWithParent(parent) => {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have ended before the signal was set.
                let ended = poll(&mut [PollFd::new(parent, PollFlags::IN)], Some(&Timespec::default()))?;
                if ended == 0 { Ok(()) } else { Err(Errno::SRCH) }
            }
            Self::Guard => spawn::become_guard(guard::run),
            Self::UnmountGuard(path) => spawn::become_guard(|socket| {
                guard::wait(socket);
                // A failure cannot be reported to anyone.
                let _ = unmount(&**path, UnmountFlags::DETACH);
            }),
            Self::Abort => Err(Errno::CANCELED),
        }
    }
}

fn write(path: &CStr, text: &[u8]) -> Result<()> {
    let file = rustix::fs::openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    // The kernel requires a single write.
    if rustix::io::write(&file, text)? == text.len() { Ok(()) } else { Err(Errno::IO) }
}

fn bind(root: &Root, source: &CStr, at: &ContainerPath, recursive: bool, attributes: MountAttributes) -> Result<()> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    let tree = open_tree(CWD, source, flags)?;
    let directory = FileType::from_raw_mode(rustix::fs::fstat(&tree)?.st_mode) == FileType::Directory;
    let target = root.target(at, directory, PLAIN)?;
    if attributes.any() {
        spawn::set_attributes(tree.as_fd(), attributes)?;
    }
    attach(&tree, &target)
}

fn hide(root: &Root, path: &ContainerPath) -> Result<()> {
    let target = match root.open(&path.path, OFlags::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        target => target?,
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode) == FileType::Directory {
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        return with_path(&target, |path| mount(c"tmpfs", path, c"tmpfs", flags, c"size=0k,mode=555"));
    }
    attach(&open_tree(CWD, c"/dev/null", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?, &target)
}

fn make_read_only(root: &Root, path: &ContainerPath) -> Result<()> {
    let target = match root.open(&path.path, OFlags::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        target => target?,
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(&target, c"", flags | OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::AT_RECURSIVE)?;
    spawn::set_attributes(
        tree.as_fd(),
        MountAttributes { read_only: true, recursive: true, ..MountAttributes::default() },
    )?;
    attach(&tree, &target)
}

fn attach(tree: &OwnedFd, target: &OwnedFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, c"", target, c"", flags)
}

/// Calls with the path of an open file, for system calls that take no file descriptor.
fn with_path(file: &OwnedFd, call: impl FnOnce(&CStr) -> Result<()>) -> Result<()> {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    let mut path = [0; PREFIX.len() + 11];
    let mut digits = [0; 10];
    let mut length = 0;
    let mut number = file.as_raw_fd().unsigned_abs();
    for digit in &mut digits {
        // Always below 10.
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        length += 1;
        if number == 0 {
            break;
        }
    }
    for (slot, byte) in path.iter_mut().zip(PREFIX.iter().chain(digits.iter().take(length).rev())) {
        *slot = *byte;
    }
    call(CStr::from_bytes_until_nul(&path).map_err(|_never| Errno::INVAL)?)
}

impl fmt::Display for ContainerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.path.to_string_lossy())
    }
}

impl fmt::Display for ChildAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session => f.write_str("start a session"),
            Self::ControllingTerminal(_) => f.write_str("take a terminal"),
            Self::Unshare(flags) if flags.contains(UnshareFlags::NEWUSER) => {
                f.write_str("create a user namespace with mount and other namespaces")
            }
            Self::Unshare(_) => f.write_str("create mount and other namespaces"),
            Self::Write { path, .. } => write!(f, "write {}", path.to_string_lossy()),
            Self::SendNamespaces(_) => f.write_str("send the namespaces"),
            Self::SendNetworkSocket => f.write_str("open a network socket"),
            Self::HostName(name) => write!(f, "set the host name {}", String::from_utf8_lossy(name)),
            Self::PrivateMounts => f.write_str("make mounts private"),
            Self::NewRoot { at } => write!(f, "mount a new root at {}", at.to_string_lossy()),
            Self::Directory { at, .. } => write!(f, "create directory {at}"),
            Self::Link { to, at } => write!(f, "link {at} to {}", to.to_string_lossy()),
            Self::Bind { source, at, .. } => write!(f, "mount {} at {at}", source.to_string_lossy()),
            Self::Scratch { at, .. } => write!(f, "mount a scratch directory at {}", at.to_string_lossy()),
            Self::Overlay { at, .. } => write!(f, "mount an overlay at {at}"),
            Self::Mount { kind, source, at, .. } => {
                write!(f, "mount {} of type {:?} at {at}", source.to_string_lossy(), kind.to_string_lossy())
            }
            Self::Hide(path) => write!(f, "hide {path}"),
            Self::ReadOnly(path) => write!(f, "make {path} read-only"),
            Self::Node { at, .. } => write!(f, "create device node {at}"),
            Self::Pivot => f.write_str("change to the new root"),
            Self::Join { kind, .. } => write!(f, "join the {} namespace", namespaces::name(*kind)),
            Self::Umask(_) => f.write_str("set the umask"),
            Self::Groups(_) => f.write_str("set the groups"),
            Self::WorkingDirectory(path) => write!(f, "change to directory {}", path.to_string_lossy()),
            Self::Limit { resource, .. } => write!(f, "set the limit {resource:?}"),
            Self::DropCapabilities => f.write_str("drop capabilities"),
            Self::FilterCalls(_) => f.write_str("filter system calls"),
            Self::NoNewPrivileges => f.write_str("set no_new_privs"),
            Self::CloseOthers => f.write_str("close inherited files"),
            Self::DieWithParent(_) => f.write_str("set the parent death signal"),
            Self::Guard | Self::UnmountGuard(_) => f.write_str("become a guard"),
            Self::Abort => f.write_str("abort"),
        }
    }
}
