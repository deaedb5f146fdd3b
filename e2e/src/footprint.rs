//! What a cluster could leave on the machine: taken before and after, the two must be equal.
//!
//! A machine is never quiet: others mount, start and end things meanwhile. So only that counts which has a path, a name or
//! an address of a cluster's, as it would have if something of the node came to be outside of its namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::cgroup;
use crate::error::{Doing, Result};
use crate::place::{OWN, Place};

/// Where components have their files on ordinary nodes, with the depth to which they are looked at.
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

/// The bridge of the pods, which is in the node's network alone.
const BRIDGE: &str = "pods";

/// Cgroups that a kubelet and containerd make where they are not told of another: below these.
const CGROUPS: [&str; 3] = ["k8s.io", "kubelet", "kubepods"];

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

/// Whether a line of a table of the kernel is about what is a cluster's.
type IsOurs<'a> = &'a dyn Fn(&str) -> bool;

/// A list of all that is there of a cluster's kind: mounts, interfaces, addresses, sockets, cgroups, settings, files, and
/// processes of the node's programs.
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
        let tables: [(&str, IsOurs<'_>); 4] = [
            ("/proc/self/mounts", &|line| is_mount(line, place)),
            ("/proc/net/route", &|line| line.split_whitespace().next().is_some_and(|name| is_interface(name, place))),
            ("/proc/net/fib_trie", &|line| is_address(line, place)),
            ("/proc/net/unix", &|line| line.contains(&*place.state().to_string_lossy())),
        ];
        for (table, is_ours) in tables {
            let text = fs::read_to_string(table).doing(|| format!("read {table}"))?;
            found.extend(text.lines().filter(|line| is_ours(line)).map(|line| format!("{table} {}", line.trim())));
        }
        for path in entries(Path::new("/sys/class/net"))? {
            if path.file_name().is_some_and(|name| is_interface(&name.to_string_lossy(), place)) {
                found.insert(format!("interface {}", path.display()));
            }
        }
        for hierarchy in cgroup::hierarchies()? {
            cgroups(&hierarchy, &hierarchy, place, &mut found)?;
        }
        for setting in SETTINGS {
            let path = Path::new("/proc/sys").join(setting);
            if path.exists() {
                let value = fs::read_to_string(&path).doing(|| format!("read {}", path.display()))?;
                found.insert(format!("setting {setting} = {}", value.trim()));
            }
        }
        for (path, depth) in FILES {
            list(Path::new(path), depth, &mut found)?;
        }
        // Namespaces of pods' networks.
        for path in entries(Path::new("/run/netns"))? {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cni-")) {
                found.insert(format!("file {}", path.display()));
            }
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

/// Whether a line of the table of mounts is about the cluster's directory, or about a place where the node mounts: one
/// that it has its own of, one that is written by components, or a setting.
fn is_mount(line: &str, place: &Place) -> bool {
    if line.contains(&*place.state().to_string_lossy()) {
        return true;
    }
    let Some(point) = line.split_whitespace().nth(1) else { return false };
    if point.starts_with("/run/netns/cni-") {
        return true;
    }
    let point = Path::new(point);
    OWN.iter().any(|own| point == Path::new("/").join(own))
        || point.starts_with("/proc/sys")
        || FILES.iter().any(|(path, _)| point.starts_with(path))
}

fn is_interface(name: &str, place: &Place) -> bool {
    name == place.interface() || name == BRIDGE
}

/// Whether a line of the routing trie is about the link to the node.
fn is_address(line: &str, place: &Place) -> bool {
    let (machine, node) = place.link();
    let [a, b, c, d] = machine.octets();
    let (network, broadcast) = ([a, b, c, d - 1], [a, b, c, d + 2]);
    let ours = [network.into(), machine, node, broadcast.into()].map(|address| address.to_string());
    let shown = line.split_whitespace().nth(1).and_then(|word| word.split('/').next());
    shown.is_some_and(|address| ours.iter().any(|own| own == address))
}

/// The cgroups of the cluster, those that its components would make elsewhere, and all below them.
fn cgroups(hierarchy: &Path, cgroup: &Path, place: &Place, found: &mut BTreeSet<String>) -> Result<()> {
    for path in entries(cgroup)?.into_iter().filter(|path| path.is_dir()) {
        if path.strip_prefix(hierarchy).is_ok_and(|path| is_cgroup(path, place)) {
            found.insert(format!("cgroup {}", path.display()));
        }
        cgroups(hierarchy, &path, place, found)?;
    }
    Ok(())
}

fn is_cgroup(path: &Path, place: &Place) -> bool {
    path.components().any(|part| match part {
        Component::Normal(name) => {
            let name = name.to_string_lossy();
            name == place.cgroup() || CGROUPS.iter().any(|ours| name.starts_with(ours))
        }
        _ => false,
    })
}

fn list(path: &Path, depth: usize, found: &mut BTreeSet<String>) -> Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.doing(|| format!("look at {}", path.display()))?,
    };
    found.insert(format!("file {}", path.display()));
    if depth > 0 && path.is_dir() && !path.is_symlink() {
        for path in entries(path)? {
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

    fn place() -> Place {
        Place::at(Path::new("/s/cluster"), Path::new("/s")).unwrap()
    }

    #[test]
    fn mounts_of_others_do_not_count() {
        for line in [
            "overlay /var/lib/kubelet/pods/1/volumes tmpfs rw 0 0",
            "/dev/vda /etc ext4 rw 0 0",
            "/dev/vda /proc/sys/kernel/panic ext4 rw 0 0",
            "/dev/vda /s/cluster/hold ext4 rw 0 0",
            "shm /run/containerd/io.containerd.grpc.v1.cri/sandboxes/1/shm tmpfs rw 0 0",
        ] {
            assert!(is_mount(line, &place()), "{line}");
        }
        for line in [
            "tmpfs /run/user/1000 tmpfs rw 0 0",
            "/dev/loop3 /snap/core/1 squashfs ro 0 0",
            "overlay /var/lib/docker/overlay2/1/merged overlay rw 0 0",
            "tmpfs /run/credentials/getty tmpfs ro 0 0",
        ] {
            assert!(!is_mount(line, &place()), "{line}");
        }
    }

    #[test]
    fn cgroups_of_others_do_not_count() {
        let own = format!("{}/kubepods/besteffort", place().cgroup());
        for path in [&own, "kubepods.slice/pod1", "system.slice/containerd.service/kubepods-besteffort", "k8s.io/1"] {
            assert!(is_cgroup(Path::new(path), &place()), "{path}");
        }
        for path in ["user.slice/user-1000.slice/session-3.scope", "system.slice/apt-daily.service", "docker/1"] {
            assert!(!is_cgroup(Path::new(path), &place()), "{path}");
        }
    }

    #[test]
    fn addresses_of_others_do_not_count() {
        let (machine, node) = place().link();
        let trie = format!("        +-- {machine}/30 2 0 2\n           |-- {node}\n");
        assert!(trie.lines().all(|line| is_address(line, &place())), "{trie}");
        for line in ["           |-- 172.17.0.1", "  +-- 0.0.0.0/0 3 0 5", "Main:", "              /32 host LOCAL"] {
            assert!(!is_address(line, &place()), "{line}");
        }
        assert!(is_interface(&place().interface(), &place()) && !is_interface("veth12ab34c", &place()));
    }

    #[test]
    fn a_directory_of_the_cluster_is_seen() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root may look into all of them");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let place = Place::at(&directory.path().join("state"), &directory.path().join("cache")).unwrap();
        let before = Footprint::take(&place).unwrap();
        fs::create_dir(place.state()).unwrap();
        let changes = Footprint::take(&place).unwrap().since(&before);
        assert!(changes.contains(&format!("+ file {}", place.state().display())), "{changes:?}");
    }
}
