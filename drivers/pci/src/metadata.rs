//! The metadata of a prepared device: what the program in the container learns, KubeVirt among them.
//!
//! It repeats the published attributes, and adds what is known only now: the address of a virtual function that was made, the
//! UUID of a mediated device that was made, the driver that the device has now. KubeVirt reads
//! `resource.kubernetes.io/pciBusID` or `mdevUUID`; a device has one of the two.

use drakkar_metadata::DeviceAttribute;
use drakkar_plugin::DeviceMetadata;
use drakkar_plugin::attributes::PCI_BUS_ID;

use crate::attributes::{Attributes, MDEV_UUID};
use crate::plan::Entry;
use crate::prepare::PreparedDevice;

/// Returns the metadata of a device. `function` are the attributes of its PCI function as it is now.
pub(crate) fn metadata(entry: &Entry, prepared: &PreparedDevice, function: Option<&Attributes>) -> DeviceMetadata {
    let mut attributes = function.cloned().unwrap_or_default();
    attributes.extend(Attributes::clone(&entry.attributes));
    let mut set = |name: &str, value: Option<DeviceAttribute>| match value {
        Some(value) => drop(attributes.insert(name.to_owned(), value)),
        None => drop(attributes.remove(name)),
    };
    set(PCI_BUS_ID, prepared.address.filter(|_| prepared.mdev_uuid.is_none()).map(|address| address.attribute()));
    set(MDEV_UUID, prepared.mdev_uuid.clone().map(DeviceAttribute::from));
    set("iommuGroup", prepared.iommu_group.map(|group| i64::from(group).into()));
    set("driver", prepared.driver.clone().map(DeviceAttribute::from));
    set("mode", Some(prepared.mode.to_string().into()));
    DeviceMetadata { attributes, network_data: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::Mode;
    use crate::plan::Entry;
    use crate::target::Target;

    fn prepared(target: &Target) -> PreparedDevice {
        PreparedDevice {
            target: target.clone(),
            mode: Mode::Vfio,
            cdi_id: None,
            address: None,
            mdev_uuid: None,
            iommu_group: Some(7),
            driver: Some("vfio-pci".into()),
            nodes: Vec::new(),
            companions: Vec::new(),
        }
    }

    fn attributes(names: &[(&str, &str)]) -> Attributes {
        names.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
    }

    #[test]
    fn a_virtual_function_that_was_made_has_its_address() {
        let physical = "0000:01:00.0".parse().unwrap();
        let target = Target::VirtualFunction { physical, index: 1 };
        let entry = Entry::with_attributes(target.clone(), attributes(&[("vendorID", "8086"), ("rule", "nics")]));
        let function = attributes(&[("vendorID", "8086"), ("deviceID", "10ca"), (PCI_BUS_ID, "0000:01:10.1")]);
        let prepared = PreparedDevice { address: "0000:01:10.1".parse().ok(), ..prepared(&target) };
        let metadata = metadata(&entry, &prepared, Some(&function));
        assert_eq!(metadata.attributes[PCI_BUS_ID], "0000:01:10.1".into());
        assert_eq!(metadata.attributes["deviceID"], "10ca".into());
        assert_eq!(metadata.attributes["rule"], "nics".into());
        assert_eq!(metadata.attributes["driver"], "vfio-pci".into());
        assert_eq!(metadata.attributes["iommuGroup"], 7.into());
        assert!(!metadata.attributes.contains_key(MDEV_UUID));
    }

    #[test]
    fn a_mediated_device_has_its_uuid_and_no_address() {
        let target = Target::Mdev { uuid: "u".into() };
        let entry = Entry::with_attributes(target.clone(), attributes(&[(PCI_BUS_ID, "0000:01:00.0")]));
        let prepared = PreparedDevice { mdev_uuid: Some("u".into()), ..prepared(&target) };
        let metadata = metadata(&entry, &prepared, None);
        assert_eq!(metadata.attributes[MDEV_UUID], "u".into());
        assert!(!metadata.attributes.contains_key(PCI_BUS_ID));
    }
}
