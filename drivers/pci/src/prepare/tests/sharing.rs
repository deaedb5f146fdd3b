//! Claims that exclude each other, and claims that share something.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::machine::{AUDIO, DISK, GPU, Machine, NIC, address, claim, function, gpu_with_audio, mdev, vf};
use crate::mode::Mode;
use crate::prepare::{DeviceManager, DeviceRequest};

fn conflict(manager: &DeviceManager, request: DeviceRequest) -> String {
    manager.prepare(&claim("b"), &[request]).unwrap_err().to_string()
}

#[test]
fn a_device_of_another_claim_is_refused_by_name() {
    let machine = Machine::new();
    let manager = machine.start();
    manager.prepare(&claim("a"), &[function(DISK), vf(0), mdev("nvidia-1", 0)]).unwrap();
    let before = machine.kernel_state();
    let error = conflict(&manager, function(DISK));
    assert!(error.contains("claim default/b") && error.contains("0000:03:00.0 is held by claim default/a"), "{error}");
    let error = conflict(&manager, function("0000:17:10.0"));
    assert!(error.contains("held by claim default/a"), "the same virtual function by its address: {error}");
    let error = conflict(&manager, function(NIC));
    assert!(error.contains("one of its virtual functions is held by claim default/a"), "{error}");
    let error = conflict(&manager, gpu_with_audio());
    assert!(error.contains("one of its mediated devices is held by claim default/a"), "{error}");
    assert!(conflict(&manager, mdev("nvidia-1", 0)).contains("held by claim default/a"));
    machine.assert_state(&before, "at the end");
    manager.prepare(&claim("b"), &[vf(1), mdev("nvidia-1", 1)]).unwrap();
}

#[test]
fn parts_of_a_device_that_another_claim_has_are_refused() {
    let machine = Machine::new();
    let manager = machine.start();
    manager.prepare(&claim("a"), &[function(NIC), gpu_with_audio()]).unwrap();
    let error = conflict(&manager, vf(0));
    assert!(error.contains("the physical function 0000:17:00.0 is held by claim default/a"), "{error}");
    let error = conflict(&manager, mdev("nvidia-1", 0));
    assert!(error.contains("its parent 0000:65:00.0 is held by claim default/a"), "{error}");
}

#[test]
fn a_device_twice_in_a_claim_is_refused() {
    let machine = Machine::new();
    let manager = machine.start();
    let error = manager.prepare(&claim("a"), &[function(DISK), function(DISK)]).unwrap_err().to_string();
    assert!(error.contains("0000:03:00.0 is requested twice"), "{error}");
    manager.prepare(&claim("a"), &[function(DISK)]).unwrap();
    let error = manager.prepare(&claim("a"), &[function(NIC)]).unwrap_err().to_string();
    assert!(error.contains("was prepared with other devices (0000:03:00.0)"), "{error}");
}

#[test]
fn a_group_is_for_user_space_or_for_kernel_drivers() {
    let machine = Machine::new();
    let manager = machine.start();
    let kernel = |device: &str| DeviceRequest { mode: Mode::Kernel, ..function(device) };
    manager.prepare(&claim("a"), &[kernel(AUDIO)]).unwrap();
    let error = conflict(&manager, gpu_with_audio());
    assert!(error.contains("0000:65:00.1 of the same IOMMU group is held by claim default/a"), "{error}");
    manager.unprepare(&claim("a").uid).unwrap();
    manager.prepare(&claim("a"), &[gpu_with_audio()]).unwrap();
    let error = conflict(&manager, kernel(AUDIO));
    assert!(error.contains("IOMMU group 12 is held by claim default/a"), "{error}");
}

