//! A driver that is killed at every step: between any two writes to sysfs, and between any two changes of its files.
//!
//! One machine serves all steps of a case: after each of them it is found to be as it was.

use rstest::rstest;

use super::machine::{DISK, GPU, Life, Machine, claim, description, function, gpu_with_audio, mdev, vf};
use crate::mode::Mode;
use crate::prepare::DeviceRequest;

/// Returns the number of steps that preparing and unpreparing take.
fn steps(requests: &[DeviceRequest]) -> (u64, u64) {
    let machine = Machine::new();
    let life = Life::endless();
    let manager = machine.mortal(&life);
    manager.prepare(&claim("a"), requests).unwrap();
    let prepare = life.used();
    manager.unprepare(&claim("a").uid).unwrap();
    (prepare, life.used() - prepare)
}

/// Everything that a prepared claim should have is there, and unpreparing puts all of it back.
fn assert_prepared_or_untouched(
    machine: &Machine,
    before: &std::collections::BTreeMap<String, String>,
    requests: &[DeviceRequest],
    when: &str,
) {
    let (manager, recovery) = machine.restart(|_| true);
    assert!(recovery.problems.is_empty(), "{when}: {:?}", recovery.problems);
    match manager.prepared(&claim("a").uid) {
        Some(devices) => {
            let spec = machine.spec(&claim("a"));
            for device in &devices {
                if device.mode == Mode::Vfio {
                    assert!(device.driver.as_deref().is_some_and(|driver| driver != "igbvf"), "{when}: {device:?}");
                    assert!(!device.nodes.is_empty(), "{when}: {device:?}");
                }
                for node in &device.nodes {
                    assert!(machine.exists(&node.to_string_lossy()[1..]), "{when}: {node:?}");
                }
                let id = device.cdi_id.as_ref().map(ToString::to_string);
                assert!(id.is_none_or(|id| spec.contains_key(&id)), "{when}: {spec:?}");
            }
            let writes = machine.kernel.writes();
            assert_eq!(manager.prepare(&claim("a"), requests).unwrap(), devices, "{when}");
            assert_eq!(machine.kernel.writes(), writes, "{when}: nothing is written again");
        }
        None => {
            machine.assert_state(before, when);
            assert_eq!(machine.driver_files(), Vec::<String>::new(), "{when}");
            manager.prepare(&claim("a"), requests).unwrap_or_else(|error| panic!("{when}: {error}"));
        }
    }
    manager.unprepare(&claim("a").uid).unwrap_or_else(|error| panic!("{when}: {error}"));
    machine.assert_state(before, when);
    assert_eq!(machine.driver_files(), Vec::<String>::new(), "{when}");
}

fn kernel_mode(device: &str) -> DeviceRequest {
    DeviceRequest { mode: Mode::Kernel, ..function(device) }
}

#[rstest]
#[case::function(&[function(DISK)])]
#[case::group_of_two(&[gpu_with_audio()])]
#[case::virtual_function_on_demand(&[vf(2)])]
#[case::mediated_device(&[mdev("nvidia-1", 0)])]
#[case::two_devices(&[gpu_with_audio(), function(DISK)])]
#[case::several_kinds(&[vf(0), vf(3), mdev("nvidia-2", 0), function(DISK)])]
#[case::kernel_driver(&[kernel_mode(GPU)])]
fn killed_at_every_step_a_claim_is_prepared_or_untouched(#[case] requests: &[DeviceRequest]) {
    let (prepare, unprepare) = steps(requests);
    assert!(prepare >= 4 && unprepare >= 3, "{prepare} {unprepare}");
    let machine = Machine::new();
    let before = machine.kernel_state();
    for step in 0..=prepare {
        let prepared = machine.mortal(&Life::of(step)).prepare(&claim("a"), requests);
        assert_eq!(prepared.is_ok(), step == prepare);
        assert_prepared_or_untouched(&machine, &before, requests, &format!("prepare killed after step {step}"));
    }
    for step in 0..=unprepare {
        let manager = machine.mortal(&Life::of(prepare + step));
        manager.prepare(&claim("a"), requests).unwrap();
        assert_eq!(manager.unprepare(&claim("a").uid).is_ok(), step == unprepare);
        assert_prepared_or_untouched(&machine, &before, requests, &format!("unprepare killed after step {step}"));
    }
}

/// A device that an administrator has bound to vfio-pci at boot goes back there, and one that had no driver has none.
#[rstest]
#[case("vfio-pci")]
#[case("")]
fn killed_at_every_step_an_unusual_former_state_is_kept(#[case] driver: &str) {
    let mut unusual = description();
    let disk = unusual.devices.iter_mut().find(|device| device.address.to_string() == DISK).unwrap();
    disk.driver = Some(driver.into());
    for requests in [[function(DISK)], [kernel_mode(DISK)]] {
        let machine = Machine::with(&unusual);
        let before = machine.kernel_state();
        let life = Life::endless();
        let manager = machine.mortal(&life);
        manager.prepare(&claim("a"), &requests).unwrap();
        let steps = life.used();
        manager.unprepare(&claim("a").uid).unwrap();
        for step in 0..=steps {
            drop(machine.mortal(&Life::of(step)).prepare(&claim("a"), &requests));
            assert_prepared_or_untouched(&machine, &before, &requests, &format!("killed after step {step}"));
        }
    }
}

#[test]
fn killed_again_while_it_recovers_it_still_gets_there() {
    let requests = [vf(1)];
    let (prepare, _) = steps(&requests);
    let machine = Machine::new();
    let before = machine.kernel_state();
    for first in 0..prepare {
        for second in 0.. {
            drop(machine.mortal(&Life::of(first)).prepare(&claim("a"), &requests));
            let life = Life::of(second);
            let manager = machine.mortal(&life);
            drop(manager.recover(|_| true));
            let is_complete = life.used() < second;
            assert_prepared_or_untouched(&machine, &before, &requests, &format!("killed after {first} and {second}"));
            if is_complete {
                break;
            }
        }
    }
}

#[test]
fn killed_at_every_step_another_claim_of_the_same_group_and_device_is_not_harmed() {
    // Claim b holds a virtual function of the same device; the number of virtual functions stays for it.
    let requests = [vf(1)];
    let machine = Machine::new();
    for step in 0..40 {
        let other = machine.start();
        let held = other.prepare(&claim("b"), &[vf(0)]).unwrap();
        let before = machine.kernel_state();
        let life = Life::of(step);
        let mortal = machine.mortal(&life);
        // A mortal process that knows of b, and recovering costs it no step.
        mortal.recover(|_| true).unwrap();
        let is_complete = mortal.prepare(&claim("a"), &requests).is_ok() && mortal.unprepare(&claim("a").uid).is_ok();
        let (manager, _) = machine.restart(|claim| claim.name.as_str() == "b");
        machine.assert_state(&before, &format!("after step {step}"));
        assert_eq!(manager.prepared(&claim("b").uid), Some(held), "after step {step}");
        manager.unprepare(&claim("b").uid).unwrap();
        assert!(!machine.exists("sys/bus/pci/devices/0000:17:10.0"), "the last claim removes them");
        if is_complete {
            return;
        }
    }
    panic!("did not complete");
}
