//! What the host itself uses.

use drakkar_sysfs::{HostUse, InUseKind};
use rstest::rstest;

use crate::support::{Tree, address};

const HEADER: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
const DISK: &str = "0000:00:1f.2";

fn find(tree: &Tree) -> HostUse {
    HostUse::find(&tree.sysfs(), &tree.scan())
}

/// A disk with a partition behind a controller with this address at the root.
fn disk(tree: &Tree, controller: &str, disk: &str, number: &str) {
    tree.pci(&format!("pci0000:00/{controller}"));
    let directory = format!("sys/devices/pci0000:00/{controller}/ata1/host0/target0:0:0/0:0:0:0/block/{disk}");
    block(tree, disk, number, &directory);
}

fn block(tree: &Tree, name: &str, number: &str, directory: &str) {
    tree.directory(&format!("{directory}/slaves"));
    tree.file(&format!("{directory}/dev"), format!("{number}\n"));
    tree.link(&format!("sys/dev/block/{number}"), directory);
    tree.link(&format!("sys/class/block/{name}"), directory);
    tree.file(&format!("dev/{name}"), "");
}

fn partition(tree: &Tree, disk: &str, name: &str, number: &str) {
    let disk = tree.path(format!("sys/class/block/{disk}")).canonicalize().unwrap();
    let root = tree.path("").canonicalize().unwrap();
    let directory = disk.strip_prefix(&root).unwrap().join(name).to_str().unwrap().to_owned();
    tree.file(&format!("{directory}/partition"), "1\n");
    tree.link(&format!("sys/dev/block/{number}"), &directory);
    tree.link(&format!("sys/class/block/{name}"), &directory);
    tree.file(&format!("dev/{name}"), "");
}

/// A virtual block device on top of others.
fn stacked(tree: &Tree, name: &str, number: &str, below: &[&str]) {
    let directory = format!("sys/devices/virtual/block/{name}");
    block(tree, name, number, &directory);
    for slave in below {
        let target = tree.path(format!("sys/class/block/{slave}")).canonicalize().unwrap();
        let root = tree.path("").canonicalize().unwrap();
        tree.link(&format!("{directory}/slaves/{slave}"), target.strip_prefix(&root).unwrap().to_str().unwrap());
    }
}

fn mounts(tree: &Tree, lines: &[&str]) {
    tree.file("proc/1/mountinfo", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
}

/// The devices in use, with the first kind and detail of each.
fn uses(found: &HostUse) -> Vec<(String, InUseKind, &str)> {
    let first = |(address, uses): (&drakkar_sysfs::PciAddress, &'_ Vec<_>)| -> (String, InUseKind) {
        let first: &drakkar_sysfs::InUse = &uses[0];
        (address.to_string(), first.kind)
    };
    let details = found.devices.values().map(|uses| uses[0].detail.as_str());
    found.devices.iter().map(first).zip(details).map(|((address, kind), detail)| (address, kind, detail)).collect()
}

#[test]
fn the_controller_of_the_root_disk_is_in_use() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:00:03.0");
    disk(&tree, DISK, "sda", "8:0");
    partition(&tree, "sda", "sda1", "8:1");
    mounts(
        &tree,
        &[
            "24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
            "25 24 0:22 / /proc rw - proc proc rw",
            "31 24 8:1 /var/lib/x /var/lib/kubelet/pods/x rw - ext4 /dev/sda1 rw",
        ],
    );
    let found = find(&tree);
    assert_eq!(uses(&found), [(DISK.to_owned(), InUseKind::SystemDisk, "/dev/sda1 is mounted at / (ext4)")]);
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    assert!(found.of(&address("0000:00:03.0")).is_empty());
}

