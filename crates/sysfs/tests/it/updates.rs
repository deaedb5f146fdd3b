//! What an event changes in an inventory, and what it costs.

use std::collections::BTreeSet;

use drakkar_sysfs::{Action, Changes, ConfigSpace, Inventory, Uevent};
use rstest::rstest;

use crate::support::{Tree, address, device, event};

const NIC: &str = "0000:01:00.0";
const NIC_PATH: &str = "pci0000:00/0000:01:00.0";

/// A tree with this many devices, two in a group.
fn tree_of(devices: usize) -> Tree {
    let tree = Tree::new();
    for number in 0..devices {
        let (bus, slot, function) = (number / 256 + 1, number / 8 % 32, number % 8);
        let pci = tree.pci(&format!("pci0000:00/0000:{bus:02x}:{slot:02x}.{function}"));
        pci.group(u32::try_from(number / 2).unwrap()).driver("e1000e");
    }
    tree
}

/// The inventory after the event is the one that a new scan finds.
fn apply(tree: &Tree, inventory: &mut Inventory, event: &Uevent) -> Changes {
    let changes = inventory.apply(&tree.sysfs(), event).unwrap();
    assert_eq!(*inventory, tree.scan());
    changes
}

fn set<T: Ord>(values: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    values.into_iter().collect()
}

#[test]
fn a_new_driver_changes_its_device_and_the_group() {
    let tree = tree_of(4);
    let mut inventory = tree.scan();
    for function in [0, 1] {
        let path = format!("pci0000:00/0000:01:00.{function}");
        tree.link(&format!("sys/devices/{path}/driver"), "sys/bus/pci/drivers/vfio-pci");
        let changes = apply(&tree, &mut inventory, &event(Action::Bind, "pci", &path));
        let changed = set([address(&format!("0000:01:00.{function}"))]);
        assert_eq!(changes, Changes { changed, groups: set([0]), ..Changes::default() });
    }
    assert!(inventory.groups[&0].viability.is_viable());
    assert!(!inventory.groups[&1].viability.is_viable());
}

#[test]
fn a_removed_device_leaves_the_inventory_and_its_group() {
    let tree = tree_of(4);
    let mut inventory = tree.scan();
    tree.remove(&format!("sys/bus/pci/devices/{NIC}"));
    tree.remove(&format!("sys/devices/{NIC_PATH}"));
    tree.remove(&format!("sys/kernel/iommu_groups/0/devices/{NIC}"));
    let changes = apply(&tree, &mut inventory, &event(Action::Remove, "pci", NIC_PATH));
    assert_eq!(changes, Changes { removed: set([address(NIC)]), groups: set([0]), ..Changes::default() });
    assert_eq!(inventory.groups[&0].devices, [address("0000:01:00.1")]);
}

#[test]
fn the_last_device_of_a_group_takes_the_group_with_it() {
    let tree = Tree::new();
    tree.pci(NIC_PATH).group(9);
    let mut inventory = tree.scan();
    tree.remove(&format!("sys/bus/pci/devices/{NIC}"));
    tree.remove("sys/kernel/iommu_groups/9");
    apply(&tree, &mut inventory, &event(Action::Remove, "pci", NIC_PATH));
    assert!(inventory.groups.is_empty() && inventory.devices.is_empty());
}

#[test]
fn a_late_event_about_a_device_that_is_there_again_removes_nothing() {
    let tree = tree_of(2);
    let mut inventory = tree.scan();
    let changes = apply(&tree, &mut inventory, &event(Action::Remove, "pci", NIC_PATH));
    assert!(changes.is_empty(), "{changes:?}");
}

