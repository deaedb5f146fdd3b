//! Who can write where, and whether there is space.

use std::io;
use std::path::Path;

use rustix::fs::FileType;

use super::kubelet::shell_quoted;
use crate::commands::doctor::finding::{Finding, or_ok};
use crate::commands::doctor::kind::Kind;
use crate::node_facts::host::Status;
use crate::node_facts::{Disk, Facts};

/// The bytes and inodes below which a prepare will fail, and those below which it may soon.
const FULL: (u64, u64) = (1024 * 1024, 16);
const LOW: (u64, u64) = (64 * 1024 * 1024, 1000);
/// The sticky bit: only the owner of a file can remove it.
const STICKY: u32 = 0o1000;

pub(super) fn permissions(facts: &Facts) -> Vec<Finding> {
    let mut problems = Vec::new();
    let mut number = 0;
    for driver in &facts.node.drivers {
        // The owner of the directory is who the driver runs as.
        let owner = driver.files.seen.first().map(|(_, status)| status.owner);
        for (path, status) in &driver.files.seen {
            number += 1;
            problems.extend(writable(path, status));
            if owner.is_some_and(|owner| status.owner != owner && status.owner != 0) {
                problems.push(Finding::problem(
                    Kind::WrongOwner,
                    format!("{} belongs to user {}, who is not that of the driver", path.display(), status.owner),
                    "find out who wrote it; if in doubt, remove it and delete the driver's pod",
                ));
            }
        }
    }
    let contents = facts.node.cdi.iter().filter_map(|directory| Some((directory, directory.content.as_ref().ok()?)));
    for (directory, content) in contents {
        number += 1 + content.specs.len();
        problems.extend(writable(&directory.path, &content.status));
        problems.extend(content.specs.iter().filter_map(|file| writable(&file.path, &file.status)));
    }
    or_ok(problems, || format!("no other user can write to any of {number} files and directories"))
}

fn writable(path: &Path, status: &Status) -> Option<Finding> {
    let is_shared = status.kind == FileType::Directory && status.mode & STICKY != 0;
    (status.is_world_writable() && !is_shared).then(|| {
        Finding::problem(
            Kind::WorldWritable,
            format!(
                "{} has mode {:04o}: every user of the host can change what containers get",
                path.display(),
                status.mode
            ),
            format!("chmod o-w {}", shell_quoted(&path.to_string_lossy())),
        )
    })
}

pub(super) fn disk(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts.disks.iter().filter_map(space).collect();
    for disk in &facts.disks {
        if let Some(error) = &disk.not_writable {
            let message = format!("{}: {error}", disk.path.display());
            findings.push(match error.kind() {
                // It says nothing about the driver, who is another user.
                io::ErrorKind::PermissionDenied => Finding::skipped(format!("{message}; run as root")),
                _ => Finding::problem(Kind::NotWritable, message, "mount the file system writable"),
            });
        }
    }
    if facts.disks.is_empty() {
        return findings;
    }
    or_ok(findings, || {
        let paths: Vec<String> = facts.disks.iter().map(|disk| disk.path.display().to_string()).collect();
        format!("writable and with space: {}", paths.join(", "))
    })
}

fn space(disk: &Disk) -> Option<Finding> {
    let bytes = disk.free_bytes;
    let is_below = |limit: (u64, u64)| bytes < limit.0 || disk.free_inodes.is_some_and(|inodes| inodes < limit.1);
    let kind = if is_below(FULL) {
        Kind::DiskFull
    } else if is_below(LOW) {
        Kind::DiskLow
    } else {
        return None;
    };
    let inodes = disk.free_inodes.map(|inodes| format!(" and {inodes} inodes")).unwrap_or_default();
    Some(Finding::problem(
        kind,
        format!("{}: {} KiB{inodes} are free", disk.path.display(), bytes / 1024),
        format!(
            "df -h {0}; df -i {0}; then make space: a prepare writes a few files per claim",
            shell_quoted(&disk.path.to_string_lossy())
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn disk(free_bytes: u64, inodes: u64) -> Disk {
        let path = PathBuf::from("/var/lib/kubelet/plugins/gpu.example.com");
        Disk { path, free_bytes, free_inodes: Some(inodes), not_writable: None }
    }

    #[test]
    fn a_full_file_system_is_an_error_and_a_nearly_full_one_a_warning() {
        let kind = |bytes, inodes| space(&disk(bytes, inodes)).and_then(|finding| finding.kind);
        assert_eq!(kind(1 << 30, 100_000), None);
        assert_eq!(kind(1 << 25, 100_000), Some(Kind::DiskLow));
        assert_eq!(kind(1 << 30, 999), Some(Kind::DiskLow));
        assert_eq!(kind(4096, 100_000), Some(Kind::DiskFull));
        assert_eq!(kind(1 << 30, 0), Some(Kind::DiskFull));
        let message = space(&disk(4096, 100_000)).unwrap().message;
        assert_eq!(message, "/var/lib/kubelet/plugins/gpu.example.com: 4 KiB and 100000 inodes are free");
    }
}
