use std::time::{Duration, Instant};

use rstest::rstest;
use tempfile::TempDir;

use super::*;
use crate::simulation::tests::{GPU, description};
use crate::simulation::{Effect, Fault, Simulation, When};

struct Machine {
    directory: TempDir,
    kernel: Simulation,
    sysfs: Sysfs,
}

impl Machine {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let kernel = Simulation::create(directory.path(), &description()).unwrap();
        Self { sysfs: kernel.sysfs(), kernel, directory }
    }

    fn binding(&self) -> Binding {
        Binding::read(&self.sysfs, gpu()).unwrap().unwrap()
    }
}

fn gpu() -> PciAddress {
    GPU.parse().unwrap()
}

fn binding(driver: &str, driver_override: &str) -> Binding {
    let name = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Binding { driver: name(driver), driver_override: name(driver_override) }
}

#[test]
fn a_device_is_bound_and_restored_and_neither_is_done_twice() {
    let machine = Machine::new();
    let former = machine.binding();
    assert_eq!(former, binding("nvidia", ""));
    bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap();
    assert_eq!(machine.binding(), binding("vfio-pci", "vfio-pci"));
    let writes = machine.kernel.writes();
    assert_eq!(writes, 3, "override, unbind, bind");
    bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap();
    assert_eq!(machine.kernel.writes(), writes);
    assert_eq!(restore(&machine.sysfs, gpu(), Some("vfio-pci"), &former).unwrap(), Restored::Done);
    assert_eq!(machine.binding(), former);
    let writes = machine.kernel.writes();
    assert_eq!(restore(&machine.sysfs, gpu(), Some("vfio-pci"), &former).unwrap(), Restored::Unchanged);
    assert_eq!(machine.kernel.writes(), writes);
}

#[rstest]
#[case("", "", &[])]
#[case("", "nvidia", &[])]
#[case("nvidia", "nvidia", &[])]
#[case("snd_hda_intel", "", &["snd_hda_intel"])]
fn any_former_state_is_restored(#[case] driver: &str, #[case] driver_override: &str, #[case] foreign: &[&str]) {
    let machine = Machine::new();
    // A driver that is not for these ids got the device by an override that was removed later.
    for driver in foreign {
        bind_to(&machine.sysfs, gpu(), driver).unwrap();
    }
    if driver.is_empty() {
        unbind(&machine.sysfs, gpu()).unwrap();
    }
    let name = (!driver_override.is_empty()).then_some(driver_override);
    set_override(&machine.sysfs, gpu(), name).unwrap();
    let former = machine.binding();
    assert_eq!(former, binding(driver, driver_override));
    bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap();
    restore(&machine.sysfs, gpu(), Some("vfio-pci"), &former).unwrap();
    assert_eq!(machine.binding(), former);
}

#[test]
fn a_device_that_is_bound_already_keeps_its_override() {
    let machine = Machine::new();
    bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap();
    set_override(&machine.sysfs, gpu(), None).unwrap();
    let writes = machine.kernel.writes();
    bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap();
    assert_eq!((machine.binding(), machine.kernel.writes()), (binding("vfio-pci", ""), writes));
}

#[test]
fn the_kernel_driver_is_found_by_the_kernel() {
    let machine = Machine::new();
    let is_wanted = |driver: &str| !driver.contains("vfio");
    bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap();
    assert_eq!(bind_to_kernel_driver(&machine.sysfs, gpu(), is_wanted).unwrap(), "nvidia");
    assert_eq!(machine.binding(), binding("nvidia", ""));
    let writes = machine.kernel.writes();
    assert_eq!(bind_to_kernel_driver(&machine.sysfs, gpu(), is_wanted).unwrap(), "nvidia");
    assert_eq!(machine.kernel.writes(), writes);
    let nobody = bind_to_kernel_driver(&machine.sysfs, "0000:18:00.0".parse().unwrap(), is_wanted).unwrap_err();
    assert!(matches!(nobody, ChangeError::NoKernelDriver { .. }), "{nobody}");
}

