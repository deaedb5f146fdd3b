//! What a driver says of a device: one entry of `ResourceClaim.status.devices`.

use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;
use serde_json::{Map, Value, json};

use crate::driver::Device;
use crate::metadata::NetworkDeviceData;

/// The condition that every reader knows: whether the device is configured as its class and claim ask for.
pub(super) const READY: &str = "Ready";
/// Why a device of which everything is known is ready.
const CONFIGURED: &str = "Configured";

/// What a driver says of one device of a claim: an entry of `ResourceClaim.status.devices` (KEP-4817).
///
/// A report replaces all that this driver said of the device before; what others say of it stays.
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
    /// The pool that the device is from.
    pub pool_name: String,
    /// Its name in the pool.
    pub device_name: String,
    /// Which share of a device that several claims may have. Taken from the allocation if it is not given here and there is
    /// just one.
    pub share_id: Option<String>,
    /// What state it is in; at most 8, of different types.
    pub conditions: Vec<DeviceCondition>,
    /// Anything else, as a JSON object of at most 10 KiB.
    pub data: Option<Value>,
    /// What a network device looks like in the pod. Addresses are in their shortest form, with a prefix length.
    pub network_data: Option<NetworkDeviceData>,
}

/// One aspect of a device's state.
///
/// The time of its last transition is the framework's business: it changes when the status does, and only then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCondition {
    /// Which aspect: `Ready`, or a name of the driver's own, with or without a domain.
    pub type_: String,
    /// Whether it is so.
    pub status: ConditionStatus,
    /// Why, for programs: a word in camel case.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// The generation of the claim that this was found for.
    pub observed_generation: Option<i64>,
}

/// Whether a condition is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It is.
    True,
    /// It is not.
    False,
    /// Nobody can tell.
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
    /// A condition without a message.
    pub fn new(type_: impl Into<String>, status: ConditionStatus, reason: impl Into<String>) -> Self {
        let (type_, reason) = (type_.into(), reason.into());
        Self { type_, status, reason, message: String::new(), observed_generation: None }
    }

    /// With a message for people.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }
}

impl DeviceStatus {
    /// A device of which nothing is said yet.
    pub fn new(pool_name: impl Into<String>, device_name: impl Into<String>) -> Self {
        Self { pool_name: pool_name.into(), device_name: device_name.into(), ..Self::default() }
    }

    /// That share of the device.
    #[must_use]
    pub fn share_id(mut self, share_id: impl Into<String>) -> Self {
        self.share_id = Some(share_id.into());
        self
    }

    /// With a condition, in the place of one of the same type.
    #[must_use]
    pub fn condition(mut self, condition: DeviceCondition) -> Self {
        self.conditions.retain(|other| other.type_ != condition.type_);
        self.conditions.push(condition);
        self
    }

    /// The device is configured as its class and claim ask for: the condition `Ready` is true.
    #[must_use]
    pub fn ready(self, reason: impl Into<String>, message: impl Into<String>) -> Self {
        self.condition(DeviceCondition::new(READY, ConditionStatus::True, reason).message(message))
    }

    /// The device is not, or not yet, or not any more: the condition `Ready` is false.
    #[must_use]
    pub fn not_ready(self, reason: impl Into<String>, message: impl Into<String>) -> Self {
        self.condition(DeviceCondition::new(READY, ConditionStatus::False, reason).message(message))
    }

    /// With data of the driver's own: a JSON object.
    #[must_use]
    pub fn data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// With what a network device looks like in the pod.
    #[must_use]
    pub fn network_data(mut self, network_data: NetworkDeviceData) -> Self {
        self.network_data = Some(network_data);
        self
    }

    /// What containers are told of a device, as a report: network data as it is, attributes as `data.attributes` in the form
    /// that they have in the metadata file; and the device is ready.
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

    /// The entry as it is applied. `since` gives the time since when a condition has had its status.
    pub(super) fn entry(
        &self,
        driver: &str,
        share_id: Option<&str>,
        since: impl Fn(&DeviceCondition) -> String,
    ) -> Value {
        let mut entry = Map::new();
        entry.insert("driver".to_owned(), driver.into());
        entry.insert("pool".to_owned(), self.pool_name.as_str().into());
        entry.insert("device".to_owned(), self.device_name.as_str().into());
        if let Some(share_id) = share_id {
            entry.insert("shareID".to_owned(), share_id.into());
        }
        if !self.conditions.is_empty() {
            let conditions = self.conditions.iter().map(|condition| condition.value(&since(condition)));
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
            let is_said = |value: &Value| value != &json!("") && value != &json!([]);
            let said = fields.into_iter().filter(|(_, value)| is_said(value));
            entry.insert("networkData".to_owned(), said.map(|(name, value)| (name.to_owned(), value)).collect());
        }
        entry.into()
    }
}

impl DeviceCondition {
    fn value(&self, since: &str) -> Value {
        let mut value = json!({
            "type": self.type_, "status": self.status.as_str(), "reason": self.reason, "message": self.message,
            "lastTransitionTime": since,
        });
        if let Some(generation) = self.observed_generation {
            value["observedGeneration"] = generation.into();
        }
        value
    }
}

/// The device that was allocated, of which nothing is said yet.
impl From<&DeviceRequestAllocationResult> for DeviceStatus {
    fn from(result: &DeviceRequestAllocationResult) -> Self {
        Self { share_id: result.share_id.clone(), ..Self::new(&result.pool, &result.device) }
    }
}
