//! How the devices of a rule are handed to claims: moved, shared, or bound for programs in user space.

use std::fmt;

use serde::Deserialize;

use crate::claim_config::{Ipvlan, IpvlanMode, Macvlan, MacvlanMode};

/// The number of claims that share an interface, unless the rule has another.
const DEFAULT_MAX: u32 = 16;
/// The largest number of claims that share an interface.
const MAX: u32 = 4096;

/// How a device is handed to a claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// The interface moves into the pod, for one claim.
    #[default]
    Move,
    /// The interface stays on the host, and each of several claims gets one that is made on top of it.
    Share(Share),
    /// The PCI function is bound to vfio-pci, for programs in user space (DPDK), for one claim.
    Dpdk,
}

impl Mode {
    /// Returns the value of the attribute `mode`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Move => "move",
            Self::Share(_) => "share",
            Self::Dpdk => "dpdk",
        }
    }

    /// Returns how it is shared.
    pub fn share(self) -> Option<Share> {
        match self {
            Self::Share(share) => Some(share),
            Self::Move | Self::Dpdk => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How claims share an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "ShareFields")]
pub struct Share {
    /// What is made on top of the interface for each claim.
    pub kind: ShareKind,
    /// The most claims at a time.
    pub max: u32,
}

/// What is made on top of a shared interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareKind {
    /// A macvlan interface, with a hardware address of its own.
    Macvlan(Macvlan),
    /// An ipvlan interface, with the hardware address of the shared one.
    Ipvlan(Ipvlan),
}

impl ShareKind {
    /// Returns the kernel's name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Macvlan(_) => "macvlan",
            Self::Ipvlan(_) => "ipvlan",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindName {
    Macvlan,
    Ipvlan,
}

/// The fields as written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ShareFields {
    kind: KindName,
    mode: Option<String>,
    max: Option<u32>,
}

impl TryFrom<ShareFields> for Share {
    type Error = String;

    fn try_from(fields: ShareFields) -> Result<Self, String> {
        let ShareFields { kind, mode, max } = fields;
        let parsed = |error: String| format!("mode: {error}");
        let mode = mode.as_deref();
        let (kind, limit) = match kind {
            KindName::Macvlan => {
                let mode: MacvlanMode = mode.map(str::parse).transpose().map_err(parsed)?.unwrap_or_default();
                // One interface takes over the device.
                let limit = if mode == MacvlanMode::Passthru { 1 } else { MAX };
                (ShareKind::Macvlan(Macvlan { mode }), limit)
            }
            KindName::Ipvlan => {
                let mode: IpvlanMode = mode.map(str::parse).transpose().map_err(parsed)?.unwrap_or_default();
                (ShareKind::Ipvlan(Ipvlan { mode, ..Ipvlan::default() }), MAX)
            }
        };
        let max = max.unwrap_or(DEFAULT_MAX.min(limit));
        if !(1..=limit).contains(&max) {
            let why = if limit == 1 { " in mode passthru, in which one interface takes over the device" } else { "" };
            return Err(format!("max: {max} claims cannot share an interface: it is a number from 1 to {limit}{why}"));
        }
        Ok(Self { kind, max })
    }
}
