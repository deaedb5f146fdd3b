//! The steps from a fork to a container's program: each one thing, prepared before the fork and told apart by its index.
//!
//! [`Step::run`] is called in a process that was forked from one with many threads: it makes system calls on what the
//! step has ready, and does not allocate, lock or panic. What a step is about is told by its [`Display`](fmt::Display),
//! in the parent.
//!
//! Paths in the container are always opened below the new root (`RESOLVE_IN_ROOT`): a symbolic link, also one in a
//! directory of the host that was mounted before, cannot lead out. Nothing is created but in the new root's own file
//! systems, so a mount's target that is in a mounted directory must be there already.

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
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::{capabilities, namespaces, spawn};

/// How many directories of the host a root has at most.
pub(super) const MAX_BASES: usize = 32;
/// How often a path is opened again when something was renamed or mounted meanwhile.
const TRIES: usize = 16;

/// One thing to do.
#[derive(Debug)]
pub(super) enum Step {
    /// Leaves the session and process group of the parent.
    Session,
    /// Goes into new namespaces.
    Unshare(UnshareFlags),
    /// Writes a file of the kernel: the maps of a user namespace.
    Write { path: &'static CStr, text: Vec<u8> },
    /// Gives the namespaces to the parent, which cannot open them by itself before the process may be gone.
    SendNamespaces(&'static [LinkNameSpaceType]),
    /// Sets the host name, in a namespace for it.
    HostName(Vec<u8>),
    /// Keeps what follows out of the host's mounts.
    PrivateMounts,
    /// Puts an empty file system over a directory of the host: the root to be.
    NewRoot { at: CString },
    /// Makes a directory, unless it is there.
    Directory { place: Place, mode: Mode },
    /// Makes a symbolic link.
    Link { to: CString, place: Place },
    /// Mounts a file or directory of the host.
    Bind { source: CString, place: Place, recursive: bool, attributes: Attributes },
    /// Puts an empty file system with these directories over a directory of the host, to be the upper parts of overlays.
    Scratch { at: CString, directories: Vec<CString> },
    /// Mounts a directory of the host so that files and directories can be made in it that the host does not see.
    Overlay { place: Place, options: CString },
    /// Mounts a file system of its own.
    Mount { kind: CString, source: CString, place: Place, flags: MountFlags, data: CString },
    /// Puts something empty over what is there, if there is something.
    Hide(Place),
    /// Makes what is there read-only with all mounts below, if there is something.
    ReadOnly(Place),
    /// Makes a device node or named pipe.
    Node { place: Place, kind: FileType, mode: Mode, device: Dev, owner: Option<Uid>, group: Option<Gid> },
    /// Goes into the new root and lets go of the host's.
    Pivot,
    /// Goes into a namespace of a running container.
    Join { namespace: OwnedFd, kind: LinkNameSpaceType },
    /// Sets the mask for the modes of new files.
    Umask(Mode),
    /// Sets the supplementary groups.
    Groups(Vec<Gid>),
    /// Changes the working directory.
    WorkingDirectory(CString),
    /// Gives up all but a few [capabilities].
    DropCapabilities,
    /// Gives up getting privileges from programs that have them.
    NoNewPrivileges,
    /// Refuses some [system calls](super::syscalls).
    FilterCalls(Vec<sock_filter>),
    /// Keeps open files of the parent from the program.
    CloseOthers,
    /// Dies when the thread that forked ends. Has a handle to its process, whose number is not known in a process namespace.
    DieWithParent(OwnedFd),
    /// Becomes the [guard](super::guard), and never a program.
    Guard,
    /// Fails: all before it works. For trying out.
    Stop,
}

/// Where something is to be in the container, relative to its root.
#[derive(Debug)]
pub(super) struct Place {
    path: CString,
    parent: CString,
    name: CString,
}

/// What a mount does not allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub read_only: bool,
    pub no_suid: bool,
    pub no_devices: bool,
    pub no_programs: bool,
    /// Also for the mounts below it.
    pub all: bool,
}

impl Attributes {
    pub(super) fn any(self) -> bool {
        self.read_only || self.no_suid || self.no_devices || self.no_programs
    }
}

impl Place {
    /// The place at these parts of a path below the root. No part may be `.` or `..`, or have a slash or zero byte.
    pub(super) fn new(parts: &[&str]) -> Option<Self> {
        let (name, parent) = parts.split_last()?;
        let good = |part: &&str| !matches!(*part, "" | "." | "..") && !part.contains(['/', '\0']);
        let parent = if parent.is_empty() { ".".to_owned() } else { parent.join("/") };
        parts.iter().all(good).then_some(())?;
        let text = |text: String| CString::new(text).ok();
        Some(Self { path: text(parts.join("/"))?, parent: text(parent)?, name: text((*name).to_owned())? })
    }
}

/// What the steps have between them.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    /// To the parent.
    pub channel: BorrowedFd<'a>,
    root: Option<Root>,
}

/// The new root and the file systems that belong to it alone.
#[derive(Debug)]
struct Root {
    directory: OwnedFd,
    devices: [Option<u64>; MAX_BASES + 1],
}