/// Without a driver, nothing has to be bound, and still who has the group's node reaches every member.
#[test]
fn a_group_goes_to_one_claim_whatever_its_members_are_bound_to() {
    let machine = Machine::new();
    let manager = machine.start();
    let audio = || DeviceRequest { companions: vec![address(GPU)], ..function(AUDIO) };
    manager.prepare(&claim("a"), &[gpu_with_audio()]).unwrap();
    assert!(conflict(&manager, audio()).contains("IOMMU group 12 is held by claim default/a"));
    let none = DeviceRequest { mode: Mode::None, ..function(AUDIO) };
    assert!(conflict(&manager, none.clone()).contains("IOMMU group 12 is held by claim default/a"));
    // Also when the driver starts again in between.
    let (manager, _) = machine.restart(|_| true);
    assert!(conflict(&manager, audio()).contains("IOMMU group 12 is held by claim default/a"));
    manager.unprepare(&claim("a").uid).unwrap();
    for driver in ["nvidia", "snd_hda_intel"] {
        machine.kernel.unload_driver(driver).unwrap();
    }
    manager.prepare(&claim("a"), &[function(GPU)]).unwrap();
    assert!(conflict(&manager, function(AUDIO)).contains("IOMMU group 12 is held by claim default/a"));
    manager.unprepare(&claim("a").uid).unwrap();
    manager.prepare(&claim("a"), &[none]).unwrap();
    assert!(conflict(&manager, function(GPU)).contains("0000:65:00.1 of the same IOMMU group is held"));
    manager.unprepare(&claim("a").uid).unwrap();
    // One claim can have all of it.
    manager.prepare(&claim("a"), &[function(GPU), function(AUDIO)]).unwrap();
}

#[test]
fn virtual_functions_of_one_group_go_to_one_claim() {
    let machine = Machine::new();
    let numvfs = machine.path("host/sys/bus/pci/devices").join(NIC).join("sriov_numvfs");
    machine.kernel.sysfs().write(&"test", &numvfs, "4").unwrap();
    for function in ["0000:17:10.0", "0000:17:10.1"] {
        machine.kernel.change_group(address(function), 40).unwrap();
    }
    let manager = machine.start();
    let with = |companion: &str, index| DeviceRequest { companions: vec![address(companion)], ..vf(index) };
    manager.prepare(&claim("a"), &[with("0000:17:10.1", 0)]).unwrap();
    assert!(conflict(&manager, with("0000:17:10.0", 1)).contains("IOMMU group 40 is held by claim default/a"));
    manager.prepare(&claim("b"), &[vf(2)]).unwrap();
}

/// What is left as it is can be used as a whole all the same.
#[test]
fn the_mode_none_excludes_parts_and_wholes_too() {
    let machine = Machine::new();
    let manager = machine.start();
    let none = |device: &str| DeviceRequest { mode: Mode::None, ..function(device) };
    manager.prepare(&claim("a"), &[vf(0), mdev("nvidia-1", 0)]).unwrap();
    assert!(conflict(&manager, none(NIC)).contains("one of its virtual functions is held by claim default/a"));
    assert!(conflict(&manager, none(GPU)).contains("one of its mediated devices is held by claim default/a"));
    manager.unprepare(&claim("a").uid).unwrap();
    manager.prepare(&claim("a"), &[none(NIC), none(GPU)]).unwrap();
    assert!(conflict(&manager, vf(0)).contains("the physical function 0000:17:00.0 is held by claim default/a"));
    assert!(conflict(&manager, mdev("nvidia-1", 0)).contains("its parent 0000:65:00.0 is held by claim default/a"));
}

#[test]
fn virtual_functions_are_removed_by_the_last_claim() {
    let machine = Machine::new();
    let before = machine.kernel_state();
    let manager = machine.start();
    for (name, index) in [("a", 0), ("b", 1), ("c", 3)] {
        manager.prepare(&claim(name), &[vf(index)]).unwrap();
    }
    // More than there are: they would have to be removed.
    let error = manager.prepare(&claim("d"), &[vf(5)]).unwrap_err().to_string();
    assert!(error.contains("from 4 to 6") && error.contains("0000:17:10.0 is in use (claim default/a"), "{error}");
    manager.unprepare(&claim("a").uid).unwrap();
    manager.unprepare(&claim("c").uid).unwrap();
    assert!(machine.exists("sys/bus/pci/devices/0000:17:10.1"));
    manager.unprepare(&claim("b").uid).unwrap();
    machine.assert_state(&before, "at the end");
}