#[test]
fn new_virtual_functions_change_their_physical_function() {
    let tree = Tree::new();
    let physical = tree.pci("pci0000:00/0000:03:00.0");
    physical.group(1).file("sriov_totalvfs", "8\n").file("sriov_numvfs", "0\n");
    let mut inventory = tree.scan();
    physical.file("sriov_numvfs", "1\n");
    tree.pci("pci0000:00/0000:03:10.0").group(2).virtual_function_of(&physical, 0);
    let changes = apply(&tree, &mut inventory, &event(Action::Add, "pci", "pci0000:00/0000:03:10.0"));
    let expected = Changes {
        added: set([address("0000:03:10.0")]),
        changed: set([address("0000:03:00.0")]),
        groups: set([2]),
        ..Changes::default()
    };
    assert_eq!(changes, expected);

    tree.remove("sys/bus/pci/devices/0000:03:10.0");
    tree.remove("sys/kernel/iommu_groups/2");
    tree.remove("sys/devices/pci0000:00/0000:03:00.0/virtfn0");
    physical.file("sriov_numvfs", "0\n");
    let changes = apply(&tree, &mut inventory, &event(Action::Remove, "pci", "pci0000:00/0000:03:10.0"));
    assert_eq!((changes.removed, changes.changed), (set([address("0000:03:10.0")]), set([address("0000:03:00.0")])));
}

#[test]
fn a_new_mediated_device_changes_what_its_parent_has_left() {
    let tree = Tree::new();
    tree.pci(NIC_PATH).driver("nvidia");
    tree.mdev_type(NIC_PATH, "nvidia-63", 2);
    tree.directory("sys/bus/mdev/devices");
    let mut inventory = tree.scan();
    let uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";
    tree.mdev(uuid, NIC_PATH, "nvidia-63", 12);
    tree.mdev_type(NIC_PATH, "nvidia-63", 1);
    let changes = apply(&tree, &mut inventory, &event(Action::Add, "mdev", &format!("{NIC_PATH}/{uuid}")));
    let expected = Changes {
        changed: set([address(NIC)]),
        groups: set([12]),
        mdevs: set([uuid.to_owned()]),
        ..Changes::default()
    };
    assert_eq!(changes, expected);
    assert_eq!(device(&inventory, NIC).mdev_types[0].available_instances, 1);

    tree.remove(&format!("sys/bus/mdev/devices/{uuid}"));
    tree.remove(&format!("sys/devices/{NIC_PATH}/{uuid}"));
    tree.remove("sys/kernel/iommu_groups/12");
    tree.mdev_type(NIC_PATH, "nvidia-63", 2);
    apply(&tree, &mut inventory, &event(Action::Remove, "mdev", &format!("{NIC_PATH}/{uuid}")));
    assert!(inventory.mdevs.is_empty());
    assert_eq!(device(&inventory, NIC).mdev_types[0].available_instances, 2);
}

#[test]
fn a_parent_of_another_bus_comes_with_an_event_of_its_own() {
    let tree = Tree::new();
    tree.directory("sys/class/mdev_bus");
    let mut inventory = tree.scan();
    tree.mdev_type("virtual/mtty/mtty", "mtty-1", 24);
    tree.link("sys/class/mdev_bus/mtty", "sys/devices/virtual/mtty/mtty");
    let Uevent::Device(mut registered) = event(Action::Change, "mtty", "virtual/mtty/mtty") else { unreachable!() };
    registered.properties.insert("MDEV_STATE".to_owned(), "registered".to_owned());
    let changes = apply(&tree, &mut inventory, &Uevent::Device(registered));
    assert_eq!(changes.mdev_parents, set(["mtty".to_owned()]));
}

#[test]
fn character_devices_of_vfio_belong_to_the_device_above() {
    let tree = tree_of(1);
    tree.link(&format!("sys/devices/{NIC_PATH}/driver"), "sys/bus/pci/drivers/vfio-pci");
    let mut inventory = tree.scan();
    tree.file(&format!("sys/devices/{NIC_PATH}/vfio-dev/vfio0/dev"), "511:0\n");
    apply(&tree, &mut inventory, &event(Action::Add, "vfio-dev", &format!("{NIC_PATH}/vfio-dev/vfio0")));
    assert_eq!(device(&inventory, NIC).vfio_cdev.as_deref(), Some("vfio0"));
    tree.file("dev/iommu", "");
    apply(&tree, &mut inventory, &event(Action::Add, "misc", "virtual/misc/iommu"));
    assert!(inventory.iommufd);
}

