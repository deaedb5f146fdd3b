//! Well-known attributes of a device, under all their names.

use drakkar_metadata::well_known::{MDEV_UUID, NUMA_NODE, PCI_BUS_ID, PCIE_ROOT};
use drakkar_metadata::{Device, DeviceAttribute, NetworkDeviceData};
use rstest::rstest;

fn device(attributes: &[(&str, DeviceAttribute)]) -> Device {
    Device {
        driver: "gpu.example.com".into(),
        pool: "worker-0".into(),
        name: "gpu-0".into(),
        attributes: attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        network_data: None,
    }
}

#[test]
fn the_canonical_names_are_first() {
    assert_eq!(PCI_BUS_ID[0], "resource.kubernetes.io/pciBusID");
    assert_eq!(MDEV_UUID[0], "mdevUUID");
}

#[rstest]
#[case("resource.kubernetes.io/pciBusID")]
#[case("resources.kubernetes.io/pciBusID")]
#[case("resource.k8s.io/pciBusID")]
#[case("pciAddress")]
#[case("gpu.example.com/pciAddress")]
fn the_pci_address_is_found_under_each_of_its_names(#[case] name: &str) {
    let device = device(&[(name, "0000:65:00.0".into()), (PCIE_ROOT, "pci0000:60".into())]);
    assert_eq!(device.pci_bus_id(), Some("0000:65:00.0"));
    assert_eq!(device.lookup("pciBusID"), Some("0000:65:00.0".into()));
    assert_eq!(device.mdev_uuid(), None);
}

#[rstest]
#[case("mdevUUID")]
#[case("mDevUUID")]
#[case("resource.kubernetes.io/mDevUUID")]
#[case("dra.kubevirt.io/mdevUUID")]
fn the_mdev_uuid_is_found_under_each_of_its_names(#[case] name: &str) {
    let device = device(&[(name, "not even a UUID".into())]);
    assert_eq!(device.mdev_uuid(), Some("not even a UUID"));
    assert_eq!(device.lookup("mdevUUID"), Some("not even a UUID".into()));
    assert_eq!(device.pci_bus_id(), None);
}

#[rstest]
#[case("resource.kubernetes.io/pcibusid")]
#[case("RESOURCE.KUBERNETES.IO/pciBusID")]
#[case("pciBusID")]
#[case("other.example.com/pciAddress")]
#[case("resource.kubernetes.io/pcieRoot")]
#[case("MDEVUUID")]
#[case("mdevModel")]
fn another_name_is_not_well_known(#[case] name: &str) {
    let device = device(&[(name, "0000:65:00.0".into())]);
    assert_eq!((device.pci_bus_id(), device.mdev_uuid()), (None, None));
}

#[rstest]
#[case(&PCI_BUS_ID, Device::pci_bus_id)]
#[case(&MDEV_UUID, Device::mdev_uuid)]
fn an_earlier_name_takes_precedence(#[case] names: &[&str], #[case] of: fn(&Device) -> Option<&str>) {
    for first in 0..names.len() {
        let attributes: Vec<_> = names[first..].iter().map(|name| (*name, DeviceAttribute::from(*name))).collect();
        assert_eq!(of(&device(&attributes)), Some(names[first]));
    }
}

#[rstest]
#[case::empty("".into())]
#[case::number(1.into())]
#[case::truth(true.into())]
#[case::version(DeviceAttribute::version("1.0.0"))]
#[case::list(vec!["0000:65:00.0"].into())]
#[case::nothing(DeviceAttribute::default())]
fn only_a_string_that_is_not_empty_counts(#[case] value: DeviceAttribute) {
    for names in [PCI_BUS_ID, MDEV_UUID] {
        let all: Vec<_> = names.iter().map(|name| (*name, value.clone())).collect();
        let none = device(&all);
        assert_eq!((none.pci_bus_id(), none.mdev_uuid()), (None, None));
        let passed_over = device(&[(names[0], value.clone()), (names[1], "x".into())]);
        assert_eq!(passed_over.pci_bus_id().or(passed_over.mdev_uuid()), Some("x"));
    }
}

#[test]
fn the_pcie_root_and_the_numa_node_have_one_name() {
    assert_eq!(device(&[(PCIE_ROOT, "pci0000:60".into())]).pcie_root(), Some("pci0000:60"));
    assert_eq!(device(&[]).pcie_root(), None);
    assert_eq!(device(&[(NUMA_NODE, 1.into())]).numa_node(), Some(1));
    assert_eq!(device(&[(NUMA_NODE, vec![2, 0].into())]).numa_node(), Some(2));
    assert_eq!(device(&[(NUMA_NODE, "1".into())]).numa_node(), None);
    assert_eq!(device(&[]).numa_node(), None);
}

