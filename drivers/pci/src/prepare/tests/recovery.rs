//! What a driver finds at its start.

use std::fs;
use std::os::unix::fs::symlink;

use super::machine::{DISK, GPU, Machine, claim, function, gpu_with_audio, mdev};
use crate::prepare::RecoveryProblem;

#[test]
fn a_prepared_claim_survives_a_restart_and_a_lost_spec_is_written_again() {
    let machine = Machine::new();
    let before = machine.kernel_state();
    let devices = machine.start().prepare(&claim("a"), &[gpu_with_audio(), mdev("nvidia-1", 0)]);
    assert!(devices.is_err(), "the parent of the mediated device goes to user space");
    let devices = machine.start().prepare(&claim("a"), &[gpu_with_audio(), function(DISK)]).unwrap();
    let spec = machine.spec(&claim("a"));
    fs::remove_dir_all(machine.path("cdi")).unwrap();
    let writes = machine.kernel.writes();
    let (manager, recovery) = machine.restart(|_| true);
    assert_eq!((recovery.prepared, machine.kernel.writes()), (vec![claim("a")], writes));
    assert_eq!((manager.prepared(&claim("a").uid), machine.spec(&claim("a"))), (Some(devices), spec));
    manager.unprepare(&claim("a").uid).unwrap();
    machine.assert_state(&before, "at the end");
}

#[test]
fn a_claim_that_does_not_exist_any_more_is_taken_back() {
    let machine = Machine::new();
    let before = machine.kernel_state();
    machine.start().prepare(&claim("a"), &[gpu_with_audio()]).unwrap();
    let (manager, recovery) = machine.restart(|_| false);
    assert_eq!(recovery.taken_back, [claim("a")]);
    machine.assert_state(&before, "at the end");
    assert!(manager.held().is_empty() && machine.driver_files().is_empty());
}

#[test]
fn a_journal_of_an_earlier_boot_is_dropped() {
    let machine = Machine::new();
    let before = machine.kernel_state();
    machine.start().prepare(&claim("a"), &[gpu_with_audio(), function(DISK)]).unwrap();
    machine.kernel.reboot().unwrap();
    let writes = machine.kernel.writes();
    let (manager, recovery) = machine.restart(|_| true);
    assert_eq!((recovery.earlier_boot, machine.kernel.writes()), (vec![claim("a")], writes));
    machine.assert_state(&before, "at the end");
    assert_eq!(machine.driver_files(), Vec::<String>::new());
    manager.prepare(&claim("a"), &[gpu_with_audio()]).unwrap();
}

#[test]
fn damaged_foreign_and_linked_files_are_reported_and_left_alone() {
    let machine = Machine::new();
    machine.start().prepare(&claim("a"), &[function(DISK)]).unwrap();
    let file = |name: &str| machine.path("state").join(name);
    let journal = file(&format!("{}.json", claim("a").uid));
    let content = fs::read(&journal).unwrap();
    fs::write(&journal, &content[..content.len() / 2]).unwrap();
    fs::write(file("other-uid.json"), &content).unwrap();
    fs::write(file("README"), "hello").unwrap();
    fs::write(machine.path("outside"), &content).unwrap();
    symlink(machine.path("outside"), file("linked.json")).unwrap();
    fs::create_dir(file("directory.json")).unwrap();
    fs::write(file(&format!(".{}.json.tmp", claim("b").uid)), "half").unwrap();

    let (manager, recovery) = machine.restart(|_| true);
    let problems: Vec<String> = recovery.problems.iter().map(ToString::to_string).collect();
    let expected = [
        "torn or was changed",
        "under the name of another",
        "not a file of the journal",
        "symbolic link",
        "not a regular file",
    ];
    for text in expected {
        assert!(problems.iter().any(|problem| problem.contains(text)), "{text}: {problems:?}");
    }
    assert_eq!(problems.len(), expected.len());
    assert!(recovery.problems.iter().all(|problem| matches!(problem, RecoveryProblem::Journal(_))));
    assert_eq!(recovery.unexplained, [DISK.parse().unwrap()], "whose record is damaged");
    assert!(!file(&format!(".{}.json.tmp", claim("b").uid)).exists());
    assert!(file("README").exists() && machine.path("outside").exists());
    assert_eq!(machine.driver(DISK).as_deref(), Some("vfio-pci"));

    // The driver works all the same, and neither call follows the link.
    manager.prepare(&claim("b"), &[gpu_with_audio()]).unwrap();
    let linked = "linked".parse().unwrap();
    manager.unprepare(&linked).unwrap();
    assert!(!file("linked.json").is_symlink() && machine.path("outside").exists());
    assert_eq!(machine.driver(GPU).as_deref(), Some("vfio-pci"));
}

#[test]
fn an_orphaned_spec_is_removed_and_those_of_others_are_not() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("cdi")).unwrap();
    let spec = |name: &str| machine.path("cdi").join(name);
    let foreign = ["other.json", "pci.drakkar.dev_metadata_uid_request.json"];
    for name in foreign.into_iter().chain(["pci.drakkar.dev_device_uid.json", ".pci.drakkar.dev_device_uid.json.tmp"]) {
        fs::write(spec(name), "{}").unwrap();
    }
    machine.start();
    assert!(foreign.into_iter().all(|name| spec(name).exists()));
    assert_eq!(fs::read_dir(machine.path("cdi")).unwrap().count(), foreign.len());
}
