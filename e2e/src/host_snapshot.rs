//! A snapshot of the host state that a cluster could change: the snapshots before and after must be equal.
//!
//! Other programs on the host mount, start and stop things meanwhile. A snapshot therefore contains only entries with a
//! path, a name or an address of a cluster's, which is what something that escapes the node's namespaces would have.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::cgroup;
use crate::error::{IoContext, Result};
use crate::paths::{ClusterPaths, NODE_DIRECTORIES};

/// The paths at which components keep their files on ordinary nodes, with the depth to which they are listed.
const FILES: [(&str, usize); 23] = [
    ("/etc/cdi", 2),
    ("/etc/cni", 3),
    ("/etc/containerd", 2),
    ("/etc/kubernetes", 2),
    ("/etc/nri", 2),
    ("/opt/cni", 2),
    ("/opt/containerd", 2),
    ("/opt/nri", 2),
    ("/run/cdi", 2),
    ("/run/cni", 2),
    ("/run/containerd", 1),
    ("/run/nri", 2),
    ("/run/runc", 1),
    ("/run/xtables.lock", 0),
    ("/usr/libexec/kubernetes", 2),
    ("/var/lib/cni", 2),
    ("/var/lib/containerd", 1),
    ("/var/lib/etcd", 1),
    ("/var/lib/kubelet", 2),
    ("/var/lib/nri", 2),
    ("/var/log/containers", 1),
    ("/var/log/kubernetes", 1),
    ("/var/log/pods", 2),
];

/// The pods' bridge, which belongs in the node's network namespace only.
const BRIDGE: &str = "pods";

/// Prefixes of the cgroups that a kubelet and containerd create by default.
const CGROUPS: [&str; 3] = ["k8s.io", "kubelet", "kubepods"];

/// Sysctls that a kubelet or CNI plugins write.
const SYSCTLS: [&str; 12] = [
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

/// Whether a line of a `/proc` table belongs to a cluster.
type IsOurs<'a> = &'a dyn Fn(&str) -> bool;

/// The mounts, interfaces, addresses, sockets, cgroups, sysctls, files and processes on the host that could be a
/// cluster's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSnapshot(BTreeSet<String>);

impl HostSnapshot {
    /// Takes a snapshot of the current state.
    ///
    /// # Errors
    ///
    /// The state cannot be read.
    pub fn take(paths: &ClusterPaths) -> Result<Self> {
        let mut found = BTreeSet::new();
        let tables: [(&str, IsOurs<'_>); 4] = [
            ("/proc/self/mounts", &|line| is_mount(line, paths)),
            ("/proc/net/route", &|line| line.split_whitespace().next().is_some_and(|name| is_interface(name, paths))),
            ("/proc/net/fib_trie", &|line| is_address(line, paths)),
            ("/proc/net/unix", &|line| line.contains(&*paths.state().to_string_lossy())),
        ];
        for (table, is_ours) in tables {
            let text = fs::read_to_string(table).with_context(|| format!("read {table}"))?;
            found.extend(text.lines().filter(|line| is_ours(line)).map(|line| format!("{table} {}", line.trim())));
        }
        for path in entries(Path::new("/sys/class/net"))? {
            if path.file_name().is_some_and(|name| is_interface(&name.to_string_lossy(), paths)) {
                found.insert(format!("interface {}", path.display()));
            }
        }
        for hierarchy in cgroup::hierarchies()? {
            cgroups(&hierarchy, &hierarchy, paths, &mut found)?;
        }
        for sysctl in SYSCTLS {
            let path = Path::new("/proc/sys").join(sysctl);
            if path.exists() {
                let value = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
                found.insert(format!("sysctl {sysctl} = {}", value.trim()));
            }
        }
        for (path, depth) in FILES {
            list(Path::new(path), depth, &mut found)?;
        }
        // The network namespaces of pods.
        for path in entries(Path::new("/run/netns"))? {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cni-")) {
                found.insert(format!("file {}", path.display()));
            }
        }
        if paths.state().exists() {
            found.insert(format!("file {}", paths.state().display()));
        }
        processes(&paths.bin(), &mut found)?;
        Ok(Self(found))
    }

    /// Returns a line for each entry that was added (`+`) or removed (`-`) since `before`.
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let added = self.0.difference(&before.0).map(|line| format!("+ {line}"));
        let removed = before.0.difference(&self.0).map(|line| format!("- {line}"));
        added.chain(removed).collect()
    }
}

/// Adds the processes that run one of the node's programs.
fn processes(bin: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for path in entries(Path::new("/proc"))? {
        // Kernel threads and processes that have just ended have no `exe`.
        let Ok(program) = fs::read_link(path.join("exe")) else { continue };
        if program.starts_with(bin) {
            found.insert(format!("process {} of {}", path.display(), program.display()));
        }
    }
    Ok(())
}

/// Whether a line of `/proc/self/mounts` is about the state directory or about a mount point of the node: one of its own
/// directories, a path that components write to, or a sysctl.
fn is_mount(line: &str, paths: &ClusterPaths) -> bool {
    if line.contains(&*paths.state().to_string_lossy()) {
        return true;
    }
    let Some(point) = line.split_whitespace().nth(1) else { return false };
    if point.starts_with("/run/netns/cni-") {
        return true;
    }
    let point = Path::new(point);
    NODE_DIRECTORIES.iter().any(|directory| point == Path::new("/").join(directory))
        || point.starts_with("/proc/sys")
        || FILES.iter().any(|(path, _)| point.starts_with(path))
}

