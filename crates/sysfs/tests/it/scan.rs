//! What a scan finds.

use std::os::unix::fs::PermissionsExt as _;

use drakkar_sysfs::{ConfigSpace, Inventory, Link, MdevParentName, ScanError};
use rstest::rstest;

use crate::support::{Tree, address, device, problems};

const NIC: &str = "0000:01:00.0";
const NIC_PATH: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";

#[test]
fn a_device_has_all_that_its_files_say() {
    let tree = Tree::new();
    tree.pci(NIC_PATH)
        .driver("e1000e")
        .group(7)
        .file("driver_override", "vfio-pci\n")
        .file("numa_node", "1\n")
        .file("revision", "0x2a\n")
        .file("enable", "3\n")
        .file("max_link_speed", "8.0 GT/s PCIe\n")
        .file("max_link_width", "16\n")
        .file("current_link_speed", "2.5 GT/s PCIe\n")
        .file("current_link_width", "4\n");
    let inventory = tree.scan();
    let device = device(&inventory, NIC);
    assert_eq!(device.path.to_str(), Some("devices/pci0000:00/0000:00:01.0/0000:01:00.0"));
    assert_eq!((device.vendor, device.device), (0x8086, 0x10d3));
    assert_eq!((device.subsystem_vendor, device.subsystem_device), (0x8086, 0xa01f));
    assert_eq!((device.class, device.base_class(), device.revision), (0x02_0000, 0x02, 0x2a));
    assert_eq!(device.driver.as_deref(), Some("e1000e"));
    assert_eq!(device.driver_override.as_deref(), Some("vfio-pci"));
    assert_eq!(device.iommu_group, Some(7));
    assert_eq!(device.numa_node, Some(1));
    assert_eq!(device.pcie_root.as_deref(), Some("pci0000:00"));
    assert_eq!(device.upstream, Some(address("0000:00:01.0")));
    assert_eq!(device.power_state.as_deref(), Some("D0"));
    assert_eq!(device.d3cold_allowed, Some(true));
    assert_eq!(device.reset_methods, ["flr", "bus"]);
    assert_eq!(device.enable_count, Some(3));
    assert_eq!(device.config, ConfigSpace::Answers);
    let link = Link {
        max_speed: Some("8.0 GT/s PCIe".to_owned()),
        max_width: Some(16),
        current_speed: Some("2.5 GT/s PCIe".to_owned()),
        current_width: Some(4),
    };
    assert_eq!(device.link, Some(link));
    assert_eq!(problems(device), "");
    assert!(inventory.problems.is_empty(), "{:?}", inventory.problems);
}

#[test]
fn what_a_device_does_not_have_is_none_and_no_problem() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:00:02.0").without("reset_method").without("power_state");
    let inventory = tree.scan();
    let device = device(&inventory, "0000:00:02.0");
    assert_eq!((&device.driver, &device.driver_override), (&None, &None), "an empty override reads (null)");
    assert_eq!((device.iommu_group, device.numa_node, device.upstream), (None, None, None));
    assert_eq!((&device.sriov, &device.link, &device.power_state), (&None, &None, &None));
    assert!(device.reset_methods.is_empty());
    assert_eq!(problems(device), "");
}

#[test]
fn functions_of_sriov_know_each_other() {
    let tree = Tree::new();
    let physical = tree.pci("pci0000:00/0000:03:00.0");
    physical.file("sriov_totalvfs", "8\n").file("sriov_numvfs", "2\n").file("sriov_drivers_autoprobe", "0\n");
    tree.pci("pci0000:00/0000:03:10.0").virtual_function_of(&physical, 0);
    tree.pci("pci0000:00/0000:03:10.2").virtual_function_of(&physical, 1);
    let inventory = tree.scan();
    let physical = device(&inventory, "0000:03:00.0");
    let sriov = physical.sriov.as_ref().unwrap();
    assert_eq!((sriov.total_vfs, sriov.num_vfs, sriov.drivers_autoprobe), (8, 2, false));
    assert_eq!(sriov.virtual_functions, [address("0000:03:10.0"), address("0000:03:10.2")]);
    assert!(physical.is_physical_function() && !physical.is_virtual_function());
    let virtual_function = device(&inventory, "0000:03:10.2");
    assert_eq!(virtual_function.physical_function, Some(address("0000:03:00.0")));
    assert!(virtual_function.is_virtual_function() && !virtual_function.is_physical_function());
}

