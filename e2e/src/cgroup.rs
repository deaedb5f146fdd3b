//! The cgroup below which the kubelet has those of pods, in every hierarchy of the machine, version 1 or 2.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use crate::error::{Doing, Result};
use crate::run::wait_until;

/// What the kubelet must find enabled in a hierarchy of version 2.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// Makes the cgroup in every hierarchy. Gives the controllers that had to be enabled for it in version 2.
pub(crate) fn create(name: &str) -> Result<Vec<String>> {
    let mut enabled = Vec::new();
    for hierarchy in hierarchies()? {
        if hierarchy.join("cgroup.controllers").exists() {
            enabled.extend(enable(&hierarchy)?);
        }
        let cgroup = hierarchy.join(name);
        fs::create_dir_all(&cgroup).doing(|| format!("make the cgroup {}", cgroup.display()))?;
    }
    Ok(enabled)
}

/// Removes the cgroup and all below it, and disables the controllers that were enabled for it.
pub(crate) fn remove(name: &str, enabled: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let cgroup = hierarchy.join(name);
        // The last process of a cgroup may be gone for its parent and not yet for the cgroup.
        wait_until("the removal of its cgroups", Duration::from_secs(10), "see which are busy there", || {
            remove_tree(&cgroup)
        })?;
        let control = hierarchy.join("cgroup.subtree_control");
        if control.exists() {
            for controller in enabled.split_whitespace() {
                fs::write(&control, format!("-{controller}")).doing(|| format!("write {}", control.display()))?;
            }
        }
    }
    Ok(())
}

/// Lets cgroups below the root have the controllers that the root has.
fn enable(hierarchy: &Path) -> Result<Vec<String>> {
    let read = |name: &str| {
        let path = hierarchy.join(name);
        fs::read_to_string(&path).doing(|| format!("read {}", path.display()))
    };
    let (has, gives) = (read("cgroup.controllers")?, read("cgroup.subtree_control")?);
    let missing = |controller: &&str| {
        has.split_whitespace().any(|word| word == *controller)
            && !gives.split_whitespace().any(|word| word == *controller)
    };
    let missing: Vec<String> = CONTROLLERS.iter().filter(|name| missing(name)).map(|name| (*name).to_owned()).collect();
    let control = hierarchy.join("cgroup.subtree_control");
    for controller in &missing {
        fs::write(&control, format!("+{controller}")).doing(|| format!("write {}", control.display()))?;
    }
    Ok(missing)
}

/// Whether the cgroup is gone now, with all below it.
fn remove_tree(cgroup: &Path) -> Result<bool> {
    let entries = match fs::read_dir(cgroup) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error).doing(|| format!("read {}", cgroup.display())),
    };
    for entry in entries {
        let path = entry.doing(|| format!("read {}", cgroup.display()))?.path();
        if path.is_dir() && !remove_tree(&path)? {
            return Ok(false);
        }
    }
    match fs::remove_dir(cgroup) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Ok(false),
        Err(error) => Err(error).doing(|| format!("remove the cgroup {}", cgroup.display())),
    }
}

/// Where hierarchies are mounted.
pub(crate) fn hierarchies() -> Result<Vec<PathBuf>> {
    let path = "/proc/self/mounts";
    Ok(mounted(&fs::read_to_string(path).doing(|| format!("read {path}"))?))
}

fn mounted(mounts: &str) -> Vec<PathBuf> {
    let mount = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        // The same hierarchy may be mounted elsewhere too, in a container's root for example.
        (matches!(kind, "cgroup" | "cgroup2") && point.starts_with("/sys/fs/cgroup")).then(|| PathBuf::from(point))
    };
    mounts.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(mounted(mounts), ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"].map(PathBuf::from));
    }

    #[test]
    fn only_missing_controllers_are_enabled() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu io memory pids\n").unwrap();
        fs::write(root.path().join("cgroup.subtree_control"), "memory\n").unwrap();
        assert_eq!(enable(root.path()).unwrap(), ["cpu", "pids"]);
        assert_eq!(fs::read_to_string(root.path().join("cgroup.subtree_control")).unwrap(), "+pids");
    }

    #[test]
    fn a_tree_is_removed_from_its_leaves() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = root.path().join("a");
        fs::create_dir_all(cgroup.join("b/c")).unwrap();
        fs::create_dir_all(cgroup.join("d")).unwrap();
        assert!(remove_tree(&cgroup).unwrap());
        assert!(!cgroup.exists() && remove_tree(&cgroup).unwrap());
    }
}
