//! A driver process that is really killed, with signal 9, at every write to sysfs.

use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use drakkar_sysfs::simulation::{Effect, Fault, Simulation, When};

use super::machine::{DISK, Machine, PATIENCE, claim, description, function, gpu_with_audio, vf};
use crate::prepare::{DeviceManager, DeviceRequest, ManagerSettings, RecoveryProblem};

const DIRECTORY: &str = "DRAKKAR_TEST_KILLED_DIRECTORY";
const WRITE: &str = "DRAKKAR_TEST_KILLED_WRITE";
const SIGKILL: i32 = 9;

fn requests() -> Vec<DeviceRequest> {
    vec![gpu_with_audio(), vf(0), function(DISK)]
}

fn settings(directory: &Path) -> ManagerSettings {
    ManagerSettings {
        driver: "pci.drakkar.dev".parse().unwrap(),
        state_directory: directory.join("state"),
        cdi_directory: directory.join("cdi"),
        host_dev: directory.join("host/dev"),
    }
}

/// The driver process: started by the other test, with the directory of the machine and the number of its last write.
#[test]
#[ignore = "is started by another test"]
fn the_process() {
    let (Ok(directory), Ok(write)) = (std::env::var(DIRECTORY), std::env::var(WRITE)) else { return };
    let directory = Path::new(&directory);
    let kernel = Simulation::open(directory.join("host"), &description()).unwrap();
    kernel.inject(Fault::once(When::Nth(write.parse().unwrap()), Effect::Kills));
    let manager = DeviceManager::open(kernel.sysfs(), &settings(directory)).unwrap();
    manager.recover(|_| true).unwrap();
    manager.prepare(&claim("a"), &requests()).unwrap();
    manager.unprepare(&claim("a").uid).unwrap();
}

/// A driver process that does not get further: the kernel does not return from taking the disk from vfio-pci.
#[test]
#[ignore = "is started by another test"]
fn the_process_that_hangs() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let kernel = Simulation::open(directory.join("host"), &description()).unwrap();
    let manager = DeviceManager::open(kernel.sysfs(), &settings(directory)).unwrap();
    manager.recover(|_| true).unwrap();
    manager.prepare(&claim("a"), &[function(DISK)]).unwrap();
    manager.prepare(&claim("b"), &[gpu_with_audio()]).unwrap();
    kernel.inject(Fault::once(When::Value("vfio-pci/unbind".into(), DISK.into()), Effect::Hangs));
    drop(manager.unprepare(&claim("a").uid));
    loop {
        std::thread::park();
    }
}

/// A process that does not outlive the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_driver_that_starts_while_the_kernel_hangs_leaves_that_device_for_later_and_goes_on() {
    let machine = Machine::new();
    let before = machine.kernel_state();
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "--ignored", "prepare::tests::killed::the_process_that_hangs"]).stdout(Stdio::null());
    let mut process = Process(process.env(DIRECTORY, machine.directory.path()).spawn().unwrap());
    let file = machine.path(&format!("host/sys/bus/pci/devices/{DISK}/driver_override"));
    let start = Instant::now();
    while !file.metadata().unwrap().file_type().is_fifo() {
        assert!(start.elapsed() < PATIENCE && process.0.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }

    // Nothing of that process is known here, and what it was doing is not over.
    let kernel = Simulation::open(machine.path("host"), &description()).unwrap();
    let sysfs = kernel.sysfs().with_read_timeout(Duration::from_secs(2));
    let manager = DeviceManager::open(sysfs, &machine.settings()).unwrap();
    let recovery = manager.recover(|_| true).unwrap();
    assert_eq!((recovery.prepared, recovery.taken_back), (vec![claim("b")], Vec::new()));
    let [RecoveryProblem::Claim(error)] = recovery.problems.as_slice() else { panic!("{:?}", recovery.problems) };
    let text = error.to_string();
    assert!(error.is_hung() && text.contains("claim default/a") && text.contains("driver_override blocks"), "{text}");
    assert!(manager.retry().failed[0].1.is_hung());
    assert!(manager.unprepare(&claim("a").uid).unwrap_err().is_hung());
    let error = manager.prepare(&claim("c"), &[function(DISK)]).unwrap_err();
    assert!(error.to_string().contains("held by claim default/a"), "{error}");
    assert_eq!(machine.driver(DISK).as_deref(), Some("vfio-pci"), "not touched");
    manager.unprepare(&claim("b").uid).unwrap();
    manager.prepare(&claim("d"), &[vf(0)]).unwrap();
    manager.unprepare(&claim("d").uid).unwrap();

    drop(process);
    // The lock of the process is free now, which the simulation notices when it is opened.
    Simulation::open(machine.path("host"), &description()).unwrap();
    while !manager.retry().failed.is_empty() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    machine.assert_state(&before, "at the end");
    assert_eq!(machine.driver_files(), Vec::<String>::new());
}

#[test]
fn a_process_that_is_killed_at_any_write_leaves_nothing_behind() {
    let machine = Machine::new();
    let before = machine.kernel_state();
    for write in 0.. {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "--ignored", "prepare::tests::killed::the_process"]).stdout(Stdio::null());
        process.env(DIRECTORY, machine.directory.path()).env(WRITE, write.to_string());
        let status = process.status().unwrap();
        assert!(status.success() || status.signal() == Some(SIGKILL), "write {write}: {status}");
        let (manager, recovery) = machine.restart(|_| true);
        assert!(recovery.problems.is_empty(), "write {write}: {:?}", recovery.problems);
        manager.unprepare(&claim("a").uid).unwrap();
        machine.assert_state(&before, &format!("killed at write {write}"));
        assert_eq!(machine.driver_files(), Vec::<String>::new());
        if status.success() {
            assert!(write > 20, "there are more writes than {write}");
            return;
        }
    }
}