#[test]
fn mediated_devices_have_types_parents_and_instances() {
    let tree = Tree::new();
    tree.pci(NIC_PATH).driver("nvidia");
    tree.mdev_type(NIC_PATH, "nvidia-63", 4);
    tree.mdev_type(NIC_PATH, "nvidia-64", 2);
    tree.mdev("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", NIC_PATH, "nvidia-63", 12);
    tree.link(&format!("sys/class/mdev_bus/{NIC}"), &format!("sys/devices/{NIC_PATH}"));
    tree.mdev_type("virtual/mtty/mtty", "mtty-1", 24);
    tree.mdev("a1a1a1a1-509f-382f-3c1e-e6bfe0fa1002", "virtual/mtty/mtty", "mtty-1", 13);
    tree.link("sys/class/mdev_bus/mtty", "sys/devices/virtual/mtty/mtty");
    let inventory = tree.scan();

    let types = &device(&inventory, NIC).mdev_types;
    assert_eq!(types.iter().map(|kind| kind.id.as_str()).collect::<Vec<_>>(), ["nvidia-63", "nvidia-64"]);
    assert_eq!(types[0].name.as_deref(), Some("Name of nvidia-63"));
    assert_eq!(types[0].device_api.as_deref(), Some("vfio-pci"));
    assert_eq!((types[0].available_instances, types[1].available_instances), (4, 2));

    let mdev = &inventory.mdevs["83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"];
    assert_eq!(mdev.parent, MdevParentName::Pci(address(NIC)));
    assert_eq!((mdev.type_id.as_deref(), mdev.iommu_group), (Some("nvidia-63"), Some(12)));
    assert_eq!(mdev.driver.as_deref(), Some("vfio_mdev"));
    assert!(mdev.problems.is_empty(), "{:?}", mdev.problems);
    assert!(inventory.groups[&12].viability.is_viable());

    let parents: Vec<_> = inventory.mdev_parents.keys().collect();
    assert_eq!(parents, ["mtty"], "PCI devices have their types themselves");
    assert_eq!(inventory.mdev_parents["mtty"].mdev_types[0].available_instances, 24);
    let other = &inventory.mdevs["a1a1a1a1-509f-382f-3c1e-e6bfe0fa1002"];
    assert_eq!(other.parent, MdevParentName::Other("mtty".to_owned()));
}

#[test]
fn a_character_device_of_vfio_counts_only_with_its_node() {
    let tree = Tree::new();
    let device_without = tree.pci("pci0000:00/0000:00:02.0");
    device_without.driver("vfio-pci").file("vfio-dev/vfio0/uevent", "");
    tree.pci("pci0000:00/0000:00:03.0").driver("vfio-pci").file("vfio-dev/vfio1/dev", "511:1\n");
    let inventory = tree.scan();
    assert_eq!(device(&inventory, "0000:00:02.0").vfio_cdev, None);
    assert_eq!(device(&inventory, "0000:00:03.0").vfio_cdev.as_deref(), Some("vfio1"));
    assert!(!inventory.iommufd);
    tree.file("dev/iommu", "");
    assert!(tree.scan().iommufd);
}

#[rstest]
#[case::answers(Some([0x86; 256].to_vec()), "D0", ConfigSpace::Answers)]
#[case::gone(Some([0xff; 256].to_vec()), "D0", ConfigSpace::Gone)]
#[case::half(Some([0x86; 12].to_vec()), "D0", ConfigSpace::Unreadable("has only 12 of 64 bytes".to_owned()))]
#[case::powered_off(Some([0xff; 256].to_vec()), "D3cold", ConfigSpace::PoweredOff)]
#[case::absent(None, "D0", ConfigSpace::Absent)]
fn the_configuration_space_says_whether_the_device_is_there(
    #[case] content: Option<Vec<u8>>,
    #[case] power: &str,
    #[case] expected: ConfigSpace,
) {
    let tree = Tree::new();
    let pci = tree.pci("pci0000:00/0000:00:02.0");
    pci.file("power_state", power);
    match content {
        Some(content) => pci.file("config", content),
        None => pci.without("config"),
    };
    assert_eq!(device(&tree.scan(), "0000:00:02.0").config, expected);
}

#[test]
fn only_a_graphics_card_can_be_the_boot_console() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:00:02.0").class(0x03_0000).file("boot_vga", "1\n");
    tree.pci("pci0000:00/0000:00:03.0").class(0x03_0000).file("boot_vga", "0\n");
    tree.pci("pci0000:00/0000:00:04.0").file("boot_vga", "1\n");
    let inventory = tree.scan();
    let boot: Vec<_> =
        inventory.devices.values().filter(|device| device.boot_vga).map(|device| device.address).collect();
    assert_eq!(boot, [address("0000:00:02.0")]);
}

