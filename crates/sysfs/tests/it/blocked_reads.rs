//! Devices whose files block, as those of a device do while a driver does not let go of it.
//!
//! A FIFO that nobody writes to stands for such a file.

use std::time::{Duration, Instant};

use drakkar_sysfs::{Action, Inventory, Sysfs};

use crate::support::{Tree, address, device, event, problems};

/// Long enough for what does not block, on a busy machine.
const SHORT: Duration = Duration::from_secs(3);
const STUCK: &str = "0000:00:02.0";

/// A tree of three devices, of which the second blocks once [`block`] was called.
fn tree() -> (Tree, Sysfs) {
    let tree = Tree::new();
    for number in 1..4 {
        tree.pci(&format!("pci0000:00/0000:00:0{number}.0")).group(number).driver("e1000e");
    }
    let sysfs = tree.sysfs().with_read_timeout(SHORT);
    (tree, sysfs)
}

fn path(tree: &Tree) -> std::path::PathBuf {
    tree.path(format!("sys/devices/pci0000:00/{STUCK}/driver_override"))
}

fn block(tree: &Tree) {
    std::fs::remove_file(path(tree)).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, path(tree), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}

/// Lets the reading thread go on, and waits until it has.
fn release(tree: &Tree, is_released: impl Fn() -> bool) {
    std::fs::write(path(tree), "vfio-pci\n").unwrap();
    std::fs::remove_file(path(tree)).unwrap();
    std::fs::write(path(tree), "vfio-pci\n").unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !is_released() {
        assert!(Instant::now() < until, "the reading thread did not return");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_device_that_blocks_is_a_problem_of_its_own_and_the_others_are_read() {
    let (tree, sysfs) = tree();
    block(&tree);
    let inventory = Inventory::scan(&sysfs).unwrap();
    assert_eq!(inventory.devices.len(), 3);
    let found = problems(device(&inventory, STUCK));
    assert!(found.contains("reading the device blocks in the kernel"), "{found}");
    for other in ["0000:00:01.0", "0000:00:03.0"] {
        assert_eq!(problems(device(&inventory, other)), "");
        assert_eq!(device(&inventory, other).vendor, 0x8086);
    }
    release(&tree, || {
        let again = Inventory::scan(&sysfs).unwrap();
        device(&again, STUCK).driver_override.as_deref() == Some("vfio-pci")
    });
}

#[test]
fn an_update_keeps_what_is_known_of_a_device_that_blocks() {
    let (tree, sysfs) = tree();
    let mut inventory = Inventory::scan(&sysfs).unwrap();
    block(&tree);
    let bind = event(Action::Bind, "pci", &format!("pci0000:00/{STUCK}"));
    let changes = inventory.apply(&sysfs, &bind).unwrap();
    assert_eq!(changes.changed.into_iter().collect::<Vec<_>>(), [address(STUCK)]);
    let stuck = device(&inventory, STUCK);
    assert_eq!((stuck.vendor, stuck.driver.as_deref(), stuck.iommu_group), (0x8086, Some("e1000e"), Some(2)));
    assert!(problems(stuck).contains("may be old"), "{}", problems(stuck));

    // Known now: it is not tried again, which would lose a thread each time.
    let before = sysfs.opens();
    let changes = inventory.refresh(&sysfs, [address(STUCK)]).unwrap();
    assert!(changes.is_empty(), "{changes:?}");
    assert!(sysfs.opens() - before < 10, "{}", sysfs.opens() - before);

    let inventory = std::cell::RefCell::new(inventory);
    release(&tree, || {
        let mut inventory = inventory.borrow_mut();
        inventory.refresh(&sysfs, [address(STUCK)]).unwrap();
        problems(device(&inventory, STUCK)).is_empty()
    });
    assert_eq!(device(&inventory.borrow(), STUCK).driver_override.as_deref(), Some("vfio-pci"));
}

#[test]
fn a_device_with_a_hung_write_is_not_read() {
    let (tree, _) = tree();
    // The write hangs because nobody reads from the FIFO.
    tree.directory("sys/bus/pci/drivers/e1000e");
    let unbind = tree.path("sys/bus/pci/drivers/e1000e/unbind");
    rustix::fs::mknodat(rustix::fs::CWD, &unbind, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let sysfs = tree.sysfs().with_write_timeout(SHORT);
    assert!(sysfs.write(&address(STUCK), &unbind, STUCK).unwrap_err().is_hung());
    assert!(sysfs.ensure_no_hung_write(&address(STUCK), &path(&tree)).is_err());
    let inventory = Inventory::scan(&sysfs).unwrap();
    assert!(problems(device(&inventory, STUCK)).contains("blocks in the kernel"));
    assert_eq!(problems(device(&inventory, "0000:00:03.0")), "");
    assert_eq!(std::fs::read_to_string(&unbind).unwrap(), STUCK);
}

#[test]
fn a_device_that_goes_while_it_is_read_is_not_found_without_its_group() {
    let (tree, _) = tree();
    let sysfs = tree.sysfs().with_read_timeout(Duration::from_secs(60));
    block(&tree);
    let scan = std::thread::spawn(move || Inventory::scan(&sysfs).unwrap());
    // Opening it waits until the other thread is at this file. What comes after it is read when it goes on.
    let mut release = std::fs::File::options().write(true).open(path(&tree)).unwrap();
    std::fs::remove_file(tree.path(format!("sys/bus/pci/devices/{STUCK}"))).unwrap();
    std::fs::remove_file(tree.path(format!("sys/devices/pci0000:00/{STUCK}/iommu_group"))).unwrap();
    std::io::Write::write_all(&mut release, b"(null)\n").unwrap();
    drop(release);
    let inventory = scan.join().unwrap();
    assert!(!inventory.devices.contains_key(&address(STUCK)), "{:?}", inventory.devices.get(&address(STUCK)));
    assert_eq!(inventory.devices.len(), 2);
}
