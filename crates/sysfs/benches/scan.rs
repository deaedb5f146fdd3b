//! Benchmarks of the scan and of updates, on a tree of 1,000 devices in memory.
//!
//! Every device has a driver, a PCIe link and an IOMMU group of its own; one in ten is a physical function with four virtual
//! functions among the others, one in a hundred has mediated devices.
//!
//! The promise: a scan of 1,000 devices takes less than 100 ms, an update after one event less than 5 ms, and an update opens
//! as many files in a tree of 10 devices as in one of 1,000 (which `tests/it/updates.rs` counts).
//!
//! `cargo bench -p drakkar-sysfs`

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/it/support.rs"]
#[allow(dead_code, reason = "the benchmarks need less than the tests")]
mod support;

use divan::Bencher;
use divan::counter::ItemsCount;
use drakkar_sysfs::{Action, HostUse, Inventory};

use self::support::{Tree, event};

fn main() {
    divan::main();
}

fn path(number: usize) -> String {
    let (bus, slot, function) = (number / 64 + 1, number / 8 % 8, number % 8);
    format!("pci0000:00/0000:00:{:02x}.0/0000:{bus:02x}:{slot:02x}.{function}", bus % 32)
}

fn tree(devices: usize) -> Tree {
    let tree = Tree::new();
    for number in 0..devices {
        let pci = tree.pci(&path(number));
        pci.driver("e1000e").group(u32::try_from(number).unwrap());
        for (file, content) in [
            ("modalias", "pci:v00008086d000010D3sv00008086sd0000A01Fbc02sc00i00"),
            ("max_link_speed", "16.0 GT/s PCIe"),
            ("max_link_width", "16"),
            ("current_link_speed", "16.0 GT/s PCIe"),
            ("current_link_width", "16"),
        ] {
            pci.file(file, format!("{content}\n"));
        }
        if number % 10 == 0 {
            pci.file("sriov_totalvfs", "8\n").file("sriov_numvfs", "4\n").file("sriov_drivers_autoprobe", "1\n");
            for function in 0..4 {
                pci.link(&format!("virtfn{function}"), &format!("sys/devices/{}", path(number + function + 1)));
            }
        } else if number % 10 < 5 {
            pci.link("physfn", &format!("sys/devices/{}", path(number - number % 10)));
        }
        if number % 100 == 99 {
            tree.mdev_type(&path(number), "nvidia-63", 4);
            tree.mdev_type(&path(number), "nvidia-64", 2);
        }
    }
    tree
}

#[divan::bench(args = [10, 100, 1000])]
fn scan(bencher: Bencher<'_, '_>, devices: usize) {
    let tree = tree(devices);
    let sysfs = tree.sysfs();
    bencher.counter(ItemsCount::new(devices)).bench(|| {
        let inventory = Inventory::scan(&sysfs).unwrap();
        assert_eq!(inventory.devices.len(), devices);
        inventory
    });
}

#[divan::bench(args = [10, 1000])]
fn update_after_a_bind(bencher: Bencher<'_, '_>, devices: usize) {
    let tree = tree(devices);
    let sysfs = tree.sysfs();
    let mut inventory = Inventory::scan(&sysfs).unwrap();
    let event = event(Action::Bind, "pci", &path(7));
    let mut is_vfio = false;
    bencher
        .with_inputs(|| {
            is_vfio = !is_vfio;
            let driver = if is_vfio { "vfio-pci" } else { "e1000e" };
            tree.link(&format!("sys/devices/{}/driver", path(7)), &format!("sys/bus/pci/drivers/{driver}"));
        })
        .bench_local_values(|()| {
            let changes = inventory.apply(&sysfs, &event).unwrap();
            assert_eq!(changes.changed.len(), 1);
            changes
        });
}

#[divan::bench]
fn update_after_a_new_virtual_function(bencher: Bencher<'_, '_>) {
    let tree = tree(1000);
    let sysfs = tree.sysfs();
    let mut inventory = Inventory::scan(&sysfs).unwrap();
    let event = event(Action::Add, "pci", &path(1));
    let address = "0000:01:00.1".parse().unwrap();
    bencher.bench_local(|| {
        inventory.devices.remove(&address);
        let changes = inventory.apply(&sysfs, &event).unwrap();
        assert_eq!(changes.added.len(), 1);
        changes
    });
}

#[divan::bench]
fn what_the_host_uses(bencher: Bencher<'_, '_>) {
    let tree = tree(1000);
    let sysfs = tree.sysfs();
    let inventory = Inventory::scan(&sysfs).unwrap();
    bencher.bench(|| HostUse::find(&sysfs, &inventory));
}
