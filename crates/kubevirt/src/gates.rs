//! KubeVirt's feature gates, evaluated as KubeVirt 1.9 does.

use std::{fmt, str::FromStr};

use thiserror::Error;

use crate::vmi::{DeveloperConfiguration, KubeVirt};

/// A feature gate that decides about DRA devices or what happens to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Gate {
    /// `GPUsWithDRA`: GPUs from claims.
    GpusWithDra,
    /// `HostDevicesWithDRA`: host devices from claims.
    HostDevicesWithDra,
    /// `NetworkDevicesWithDRA`: networks from claims.
    NetworkDevicesWithDra,
    /// `HostDevices`: host devices at all.
    HostDevices,
    /// `VGPULiveMigration`: live migration with one vGPU.
    VgpuLiveMigration,
    /// `PCINUMAAwareTopology`: host devices on the guest's NUMA nodes.
    PciNumaAwareTopology,
    /// `IOMMUFD`: devices by iommufd.
    Iommufd,
    /// `GraceIOVirtualization`.
    GraceIoVirtualization,
    /// `Sidecar`: hook sidecars.
    Sidecar,
    /// `Plugins`: domain hooks of plugins.
    Plugins,
}

/// How far a feature has come, which is what decides its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Off unless turned on.
    Alpha,
    /// On unless turned off.
    Beta,
}

/// A name that is no gate known here.
#[derive(Debug, Error)]
#[error("unknown feature gate {0:?}: known are {known}", known = Gate::ALL.map(Gate::name).join(", "))]
pub struct UnknownGate(pub String);

impl Gate {
    /// All gates.
    pub const ALL: [Self; 10] = [
        Self::GpusWithDra,
        Self::HostDevicesWithDra,
        Self::NetworkDevicesWithDra,
        Self::HostDevices,
        Self::VgpuLiveMigration,
        Self::PciNumaAwareTopology,
        Self::Iommufd,
        Self::GraceIoVirtualization,
        Self::Sidecar,
        Self::Plugins,
    ];

    /// The name in KubeVirt's configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::GpusWithDra => "GPUsWithDRA",
            Self::HostDevicesWithDra => "HostDevicesWithDRA",
            Self::NetworkDevicesWithDra => "NetworkDevicesWithDRA",
            Self::HostDevices => "HostDevices",
            Self::VgpuLiveMigration => "VGPULiveMigration",
            Self::PciNumaAwareTopology => "PCINUMAAwareTopology",
            Self::Iommufd => "IOMMUFD",
            Self::GraceIoVirtualization => "GraceIOVirtualization",
            Self::Sidecar => "Sidecar",
            Self::Plugins => "Plugins",
        }
    }

    /// The stage in KubeVirt 1.9.
    #[must_use]
    pub fn stage(self) -> Stage {
        match self {
            Self::GpusWithDra | Self::HostDevicesWithDra => Stage::Beta,
            _ => Stage::Alpha,
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Gate {
    type Err = UnknownGate;

    fn from_str(name: &str) -> Result<Self, UnknownGate> {
        Self::ALL.into_iter().find(|gate| gate.name() == name).ok_or_else(|| UnknownGate(name.to_owned()))
    }
}

/// The feature gates of a cluster. The default is KubeVirt 1.9 without any configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FeatureGates {
    enabled: u16,
}

impl FeatureGates {
    /// The gates that a KubeVirt object configures.
    #[must_use]
    pub fn from_kubevirt(kubevirt: &KubeVirt) -> Self {
        Self::from_configuration(&kubevirt.spec.configuration.developer_configuration)
    }

    /// The gates that a developer configuration lists.
    #[must_use]
    pub fn from_configuration(configuration: &DeveloperConfiguration) -> Self {
        Self::from_lists(&configuration.feature_gates, &configuration.disabled_feature_gates)
    }

    /// The gates from the names turned on and those turned off. A name in both is on; in neither, its stage decides.
    /// Unknown names are of no effect, as in KubeVirt.
    #[must_use]
    pub fn from_lists<S: AsRef<str>>(enabled: &[S], disabled: &[S]) -> Self {
        let lists = |list: &[S], gate: Gate| list.iter().any(|name| name.as_ref() == gate.name());
        Gate::ALL.into_iter().fold(Self { enabled: 0 }, |gates, gate| {
            let on = lists(enabled, gate) || (!lists(disabled, gate) && gate.stage() == Stage::Beta);
            gates.with(gate, on)
        })
    }

    /// Turns a gate on or off.
    #[must_use]
    pub fn with(mut self, gate: Gate, enabled: bool) -> Self {
        let bit = 1 << gate as u16;
        if enabled {
            self.enabled |= bit;
        } else {
            self.enabled &= !bit;
        }
        self
    }

    /// Whether a gate is on.
    #[must_use]
    pub fn is_enabled(&self, gate: Gate) -> bool {
        self.enabled & (1 << gate as u16) != 0
    }
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self::from_lists::<&str>(&[], &[])
    }
}

#[cfg(test)]
mod tests;
