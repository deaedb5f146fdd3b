//! The simulated kernel against the behaviour of Linux.

use std::fs;

use rstest::rstest;
use tempfile::TempDir;

use super::*;
use crate::Action;

pub(crate) const GPU: &str = "0000:65:00.0";
pub(crate) const AUDIO: &str = "0000:65:00.1";
pub(crate) const NIC: &str = "0000:17:00.0";

pub(crate) fn description() -> Description {
    serde_json::from_value(serde_json::json!({
        "vfio": {"cdev": true, "iommufd": true},
        "drivers": [
            {"name": "nvidia", "ids": ["10de:2331"]},
            {"name": "snd_hda_intel", "ids": ["10de:10fa"]},
            {"name": "igb", "ids": ["8086:10c9"], "sriov": true},
            {"name": "igbvf", "ids": ["8086:10ca"]},
        ],
        "devices": [
            {"address": "0000:64:00.0", "vendor": "8086", "device": "347a", "class": "060400", "pcieRoot": "pci0000:64", "iommuGroup": 9},
            {"address": GPU, "vendor": "10de", "device": "2331", "class": "030200", "parent": "0000:64:00.0", "pcieRoot": "pci0000:64",
             "iommuGroup": 12, "numaNode": 1, "drm": ["card0", "renderD128"],
             "mdev": {"capacity": 4, "types": [{"id": "nvidia-1", "cost": 1}, {"id": "nvidia-2", "cost": 2}]}},
            {"address": AUDIO, "vendor": "10de", "device": "10fa", "class": "040300", "parent": "0000:64:00.0", "iommuGroup": 12},
            {"address": NIC, "vendor": "8086", "device": "10c9", "class": "020000", "iommuGroup": 3, "net": ["eth0"],
             "sriov": {"totalVfs": 7, "vfDevice": "10ca"}},
            {"address": "0000:18:00.0", "vendor": "8086", "device": "ffff", "class": "020000"},
        ],
        "mdevParents": [{"name": "mtty", "capacity": 2, "types": [{"id": "mtty-1", "name": "Single port serial"}]}],
    }))
    .unwrap()
}

struct Machine {
    directory: TempDir,
    kernel: Simulation,
}

impl Machine {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let kernel = Simulation::create(directory.path(), &description()).unwrap();
        Self { directory, kernel }
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Errno> {
        let written = self.kernel.write(&self.directory.path().join("sys").join(path), value.as_bytes());
        written.map_err(|error| Errno::from_io_error(&error).unwrap())
    }

    fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.directory.path().join(path)).ok()?.trim_end().to_owned())
    }

    fn link(&self, path: &str) -> Option<String> {
        Some(fs::canonicalize(self.directory.path().join(path)).ok()?.file_name()?.to_str()?.to_owned())
    }

    fn exists(&self, path: &str) -> bool {
        self.directory.path().join(path).symlink_metadata().is_ok()
    }

    fn driver(&self, device: &str) -> Option<String> {
        self.link(&format!("sys/bus/pci/devices/{device}/driver"))
    }
}

#[test]
fn devices_start_with_the_driver_that_fits_and_with_what_it_makes() {
    let machine = Machine::new();
    assert_eq!(machine.driver(GPU).as_deref(), Some("nvidia"));
    assert_eq!(machine.driver("0000:64:00.0").as_deref(), Some("pcieport"));
    assert_eq!(machine.driver("0000:18:00.0"), None);
    assert_eq!(machine.link(&format!("sys/bus/pci/devices/{GPU}/iommu_group")).as_deref(), Some("12"));
    assert!(machine.exists("dev/dri/renderD128") && machine.exists("sys/class/net/eth0"));
    let path = fs::canonicalize(machine.directory.path().join(format!("sys/bus/pci/devices/{GPU}"))).unwrap();
    assert!(path.ends_with("sys/devices/pci0000:64/0000:64:00.0/0000:65:00.0"), "{path:?}");
}

