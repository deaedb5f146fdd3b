//! Updates against the simulated kernel: after any changes and their events, an inventory is what a new scan finds.

use drakkar_sysfs::simulation::{Description, Device, Simulation};
use drakkar_sysfs::{
    Inventory, Kernel as _, MdevParentName, Sysfs, Uevent, bind_to, create_mdev, remove_mdev, set_num_vfs, unbind,
};
use proptest::prelude::*;

use crate::support::address;

const GPU: &str = "0000:65:00.0";
const AUDIO: &str = "0000:65:00.1";
const NIC: &str = "0000:17:00.0";
const UUIDS: [&str; 2] = ["83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", "83b8f4f2-509f-382f-3c1e-e6bfe0fa1002"];

fn description() -> Description {
    serde_json::from_value(serde_json::json!({
        "vfio": {"cdev": true, "iommufd": true},
        "drivers": [
            {"name": "nvidia", "ids": ["10de:2331"]},
            {"name": "snd_hda_intel", "ids": ["10de:10fa"]},
            {"name": "igb", "ids": ["8086:10c9"], "sriov": true},
            {"name": "igbvf", "ids": ["8086:10ca"]},
        ],
        "devices": [
            {"address": GPU, "vendor": "10de", "device": "2331", "class": "030200", "iommuGroup": 12, "numaNode": 1,
             "mdev": {"capacity": 2, "types": [{"id": "nvidia-1"}, {"id": "nvidia-2", "cost": 2}]}},
            {"address": AUDIO, "vendor": "10de", "device": "10fa", "class": "040300", "iommuGroup": 12},
            {"address": NIC, "vendor": "8086", "device": "10c9", "class": "020000", "iommuGroup": 3, "net": ["eth0"],
             "sriov": {"totalVfs": 7, "vfDevice": "10ca"}},
        ],
        "mdevParents": [{"name": "mtty", "capacity": 2, "types": [{"id": "mtty-1"}]}],
    }))
    .unwrap()
}

/// Something that happens to the host.
#[derive(Debug, Clone, Copy)]
enum Step {
    Bind(&'static str, &'static str),
    Unbind(&'static str),
    Probe(&'static str),
    VirtualFunctions(u16),
    BindVirtualFunction,
    CreateMdev(usize, bool),
    RemoveMdev(usize),
    ChangeGroup(u32),
    Unplug(&'static str),
    Plug(&'static str),
    LoseEvents,
}

fn step() -> impl Strategy<Value = Step> {
    let device = prop_oneof![Just(GPU), Just(AUDIO), Just(NIC)];
    prop_oneof![
        device.clone().prop_map(|device| Step::Bind(device, "vfio-pci")),
        Just(Step::Bind(GPU, "nvidia")),
        device.clone().prop_map(Step::Unbind),
        device.clone().prop_map(Step::Probe),
        (0u16..4).prop_map(Step::VirtualFunctions),
        Just(Step::BindVirtualFunction),
        (0usize..2, any::<bool>()).prop_map(|(uuid, on_pci)| Step::CreateMdev(uuid, on_pci)),
        (0usize..2).prop_map(Step::RemoveMdev),
        (20u32..22).prop_map(Step::ChangeGroup),
        device.clone().prop_map(Step::Unplug),
        device.prop_map(Step::Plug),
        Just(Step::LoseEvents),
    ]
}

/// Does a step. That the kernel refuses some of them is part of it.
fn perform(simulation: &Simulation, sysfs: &Sysfs, step: Step) {
    let refused = match step {
        Step::Bind(device, driver) => bind_to(sysfs, address(device), driver).is_err(),
        Step::Unbind(device) => unbind(sysfs, address(device)).is_err(),
        Step::Probe(device) => {
            simulation.write(&sysfs.roots().sys.join("bus/pci/drivers_probe"), device.as_bytes()).is_err()
        }
        Step::VirtualFunctions(number) => set_num_vfs(sysfs, address(NIC), number, |_| None).is_err(),
        Step::BindVirtualFunction => bind_to(sysfs, address("0000:17:10.0"), "vfio-pci").is_err(),
        Step::CreateMdev(uuid, true) => {
            create_mdev(sysfs, &MdevParentName::Pci(address(GPU)), "nvidia-1", UUIDS[uuid]).is_err()
        }
        Step::CreateMdev(uuid, false) => {
            create_mdev(sysfs, &MdevParentName::Other("mtty".to_owned()), "mtty-1", UUIDS[uuid]).is_err()
        }
        Step::RemoveMdev(uuid) => remove_mdev(sysfs, UUIDS[uuid]).is_err(),
        Step::ChangeGroup(group) => simulation.change_group(address(AUDIO), group).is_err(),
        Step::Unplug(device) => simulation.remove_device(address(device)).is_err(),
        Step::Plug(device) => {
            let devices: Vec<Device> = description().devices;
            let device = devices.iter().find(|described| described.address == address(device)).unwrap();
            let is_there = sysfs.roots().pci_device(&device.address).exists();
            is_there || simulation.add_device(device).is_err()
        }
        Step::LoseEvents => false,
    };
    // Nothing depends on it; the tree is what counts.
    let _ = refused;
}

/// Leaves out what the kernel sends no events about.
fn without_silent_changes(mut inventory: Inventory) -> Inventory {
    for device in inventory.devices.values_mut() {
        device.driver_override = None;
    }
    inventory
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn an_updated_inventory_is_what_a_scan_finds(steps in proptest::collection::vec((step(), any::<bool>()), 1..14)) {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let simulation = Simulation::create(directory.path(), &description()).unwrap();
        let sysfs = simulation.sysfs();
        let mut events = simulation.uevents();
        let mut inventory = Inventory::scan(&sysfs).unwrap();
        for (step, is_read_now) in steps {
            perform(&simulation, &sysfs, step);
            if matches!(step, Step::LoseEvents) {
                events = simulation.uevents();
                inventory.apply(&sysfs, &Uevent::Overflow).unwrap();
            }
            // Events also come late, several at a time.
            if is_read_now {
                let all: Vec<Uevent> = events.try_iter().collect();
                let before = inventory.clone();
                let changes = inventory.apply_all(&sysfs, &all).unwrap();
                let scanned = Inventory::scan(&sysfs).unwrap();
                prop_assert_eq!(without_silent_changes(inventory.clone()), without_silent_changes(scanned));
                prop_assert_eq!(changes.is_empty(), before == inventory, "{:?}", changes);
            }
        }
    }
}
