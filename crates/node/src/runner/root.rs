//! A container's root, as the actions that set it up: the host's programs, what every container has, and its edits.
//!
//! | path | content |
//! |---|---|
//! | `/usr`, `/etc`, `/opt`, `/lib*`, … | the host's, read-only with all submounts; symbolic links are kept |
//! | `/proc` | the container's own processes; in a user namespace the host's. Settings are read-only |
//! | `/dev` | `null`, `zero`, `full`, `random`, `urandom` and `tty` of the host, and device nodes of the edits |
//! | `/tmp`, `/run`, `/var` | empty; `/var/run` is `/run` |
//!
//! A real container can have a mount anywhere, since its root is writable for the runtime. So where the target of a mount is
//! missing in one of the host's directories, that directory becomes the lower directory of an overlay, and the target is
//! created in the upper one; the host does not see it. Submounts of such a directory are then not visible.
//!
//! Unlike in a real container there is no `/sys`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use drakkar_cdi::Mount;
use rustix::fs::{FileType, Gid, Mode, Uid};
use rustix::mount::MountFlags;

use super::cdi::{Edits, Node};
use super::child_action::{ChildAction, ContainerPath, MAX_HOST_DIRECTORIES, MountAttributes};
use super::mount_options::MountOptions;

/// The directories of the host's root that a container sees, besides those that start with `lib`.
const HOST_DIRECTORIES: &[&str] = &["bin", "etc", "gnu", "nix", "opt", "sbin", "usr"];
/// The device nodes that every container has.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Files of `/proc` that are hidden, and those that are read-only: the same as in other runtimes.
pub(super) const HIDDEN: &[&str] =
    &["acpi", "asound", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list", "timer_stats"];
pub(super) const READ_ONLY: &[&str] = &["bus", "fs", "irq", "sys", "sysrq-trigger"];

const PLAIN: Mode = Mode::from_raw_mode(0o755);
const STICKY: Mode = Mode::from_raw_mode(0o1777);

/// A path that cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidPath {
    pub what: &'static str,
    pub path: String,
    pub problem: &'static str,
}

/// The host's directories in a container's root, each with the target if it is a symbolic link.
#[derive(Debug)]
pub(super) struct HostDirectories(BTreeMap<String, Option<PathBuf>>);

impl HostDirectories {
    /// Reads the host's root directory. Blocks.
    pub(super) fn read() -> std::io::Result<Self> {
        let mut directories = BTreeMap::new();
        for entry in fs::read_dir("/")? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let is_shared = HOST_DIRECTORIES.contains(&name.as_str()) || name.starts_with("lib");
            if !is_shared || directories.len() == MAX_HOST_DIRECTORIES {
                continue;
            }
            match entry.file_type()? {
                kind if kind.is_dir() => directories.insert(name, None),
                kind if kind.is_symlink() => directories.insert(name, Some(fs::read_link(entry.path())?)),
                _ => None,
            };
        }
        Ok(Self(directories))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Option<&Path>)> {
        self.0.iter().map(|(name, link)| (name.as_str(), link.as_deref()))
    }

    /// Returns the existing directory in which a missing path must be created, split into the top-level directory and the rest.
    fn to_overlay(&self, parts: &[&str]) -> Option<(&str, PathBuf)> {
        self.0.get(*parts.first()?)?;
        let path: PathBuf = ["/"].iter().chain(parts).collect();
        if path.symlink_metadata().is_ok() {
            return None;
        }
        // Symbolic links resolve the same in the container, as long as they stay in these directories.
        let parent = path.ancestors().skip(1).find_map(|above| fs::canonicalize(above).ok())?;
        let mut components = parent.components().skip(1);
        let (top, link) = self.0.get_key_value(components.next()?.as_os_str().to_str()?)?;
        link.is_none().then(|| (top.as_str(), components.collect()))
    }
}

/// The empty directories on the host at which a root is set up.
#[derive(Debug)]
pub(super) struct MountPoints<'a> {
    pub root: &'a Path,
    pub scratch: &'a Path,
}

/// Returns the actions that set up a root. Device nodes cannot be created in a user namespace: the host's are mounted.
pub(super) fn actions(
    host: &HostDirectories,
    edits: &Edits,
    working_dir: &str,
    user_namespace: bool,
    mount_points: &MountPoints<'_>,
) -> Result<Vec<ChildAction>, InvalidPath> {
    let mut plan = Plan { actions: Vec::new(), user_namespace };
    plan.actions.push(ChildAction::NewRoot { at: c_path(mount_points.root, "root")? });
    plan.host_directories(host, &overlays(host, edits, working_dir)?, mount_points)?;
    plan.system(edits)?;
    for mount in &edits.mounts {
        plan.mount(mount)?;
    }
    for node in &edits.device_nodes {
        plan.node(node)?;
    }
    let working_dir = parts("working directory", working_dir)?;
    plan.directories(&working_dir)?;
    Ok(plan.actions)
}

