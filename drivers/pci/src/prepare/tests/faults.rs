//! The faults that a kernel and its devices can have.

use std::time::{Duration, Instant};

use drakkar_sysfs::simulation::{Effect, Fault, When};
use rstest::rstest;
use rustix::io::Errno;

use super::machine::{
    AUDIO, DISK, GPU, LONER, Machine, NIC, PATIENCE, address, claim, description, function, gpu_with_audio, mdev, vf,
};
use crate::prepare::{DeviceManager, DeviceRequest, PrepareError};

/// A failed prepare leaves everything as it was.
fn refused(machine: &Machine, requests: &[DeviceRequest]) -> PrepareError {
    let before = machine.kernel_state();
    let manager = machine.start();
    let error = manager.prepare(&claim("a"), requests).unwrap_err();
    machine.assert_state(&before, &error.to_string());
    assert_eq!(machine.driver_files(), Vec::<String>::new(), "{error}");
    assert!(manager.held().is_empty());
    error
}

#[rstest]
#[case::override_refused("driver_override", Errno::ACCESS)]
#[case::unbind_fails("unbind", Errno::IO)]
#[case::bind_fails("vfio-pci/bind", Errno::INVAL)]
fn a_write_that_fails_is_reported_and_everything_is_as_it_was(#[case] file: &str, #[case] errno: Errno) {
    let machine = Machine::new();
    machine.kernel.inject(Fault::once(When::Path(file.into()), Effect::Fails(errno)));
    let error = refused(&machine, &[gpu_with_audio()]);
    let text = error.to_string();
    assert!(text.contains("claim default/a") && text.contains(file) && text.contains("0000:65:00"), "{text}");
}

#[test]
fn an_unbind_that_fails_for_the_second_device_takes_the_first_one_back() {
    let machine = Machine::new();
    machine.kernel.inject(Fault::always(When::Value("nvidia/unbind".into(), GPU.into()), Effect::Fails(Errno::IO)));
    let error = refused(&machine, &[function(DISK), gpu_with_audio()]);
    assert!(error.to_string().contains("drivers/nvidia/unbind"), "{error}");
}

#[test]
fn a_write_without_effect_is_reported() {
    let machine = Machine::new();
    machine.kernel.inject(Fault::once(When::Path("nvme/unbind".into()), Effect::Ignored));
    let error = refused(&machine, &[function(DISK)]);
    assert!(error.to_string().contains("it is still bound to nvme"), "{error}");
}

#[test]
fn a_device_that_has_vanished_since_it_was_published_is_reported() {
    let machine = Machine::new();
    machine.kernel.remove_device(address(GPU)).unwrap();
    let error = refused(&machine, &[gpu_with_audio()]);
    assert!(error.is_gone() && error.to_string().contains("0000:65:00.0"), "{error}");
    let error = refused(&machine, &[mdev("nvidia-1", 0)]);
    assert!(error.is_gone(), "{error}");
    machine.kernel.remove_device(address(NIC)).unwrap();
    let error = refused(&machine, &[vf(0)]);
    assert!(error.is_gone(), "{error}");
}

#[test]
fn a_group_that_has_changed_since_it_was_published_is_reported() {
    let machine = Machine::new();
    let request = DeviceRequest { iommu_group: Some(5), ..function(DISK) };
    machine.kernel.change_group(address(DISK), 40).unwrap();
    let error = refused(&machine, std::slice::from_ref(&request));
    assert!(error.to_string().contains("was 5 when it was published and is 40 now"), "{error}");
    machine.kernel.change_group(address(DISK), 5).unwrap();
    machine.start().prepare(&claim("a"), &[request]).unwrap();
}

#[test]
fn a_member_that_has_joined_the_group_since_it_was_published_is_named() {
    let machine = Machine::new();
    machine.kernel.change_group(address(DISK), 12).unwrap();
    let error = refused(&machine, &[gpu_with_audio()]);
    assert!(error.to_string().contains("does not let these go along: 0000:03:00.0 (driver nvme)"), "{error}");
    let error = refused(&machine, &[function(GPU)]);
    assert!(error.to_string().contains("0000:03:00.0 (driver nvme), 0000:65:00.1 (driver snd_hda_intel)"), "{error}");
}

#[test]
fn a_mediated_device_that_the_kernel_refuses_is_reported_and_leaves_nothing() {
    let machine = Machine::new();
    machine.kernel.inject(Fault::once(When::Path("create".into()), Effect::Fails(Errno::IO)));
    let error = refused(&machine, &[function(DISK), mdev("nvidia-1", 0)]);
    assert!(error.to_string().contains("nvidia-1/create"), "{error}");

    let manager = machine.start();
    manager.prepare(&claim("a"), &[mdev("nvidia-2", 0), mdev("nvidia-2", 1)]).unwrap();
    let before = machine.kernel_state();
    let error = manager.prepare(&claim("b"), &[mdev("nvidia-2", 2)]).unwrap_err();
    assert!(error.to_string().contains("no instance of this type left"), "{error}");
    assert_eq!((machine.kernel_state(), machine.mdevs().len()), (before, 2));
}