#[test]
fn an_override_decides_alone_and_a_lone_newline_removes_it() {
    let machine = Machine::new();
    let file = format!("bus/pci/devices/{GPU}/driver_override");
    assert_eq!(machine.read(&format!("sys/{file}")).as_deref(), Some("(null)"));
    machine.write(&file, "vfio-pci\n").unwrap();
    assert_eq!(machine.read(&format!("sys/{file}")).as_deref(), Some("vfio-pci"));
    machine.write(&format!("bus/pci/devices/{GPU}/driver/unbind"), GPU).unwrap();
    assert_eq!(machine.write("bus/pci/drivers/nvidia/bind", GPU), Err(Errno::NODEV));
    machine.write("bus/pci/drivers_probe", GPU).unwrap();
    assert_eq!(machine.driver(GPU).as_deref(), Some("vfio-pci"));
    assert!(machine.exists("dev/vfio/12") && machine.exists("dev/vfio/devices/vfio0"));
    assert!(!machine.exists("dev/dri/renderD128"));
    machine.write(&file, "\n").unwrap();
    assert_eq!(machine.read(&format!("sys/{file}")).as_deref(), Some("(null)"));
    machine.write("bus/pci/drivers/vfio-pci/unbind", GPU).unwrap();
    assert!(!machine.exists("dev/vfio/12") && !machine.exists("dev/vfio/devices/vfio0"));
    machine.write("bus/pci/drivers/nvidia/bind", GPU).unwrap();
    assert!(machine.exists("dev/dri/renderD128"));
}

#[rstest]
#[case("bus/pci/drivers/nvidia/bind", GPU, Errno::BUSY)]
#[case("bus/pci/drivers/vfio-pci/bind", GPU, Errno::NODEV)]
#[case("bus/pci/drivers/nvidia/bind", "0000:ff:00.0", Errno::NODEV)]
#[case("bus/pci/drivers/vfio-pci/unbind", GPU, Errno::NODEV)]
#[case("bus/pci/drivers/nvidia/unbind", "no address", Errno::NODEV)]
#[case("bus/pci/drivers_probe", "0000:ff:00.0", Errno::NODEV)]
#[case("bus/pci/drivers/nothing/bind", GPU, Errno::NOENT)]
#[case("bus/pci/devices/0000:65:00.0/vendor", "1", Errno::ACCESS)]
#[case("bus/pci/devices/0000:17:00.0/sriov_numvfs", "8", Errno::RANGE)]
#[case("bus/pci/devices/0000:17:00.0/sriov_numvfs", "many", Errno::INVAL)]
#[case("class/mdev_bus/0000:65:00.0/mdev_supported_types/nvidia-1/create", "no uuid", Errno::INVAL)]
fn a_write_is_refused_as_by_linux(#[case] path: &str, #[case] value: &str, #[case] expected: Errno) {
    assert_eq!(Machine::new().write(path, value), Err(expected));
}

#[test]
fn vfio_refuses_a_device_without_a_group_and_drivers_probe_does_not_tell() {
    let machine = Machine::new();
    machine.write("bus/pci/devices/0000:18:00.0/driver_override", "vfio-pci").unwrap();
    assert_eq!(machine.write("bus/pci/drivers/vfio-pci/bind", "0000:18:00.0"), Err(Errno::INVAL));
    assert_eq!(machine.write("bus/pci/drivers_probe", "0000:18:00.0"), Ok(()));
    assert_eq!(machine.driver("0000:18:00.0"), None);
}

#[test]
fn a_groups_node_stays_until_its_last_member_leaves_vfio() {
    let machine = Machine::new();
    for device in [GPU, AUDIO] {
        machine.write(&format!("bus/pci/devices/{device}/driver/unbind"), device).unwrap();
        machine.write(&format!("bus/pci/devices/{device}/driver_override"), "vfio-pci").unwrap();
        machine.write("bus/pci/drivers/vfio-pci/bind", device).unwrap();
    }
    machine.write("bus/pci/drivers/vfio-pci/unbind", GPU).unwrap();
    assert!(machine.exists("dev/vfio/12"));
    machine.write("bus/pci/drivers/vfio-pci/unbind", AUDIO).unwrap();
    assert!(!machine.exists("dev/vfio/12"));
}

