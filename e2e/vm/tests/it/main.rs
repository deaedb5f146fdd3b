//! Tests on a real kernel. `cargo xtask vm` runs them; they need the program that it builds (`guest`), which has the
//! test of the same name and runs it in a machine of its own.

mod network;

use std::env;
use std::path::PathBuf;

use drakkar_vm::{Cache, Features, Image, Machine, PASSTHROUGH_MODULES, Vm};

/// Runs a test of the PCI half in a machine; `needs` says why the release's packages do not do for it, if so.
fn run(machine: impl Fn(Features) -> Machine, test: &str, needs: impl Fn(Features) -> Option<&'static str>) {
    run_with(&PASSTHROUGH_MODULES, machine, test, needs);
}

/// Runs a test of the program in a machine with these modules.
fn run_with(
    modules: &[&str],
    machine: impl Fn(Features) -> Machine,
    test: &str,
    needs: impl Fn(Features) -> Option<&'static str>,
) {
    let program = env::var_os("DRAKKAR_VM_GUEST").unwrap_or_default();
    assert!(!program.is_empty(), "DRAKKAR_VM_GUEST is not set: run the tests with `cargo xtask vm`");
    let cache = Cache::of_checkout();
    let log = Image::get(&cache, modules).and_then(|image| {
        let features = image.release().features();
        if let Some(missing) = needs(features) {
            return Ok(format!("skipped: {missing} in the packages of {}", image.release().name()));
        }
        let vm = Vm::start(&cache, &image, &machine(features), test)?;
        vm.run(&PathBuf::from(program), &[test])
    });
    assert!(log.is_ok(), "{}", log.err().map(|error| error.to_string()).unwrap_or_default());
    println!("{}", log.unwrap_or_default());
}

fn passthrough(test: &str) {
    run(Machine::passthrough, test, |_| None);
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn the_inventory_is_what_qemu_has() {
    passthrough("discovery");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn an_inventory_that_follows_uevents_equals_a_fresh_scan() {
    passthrough("uevents");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn a_device_is_bound_to_vfio_and_back() {
    passthrough("binding");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn vfio_agrees_which_groups_are_viable() {
    passthrough("group");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn virtual_functions_of_a_network_card() {
    run(Machine::passthrough, "functions", |features| (!features.igb).then_some("QEMU has no igb"));
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn virtual_functions_of_an_nvme_controller() {
    run(|_| Machine::nvme(), "nvme", |_| None);
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn mediated_devices_are_made_and_removed() {
    run(Machine::passthrough, "mediated", |features| (!features.mdev).then_some("there is no mtty"));
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn faults_are_named_and_leave_the_device_as_it_was() {
    passthrough("faults");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn the_simulation_does_what_the_kernel_does() {
    run(Machine::passthrough, "conformance", |features| (!features.igb).then_some("QEMU has no igb"));
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn libvirt_starts_a_domain_from_our_xml() {
    run(Machine::passthrough, "libvirt", |features| (!features.mdev).then_some("there is no mtty"));
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn the_devices_of_a_claim_are_prepared_and_taken_back() {
    run(Machine::passthrough, "manager", |features| (!features.mdev).then_some("there are no igb and no mtty"));
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn a_driver_that_is_killed_before_any_write_leaves_nothing_changed() {
    run(Machine::passthrough, "kills", |features| (!features.mdev).then_some("there are no igb and no mtty"));
}
