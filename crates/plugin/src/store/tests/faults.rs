//! Tests in which every system call fails in turn, and the process dies between any two of them.

use super::*;

/// A call of the store, and the states that it may leave on disk.
struct Scenario {
    before: fn(&Store<SystemFiles>, &ClaimRef),
    call: fn(&Store<FaultyFiles>, &ClaimRef) -> Result<(), StoreError>,
    /// The models that containers may see for the request `gpu`; `None` for no file.
    legal: &'static [Option<&'static str>],
}

const SCENARIOS: [(&str, Scenario); 7] = [
    (
        "prepare",
        Scenario {
            before: |_, _| {},
            call: |store, claim| store.prepare(claim, None, two_requests(), &uses(), vec![]).map(drop),
            legal: &[None, Some("first")],
        },
    ),
    (
        "prepare again",
        Scenario {
            before: |store, claim| drop(store.prepare(claim, None, two_requests(), &uses(), vec![]).unwrap()),
            call: |store, claim| store.prepare(claim, None, two_requests(), &uses(), vec![]).map(drop),
            legal: &[Some("first")],
        },
    ),
    (
        "prepare with other devices",
        Scenario {
            before: |store, claim| drop(store.prepare(claim, None, two_requests(), &uses(), vec![]).unwrap()),
            call: |store, claim| {
                store
                    .prepare(
                        claim,
                        None,
                        &[request("gpu", Delivery::Now, vec![device("gpu-1", "other")])],
                        &other_uses(),
                        vec![],
                    )
                    .map(drop)
            },
            legal: &[Some("first"), Some("other")],
        },
    ),
    (
        "prepare a successor",
        Scenario {
            before: |store, claim| {
                drop(store.prepare(&successor(claim), None, two_requests(), &uses(), vec![]).unwrap());
            },
            call: |store, claim| store.prepare(claim, None, two_requests(), &uses(), vec![]).map(drop),
            legal: &[None, Some("first")],
        },
    ),
    (
        "update",
        Scenario {
            before: |store, claim| drop(store.prepare(claim, None, two_requests(), &uses(), vec![]).unwrap()),
            call: |store, claim| {
                store.update(claim, &name("gpu"), vec![device("gpu-0", "second, and longer")]).map(drop)
            },
            legal: &[Some("first"), Some("second, and longer")],
        },
    ),
    (
        "unprepare",
        Scenario {
            before: |store, claim| drop(store.prepare(claim, None, two_requests(), &uses(), vec![]).unwrap()),
            call: |store, claim| store.unprepare(claim),
            legal: &[None, Some("first")],
        },
    ),
    (
        "prepare and unprepare by one process",
        Scenario {
            before: |_, _| {},
            call: |store, claim| {
                store.prepare(claim, None, two_requests(), &uses(), vec![])?;
                store.unprepare(claim)
            },
            legal: &[None, Some("first")],
        },
    ),
];

/// Returns the devices that the claim uses when it is prepared with other devices.
fn other_uses() -> Vec<DeviceUse> {
    vec![device_use("gpu-1", None)]
}

/// Returns every scenario, for a claim with a full directory name and for one with a shortened name.
fn scenarios() -> impl Iterator<Item = (String, ClaimRef, Scenario)> {
    let short = SCENARIOS.into_iter().map(|(title, scenario)| (title.to_owned(), claim(), scenario));
    let long = SCENARIOS.into_iter().map(|(title, scenario)| (format!("{title}, long name"), long_claim(), scenario));
    short.chain(long)
}

impl Scenario {
    /// Runs the call with a fault, and returns whether the fault was reached and the outcome of the call.
    fn run(&self, claim: &ClaimRef, fault: Fault) -> (Disk, bool, Result<(), StoreError>) {
        let disk = Disk::new();
        (self.before)(&disk.store(), claim);
        let (store, files) = disk.faulty(fault);
        let outcome = store.and_then(|store| (self.call)(&store, claim));
        let at = match fault {
            Fault::Fail(at, _)
            | Fault::FailHalf(at, _)
            | Fault::FailTwice(at, _)
            | Fault::Die(at)
            | Fault::DieHalfWritten(at) => at,
        };
        let reached = files.calls() > at;
        (disk, reached, outcome)
    }

    /// Asserts that containers see one of the legal states, and never a torn file.
    fn assert_legal(&self, disk: &Disk, claim: &ClaimRef, context: &str) {
        let seen = disk.seen_of(claim, "gpu").and_then(|metadata| {
            let model = metadata.requests[0].devices[0].attributes["model"].string.clone();
            (metadata.metadata.uid == UID).then_some(model).flatten()
        });
        assert!(self.legal.contains(&seen.as_deref()), "{context}: {seen:?}\n{:#?}", disk.all());
    }

