//! Tests of the recovery at start.

use super::*;

#[test]
fn specs_that_a_reboot_deleted_are_restored_from_the_records() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let before = disk.all();
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    let store = Store::open(SystemFiles, Settings { boot: "next boot".into(), ..disk.settings() }).unwrap();
    let recovery = store.recover();
    assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
    assert_eq!(claims(&recovery), [claim()]);
    assert_eq!(disk.all(), before);
    // Files of another boot are not trusted: they are written again, with the next generation.
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    assert_eq!(disk.seen("gpu").unwrap().metadata.generation, 2);
}

#[test]
fn files_of_a_go_driver_are_adopted_and_leftovers_are_removed() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let store = disk.store();
    store.update(&claim(), &name("net"), vec![device("nic-0", "x")]).unwrap();
    fs::remove_file(disk.path("plugin/dra-device-metadata/default_my-claim/.claim.json")).unwrap();
    fs::create_dir_all(disk.path("plugin/dra-device-metadata/default_half/gpu")).unwrap();
    fs::write(disk.path("plugin/dra-device-metadata/default_half/gpu/metadata.json"), "{\"kind").unwrap();
    fs::write(disk.path(&format!("cdi/{DRIVER}_metadata_dead_gpu.json")), "{}").unwrap();
    fs::write(disk.path(&format!("cdi/.{DRIVER}_metadata_{UID}_gpu.json.tmp")), "{").unwrap();
    fs::write(disk.path("cdi/other.example.com_metadata_dead_gpu.json"), "{}").unwrap();
    let recovery = store.recover();
    assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
    // Shares are not in these files.
    let uses = vec![device_use("gpu-0", None), device_use("nic-0", None)];
    assert_eq!(recovery.claims, [RecoveredClaim::with_metadata(&claim(), &uses)]);
    assert!(disk.has_spec("gpu") && disk.has_spec("net"));
    let names = disk.files_but_root();
    assert!(names.contains(&"cdi/other.example.com_metadata_dead_gpu.json".to_owned()));
    assert!(
        !names.iter().any(|name| name.contains("half")
            || name.contains(".tmp")
            || name.contains("example.com_metadata_dead") && name.contains("gpu.example")),
        "{names:?}"
    );
    store.unprepare(&claim()).unwrap();
}

#[test]
fn an_unknown_entry_is_reported_and_left_alone_and_does_not_stop_the_recovery() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    fs::write(disk.path("plugin/dra-device-metadata/README"), "hello").unwrap();
    fs::create_dir(disk.path("plugin/dra-device-metadata/Not_A Claim")).unwrap();
    fs::remove_file(disk.path(&format!("cdi/{DRIVER}_metadata_{UID}_gpu.json"))).unwrap();
    let recovery = disk.store().recover();
    assert_eq!(claims(&recovery), [claim()]);
    assert_eq!(recovery.problems.len(), 2, "{:?}", recovery.problems);
    assert!(recovery.problems[1].to_string().contains("README"), "{:?}", recovery.problems);
    assert!(disk.has_spec("gpu"));
    assert!(disk.path("plugin/dra-device-metadata/README").exists());
}

/// G21: devices in use are known after a restart.
#[test]
fn recovery_returns_the_devices_in_use() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    assert_eq!(disk.store().recover().claims, [RecoveredClaim::with_metadata(&claim(), &uses())]);
    // A repeated prepare with the same files can use other devices.
    let fewer = vec![device_use("gpu-0", None)];
    disk.store().prepare(&claim(), None, two_requests(), &fewer, vec![]).unwrap();
    assert_eq!(disk.store().recover().claims, [RecoveredClaim::with_metadata(&claim(), &fewer)]);
}

#[test]
fn a_record_that_was_copied_to_another_claims_directory_is_not_trusted() {
    for (from, to) in [("default_my-claim", "default_other"), ("default_my-claim", "default_a-claim")] {
        let disk = Disk::new();
        disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
        let before = disk.all();
        let path = |directory: &str, file: &str| disk.path("plugin/dra-device-metadata").join(directory).join(file);
        fs::create_dir_all(path(to, "gpu")).unwrap();
        for file in [".claim.json", "gpu/metadata.json"] {
            fs::copy(path(from, file), path(to, file)).unwrap();
        }
        let recovery = disk.store().recover();
        assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
        assert_eq!(claims(&recovery), [claim()]);
        assert_eq!(disk.all(), before, "the copy is removed, and the files of the original claim stay");
    }
}

#[test]
fn a_directory_with_a_shortened_name_and_no_record_is_adopted_if_its_specs_exist_and_removed_if_not() {
    let disk = Disk::new();
    let store = disk.store();
    let gpu = [request("gpu", Delivery::Now, vec![device("gpu-0", "first")])];
    store.prepare(&long_claim(), None, &gpu, &uses(), vec![]).unwrap();
    let record = disk.file_of(&long_claim(), "gpu").parent().unwrap().with_file_name(".claim.json");
    fs::remove_file(&record).unwrap();
    assert_eq!(claims(&store.recover()), [long_claim()]);
    fs::remove_file(&record).unwrap();
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    let recovery = store.recover();
    assert!(recovery.claims.is_empty() && recovery.problems.is_empty(), "{recovery:?}");
    assert_eq!(disk.files_but_root(), Vec::<String>::new());
}

