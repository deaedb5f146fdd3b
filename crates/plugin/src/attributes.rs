//! Standard device attributes (`resource.kubernetes.io/…`), read from sysfs.
//!
//! Every driver for PCI devices should publish the same three: the address, the root complex and the NUMA node. Claims
//! match devices of different drivers by them, so all drivers must use the same format. An unknown value is omitted, never
//! guessed.
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
//! The functions block while they read a few small files of the kernel. They are those of `drakkar_sysfs::attributes`.

#[doc(inline)]
pub use drakkar_sysfs::attributes::{
    AttributeError, NUMA_NODE, NumaForm, PCI_BUS_ID, PCIE_ROOT, PciAddress, StandardAttributes as Sysfs,
};
