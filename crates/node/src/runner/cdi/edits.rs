//! The edits of a container: its own, and those of devices, applied as the runtimes do it.
//!
//! | edit | how it is applied |
//! |---|---|
//! | `env` | replaces the variable of that name in its position, or is appended |
//! | `deviceNodes` | replaces the node of that path; missing fields are taken from the host's node |
//! | `mounts` | replaces the mount of that path; then all are sorted by their depth |
//! | `hooks`, `netDevices`, `additionalGids` | are appended, except group 0 |
//! | `intelRdt` | the last one wins |

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use drakkar_cdi::{ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice};

use super::SpecProblem;

/// What distinguishes a container from an empty one. [`Display`](fmt::Display) lists it for humans.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edits {
    /// The complete environment.
    pub env: Vec<(String, String)>,
    /// Device nodes.
    pub device_nodes: Vec<Node>,
    /// Mounts, in the order in which they are mounted.
    pub mounts: Vec<Mount>,
    /// Hooks, in the order of the devices.
    pub hooks: Vec<Hook>,
    /// Network interfaces to move.
    pub net_devices: Vec<NetDevice>,
    /// Supplementary groups.
    pub additional_gids: Vec<u32>,
    /// Intel Resource Director Technology.
    pub intel_rdt: Option<IntelRdt>,
}

/// A device node with all fields that are needed to create it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The path in the container.
    pub path: String,
    /// The path on the host, where the node need not exist.
    pub host_path: String,
    /// `b`, `c`, `u` or `p`.
    pub kind: char,
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// The access of the container: some of `rwm`.
    pub permissions: String,
    /// The owner, if specified.
    pub uid: Option<u32>,
    /// The group, if specified.
    pub gid: Option<u32>,
}

/// Why devices cannot be injected. Runtimes fail the creation of the container, and the kubelet retries.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InjectError {
    /// No spec has the devices, or two specs of one directory have them.
    #[error("unresolvable CDI devices {}{}", .devices.join(", "), ProblemList(.problems))]
    Unresolvable {
        /// The names of the devices.
        devices: Vec<String>,
        /// Problems in the spec directories, one of which is likely the reason.
        problems: Vec<SpecProblem>,
    },
    /// The host's device node cannot be read.
    #[error("failed to inject devices: failed to stat CDI host device {path:?}: {source}")]
    HostDevice {
        /// The path on the host.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The file on the host is not a device, or not of the type in the spec.
    #[error("failed to inject devices: CDI device {path:?} must be of type {expected:?} but {host_path:?} is {found}")]
    Kind {
        /// The path in the container.
        path: String,
        /// The path on the host.
        host_path: String,
        /// The type in the spec, empty for any.
        expected: String,
        /// The type on the host.
        found: String,
    },
    /// A device number is out of range.
    #[error("failed to inject devices: CDI device {path:?}: {number} is not a device number")]
    Number {
        /// The path in the container.
        path: String,
        /// The number.
        number: i64,
    },
}

struct ProblemList<'a>(&'a [SpecProblem]);

impl fmt::Display for ProblemList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { " (also: " } else { "; " })?;
        }
        f.write_str(if self.0.is_empty() { "" } else { ")" })
    }
}

impl Edits {
    /// Sets a variable, in its position if it is already set.
    pub fn set_env(&mut self, name: &str, value: &str) {
        match self.env.iter_mut().find(|(old, _)| old == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.env.push((name.to_owned(), value.to_owned())),
        }
    }

    /// Adds a mount, and removes an earlier one at the same path.
    pub fn add_mount(&mut self, mount: Mount) {
        self.mounts.retain(|old| old.container_path != mount.container_path);
        self.mounts.push(mount);
    }

