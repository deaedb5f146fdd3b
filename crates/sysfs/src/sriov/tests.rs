use std::time::{Duration, Instant};

use rustix::io::Errno;
use tempfile::TempDir;

use super::*;
use crate::WriteError;
use crate::simulation::tests::{GPU, NIC, description};
use crate::simulation::{Effect, Fault, Simulation, When};

fn machine() -> (TempDir, Simulation, Sysfs, PciAddress) {
    let directory = TempDir::new().unwrap();
    let kernel = Simulation::create(directory.path(), &description()).unwrap();
    let sysfs = kernel.sysfs();
    (directory, kernel, sysfs, NIC.parse().unwrap())
}

fn nobody(_: PciAddress) -> Option<String> {
    None
}

#[test]
fn the_number_is_set_once_and_changes_by_way_of_zero() {
    let (_directory, kernel, sysfs, nic) = machine();
    set_num_vfs(&sysfs, nic, 2, nobody).unwrap();
    set_num_vfs(&sysfs, nic, 2, nobody).unwrap();
    assert_eq!(kernel.writes(), 1);
    set_num_vfs(&sysfs, nic, 5, nobody).unwrap();
    assert_eq!((kernel.writes(), virtual_functions(&sysfs, nic).unwrap().len()), (3, 5));
    assert_eq!(virtual_function(&sysfs, nic, 4).unwrap().unwrap().to_string(), "0000:17:10.4");
    assert_eq!(virtual_function(&sysfs, nic, 5).unwrap(), None);
    set_num_vfs(&sysfs, nic, 0, nobody).unwrap();
    assert_eq!(VfCount::read(&sysfs, nic).unwrap(), VfCount { current: 0, total: 7 });
}

#[test]
fn a_virtual_function_in_use_keeps_the_number() {
    let (_directory, kernel, sysfs, nic) = machine();
    set_num_vfs(&sysfs, nic, 2, nobody).unwrap();
    let writes = kernel.writes();
    let error = set_num_vfs(&sysfs, nic, 3, |_| Some("claim default/a".into())).unwrap_err().to_string();
    assert!(error.contains("from 2 to 3") && error.contains("0000:17:10.0 is in use (claim default/a)"), "{error}");
    assert_eq!(kernel.writes(), writes);
    let second = virtual_function(&sysfs, nic, 1).unwrap().unwrap();
    crate::bind_to(&sysfs, second, "vfio-pci").unwrap();
    let error = set_num_vfs(&sysfs, nic, 0, nobody).unwrap_err().to_string();
    assert!(error.contains("0000:17:10.1 is in use (bound to vfio-pci)"), "{error}");
}

#[test]
fn refusals_say_why() {
    let (_directory, kernel, sysfs, nic) = machine();
    let error = set_num_vfs(&sysfs, nic, 8, nobody).unwrap_err().to_string();
    assert!(error.contains("cannot have 8 virtual functions, only 7"), "{error}");
    let error = set_num_vfs(&sysfs, GPU.parse().unwrap(), 1, nobody).unwrap_err();
    assert!(matches!(error, ChangeError::NoSriov { .. }), "{error}");
    kernel.inject(Fault::once(When::Path("sriov_numvfs".into()), Effect::Fails(Errno::NOMEM)));
    let error = set_num_vfs(&sysfs, nic, 1, nobody).unwrap_err().to_string();
    assert!(error.contains("firmware"), "{error}");
    kernel.inject(Fault::once(When::Path("sriov_numvfs".into()), Effect::Ignored));
    let error = set_num_vfs(&sysfs, nic, 1, nobody).unwrap_err().to_string();
    assert!(error.contains("there are 0 virtual functions"), "{error}");
    crate::unbind(&sysfs, nic).unwrap();
    let error = set_num_vfs(&sysfs, nic, 1, nobody).unwrap_err().to_string();
    assert!(error.contains("driver cannot make virtual functions"), "{error}");
    kernel.remove_device(nic).unwrap();
    assert!(set_num_vfs(&sysfs, nic, 1, nobody).unwrap_err().is_gone());
}

#[test]
fn while_a_write_hangs_the_number_is_not_waited_for() {
    let (directory, kernel, sysfs, nic) = machine();
    let hurried = sysfs.with_write_timeout(Duration::from_secs(1)).with_read_timeout(Duration::from_secs(600));
    kernel.inject(Fault::once(When::Path("sriov_numvfs".into()), Effect::Hangs));
    let error = set_num_vfs(&hurried, nic, 2, nobody).unwrap_err();
    assert!(matches!(error, ChangeError::Write { source: WriteError::Hung { .. }, .. }), "{error}");
    assert!(VfCount::read(&hurried, nic).unwrap_err().is_hung());

    // Another process knows nothing of that write.
    let other = Simulation::open(directory.path(), &description()).unwrap().sysfs();
    let other = other.with_read_timeout(Duration::from_secs(1));
    let error = VfCount::read(&other, nic).unwrap_err();
    assert!(matches!(error, ChangeError::ReadHung { .. }), "{error}");
    assert!(error.to_string().contains("0000:17:00.0/sriov_numvfs blocks in the kernel"), "{error}");
    kernel.release();
    let until = Instant::now() + Duration::from_secs(60);
    while VfCount::read(&other, nic).is_err() {
        assert!(Instant::now() < until, "the write did not return");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(VfCount::read(&other, nic).unwrap().current, 2);
}