#[test]
fn a_root_on_device_mapper_on_raid_protects_both_controllers() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    disk(&tree, "0000:00:1e.0", "sdb", "8:16");
    partition(&tree, "sda", "sda2", "8:2");
    partition(&tree, "sdb", "sdb2", "8:18");
    stacked(&tree, "md0", "9:0", &["sda2", "sdb2"]);
    stacked(&tree, "dm-0", "253:0", &["md0"]);
    mounts(&tree, &["24 1 253:0 / / rw - xfs /dev/mapper/root rw"]);
    let found = find(&tree);
    assert_eq!(found.devices.keys().map(ToString::to_string).collect::<Vec<_>>(), ["0000:00:1e.0", DISK]);
}

#[test]
fn a_disk_that_is_part_of_a_volume_is_in_use_without_a_mount() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    disk(&tree, "0000:00:1e.0", "sdb", "8:16");
    stacked(&tree, "dm-4", "253:4", &["sdb"]);
    let directory = "sys/devices/pci0000:00/0000:00:1e.0/ata1/host0/target0:0:0/0:0:0:0/block/sdb";
    tree.link(&format!("{directory}/holders/dm-4"), "sys/devices/virtual/block/dm-4");
    mounts(&tree, &["24 1 8:0 / / rw - ext4 /dev/sda rw"]);
    let found = find(&tree);
    let volume = &found.of(&address("0000:00:1e.0"))[0];
    assert_eq!((volume.kind, volume.detail.as_str()), (InUseKind::Volume, "/dev/sdb is part of /dev/dm-4"));
}

#[test]
fn devices_on_top_of_each_other_in_a_circle_end() {
    let tree = Tree::new();
    stacked(&tree, "dm-0", "253:0", &[]);
    stacked(&tree, "dm-1", "253:1", &["dm-0"]);
    stacked(&tree, "dm-0", "253:0", &["dm-1"]);
    mounts(&tree, &["24 1 253:0 / / rw - xfs /dev/mapper/root rw"]);
    assert!(find(&tree).devices.is_empty());
}

#[test]
fn btrfs_on_two_disks_protects_both() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    disk(&tree, "0000:00:1e.0", "sdb", "8:16");
    for (name, controller) in [("sda", DISK), ("sdb", "0000:00:1e.0")] {
        let target = format!("sys/devices/pci0000:00/{controller}/ata1/host0/target0:0:0/0:0:0:0/block/{name}");
        tree.link(&format!("sys/fs/btrfs/5fc1/devices/{name}"), &target);
    }
    mounts(&tree, &["24 1 0:33 /@ / rw - btrfs /dev/sda rw"]);
    let found = find(&tree);
    assert_eq!(found.devices.len(), 2, "{found:?}");
    assert!(found.problems.is_empty(), "{:?}", found.problems);
}

#[test]
fn an_nvme_disk_with_several_paths_protects_all_its_controllers() {
    let tree = Tree::new();
    let subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys0";
    for (number, address) in [(0, "0000:05:00.0"), (1, "0000:06:00.0")] {
        tree.pci(&format!("pci0000:00/{address}"));
        let controller = format!("sys/devices/pci0000:00/{address}/nvme/nvme{number}");
        tree.directory(&controller);
        tree.link(&format!("{subsystem}/nvme{number}"), &controller);
    }
    block(&tree, "nvme0n1", "259:0", &format!("{subsystem}/nvme0n1"));
    partition(&tree, "nvme0n1", "nvme0n1p2", "259:2");
    mounts(&tree, &["24 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw"]);
    let found = find(&tree);
    assert_eq!(found.devices.keys().map(ToString::to_string).collect::<Vec<_>>(), ["0000:05:00.0", "0000:06:00.0"]);
}

#[test]
fn swap_space_is_in_use_also_under_the_name_of_the_device_mapper() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    disk(&tree, "0000:00:1e.0", "sdb", "8:16");
    stacked(&tree, "dm-3", "253:3", &["sdb"]);
    tree.raw_link("dev/mapper/swap", "../dm-3");
    mounts(&tree, &["24 1 8:0 / / rw - ext4 /dev/sda rw"]);
    tree.file(
        "proc/swaps",
        "Filename\tType\tSize\tUsed\tPriority\n/dev/mapper/swap  partition 1024 0 -2\n/swap\\040file file 1024 0 -3\n",
    );
    let found = find(&tree);
    let expected = (InUseKind::Swap, "/dev/mapper/swap is swap space");
    let swap = &found.of(&address("0000:00:1e.0"))[0];
    assert_eq!((swap.kind, swap.detail.as_str()), expected);
    assert!(found.problems.is_empty(), "{:?}", found.problems);
}

