//! What files are on.

use std::path::Path;

use rustix::fs::statfs;
use rustix::io::Errno;

/// The file systems that are in memory, by the magic numbers that `statfs` gives: tmpfs and ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// What files are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// Something that can make its users wait: a disk, a network, whatever is not known.
    Disk,
    /// Memory.
    Memory,
}

impl Medium {
    /// The medium of all that is in some directories. One that does not exist yet will be on what its parent is on; one that
    /// cannot be looked at may make its users wait.
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

    /// What the kernel says that is mounted there.
    fn kind_of_mount(path: &str) -> Option<String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut kinds = mounts.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[1] == path).then(|| fields[2].to_owned())
        });
        kinds.next_back()
    }

    #[test]
    fn memory_is_where_every_directory_is_on_tmpfs() {
        if kind_of_mount("/dev/shm").as_deref() != Some("tmpfs") {
            eprintln!("skipped: there is no tmpfs at /dev/shm");
            return;
        }
        let of = |paths: &[&str]| Medium::of(paths.iter().map(Path::new));
        assert_eq!(of(&["/dev/shm"]), Medium::Memory);
        assert_eq!(of(&["/dev/shm/not/there/yet", "/dev/shm"]), Medium::Memory);
        assert_eq!(of(&["/dev/shm", "/proc"]), Medium::Disk, "what is not known to be in memory is not");
        assert_eq!(of(&["/proc/not/there"]), Medium::Disk);
    }
}