#[rstest]
#[case::dead_link("vendor", None, "there is no such file")]
#[case::words("vendor", Some("intel"), "\"intel\" is not a hexadecimal number of at most 0xffff")]
#[case::too_large("device", Some("0x12345"), "not a hexadecimal number of at most 0xffff")]
#[case::sign("class", Some("0x+20000"), "not a hexadecimal number")]
#[case::numa("numa_node", Some("4096"), "4096 is not a NUMA node")]
#[case::numa_words("numa_node", Some("none"), "\"none\" is not a number")]
#[case::binary("power_state", Some("\u{0}"), "")]
fn an_odd_file_is_a_problem_of_its_device_alone(
    #[case] file: &str,
    #[case] content: Option<&str>,
    #[case] problem: &str,
) {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:00:01.0");
    let odd = tree.pci("pci0000:00/0000:00:02.0");
    match content {
        Some(content) => odd.file(file, content),
        None => odd.without(file),
    };
    let inventory = tree.scan();
    assert_eq!(problems(device(&inventory, "0000:00:01.0")), "");
    let found = problems(device(&inventory, "0000:00:02.0"));
    assert!(found.contains(problem), "{found}");
    assert!(problem.is_empty() || found.contains(&format!("0000:00:02.0/{file}")), "{found}");
}

#[test]
fn odd_entries_never_end_a_scan() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:00:01.0");
    tree.raw_link("sys/bus/pci/devices/0000:00:02.0", "../../../devices/nowhere/0000:00:02.0");
    tree.raw_link("sys/bus/pci/devices/0000:00:03.0", "0000:00:03.0");
    tree.file("sys/bus/pci/devices/0000:00:04.0", "a file");
    tree.raw_link("sys/bus/pci/devices/not-an-address", "../../../devices");
    tree.pci("pci0000:00/0000:00:05.0").file("vendor", vec![b'x'; 100_000]);
    tree.pci("pci0000:00/0000:00:06.0").without("vendor").file("vendor/directory", "");
    tree.pci("pci0000:00/0000:00:07.0").file("driver", "not a link");
    tree.pci("pci0000:00/0000:00:08.0").link("iommu_group", "sys/kernel/iommu_groups/many");
    tree.pci("pci0000:00/0000:00:09.0").file("vendor", [0xff, 0xfe]);
    tree.pci("virtual/0000:00:0a.0");
    tree.directory("sys/kernel/iommu_groups/unnumbered");
    let inventory = tree.scan();
    assert_eq!(inventory.devices.len(), 10);
    assert_eq!(problems(device(&inventory, "0000:00:01.0")), "");
    for (number, expected) in [
        ("2", "points to a directory that does not exist"),
        ("3", "symbolic links"),
        ("4", "os error"),
        ("5", "more than 65536 bytes"),
        ("6", "directory"),
        ("7", "Invalid argument"),
        ("8", "\"many\", which is not the number of a group"),
        ("9", "is not text"),
        ("a", "not below a PCI root"),
    ] {
        let found = problems(device(&inventory, &format!("0000:00:0{number}.0")));
        assert!(found.contains(expected), "{number}: {found}");
    }
    let found: String = inventory.problems.iter().map(ToString::to_string).collect();
    assert!(found.contains("not-an-address") && found.contains("unnumbered: is not the number of a group"), "{found}");
}

#[test]
fn a_file_that_may_not_be_read_is_a_problem() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may read everything");
        return;
    }
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:00:02.0");
    let path = tree.path("sys/devices/pci0000:00/0000:00:02.0/vendor");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o000)).unwrap();
    assert!(problems(device(&tree.scan(), "0000:00:02.0")).contains("Permission denied"));
}

#[test]
fn a_host_without_pci_in_sysfs_is_an_error_that_names_the_directory() {
    let tree = Tree::new();
    tree.remove("sys/bus");
    let error = Inventory::scan(&tree.sysfs()).unwrap_err();
    assert!(matches!(error, ScanError::List { .. }));
    assert!(error.to_string().contains("sys/bus/pci/devices"), "{error}");
}

#[test]
fn the_nearest_root_complex_is_that_of_the_device() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:01.0/10000:e1:00.0");
    let inventory = tree.scan();
    assert_eq!(device(&inventory, "10000:e1:00.0").pcie_root.as_deref(), Some("pci10000:e0"));
}

#[test]
fn the_ids_are_those_of_the_modalias_or_of_their_own_files() {
    let tree = Tree::new();
    let modalias = "pci:v000010DEd00002204sv00001043sd000087E4bc03sc02i00\n";
    tree.pci("pci0000:00/0000:00:02.0").file("modalias", modalias).without("vendor");
    tree.pci("pci0000:00/0000:00:03.0").file("modalias", "something else");
    let inventory = tree.scan();
    let by_modalias = device(&inventory, "0000:00:02.0");
    assert_eq!((by_modalias.vendor, by_modalias.device, by_modalias.class), (0x10de, 0x2204, 0x03_0200));
    assert_eq!((by_modalias.subsystem_vendor, by_modalias.subsystem_device), (0x1043, 0x87e4));
    assert_eq!(problems(by_modalias), "");
    let by_files = device(&inventory, "0000:00:03.0");
    assert_eq!((by_files.vendor, by_files.device, by_files.class), (0x8086, 0x10d3, 0x02_0000));
}
