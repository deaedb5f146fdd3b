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

/// Why the kubelet could have no cgroups here; nothing when it could. Nothing is changed for good.
pub(crate) fn unfit() -> Result<Option<String>> {
    let hierarchies = hierarchies()?;
    if hierarchies.is_empty() {
        return Ok(Some("no cgroups are mounted at /sys/fs/cgroup".to_owned()));
    }
    // With hierarchies of version 1, that of version 2 beside them has no controllers and needs none.
    if let [only] = hierarchies.as_slice()
        && is_unified(only)
        && let Some(reason) = lacks(only)?
    {
        return Ok(Some(reason));
    }
    let name = format!("drakkar-e2e-probe-{}", std::process::id());
    for hierarchy in hierarchies {
        let cgroup = hierarchy.join(&name);
        if let Err(error) = fs::create_dir(&cgroup) {
            return Ok(Some(format!("no cgroups can be made in {}: {error}", hierarchy.display())));
        }
        fs::remove_dir(&cgroup).doing(|| format!("remove the cgroup {}", cgroup.display()))?;
    }
    Ok(None)
}

/// Why a cgroup of version 2 cannot give the ones below it what the kubelet must find there.
fn lacks(hierarchy: &Path) -> Result<Option<String>> {
    let has = words(&hierarchy.join("cgroup.controllers"))?;
    if let Some(absent) = CONTROLLERS.iter().find(|controller| !has.iter().any(|word| word == *controller)) {
        return Ok(Some(format!("the cgroup {} has no controller {absent}", hierarchy.display())));
    }
    // But for the root of the machine, which has no type, a cgroup has processes or gives controllers, not both.
    let is_root = !hierarchy.join("cgroup.type").exists();
    if !is_root && !missing(hierarchy)?.is_empty() && !words(&hierarchy.join("cgroup.procs"))?.is_empty() {
        let reason = "has processes, so that those below it can have no controllers";
        return Ok(Some(format!("the cgroup {} {reason}", hierarchy.display())));
    }
    Ok(None)
}

/// The controllers that have to be enabled in version 2 before the cgroup is made. Whoever enables them disables them
/// again, so they are to be known before anything is changed.
pub(crate) fn to_enable() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for hierarchy in hierarchies()?.iter().filter(|hierarchy| is_unified(hierarchy)) {
        all.extend(missing(hierarchy)?);
    }
    Ok(all)
}

/// Makes the cgroup in every hierarchy, with these controllers enabled in version 2.
pub(crate) fn create(name: &str, enable: &[String]) -> Result<()> {
    for hierarchy in hierarchies()? {
        if is_unified(&hierarchy) {
            switch(&hierarchy, '+', enable.iter().map(String::as_str))?;
        }
        let cgroup = hierarchy.join(name);
        fs::create_dir_all(&cgroup).doing(|| format!("make the cgroup {}", cgroup.display()))?;
    }
    Ok(())
}

/// Removes the cgroup and all below it, and disables the controllers that were enabled for it.
pub(crate) fn remove(name: &str, enabled: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let cgroup = hierarchy.join(name);
        // The last process of a cgroup may be gone for its parent and not yet for the cgroup.
        wait_until("the removal of its cgroups", Duration::from_secs(10), "see which are busy there", || {
            remove_tree(&cgroup)
        })?;
        if is_unified(&hierarchy) {
            switch(&hierarchy, '-', enabled.split_whitespace())?;
        }
    }
    Ok(())
}

/// Whether a hierarchy is of version 2.
fn is_unified(hierarchy: &Path) -> bool {
    hierarchy.join("cgroup.controllers").exists()
}

/// The controllers of the kubelet that the hierarchy has and does not give to the cgroups below its root.
fn missing(hierarchy: &Path) -> Result<Vec<String>> {
    let (has, gives) =
        (words(&hierarchy.join("cgroup.controllers"))?, words(&hierarchy.join("cgroup.subtree_control"))?);
    let contains = |words: &[String], controller: &str| words.iter().any(|word| word == controller);
    let missing = CONTROLLERS.into_iter().filter(|name| contains(&has, name) && !contains(&gives, name));
    Ok(missing.map(str::to_owned).collect())
}

/// Enables (`+`) or disables (`-`) controllers below the root.
fn switch<'a>(hierarchy: &Path, sign: char, controllers: impl Iterator<Item = &'a str>) -> Result<()> {
    let control = hierarchy.join("cgroup.subtree_control");
    for controller in controllers {
        match fs::write(&control, format!("{sign}{controller}")) {
            // Somebody else gives it to cgroups of theirs by now, so it is theirs to keep.
            Err(error) if sign == '-' && is(&error, Errno::BUSY) => {}
            written => written.doing(|| format!("write {sign}{controller} to {}", control.display()))?,
        }
    }
    Ok(())
}

fn words(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).doing(|| format!("read {}", path.display()))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

fn is(error: &std::io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
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
        Err(error) if is(&error, Errno::BUSY) => Ok(false),
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

    /// A directory that looks like a cgroup of version 2.
    fn unified(has: &str, gives: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), has).unwrap();
        fs::write(root.path().join("cgroup.subtree_control"), gives).unwrap();
        root
    }

    #[test]
    fn only_missing_controllers_are_enabled() {
        let root = unified("cpu io memory pids\n", "memory\n");
        let missing = missing(root.path()).unwrap();
        assert_eq!(missing, ["cpu", "pids"]);
        switch(root.path(), '+', missing.iter().map(String::as_str)).unwrap();
        let control = root.path().join("cgroup.subtree_control");
        assert_eq!(fs::read_to_string(&control).unwrap(), "+pids");
        switch(root.path(), '-', ["cpu"].into_iter()).unwrap();
        assert_eq!(fs::read_to_string(&control).unwrap(), "-cpu");
    }

    #[test]
    fn a_cgroup_that_cannot_give_what_the_kubelet_needs_is_told() {
        let told = |root: &tempfile::TempDir| lacks(root.path()).unwrap().unwrap_or_default();
        let all = "cpu cpuset io memory pids";
        assert!(told(&unified("cpu memory", "")).contains("no controller cpuset"));
        assert_eq!(told(&unified(all, "")), "");

        let of_container = unified(all, "");
        fs::write(of_container.path().join("cgroup.type"), "domain\n").unwrap();
        fs::write(of_container.path().join("cgroup.procs"), "1\n").unwrap();
        assert!(told(&of_container).contains("has processes"));
        fs::write(of_container.path().join("cgroup.subtree_control"), all).unwrap();
        assert_eq!(told(&of_container), "");
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