/// The host's directories that must be overlays, with the directories to create in the upper one. Those belong to the
/// container's root user, who may not write to the host's directories in a user namespace.
type Overlays<'a> = BTreeMap<&'a str, BTreeSet<PathBuf>>;

fn overlays<'a>(host: &'a HostDirectories, edits: &Edits, working_dir: &str) -> Result<Overlays<'a>, InvalidPath> {
    let mounts = edits.mounts.iter().map(|mount| ("mount at", mount.container_path.as_str()));
    let nodes = edits.device_nodes.iter().map(|node| ("device node", node.path.as_str()));
    let mut overlays = Overlays::new();
    for (what, path) in mounts.chain(nodes).chain([("working directory", working_dir)]) {
        if let Some((top, directory)) = host.to_overlay(&parts(what, path)?) {
            overlays.entry(top).or_default().extend(directory.ancestors().map(Path::to_owned));
        }
    }
    Ok(overlays)
}

struct Plan {
    actions: Vec<ChildAction>,
    user_namespace: bool,
}

impl Plan {
    fn host_directories(
        &mut self,
        host: &HostDirectories,
        overlays: &Overlays<'_>,
        mount_points: &MountPoints<'_>,
    ) -> Result<(), InvalidPath> {
        if !overlays.is_empty() {
            let mut directories = Vec::new();
            for (name, created) in overlays {
                let scratch = mount_points.scratch.join(name);
                let upper = created.iter().map(|directory| scratch.join("upper").join(directory));
                // Parents come before their children: the set is ordered, and begins with the empty path.
                for path in [scratch.clone(), scratch.join("work")].into_iter().chain(upper) {
                    directories.push(c_path(&path, "scratch directory")?);
                }
            }
            let at = c_path(mount_points.scratch, "scratch directory")?;
            self.actions.push(ChildAction::Scratch { at, directories });
        }
        for (name, link) in host.iter() {
            let at = container_path("directory", &[name])?;
            let source = Path::new("/").join(name);
            self.actions.push(match link {
                Some(link) => ChildAction::Link { to: c_path(link, "link")?, at },
                None if overlays.contains_key(name) => {
                    let scratch = mount_points.scratch.join(name);
                    let mut options = b"lowerdir=".to_vec();
                    options.extend(escape_option(&source));
                    options.extend(b",upperdir=");
                    options.extend(escape_option(&scratch.join("upper")));
                    options.extend(b",workdir=");
                    options.extend(escape_option(&scratch.join("work")));
                    if self.user_namespace {
                        options.extend(b",userxattr");
                    }
                    ChildAction::Overlay { at, options: c_text(options, "overlay")? }
                }
                None => {
                    let attributes = MountAttributes { read_only: true, recursive: true, ..MountAttributes::default() };
                    ChildAction::Bind { source: c_path(&source, "directory")?, at, recursive: true, attributes }
                }
            });
        }
        Ok(())
    }

    fn system(&mut self, edits: &Edits) -> Result<(), InvalidPath> {
        let directories: [(&[&str], Mode); 7] = [
            (&["dev"], PLAIN),
            (&["dev", "shm"], STICKY),
            (&["proc"], PLAIN),
            (&["run"], PLAIN),
            (&["tmp"], STICKY),
            (&["var"], PLAIN),
            (&["var", "tmp"], STICKY),
        ];
        for (parts, mode) in directories {
            self.actions.push(ChildAction::Directory { at: container_path("directory", parts)?, mode });
        }
        self.proc()?;
        for name in DEVICES {
            let host = Path::new("/dev").join(name);
            let replaced = edits.device_nodes.iter().any(|node| Path::new(&node.path) == host);
            if !replaced && host.exists() {
                self.bind(&host, &["dev", name])?;
            }
        }
        for (name, to) in DEVICE_LINKS {
            self.link(&["dev", name], to)?;
        }
        self.link(&["var", "run"], "../run")
    }

    fn proc(&mut self) -> Result<(), InvalidPath> {
        if self.user_namespace {
            self.bind(Path::new("/proc"), &["proc"])?;
        } else {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            let at = container_path("mount at", &["proc"])?;
            self.actions.push(ChildAction::Mount {
                kind: c"proc".to_owned(),
                source: c"proc".to_owned(),
                at,
                flags,
                data: CString::default(),
            });
        }
        for name in HIDDEN {
            self.actions.push(ChildAction::Hide(container_path("file", &["proc", name])?));
        }
        for name in READ_ONLY {
            self.actions.push(ChildAction::ReadOnly(container_path("file", &["proc", name])?));
        }
        Ok(())
    }

    fn bind(&mut self, source: &Path, parts: &[&str]) -> Result<(), InvalidPath> {
        let source = c_path(source, "mount of")?;
        let at = container_path("mount at", parts)?;
        self.actions.push(ChildAction::Bind { source, at, recursive: true, attributes: MountAttributes::default() });
        Ok(())
    }