#[test]
fn virtual_functions_come_with_links_and_groups_and_their_number_changes_by_way_of_zero() {
    let machine = Machine::new();
    let file = format!("bus/pci/devices/{NIC}/sriov_numvfs");
    machine.write(&file, "2").unwrap();
    let vf = machine.link(&format!("sys/bus/pci/devices/{NIC}/virtfn1")).unwrap();
    assert_eq!(vf, "0000:17:10.1");
    assert_eq!(machine.link(&format!("sys/bus/pci/devices/{vf}/physfn")).as_deref(), Some(NIC));
    assert_eq!(machine.driver(&vf).as_deref(), Some("igbvf"));
    let groups = ["virtfn0", "virtfn1"]
        .map(|link| machine.link(&format!("sys/bus/pci/devices/{NIC}/{link}/iommu_group")).unwrap());
    assert_ne!(groups[0], groups[1]);
    assert_eq!(machine.write(&file, "3"), Err(Errno::BUSY));
    assert_eq!(machine.write(&file, "2"), Ok(()));
    machine.write(&file, "0").unwrap();
    assert!(!machine.exists(&format!("sys/bus/pci/devices/{vf}")));
    assert!(!machine.exists(&format!("sys/bus/pci/devices/{NIC}/virtfn0")));
    assert!(!machine.exists(&format!("sys/kernel/iommu_groups/{}", groups[0])));
}

#[test]
fn a_driver_that_cannot_make_virtual_functions_answers_enoent() {
    let machine = Machine::new();
    machine.write("bus/pci/drivers/igb/unbind", NIC).unwrap();
    assert_eq!(machine.write(&format!("bus/pci/devices/{NIC}/sriov_numvfs"), "2"), Err(Errno::NOENT));
}

#[test]
fn types_of_mediated_devices_share_their_parents_capacity() {
    let machine = Machine::new();
    let types = format!("class/mdev_bus/{GPU}/mdev_supported_types");
    let available = || {
        ["nvidia-1", "nvidia-2"]
            .map(|id| machine.read(&format!("sys/{types}/{id}/available_instances")).unwrap().parse::<u32>().unwrap())
    };
    let uuids = ["83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", "83b8f4f2-509f-382f-3c1e-e6bfe0fa1002"];
    assert_eq!(available(), [4, 2]);
    machine.write(&format!("{types}/nvidia-1/create"), uuids[0]).unwrap();
    assert_eq!(available(), [3, 1]);
    assert_eq!(machine.write(&format!("{types}/nvidia-2/create"), uuids[0]), Err(Errno::EXIST));
    machine.write(&format!("{types}/nvidia-2/create"), uuids[1]).unwrap();
    assert_eq!(available(), [1, 0]);
    assert_eq!(
        machine.write(&format!("{types}/nvidia-2/create"), &uuids[1].replace("1002", "1003")),
        Err(Errno::NOSPC)
    );
    let mdev = format!("sys/bus/mdev/devices/{}", uuids[1]);
    assert_eq!(machine.link(&format!("{mdev}/mdev_type")).as_deref(), Some("nvidia-2"));
    assert!(machine.exists(&format!("dev/vfio/{}", machine.link(&format!("{mdev}/iommu_group")).unwrap())));
    machine.write(&format!("bus/mdev/devices/{}/remove", uuids[1]), "1").unwrap();
    assert!(!machine.exists(&mdev));
    assert_eq!(available(), [3, 1]);
    machine.write("class/mdev_bus/mtty/mdev_supported_types/mtty-1/create", uuids[1]).unwrap();
    machine.write("bus/pci/drivers/nvidia/unbind", GPU).unwrap();
    assert!(!machine.exists(&format!("sys/bus/mdev/devices/{}", uuids[0])), "instances go with the parent's driver");
}

