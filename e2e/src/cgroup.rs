//! The parent cgroup of all pods, in every cgroup hierarchy of the host (v1 and v2).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use crate::error::{IoContext, Result};
use crate::run::wait_until;

/// The controllers that the kubelet requires in a v2 hierarchy.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// Returns why the kubelet cannot use cgroups on this host, or `None` if it can. Creates and removes a cgroup to find out.
pub(crate) fn unsupported_reason() -> Result<Option<String>> {
    let hierarchies = hierarchies()?;
    if hierarchies.is_empty() {
        return Ok(Some("no cgroup hierarchy is mounted at /sys/fs/cgroup".to_owned()));
    }
    // On a hybrid host the controllers are in the v1 hierarchies, and the v2 hierarchy needs none.
    if let [only] = hierarchies.as_slice()
        && is_unified(only)
        && let Some(reason) = controllers_unavailable(only)?
    {
        return Ok(Some(reason));
    }
    let name = format!("drakkar-e2e-probe-{}", std::process::id());
    for hierarchy in hierarchies {
        let cgroup = hierarchy.join(&name);
        if let Err(error) = fs::create_dir(&cgroup) {
            return Ok(Some(format!("cannot create a cgroup in {}: {error}", hierarchy.display())));
        }
        fs::remove_dir(&cgroup).with_context(|| format!("remove the cgroup {}", cgroup.display()))?;
    }
    Ok(None)
}

/// Returns why a v2 cgroup cannot delegate the controllers that the kubelet requires, or `None` if it can.
fn controllers_unavailable(hierarchy: &Path) -> Result<Option<String>> {
    let has = words(&hierarchy.join("cgroup.controllers"))?;
    if let Some(absent) = CONTROLLERS.iter().find(|controller| !has.iter().any(|word| word == *controller)) {
        return Ok(Some(format!("the cgroup {} has no controller {absent}", hierarchy.display())));
    }
    // The kernel's "no internal processes" rule: only the root cgroup, which has no `cgroup.type`, can have processes and
    // enable controllers for its children.
    let is_root = !hierarchy.join("cgroup.type").exists();
    if !is_root && !missing(hierarchy)?.is_empty() && !words(&hierarchy.join("cgroup.procs"))?.is_empty() {
        let reason = "has processes, so it cannot enable controllers for its children";
        return Ok(Some(format!("the cgroup {} {reason}", hierarchy.display())));
    }
    Ok(None)
}

/// Returns the controllers that have to be enabled in the v2 hierarchy before the cgroup is created. They are recorded
/// before anything is changed, so that `remove` can disable exactly these.
pub(crate) fn controllers_to_enable() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for hierarchy in hierarchies()?.iter().filter(|hierarchy| is_unified(hierarchy)) {
        all.extend(missing(hierarchy)?);
    }
    Ok(all)
}

/// Creates the cgroup in every hierarchy, with these controllers enabled in v2.
pub(crate) fn create(name: &str, enable: &[String]) -> Result<()> {
    for hierarchy in hierarchies()? {
        if is_unified(&hierarchy) {
            switch(&hierarchy, '+', enable.iter().map(String::as_str))?;
        }
        let cgroup = hierarchy.join(name);
        fs::create_dir_all(&cgroup).with_context(|| format!("create the cgroup {}", cgroup.display()))?;
    }
    Ok(())
}

/// Removes the cgroup and all below it, and disables the controllers that were enabled for it.
pub(crate) fn remove(name: &str, enabled: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let cgroup = hierarchy.join(name);
        // A process that was reaped can still count as a member of its cgroup for a moment.
        let hint = format!("see which cgroups below {} still have processes", cgroup.display());
        wait_until("the removal of the pods' cgroups", Duration::from_secs(10), &hint, || remove_tree(&cgroup))?;
        if is_unified(&hierarchy) {
            switch(&hierarchy, '-', enabled.split_whitespace())?;
        }
    }
    Ok(())
}

/// Whether a hierarchy is v2.
fn is_unified(hierarchy: &Path) -> bool {
    hierarchy.join("cgroup.controllers").exists()
}

/// Returns the required controllers that a hierarchy has and that are not enabled for the children of its root.
fn missing(hierarchy: &Path) -> Result<Vec<String>> {
    let available = words(&hierarchy.join("cgroup.controllers"))?;
    let enabled = words(&hierarchy.join("cgroup.subtree_control"))?;
    let contains = |words: &[String], controller: &str| words.iter().any(|word| word == controller);
    let missing = CONTROLLERS.into_iter().filter(|name| contains(&available, name) && !contains(&enabled, name));
    Ok(missing.map(str::to_owned).collect())
}

/// Enables (`+`) or disables (`-`) controllers for the children of the root.
fn switch<'a>(hierarchy: &Path, sign: char, controllers: impl Iterator<Item = &'a str>) -> Result<()> {
    let control = hierarchy.join("cgroup.subtree_control");
    for controller in controllers {
        match fs::write(&control, format!("{sign}{controller}")) {
            // Another cgroup enables the controller for its own children meanwhile, so it stays enabled.
            Err(error) if sign == '-' && is(&error, Errno::BUSY) => {}
            written => written.with_context(|| format!("write {sign}{controller} to {}", control.display()))?,
        }
    }
    Ok(())
}

fn words(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

fn is(error: &std::io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Removes a cgroup and all below it; returns whether they are gone.
fn remove_tree(cgroup: &Path) -> Result<bool> {
    let entries = match fs::read_dir(cgroup) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error).with_context(|| format!("read {}", cgroup.display())),
    };
    for entry in entries {
        let path = entry.with_context(|| format!("read {}", cgroup.display()))?.path();
        if path.is_dir() && !remove_tree(&path)? {
            return Ok(false);
        }
    }
    match fs::remove_dir(cgroup) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) if is(&error, Errno::BUSY) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("remove the cgroup {}", cgroup.display())),
    }
}

/// Returns the mount points of all hierarchies.
pub(crate) fn hierarchies() -> Result<Vec<PathBuf>> {
    let path = "/proc/self/mounts";
    Ok(mounted(&fs::read_to_string(path).with_context(|| format!("read {path}"))?))
}

fn mounted(mounts: &str) -> Vec<PathBuf> {
    let mount = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let point = words.next()?;
        let kind = words.next()?;
        // A hierarchy can be mounted elsewhere too, for example in a container's root.
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

    /// A directory that looks like a v2 cgroup.
    fn unified(available: &str, enabled: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), available).unwrap();
        fs::write(root.path().join("cgroup.subtree_control"), enabled).unwrap();
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
    fn a_cgroup_that_cannot_delegate_the_required_controllers_is_rejected() {
        let reason = |root: &tempfile::TempDir| controllers_unavailable(root.path()).unwrap().unwrap_or_default();
        let all = "cpu cpuset io memory pids";
        assert!(reason(&unified("cpu memory", "")).contains("no controller cpuset"));
        assert_eq!(reason(&unified(all, "")), "");

        let of_container = unified(all, "");
        fs::write(of_container.path().join("cgroup.type"), "domain\n").unwrap();
        fs::write(of_container.path().join("cgroup.procs"), "1\n").unwrap();
        assert!(reason(&of_container).contains("has processes"));
        fs::write(of_container.path().join("cgroup.subtree_control"), all).unwrap();
        assert_eq!(reason(&of_container), "");
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