fn is_interface(name: &str, paths: &ClusterPaths) -> bool {
    name == paths.interface() || name == BRIDGE
}

/// Whether a line of `/proc/net/fib_trie` is about the subnet of the veth pair to the node.
fn is_address(line: &str, paths: &ClusterPaths) -> bool {
    let (host, node) = paths.link();
    let [a, b, c, d] = host.octets();
    let network = [a, b, c, d - 1];
    let broadcast = [a, b, c, d + 2];
    let ours = [network.into(), host, node, broadcast.into()].map(|address| address.to_string());
    let shown = line.split_whitespace().nth(1).and_then(|word| word.split('/').next());
    shown.is_some_and(|address| ours.iter().any(|own| own == address))
}

/// Adds the cluster's cgroups, those that its components create by default, and all below them.
fn cgroups(hierarchy: &Path, cgroup: &Path, paths: &ClusterPaths, found: &mut BTreeSet<String>) -> Result<()> {
    for path in entries(cgroup)?.into_iter().filter(|path| path.is_dir()) {
        if path.strip_prefix(hierarchy).is_ok_and(|path| is_cgroup(path, paths)) {
            found.insert(format!("cgroup {}", path.display()));
        }
        cgroups(hierarchy, &path, paths, found)?;
    }
    Ok(())
}

fn is_cgroup(path: &Path, paths: &ClusterPaths) -> bool {
    path.components().any(|part| match part {
        Component::Normal(name) => {
            let name = name.to_string_lossy();
            name == paths.cgroup() || CGROUPS.iter().any(|ours| name.starts_with(ours))
        }
        _ => false,
    })
}

fn list(path: &Path, depth: usize, found: &mut BTreeSet<String>) -> Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.with_context(|| format!("stat {}", path.display()))?,
    };
    found.insert(format!("file {}", path.display()));
    if depth > 0 && path.is_dir() && !path.is_symlink() {
        for path in entries(path)? {
            list(&path, depth - 1, found)?;
        }
    }
    Ok(())
}

/// The paths in a directory; none if the directory does not exist.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("read {}", directory.display())),
    };
    entries.map(|entry| Ok(entry.with_context(|| format!("read {}", directory.display()))?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_and_removed_entries_are_reported() {
        let snapshot = |lines: &[&str]| HostSnapshot(lines.iter().map(|line| (*line).to_owned()).collect());
        let before = snapshot(&["a", "b"]);
        let after = snapshot(&["b", "c"]);
        assert_eq!(after.changes_since(&before), ["+ c", "- a"]);
        assert!(before.changes_since(&before).is_empty());
    }

    fn paths() -> ClusterPaths {
        ClusterPaths::at(Path::new("/s/cluster"), Path::new("/s")).unwrap()
    }

    #[test]
    fn unrelated_mounts_are_ignored() {
        for line in [
            "overlay /var/lib/kubelet/pods/1/volumes tmpfs rw 0 0",
            "/dev/vda /etc ext4 rw 0 0",
            "/dev/vda /proc/sys/kernel/panic ext4 rw 0 0",
            "/dev/vda /s/cluster/hold ext4 rw 0 0",
            "shm /run/containerd/io.containerd.grpc.v1.cri/sandboxes/1/shm tmpfs rw 0 0",
        ] {
            assert!(is_mount(line, &paths()), "{line}");
        }
        for line in [
            "tmpfs /run/user/1000 tmpfs rw 0 0",
            "/dev/loop3 /snap/core/1 squashfs ro 0 0",
            "overlay /var/lib/docker/overlay2/1/merged overlay rw 0 0",
            "tmpfs /run/credentials/getty tmpfs ro 0 0",
        ] {
            assert!(!is_mount(line, &paths()), "{line}");
        }
    }

    #[test]
    fn unrelated_cgroups_are_ignored() {
        let own = format!("{}/kubepods/besteffort", paths().cgroup());
        for path in [&own, "kubepods.slice/pod1", "system.slice/containerd.service/kubepods-besteffort", "k8s.io/1"] {
            assert!(is_cgroup(Path::new(path), &paths()), "{path}");
        }
        for path in ["user.slice/user-1000.slice/session-3.scope", "system.slice/apt-daily.service", "docker/1"] {
            assert!(!is_cgroup(Path::new(path), &paths()), "{path}");
        }
    }

    #[test]
    fn unrelated_addresses_are_ignored() {
        let (host, node) = paths().link();
        let trie = format!("        +-- {host}/30 2 0 2\n           |-- {node}\n");
        assert!(trie.lines().all(|line| is_address(line, &paths())), "{trie}");
        for line in ["           |-- 172.17.0.1", "  +-- 0.0.0.0/0 3 0 5", "Main:", "              /32 host LOCAL"] {
            assert!(!is_address(line, &paths()), "{line}");
        }
        assert!(is_interface(&paths().interface(), &paths()) && !is_interface("veth12ab34c", &paths()));
    }

    #[test]
    fn the_state_directory_is_reported() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: a snapshot needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let paths = ClusterPaths::at(&directory.path().join("state"), &directory.path().join("cache")).unwrap();
        let before = HostSnapshot::take(&paths).unwrap();
        fs::create_dir(paths.state()).unwrap();
        let changes = HostSnapshot::take(&paths).unwrap().changes_since(&before);
        assert!(changes.contains(&format!("+ file {}", paths.state().display())), "{changes:?}");
    }
}