#[test]
fn a_disk_on_usb_protects_the_usb_controller() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:00:01.0").class(0x06_0400);
    tree.pci("pci0000:00/0000:00:01.0/0000:02:00.0");
    let directory =
        "sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdc";
    block(&tree, "sdc", "8:32", directory);
    mounts(&tree, &["40 24 8:32 / /mnt/with\\040space rw - vfat /dev/sdc rw"]);
    let found = find(&tree);
    let expected = "/dev/sdc is mounted at /mnt/with space (vfat)";
    assert_eq!(uses(&found), [("0000:02:00.0".to_owned(), InUseKind::MountedDisk, expected)], "and not the bridge");
}

/// A network card with an interface.
fn card(tree: &Tree, address: &str, interface: &str) {
    tree.pci(&format!("pci0000:00/{address}"));
    let directory = format!("sys/devices/pci0000:00/{address}/net/{interface}");
    tree.directory(&directory);
    tree.link(&format!("sys/class/net/{interface}"), &directory);
}

/// An interface on top of others.
fn upper(tree: &Tree, interface: &str, below: &[&str]) {
    let directory = format!("sys/devices/virtual/net/{interface}");
    tree.directory(&directory);
    tree.link(&format!("sys/class/net/{interface}"), &directory);
    for lower in below {
        tree.raw_link(&format!("{directory}/lower_{lower}"), &format!("../{lower}"));
    }
}

#[rstest]
#[case::v4("route", &format!("{HEADER}eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"))]
#[case::v6(
    "ipv6_route",
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 \
     00000001 00000000 00000003     eth0\n"
)]
fn the_card_of_a_default_route_is_in_use(#[case] file: &str, #[case] content: &str) {
    let tree = Tree::new();
    card(&tree, "0000:00:03.0", "eth0");
    card(&tree, "0000:00:04.0", "eth1");
    tree.file(&format!("proc/1/net/{file}"), content);
    let found = find(&tree);
    let expected = "the default route goes over eth0";
    assert_eq!(uses(&found), [("0000:00:03.0".to_owned(), InUseKind::DefaultRoute, expected)]);
}

#[rstest]
#[case::subnet("route", &format!("{HEADER}eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"), "192.168.1.0/24")]
#[case::half_of_everything(
    "route",
    &format!("{HEADER}eth0\t00000080\t0101A8C0\t0003\t0\t0\t100\t00000080\t0\t0\t0\n"),
    "128.0.0.0/1"
)]
#[case::v6(
    "ipv6_route",
    "20010db8000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 \
     00000001 00000000 00000001     eth0\n",
    "2001:db8::/64"
)]
fn the_card_of_any_other_route_is_in_use(#[case] file: &str, #[case] content: &str, #[case] destination: &str) {
    let tree = Tree::new();
    card(&tree, "0000:00:03.0", "eth0");
    card(&tree, "0000:00:04.0", "eth1");
    tree.file(&format!("proc/1/net/{file}"), content);
    let found = find(&tree);
    let expected = format!("the route to {destination} goes over eth0");
    assert_eq!(uses(&found), [("0000:00:03.0".to_owned(), InUseKind::Route, expected.as_str())]);
}

