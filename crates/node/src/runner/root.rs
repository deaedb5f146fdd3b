//! A container's root, as the steps that make it: the host's programs, what every container has, and its edits.
//!
//! | path | what |
//! |---|---|
//! | `/usr`, `/etc`, `/opt`, `/lib*`, … | the host's, read-only with all mounts below; links are the same links |
//! | `/proc` | that of the container's own processes; in a user namespace the host's. Settings are read-only |
//! | `/dev` | `null`, `zero`, `full`, `random`, `urandom` and `tty` of the host, and nodes of devices |
//! | `/tmp`, `/run`, `/var` | empty; `/var/run` is `/run` |
//!
//! A real container can have a mount anywhere since its root is its own to write. So where the target of a mount is in one
//! of the host's directories and not there, that directory is the lower part of an overlay, and the target is made in the
//! upper one; the host does not see it. Mounts below such a directory are then not visible.
//!
//! What is not like a real container: there is no `/sys`, and the network is the host's.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use drakkar_cdi::Mount;
use rustix::fs::{FileType, Gid, Mode, Uid};
use rustix::mount::MountFlags;

use super::cdi::{Edits, Node};
use super::mount_options::MountOptions;
use super::step::{Attributes, MAX_BASES, Place, Step};

/// What of the host's root directory a container sees, besides all that starts with `lib`.
const BASES: &[&str] = &["bin", "etc", "gnu", "nix", "opt", "sbin", "usr"];
/// What every container has in `/dev`.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Files of `/proc` that tell or do too much, and those that a container may only read: what other runtimes have, too.
pub(super) const HIDDEN: &[&str] =
    &["acpi", "asound", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list", "timer_stats"];
pub(super) const READ_ONLY: &[&str] = &["bus", "fs", "irq", "sys", "sysrq-trigger"];

const PLAIN: Mode = Mode::from_raw_mode(0o755);
const STICKY: Mode = Mode::from_raw_mode(0o1777);

/// A path that nothing can be at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadPath {
    pub what: &'static str,
    pub path: String,
    pub problem: &'static str,
}

/// The host's directories that are in a container's root: where a link leads to, or none for a directory.
#[derive(Debug)]
pub(super) struct Bases(BTreeMap<String, Option<PathBuf>>);

impl Bases {
    /// Looks at the host's root. Blocks.
    pub(super) fn read() -> std::io::Result<Self> {
        let mut bases = BTreeMap::new();
        for entry in fs::read_dir("/")? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if !(BASES.contains(&name.as_str()) || name.starts_with("lib")) || bases.len() == MAX_BASES {
                continue;
            }
            match entry.file_type()? {
                kind if kind.is_dir() => bases.insert(name, None),
                kind if kind.is_symlink() => bases.insert(name, Some(fs::read_link(entry.path())?)),
                _ => None,
            };
        }
        Ok(Self(bases))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Option<&Path>)> {
        self.0.iter().map(|(name, link)| (name.as_str(), link.as_deref()))
    }

    /// The directory of the host in which something must be made for the path to be there: its base and the rest.
    fn to_overlay(&self, parts: &[&str]) -> Option<(&str, PathBuf)> {
        self.0.get(*parts.first()?)?;
        let path: PathBuf = ["/"].iter().chain(parts).collect();
        if path.symlink_metadata().is_ok() {
            return None;
        }
        // Links are the same in the container, as long as they stay in what it has of the host.
        let parent = path.ancestors().skip(1).find_map(|above| fs::canonicalize(above).ok())?;
        let mut components = parent.components().skip(1);
        let (base, link) = self.0.get_key_value(components.next()?.as_os_str().to_str()?)?;
        link.is_none().then(|| (base.as_str(), components.collect()))
    }
}

/// The directories on the host, empty, that a root is made at.
#[derive(Debug)]
pub(super) struct Workplace<'a> {
    pub root: &'a Path,
    pub scratch: &'a Path,
}

