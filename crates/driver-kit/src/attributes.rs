//! Attributes of devices: values that the API takes, and what CEL expressions see of them.
//!
//! An attribute that is not known is omitted, never guessed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use drakkar_cel::{DeviceError, DeviceValue};
use drakkar_metadata::{AttributeValue, DeviceAttribute};
use drakkar_sysfs::PciDevice;
use drakkar_sysfs::attributes::{NUMA_NODE, NumaForm, PCIE_ROOT, StandardAttributes};
use k8s_openapi::api::resource::v1 as api;

/// Attributes by name.
pub type Attributes = BTreeMap<String, DeviceAttribute>;

/// The longest text of an attribute, in bytes. It is a limit of the API.
pub const MAX_TEXT: usize = 64;

/// Where the NUMA distances are, and the form of the attribute.
#[derive(Debug, Clone)]
pub struct Numa {
    sysfs: StandardAttributes,
    form: NumaForm,
}

impl Numa {
    /// Reads distances from a sysfs.
    pub fn new(sysfs: impl Into<PathBuf>, form: NumaForm) -> Self {
        Self { sysfs: StandardAttributes::at(sysfs), form }
    }

    /// Returns the value of the attribute for a device of a node.
    pub fn attribute(&self, node: u32) -> Option<DeviceAttribute> {
        self.sysfs.numa_node_attribute(node, self.form).ok()
    }
}

/// Returns a text as far as the API takes it: at most [`MAX_TEXT`] bytes, cut at a character.
pub fn text(text: &str) -> DeviceAttribute {
    truncate(text).into()
}

fn truncate(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Sets an attribute whose value is known.
pub fn set(attributes: &mut Attributes, name: &str, value: Option<DeviceAttribute>) {
    if let Some(value) = value {
        attributes.insert(name.to_owned(), value);
    }
}

/// Sets where a PCI device is: the standard attributes for its root complex and its NUMA node.
pub fn set_place(attributes: &mut Attributes, device: &PciDevice, numa: &Numa) {
    set(attributes, PCIE_ROOT, device.pcie_root.as_deref().map(text));
    set(attributes, NUMA_NODE, device.numa_node.and_then(|node| numa.attribute(node)));
}

/// Returns an id of a vendor or a device as `lspci` prints it.
pub fn hex(id: u16) -> DeviceAttribute {
    format!("{id:04x}").into()
}

/// Returns the attributes of a driver's device as CEL expressions see them.
pub fn cel_value(driver: &str, attributes: &Attributes) -> Result<DeviceValue, DeviceError> {
    let attributes = attributes.iter().filter_map(|(name, value)| Some((name.clone(), api_value(value.value()?))));
    let device = api::Device { attributes: Some(attributes.collect()), ..api::Device::default() };
    DeviceValue::new(driver, &device)
}

fn api_value(value: AttributeValue<'_>) -> api::DeviceAttribute {
    let empty = api::DeviceAttribute::default();
    match value {
        AttributeValue::Int(value) => api::DeviceAttribute { int: Some(value), ..empty },
        AttributeValue::Bool(value) => api::DeviceAttribute { bool: Some(value), ..empty },
        AttributeValue::String(value) => api::DeviceAttribute { string: Some(value.to_owned()), ..empty },
        AttributeValue::Version(value) => api::DeviceAttribute { version: Some(value.to_owned()), ..empty },
        AttributeValue::Ints(values) => api::DeviceAttribute { ints: Some(values.to_vec()), ..empty },
        AttributeValue::Bools(values) => api::DeviceAttribute { bools: Some(values.to_vec()), ..empty },
        AttributeValue::Strings(values) => api::DeviceAttribute { strings: Some(values.to_vec()), ..empty },
        AttributeValue::Versions(values) => api::DeviceAttribute { versions: Some(values.to_vec()), ..empty },
        // A type of value that is newer than this code, of which no driver here publishes any.
        _ => empty,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let name = "ü".repeat(40);
        assert_eq!(truncate(&name).len(), 64);
        let name = format!("a{name}");
        assert_eq!(truncate(&name).len(), 63);
        assert_eq!(truncate("short"), "short");
    }

    #[test]
    fn expressions_see_attributes_in_the_domain_of_the_driver() {
        let attributes = Attributes::from([("speed".to_owned(), 100_000.into())]);
        let value = cel_value("net.example.com", &attributes).unwrap();
        let selector = drakkar_cel::Selector::compile("device.attributes['net.example.com'].speed >= 100000").unwrap();
        assert_eq!(selector.matches(&value), Ok(true));
    }
}