#[rstest]
#[case::link_local(
    "ipv6_route",
    "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 \
     00000001 00000000 00000001     eth0\n"
)]
#[case::multicast(
    "ipv6_route",
    "ff000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 \
     00000001 00000000 00000001     eth0\n"
)]
#[case::of_the_host_itself(
    "ipv6_route",
    "20010db8000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 \
     00000001 00000000 80200001     eth0\n"
)]
#[case::without_interface("route", &format!("{HEADER}*\t0000000A\t00000000\t0201\t0\t0\t0\t000000FF\t0\t0\t0\n"))]
#[case::down("route", &format!("{HEADER}eth0\t00000000\t00000000\t0002\t0\t0\t100\t00000000\t0\t0\t0\n"))]
#[case::reject(
    "ipv6_route",
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff \
     00000001 00000000 00200200       lo\n"
)]
#[case::odd("route", "eth0\n\n\t\t\n")]
fn these_routes_use_no_card(#[case] file: &str, #[case] content: &str) {
    let tree = Tree::new();
    card(&tree, "0000:00:03.0", "eth0");
    tree.file(&format!("proc/1/net/{file}"), content);
    let found = find(&tree);
    assert!(found.devices.is_empty());
    assert!(found.problems.iter().all(|problem| problem.path.ends_with("mountinfo")), "{:?}", found.problems);
}

#[test]
fn a_card_in_a_virtual_switch_is_in_use_whatever_has_the_route() {
    let tree = Tree::new();
    card(&tree, "0000:00:03.0", "eth0");
    card(&tree, "0000:00:04.0", "eth1");
    upper(&tree, "br-ex", &[]);
    upper(&tree, "ovs-system", &["eth0"]);
    tree.raw_link("sys/devices/pci0000:00/0000:00:03.0/net/eth0/master", "../../../../virtual/net/ovs-system");
    tree.file("proc/1/net/route", format!("{HEADER}br-ex\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"));
    let found = find(&tree);
    assert_eq!(uses(&found), [("0000:00:03.0".to_owned(), InUseKind::Interface, "eth0 is part of ovs-system")]);
}

#[test]
fn a_mounted_volume_of_zfs_is_a_problem() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    stacked(&tree, "zd0", "230:0", &[]);
    partition(&tree, "zd0", "zd0p1", "230:1");
    mounts(&tree, &["24 1 8:0 / / rw - ext4 /dev/sda rw", "25 24 230:1 / /data rw - ext4 /dev/zd0p1 rw"]);
    let found = find(&tree);
    let problems: Vec<_> = found.problems.iter().map(ToString::to_string).collect();
    let expected =
        "/dev/zd0: it is not known which disks this virtual one is made of, but /dev/zd0p1 is mounted at /data (ext4)";
    assert_eq!(problems, [expected]);
}

#[test]
fn disks_of_files_of_memory_and_of_the_network_are_no_problem() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    for (name, number) in [("loop0", "7:0"), ("nbd0", "43:0"), ("ram0", "1:0"), ("zram0", "252:0")] {
        stacked(&tree, name, number, &[]);
    }
    tree.file("sys/devices/virtual/block/loop0/loop/backing_file", "/var/lib/image\n");
    block(&tree, "sdb", "8:16", "sys/devices/platform/host3/session1/target3:0:0/3:0:0:1/block/sdb");
    let subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys0";
    tree.directory("sys/devices/virtual/nvme-fabrics/ctl/nvme0");
    tree.link(&format!("{subsystem}/nvme0"), "sys/devices/virtual/nvme-fabrics/ctl/nvme0");
    block(&tree, "nvme0n1", "259:0", &format!("{subsystem}/nvme0n1"));
    let numbers = ["8:0", "7:0", "43:0", "1:0", "252:0", "8:16", "259:0"];
    let lines: Vec<_> = numbers.iter().map(|number| format!("24 1 {number} / / rw - ext4 /dev/x rw")).collect();
    mounts(&tree, &lines.iter().map(String::as_str).collect::<Vec<_>>());
    let found = find(&tree);
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    assert_eq!(found.devices.len(), 1);
}

#[test]
fn a_loop_device_on_a_disk_protects_its_controller() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    stacked(&tree, "loop0", "7:0", &[]);
    tree.file("sys/devices/virtual/block/loop0/loop/backing_file", "/dev/sda\n");
    mounts(&tree, &["24 1 7:0 / /data rw - ext4 /dev/loop0 rw"]);
    let found = find(&tree);
    assert_eq!(uses(&found), [(DISK.to_owned(), InUseKind::MountedDisk, "/dev/loop0 is mounted at /data (ext4)")]);
}