/// The steps that make a root. In a user namespace no device node can be made: the host's own is mounted.
pub(super) fn steps(
    bases: &Bases,
    edits: &Edits,
    working_dir: &str,
    user_namespace: bool,
    workplace: &Workplace<'_>,
) -> Result<Vec<Step>, BadPath> {
    let mut plan = Plan { steps: Vec::new(), user_namespace };
    plan.steps.push(Step::NewRoot { at: c_path(workplace.root, "root")? });
    plan.bases(bases, &overlays(bases, edits, working_dir)?, workplace)?;
    plan.system(edits)?;
    for mount in &edits.mounts {
        plan.mount(mount)?;
    }
    for node in &edits.device_nodes {
        plan.node(node)?;
    }
    let working_dir = parts("working directory", working_dir)?;
    plan.directories(&working_dir)?;
    Ok(plan.steps)
}

/// The host's directories that must be overlays, and what in them must be there in the upper part. It belongs to the
/// container's root user there; in a user namespace, he may not write to directories of the host's.
type Overlays<'a> = BTreeMap<&'a str, BTreeSet<PathBuf>>;

fn overlays<'a>(bases: &'a Bases, edits: &Edits, working_dir: &str) -> Result<Overlays<'a>, BadPath> {
    let mounts = edits.mounts.iter().map(|mount| ("mount at", mount.container_path.as_str()));
    let nodes = edits.device_nodes.iter().map(|node| ("device node", node.path.as_str()));
    let mut overlays = Overlays::new();
    for (what, path) in mounts.chain(nodes).chain([("working directory", working_dir)]) {
        if let Some((base, directory)) = bases.to_overlay(&parts(what, path)?) {
            overlays.entry(base).or_default().extend(directory.ancestors().map(Path::to_owned));
        }
    }
    Ok(overlays)
}

struct Plan {
    steps: Vec<Step>,
    user_namespace: bool,
}

impl Plan {
    fn bases(&mut self, bases: &Bases, overlays: &Overlays<'_>, workplace: &Workplace<'_>) -> Result<(), BadPath> {
        if !overlays.is_empty() {
            let mut directories = Vec::new();
            for (name, made) in overlays {
                let place = workplace.scratch.join(name);
                let upper = made.iter().map(|directory| place.join("upper").join(directory));
                // In this order: the empty one first, and each before those in it.
                for path in [place.clone(), place.join("work")].into_iter().chain(upper) {
                    directories.push(c_path(&path, "scratch directory")?);
                }
            }
            self.steps.push(Step::Scratch { at: c_path(workplace.scratch, "scratch directory")?, directories });
        }
        for (name, link) in bases.iter() {
            let place = place("directory", &[name])?;
            let source = Path::new("/").join(name);
            self.steps.push(match link {
                Some(link) => Step::Link { to: c_path(link, "link")?, place },
                None if overlays.contains_key(name) => {
                    let upper = workplace.scratch.join(name);
                    let mut options = b"lowerdir=".to_vec();
                    options.extend(escaped(&source));
                    options.extend(b",upperdir=");
                    options.extend(escaped(&upper.join("upper")));
                    options.extend(b",workdir=");
                    options.extend(escaped(&upper.join("work")));
                    if self.user_namespace {
                        options.extend(b",userxattr");
                    }
                    Step::Overlay { place, options: c_text(options, "overlay")? }
                }
                None => {
                    let attributes = Attributes { read_only: true, all: true, ..Attributes::default() };
                    Step::Bind { source: c_path(&source, "directory")?, place, recursive: true, attributes }
                }
            });
        }
        Ok(())
    }

