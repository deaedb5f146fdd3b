//! The status of a device: an entry of `ResourceClaim.status.devices`.

use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;
use serde_json::{Map, Value, json};

use crate::driver::Device;
use crate::metadata::NetworkDeviceData;

/// The well-known condition: whether the device is configured as its class and claim request.
pub(super) const READY: &str = "Ready";
/// The reason of the condition `Ready` in a report that is made from metadata.
const CONFIGURED: &str = "Configured";

/// The status of one device of a claim: an entry of `ResourceClaim.status.devices` (KEP-4817).
///
/// A report replaces everything that this driver has reported for the device; fields of others stay.
///
/// ```
/// # use drakkar_plugin::{DeviceStatus, NetworkDeviceData};
/// let status = DeviceStatus::new("node-1", "eth1")
///     .ready("Attached", "the interface is in the pod")
///     .network_data(NetworkDeviceData { ips: vec!["10.0.0.5/24".into()], ..NetworkDeviceData::default() })
///     .data(serde_json::json!({"mtu": 9000}));
/// assert_eq!(status.conditions[0].type_, "Ready");
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceStatus {
    /// The pool of the device.
    pub pool_name: String,
    /// The name of the device in its pool.
    pub device_name: String,
    /// The share of a device that several claims can share. Defaults to the share in the allocation, if there is only one.
    pub share_id: Option<String>,
    /// The conditions of the device; at most 8, of different types.
    pub conditions: Vec<DeviceCondition>,
    /// Data of the driver's own: a JSON object of at most 10 KiB.
    pub data: Option<Value>,
    /// The network configuration of the device in the pod. Addresses are in canonical form, with a prefix length.
    pub network_data: Option<NetworkDeviceData>,
}

/// A condition of a device.
///
/// The framework sets the time of the last transition: it changes only when the status changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCondition {
    /// The type: `Ready`, or a name of the driver's own, with an optional domain.
    pub type_: String,
    /// The status.
    pub status: ConditionStatus,
    /// The reason for programs: a word in camel case.
    pub reason: String,
    /// The reason for humans.
    pub message: String,
    /// The generation of the claim for which the condition was determined.
    pub observed_generation: Option<i64>,
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition is met.
    True,
    /// The condition is not met.
    False,
    /// It is not known whether the condition is met.
    Unknown,
}

impl ConditionStatus {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl DeviceCondition {
    /// Creates a condition without a message.
    pub fn new(type_: impl Into<String>, status: ConditionStatus, reason: impl Into<String>) -> Self {
        Self { type_: type_.into(), status, reason: reason.into(), message: String::new(), observed_generation: None }
    }

    /// Sets the message.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }
}

impl DeviceStatus {
    /// Creates an empty status of a device.
    pub fn new(pool_name: impl Into<String>, device_name: impl Into<String>) -> Self {
        Self { pool_name: pool_name.into(), device_name: device_name.into(), ..Self::default() }
    }

    /// Sets the share ID.
    #[must_use]
    pub fn share_id(mut self, share_id: impl Into<String>) -> Self {
        self.share_id = Some(share_id.into());
        self
    }

    /// Adds a condition, or replaces the one of the same type.
    #[must_use]
    pub fn condition(mut self, condition: DeviceCondition) -> Self {
        self.conditions.retain(|other| other.type_ != condition.type_);
        self.conditions.push(condition);
        self
    }

    /// Sets the condition `Ready` to true: the device is configured as its class and claim request.
    #[must_use]
    pub fn ready(self, reason: impl Into<String>, message: impl Into<String>) -> Self {
        self.condition(DeviceCondition::new(READY, ConditionStatus::True, reason).message(message))
    }

    /// Sets the condition `Ready` to false.
    #[must_use]
    pub fn not_ready(self, reason: impl Into<String>, message: impl Into<String>) -> Self {
        self.condition(DeviceCondition::new(READY, ConditionStatus::False, reason).message(message))
    }

    /// Sets data of the driver's own: a JSON object.
    #[must_use]
    pub fn data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// Sets the network configuration of the device in the pod.
    #[must_use]
    pub fn network_data(mut self, network_data: NetworkDeviceData) -> Self {
        self.network_data = Some(network_data);
        self
    }

    /// Converts the metadata of a device to its status: the network data, the attributes as `data.attributes` in the format
    /// of the metadata file, and the condition `Ready`.
    pub(crate) fn of_metadata(device: &Device) -> Self {
        let mut status = Self::new(&device.pool_name, &device.device_name).ready(CONFIGURED, "");
        status.share_id.clone_from(&device.share_id);
        if let Some(metadata) = &device.metadata {
            status.network_data.clone_from(&metadata.network_data);
            if !metadata.attributes.is_empty() {
                status.data = Some(json!({"attributes": metadata.attributes}));
            }
        }
        status
    }

    /// Returns the entry to apply. `transition_time` returns the last transition time of a condition.
    pub(super) fn entry(
        &self,
        driver: &str,
        share_id: Option<&str>,
        transition_time: impl Fn(&DeviceCondition) -> String,
    ) -> Value {
        let mut entry = Map::new();
        entry.insert("driver".to_owned(), driver.into());
        entry.insert("pool".to_owned(), self.pool_name.as_str().into());
        entry.insert("device".to_owned(), self.device_name.as_str().into());
        if let Some(share_id) = share_id {
            entry.insert("shareID".to_owned(), share_id.into());
        }
        if !self.conditions.is_empty() {
            let conditions = self.conditions.iter().map(|condition| condition.value(&transition_time(condition)));
            entry.insert("conditions".to_owned(), conditions.collect());
        }
        if let Some(data) = &self.data {
            entry.insert("data".to_owned(), data.clone());
        }
        if let Some(network_data) = &self.network_data {
            let fields = [
                ("interfaceName", network_data.interface_name.as_str().into()),
                ("ips", network_data.ips.clone().into()),
                ("hardwareAddress", network_data.hardware_address.as_str().into()),
            ];
            let is_set = |value: &Value| value != &json!("") && value != &json!([]);
            let set = fields.into_iter().filter(|(_, value)| is_set(value));
            entry.insert("networkData".to_owned(), set.map(|(name, value)| (name.to_owned(), value)).collect());
        }
        entry.into()
    }
}

impl DeviceCondition {
    fn value(&self, transition_time: &str) -> Value {
        let mut value = json!({
            "type": self.type_, "status": self.status.as_str(), "reason": self.reason, "message": self.message,
            "lastTransitionTime": transition_time,
        });
        if let Some(generation) = self.observed_generation {
            value["observedGeneration"] = generation.into();
        }
        value
    }
}

impl From<&DeviceRequestAllocationResult> for DeviceStatus {
    /// Creates an empty status of an allocated device.
    fn from(result: &DeviceRequestAllocationResult) -> Self {
        Self { share_id: result.share_id.clone(), ..Self::new(&result.pool, &result.device) }
    }
}
