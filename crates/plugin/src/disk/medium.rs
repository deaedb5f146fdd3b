//! Detects whether files are in memory or on a disk.

use std::path::Path;

use rustix::fs::statfs;
use rustix::io::Errno;

/// The magic numbers of file systems in memory, as returned by `statfs`: tmpfs and ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// The storage that files are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// Storage that can block: a disk, a network file system, or an unknown one.
    Disk,
    /// Memory.
    Memory,
}

impl Medium {
    /// Returns the medium of a set of directories. A directory that does not exist yet is on the medium of its parent; one that
    /// cannot be examined counts as a disk.
    pub(crate) fn of<'a>(directories: impl IntoIterator<Item = &'a Path>) -> Self {
        if directories.into_iter().all(is_in_memory) { Self::Memory } else { Self::Disk }
    }
}

fn is_in_memory(directory: &Path) -> bool {
    let existing = directory.ancestors().map(statfs).find(|found| !matches!(found, Err(Errno::NOENT)));
    // The type has 32 or 64 bits and a sign or none, depending on the machine; all magic numbers have 32.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::unnecessary_cast, reason = "see above")]
    existing.is_some_and(|found| found.is_ok_and(|found| IN_MEMORY.contains(&(found.f_type as u32))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the type of the file system that is mounted at a path.
    fn kind_of_mount(path: &str) -> Option<String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut kinds = mounts.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[1] == path).then(|| fields[2].to_owned())
        });
        kinds.next_back()
    }

    #[test]
    fn the_medium_is_memory_if_every_directory_is_on_tmpfs() {
        if kind_of_mount("/dev/shm").as_deref() != Some("tmpfs") {
            eprintln!("skipped: there is no tmpfs at /dev/shm");
            return;
        }
        let of = |paths: &[&str]| Medium::of(paths.iter().map(Path::new));
        assert_eq!(of(&["/dev/shm"]), Medium::Memory);
        assert_eq!(of(&["/dev/shm/not/there/yet", "/dev/shm"]), Medium::Memory);
        assert_eq!(of(&["/dev/shm", "/proc"]), Medium::Disk, "an unknown file system counts as a disk");
        assert_eq!(of(&["/proc/not/there"]), Medium::Disk);
    }
}