#[test]
fn network_data_is_optional() {
    let mut device = device(&[]);
    assert_eq!((device.interface_name(), device.ips(), device.hardware_address()), (None, [].as_slice(), None));
    device.network_data = Some(NetworkDeviceData::default());
    assert_eq!((device.interface_name(), device.ips(), device.hardware_address()), (None, [].as_slice(), None));
    assert_eq!(device.lookup("ips"), None);
    device.network_data = Some(NetworkDeviceData {
        interface_name: "eth1".into(),
        ips: vec!["10.0.0.1/8".into(), "fd00::1/64".into()],
        hardware_address: "02:00:00:00:00:01".into(),
    });
    assert_eq!((device.interface_name(), device.hardware_address()), (Some("eth1"), Some("02:00:00:00:00:01")));
    assert_eq!(device.ips(), ["10.0.0.1/8", "fd00::1/64"]);
    for prefix in ["", "networkData."] {
        assert_eq!(device.lookup(&format!("{prefix}interfaceName")), Some("eth1".into()));
        assert_eq!(device.lookup(&format!("{prefix}ips")), Some(vec!["10.0.0.1/8", "fd00::1/64"].into()));
        assert_eq!(device.lookup(&format!("{prefix}hardwareAddress")), Some("02:00:00:00:00:01".into()));
    }
}

#[test]
fn a_bare_name_and_one_with_the_drivers_domain_are_the_same() {
    let bare = device(&[("model", "A".into())]);
    assert_eq!(bare.lookup("gpu.example.com/model"), Some("A".into()));
    assert_eq!(bare.lookup("other.example.com/model"), None);
    let qualified = device(&[("gpu.example.com/model", "B".into())]);
    assert_eq!(qualified.lookup("model"), Some("B".into()));
    let both = device(&[("model", "A".into()), ("gpu.example.com/model", "B".into())]);
    assert_eq!(both.lookup("model"), Some("A".into()));
    assert_eq!(both.lookup("gpu.example.com/model"), Some("B".into()));
}

#[test]
fn a_well_known_name_takes_precedence_over_an_attribute_without_a_domain() {
    let names = ["pciBusID", "interfaceName", "ips", "hardwareAddress", "driver", "pool", "name"];
    let bare: Vec<_> = names.iter().map(|name| (*name, DeviceAttribute::from(7))).collect();
    let mut well_known = device(&[&bare[..], &[(PCI_BUS_ID[0], "0000:65:00.0".into())]].concat());
    well_known.network_data = Some(NetworkDeviceData {
        interface_name: "net1".into(),
        ips: vec!["10.0.0.1/8".into()],
        hardware_address: "02:00:00:00:00:01".into(),
    });
    for name in names {
        assert_ne!(well_known.lookup(name), Some(7.into()), "{name}");
        assert_eq!(well_known.lookup(&format!("gpu.example.com/{name}")), Some(7.into()), "{name}");
    }
    // Without a well-known value, the attribute of that name is returned.
    let only_bare = device(&bare);
    for name in ["pciBusID", "interfaceName", "ips", "hardwareAddress"] {
        assert_eq!(only_bare.lookup(name), Some(7.into()), "{name}");
    }
}

#[test]
fn an_attribute_without_a_value_is_not_found() {
    assert_eq!(device(&[("links", DeviceAttribute::default())]).lookup("links"), None);
}

#[test]
fn any_spelling_finds_any_other_spelling() {
    for (asked, there) in PCI_BUS_ID.iter().flat_map(|asked| PCI_BUS_ID.iter().map(move |there| (asked, there))) {
        assert_eq!(device(&[(there, "x".into())]).lookup(asked), Some("x".into()), "{asked} for {there}");
    }
    for (asked, there) in MDEV_UUID.iter().flat_map(|asked| MDEV_UUID.iter().map(move |there| (asked, there))) {
        assert_eq!(device(&[(there, "x".into())]).lookup(asked), Some("x".into()), "{asked} for {there}");
    }
}

#[test]
fn driver_pool_and_name_can_be_looked_up() {
    let device = device(&[]);
    assert_eq!(device.lookup("driver"), Some("gpu.example.com".into()));
    assert_eq!(device.lookup("pool"), Some("worker-0".into()));
    assert_eq!(device.lookup("name"), Some("gpu-0".into()));
    assert_eq!(device.lookup("nothing"), None);
    assert_eq!(device.lookup(""), None);
    assert_eq!(Device::default().lookup("name"), None);
}

#[rstest]
#[case("networkData.driver")]
#[case("networkData.name")]
#[case("networkData.pciBusID")]
fn only_network_data_is_found_with_its_prefix(#[case] name: &str) {
    assert_eq!(device(&[(PCI_BUS_ID[0], "x".into())]).lookup(name), None);
}