impl<'a> Progress<'a> {
    pub(super) fn new(channel: BorrowedFd<'a>) -> Self {
        Self { channel, root: None }
    }

    fn root(&self) -> Result<&Root> {
        self.root.as_ref().ok_or(Errno::BADF)
    }

    /// Allows to create things in the file system.
    fn own(&mut self, device: u64) -> Result<()> {
        let root = self.root.as_mut().ok_or(Errno::BADF)?;
        *root.devices.iter_mut().find(|place| place.is_none()).ok_or(Errno::NFILE)? = Some(device);
        Ok(())
    }
}

impl Root {
    fn open(&self, path: &CStr, flags: OFlags) -> Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let mut result = Err(Errno::AGAIN);
        for _ in 0..TRIES {
            result = rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), resolve);
            if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        result
    }

    /// The directory to create the place in.
    fn parent(&self, place: &Place) -> Result<OwnedFd> {
        let parent = self.open(&place.parent, OFlags::DIRECTORY)?;
        let device = rustix::fs::fstat(&parent)?.st_dev;
        if self.devices.contains(&Some(device)) { Ok(parent) } else { Err(Errno::ROFS) }
    }

    /// What is at the place, made if there is nothing.
    fn target(&self, place: &Place, directory: bool, mode: Mode) -> Result<OwnedFd> {
        let flags = if directory { OFlags::DIRECTORY } else { OFlags::empty() };
        match self.open(&place.path, flags) {
            Err(Errno::NOENT) => {}
            found => return found,
        }
        let parent = self.parent(place)?;
        if directory {
            rustix::fs::mkdirat(&parent, &*place.name, mode)?;
        } else {
            rustix::fs::mknodat(&parent, &*place.name, FileType::RegularFile, mode, 0)?;
        }
        self.open(&place.path, flags)
    }
}

/// Permissions of what is made only to be mounted on, and of directories on the way there.
const PLAIN: Mode = Mode::from_raw_mode(0o755);