#[test]
fn a_spec_that_cannot_be_removed_is_reported_and_the_others_are_removed() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let spec = |uid: &str| disk.path(&format!("cdi/{DRIVER}_metadata_{uid}_gpu.json"));
    for stuck in ["dead-1", "dead-3"] {
        fs::create_dir(spec(stuck)).unwrap();
    }
    for removable in ["dead-0", "dead-2", "dead-4"] {
        fs::write(spec(removable), "{}").unwrap();
    }
    let recovery = store.recover();
    assert_eq!(claims(&recovery), [claim()]);
    assert_eq!(recovery.problems.len(), 2, "{:?}", recovery.problems);
    for (problem, stuck) in recovery.problems.iter().zip(["dead-1", "dead-3"]) {
        assert!(problem.to_string().contains(spec(stuck).to_str().unwrap()), "{problem}");
    }
    for removable in ["dead-0", "dead-2", "dead-4"] {
        assert!(!spec(removable).exists(), "{removable}");
    }
    assert!(disk.has_spec("gpu") && disk.has_spec("net"));
}

/// An unknown directory may belong to a claim of a later version, whose specs are in use.
#[test]
fn orphaned_specs_are_kept_only_if_there_is_an_unknown_directory() {
    for (planted_directory, stays) in [(false, false), (true, true)] {
        let disk = Disk::new();
        fs::create_dir(disk.path("plugin/dra-device-metadata")).unwrap();
        let planted = disk.path("plugin/dra-device-metadata/README");
        if planted_directory {
            fs::create_dir(&planted).unwrap();
        } else {
            fs::write(&planted, "hello").unwrap();
        }
        let spec = disk.path(&format!("cdi/{DRIVER}_metadata_dead_gpu.json"));
        fs::write(&spec, "{}").unwrap();
        let temporary = disk.path(&format!("cdi/.{DRIVER}_metadata_dead_gpu.json.tmp"));
        fs::write(&temporary, "{").unwrap();
        let recovery = disk.store().recover();
        assert_eq!(recovery.problems.len(), 1, "{:?}", recovery.problems);
        assert_eq!((spec.exists(), temporary.exists()), (stays, false));
        assert!(planted.exists());
    }
}

#[test]
fn a_request_that_cannot_be_restored_is_reported_and_the_claim_and_its_other_requests_stay() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    let gpu = disk.path("plugin/dra-device-metadata/default_my-claim/gpu");
    fs::remove_dir_all(&gpu).unwrap();
    fs::write(&gpu, "not a directory").unwrap();
    let recovery = store.recover();
    assert_eq!(recovery.claims, [RecoveredClaim::with_metadata(&claim(), &uses())]);
    assert_eq!(recovery.problems.len(), 1, "{:?}", recovery.problems);
    assert!(recovery.problems[0].to_string().contains(gpu.to_str().unwrap()), "{:?}", recovery.problems);
    assert!(!disk.has_spec("gpu") && disk.has_spec("net"));
}

#[test]
fn an_interrupted_update_of_a_missing_file_is_completed() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let file = disk.file_of(&claim(), "gpu");
    fs::rename(&file, file.with_file_name(".metadata.json.next")).unwrap();
    let recovery = store.recover();
    assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
    assert_eq!(disk.seen("gpu").unwrap().requests[0].devices, [device("gpu-0", "first")]);
    assert!(!file.with_file_name(".metadata.json.next").exists());
}

/// A request with deferred metadata keeps its spec, even after its file was overwritten with newlines after a reboot.
#[test]
fn a_request_with_deferred_metadata_keeps_its_spec_after_a_reboot_and_a_restart() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    store.update(&claim(), &name("net"), vec![device("nic-0", "first")]).unwrap();
    let settings = || Settings { boot: "next boot".into(), ..disk.settings() };
    let store = Store::open(SystemFiles, settings()).unwrap();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let content = fs::read_to_string(disk.file_of(&claim(), "net")).unwrap();
    assert!(!content.is_empty() && content.trim().is_empty(), "{content}");
    let recovery = Store::open(SystemFiles, settings()).unwrap().recover();
    assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
    assert!(disk.has_spec("net"));
    store.update(&claim(), &name("net"), vec![device("nic-0", "second")]).unwrap();
    assert_eq!(disk.seen("net").unwrap().requests[0].devices, [device("nic-0", "second")]);
}

/// Containers can lock their files. A recovery has one time budget for all of them.
#[test]
fn recovery_with_many_locked_files_and_interrupted_updates_takes_no_longer_than_with_a_few() {
    let disk = Disk::new();
    let store = disk.store();
    let claims: Vec<ClaimRef> =
        (0..100).map(|number| ClaimRef { name: format!("claim-{number}").parse().unwrap(), ..claim() }).collect();
    let mut locks = Vec::new();
    for claim in &claims {
        store.prepare(claim, None, two_requests(), &uses(), vec![]).unwrap();
        let file = disk.file_of(claim, "gpu");
        let update = fs::read_to_string(&file).unwrap().replace("first", "later");
        fs::write(file.with_file_name(".metadata.json.next"), update).unwrap();
        // Locked through a read-only descriptor, as a container does.
        let locked = fs::File::open(&file).unwrap();
        locked.lock().unwrap();
        locks.push(locked);
    }
    let started = std::time::Instant::now();
    let recovery = store.recover();
    let took = started.elapsed();
    assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
    assert_eq!(recovery.claims.len(), 100);
    for claim in &claims {
        assert_eq!(disk.seen_of(claim, "gpu").unwrap().requests[0].devices, [device("gpu-0", "later")]);
        assert!(!disk.file_of(claim, "gpu").with_file_name(".metadata.json.next").exists());
    }
    // With a separate timeout for each file it would take ten seconds, on any machine.
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
}