#[test]
fn virtual_functions_that_the_kernel_refuses_are_reported() {
    let machine = Machine::new();
    machine.kernel.inject(Fault::once(When::Path("sriov_numvfs".into()), Effect::Fails(Errno::NOMEM)));
    let error = refused(&machine, &[vf(0)]);
    assert!(error.to_string().contains("firmware"), "{error}");
    let error = refused(&machine, &[vf(7)]);
    assert!(error.to_string().contains("cannot have 8 virtual functions, only 7"), "{error}");
}

#[test]
fn a_device_without_iommu_group_is_refused() {
    let error = refused(&Machine::new(), &[function(LONER)]);
    assert!(error.to_string().contains("has no IOMMU group"), "{error}");
}

#[test]
fn a_group_without_an_iommu_behind_it_is_refused() {
    let machine = Machine::new();
    std::fs::write(machine.path("host/sys/kernel/iommu_groups/5/name"), "vfio-noiommu\n").unwrap();
    let error = refused(&machine, &[function(DISK)]);
    assert!(error.to_string().contains("IOMMU group 5 has no IOMMU behind it"), "{error}");
}

#[test]
fn a_function_with_parts_does_not_leave_its_driver() {
    let mut with_vfs = description();
    let nic = with_vfs.devices.iter_mut().find(|device| device.address.to_string() == NIC).unwrap();
    nic.sriov.as_mut().unwrap().num_vfs = 2;
    let error = refused(&Machine::with(&with_vfs), &[function(NIC)]);
    assert!(
        error.to_string().contains("0000:17:00.0 cannot leave its driver, because it has 2 virtual functions"),
        "{error}"
    );
}

#[test]
fn a_missing_driver_or_node_is_reported() {
    let machine = Machine::new();
    machine.kernel.unload_driver("vfio-pci").unwrap();
    let error = refused(&machine, &[function(DISK)]);
    assert!(error.to_string().contains("modprobe vfio-pci"), "{error}");

    let mut legacy = description();
    legacy.vfio.cdev = false;
    let iommufd = DeviceRequest { iommu_backend: crate::mode::IommuBackend::Iommufd, ..function(DISK) };
    let error = refused(&Machine::with(&legacy), &[iommufd]);
    assert!(error.to_string().contains("CONFIG_VFIO_DEVICE_CDEV"), "{error}");
}

#[test]
fn a_journal_or_a_spec_that_cannot_be_written_is_reported() {
    for directory in ["state", "cdi"] {
        let machine = Machine::new();
        let manager = machine.start();
        let before = machine.kernel_state();
        std::fs::remove_dir(machine.path(directory)).unwrap();
        let error = manager.prepare(&claim("a"), &[function(DISK)]).unwrap_err().to_string();
        assert!(error.contains(&machine.path(directory).to_string_lossy().into_owned()), "{error}");
        machine.assert_state(&before, "at the end");
        assert_eq!(machine.driver_files(), Vec::<String>::new());
    }
}

fn impatient(machine: &Machine) -> DeviceManager {
    // Long enough for a write that does not hang, on a loaded machine.
    let sysfs = machine.kernel.sysfs().with_write_timeout(Duration::from_secs(3));
    let manager = DeviceManager::open(sysfs, &machine.settings()).unwrap();
    manager.recover(|_| true).unwrap();
    manager
}

