//! Tests of the CDI spec with the edits of a claim's devices: like metadata, it survives a crash between any two system calls.

use drakkar_cdi::{ContainerEdits, Device as CdiDevice, Mount, Spec, validate_strict};

use super::*;

impl Disk {
    fn claim_spec_path(&self) -> PathBuf {
        self.path(&format!("cdi/{DRIVER}_container-edits_{UID}.json"))
    }

    /// Returns the variables that a container with the claim's devices would get, and fails if a runtime would refuse the file.
    fn seen_env(&self) -> Option<Vec<String>> {
        let content = fs::read(self.claim_spec_path()).ok()?;
        let spec = Spec::parse(&content).unwrap_or_else(|error| panic!("torn: {error}"));
        validate_strict(&spec).unwrap();
        Some(spec.devices.into_iter().flat_map(|device| device.container_edits.env).collect())
    }
}

/// Returns the CDI devices of a claim with one GPU.
fn edits(model: &str) -> Vec<CdiDevice> {
    let edits = ContainerEdits::default()
        .device_node("/dev/null")
        .mount(Mount::read_only("/opt/gpu/lib", "/usr/lib/gpu"))
        .env_var("MODEL", model);
    vec![CdiDevice { name: format!("{UID}_gpu-0"), container_edits: edits, ..CdiDevice::default() }]
}

/// A call of the store, and the variable that containers may see after it.
struct Scenario {
    before: fn(&Store<SystemFiles>, &ClaimRef),
    call: fn(&Store<FaultyFiles>, &ClaimRef) -> Result<(), StoreError>,
    /// The models in the claim's spec; `None` for no spec.
    legal: &'static [Option<&'static str>],
}

const SCENARIOS: [(&str, Scenario); 8] = [
    (
        "prepare without metadata",
        Scenario {
            before: |_, _| {},
            call: |store, claim| store.prepare(claim, None, vec![], &uses(), edits("m1")).map(drop),
            legal: &[None, Some("MODEL=m1")],
        },
    ),
    (
        "prepare with metadata",
        Scenario {
            before: |_, _| {},
            call: |store, claim| store.prepare(claim, None, two_requests(), &uses(), edits("m1")).map(drop),
            legal: &[None, Some("MODEL=m1")],
        },
    ),
    (
        "prepare again",
        Scenario {
            before: |store, claim| drop(store.prepare(claim, None, two_requests(), &uses(), edits("m1")).unwrap()),
            call: |store, claim| store.prepare(claim, None, two_requests(), &uses(), edits("m1")).map(drop),
            legal: &[Some("MODEL=m1")],
        },
    ),
    (
        "prepare with other edits",
        Scenario {
            before: |store, claim| drop(store.prepare(claim, None, vec![], &uses(), edits("m1")).unwrap()),
            call: |store, claim| store.prepare(claim, None, vec![], &uses(), edits("m2")).map(drop),
            legal: &[Some("MODEL=m1"), Some("MODEL=m2")],
        },
    ),
    (
        "prepare without the edits",
        Scenario {
            before: |store, claim| drop(store.prepare(claim, None, two_requests(), &uses(), edits("m1")).unwrap()),
            call: |store, claim| store.prepare(claim, None, two_requests(), &uses(), vec![]).map(drop),
            legal: &[None, Some("MODEL=m1")],
        },
    ),
    (
        "prepare a successor",
        Scenario {
            before: |store, claim| {
                drop(store.prepare(&successor(claim), None, two_requests(), &uses(), edits("m1")).unwrap());
            },
            call: |store, claim| store.prepare(claim, None, vec![], &uses(), edits("m1")).map(drop),
            legal: &[None, Some("MODEL=m1")],
        },
    ),
    (
        "unprepare without metadata",
        Scenario {
            before: |store, claim| drop(store.prepare(claim, None, vec![], &uses(), edits("m1")).unwrap()),
            call: |store, claim| store.unprepare(claim),
            legal: &[None, Some("MODEL=m1")],
        },
    ),
    (
        "unprepare with metadata",
        Scenario {
            before: |store, claim| drop(store.prepare(claim, None, two_requests(), &uses(), edits("m1")).unwrap()),
            call: |store, claim| store.unprepare(claim),
            legal: &[None, Some("MODEL=m1")],
        },
    ),
];

