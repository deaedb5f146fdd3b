//! The devices of a request, and the attributes that KubeVirt uses.

use drakkar_metadata::Device;
use drakkar_metadata::well_known::{MDEV_UUID, NUMA_NODE, PCI_BUS_ID, PCIE_ROOT};

/// The names under which the attributes of a device are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AttributeNames {
    /// Only the names that KubeVirt reads: `resource.kubernetes.io/pciBusID` and `mdevUUID`.
    #[default]
    Canonical,
    /// Also the spellings of the design documents: `resources.kubernetes.io/pciBusID`, `resource.k8s.io/pciBusID` and
    /// `mDevUUID`. The canonical name takes precedence.
    Lenient,
}

/// The number of spellings of the PCI address in the design documents, the canonical one included.
const LENIENT_PCI_NAMES: usize = 3;
/// The number of spellings of the mdev UUID in the design documents, the canonical one included.
const LENIENT_MDEV_NAMES: usize = 2;

impl AttributeNames {
    fn pci(self) -> &'static [&'static str] {
        self.of(PCI_BUS_ID, LENIENT_PCI_NAMES)
    }

    fn mdev(self) -> &'static [&'static str] {
        self.of(MDEV_UUID, LENIENT_MDEV_NAMES)
    }

    fn of(self, names: &'static [&'static str], lenient: usize) -> &'static [&'static str] {
        let count = match self {
            Self::Canonical => 1,
            Self::Lenient => lenient,
        };
        names.get(..count).unwrap_or(names)
    }
}

/// A device of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedDevice {
    /// The request as in the metadata: with the subrequest where the claim lists alternatives.
    pub request: String,
    /// The driver of the device.
    pub driver: String,
    /// The pool of the device.
    pub pool: String,
    /// The name of the device in its pool.
    pub name: String,
    /// The PCI address as in the metadata, not checked yet.
    pub pci_bus_id: Option<String>,
    /// The UUID of a mediated device as in the metadata, not checked yet.
    pub mdev_uuid: Option<String>,
    /// The NUMA node of the host.
    pub numa_node: Option<u32>,
    /// The PCIe root complex of the host.
    pub pcie_root: Option<String>,
    /// The names of all attributes of the device.
    pub attribute_names: Vec<String>,
}

impl ResolvedDevice {
    pub(super) fn new(request: &str, device: &Device, names: AttributeNames) -> Self {
        let first = |names: &[&str]| {
            let value = names.iter().find_map(|name| device.attributes.get(*name)?.as_non_empty_str());
            value.map(str::to_owned)
        };
        Self {
            request: request.to_owned(),
            driver: device.driver.clone(),
            pool: device.pool.clone(),
            name: device.name.clone(),
            pci_bus_id: first(names.pci()),
            mdev_uuid: first(names.mdev()),
            numa_node: device.attributes.get(NUMA_NODE).and_then(|attribute| {
                let node = attribute.int.or_else(|| attribute.ints.first().copied())?;
                u32::try_from(node).ok()
            }),
            pcie_root: first(&[PCIE_ROOT]),
            attribute_names: device.attributes.keys().cloned().collect(),
        }
    }

    /// Returns the device as `driver/pool/name`.
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.driver, self.pool, self.name)
    }

    /// Returns a spelling of the PCI address that the device has, and KubeVirt does not read.
    pub(super) fn misspelt_pci(&self) -> Option<String> {
        self.misspelt(PCI_BUS_ID)
    }

    /// Returns a spelling of the mdev UUID that the device has, and KubeVirt does not read.
    pub(super) fn misspelt_mdev(&self) -> Option<String> {
        self.misspelt(MDEV_UUID)
    }

    fn misspelt(&self, names: &[&str]) -> Option<String> {
        let others = names.get(1..).unwrap_or_default();
        self.attribute_names.iter().find(|name| others.contains(&name.as_str())).cloned()
    }
}
