//! The network namespaces of pods, each pinned at a path, which their containers join.
//!
//! As root, a namespace is pinned by a bind mount of its file, as container runtimes do it. The mounts are in a file system of
//! their own, which a guard unmounts when we end, even if we are killed. In a user namespace we may not mount, so the path is
//! a symbolic link to an open file of this process. Then all pods share one user namespace, which owns their networks and
//! which their containers join, too; it gives this process the right to configure the networks.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::{LinkNameSpaceType as Kind, UnshareFlags};

use super::child_action::ChildAction;
use super::isolation::Isolation;
use super::native::map_user;
use super::spawn::{PidNamespace, SpawnError, run_actions, spawn};

/// The namespaces of a pod. Dropping them removes the path; the network exists until the last process in it has ended.
#[derive(Debug)]
pub(crate) struct PodNamespaces {
    user: Option<Arc<OwnedFd>>,
    network: OwnedFd,
    path: PathBuf,
    is_mounted: bool,
}

impl PodNamespaces {
    /// Returns the path of the network namespace.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the network namespace.
    pub(crate) fn network(&self) -> BorrowedFd<'_> {
        self.network.as_fd()
    }

    /// Returns the actions that join the namespaces.
    pub(super) fn join(&self) -> io::Result<Vec<ChildAction>> {
        let mut actions = join_user(self.user.as_deref())?;
        actions.push(ChildAction::Join { namespace: self.network.try_clone()?, kind: Kind::Network });
        Ok(actions)
    }

    /// Makes the path lead to the namespace.
    fn pin(&mut self, by_mount: bool) -> io::Result<()> {
        let number = self.network.as_raw_fd();
        if by_mount {
            fs::File::create_new(&self.path)?;
            mount_bind(format!("/proc/self/fd/{number}"), &self.path)?;
            self.is_mounted = true;
            return Ok(());
        }
        std::os::unix::fs::symlink(format!("/proc/{}/fd/{number}", std::process::id()), &self.path)
    }
}

impl Drop for PodNamespaces {
    fn drop(&mut self) {
        let unmounted = if self.is_mounted { unmount(&self.path, UnmountFlags::DETACH) } else { Ok(()) };
        let removed = unmounted.map_err(io::Error::from).and_then(|()| fs::remove_file(&self.path));
        if let Err(error) = removed {
            tracing::warn!(path = %self.path.display(), %error, "removing the network namespace of a pod failed");
        }
    }
}

/// Makes network namespaces for pods. Must outlive them. Blocks for some milliseconds in each function.
#[derive(Debug)]
pub(crate) struct NamespaceFactory {
    user: Option<Arc<OwnedFd>>,
    directory: PathBuf,
    mount: Option<MountGuard>,
}

impl NamespaceFactory {
    /// Finds out whether namespaces can be made for containers in this isolation. Their paths will be in the directory, which
    /// is created.
    pub(crate) fn new(isolation: &Isolation, directory: PathBuf) -> Result<Self, String> {
        let failed = |action: &'static str| move |error: io::Error| format!("{action}: {error}");
        let user_namespace = match isolation {
            Isolation::UserNamespace => true,
            Isolation::Auto | Isolation::Root | Isolation::Oci(_) => false,
            Isolation::ShowOnly => return Err("containers are not run".to_owned()),
        };
        let user = if user_namespace { Some(Arc::new(new_user_namespace()?)) } else { None };
        fs::create_dir_all(&directory).map_err(failed("create a directory for network namespaces"))?;
        let mut factory = Self { user, directory, mount: None };
        factory.unshare()?;
        if !user_namespace {
            let mounted = MountGuard::mount(&factory.directory);
            factory.mount = Some(mounted.map_err(failed("mount a directory for network namespaces"))?);
        }
        Ok(factory)
    }

