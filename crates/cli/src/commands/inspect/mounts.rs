//! The mounts of metadata files in running containers, seen in `/proc`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use drakkar_metadata::path::{KEP_DIR, KUBERNETES_DIR};

use super::ClaimId;
use super::steps::Step;
use crate::node_facts::NodeFiles;

const PLACE: &str = "Containers";
/// The largest list of mounts that is read.
const MAX_MOUNTS: u64 = 4 * 1024 * 1024;

/// A mount of a metadata file in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mounted {
    process: String,
    command: String,
    target: PathBuf,
}

/// Finds the files of a claim in the mount namespaces of the host's processes.
pub(super) fn steps(claim: &ClaimId, node: &NodeFiles, host_root: &Path) -> Vec<Step> {
    let directories = node.drivers.iter().flat_map(|driver| &driver.files.claims);
    let of_claim = directories
        .filter(|directory| directory.record.as_ref().is_ok_and(|record| record.claim.uid.as_str() == claim.uid));
    let files: Vec<&PathBuf> =
        of_claim.flat_map(|directory| &directory.requests).map(|request| &request.file).collect();
    if files.is_empty() {
        return Vec::new();
    }
    let proc = host_root.join("proc");
    let (mounts, is_complete) = match find(&proc) {
        Ok(found) => found,
        Err(error) => return vec![Step::skipped(PLACE, format!("{}: {error}", proc.display()))],
    };
    let mut steps = Vec::new();
    for file in files {
        // The file itself, not its path: the path may be another in the file system that the mount is of.
        let Ok(status) = std::fs::symlink_metadata(host_root.join(file.strip_prefix("/").unwrap_or(file))) else {
            continue;
        };
        let id = (status.dev(), status.ino());
        let here: Vec<&Mounted> = mounts.iter().filter(|(found, _)| *found == id).map(|(_, mounted)| mounted).collect();
        steps.extend(here.iter().map(|mounted| {
            let Mounted { process, command, target } = mounted;
            Step::ok(PLACE, format!("process {process} ({command}) sees it at {}", target.display()))
        }));
        if here.is_empty() {
            let reason = if is_complete {
                "no running container has it"
            } else {
                "not visible: run as root in the host's PID namespace"
            };
            steps.push(Step::skipped(PLACE, format!("{}: {reason}", file.display())));
        }
    }
    steps
}

type FileId = (u64, u64);

/// Returns the metadata files that processes see, one process per mount namespace, and whether all processes could be looked at.
fn find(proc: &Path) -> io::Result<(Vec<(FileId, Mounted)>, bool)> {
    let mut found = Vec::new();
    let mut namespaces = BTreeSet::new();
    let mut is_complete = true;
    for entry in std::fs::read_dir(proc)?.flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        let directory = entry.path();
        match std::fs::read_link(directory.join("ns/mnt")) {
            Ok(namespace) if namespaces.insert(namespace.clone()) => {}
            Ok(_) => continue,
            Err(error) => {
                // A process that has ended in the meantime hides nothing.
                is_complete &= error.kind() == io::ErrorKind::NotFound;
                continue;
            }
        }
        let Ok(mounts) = read(&directory.join("mountinfo")) else { continue };
        for target in mounts.lines().filter_map(target) {
            let inside = directory.join("root").join(target.strip_prefix("/").unwrap_or(&target));
            let Ok(status) = std::fs::symlink_metadata(&inside) else { continue };
            let command = read(&directory.join("comm")).unwrap_or_default().trim().to_owned();
            let mounted = Mounted { process: process.to_owned(), command, target };
            found.push(((status.dev(), status.ino()), mounted));
        }
    }
    Ok((found, is_complete))
}

/// Returns the mount point of a line of `mountinfo`, if it is that of a metadata file.
fn target(line: &str) -> Option<PathBuf> {
    let target = Path::new(line.split(' ').nth(4)?);
    // `/var/run` is a link to `/run` in many images.
    let is_below = |directory: &str| {
        target.starts_with(directory) || target.starts_with(directory.strip_prefix("/var").unwrap_or(directory))
    };
    (is_below(KUBERNETES_DIR) || is_below(KEP_DIR)).then(|| target.to_owned())
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_MOUNTS).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_of_metadata_files_are_looked_at() {
        let line = "812 790 8:1 /var/lib/kubelet/plugins/x/metadata.json \
                    /var/run/dra-device-attributes/c/gpu/gpu.example.com-metadata.json ro - ext4 /dev/sda1 rw";
        let expected = "/var/run/dra-device-attributes/c/gpu/gpu.example.com-metadata.json";
        assert_eq!(target(line).as_deref(), Some(Path::new(expected)));
        assert!(target(&line.replace("/var/run", "/run")).is_some());
        assert_eq!(target("812 790 8:1 / /var/run ro - ext4 /dev/sda1 rw"), None);
        assert_eq!(target(""), None);
    }
}