/// Gives a virtual function a network interface with the default route.
fn route_over(machine: &Machine, vf: &str) {
    let directory = machine.path(&format!("host/sys/bus/pci/devices/{vf}/net/eth9"));
    std::fs::create_dir_all(&directory).unwrap();
    let sys = machine.path("host/sys").canonicalize().unwrap();
    let target = directory.canonicalize().unwrap();
    let net = machine.path("host/sys/class/net");
    std::fs::create_dir_all(&net).unwrap();
    let target = std::path::Path::new("../..").join(target.strip_prefix(sys).unwrap());
    std::os::unix::fs::symlink(target, net.join("eth9")).unwrap();
    let route = "eth9\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
    std::fs::write(machine.path("host/proc/1/net/route"), route).unwrap();
}

#[test]
fn virtual_functions_that_the_host_uses_stay_when_the_last_claim_ends() {
    // Also if it is the one that the claim had.
    for used in ["0000:17:10.0", "0000:17:10.1"] {
        let machine = Machine::new();
        let manager = machine.start();
        manager.prepare(&claim("a"), &[DeviceRequest { mode: Mode::Kernel, ..vf(0) }]).unwrap();
        route_over(&machine, used);
        manager.unprepare(&claim("a").uid).unwrap();
        assert!(machine.exists(&format!("sys/bus/pci/devices/{used}")), "the host's network goes over {used}");
        assert_eq!(machine.driver_files(), Vec::<String>::new());
        // They are there for the next claim.
        manager.prepare(&claim("b"), &[vf(2)]).unwrap();
    }
}

#[test]
fn virtual_functions_that_the_host_uses_are_not_replaced_by_more() {
    let machine = Machine::new();
    let physical = machine.kernel.roots().pci_device(&address(NIC));
    let set = |number: &str| machine.kernel.sysfs().write(&NIC, &physical.join("sriov_numvfs"), number).unwrap();
    let manager = machine.start();
    manager.prepare(&claim("a"), &[vf(3)]).unwrap();
    let refused = |uid: &str, request: DeviceRequest| {
        let error = manager.prepare(&claim(uid), &[request]).unwrap_err().to_string();
        assert!(error.contains("0000:17:10.1 is in use (the host: the default route goes over eth9)"), "{error}");
        assert!(machine.exists("sys/class/net/eth9/../../driver"));
    };
    // Somebody has changed the number under a prepared claim, which the kubelet prepares again.
    set("0");
    set("2");
    route_over(&machine, "0000:17:10.1");
    refused("a", vf(3));
    manager.unprepare(&claim("a").uid).unwrap();
    refused("b", vf(3));
}

#[test]
fn claims_at_the_same_time_do_not_disturb_each_other() {
    let machine = Machine::new();
    let before = machine.kernel_state();
    let manager = machine.start();
    let all = [
        ("a", vec![gpu_with_audio()]),
        ("b", vec![DeviceRequest { companions: vec![address(GPU)], ..function(AUDIO) }]),
        ("c", vec![vf(0)]),
        ("d", vec![vf(1), function(DISK)]),
        ("e", vec![vf(2)]),
        ("f", vec![function(DISK)]),
    ];
    let barrier = Barrier::new(all.len());
    // A thread that fails must not leave the others at the barrier.
    let failures = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (name, requests) in &all {
            let manager = &manager;
            let (barrier, failures) = (&barrier, &failures);
            scope.spawn(move || {
                for _ in 0..8 {
                    barrier.wait();
                    // Of a and b one gets the group, of d and f one the disk; all others succeed.
                    let outcome = manager.prepare(&claim(name), requests);
                    let is_expected = outcome.is_ok() || matches!(*name, "a" | "b" | "d" | "f");
                    failures.fetch_add(usize::from(!is_expected), Ordering::SeqCst);
                    let unprepared = manager.unprepare(&claim(name).uid);
                    failures.fetch_add(usize::from(unprepared.is_err()), Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(failures.into_inner(), 0);
    machine.assert_state(&before, "at the end");
    assert_eq!(machine.driver_files(), Vec::<String>::new());
}
