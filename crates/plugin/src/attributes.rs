//! The standard attributes of devices (`resource.kubernetes.io/…`), found out from sysfs.
//!
//! Every driver of PCI devices owes its users the same three: the address, the root complex and the NUMA node. Claims
//! match devices of different drivers by them, so they have to be written alike. What is not known is left out, never guessed.
//!
//! ```no_run
//! use drakkar_plugin::attributes::{NumaForm, PciAddress, Sysfs};
//!
//! let address: PciAddress = "0000:65:00.0".parse()?;
//! let attributes = Sysfs::default().pci_attributes(&address, NumaForm::Number)?;
//! assert_eq!(attributes["resource.kubernetes.io/pciBusID"].to_string(), "0000:65:00.0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The functions read a few small files of the kernel, and block for as long as that takes.

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

/// The name of the attribute that has a device's PCI address.
pub const PCI_BUS_ID: &str = drakkar_metadata::well_known::PCI_BUS_ID[0];

/// The largest number of a NUMA node that there can be.
const MAX_NUMA_NODE: u32 = 1023;
/// More than any of the files that are read has.
const MAX_FILE: u64 = 64 * 1024;

/// Why an attribute cannot be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// The kernel does not tell.
    #[error("read {}: {source}", .path.display())]
    Read {
        /// The file or link.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A file does not say what it should.
    #[error("{} has {text:?}, which is not {expected}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
        /// What it should say.
        expected: &'static str,
    },
    /// The link of a PCI device does not lead to it.
    #[error("{} leads to {}, which is not below a PCI root of {}", .path.display(), .target.display(), .root.display())]
    NotBelowRoot {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
        /// Where it should.
        root: PathBuf,
    },
    /// The device belongs to no NUMA node. The attribute is to be left out.
    #[error("{}: the device belongs to no NUMA node", .path.display())]
    NoNumaNode {
        /// The file that says so.
        path: PathBuf,
    },
    /// No kernel has a node of that number.
    #[error("{node} is not a NUMA node: they are numbered from 0 to {MAX_NUMA_NODE}")]
    NumaNode {
        /// The number.
        node: i64,
    },
    /// The kernel does not say to which node a CPU belongs.
    #[error("{}: there is no link to a NUMA node", .path.display())]
    NoNodeOfCpu {
        /// The directory of the CPU.
        path: PathBuf,
    },
}

/// The kernel's view of the hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

/// `/sys`.
impl Default for Sysfs {
    fn default() -> Self {
        Self::at("/sys")
    }
}

impl Sysfs {
    /// A sysfs that is mounted elsewhere, or made up for a test.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// All standard attributes of a PCI device, by name. The NUMA node is left out if the device belongs to none.
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

    fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join(below)
    }
}

/// What a file says, without the end of its line.
fn read(path: &Path) -> Result<String, AttributeError> {
    let text = || {
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(std::fs::File::open(path)?, MAX_FILE), &mut text)?;
        Ok(text.trim().to_owned())
    };
    text().map_err(|source| AttributeError::Read { path: path.to_owned(), source })
}