impl Scenario {
    /// Runs the call with a fault at one system call, and returns whether that call was reached.
    fn run(&self, fault: Fault, at: usize) -> (Disk, bool, Result<(), StoreError>) {
        let disk = Disk::new();
        (self.before)(&disk.store(), &claim());
        let (store, files) = disk.faulty(fault);
        let outcome = store.and_then(|store| (self.call)(&store, &claim()));
        (disk, files.calls() > at, outcome)
    }

    fn assert_legal(&self, disk: &Disk, context: &str) {
        let seen = disk.seen_env().map(|env| env.join(" "));
        assert!(self.legal.contains(&seen.as_deref()), "{context}: {seen:?}\n{:#?}", disk.all());
    }

    /// Recovers as the next start does, and asserts that spec and record agree, that nothing else is left, and that the
    /// kubelet's next calls succeed.
    fn assert_recovers(&self, disk: &Disk, context: &str) {
        let recovery = disk.store().recover();
        assert!(recovery.problems.is_empty(), "{context}: {:?}", recovery.problems);
        self.assert_legal(disk, context);
        let with_spec = recovery.claims.iter().filter(|found| found.has_claim_spec && found.claim == claim()).count();
        assert_eq!(with_spec, usize::from(disk.seen_env().is_some()), "{context}");
        let files = disk.files_but_root();
        assert!(!files.iter().any(|name| name.contains(".tmp")), "{context}: {files:?}");
        let specs = files.iter().filter(|name| name.contains("_container-edits_")).count();
        assert_eq!(specs, recovery.claims.iter().filter(|found| found.has_claim_spec).count(), "{context}: {files:?}");
        let store = disk.store();
        store.prepare(&claim(), None, vec![], &uses(), edits("next")).unwrap();
        assert_eq!(disk.seen_env(), Some(vec!["MODEL=next".to_owned()]), "{context}");
        store.unprepare(&claim()).unwrap();
        assert_eq!(disk.files_but_root(), Vec::<String>::new(), "{context}");
    }
}

#[test]
fn the_process_may_die_between_any_two_system_calls() {
    for (title, scenario) in SCENARIOS {
        for kind in [Fault::Die as fn(usize) -> Fault, Fault::DieHalfWritten] {
            for at in 0.. {
                let (disk, reached, _) = scenario.run(kind(at), at);
                let context = format!("{title}, dead at call {at}");
                scenario.assert_legal(&disk, &context);
                scenario.assert_recovers(&disk, &context);
                if !reached {
                    assert!(at > 4, "{title} makes only {at} calls");
                    break;
                }
            }
        }
    }
}