/// Repeats something until it succeeds.
fn eventually(mut attempt: impl FnMut() -> bool) {
    let start = Instant::now();
    while !attempt() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[rstest]
#[case::override_hangs("driver_override")]
#[case::unbind_hangs("snd_hda_intel/unbind")]
#[case::bind_hangs("vfio-pci/bind")]
fn a_write_that_hangs_is_reported_and_taken_back_when_it_returns(#[case] file: &str) {
    let machine = Machine::new();
    let before = machine.kernel_state();
    let manager = impatient(&machine);
    let fault = match file {
        "driver_override" => When::Path(format!("{AUDIO}/{file}")),
        file => When::Value(file.into(), AUDIO.into()),
    };
    machine.kernel.inject(Fault::once(fault, Effect::Hangs));
    let error = manager.prepare(&claim("a"), &[gpu_with_audio()]).unwrap_err();
    assert!(error.is_hung(), "{error}");
    assert!(error.to_string().contains(AUDIO) && error.to_string().contains("is tried again"), "{error}");
    assert_eq!(machine.driver(GPU).as_deref(), Some("nvidia"), "what does not hang is back");
    let held = manager.held();
    assert!(held.len() == 1 && !held[0].is_prepared, "{held:?}");

    // Others are not concerned; the error of what shares the group names the other claim.
    manager.prepare(&claim("b"), &[function(DISK)]).unwrap();
    let error = manager.prepare(&claim("c"), &[gpu_with_audio()]).unwrap_err();
    assert!(error.to_string().contains("held by claim default/a"), "{error}");
    manager.unprepare(&claim("b").uid).unwrap();

    // A driver that is killed now and starts again meets the same write.
    machine.kernel.release();
    eventually(|| manager.retry().failed.is_empty());
    assert!(!manager.has_unfinished());
    machine.assert_state(&before, "at the end");
    assert_eq!(machine.driver_files(), Vec::<String>::new());
    manager.prepare(&claim("c"), &[gpu_with_audio()]).unwrap();
}

#[test]
fn an_unprepare_that_hangs_goes_on_when_the_write_returns_or_at_the_next_start() {
    let machine = Machine::new();
    let before = machine.kernel_state();
    let manager = impatient(&machine);
    manager.prepare(&claim("a"), &[function(DISK), mdev("nvidia-1", 0)]).unwrap();
    // A virtual machine has the device open: the kernel waits until it closes it.
    machine.kernel.inject(Fault::once(When::Value("vfio-pci/unbind".into(), DISK.into()), Effect::Hangs));
    let error = manager.unprepare(&claim("a").uid).unwrap_err();
    assert!(error.is_hung() && error.to_string().contains("has the device open"), "{error}");
    assert!(machine.mdevs().is_empty(), "the rest is taken back");
    assert!(manager.prepared(&claim("a").uid).is_none());
    assert!(manager.unprepare(&claim("a").uid).unwrap_err().is_hung());
    drop(manager);

    machine.kernel.release();
    eventually(|| machine.driver(DISK).as_deref() != Some("vfio-pci"));
    let (_, recovery) = machine.restart(|_| true);
    assert_eq!(recovery.taken_back, [claim("a")]);
    machine.assert_state(&before, "at the end");
}

#[test]
fn a_retry_leaves_a_claim_to_the_call_that_works_on_it() {
    let machine = Machine::new();
    let manager = impatient(&machine);
    machine.kernel.inject(Fault::once(When::Path("nvme/unbind".into()), Effect::Hangs));
    std::thread::scope(|scope| {
        let prepare = scope.spawn(|| manager.prepare(&claim("a"), &[function(DISK)]));
        eventually(|| manager.has_unfinished());
        // Whichever is first: the prepare is not over, or the write hangs.
        let retry = manager.retry();
        assert!(retry.taken_back.is_empty(), "{retry:?}");
        assert!(retry.failed.iter().all(|(_, error)| error.is_hung()), "{retry:?}");
        eventually(|| !manager.retry().failed.is_empty() || prepare.is_finished());
        machine.kernel.release();
        prepare.join().unwrap().unwrap_err();
    });
    eventually(|| manager.retry().failed.is_empty() && !manager.has_unfinished());
    assert_eq!(machine.driver(DISK).as_deref(), Some("nvme"));
}

#[test]
fn a_rollback_that_fails_is_reported_and_finished_by_the_next_call() {
    let machine = Machine::new();
    let before = machine.kernel_state();
    let manager = machine.start();
    machine.kernel.inject(Fault::always(When::Path("vfio-pci/bind".into()), Effect::Fails(Errno::IO)));
    machine.kernel.inject(Fault::once(When::Path("nvme/bind".into()), Effect::Fails(Errno::IO)));
    let error = manager.prepare(&claim("a"), &[function(DISK)]).unwrap_err();
    assert!(matches!(error, PrepareError::Rollback { .. }), "{error}");
    assert!(error.to_string().contains("drivers/nvme/bind"), "{error}");
    machine.kernel.clear_faults();
    manager.prepare(&claim("a"), &[function(DISK)]).unwrap();
    manager.unprepare(&claim("a").uid).unwrap();
    machine.assert_state(&before, "at the end");
}

#[test]
fn a_device_that_vanishes_while_a_claim_has_it_is_unprepared_and_another_one_at_its_place_is_left_alone() {
    let machine = Machine::new();
    let manager = machine.start();
    manager.prepare(&claim("a"), &[function(DISK)]).unwrap();
    machine.kernel.remove_device(address(DISK)).unwrap();
    let error = manager.prepare(&claim("a"), &[function(DISK)]).unwrap_err();
    assert!(error.is_gone(), "{error}");
    // A disk of another model, which has no driver.
    let mut disk = description().devices.into_iter().find(|device| device.address == address(DISK)).unwrap();
    disk.vendor = 0x1234;
    machine.kernel.add_device(&disk).unwrap();
    let before = machine.kernel_state();
    manager.unprepare(&claim("a").uid).unwrap();
    machine.assert_state(&before, "at the end");
    assert!(manager.held().is_empty() && machine.driver_files().is_empty());
}