#[test]
fn a_driver_without_mixed_types_has_none_of_the_others_left() {
    let mut description = description();
    description.devices[1].mdev.as_mut().unwrap().homogeneous = true;
    let directory = TempDir::new().unwrap();
    let kernel = Simulation::create(directory.path(), &description).unwrap();
    let machine = Machine { directory, kernel };
    let types = format!("class/mdev_bus/{GPU}/mdev_supported_types");
    machine.write(&format!("{types}/nvidia-1/create"), "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001").unwrap();
    assert_eq!(machine.read(&format!("sys/{types}/nvidia-2/available_instances")).as_deref(), Some("0"));
}

#[test]
fn events_tell_what_happened_in_the_kernels_order() {
    let machine = Machine::new();
    let events = machine.kernel.uevents();
    machine.write(&format!("bus/pci/devices/{NIC}/sriov_numvfs"), "1").unwrap();
    machine.kernel.remove_device(GPU.parse().unwrap()).unwrap();
    let seen: Vec<_> = events
        .try_iter()
        .map(|event| match event {
            Uevent::Device(event) => (event.action, name(&event.path)),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (Action::Add, "0000:17:10.0"),
        (Action::Change, "0000:17:10.0"),
        (Action::Bind, "0000:17:10.0"),
        (Action::Change, NIC),
        (Action::Unbind, GPU),
        (Action::Remove, GPU),
    ];
    assert_eq!(seen, expected.map(|(action, device)| (action, device.to_owned())));
}

#[test]
fn faults_fail_are_ignored_or_come_late() {
    let machine = Machine::new();
    let file = format!("bus/pci/devices/{GPU}/driver_override");
    machine.kernel.inject(Fault::always(When::Nth(0), Effect::Fails(Errno::IO)));
    machine.kernel.inject(Fault::once(When::Path("driver_override".into()), Effect::Ignored));
    machine.kernel.inject(Fault::always(When::Value("bind".into(), GPU.into()), Effect::FailsLate(Errno::AGAIN)));
    assert_eq!(machine.write(&file, "vfio-pci"), Err(Errno::IO));
    assert_eq!(machine.write(&file, "vfio-pci"), Ok(()));
    assert_eq!(machine.read(&format!("sys/{file}")).as_deref(), Some("(null)"));
    machine.write(&file, "vfio-pci").unwrap();
    assert_eq!(machine.write("bus/pci/drivers/nvidia/unbind", GPU), Err(Errno::AGAIN));
    assert_eq!(machine.driver(GPU), None);
    assert_eq!(machine.kernel.writes(), 4);
}

#[test]
fn a_write_hangs_until_it_is_released_and_others_go_on() {
    let machine = Machine::new();
    machine.kernel.inject(Fault::once(When::Value("unbind".into(), GPU.into()), Effect::Hangs));
    std::thread::scope(|scope| {
        let hung = scope.spawn(|| machine.write("bus/pci/drivers/nvidia/unbind", GPU));
        while machine.kernel.writes() == 0 {
            std::thread::yield_now();
        }
        machine.write("bus/pci/drivers/igb/unbind", NIC).unwrap();
        assert_eq!(machine.driver(GPU).as_deref(), Some("nvidia"));
        while !hung.is_finished() {
            machine.kernel.release();
            std::thread::yield_now();
        }
        assert_eq!(hung.join().unwrap(), Ok(()));
    });
    assert_eq!(machine.driver(GPU), None);
}

#[test]
fn reading_waits_for_a_write_that_hangs_in_every_process_and_sees_its_effect() {
    let machine = Machine::new();
    let file = format!("sys/bus/pci/devices/{NIC}/sriov_numvfs");
    machine.kernel.inject(Fault::once(When::Path("sriov_numvfs".into()), Effect::Hangs));
    std::thread::scope(|scope| {
        let hung = scope.spawn(|| machine.write(&format!("bus/pci/devices/{NIC}/sriov_numvfs"), "2"));
        while !device_lock::is_fifo(&machine.directory.path().join(&file)) {
            std::thread::yield_now();
        }
        let other = Simulation::open(machine.directory.path(), &description()).unwrap();
        let readers = [(); 3].map(|()| scope.spawn(|| machine.read(&file)));
        let only = format!("sys/bus/pci/devices/{NIC}/driver_override");
        let path = machine.directory.path().join(&only);
        let writer = scope.spawn(move || other.write(&path, b"vfio-pci"));
        assert_eq!(machine.read(&format!("sys/bus/pci/devices/{GPU}/driver_override")).as_deref(), Some("(null)"));
        // Long enough for most of what does not wait; a slow machine only sees less.
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(readers.iter().all(|reader| !reader.is_finished()) && !writer.is_finished() && !hung.is_finished());
        assert!(!machine.exists(&format!("sys/bus/pci/devices/{NIC}/virtfn0")));

        machine.kernel.release();
        assert_eq!(hung.join().unwrap(), Ok(()));
        let read = readers.map(|reader| reader.join().unwrap().unwrap());
        assert!(read.iter().filter(|text| !text.is_empty()).all(|text| text == "2"), "{read:?}");
        assert!(read.iter().any(|text| text == "2"), "{read:?}");
        writer.join().unwrap().unwrap();
        assert_eq!((machine.read(&file).as_deref(), machine.read(&only).as_deref()), (Some("2"), Some("vfio-pci")));
    });
}

#[test]
fn the_lock_of_a_process_that_was_killed_ends_when_the_tree_is_opened_again() {
    let machine = Machine::new();
    let mut lock = DeviceLock::take(machine.directory.path(), GPU.parse().unwrap()).unwrap();
    lock.block(&machine.kernel.host()).unwrap();
    let file = format!("sys/bus/pci/devices/{GPU}/driver_override");
    let is_locked = || device_lock::is_fifo(&machine.directory.path().join(&file));
    Simulation::open(machine.directory.path(), &description()).unwrap();
    assert!(is_locked(), "its process lives");
    drop(lock);
    assert!(is_locked());
    Simulation::open(machine.directory.path(), &description()).unwrap();
    assert_eq!(machine.read(&file).as_deref(), Some("(null)"));
}

#[test]
fn a_tree_that_is_opened_again_goes_on_and_a_reboot_starts_over() {
    let machine = Machine::new();
    let boot = machine.read(BOOT_ID).unwrap();
    machine.write("bus/pci/drivers/nvidia/unbind", GPU).unwrap();
    let again = Simulation::open(machine.directory.path(), &description()).unwrap();
    assert_eq!((machine.driver(GPU), machine.read(BOOT_ID)), (None, Some(boot.clone())));
    again.reboot().unwrap();
    assert_eq!(machine.driver(GPU).as_deref(), Some("nvidia"));
    assert_ne!(machine.read(BOOT_ID), Some(boot));
}

#[test]
fn a_device_changes_its_group_and_comes_back_after_it_was_removed() {
    let machine = Machine::new();
    machine.kernel.change_group(AUDIO.parse().unwrap(), 40).unwrap();
    assert_eq!(machine.link(&format!("sys/bus/pci/devices/{AUDIO}/iommu_group")).as_deref(), Some("40"));
    assert!(!machine.exists(&format!("sys/kernel/iommu_groups/12/devices/{AUDIO}")));
    machine.kernel.remove_device("0000:64:00.0".parse().unwrap()).unwrap();
    assert!(!machine.exists(&format!("sys/bus/pci/devices/{GPU}")), "it was behind that bridge");
    assert!(machine.kernel.add_device(&description().devices[1]).is_err(), "its bridge is gone");
    machine.kernel.add_device(&description().devices[0]).unwrap();
    machine.kernel.add_device(&description().devices[1]).unwrap();
    assert_eq!(machine.driver(GPU).as_deref(), Some("nvidia"));
}

#[test]
fn a_description_survives_a_round_trip_and_wrong_numbers_are_refused() {
    let text = serde_json::to_string(&description()).unwrap();
    assert_eq!(serde_json::from_str::<Description>(&text).unwrap(), description());
    let wrong = text.replace("\"2331\"", "\"xyz\"");
    let error = serde_json::from_str::<Description>(&wrong).unwrap_err().to_string();
    assert!(error.contains("\"xyz\" is not a hexadecimal number of at most 4 digits"), "{error}");
}
