//! The record of a claim: what it has, what was changed for it, and what that was before.

use drakkar_driver_kit::journal::{ClaimRecord, seal, unseal};
use drakkar_driver_kit::serde_text;
use drakkar_metadata::name::{ClaimName, ClaimUid, Namespace};
use drakkar_plugin::ClaimRef;
use drakkar_sysfs::{Binding, MdevParentName, PciAddress};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::mode::{IommuBackend, Mode};
use crate::target::Target;

const FORMAT: u32 = 1;

/// How far a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Phase {
    /// Changes may have begun. After a crash they are taken back.
    Preparing,
    /// Everything is done, and containers may use it.
    Prepared,
    /// Changes are being taken back. After a crash that goes on.
    Unpreparing,
}

/// The record of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) claim: ClaimRef,
    /// The boot of the machine during which it was written. The kernel's state is lost with the next.
    pub(crate) boot: String,
    pub(crate) phase: Phase,
    pub(crate) devices: Vec<DeviceRecord>,
    /// The functions whose driver is changed for it, those that others need as well included.
    pub(crate) functions: Vec<FunctionRecord>,
    /// The physical functions whose virtual functions it needs.
    pub(crate) physical_functions: Vec<PhysicalFunctionRecord>,
}

/// A device of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceRecord {
    #[serde(with = "target")]
    pub(crate) target: Target,
    pub(crate) mode: Mode,
    pub(crate) iommu_backend: IommuBackend,
    /// The function that it is, as soon as that is known: a virtual function is made first.
    #[serde(with = "serde_text::optional", default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<PciAddress>,
    /// The UUID of the mediated device that it is. For one that is made, it is chosen before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uuid: Option<String>,
    /// The answer to the claim, once it is prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prepared: Option<PreparedRecord>,
}

/// The answer to a claim about a device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedRecord {
    pub(crate) iommu_group: Option<u32>,
    pub(crate) driver: Option<String>,
    /// The device nodes, relative to `/dev`.
    pub(crate) nodes: Vec<String>,
    #[serde(with = "serde_text::list")]
    pub(crate) companions: Vec<PciAddress>,
}

/// A function whose driver is changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FunctionRecord {
    #[serde(with = "serde_text")]
    pub(crate) address: PciAddress,
    /// The ids of the device, to know it from another one that is plugged in at its place later.
    pub(crate) ids: String,
    /// The driver that it gets. `None`: the one that the kernel chooses.
    pub(crate) driver: Option<String>,
    pub(crate) former_driver: Option<String>,
    pub(crate) former_override: Option<String>,
}

impl FunctionRecord {
    pub(crate) fn former(&self) -> Binding {
        Binding { driver: self.former_driver.clone(), driver_override: self.former_override.clone() }
    }
}

/// A physical function whose number of virtual functions is changed, or needed as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PhysicalFunctionRecord {
    #[serde(with = "serde_text")]
    pub(crate) address: PciAddress,
    pub(crate) former_vfs: u16,
    pub(crate) num_vfs: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    format: u32,
    namespace: String,
    name: String,
    uid: String,
    boot: String,
    phase: Phase,
    devices: Vec<DeviceRecord>,
    functions: Vec<FunctionRecord>,
    physical_functions: Vec<PhysicalFunctionRecord>,
}

impl ClaimRecord for Record {
    fn claim(&self) -> &ClaimRef {
        &self.claim
    }

    fn encode(&self) -> Vec<u8> {
        let stored = Stored {
            format: FORMAT,
            namespace: self.claim.namespace.to_string(),
            name: self.claim.name.to_string(),
            uid: self.claim.uid.to_string(),
            boot: self.boot.clone(),
            phase: self.phase,
            devices: self.devices.clone(),
            functions: self.functions.clone(),
            physical_functions: self.physical_functions.clone(),
        };
        seal(&stored)
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let stored: Stored = unseal(bytes)?;
        if stored.format != FORMAT {
            return Err(format!("its format is {}, this program knows {FORMAT}", stored.format));
        }
        let claim = ClaimRef {
            namespace: Namespace::new(stored.namespace).map_err(|error| error.to_string())?,
            name: ClaimName::new(stored.name).map_err(|error| error.to_string())?,
            uid: ClaimUid::new(stored.uid).map_err(|error| error.to_string())?,
        };
        Ok(Self {
            claim,
            boot: stored.boot,
            phase: stored.phase,
            devices: stored.devices,
            functions: stored.functions,
            physical_functions: stored.physical_functions,
        })
    }
}