#[test]
fn lost_events_are_made_up_for_by_a_scan_that_says_what_changed() {
    let tree = tree_of(6);
    let mut inventory = tree.scan();
    tree.remove(&format!("sys/bus/pci/devices/{NIC}"));
    tree.remove(&format!("sys/kernel/iommu_groups/0/devices/{NIC}"));
    tree.link("sys/devices/pci0000:00/0000:01:00.4/driver", "sys/bus/pci/drivers/vfio-pci");
    tree.pci("pci0000:00/0000:07:00.0");
    let changes = apply(&tree, &mut inventory, &Uevent::Overflow);
    let expected = Changes {
        added: set([address("0000:07:00.0")]),
        removed: set([address(NIC)]),
        changed: set([address("0000:01:00.4")]),
        groups: set([0, 2]),
        rescanned: true,
        ..Changes::default()
    };
    assert_eq!(changes, expected);
}

#[test]
fn a_refresh_sees_what_no_event_tells() {
    let tree = tree_of(2);
    let mut inventory = tree.scan();
    tree.file(&format!("sys/devices/{NIC_PATH}/config"), [0xff; 256]);
    let changes = inventory.refresh(&tree.sysfs(), [address(NIC)]).unwrap();
    assert_eq!(changes, Changes { changed: set([address(NIC)]), ..Changes::default() });
    assert_eq!(device(&inventory, NIC).config, ConfigSpace::Gone);
}

/// Returns how many files an event costs in a tree of this size.
fn opens_of(devices: usize, event: &Uevent) -> u64 {
    let tree = tree_of(devices);
    let sysfs = tree.sysfs();
    let mut inventory = Inventory::scan(&sysfs).unwrap();
    let all = sysfs.opens();
    assert!(all > 10 * devices as u64, "the counter does not count: {all}");
    assert!(all < 30 * devices as u64 + 10, "a scan opens {all} files for {devices} devices");
    tree.link(&format!("sys/devices/{NIC_PATH}/driver"), "sys/bus/pci/drivers/vfio-pci");
    inventory.apply(&sysfs, event).unwrap();
    assert_eq!(inventory, tree.scan());
    sysfs.opens() - all
}

#[rstest]
#[case::bind(Action::Bind)]
#[case::unbind(Action::Unbind)]
#[case::change(Action::Change)]
fn an_event_costs_the_same_however_many_devices_there_are(#[case] action: Action) {
    let event = event(action, "pci", NIC_PATH);
    let few = opens_of(4, &event);
    let many = opens_of(200, &event);
    assert_eq!(few, many);
    assert!(many < 40, "{many} files for one event");
}

#[test]
fn an_event_of_another_subsystem_costs_nothing() {
    let tree = tree_of(4);
    let sysfs = tree.sysfs();
    let mut inventory = Inventory::scan(&sysfs).unwrap();
    let before = sysfs.opens();
    let changes = inventory.apply(&sysfs, &event(Action::Add, "net", &format!("{NIC_PATH}/net/eth0"))).unwrap();
    assert!(changes.is_empty());
    assert_eq!(sysfs.opens(), before);
}

#[test]
fn many_events_about_one_device_read_it_once() {
    let tree = tree_of(4);
    let sysfs = tree.sysfs();
    let mut inventory = Inventory::scan(&sysfs).unwrap();
    let one = event(Action::Change, "pci", NIC_PATH);
    let before = sysfs.opens();
    inventory.apply(&sysfs, &one).unwrap();
    let cost = sysfs.opens() - before;
    inventory.apply_all(&sysfs, &vec![one; 50]).unwrap();
    assert_eq!(sysfs.opens() - before, 2 * cost);
}
