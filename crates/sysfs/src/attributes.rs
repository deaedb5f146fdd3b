//! Standard device attributes (`resource.kubernetes.io/…`), read from sysfs.
//!
//! Every driver for PCI devices should publish the same three: the address, the root complex and the NUMA node. Claims
//! match devices of different drivers by them, so all drivers must use the same format. An unknown value is omitted, never
//! guessed.
//!
//! ```no_run
//! use drakkar_sysfs::attributes::{NumaForm, PciAddress, StandardAttributes};
//!
//! let address: PciAddress = "0000:65:00.0".parse()?;
//! let attributes = StandardAttributes::default().pci_attributes(&address, NumaForm::Number)?;
//! assert_eq!(attributes["resource.kubernetes.io/pciBusID"].to_string(), "0000:65:00.0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The functions block while they read a few small files of the kernel.

mod numa;
mod pci;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use drakkar_metadata::DeviceAttribute;
pub use drakkar_metadata::PciAddress;
pub use drakkar_metadata::well_known::{NUMA_NODE, PCIE_ROOT};

pub use self::numa::NumaForm;
use crate::pci::MAX_NUMA_NODE;

/// The name of the attribute for a device's PCI address.
pub const PCI_BUS_ID: &str = drakkar_metadata::well_known::PCI_BUS_ID[0];

/// The limit for reading a file. All files that are read are smaller.
const MAX_FILE: u64 = 64 * 1024;

/// A failure to determine an attribute.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// A file or link could not be read.
    #[error("read {}: {source}", .path.display())]
    Read {
        /// The file or link.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// A file has unexpected content.
    #[error("{} has {text:?}, which is not {expected}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The content.
        text: String,
        /// The expected content.
        expected: &'static str,
    },
    /// The link of a PCI device does not point to a device below a PCI root.
    #[error("{} points to {}, which is not below a PCI root of {}", .path.display(), .target.display(), .root.display())]
    NotBelowRoot {
        /// The link.
        path: PathBuf,
        /// The target of the link.
        target: PathBuf,
        /// The directory of all devices.
        root: PathBuf,
    },
    /// The device belongs to no NUMA node. Omit the attribute.
    #[error("{}: the device belongs to no NUMA node", .path.display())]
    NoNumaNode {
        /// The file with the node.
        path: PathBuf,
    },
    /// The number is not that of a NUMA node.
    #[error("{node} is not a NUMA node: they are numbered from 0 to {MAX_NUMA_NODE}")]
    InvalidNumaNode {
        /// The number.
        node: i64,
    },
    /// The directory of a CPU has no link to its NUMA node.
    #[error("{}: there is no link to a NUMA node", .path.display())]
    NoNodeOfCpu {
        /// The directory of the CPU.
        path: PathBuf,
    },
}

/// The standard attributes in a sysfs tree, by default `/sys`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandardAttributes {
    root: PathBuf,
}

impl Default for StandardAttributes {
    /// Uses `/sys`.
    fn default() -> Self {
        Self::at("/sys")
    }
}

impl StandardAttributes {
    /// Uses a sysfs that is mounted elsewhere, or a directory of a test.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns all standard attributes of a PCI device by name. The NUMA node is omitted if the device belongs to none.
    pub fn pci_attributes(
        &self,
        address: &PciAddress,
        form: NumaForm,
    ) -> Result<BTreeMap<String, DeviceAttribute>, AttributeError> {
        let mut attributes = BTreeMap::new();
        attributes.insert(PCI_BUS_ID.to_owned(), address.attribute());
        attributes.insert(PCIE_ROOT.to_owned(), self.pcie_root(address)?);
        match self.numa_node(address, form) {
            Ok(node) => drop(attributes.insert(NUMA_NODE.to_owned(), node)),
            Err(AttributeError::NoNumaNode { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(attributes)
    }

    fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }
}

/// Reads a file and trims its content.
fn read(path: &Path) -> Result<String, AttributeError> {
    let text = || {
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(std::fs::File::open(path)?, MAX_FILE), &mut text)?;
        Ok(text.trim().to_owned())
    };
    text().map_err(|source| AttributeError::Read { path: path.to_owned(), source })
}