    /// Makes a namespace with nothing but a loopback interface, which is down, and a socket to configure it.
    pub(crate) fn create(&self, name: &str) -> io::Result<(PodNamespaces, OwnedFd)> {
        let (network, socket) = self.unshare().map_err(io::Error::other)?;
        let path = self.directory.join(name);
        let mut namespaces = PodNamespaces { user: self.user.clone(), network, path, is_mounted: false };
        namespaces.pin(self.mount.is_some())?;
        Ok((namespaces, socket))
    }

    /// Makes a namespace without a path.
    pub(crate) fn unshare(&self) -> Result<(OwnedFd, OwnedFd), String> {
        let mut actions = join_user(self.user.as_deref()).map_err(|error| error.to_string())?;
        actions.extend([
            ChildAction::Unshare(UnshareFlags::NEWNET),
            ChildAction::SendNamespaces(&[Kind::Network]),
            ChildAction::SendNetworkSocket,
        ]);
        let files: [OwnedFd; 2] = files(actions, "create a network namespace")?;
        let [network, socket] = files;
        Ok((network, socket))
    }
}

impl Drop for NamespaceFactory {
    fn drop(&mut self) {
        self.mount = None;
        // With a mount it is empty; else it is removed with the files of the node.
        let _ = fs::remove_dir(&self.directory);
    }
}

fn new_user_namespace() -> Result<OwnedFd, String> {
    let mut actions = vec![ChildAction::Unshare(UnshareFlags::NEWUSER)];
    actions.extend(map_user());
    actions.push(ChildAction::SendNamespaces(&[Kind::User]));
    let [user] = files(actions, "create a user namespace")?;
    Ok(user)
}

fn join_user(user: Option<&OwnedFd>) -> io::Result<Vec<ChildAction>> {
    let join = |user: &OwnedFd| Ok(ChildAction::Join { namespace: user.try_clone()?, kind: Kind::User });
    user.map(join).into_iter().collect()
}

/// Runs the actions, and returns the files that they send.
fn files<const COUNT: usize>(actions: Vec<ChildAction>, what: &str) -> Result<[OwnedFd; COUNT], String> {
    let names: Vec<String> = actions.iter().map(ToString::to_string).collect();
    let files = run_actions(actions).map_err(|error| match error {
        SpawnError::Action(index, error) => {
            format!("{what}: {}: {error}", names.get(index).map(String::as_str).unwrap_or_default())
        }
        SpawnError::Program(error) | SpawnError::PidNamespace(error) => format!("{what}: {error}"),
    })?;
    files.try_into().map_err(|files: Vec<OwnedFd>| format!("{what}: got {} of {COUNT} files", files.len()))
}

/// A file system that is unmounted, with all mounts in it, when this is dropped or the process ends.
#[derive(Debug)]
struct MountGuard {
    socket: Option<OwnedFd>,
    process: Child,
    path: PathBuf,
}

impl MountGuard {
    fn mount(directory: &Path) -> io::Result<Self> {
        let path = CString::new(directory.as_os_str().as_bytes())?;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("guard");
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let actions = Arc::from([ChildAction::Session, ChildAction::UnmountGuard(path.clone())]);
        let process = match spawn(command, actions, PidNamespace::Inherit) {
            Ok(spawned) => spawned.child,
            Err(SpawnError::Action(_, error) | SpawnError::Program(error) | SpawnError::PidNamespace(error)) => {
                return Err(error);
            }
        };
        // From here on the guard unmounts it.
        let guard = Self { socket: Some(ours), process, path: directory.to_owned() };
        mount(c"tmpfs", &*path, c"tmpfs", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, c"mode=755")?;
        // Nothing that is mounted in it reaches other mount namespaces, where it would keep networks alive.
        mount_change(&*path, MountPropagationFlags::PRIVATE)?;
        Ok(guard)
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        self.socket = None;
        if let Err(error) = self.process.wait() {
            tracing::error!(path = %self.path.display(), %error, "waiting for the guard of network namespaces failed");
        }
    }
}