impl Record {
    /// Returns the mediated devices that are made for the claim.
    pub(crate) fn made_mdevs(&self) -> impl Iterator<Item = (&MdevParentName, &str, &str)> {
        self.devices.iter().filter_map(|device| match (&device.target, &device.uuid) {
            (Target::NewMdev { parent, type_id, .. }, Some(uuid)) => Some((parent, type_id.as_str(), uuid.as_str())),
            _ => None,
        })
    }
}

/// What a device stands for.
mod target {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", tag = "kind")]
    enum Stored {
        #[serde(rename_all = "camelCase")]
        Function { address: String },
        #[serde(rename_all = "camelCase")]
        VirtualFunction { physical: String, index: u16 },
        #[serde(rename_all = "camelCase")]
        NewMdev { parent: String, type_id: String, slot: u32 },
        #[serde(rename_all = "camelCase")]
        Mdev { uuid: String },
    }

    pub(super) fn serialize<S: Serializer>(target: &Target, to: S) -> Result<S::Ok, S::Error> {
        match target.clone() {
            Target::Function(address) => Stored::Function { address: address.to_string() },
            Target::VirtualFunction { physical, index } => {
                Stored::VirtualFunction { physical: physical.to_string(), index }
            }
            Target::NewMdev { parent, type_id, slot } => Stored::NewMdev { parent: parent.to_string(), type_id, slot },
            Target::Mdev { uuid } => Stored::Mdev { uuid },
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Target, D::Error> {
        Ok(match Stored::deserialize(from)? {
            Stored::Function { address } => Target::Function(address.parse().map_err(D::Error::custom)?),
            Stored::VirtualFunction { physical, index } => {
                Target::VirtualFunction { physical: physical.parse().map_err(D::Error::custom)?, index }
            }
            Stored::NewMdev { parent, type_id, slot } => {
                let parent = match parent.parse() {
                    Ok(address) => MdevParentName::Pci(address),
                    Err(_) => MdevParentName::Other(parent),
                };
                Target::NewMdev { parent, type_id, slot }
            }
            Stored::Mdev { uuid } => Target::Mdev { uuid },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let device = |target, address: Option<&str>, uuid: Option<&str>| DeviceRecord {
            target,
            mode: Mode::Vfio,
            iommu_backend: IommuBackend::Auto,
            address: address.map(|address| address.parse().unwrap()),
            uuid: uuid.map(str::to_owned),
            prepared: Some(PreparedRecord {
                iommu_group: Some(12),
                driver: Some("vfio-pci".into()),
                nodes: vec!["vfio/12".into()],
                companions: vec!["0000:65:00.1".parse().unwrap()],
            }),
        };
        let address = "0000:65:00.0".parse().unwrap();
        let pci = MdevParentName::Pci(address);
        let mtty = MdevParentName::Other("mtty".into());
        Record {
            claim: ClaimRef {
                namespace: "default".parse().unwrap(),
                name: "train".parse().unwrap(),
                uid: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".parse().unwrap(),
            },
            boot: "boot".into(),
            phase: Phase::Preparing,
            devices: vec![
                device(Target::Function(address), Some("0000:65:00.0"), None),
                device(Target::VirtualFunction { physical: address, index: 3 }, Some("0000:65:10.3"), None),
                device(Target::NewMdev { parent: pci, type_id: "nvidia-1".into(), slot: 2 }, None, Some("some uuid")),
                device(Target::NewMdev { parent: mtty, type_id: "mtty-1".into(), slot: 0 }, None, Some("another")),
                device(Target::Mdev { uuid: "third".into() }, None, Some("third")),
            ],
            functions: vec![FunctionRecord {
                address,
                ids: "10de:2331".into(),
                driver: Some("vfio-pci".into()),
                former_driver: Some("nvidia".into()),
                former_override: None,
            }],
            physical_functions: vec![PhysicalFunctionRecord { address, former_vfs: 0, num_vfs: 8 }],
        }
    }

    #[test]
    fn a_record_survives_a_round_trip() {
        assert_eq!(Record::decode(&record().encode()), Ok(record()));
    }

    #[test]
    fn a_truncated_or_changed_record_is_rejected() {
        let bytes = record().encode();
        for end in 0..bytes.len() {
            assert!(Record::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            assert!(Record::decode(&changed).is_err(), "changed at {position}");
        }
    }
}