#[test]
fn a_route_over_a_vlan_on_a_bridge_on_a_bond_protects_all_cards() {
    let tree = Tree::new();
    card(&tree, "0000:00:03.0", "eth0");
    card(&tree, "0000:00:04.0", "eth1");
    card(&tree, "0000:00:05.0", "eth2");
    upper(&tree, "bond0", &["eth0", "eth1"]);
    upper(&tree, "br0", &["bond0"]);
    upper(&tree, "br0.100", &["br0"]);
    tree.file("proc/1/net/route", format!("{HEADER}br0.100\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"));
    let found = find(&tree);
    assert_eq!(found.devices.keys().map(ToString::to_string).collect::<Vec<_>>(), ["0000:00:03.0", "0000:00:04.0"]);
    let detail = &found.of(&address("0000:00:04.0"))[0].detail;
    assert_eq!(detail, "the default route goes over br0.100, which is made of eth1");
}

#[test]
fn a_route_over_a_virtual_function_protects_its_physical_function() {
    let tree = Tree::new();
    let physical = tree.pci("pci0000:00/0000:03:00.0");
    physical.file("sriov_totalvfs", "8\n").file("sriov_numvfs", "1\n");
    card(&tree, "0000:03:10.0", "eth0");
    tree.link("sys/devices/pci0000:00/0000:03:10.0/physfn", "sys/devices/pci0000:00/0000:03:00.0");
    tree.file("proc/1/net/route", format!("{HEADER}eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"));
    let found = find(&tree);
    let physical = &found.of(&address("0000:03:00.0"))[0];
    assert_eq!(physical.kind, InUseKind::PhysicalFunction);
    assert_eq!(physical.detail, "its virtual function 0000:03:10.0 is used: the default route goes over eth0");
}

#[test]
fn a_group_with_a_device_in_use_is_in_use_but_for_its_bridges() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    tree.pci(&format!("pci0000:00/{DISK}")).group(4);
    tree.pci("pci0000:00/0000:00:1f.3").group(4);
    tree.pci("pci0000:00/0000:00:1f.0").group(4).class(0x06_0400);
    mounts(&tree, &["24 1 8:0 / / rw - ext4 /dev/sda rw"]);
    let found = find(&tree);
    assert_eq!(found.devices.len(), 2);
    let neighbour = &found.of(&address("0000:00:1f.3"))[0];
    assert_eq!(neighbour.kind, InUseKind::SameGroup);
    assert_eq!(
        neighbour.detail,
        "it is in IOMMU group 4 with 0000:00:1f.2, which is used: /dev/sda is mounted at / (ext4)"
    );
}

#[test]
fn graphics_cards_of_the_console_and_of_displays_are_in_use() {
    let tree = Tree::new();
    tree.pci("pci0000:00/0000:00:02.0").class(0x03_0000).file("boot_vga", "1\n");
    tree.pci("pci0000:00/0000:01:00.0").class(0x03_0000).file("graphics/fb0/name", "drm\n");
    tree.link("sys/class/graphics/fb0", "sys/devices/pci0000:00/0000:01:00.0/graphics/fb0");
    tree.link("sys/devices/pci0000:00/0000:01:00.0/graphics/fb0/device", "sys/devices/pci0000:00/0000:01:00.0");
    for (address, card, enabled) in [("0000:02:00.0", "card1", "enabled"), ("0000:03:00.0", "card2", "disabled")] {
        let name = format!("{card}-HDMI-A-1");
        let connector = format!("drm/{card}/{name}");
        tree.pci(&format!("pci0000:00/{address}")).class(0x03_0000);
        tree.file(&format!("sys/devices/pci0000:00/{address}/{connector}/enabled"), format!("{enabled}\n"));
        tree.link(&format!("sys/class/drm/{name}"), &format!("sys/devices/pci0000:00/{address}/{connector}"));
    }
    let found = find(&tree);
    assert!(found.devices.values().flatten().all(|used| used.kind == InUseKind::Console));
    let details: Vec<_> = uses(&found).into_iter().map(|(address, _, detail)| format!("{address}: {detail}")).collect();
    assert_eq!(
        details,
        [
            "0000:00:02.0: the firmware uses this graphics card for the console (boot_vga)",
            "0000:01:00.0: the console's framebuffer fb0 is on this graphics card",
            "0000:02:00.0: display connector card1-HDMI-A-1 is enabled",
        ]
    );
}

