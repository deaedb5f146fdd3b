//! The device nodes of a device: those of VFIO, or those that its kernel driver has made.

use std::io;
use std::path::{Path, PathBuf};

use drakkar_sysfs::Sysfs;

use crate::mode::IommuBackend;

/// The directories below a PCI device in which kernel drivers have devices with nodes for programs. Others are left out on
/// purpose: a graphics card also has the I²C buses of its monitors there.
const SUBSYSTEMS: [&str; 4] = ["accel", "drm", "infiniband_verbs", "nvme"];

/// A device node that should exist.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It does not exist.
    #[error(
        "there is no {}: {why}; the host's /dev must be visible to the driver", .path.display()
    )]
    Missing {
        /// The node.
        path: PathBuf,
        /// Why it should exist.
        why: String,
    },
    /// What the kernel says about it could not be read.
    #[error("read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Returns the nodes of a device that is bound to VFIO, relative to `/dev`: the group's, the device's own, or both.
pub(crate) fn vfio_nodes(
    sysfs: &Sysfs,
    device: &Path,
    group: Option<u32>,
    backend: IommuBackend,
) -> Result<Vec<String>, NodeError> {
    let dev = &sysfs.roots().dev;
    let missing = |node: &str, why: &str| NodeError::Missing { path: dev.join(node), why: why.to_owned() };
    let group = group.map_or_else(|| "vfio/(no IOMMU group)".to_owned(), |group| format!("vfio/{group}"));
    let legacy = [group, "vfio/vfio".to_owned()];
    let cdev = list(&device.join("vfio-dev"))?
        .into_iter()
        .find(|name| device.join("vfio-dev").join(name).join("dev").exists());
    let own = cdev.map(|cdev| [format!("vfio/devices/{cdev}"), "iommu".to_owned()]);
    let absent = |nodes: &[String; 2]| nodes.iter().find(|node| !dev.join(node).exists()).cloned();
    match backend {
        IommuBackend::Legacy => match absent(&legacy) {
            None => Ok(legacy.into()),
            Some(node) => Err(missing(&node, "the kernel makes it for groups that are bound to VFIO")),
        },
        IommuBackend::Iommufd => match own {
            None => Err(missing(
                "vfio/devices",
                "iommufd needs a kernel with CONFIG_VFIO_DEVICE_CDEV; use the backend legacy or auto",
            )),
            Some(own) => match absent(&own) {
                None => Ok(own.into()),
                Some(node) => {
                    Err(missing(&node, "iommufd needs it (`modprobe iommufd`); use the backend legacy or auto"))
                }
            },
        },
        IommuBackend::Auto => {
            let mut nodes: Vec<String> = own.into_iter().filter(|own| absent(own).is_none()).flatten().collect();
            match absent(&legacy) {
                None => nodes.extend(legacy),
                Some(node) if nodes.is_empty() => {
                    return Err(missing(&node, "the kernel makes it for groups that are bound to VFIO"));
                }
                Some(_) => {}
            }
            Ok(nodes)
        }
    }
}

/// Returns the nodes that a kernel driver has made for a device, relative to `/dev`.
pub(crate) fn kernel_nodes(sysfs: &Sysfs, device: &Path) -> Result<Vec<String>, NodeError> {
    let mut nodes = Vec::new();
    for subsystem in SUBSYSTEMS {
        let dir = device.join(subsystem);
        for name in list(&dir)? {
            let child = dir.join(&name);
            nodes.extend(node_of(&child, subsystem, &name));
            // An NVMe controller has its disks below it. Partitions are further down.
            if subsystem == "nvme" {
                let disks = list(&child)?.into_iter().filter(|disk| disk.starts_with("nvme"));
                nodes.extend(disks.filter_map(|disk| node_of(&child.join(&disk), subsystem, &disk)));
            }
        }
    }
    let missing = nodes.iter().map(|node| sysfs.roots().dev.join(node)).find(|path| !path.exists());
    match missing {
        None => Ok(nodes),
        Some(path) => Err(NodeError::Missing { path, why: "the device's driver has made it".to_owned() }),
    }
}

/// Returns the node of a directory in sysfs, if it has one: the kernel tells its name.
fn node_of(dir: &Path, subsystem: &str, name: &str) -> Option<String> {
    if !dir.join("dev").exists() {
        return None;
    }
    let uevent = std::fs::read_to_string(dir.join("uevent")).unwrap_or_default();
    let reported = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=")).map(str::to_owned);
    let is_safe = |node: &String| {
        !node.is_empty() && !node.starts_with('/') && !node.split('/').any(|part| matches!(part, "" | "." | ".."))
    };
    reported.filter(is_safe).or_else(|| match subsystem {
        "drm" => Some(format!("dri/{name}")),
        "accel" => Some(format!("accel/{name}")),
        "infiniband_verbs" => Some(format!("infiniband/{name}")),
        _ => Some(name.to_owned()),
    })
}

/// Returns the names in a directory in lexical order. A missing directory has none.
fn list(path: &Path) -> Result<Vec<String>, NodeError> {
    let read = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    };
    match read() {
        Ok(names) => Ok(names),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(NodeError::Read { path: path.to_owned(), source }),
    }
}