#[test]
fn an_error_names_device_file_cause_and_remedy() {
    let machine = Machine::new();
    let error = bind_to(&machine.sysfs, gpu(), "vfio-xyz").unwrap_err().to_string();
    assert!(
        error.contains("0000:65:00.0: driver vfio-xyz is not loaded") && error.contains("modprobe vfio-xyz"),
        "{error}"
    );
    let error = bind_to(&machine.sysfs, gpu(), "../drivers/nvidia").unwrap_err();
    assert!(matches!(error, ChangeError::NoDriver { .. }), "{error}");
    let error = bind_to(&machine.sysfs, "0000:18:00.0".parse().unwrap(), "vfio-pci").unwrap_err().to_string();
    assert!(error.contains("drivers/vfio-pci/bind") && error.contains("turn the IOMMU on"), "{error}");
    let error = bind_to(&machine.sysfs, "0000:ff:00.0".parse().unwrap(), "vfio-pci").unwrap_err();
    assert!(error.is_gone(), "{error}");
}

#[rstest]
#[case(When::Path("driver_override".into()), "accepted \"vfio-pci\" for")]
#[case(When::Path("unbind".into()), "it is still bound to nvidia")]
#[case(When::Path("vfio-pci/bind".into()), "it has no driver")]
fn a_write_without_effect_is_noticed(#[case] when: When, #[case] expected: &str) {
    let machine = Machine::new();
    machine.kernel.inject(Fault::always(when, Effect::Ignored));
    let error = bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap_err();
    assert!(matches!(error, ChangeError::NoEffect { .. }) && error.to_string().contains(expected), "{error}");
}

#[test]
fn what_the_kernel_cannot_do_at_the_moment_is_tried_again_and_a_late_error_is_none() {
    let machine = Machine::new();
    for times in [1, 2] {
        let fault =
            Fault { when: When::Path("vfio-pci/bind".into()), effect: Effect::Fails(Errno::AGAIN), times: Some(times) };
        machine.kernel.inject(fault);
    }
    machine.kernel.inject(Fault::once(When::Path("unbind".into()), Effect::FailsLate(Errno::NODEV)));
    bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap();
    assert_eq!(machine.binding(), binding("vfio-pci", "vfio-pci"));
}

#[test]
fn a_failed_step_leaves_a_state_from_which_restoring_works() {
    for step in 0..3 {
        let machine = Machine::new();
        let former = machine.binding();
        machine.kernel.inject(Fault::once(When::Nth(step), Effect::Fails(Errno::IO)));
        bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap_err();
        restore(&machine.sysfs, gpu(), Some("vfio-pci"), &former).unwrap();
        assert_eq!(machine.binding(), former, "step {step}");
    }
}

#[test]
fn a_hung_write_is_an_error_even_if_the_state_looks_right() {
    let machine = Machine::new();
    // Long enough for a write that does not hang, on a loaded machine.
    let sysfs = machine.sysfs.clone().with_write_timeout(Duration::from_secs(3));
    machine.kernel.inject(Fault::once(When::Path("unbind".into()), Effect::Hangs));
    let error = bind_to(&sysfs, gpu(), "vfio-pci").unwrap_err();
    assert!(error.is_hung(), "{error}");
    let error = bind_to(&sysfs, gpu(), "vfio-pci").unwrap_err();
    assert!(error.is_hung() && error.to_string().contains("an earlier write"), "{error}");
    machine.kernel.release();
    while !sysfs.hung_writes().is_empty() {
        std::thread::yield_now();
    }
    bind_to(&sysfs, gpu(), "vfio-pci").unwrap();
}

