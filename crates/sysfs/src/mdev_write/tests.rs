use rustix::io::Errno;
use tempfile::TempDir;

use super::*;
use crate::simulation::tests::{GPU, description};
use crate::simulation::{Effect, Fault, Simulation, When};

const UUID: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";

fn machine() -> (TempDir, Simulation, Sysfs, MdevParentName) {
    let directory = TempDir::new().unwrap();
    let kernel = Simulation::create(directory.path(), &description()).unwrap();
    let sysfs = kernel.sysfs();
    (directory, kernel, sysfs, MdevParentName::Pci(GPU.parse().unwrap()))
}

#[test]
fn a_device_is_made_and_removed_and_neither_is_done_twice() {
    let (_directory, kernel, sysfs, gpu) = machine();
    create_mdev(&sysfs, &gpu, "nvidia-1", UUID).unwrap();
    create_mdev(&sysfs, &gpu, "nvidia-1", &UUID.to_uppercase()).unwrap();
    assert_eq!(kernel.writes(), 1);
    let state = MdevState::read(&sysfs, UUID).unwrap().unwrap();
    assert_eq!((state.type_id.as_deref(), state.parent.as_deref()), (Some("nvidia-1"), Some(GPU)));
    assert!(state.iommu_group.is_some());
    remove_mdev(&sysfs, UUID).unwrap();
    remove_mdev(&sysfs, UUID).unwrap();
    assert_eq!((MdevState::read(&sysfs, UUID).unwrap(), kernel.writes()), (None, 2));
    create_mdev(&sysfs, &MdevParentName::Other("mtty".into()), "mtty-1", UUID).unwrap();
}

#[test]
fn refusals_say_why() {
    let (_directory, kernel, sysfs, gpu) = machine();
    let error = create_mdev(&sysfs, &gpu, "nvidia-9", UUID).unwrap_err().to_string();
    assert!(error.contains("0000:65:00.0: has no mdev type nvidia-9"), "{error}");
    create_mdev(&sysfs, &gpu, "nvidia-1", UUID).unwrap();
    let error = create_mdev(&sysfs, &gpu, "nvidia-2", UUID).unwrap_err().to_string();
    assert!(error.contains("exists already as type nvidia-1 of 0000:65:00.0"), "{error}");
    create_mdev(&sysfs, &gpu, "nvidia-2", &UUID.replace("1001", "1002")).unwrap();
    let error = create_mdev(&sysfs, &gpu, "nvidia-2", &UUID.replace("1001", "1003")).unwrap_err();
    assert!(error.to_string().contains("no instance of this type left"), "{error}");
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    kernel.inject(Fault::always(When::Path("remove".into()), Effect::Fails(Errno::BUSY)));
    let error = remove_mdev(&sysfs, UUID).unwrap_err().to_string();
    assert!(error.contains("has the mediated device open"), "{error}");
    kernel.clear_faults();
    kernel.inject(Fault::always(When::Path("remove".into()), Effect::Ignored));
    let error = remove_mdev(&sysfs, UUID).unwrap_err().to_string();
    assert!(error.contains("it is still there"), "{error}");
    kernel.remove_device(GPU.parse().unwrap()).unwrap();
    assert!(create_mdev(&sysfs, &gpu, "nvidia-1", UUID).unwrap_err().is_gone());
    remove_mdev(&sysfs, UUID).unwrap();
}

#[test]
fn a_device_that_is_still_being_made_does_not_count_as_removed() {
    let (_directory, kernel, sysfs, gpu) = machine();
    let sysfs = sysfs.with_write_timeout(std::time::Duration::from_secs(3));
    kernel.inject(Fault::once(When::Path("create".into()), Effect::Hangs));
    assert!(create_mdev(&sysfs, &gpu, "nvidia-1", UUID).unwrap_err().is_hung());
    assert!(remove_mdev(&sysfs, UUID).unwrap_err().is_hung());
    kernel.release();
    while !sysfs.hung_writes().is_empty() {
        std::thread::yield_now();
    }
    assert!(MdevState::read(&sysfs, UUID).unwrap().is_some());
    remove_mdev(&sysfs, UUID).unwrap();
}
