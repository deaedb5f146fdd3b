//! IOMMU groups and their viability.

use rstest::rstest;

use crate::support::{Tree, address};

const BRIDGE: u32 = 0x06_0400;

#[rstest]
#[case::none(None, true)]
#[case::vfio(Some("vfio-pci"), true)]
#[case::variant(Some("mlx5_vfio_pci"), true)]
#[case::other_variant(Some("nvgrace_gpu_vfio_pci"), true)]
#[case::stub(Some("pci-stub"), true)]
#[case::port(Some("pcieport"), true)]
#[case::network(Some("e1000e"), false)]
#[case::sound(Some("snd_hda_intel"), false)]
fn a_group_is_viable_if_no_member_has_a_driver_of_the_host(#[case] driver: Option<&str>, #[case] is_viable: bool) {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:01:00.0").group(3).driver("vfio-pci");
    let member = tree.pci("pci0000:00/0000:01:00.1");
    member.group(3);
    if let Some(driver) = driver {
        member.driver(driver);
    }
    let inventory = tree.scan();
    let group = &inventory.groups[&3];
    assert_eq!(group.devices, [address("0000:01:00.0"), address("0000:01:00.1")]);
    assert_eq!(group.viability.is_viable(), is_viable, "{}", group.viability);
}

#[test]
fn what_blocks_a_group_is_named_with_its_driver() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:01:00.0").group(3).driver("nvidia");
    tree.pci("pci0000:00/0000:01:00.1").group(3).driver("snd_hda_intel");
    tree.pci("pci0000:00/0000:00:01.0").group(3).class(BRIDGE).driver("pcieport");
    let inventory = tree.scan();
    let viability = &inventory.groups[&3].viability;
    assert_eq!(
        viability.to_string(),
        "not viable: 0000:01:00.0 is bound to driver nvidia, 0000:01:00.1 is bound to driver snd_hda_intel"
    );
    let rest = viability.once_bound(&[address("0000:01:00.0")]);
    assert_eq!(rest.to_string(), "not viable: 0000:01:00.1 is bound to driver snd_hda_intel");
    assert!(viability.once_bound(&[address("0000:01:00.0"), address("0000:01:00.1")]).is_viable());
}

#[test]
fn a_member_of_another_bus_blocks_a_group_too() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:01:00.0").group(3);
    tree.directory("sys/devices/platform/ethernet.0");
    tree.link("sys/devices/platform/ethernet.0/driver", "sys/bus/platform/drivers/stmmac");
    tree.link("sys/kernel/iommu_groups/3/devices/ethernet.0", "sys/devices/platform/ethernet.0");
    let inventory = tree.scan();
    let group = &inventory.groups[&3];
    assert_eq!(group.other_devices, ["ethernet.0"]);
    assert_eq!(group.viability.to_string(), "not viable: ethernet.0 is bound to driver stmmac");
    assert!(!group.viability.once_bound(&group.devices).is_viable(), "it cannot be bound to VFIO here");
}

#[test]
fn a_host_without_an_iommu_has_no_groups() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:01:00.0");
    tree.remove("sys/kernel");
    let inventory = tree.scan();
    assert!(inventory.groups.is_empty() && inventory.problems.is_empty(), "{inventory:?}");
}

#[test]
fn a_group_without_an_iommu_is_distinguished_from_a_real_one() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:01:00.0").group(0).driver("vfio-pci");
    tree.pci("pci0000:00/0000:02:00.0").group(1).driver("vfio-pci");
    tree.file("sys/kernel/iommu_groups/0/name", "vfio-noiommu\n");
    let inventory = tree.scan();
    assert!(inventory.groups[&0].is_noiommu);
    assert!(!inventory.groups[&1].is_noiommu);
    assert!(inventory.problems.is_empty(), "{:?}", inventory.problems);
}