#[test]
fn any_one_system_call_may_fail() {
    for (title, scenario) in SCENARIOS {
        for errno in [Errno::NOSPC, Errno::ACCESS, Errno::IO, Errno::ROFS] {
            for at in 0.. {
                let (disk, reached, outcome) = scenario.run(Fault::Fail(at, errno), at);
                let context = format!("{title}, {errno:?} at call {at}: {outcome:?}");
                scenario.assert_legal(&disk, &context);
                if let Err(error) = &outcome {
                    let message = error.to_string();
                    assert!(message.contains(&*disk.0.path().to_string_lossy()), "{context}");
                }
                scenario.assert_recovers(&disk, &context);
                if !reached {
                    assert!(outcome.is_ok(), "{context}");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_failed_prepare_leaves_no_files() {
    for (title, scenario) in SCENARIOS.iter().take(2) {
        for at in 1.. {
            let (disk, reached, outcome) = scenario.run(Fault::Fail(at, Errno::NOSPC), at);
            if outcome.is_err() {
                let files = disk.files_but_root().into_iter().filter(|name| !name.ends_with('/'));
                assert_eq!(files.collect::<Vec<_>>(), Vec::<String>::new(), "{title}, no space at call {at}");
            }
            if !reached {
                break;
            }
        }
    }
}

#[test]
fn a_prepare_with_edits_alone_writes_a_record_and_one_spec() {
    let disk = Disk::new();
    let ids = disk.store().prepare(&claim(), None, vec![], &uses(), edits("m1")).unwrap();
    assert!(ids.is_empty(), "{ids:?}");
    assert_eq!(
        disk.files_but_root(),
        [
            format!("cdi/{DRIVER}_container-edits_{UID}.json"),
            "plugin/dra-device-metadata/default_my-claim/".into(),
            "plugin/dra-device-metadata/default_my-claim/.claim.json".into(),
        ]
    );
    let error = disk.store().update(&claim(), &name("gpu"), vec![device("gpu-0", "x")]).unwrap_err();
    assert!(matches!(error, StoreError::NotPrepared { .. }), "{error}");
}

#[test]
fn a_spec_that_does_not_change_is_not_touched() {
    use std::os::unix::fs::MetadataExt as _;
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, two_requests(), &uses(), edits("m1")).unwrap();
    let state = || {
        let spec = fs::metadata(disk.claim_spec_path()).unwrap();
        let record = fs::metadata(disk.path("plugin/dra-device-metadata/default_my-claim/.claim.json")).unwrap();
        [spec, record].map(|file| (file.ino(), file.mtime_nsec(), file.ctime_nsec()))
    };
    let before = state();
    disk.store().prepare(&claim(), None, two_requests(), &uses(), edits("m1")).unwrap();
    disk.store().update(&claim(), &name("gpu"), vec![device("gpu-0", "updated")]).map(drop).unwrap();
    assert!(disk.store().recover().problems.is_empty());
    assert_eq!(state(), before);
    disk.store().prepare(&claim(), None, two_requests(), &uses(), edits("m2")).unwrap();
    assert_ne!(state(), before);
    assert_eq!(disk.seen("gpu").unwrap().metadata.generation, 2, "other edits leave the metadata alone");
}

#[test]
fn a_spec_that_a_reboot_deleted_is_restored_from_the_record() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, vec![], &uses(), edits("m1")).unwrap();
    let before = disk.all();
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    let store = Store::open(SystemFiles, Settings { boot: "next boot".into(), ..disk.settings() }).unwrap();
    let recovery = store.recover();
    assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
    assert_eq!(disk.all(), before);
    assert!(!recovery.claims[0].has_metadata && !recovery.claims[0].is_of_this_boot);
}

#[test]
fn specs_of_unknown_claims_are_removed_and_those_that_drivers_write_are_not() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, vec![], &uses(), edits("m1")).unwrap();
    let orphan = disk.path(&format!("cdi/{DRIVER}_container-edits_dead.json"));
    let foreign = disk.path("cdi/other.example.com_container-edits_dead.json");
    // As drakkar-pci names its own.
    let own = disk.path(&format!("cdi/{DRIVER}_device_dead.json"));
    let temporary = disk.path(&format!("cdi/.{DRIVER}_container-edits_{UID}.json.tmp"));
    for file in [&orphan, &foreign, &own, &temporary] {
        fs::write(file, "{}").unwrap();
    }
    assert!(disk.store().recover().problems.is_empty());
    assert!(foreign.exists() && own.exists() && disk.claim_spec_path().exists());
    assert!(!orphan.exists() && !temporary.exists());
}

/// An earlier release has prepared the claim again after a downgrade: its record has no edits.
#[test]
fn the_spec_of_a_claim_whose_record_has_no_edits_is_an_orphan() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    fs::write(disk.claim_spec_path(), "{}").unwrap();
    assert!(disk.store().recover().problems.is_empty());
    assert!(!disk.claim_spec_path().exists() && disk.has_spec("gpu"));
}

#[test]
fn metadata_that_is_turned_on_later_comes_with_the_next_prepare() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, vec![], &uses(), edits("m1")).unwrap();
    store.prepare(&claim(), None, two_requests(), &uses(), edits("m1")).unwrap();
    assert!(disk.has_spec("gpu") && disk.seen("gpu").is_some());
    assert_eq!(disk.seen_env(), Some(vec!["MODEL=m1".to_owned()]));
    store.unprepare(&claim()).unwrap();
    assert_eq!(disk.files_but_root(), Vec::<String>::new());
}

#[test]
fn an_invalid_spec_is_refused_before_anything_is_written() {
    let disk = Disk::new();
    let mut devices = edits("m1");
    devices[0].container_edits.mounts[0].host_path = "opt".into();
    let error = disk.store().prepare(&claim(), None, two_requests(), &uses(), devices).unwrap_err().to_string();
    for part in ["default/my-claim", "devices[0].containerEdits.mounts[0].hostPath", "must be absolute"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(disk.store().unprepare(&claim()).is_ok());
    assert_eq!(disk.files_but_root(), Vec::<String>::new());
}
