//! Mounted disks, volumes and swap space, down to the controllers of the disks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::text::{read, unescape};
use super::{HostUse, InUseKind, controller, last, names, require_readable, target};
use crate::Sysfs;

/// Where the system itself is mounted.
const SYSTEM: [&str; 8] = ["/", "/boot", "/boot/efi", "/efi", "/etc", "/sysroot", "/usr", "/var"];
/// The limit for devices on top of each other.
const MAX_DEPTH: usize = 16;
/// Virtual disks that have no disk of this host below them, or only a file on a mounted one.
const WITHOUT_DISK: [&str; 4] = ["loop", "nbd", "ram", "zram"];
/// The controllers of `NVMe` disks that come over the network. The card is known by its route.
const NVME_OVER_NETWORK: &str = "devices/virtual/nvme-fabrics";

pub(super) fn find(sysfs: &Sysfs, found: &mut HostUse) {
    let mounts = mounts(sysfs, found);
    let mut has_disk = false;
    for (disk, (kind, detail)) in &mounts {
        has_disk |= add(sysfs, found, disk, *kind, detail);
    }
    if !has_disk {
        found.problem(
            sysfs.roots().proc.join("1/mountinfo"),
            "names no disk: a host without disks has none, a container needs the host's procfs",
        );
    }
    volumes(sysfs, found);
    swaps(sysfs, found);
}

/// Adds disks that have another block device on top of them, mounted or not.
fn volumes(sysfs: &Sysfs, found: &mut HostUse) {
    require_readable(sysfs, "class/block", found);
    for name in names(sysfs, Path::new("class/block")) {
        let Some(path) = target(sysfs, &Path::new("class/block").join(&name)) else { continue };
        if let Some(holder) = names(sysfs, &path.join("holders")).first() {
            add_controllers(sysfs, found, &path, InUseKind::Volume, &format!("/dev/{name} is part of /dev/{holder}"));
        }
    }
}

/// A block device as a file names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Disk {
    /// `major:minor`.
    Number(String),
    /// A path such as `/dev/mapper/data`.
    Path(String),
}

/// Returns the mounted devices, each with its first use. Containers mount the same disks many times.
fn mounts(sysfs: &Sysfs, found: &mut HostUse) -> BTreeMap<Disk, (InUseKind, String)> {
    let path = sysfs.roots().proc.join("1/mountinfo");
    let text = match read(&path) {
        Ok(Some(text)) => text,
        Ok(None) => String::new(),
        Err(error) => {
            found.problem(&path, error.to_string());
            String::new()
        }
    };
    let mut mounts = BTreeMap::new();
    for line in text.lines() {
        let Some(mount) = Mount::parse(line) else {
            found.problem(&path, format!("{line:?} is not a mount"));
            continue;
        };
        if mount.kind == "zfs" {
            found.problem(&path, format!("the disks of ZFS pool {} ({}) are not known", mount.source, mount.point));
        }
        let is_system = SYSTEM.contains(&mount.point.as_str());
        let kind = if is_system { InUseKind::SystemDisk } else { InUseKind::MountedDisk };
        let detail = format!("{} is mounted at {} ({})", mount.source, mount.point, mount.kind);
        for disk in mount.disks() {
            let entry = mounts.entry(disk).or_insert_with(|| (kind, detail.clone()));
            if kind < entry.0 {
                *entry = (kind, detail.clone());
            }
        }
    }
    mounts
}

/// A line of `mountinfo`.
struct Mount {
    number: String,
    point: String,
    kind: String,
    source: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        // Optional fields before the dash, three fields after it.
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(2);
        let mut after = after.split(' ');
        Some(Self {
            number: before.next()?.to_owned(),
            point: unescape(before.nth(1)?),
            kind: after.next()?.to_owned(),
            source: unescape(after.next()?),
        })
    }

    /// Returns the devices of the mount. Btrfs and others have numbers of their own (major 0): the source names a device, or
    /// several between colons (bcachefs).
    fn disks(&self) -> Vec<Disk> {
        if !self.number.starts_with("0:") {
            return vec![Disk::Number(self.number.clone())];
        }
        let sources = self.source.split(':').filter(|source| source.starts_with("/dev/"));
        sources.map(|source| Disk::Path(source.to_owned())).collect()
    }
}

fn swaps(sysfs: &Sysfs, found: &mut HostUse) {
    let path = sysfs.roots().proc.join("swaps");
    let text = match read(&path) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) => return found.problem(path, error.to_string()),
    };
    for line in text.lines().skip(1) {
        // A swap file is on a mounted disk, which is protected as such.
        let mut fields = line.split_ascii_whitespace();
        if let (Some(name), Some("partition")) = (fields.next(), fields.next()) {
            let name = unescape(name);
            add(sysfs, found, &Disk::Path(name.clone()), InUseKind::Swap, &format!("{name} is swap space"));
        }
    }
}

/// Adds the controllers below a block device. Returns whether there is such a device.
fn add(sysfs: &Sysfs, found: &mut HostUse, disk: &Disk, kind: InUseKind, detail: &str) -> bool {
    let Some(path) = locate(sysfs, disk) else {
        match disk {
            Disk::Number(number) => found.problem(
                sysfs.roots().sys.join("dev/block").join(number),
                format!("there is no such block device, but {detail}"),
            ),
            Disk::Path(name) => found.problem(name, format!("there is no such block device, but {detail}")),
        }
        return false;
    };
    let unknown = add_controllers(sysfs, found, &path, kind, detail);
    for name in unknown.iter().filter_map(|path| last(path)) {
        found.problem(
            Path::new("/dev").join(name),
            format!("it is not known which disks this virtual one is made of, but {detail}"),
        );
    }
    true
}