#[test]
fn what_cannot_be_found_out_is_a_problem() {
    let tree = Tree::new();
    mounts(
        &tree,
        &[
            "24 1 8:1 / / rw - ext4 /dev/sda1 rw",
            "25 24 0:44 / /tank rw - zfs tank/data rw",
            "26 24 0:45 / /more rw - bcachefs /dev/sdx:/dev/sdy rw",
            "odd",
        ],
    );
    tree.file("proc/1/net/route", format!("{HEADER}eth7\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"));
    let found = find(&tree);
    let text: Vec<_> = found.problems.iter().map(ToString::to_string).collect();
    let text = text.join("\n");
    for expected in [
        "dev/block/8:1: there is no such block device, but /dev/sda1 is mounted at / (ext4)",
        "the disks of ZFS pool tank/data (/tank) are not known",
        "/dev/sdx: there is no such block device",
        "/dev/sdy: there is no such block device",
        "\"odd\" is not a mount",
        "class/net/eth7: there is no such interface, but the default route goes over it",
        "1/mountinfo: names no disk",
    ] {
        assert!(text.contains(expected), "{expected} not in\n{text}");
    }
}

#[test]
fn a_container_without_the_hosts_procfs_is_noticed() {
    let tree = Tree::new();
    let found = find(&tree);
    assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
    assert!(found.problems[0].to_string().contains("a container needs the host's procfs"), "{:?}", found.problems);
}

#[test]
fn routes_that_cannot_be_read_are_a_problem_and_one_protocol_is_enough() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    mounts(&tree, &["24 1 8:0 / / rw - ext4 /dev/sda rw"]);
    std::fs::remove_file(tree.path("proc/1/net/route")).unwrap();
    let found = find(&tree);
    assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
    assert!(found.problems[0].to_string().contains("1/net/route: there is no such file"), "{:?}", found.problems);
    tree.file("proc/1/net/ipv6_route", "");
    assert!(find(&tree).problems.is_empty());
}

#[test]
fn a_console_that_cannot_be_found_out_is_a_problem() {
    let tree = Tree::new();
    disk(&tree, DISK, "sda", "8:0");
    mounts(&tree, &["24 1 8:0 / / rw - ext4 /dev/sda rw"]);
    tree.pci("pci0000:00/0000:00:02.0");
    let device = "sys/devices/pci0000:00/0000:00:02.0";
    for file in ["modalias", "boot_vga"] {
        drop(std::fs::remove_file(tree.path(format!("{device}/{file}"))));
    }
    tree.file(&format!("{device}/class"), "0x030000\n");
    let problems = |tree: &Tree| find(tree).problems.iter().map(ToString::to_string).collect::<Vec<_>>();
    let found = problems(&tree);
    assert!(found.len() == 1 && found[0].contains("0000:00:02.0/boot_vga: there is no such file"), "{found:?}");
    tree.file(&format!("{device}/boot_vga"), "?\n");
    let found = problems(&tree);
    assert!(found.len() == 1 && found[0].contains("0000:00:02.0/boot_vga"), "{found:?}");
    tree.file(&format!("{device}/boot_vga"), "0\n");
    assert_eq!(problems(&tree), Vec::<String>::new());
    // Not a directory.
    tree.file("sys/class/drm", "");
    let found = problems(&tree);
    assert!(found.len() == 1 && found[0].contains("class/drm"), "{found:?}");
}