    /// Asserts that every spec names an existing file.
    fn assert_specs_resolve(disk: &Disk, claim: &ClaimRef, context: &str) {
        for request in ["gpu", "net"] {
            let file = disk.file_of(claim, request);
            assert!(!disk.has_spec(request) || file.exists(), "{context}: {request}\n{:#?}", disk.all());
        }
    }

    /// Asserts that the kubelet's next calls succeed, and that an unprepare removes everything.
    fn assert_usable(disk: &Disk, claim: &ClaimRef, context: &str) {
        let store = disk.store();
        store
            .prepare(claim, None, two_requests(), &uses(), vec![])
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(disk.seen_of(claim, "gpu").is_some(), "{context}");
        assert!(disk.has_spec("gpu") && disk.has_spec("net"), "{context}");
        store.unprepare(claim).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(disk.files_but_root(), Vec::<String>::new(), "{context}");
    }
}

#[test]
fn the_process_may_die_between_any_two_system_calls() {
    for (title, claim, scenario) in scenarios() {
        for kind in [Fault::Die as fn(usize) -> Fault, Fault::DieHalfWritten] {
            for at in 0.. {
                let (disk, reached, _) = scenario.run(&claim, kind(at));
                let context = format!("{title}, dead at call {at}");
                Scenario::assert_specs_resolve(&disk, &claim, &context);
                let recovery = disk.store().recover();
                assert!(recovery.problems.is_empty(), "{context}: {:?}", recovery.problems);
                for found in &recovery.claims {
                    let names = (&found.claim.namespace, &found.claim.name);
                    assert_eq!(names, (&claim.namespace, &claim.name), "{context}");
                    assert!([uses(), other_uses()].contains(&found.uses), "{context}: {found:?}");
                }
                scenario.assert_legal(&disk, &claim, &context);
                Scenario::assert_specs_resolve(&disk, &claim, &context);
                let leftovers =
                    disk.files_but_root().into_iter().filter(|name| name.contains(".tmp") || name.contains(".next"));
                assert_eq!(leftovers.collect::<Vec<_>>(), Vec::<String>::new(), "{context}");
                Scenario::assert_usable(&disk, &claim, &context);
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
    for (title, claim, scenario) in scenarios() {
        let all = [Errno::NOSPC, Errno::ACCESS, Errno::IO, Errno::ROFS];
        for errno in all.into_iter().take(if claim == long_claim() { 1 } else { all.len() }) {
            for at in 0.. {
                let (disk, reached, outcome) = scenario.run(&claim, Fault::Fail(at, errno));
                let context = format!("{title}, {errno:?} at call {at}: {outcome:?}");
                scenario.assert_legal(&disk, &claim, &context);
                Scenario::assert_specs_resolve(&disk, &claim, &context);
                if let Err(error) = &outcome {
                    let message = error.to_string();
                    let names_path = message.contains(&disk.0.path().to_string_lossy().into_owned());
                    assert!(names_path, "{context}");
                }
                let recovery = disk.store().recover();
                assert!(recovery.problems.is_empty(), "{context}: {:?}", recovery.problems);
                scenario.assert_legal(&disk, &claim, &context);
                Scenario::assert_usable(&disk, &claim, &context);
                if !reached {
                    assert!(outcome.is_ok(), "{context}");
                    break;
                }
            }
        }
    }
}

/// The disk fails in the middle of a write, and again when the old content is restored.
#[test]
fn a_disk_that_fails_twice_leaves_old_or_new_content_after_the_next_start() {
    for (title, claim, scenario) in scenarios() {
        for at in 0.. {
            let (disk, reached, outcome) = scenario.run(&claim, Fault::FailTwice(at, Errno::IO));
            let context = format!("{title}, twice from call {at}: {outcome:?}");
            let recovery = disk.store().recover();
            assert!(recovery.problems.is_empty(), "{context}: {:?}", recovery.problems);
            scenario.assert_legal(&disk, &claim, &context);
            Scenario::assert_specs_resolve(&disk, &claim, &context);
            Scenario::assert_usable(&disk, &claim, &context);
            if !reached {
                break;
            }
        }
    }
}

#[test]
fn a_failed_prepare_leaves_no_files() {
    for at in 1.. {
        let (disk, reached, outcome) = SCENARIOS[0].1.run(&claim(), Fault::Fail(at, Errno::NOSPC));
        if outcome.is_err() {
            let leftovers: Vec<String> =
                disk.files_but_root().into_iter().filter(|name| !name.ends_with('/')).collect();
            assert_eq!(leftovers, Vec::<String>::new(), "no space at call {at}");
        }
        if !reached {
            break;
        }
    }
}
