//! The record of a claim: which pods may use it, what each of its devices is to become, how far that is, and what it was before.
//!
//! The files are those of [`drakkar_driver_kit::journal`]. A record is written when the claim is prepared, before and after
//! each interface is attached, before it is brought back and after, and removed when the claim is unprepared. At any moment
//! the records name every interface that is not where it was.

use std::net::IpAddr;

use drakkar_driver_kit::journal::{ClaimRecord, seal, unseal};
use drakkar_metadata::name::{ClaimName, ClaimUid, Namespace};
use drakkar_plugin::ClaimRef;
use serde::{Deserialize, Serialize};

use crate::attach::{Attachment, InterfacePlan};
use crate::attacher::{PodInterface, Sandbox};
use crate::attributes::Attributes;
use crate::inventory::Identity;

const FORMAT: u32 = 1;

/// The journal of the driver.
pub(crate) type Journal = drakkar_driver_kit::journal::Journal<Record>;

/// The record of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) claim: ClaimRef,
    /// The boot of the machine during which it was written. The kernel's state is lost with the next.
    pub(crate) boot: String,
    /// The UIDs of the pods that the claim is reserved for.
    pub(crate) pods: Vec<String>,
    pub(crate) devices: Vec<DeviceRecord>,
}

/// A device of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceRecord {
    /// The request, as `request` or `request/subrequest`.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) share_id: Option<String>,
    /// How its interface is recognized by those who publish it.
    pub(crate) identity: Identity,
    /// Whether other claims can have it, too.
    pub(crate) is_shared: bool,
    /// What was known of it when it was prepared. It stays published with this while it is in a pod.
    pub(crate) facts: Attributes,
    /// What was published of it, for its metadata.
    pub(crate) attributes: Attributes,
    pub(crate) kind: DeviceKind,
}

/// What a device becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum DeviceKind {
    /// An interface in a pod.
    Interface(Box<InterfaceRecord>),
    /// A device for programs in user space, by its PCI address. What was done to it is in the records of who has bound it.
    Userspace {
        /// The PCI address.
        address: String,
    },
}

/// An interface of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InterfaceRecord {
    /// What it is to become.
    pub(crate) plan: InterfacePlan,
    pub(crate) phase: Phase,
    /// Whether it does not exist any more: the kernel deletes virtual interfaces with the pod's namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_lost: bool,
}

/// How far an interface is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Phase {
    /// Reserved, and on the host as it was.
    Prepared,
    /// Changes may have begun. After a crash they are taken back.
    Attaching(Place),
    /// In the pod.
    Attached {
        place: Place,
        /// As the kernel described it.
        interface: PodInterface,
        /// Whether the metadata file has it.
        is_published: bool,
    },
    /// Changes are being taken back. After a crash that goes on.
    Restoring(Place),
}

/// Where an interface is or may be, and what it was before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Place {
    pub(crate) sandbox: Sandbox,
    pub(crate) attachment: Attachment,
}

impl Phase {
    /// Returns where the interface is, or may be.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Prepared => None,
            Self::Attaching(place) | Self::Attached { place, .. } | Self::Restoring(place) => Some(place),
        }
    }

    /// Returns the sandbox in which the interface is, or may be.
    pub(crate) fn sandbox(&self) -> Option<&Sandbox> {
        self.place().map(|place| &place.sandbox)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    format: u32,
    namespace: String,
    name: String,
    uid: String,
    boot: String,
    pods: Vec<String>,
    devices: Vec<DeviceRecord>,
}

impl ClaimRecord for Record {
    fn claim(&self) -> &ClaimRef {
        &self.claim
    }

    fn encode(&self) -> Vec<u8> {
        seal(&Stored {
            format: FORMAT,
            namespace: self.claim.namespace.to_string(),
            name: self.claim.name.to_string(),
            uid: self.claim.uid.to_string(),
            boot: self.boot.clone(),
            pods: self.pods.clone(),
            devices: self.devices.clone(),
        })
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Stored { format, namespace, name, uid, boot, pods, devices } = unseal(bytes)?;
        if format != FORMAT {
            return Err(format!("its format is {format}, this program knows {FORMAT}"));
        }
        let claim = ClaimRef {
            namespace: Namespace::new(namespace).map_err(|error| error.to_string())?,
            name: ClaimName::new(name).map_err(|error| error.to_string())?,
            uid: ClaimUid::new(uid).map_err(|error| error.to_string())?,
        };
        Ok(Self { claim, boot, pods, devices })
    }
}

impl Record {
    /// Returns the interfaces of the claim.
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = &InterfaceRecord> {
        self.devices.iter().filter_map(DeviceRecord::interface)
    }

    /// Returns the addresses that the claim has reserved.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let plans = self.interfaces().map(|interface| &interface.plan);
        plans.flat_map(|plan| &plan.addresses).map(|address| address.address.addr())
    }

    /// Returns whether the claim is for a pod.
    pub(crate) fn is_for(&self, pod_uid: &str) -> bool {
        self.pods.iter().any(|uid| uid == pod_uid)
    }

    /// Returns whether an interface of the claim is, or may be, in a sandbox.
    pub(crate) fn is_in(&self, sandbox_id: &str) -> bool {
        let mut sandboxes = self.interfaces().filter_map(|interface| interface.phase.sandbox());
        sandboxes.any(|sandbox| sandbox.id == sandbox_id)
    }
}

impl DeviceRecord {
    /// Returns the interface, if the device has one.
    pub(crate) fn interface(&self) -> Option<&InterfaceRecord> {
        match &self.kind {
            DeviceKind::Interface(interface) => Some(interface),
            DeviceKind::Userspace { .. } => None,
        }
    }

    /// Returns the interface, if the device has one.
    pub(crate) fn interface_mut(&mut self) -> Option<&mut InterfaceRecord> {
        match &mut self.kind {
            DeviceKind::Interface(interface) => Some(interface),
            DeviceKind::Userspace { .. } => None,
        }
    }
}