/// Waits until a condition holds.
fn eventually(condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < until, "it did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[rstest]
#[case::driver_override(When::Path("driver_override".into()))]
#[case::unbind(When::Path("unbind".into()))]
#[case::bind(When::Path("vfio-pci/bind".into()))]
fn while_a_write_hangs_nothing_of_the_device_is_waited_for(#[case] when: When) {
    let machine = Machine::new();
    // What does not end within the limit for reading has read.
    let sysfs = machine.sysfs.clone().with_write_timeout(Duration::from_secs(3));
    let sysfs = sysfs.with_read_timeout(Duration::from_secs(600));
    let former = machine.binding();
    machine.kernel.inject(Fault::once(when, Effect::Hangs));
    let error = bind_to(&sysfs, gpu(), "vfio-pci").unwrap_err();
    assert!(matches!(error, ChangeError::Write { source: WriteError::Hung { .. }, .. }), "{error}");
    let blocked = |error: ChangeError| {
        assert!(matches!(error, ChangeError::Write { source: WriteError::Blocked { .. }, .. }), "{error}");
    };
    blocked(Binding::read(&sysfs, gpu()).unwrap_err());
    blocked(set_override(&sysfs, gpu(), None).unwrap_err());
    blocked(unbind(&sysfs, gpu()).unwrap_err());
    blocked(restore(&sysfs, gpu(), Some("vfio-pci"), &former).unwrap_err());
    bind_to(&sysfs, "0000:65:00.1".parse().unwrap(), "vfio-pci").unwrap();
    machine.kernel.release();
    eventually(|| sysfs.hung_writes().is_empty());
    restore(&sysfs, gpu(), Some("vfio-pci"), &former).unwrap();
    assert_eq!(machine.binding(), former);
}

#[test]
fn a_read_that_blocks_behind_another_process_is_an_error_of_that_device() {
    let machine = Machine::new();
    let sysfs = machine.sysfs.clone().with_write_timeout(Duration::from_secs(1));
    machine.kernel.inject(Fault::once(When::Path("unbind".into()), Effect::Hangs));
    assert!(bind_to(&sysfs, gpu(), "vfio-pci").unwrap_err().is_hung());

    // As the driver that was started again: it knows nothing of that write.
    let again = Simulation::open(machine.directory.path(), &description()).unwrap();
    let other = again.sysfs().with_read_timeout(Duration::from_secs(2));
    for error in [
        Binding::read(&other, gpu()).unwrap_err(),
        bind_to(&other, gpu(), "vfio-pci").unwrap_err(),
        restore(&other, gpu(), Some("vfio-pci"), &binding("nvidia", "")).unwrap_err(),
    ] {
        assert!(matches!(error, ChangeError::ReadHung { .. }) && error.is_hung(), "{error}");
        let text = error.to_string();
        assert!(text.contains("0000:65:00.0/driver_override blocks in the kernel"), "{text}");
    }
    assert_eq!(again.writes(), 0);
    bind_to(&other, "0000:65:00.1".parse().unwrap(), "vfio-pci").unwrap();

    machine.kernel.release();
    eventually(|| Binding::read(&other, gpu()).is_ok());
    assert_eq!(machine.binding(), binding("", "vfio-pci"));
    bind_to(&other, gpu(), "vfio-pci").unwrap();
}

#[test]
fn what_is_gone_or_was_taken_over_is_left_alone() {
    let machine = Machine::new();
    let former = machine.binding();
    bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap();
    bind_to(&machine.sysfs, gpu(), "igb").unwrap();
    let outcome = restore(&machine.sysfs, gpu(), Some("vfio-pci"), &former).unwrap();
    assert_eq!((outcome, machine.binding()), (Restored::TakenOver("igb".into()), binding("igb", "igb")));

    bind_to(&machine.sysfs, gpu(), "vfio-pci").unwrap();
    machine.kernel.unload_driver("nvidia").unwrap();
    let outcome = restore(&machine.sysfs, gpu(), Some("vfio-pci"), &former).unwrap();
    assert_eq!((outcome, machine.binding()), (Restored::DriverGone("nvidia".into()), binding("", "")));

    machine.kernel.remove_device(gpu()).unwrap();
    assert_eq!(restore(&machine.sysfs, gpu(), Some("vfio-pci"), &former).unwrap(), Restored::Gone);
}