    pub(super) fn apply(&mut self, all: &[&ContainerEdits]) -> Result<(), InjectError> {
        for text in all.iter().flat_map(|edits| &edits.env) {
            // Loading has checked that there is a `=`.
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            self.set_env(name, value);
        }
        for node in all.iter().flat_map(|edits| &edits.device_nodes) {
            let node = Node::complete(node)?;
            self.device_nodes.retain(|old| old.path != node.path);
            self.device_nodes.push(node);
        }
        for edits in all {
            edits.mounts.iter().for_each(|mount| self.add_mount(mount.clone()));
            self.hooks.extend_from_slice(&edits.hooks);
            self.net_devices.extend_from_slice(&edits.net_devices);
            self.intel_rdt = edits.intel_rdt.clone().or(self.intel_rdt.take());
            for gid in edits.additional_gids.iter().filter(|gid| **gid != 0) {
                if !self.additional_gids.contains(gid) {
                    self.additional_gids.push(*gid);
                }
            }
        }
        self.sort_mounts();
        Ok(())
    }

    /// Sorts mounts by their depth.
    pub(crate) fn sort_mounts(&mut self) {
        self.mounts.sort_by_key(|mount| depth(&mount.container_path));
    }
}

/// Returns the number of components of a path, after it is cleaned.
fn depth(path: &str) -> usize {
    path.split('/').fold(0, |depth: usize, part| match part {
        "" | "." => depth,
        ".." => depth.saturating_sub(1),
        _ => depth + 1,
    })
}

impl Node {
    fn complete(node: &DeviceNode) -> Result<Self, InjectError> {
        let host_path = if node.host_path.is_empty() { &node.path } else { &node.host_path };
        let enough = !node.node_type.is_empty() && (node.major != 0 || node.node_type == "p");
        let number = |number: i64| {
            u32::try_from(number).map_err(|_large| InjectError::Number { path: node.path.clone(), number })
        };
        let mut major = number(node.major)?;
        let mut minor = number(node.minor)?;
        let mut kind = node.node_type.chars().next();
        if !enough {
            let stat = |source| InjectError::HostDevice { path: host_path.clone(), source };
            // The runtimes do not follow a symbolic link to a device.
            let status = fs::symlink_metadata(host_path).map_err(stat)?;
            let found = match status.file_type() {
                found if found.is_block_device() => "b",
                found if found.is_char_device() => "c",
                found if found.is_fifo() => "p",
                _ => "not a device",
            };
            if found == "not a device" || !(node.node_type.is_empty() || node.node_type == found) {
                return Err(InjectError::Kind {
                    path: node.path.clone(),
                    host_path: host_path.clone(),
                    expected: node.node_type.clone(),
                    found: found.to_owned(),
                });
            }
            kind = found.chars().next();
            if major == 0 && found != "p" {
                major = rustix::fs::major(status.rdev());
                minor = rustix::fs::minor(status.rdev());
            }
        }
        let permissions = if node.permissions.is_empty() { "rwm" } else { &node.permissions };
        Ok(Self {
            path: node.path.clone(),
            host_path: host_path.clone(),
            kind: kind.unwrap_or('c'),
            major,
            minor,
            mode: node.file_mode.unwrap_or(0o666) & 0o7777,
            permissions: permissions.to_owned(),
            uid: node.uid,
            gid: node.gid,
        })
    }
}

impl fmt::Display for Edits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            writeln!(f, "env     {name}={value}")?;
        }
        for Node { path, host_path, kind, major, minor, permissions, .. } in &self.device_nodes {
            write!(f, "device  {path} {kind} {major}:{minor} {permissions}")?;
            writeln!(
                f,
                "{}{}",
                if path == host_path { "" } else { " from " },
                if path == host_path { "" } else { host_path }
            )?;
        }
        for Mount { host_path, container_path, options, fs_type } in &self.mounts {
            let kind = if fs_type.is_empty() { String::new() } else { format!(" type {fs_type}") };
            writeln!(f, "mount   {host_path} at {container_path}{kind} ({})", options.join(","))?;
        }
        for NetDevice { host_interface_name, name } in &self.net_devices {
            writeln!(f, "network {host_interface_name} as {name}")?;
        }
        for Hook { hook_name, path, args, .. } in &self.hooks {
            writeln!(f, "hook    {hook_name}: {path} {}", args.get(1..).unwrap_or_default().join(" "))?;
        }
        for gid in &self.additional_gids {
            writeln!(f, "group   {gid}")?;
        }
        if let Some(rdt) = &self.intel_rdt {
            writeln!(f, "rdt     {}", rdt.clos_id)?;
        }
        Ok(())
    }
}
