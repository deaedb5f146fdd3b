//! What a cluster could leave on the machine: taken before and after, the two must be equal.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup;
use crate::error::{Doing, Result};
use crate::place::Place;

/// Directories in which components have their files on ordinary nodes, with the depth to which they are looked at.
const DIRECTORIES: [(&str, usize); 9] = [
    ("/etc/cdi", 2),
    ("/etc/cni", 3),
    ("/opt", 2),
    ("/run", 2),
    ("/usr/libexec/kubernetes", 2),
    ("/var/lib", 1),
    ("/var/lib/kubelet", 2),
    ("/var/log/containers", 1),
    ("/var/log/pods", 2),
];

/// Settings that a kubelet writes, or that network plugins do.
const SETTINGS: [&str; 12] = [
    "kernel/hostname",
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/bridge/bridge-nf-call-iptables",
    "net/ipv4/conf/all/forwarding",
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

/// A list of everything that is there: mounts, interfaces, addresses, cgroups, settings, files, and processes of the
/// node's programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint(BTreeSet<String>);

impl Footprint {
    /// What is there now.
    ///
    /// # Errors
    ///
    /// The machine does not tell.
    pub fn take(place: &Place) -> Result<Self> {
        let mut found = BTreeSet::new();
        let mounts = "/proc/self/mounts";
        let mounts = fs::read_to_string(mounts).doing(|| format!("read {mounts}"))?;
        found.extend(mounts.lines().map(|line| format!("mount {line}")));
        for table in ["/proc/net/route", "/proc/net/fib_trie", "/proc/net/unix"] {
            let text = fs::read_to_string(table).doing(|| format!("read {table}"))?;
            // Sockets of others come and go; the cluster's have its paths.
            let ours = |line: &&str| table != "/proc/net/unix" || line.contains(&*place.state().to_string_lossy());
            found.extend(text.lines().filter(ours).map(|line| format!("{table} {}", line.trim())));
        }
        list(Path::new("/sys/class/net"), 1, &mut found)?;
        for hierarchy in cgroup::hierarchies()? {
            cgroups(&hierarchy, &mut found)?;
        }
        for setting in SETTINGS {
            let path = Path::new("/proc/sys").join(setting);
            if path.exists() {
                let value = fs::read_to_string(&path).doing(|| format!("read {}", path.display()))?;
                found.insert(format!("setting {setting} = {}", value.trim()));
            }
        }
        for (directory, depth) in DIRECTORIES {
            list(Path::new(directory), depth, &mut found)?;
        }
        if place.state().exists() {
            found.insert(format!("file {}", place.state().display()));
        }
        processes(&place.bin(), &mut found)?;
        Ok(Self(found))
    }

    /// What is there now and was not `before`, and what was and is not; one line each, nothing when they are equal.
    pub fn since(&self, before: &Self) -> Vec<String> {
        let new = self.0.difference(&before.0).map(|line| format!("+ {line}"));
        let lost = before.0.difference(&self.0).map(|line| format!("- {line}"));
        new.chain(lost).collect()
    }
}

/// Processes whose program is one of the node's.
fn processes(bin: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for path in entries(Path::new("/proc"))? {
        // What ends meanwhile, and threads of the kernel, have none.
        let Ok(program) = fs::read_link(path.join("exe")) else { continue };
        if program.starts_with(bin) {
            found.insert(format!("process {} of {}", path.display(), program.display()));
        }
    }
    Ok(())
}

fn cgroups(cgroup: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for path in entries(cgroup)?.into_iter().filter(|path| path.is_dir()) {
        found.insert(format!("cgroup {}", path.display()));
        cgroups(&path, found)?;
    }
    Ok(())
}

fn list(directory: &Path, depth: usize, found: &mut BTreeSet<String>) -> Result<()> {
    if !directory.is_dir() {
        return Ok(());
    }
    found.insert(format!("file {}", directory.display()));
    for path in entries(directory)? {
        found.insert(format!("file {}", path.display()));
        if depth > 1 && path.is_dir() && !path.is_symlink() {
            list(&path, depth - 1, found)?;
        }
    }
    Ok(())
}

/// What a directory holds; one that has gone meanwhile holds nothing.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).doing(|| format!("read {}", directory.display())),
    };
    entries.map(|entry| Ok(entry.doing(|| format!("read {}", directory.display()))?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_and_what_went_is_told() {
        let footprint = |lines: &[&str]| Footprint(lines.iter().map(|line| (*line).to_owned()).collect());
        let (before, after) = (footprint(&["a", "b"]), footprint(&["b", "c"]));
        assert_eq!(after.since(&before), ["+ c", "- a"]);
        assert!(before.since(&before).is_empty());
    }

    #[test]
    fn a_directory_of_the_cluster_is_seen() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root sees all of /run");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let place = Place::at(&directory.path().join("state"), directory.path()).unwrap();
        let before = Footprint::take(&place).unwrap();
        fs::create_dir(place.state()).unwrap();
        let changes = Footprint::take(&place).unwrap().since(&before);
        assert!(changes.contains(&format!("+ file {}", place.state().display())), "{changes:?}");
    }
}