/// Adds the controllers below a block device. Returns the virtual disks at the bottom of which nothing more is known.
fn add_controllers(sysfs: &Sysfs, found: &mut HostUse, path: &Path, kind: InUseKind, detail: &str) -> Vec<PathBuf> {
    let mut bottom = Bottom::default();
    bottom.descend(sysfs, path, MAX_DEPTH);
    for address in bottom.seen.iter().filter_map(|path| controller(path)) {
        found.add(address, kind, detail.to_owned());
    }
    bottom.unknown
}

/// Returns the directory of a block device below sysfs.
fn locate(sysfs: &Sysfs, disk: &Disk) -> Option<PathBuf> {
    match disk {
        Disk::Number(number) => target(sysfs, &Path::new("dev/block").join(number)),
        Disk::Path(name) => {
            // The names in /dev/mapper and /dev/disk are links.
            let node = sysfs.roots().dev.join(Path::new(name).strip_prefix("/dev").ok()?);
            let name = std::fs::canonicalize(&node).unwrap_or(node);
            let block = target(sysfs, &Path::new("class/block").join(last(&name)?));
            block.or_else(|| by_node(sysfs, &name))
        }
    }
}

/// Returns the block device of a device node, for nodes in /dev/mapper that are no links.
fn by_node(sysfs: &Sysfs, node: &Path) -> Option<PathBuf> {
    let stat = rustix::fs::stat(node).ok()?;
    let is_block = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice;
    let number = format!("{}:{}", rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    is_block.then(|| target(sysfs, &Path::new("dev/block").join(number))).flatten()
}

/// What a block device consists of.
#[derive(Debug, Default)]
struct Bottom {
    seen: BTreeSet<PathBuf>,
    /// Virtual disks with nothing below them that could be found.
    unknown: Vec<PathBuf>,
}

impl Bottom {
    /// Collects a block device and all that it consists of.
    fn descend(&mut self, sysfs: &Sysfs, path: &Path, depth: usize) {
        if !self.seen.insert(path.to_owned()) {
            return;
        }
        if depth == 0 {
            return self.unknown.push(path.to_owned());
        }
        let mut below = Vec::new();
        // A partition: its disk.
        if sysfs.roots().sys.join(path).join("partition").exists() {
            below.extend(path.parent().map(Path::to_owned));
        }
        // Device mapper, RAID, bcache.
        let slaves = path.join("slaves");
        below.extend(names(sysfs, &slaves).into_iter().filter_map(|name| target(sysfs, &slaves.join(name))));
        below.extend(loop_disk(sysfs, path));
        below.extend(nvme_controllers(sysfs, path));
        if below.is_empty() && !is_bottom(path) {
            self.unknown.push(path.to_owned());
        }
        below.extend(btrfs(sysfs, path));
        for path in below {
            self.descend(sysfs, &path, depth - 1);
        }
    }
}

/// Returns whether a device with nothing below it is where its data comes from: hardware, on whatever bus, or the network.
fn is_bottom(path: &Path) -> bool {
    let kind = last(path).unwrap_or_default().trim_end_matches(|letter: char| letter.is_ascii_digit());
    !path.starts_with("devices/virtual") || path.starts_with(NVME_OVER_NETWORK) || WITHOUT_DISK.contains(&kind)
}

/// Returns the disk that a loop device makes another one of. One of a file needs nothing: the file is on a mounted disk.
fn loop_disk(sysfs: &Sysfs, path: &Path) -> Option<PathBuf> {
    let file = std::fs::read_to_string(sysfs.roots().sys.join(path).join("loop/backing_file")).ok()?;
    locate(sysfs, &Disk::Path(file.trim_end_matches('\n').to_owned()))
}

/// Returns all devices of the btrfs that a device is part of.
fn btrfs(sysfs: &Sysfs, path: &Path) -> Vec<PathBuf> {
    let mut devices = Vec::new();
    for id in names(sysfs, Path::new("fs/btrfs")) {
        let directory = Path::new("fs/btrfs").join(id).join("devices");
        let of_one: Vec<_> =
            names(sysfs, &directory).into_iter().filter_map(|name| target(sysfs, &directory.join(name))).collect();
        if of_one.iter().any(|device| device == path) {
            devices.extend(of_one);
        }
    }
    devices
}

/// Returns the controllers of an `NVMe` disk with several paths. It is below a virtual device
/// (`devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1`), which has links to them.
fn nvme_controllers(sysfs: &Sysfs, path: &Path) -> Vec<PathBuf> {
    let Some(subsystem) =
        path.parent().filter(|parent| last(parent).is_some_and(|name| name.starts_with("nvme-subsys")))
    else {
        return Vec::new();
    };
    let is_controller = |name: &String| {
        let number = name.strip_prefix("nvme").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let controllers = names(sysfs, subsystem).into_iter().filter(is_controller);
    controllers.filter_map(|name| target(sysfs, &subsystem.join(name))).collect()
}
