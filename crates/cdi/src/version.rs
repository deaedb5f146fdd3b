//! The released versions of CDI, and the minimum version of a spec's content.
//!
//! A runtime refuses a file of an unknown version, and one whose version is lower than its content needs. A spec should
//! therefore declare the lowest version that its content needs: every runtime that supports the content knows it.

use std::fmt;
use std::str::FromStr;

use drakkar_metadata::show::Quoted;

use crate::spec::Spec;

/// A released version of CDI, ordered from old to new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CdiVersion {
    /// Known to runtimes, but all content needs at least 0.3.0.
    V0_1_0,
    /// Known to runtimes, but all content needs at least 0.3.0.
    V0_2_0,
    /// The first version with a schema of its own.
    V0_3_0,
    /// `type` in mounts.
    V0_4_0,
    /// `hostPath` in device nodes; device names may start with a digit.
    V0_5_0,
    /// Annotations; dots in the class.
    V0_6_0,
    /// `intelRdt`; `additionalGids`.
    V0_7_0,
    /// No change in content.
    V0_8_0,
    /// No change in content.
    V1_0_0,
    /// `netDevices`; `schemata` and `enableMonitoring` in `intelRdt`.
    V1_1_0,
}

/// An unknown version of CDI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("CDI version {}: unknown, must be one of {}", Quoted(.0), known())]
pub struct VersionError(String);

impl CdiVersion {
    /// All versions, oldest first.
    pub const KNOWN: [Self; 10] = [
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_4_0,
        Self::V0_5_0,
        Self::V0_6_0,
        Self::V0_7_0,
        Self::V0_8_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// Returns the version as text, without a leading `v`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_4_0 => "0.4.0",
            Self::V0_5_0 => "0.5.0",
            Self::V0_6_0 => "0.6.0",
            Self::V0_7_0 => "0.7.0",
            Self::V0_8_0 => "0.8.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }
}

impl fmt::Display for CdiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for CdiVersion {
    type Err = VersionError;

    /// Parses a version with or without a leading `v`, as runtimes do.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let bare = text.strip_prefix('v').unwrap_or(text);
        let found = Self::KNOWN.into_iter().find(|version| version.as_str() == bare);
        found.ok_or_else(|| VersionError(text.to_owned()))
    }
}

impl Spec {
    /// Returns the version that the spec declares.
    pub fn version(&self) -> Result<CdiVersion, VersionError> {
        self.cdi_version.parse()
    }

    /// Returns the lowest version that supports the spec's content, independent of the declared version.
    ///
    /// Every device counts. (Up to its release 1.1.1 the Go library considers only the last device's nodes and mounts for
    /// 0.4.0 and 0.5.0, so it may accept a lower version.)
    ///
    /// ```
    /// use drakkar_cdi::{CdiVersion, Device, Spec};
    ///
    /// let mut spec = Spec { devices: vec![Device { name: "gpu-0".into(), ..Device::default() }], ..Spec::default() };
    /// assert_eq!(spec.minimum_version(), CdiVersion::V0_3_0);
    /// spec.devices[0].name = "0".into();
    /// assert_eq!(spec.minimum_version(), CdiVersion::V0_5_0);
    /// ```
    pub fn minimum_version(&self) -> CdiVersion {
        if needs_1_1_0(self) {
            CdiVersion::V1_1_0
        } else if needs_0_7_0(self) {
            CdiVersion::V0_7_0
        } else if needs_0_6_0(self) {
            CdiVersion::V0_6_0
        } else if needs_0_5_0(self) {
            CdiVersion::V0_5_0
        } else if needs_0_4_0(self) {
            CdiVersion::V0_4_0
        } else {
            CdiVersion::V0_3_0
        }
    }
}

fn needs_1_1_0(spec: &Spec) -> bool {
    spec.all_edits().any(|edits| {
        let rdt = edits.intel_rdt.as_ref();
        !edits.net_devices.is_empty() || rdt.is_some_and(|rdt| rdt.schemata.is_some() || rdt.enable_monitoring)
    })
}

fn needs_0_7_0(spec: &Spec) -> bool {
    spec.all_edits().any(|edits| edits.intel_rdt.is_some() || !edits.additional_gids.is_empty())
}

fn needs_0_6_0(spec: &Spec) -> bool {
    !spec.annotations.is_empty()
        || spec.devices.iter().any(|device| !device.annotations.is_empty())
        || spec.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'))
}

fn needs_0_5_0(spec: &Spec) -> bool {
    spec.devices.iter().any(|device| device.name.starts_with(|first: char| first.is_ascii_digit()))
        || spec.all_edits().flat_map(|edits| &edits.device_nodes).any(|node| !node.host_path.is_empty())
}

fn needs_0_4_0(spec: &Spec) -> bool {
    spec.all_edits().flat_map(|edits| &edits.mounts).any(|mount| !mount.fs_type.is_empty())
}

fn known() -> String {
    CdiVersion::KNOWN.map(CdiVersion::as_str).join(", ")
}