    fn system(&mut self, edits: &Edits) -> Result<(), BadPath> {
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
            self.steps.push(Step::Directory { place: place("directory", parts)?, mode });
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

    fn proc(&mut self) -> Result<(), BadPath> {
        if self.user_namespace {
            self.bind(Path::new("/proc"), &["proc"])?;
        } else {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            let (kind, source, data) = (c"proc".to_owned(), c"proc".to_owned(), CString::default());
            self.steps.push(Step::Mount { kind, source, place: place("mount at", &["proc"])?, flags, data });
        }
        for name in HIDDEN {
            self.steps.push(Step::Hide(place("file", &["proc", name])?));
        }
        for name in READ_ONLY {
            self.steps.push(Step::ReadOnly(place("file", &["proc", name])?));
        }
        Ok(())
    }

    fn bind(&mut self, source: &Path, at: &[&str]) -> Result<(), BadPath> {
        let (source, place) = (c_path(source, "mount of")?, place("mount at", at)?);
        self.steps.push(Step::Bind { source, place, recursive: true, attributes: Attributes::default() });
        Ok(())
    }

    fn link(&mut self, at: &[&str], to: &str) -> Result<(), BadPath> {
        self.steps.push(Step::Link { to: c_path(Path::new(to), "link")?, place: place("link", at)? });
        Ok(())
    }

    /// The directories of the path, from the top.
    fn directories(&mut self, parts: &[&str]) -> Result<(), BadPath> {
        for end in 1..=parts.len() {
            let place = place("directory", parts.get(..end).unwrap_or_default())?;
            self.steps.push(Step::Directory { place, mode: PLAIN });
        }
        Ok(())
    }

    /// What something is to be at, with the directories above it made.
    fn target(&mut self, what: &'static str, path: &str) -> Result<Place, BadPath> {
        let parts = parts(what, path)?;
        let bad = |problem| BadPath { what, path: path.to_owned(), problem };
        let (_, above) = parts.split_last().ok_or_else(|| bad("must not be the root directory"))?;
        if parts.first() == Some(&"proc") {
            return Err(bad("must not be in /proc"));
        }
        self.directories(above)?;
        place(what, &parts)
    }

    fn mount(&mut self, mount: &Mount) -> Result<(), BadPath> {
        let options = MountOptions::parse(&mount.options);
        let place = self.target("mount at", &mount.container_path)?;
        let source = c_path(Path::new(&mount.host_path), "mount of")?;
        if !options.bind {
            let kind = c_text(mount.fs_type.clone().into_bytes(), "mount type")?;
            let data = c_text(options.data.into_bytes(), "mount options")?;
            self.steps.push(Step::Mount { kind, source, place, flags: options.flags, data });
            return Ok(());
        }
        if !mount.host_path.starts_with('/') {
            let problem = "must be absolute";
            return Err(BadPath { what: "mount of", path: mount.host_path.clone(), problem });
        }
        // Without the mounts below, a user namespace would see what they cover, which the kernel does not allow.
        let recursive = options.recursive || self.user_namespace;
        self.steps.push(Step::Bind { source, place, recursive, attributes: options.attributes });
        Ok(())
    }

    fn node(&mut self, node: &Node) -> Result<(), BadPath> {
        let place = self.target("device node", &node.path)?;
        let kind = match node.kind {
            'b' => FileType::BlockDevice,
            'p' => FileType::Fifo,
            _ => FileType::CharacterDevice,
        };
        self.steps.push(if self.user_namespace && kind != FileType::Fifo {
            let source = c_path(Path::new(&node.host_path), "device node of")?;
            Step::Bind { source, place, recursive: true, attributes: Attributes::default() }
        } else {
            Step::Node {
                place,
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

/// The parts of an absolute path in the container, none of which is `..`.
pub(super) fn parts<'a>(what: &'static str, path: &'a str) -> Result<Vec<&'a str>, BadPath> {
    let bad = |problem| BadPath { what, path: path.to_owned(), problem };
    let rest = path.strip_prefix('/').ok_or_else(|| bad("must be absolute"))?;
    let parts: Vec<&str> = rest.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return Err(bad("must not have '..'"));
    }
    Ok(parts)
}

fn place(what: &'static str, parts: &[&str]) -> Result<Place, BadPath> {
    let bad = || BadPath { what, path: format!("/{}", parts.join("/")), problem: "must have no zero byte" };
    Place::new(parts).ok_or_else(bad)
}

pub(super) fn c_path(path: &Path, what: &'static str) -> Result<CString, BadPath> {
    c_text(path.as_os_str().as_bytes().to_vec(), what)
}

fn c_text(text: Vec<u8>, what: &'static str) -> Result<CString, BadPath> {
    CString::new(text).map_err(|error| {
        let path = PathBuf::from(std::ffi::OsString::from_vec(error.into_vec())).display().to_string();
        BadPath { what, path, problem: "must have no zero byte" }
    })
}

/// A path among the options of an overlay, where some characters mean something.
fn escaped(path: &Path) -> Vec<u8> {
    let special = |byte: &u8| matches!(byte, b',' | b':' | b'\\');
    path.as_os_str()
        .as_bytes()
        .iter()
        .flat_map(|byte| special(byte).then_some(b'\\').into_iter().chain([*byte]))
        .collect()
}