impl Step {
    /// Does it. Makes system calls and nothing else; see the top.
    pub(super) fn run(&self, progress: &mut Progress<'_>) -> Result<()> {
        match self {
            Self::Session => rustix::process::setsid().map(drop),
            Self::Unshare(flags) => spawn::unshare(*flags),
            Self::Write { path, text } => write(path, text),
            Self::SendNamespaces(kinds) => namespaces::send(progress.channel, kinds, &spawn::NAMESPACES),
            Self::HostName(name) => rustix::system::sethostname(name),
            Self::PrivateMounts => mount_change(c"/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE),
            Self::NewRoot { at } => {
                mount(c"tmpfs", &**at, c"tmpfs", MountFlags::NOSUID, c"mode=755")?;
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = rustix::fs::openat(CWD, &**at, flags, Mode::empty())?;
                let device = rustix::fs::fstat(&directory)?.st_dev;
                progress.root = Some(Root { directory, devices: [None; MAX_BASES + 1] });
                progress.own(device)
            }
            Self::Directory { place, mode } => progress.root()?.target(place, true, *mode).map(drop),
            Self::Link { to, place } => rustix::fs::symlinkat(&**to, progress.root()?.parent(place)?, &*place.name),
            Self::Bind { source, place, recursive, attributes } => {
                bind(progress.root()?, source, place, *recursive, *attributes)
            }
            Self::Scratch { at, directories } => {
                mount(c"tmpfs", &**at, c"tmpfs", MountFlags::NOSUID, c"mode=755")?;
                directories.iter().try_for_each(|directory| rustix::fs::mkdirat(CWD, &**directory, PLAIN))
            }
            Self::Overlay { place, options } => {
                let root = progress.root()?;
                let target = root.target(place, true, PLAIN)?;
                on(&target, |path| mount(c"overlay", path, c"overlay", MountFlags::NOSUID, &**options))?;
                let device = rustix::fs::fstat(root.open(&place.path, OFlags::DIRECTORY)?)?.st_dev;
                progress.own(device)
            }
            Self::Mount { kind, source, place, flags, data } => {
                let target = progress.root()?.target(place, true, PLAIN)?;
                on(&target, |path| mount(&**source, path, &**kind, *flags, &**data))
            }
            Self::Hide(place) => hide(progress.root()?, place),
            Self::ReadOnly(place) => make_read_only(progress.root()?, place),
            Self::Node { place, kind, mode, device, owner, group } => {
                let parent = progress.root()?.parent(place)?;
                rustix::fs::mknodat(&parent, &*place.name, *kind, *mode, *device)?;
                if owner.is_none() && group.is_none() {
                    return Ok(());
                }
                rustix::fs::chownat(&parent, &*place.name, *owner, *group, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            }
            Self::Pivot => {
                rustix::process::fchdir(&progress.root()?.directory)?;
                // Onto itself: the old root is then on top of the new one, and taken off again.
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
            Self::DropCapabilities => capabilities::drop_others(),
            Self::NoNewPrivileges => rustix::thread::set_no_new_privs(true),
            Self::FilterCalls(filter) => spawn::filter_calls(filter),
            Self::CloseOthers => spawn::close_others_at_exec(),
            Self::DieWithParent(parent) => {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // Too late to be told?
                let ended = poll(&mut [PollFd::new(parent, PollFlags::IN)], Some(&Timespec::default()))?;
                if ended == 0 { Ok(()) } else { Err(Errno::SRCH) }
            }
            Self::Guard => spawn::stand_guard(),
            Self::Stop => Err(Errno::CANCELED),
        }
    }
}

fn write(path: &CStr, text: &[u8]) -> Result<()> {
    let file = rustix::fs::openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    // In one piece, as the kernel wants it.
    if rustix::io::write(&file, text)? == text.len() { Ok(()) } else { Err(Errno::IO) }
}

fn bind(root: &Root, source: &CStr, place: &Place, recursive: bool, attributes: Attributes) -> Result<()> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    let tree = open_tree(CWD, source, flags)?;
    let directory = FileType::from_raw_mode(rustix::fs::fstat(&tree)?.st_mode) == FileType::Directory;
    let target = root.target(place, directory, PLAIN)?;
    if attributes.any() {
        spawn::set_attributes(tree.as_fd(), attributes)?;
    }
    attach(&tree, &target)
}

fn hide(root: &Root, place: &Place) -> Result<()> {
    let target = match root.open(&place.path, OFlags::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        target => target?,
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode) == FileType::Directory {
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        return on(&target, |path| mount(c"tmpfs", path, c"tmpfs", flags, c"size=0k,mode=555"));
    }
    attach(&open_tree(CWD, c"/dev/null", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?, &target)
}

fn make_read_only(root: &Root, place: &Place) -> Result<()> {
    let target = match root.open(&place.path, OFlags::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        target => target?,
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(&target, c"", flags | OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::AT_RECURSIVE)?;
    spawn::set_attributes(tree.as_fd(), Attributes { read_only: true, all: true, ..Attributes::default() })?;
    attach(&tree, &target)
}

fn attach(tree: &OwnedFd, target: &OwnedFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, c"", target, c"", flags)
}

/// Calls with a path of what is open, for system calls that take no file descriptor.
fn on(file: &OwnedFd, call: impl FnOnce(&CStr) -> Result<()>) -> Result<()> {
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
    for (place, byte) in path.iter_mut().zip(PREFIX.iter().chain(digits.iter().take(length).rev())) {
        *place = *byte;
    }
    call(CStr::from_bytes_until_nul(&path).map_err(|_never| Errno::INVAL)?)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.path.to_string_lossy())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session => f.write_str("start a session"),
            Self::Unshare(flags) if flags.contains(UnshareFlags::NEWUSER) => {
                f.write_str("create a user namespace with namespaces for mounts and more")
            }
            Self::Unshare(_) => f.write_str("create namespaces for mounts and more"),
            Self::Write { path, .. } => write!(f, "write {}", path.to_string_lossy()),
            Self::SendNamespaces(_) => f.write_str("hand over the namespaces"),
            Self::HostName(name) => write!(f, "set the host name {}", String::from_utf8_lossy(name)),
            Self::PrivateMounts => f.write_str("make mounts private"),
            Self::NewRoot { at } => write!(f, "mount a new root at {}", at.to_string_lossy()),
            Self::Directory { place, .. } => write!(f, "make directory {place}"),
            Self::Link { to, place } => write!(f, "link {place} to {}", to.to_string_lossy()),
            Self::Bind { source, place, .. } => write!(f, "mount {} at {place}", source.to_string_lossy()),
            Self::Scratch { at, .. } => write!(f, "mount a scratch directory at {}", at.to_string_lossy()),
            Self::Overlay { place, .. } => write!(f, "mount an overlay at {place}"),
            Self::Mount { kind, source, place, .. } => {
                write!(f, "mount {} of type {:?} at {place}", source.to_string_lossy(), kind.to_string_lossy())
            }
            Self::Hide(place) => write!(f, "hide {place}"),
            Self::ReadOnly(place) => write!(f, "make {place} read-only"),
            Self::Node { place, .. } => write!(f, "make device node {place}"),
            Self::Pivot => f.write_str("change to the new root"),
            Self::Join { kind, .. } => write!(f, "join the container's {} namespace", namespaces::name(*kind)),
            Self::Umask(_) => f.write_str("set the umask"),
            Self::Groups(_) => f.write_str("set the groups"),
            Self::WorkingDirectory(path) => write!(f, "change to directory {}", path.to_string_lossy()),
            Self::DropCapabilities => f.write_str("give up capabilities"),
            Self::FilterCalls(_) => f.write_str("filter system calls"),
            Self::NoNewPrivileges => f.write_str("forbid new privileges"),
            Self::CloseOthers => f.write_str("close inherited files"),
            Self::DieWithParent(_) => f.write_str("die with the process that started it"),
            Self::Guard => f.write_str("become a guard"),
            Self::Stop => f.write_str("stop"),
        }
    }
}