    fn link(&mut self, parts: &[&str], to: &str) -> Result<(), InvalidPath> {
        let to = c_path(Path::new(to), "link")?;
        self.actions.push(ChildAction::Link { to, at: container_path("link", parts)? });
        Ok(())
    }

    /// Adds the directories of a path, from the top.
    fn directories(&mut self, parts: &[&str]) -> Result<(), InvalidPath> {
        for end in 1..=parts.len() {
            let at = container_path("directory", parts.get(..end).unwrap_or_default())?;
            self.actions.push(ChildAction::Directory { at, mode: PLAIN });
        }
        Ok(())
    }

    /// Returns the target of a mount or node, and adds the directories above it.
    fn target(&mut self, what: &'static str, path: &str) -> Result<ContainerPath, InvalidPath> {
        let parts = parts(what, path)?;
        let invalid = |problem| InvalidPath { what, path: path.to_owned(), problem };
        let (_, above) = parts.split_last().ok_or_else(|| invalid("must not be the root directory"))?;
        if parts.first() == Some(&"proc") {
            return Err(invalid("must not be in /proc"));
        }
        self.directories(above)?;
        container_path(what, &parts)
    }

    fn mount(&mut self, mount: &Mount) -> Result<(), InvalidPath> {
        let options = MountOptions::parse(&mount.options);
        let at = self.target("mount at", &mount.container_path)?;
        let source = c_path(Path::new(&mount.host_path), "mount of")?;
        if !options.bind {
            let kind = c_text(mount.fs_type.clone().into_bytes(), "mount type")?;
            let data = c_text(options.data.into_bytes(), "mount options")?;
            self.actions.push(ChildAction::Mount { kind, source, at, flags: options.flags, data });
            return Ok(());
        }
        if !mount.host_path.starts_with('/') {
            let problem = "must be absolute";
            return Err(InvalidPath { what: "mount of", path: mount.host_path.clone(), problem });
        }
        // Without the submounts, a user namespace would see what they cover, which the kernel does not allow.
        let recursive = options.recursive || self.user_namespace;
        self.actions.push(ChildAction::Bind { source, at, recursive, attributes: options.attributes });
        Ok(())
    }

    fn node(&mut self, node: &Node) -> Result<(), InvalidPath> {
        let at = self.target("device node", &node.path)?;
        let kind = match node.kind {
            'b' => FileType::BlockDevice,
            'p' => FileType::Fifo,
            _ => FileType::CharacterDevice,
        };
        self.actions.push(if self.user_namespace && kind != FileType::Fifo {
            let source = c_path(Path::new(&node.host_path), "device node of")?;
            ChildAction::Bind { source, at, recursive: true, attributes: MountAttributes::default() }
        } else {
            ChildAction::Node {
                at,
                kind,
                mode: Mode::from_raw_mode(node.mode),
                device: rustix::fs::makedev(node.major, node.minor),
                owner: node.uid.map(Uid::from_raw),
                group: node.gid.map(Gid::from_raw),
            }
        });
        Ok(())
    }
}

/// Splits an absolute path in the container, and refuses `..`.
pub(super) fn parts<'a>(what: &'static str, path: &'a str) -> Result<Vec<&'a str>, InvalidPath> {
    let invalid = |problem| InvalidPath { what, path: path.to_owned(), problem };
    let rest = path.strip_prefix('/').ok_or_else(|| invalid("must be absolute"))?;
    let parts: Vec<&str> = rest.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return Err(invalid("must not have '..'"));
    }
    Ok(parts)
}

fn container_path(what: &'static str, parts: &[&str]) -> Result<ContainerPath, InvalidPath> {
    let invalid = || InvalidPath { what, path: format!("/{}", parts.join("/")), problem: "must have no zero byte" };
    ContainerPath::new(parts).ok_or_else(invalid)
}

pub(super) fn c_path(path: &Path, what: &'static str) -> Result<CString, InvalidPath> {
    c_text(path.as_os_str().as_bytes().to_vec(), what)
}

fn c_text(text: Vec<u8>, what: &'static str) -> Result<CString, InvalidPath> {
    CString::new(text).map_err(|error| {
        let path = PathBuf::from(std::ffi::OsString::from_vec(error.into_vec())).display().to_string();
        InvalidPath { what, path, problem: "must have no zero byte" }
    })
}

/// Escapes a path for the options of an overlay.
fn escape_option(path: &Path) -> Vec<u8> {
    let special = |byte: &u8| matches!(byte, b',' | b':' | b'\\');
    path.as_os_str()
        .as_bytes()
        .iter()
        .flat_map(|byte| special(byte).then_some(b'\\').into_iter().chain([*byte]))
        .collect()
}
