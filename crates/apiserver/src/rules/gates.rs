//! Feature gates.

use std::collections::BTreeMap;

/// The feature gates that the server implements, with their defaults in Kubernetes 1.37.
const DEFAULTS: [(&str, bool); 21] = [
    ("DRAAdminAccess", true),
    ("DRAConsumableCapacity", true),
    ("DRADerivedAttributes", false),
    ("DRADeviceBindingConditions", true),
    ("DRADeviceCompatibilityGroups", false),
    ("DRADeviceTaintRules", true),
    ("DRADeviceTaints", true),
    ("DRAExtendedResource", true),
    // On in 1.37, but only with a minimum compatibility version of 1.37, which is 1.36 by default.
    ("DRAFractionalCapacityRange", false),
    ("DRAListTypeAttributes", false),
    ("DRANodeAllocatableResources", false),
    ("DRAOptionalNodeOperations", false),
    ("DRAPartitionableDevices", true),
    ("DRAPartitionableDevicesType", false),
    ("DRAPrioritizedList", true),
    ("DRAResourceClaimDeviceStatus", true),
    ("DRAResourceClaimGranularStatusAuthorization", true),
    ("DRAResourcePoolStatus", false),
    ("DRASchedulerFilterTimeout", true),
    ("DRAWorkloadResourceClaims", false),
    ("DynamicResourceAllocation", true),
];

/// An unknown feature gate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown feature gate {name:?}: the embedded API server implements {}", known())]
pub struct GateError {
    name: String,
}

fn known() -> String {
    DEFAULTS.map(|(name, _)| name).join(", ")
}

/// The feature gates of a server. Default: those of Kubernetes 1.37.
///
/// Fields of a disabled feature are silently dropped from writes, unless the stored object uses them already. Gates that are
/// locked in Kubernetes 1.37 can be disabled here, to behave like an older server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    changed: BTreeMap<&'static str, bool>,
}

impl Gates {
    /// Enables or disables a gate.
    ///
    /// # Errors
    ///
    /// Fails if the gate is unknown.
    pub fn with(mut self, name: &str, enabled: bool) -> Result<Self, GateError> {
        let Some((name, _)) = DEFAULTS.iter().find(|(known, _)| *known == name) else {
            return Err(GateError { name: name.to_owned() });
        };
        self.changed.insert(name, enabled);
        Ok(self)
    }

    /// Whether a gate is enabled. An unknown gate is not.
    pub fn enabled(&self, name: &str) -> bool {
        let default = || DEFAULTS.iter().any(|(known, enabled)| *known == name && *enabled);
        self.changed.get(name).copied().unwrap_or_else(default)
    }

    /// Returns all gates by name.
    pub fn all(&self) -> BTreeMap<&'static str, bool> {
        DEFAULTS.iter().map(|(name, _)| (*name, self.enabled(name))).collect()
    }
}
