//! The metadata of a device: what the program in the container learns, and with it the API server.
//!
//! It repeats the published attributes and adds what is known only in the pod. Network data is what the kernel says there, not what
//! was asked for.

use std::path::Path;

use drakkar_plugin::{Device, DeviceAttribute, DeviceMetadata, DeviceStatus, NetworkDeviceData};

use crate::attacher::PodInterface;
use crate::attributes::{Attributes, DRIVER};
use crate::binder::BoundFunction;
use crate::journal::{DeviceRecord, Phase, Record};

/// The attribute for the MTU in the pod.
const MTU: &str = "mtu";
/// The attribute for the IOMMU group of a device for user space.
const IOMMU_GROUP: &str = "iommuGroup";
/// The attribute for the group's node below `/dev` of a device for user space.
const VFIO_NODE: &str = "vfioNode";

/// The reasons of the condition `Ready`.
pub(crate) mod reason {
    /// The interface is in the pod.
    pub(crate) const ATTACHED: &str = "Attached";
    /// The device is bound for user space.
    pub(crate) const BOUND: &str = "Bound";
    /// The pod's sandbox does not exist yet.
    pub(crate) const PENDING: &str = "WaitingForSandbox";
    /// The interface could not be attached.
    pub(crate) const ATTACH_FAILED: &str = "AttachFailed";
    /// The pod uses the host's network.
    pub(crate) const HOST_NETWORK: &str = "HostNetwork";
    /// The pod's sandbox has stopped.
    pub(crate) const DETACHED: &str = "Detached";
}

/// Returns the metadata of an interface in a pod.
pub(crate) fn of_interface(attributes: Attributes, interface: &PodInterface) -> DeviceMetadata {
    let mut metadata = DeviceMetadata { attributes, network_data: None };
    metadata.attributes.insert(MTU.to_owned(), i64::from(interface.mtu).into());
    metadata.network_data = Some(NetworkDeviceData {
        interface_name: interface.name.clone(),
        ips: interface.addresses.iter().map(ToString::to_string).collect(),
        hardware_address: interface.hardware_address.clone().unwrap_or_default(),
    });
    metadata
}

/// Returns the metadata of a device for user space.
pub(crate) fn of_userspace(attributes: Attributes, bound: &BoundFunction) -> DeviceMetadata {
    let mut metadata = DeviceMetadata { attributes, network_data: None };
    let mut set = |name: &str, value: DeviceAttribute| drop(metadata.attributes.insert(name.to_owned(), value));
    let address = bound.address.attribute();
    set(drakkar_plugin::attributes::PCI_BUS_ID, address);
    if let Some(group) = bound.iommu_group {
        set(IOMMU_GROUP, i64::from(group).into());
    }
    if let Some(driver) = &bound.driver {
        set(DRIVER, driver.clone().into());
    }
    // There are others: of the container, and of the device itself on kernels that have it.
    let node = bound.iommu_group.map(|group| Path::new("/dev/vfio").join(group.to_string()));
    if let Some(node) = node.filter(|node| bound.nodes.contains(node)) {
        set(VFIO_NODE, node.display().to_string().into());
    }
    metadata
}

/// Returns the device of a record, with this metadata.
pub(crate) fn device(record: &DeviceRecord, metadata: Option<DeviceMetadata>) -> Device {
    Device {
        requests: vec![record.request.clone()],
        pool_name: record.pool.clone(),
        device_name: record.device.clone(),
        share_id: record.share_id.clone(),
        metadata,
        ..Device::default()
    }
}

/// Returns the status of a device of a record, without conditions.
pub(crate) fn status(record: &DeviceRecord) -> DeviceStatus {
    let status = DeviceStatus::new(&record.pool, &record.device);
    DeviceStatus { share_id: record.share_id.clone(), ..status }
}

/// Returns the requests of a claim that have interfaces, and of each the devices as they are in the pod.
pub(crate) fn requests(record: &Record) -> Vec<(String, Vec<Device>)> {
    let mut requests: Vec<(String, Vec<Device>)> = Vec::new();
    for device_record in &record.devices {
        let Some(Phase::Attached { interface, .. }) = device_record.interface().map(|interface| &interface.phase)
        else {
            continue;
        };
        let metadata = of_interface(device_record.attributes.clone(), interface);
        let device = device(device_record, Some(metadata));
        let request = crate::claims::base(&device_record.request);
        match requests.iter_mut().find(|(name, _)| name == request) {
            Some((_, devices)) => devices.push(device),
            None => requests.push((request.to_owned(), vec![device])),
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_described_as_it_is_in_the_pod() {
        let interface = PodInterface {
            name: "data0".to_owned(),
            index: Some(3),
            hardware_address: Some("02:00:5e:10:00:01".to_owned()),
            mtu: 9000,
            addresses: vec!["192.0.2.7/24".parse().unwrap(), "2001:db8::7/64".parse().unwrap()],
        };
        let published = [("mtu".to_owned(), 1500.into()), ("type".to_owned(), "physical".into())].into();
        let metadata = of_interface(published, &interface);
        assert_eq!(metadata.attributes["mtu"], 9000.into());
        assert_eq!(metadata.attributes["type"], "physical".into());
        let data = metadata.network_data.unwrap();
        assert_eq!(data.ips, ["192.0.2.7/24", "2001:db8::7/64"]);
        assert_eq!((data.interface_name.as_str(), data.hardware_address.as_str()), ("data0", "02:00:5e:10:00:01"));
    }

    #[test]
    fn a_device_for_user_space_has_its_address_group_and_node() {
        let bound = BoundFunction {
            address: "0000:03:10.1".parse().unwrap(),
            cdi_id: None,
            iommu_group: Some(12),
            driver: Some("vfio-pci".to_owned()),
            nodes: ["devices/vfio3", "12", "vfio"].map(|name| Path::new("/dev/vfio").join(name)).to_vec(),
        };
        let metadata = of_userspace([("numaNode".to_owned(), 1.into())].into(), &bound);
        assert_eq!(metadata.attributes["resource.kubernetes.io/pciBusID"], "0000:03:10.1".into());
        assert_eq!(metadata.attributes["iommuGroup"], 12.into());
        assert_eq!(metadata.attributes["driver"], "vfio-pci".into());
        assert_eq!(metadata.attributes["vfioNode"], "/dev/vfio/12".into());
        assert_eq!(metadata.attributes["numaNode"], 1.into());
        assert_eq!(metadata.network_data, None);
    }
}
