//! The virtual machine itself: CPU, memory, devices.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{Gpu, HostDevice, Interface, null_as_default};

/// `spec.domain`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Domain {
    /// Devices.
    #[serde(deserialize_with = "null_as_default")]
    pub devices: Devices,
    /// Virtual CPUs.
    pub cpu: Option<Cpu>,
    /// Memory of the guest.
    pub memory: Option<Memory>,
    /// Resources of the launcher pod.
    #[serde(deserialize_with = "null_as_default")]
    pub resources: Resources,
}

/// `spec.domain.devices`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Devices {
    /// GPUs, whole or virtual.
    #[serde(deserialize_with = "null_as_default")]
    pub gpus: Vec<Gpu>,
    /// Other devices of the host. An empty list is present: a rule asks for that.
    pub host_devices: Option<Vec<HostDevice>>,
    /// Network interfaces.
    #[serde(deserialize_with = "null_as_default")]
    pub interfaces: Vec<Interface>,
}

impl Devices {
    /// The host devices, an absent list being an empty one.
    #[must_use]
    pub fn host_devices(&self) -> &[HostDevice] {
        self.host_devices.as_deref().unwrap_or_default()
    }
}

/// `spec.domain.cpu`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Cpu {
    /// Cores per socket; 0 is unset.
    #[serde(deserialize_with = "null_as_default")]
    pub cores: u32,
    /// Sockets; 0 is unset.
    #[serde(deserialize_with = "null_as_default")]
    pub sockets: u32,
    /// Threads per core; 0 is unset.
    #[serde(deserialize_with = "null_as_default")]
    pub threads: u32,
    /// Whether every virtual CPU is pinned to a CPU of its own.
    #[serde(deserialize_with = "null_as_default")]
    pub dedicated_cpu_placement: bool,
    /// NUMA topology of the guest.
    pub numa: Option<Numa>,
}

/// `spec.domain.cpu.numa`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Numa {
    /// Whether the guest has the host's NUMA topology: the object is present.
    #[serde(deserialize_with = "object_present")]
    pub guest_mapping_passthrough: bool,
}

/// `spec.domain.memory`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Memory that the guest sees.
    pub guest: Option<Quantity>,
    /// Huge pages below the guest's memory.
    pub hugepages: Option<Hugepages>,
}

/// `spec.domain.memory.hugepages`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hugepages {
    /// The size of a page.
    #[serde(deserialize_with = "null_as_default")]
    pub page_size: String,
}

/// Requests and limits of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Resources {
    /// What is reserved.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// What is the most.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

/// A Kubernetes quantity as written, such as `512Mi`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A quantity is a string or a number.
impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity: a string such as 512Mi, or a number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// Reads whether an object is there; what is in it does not matter.
pub(super) fn object_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<de::IgnoredAny>::deserialize(deserializer)?.is_some())
}
