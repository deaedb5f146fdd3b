//! Feature gates: which fields of the API the server knows.

use std::collections::BTreeMap;

/// The gates that the rules ask, with what they are by default in Kubernetes 1.37.
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

/// A gate that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no feature gate {name:?} that the embedded API server asks; it asks {}", known())]
pub struct GateError {
    name: String,
}

fn known() -> String {
    DEFAULTS.map(|(name, _)| name).join(", ")
}

/// Which features of the API are on: by default those that are in Kubernetes 1.37.
///
/// A field of a feature that is off is dropped from what clients write, without a word, unless the stored object has it
/// already. Gates that Kubernetes 1.37 does not let anybody turn off can be turned off here: that is how older servers
/// behave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    changed: BTreeMap<&'static str, bool>,
}

impl Gates {
    /// With a gate on or off.
    ///
    /// # Errors
    ///
    /// There is no gate of that name.
    pub fn with(mut self, name: &str, enabled: bool) -> Result<Self, GateError> {
        let Some((name, _)) = DEFAULTS.iter().find(|(known, _)| *known == name) else {
            return Err(GateError { name: name.to_owned() });
        };
        self.changed.insert(name, enabled);
        Ok(self)
    }

    /// Whether a gate is on. One that there is not is off.
    pub fn enabled(&self, name: &str) -> bool {
        let default = || DEFAULTS.iter().any(|(known, enabled)| *known == name && *enabled);
        self.changed.get(name).copied().unwrap_or_else(default)
    }

    /// All gates, by name.
    pub fn all(&self) -> BTreeMap<&'static str, bool> {
        DEFAULTS.iter().map(|(name, _)| (*name, self.enabled(name))).collect()
    }
}
