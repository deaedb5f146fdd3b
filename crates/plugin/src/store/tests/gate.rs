//! Tests of gated metadata, and of writes that fail half-way.

use super::*;

fn gated() -> Vec<PreparedRequest> {
    vec![request("net", Delivery::Gated, vec![device("nic-0", "first")])]
}

/// D5: the metadata is from another boot, so the gate is closed again.
#[test]
fn a_gate_is_closed_again_after_a_reboot() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, gated(), &uses(), vec![]).unwrap();
    assert!(!disk.has_spec("net"));
    store.update(&claim(), &name("net"), vec![device("nic-0", "second")]).unwrap();
    assert!(disk.has_spec("net"));
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    let store = Store::open(SystemFiles, Settings { boot: "next boot".into(), ..disk.settings() }).unwrap();
    store.recover();
    store.prepare(&claim(), None, gated(), &uses(), vec![]).unwrap();
    let content = fs::read(disk.file_of(&claim(), "net")).unwrap();
    assert!(content.iter().all(|byte| *byte == b'\n'));
    assert!(!disk.has_spec("net"), "gate closed again, file blank, but the spec is there");
}

/// D5: the metadata describes other devices.
#[test]
fn a_gate_is_closed_again_for_other_devices() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, gated(), &uses(), vec![]).unwrap();
    store.update(&claim(), &name("net"), vec![device("nic-0", "second")]).unwrap();
    let other = vec![request("net", Delivery::Gated, vec![device("nic-1", "first")])];
    store.prepare(&claim(), None, &other, &uses(), vec![]).unwrap();
    assert!(!disk.has_spec("net"));
}

/// The interface has left the pod: the next container needs new metadata.
#[test]
fn a_gate_that_is_closed_again_stays_closed_until_the_next_update() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, gated(), &uses(), vec![]).unwrap();
    store.update(&claim(), &name("net"), vec![device("nic-0", "second")]).unwrap();
    store.withdraw(&claim(), &name("net")).unwrap();
    assert!(!disk.has_spec("net"));
    let content = fs::read(disk.file_of(&claim(), "net")).unwrap();
    assert!(decode(&content).is_ok(), "containers that still run keep what they have");
    store.prepare(&claim(), None, gated(), &uses(), vec![]).unwrap();
    store.recover();
    assert!(!disk.has_spec("net"));
    store.withdraw(&claim(), &name("net")).unwrap();
    store.update(&claim(), &name("net"), vec![device("nic-0", "third")]).unwrap();
    assert!(disk.has_spec("net"));
    store.withdraw(&claim(), &name("other")).unwrap_err();
}

/// A driver that dies while it closes the gate has closed it for the next one.
#[test]
fn a_gate_is_open_or_closed_whatever_call_is_the_last() {
    for at in 0..40 {
        let disk = Disk::new();
        disk.store().prepare(&claim(), None, gated(), &uses(), vec![]).unwrap();
        disk.store().update(&claim(), &name("net"), vec![device("nic-0", "second")]).unwrap();
        let (store, _files) = disk.faulty(Fault::FailHalf(at, Errno::NOSPC));
        let is_closed = store.is_ok_and(|store| store.withdraw(&claim(), &name("net")).is_ok());
        disk.store().recover();
        assert!(!is_closed || !disk.has_spec("net"), "call {at}: closed, and open again after a restart");
        disk.store().withdraw(&claim(), &name("net")).unwrap();
        assert!(!disk.has_spec("net"), "call {at}");
    }
}

/// An update that could not open the gate is retried.
#[test]
fn a_gate_that_could_not_be_opened_is_opened_by_the_next_update() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, gated(), &uses(), vec![]).unwrap();
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    fs::write(disk.path("cdi"), "").unwrap();
    store.update(&claim(), &name("net"), vec![device("nic-0", "second")]).unwrap_err();
    fs::remove_file(disk.path("cdi")).unwrap();
    fs::create_dir(disk.path("cdi")).unwrap();
    store.update(&claim(), &name("net"), vec![device("nic-0", "third")]).unwrap();
    assert!(disk.has_spec("net"), "the retried update succeeded, but there is no spec");
}

/// The disk writes half of the new content, which is longer than the old, and fails.
#[test]
fn a_partial_write_is_undone() {
    for at in 0..40 {
        let disk = Disk::new();
        disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
        let (store, _files) = disk.faulty(Fault::FailHalf(at, Errno::NOSPC));
        let Ok(store) = store else { continue };
        let mut long = device("nic-0", "second");
        for i in 0..30 {
            long.attributes.insert(format!("attribute{i}"), "x".repeat(40).as_str().into());
        }
        let outcome = store.update(&claim(), &name("net"), vec![long]);
        let content = fs::read(disk.file_of(&claim(), "net")).unwrap();
        let copy = disk.file_of(&claim(), "net").with_file_name(".metadata.json.next").exists();
        let ok = content.iter().all(|b| *b == b'\n') || decode(&content).is_ok();
        assert!(
            ok,
            "call {at}: {:?}: torn file of {} bytes, write-ahead copy exists: {copy}",
            outcome.map_err(|e| e.to_string()),
            content.len()
        );
    }
}
