//! The store's promises, with every system call failing in turn and the process dying between any two of them.

mod faulty;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use drakkar_metadata::name::RequestName;
use drakkar_metadata::path::Layout;
use drakkar_metadata::{Device, DeviceMetadata, Request, Versions, decode};
use rustix::io::Errno;
use tempfile::TempDir;

use self::faulty::{Fault, FaultyFiles};
use super::files::SystemFiles;
use super::*;

const DRIVER: &str = "gpu.example.com";
const UID: &str = "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11";

/// A node's disk.
struct Disk(TempDir);

impl Disk {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("plugin")).unwrap();
        fs::create_dir(directory.path().join("cdi")).unwrap();
        Self(directory)
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.0.path().join(relative)
    }

    fn settings(&self) -> Settings {
        Settings {
            driver: DRIVER.parse().unwrap(),
            plugin_directory: self.path("plugin"),
            cdi_directory: self.path("cdi"),
            versions: Versions::default(),
            layouts: vec![Layout::Kubernetes, Layout::Kep],
            boot: "this boot".into(),
        }
    }

    fn store(&self) -> Store<SystemFiles> {
        Store::open(SystemFiles, self.settings()).unwrap()
    }

    fn faulty(&self, fault: Fault) -> (Result<Store<FaultyFiles>, StoreError>, FaultyFiles) {
        let files = FaultyFiles::new(fault);
        (Store::open(files.clone(), self.settings()), files)
    }

    /// Everything on the disk, by path, with the content of files.
    fn all(&self) -> BTreeMap<String, String> {
        fn walk(root: &Path, path: &Path, all: &mut BTreeMap<String, String>) {
            for entry in fs::read_dir(path).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                if path.symlink_metadata().unwrap().is_dir() {
                    all.insert(format!("{name}/"), String::new());
                    walk(root, &path, all);
                } else {
                    all.insert(name, String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned());
                }
            }
        }
        let mut all = BTreeMap::new();
        walk(self.0.path(), self.0.path(), &mut all);
        all
    }

    /// What containers of the claim would see of a request.
    fn seen(&self, request: &str) -> Option<DeviceMetadata> {
        let path = self.path(&format!("plugin/dra-device-metadata/default_my-claim/{request}/metadata.json"));
        let content = fs::read(path).ok()?;
        if content.is_empty() {
            return None;
        }
        Some(
            decode(&content)
                .unwrap_or_else(|error| panic!("torn: {error}: {}", String::from_utf8_lossy(&content)))
                .metadata,
        )
    }

    fn has_spec(&self, request: &str) -> bool {
        self.path(&format!("cdi/{DRIVER}_metadata_{UID}_{request}.json")).exists()
    }

    fn files_but_root(&self) -> Vec<String> {
        let ours = |name: &String| !["plugin/", "cdi/", "plugin/dra-device-metadata/"].contains(&name.as_str());
        self.all().into_keys().filter(ours).collect()
    }
}

fn claim() -> ClaimKey {
    ClaimKey { namespace: "default".parse().unwrap(), name: "my-claim".parse().unwrap(), uid: UID.parse().unwrap() }
}

fn successor() -> ClaimKey {
    ClaimKey { uid: "f1f1f1f1-5c5e-4d53-9d39-0f2f6a1f6a22".parse().unwrap(), ..claim() }
}

fn device(name: &str, model: &str) -> Device {
    Device {
        driver: DRIVER.into(),
        pool: "pool".into(),
        name: name.into(),
        attributes: [("model".into(), model.into())].into(),
        network_data: None,
    }
}

fn request(name: &str, delivery: Delivery, devices: Vec<Device>) -> PreparedRequest {
    let base: RequestName = name.split('/').next().unwrap().parse().unwrap();
    PreparedRequest { request: base, references: vec![Request { name: name.into(), devices }], delivery }
}

fn two_requests() -> Vec<PreparedRequest> {
    vec![
        request("gpu", Delivery::Now, vec![device("gpu-0", "first")]),
        request("net/fast", Delivery::Later, vec![device("nic-0", "first")]),
    ]
}

fn name(text: &str) -> RequestName {
    text.parse().unwrap()
}

#[test]
fn prepare_writes_file_record_and_spec_and_gives_the_ids() {
    let disk = Disk::new();
    let ids = disk.store().prepare(&claim(), None, &two_requests()).unwrap();
    let ids: Vec<String> = ids.values().map(ToString::to_string).collect();
    assert_eq!(ids, [format!("{DRIVER}/metadata={UID}_gpu"), format!("{DRIVER}/metadata={UID}_net")]);
    assert_eq!(
        disk.files_but_root(),
        [
            format!("cdi/{DRIVER}_metadata_{UID}_gpu.json"),
            format!("cdi/{DRIVER}_metadata_{UID}_net.json"),
            "plugin/dra-device-metadata/default_my-claim/".into(),
            "plugin/dra-device-metadata/default_my-claim/.claim.json".into(),
            "plugin/dra-device-metadata/default_my-claim/gpu/".into(),
            "plugin/dra-device-metadata/default_my-claim/gpu/metadata.json".into(),
            "plugin/dra-device-metadata/default_my-claim/net/".into(),
            "plugin/dra-device-metadata/default_my-claim/net/metadata.json".into(),
        ]
    );
    let seen = disk.seen("gpu").unwrap();
    assert_eq!(seen.metadata.generation, 1);
    assert_eq!(seen.requests[0].devices, [device("gpu-0", "first")]);
    assert_eq!(disk.seen("net"), None);
    let spec = fs::read_to_string(disk.path(&format!("cdi/{DRIVER}_metadata_{UID}_gpu.json"))).unwrap();
    for path in [
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/my-claim/gpu/gpu.example.com-metadata.json",
        "/var/run/dra-device-attributes/my-claim/gpu/gpu.example.com-metadata.json",
    ] {
        assert!(spec.contains(path), "{spec}");
    }
}

#[test]
fn a_claim_from_a_template_is_mounted_under_the_name_of_the_pods_entry() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), Some(&"gpus".parse().unwrap()), &two_requests()).unwrap();
    assert_eq!(disk.seen("gpu").unwrap().pod_claim_name.as_deref(), Some("gpus"));
    let spec = fs::read_to_string(disk.path(&format!("cdi/{DRIVER}_metadata_{UID}_gpu.json"))).unwrap();
    assert!(spec.contains("/resourceclaimtemplates/gpus/gpu/"), "{spec}");
}

/// G26: a repeated prepare keeps generation and updated data, and touches no file.
#[test]
fn prepare_again_answers_the_same_and_touches_nothing() {
    let disk = Disk::new();
    let store = disk.store();
    let first = store.prepare(&claim(), None, &two_requests()).unwrap();
    store.update(&claim(), &name("net"), vec![device("nic-0", "second")]).unwrap();
    let before = disk.all();
    let inode = |path: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(disk.path(path)).unwrap());
    let record = inode("plugin/dra-device-metadata/default_my-claim/.claim.json");
    assert_eq!(store.prepare(&claim(), None, &two_requests()).unwrap(), first);
    assert_eq!(disk.all(), before);
    assert_eq!(inode("plugin/dra-device-metadata/default_my-claim/.claim.json"), record);
    assert_eq!(disk.seen("net").unwrap().requests[0].devices, [device("nic-0", "second")]);
}

#[test]
fn prepare_again_with_other_devices_writes_a_new_generation_into_the_same_file() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, &two_requests()).unwrap();
    let path = disk.path("plugin/dra-device-metadata/default_my-claim/gpu/metadata.json");
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
    let before = inode();
    let other = [request("gpu", Delivery::Now, vec![device("gpu-7", "other")])];
    store.prepare(&claim(), None, &other).unwrap();
    assert_eq!(disk.seen("gpu").unwrap().metadata.generation, 2);
    assert_eq!(disk.seen("gpu").unwrap().requests[0].devices, [device("gpu-7", "other")]);
    assert_eq!(inode(), before);
    // The request that is no longer prepared is gone.
    assert!(!disk.has_spec("net") && !disk.path("plugin/dra-device-metadata/default_my-claim/net").exists());
}

#[test]
fn an_update_is_seen_through_the_same_inode_and_never_shrinks_the_file() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, &[request("gpu", Delivery::Now, vec![device("gpu-0", &"long".repeat(15))])]).unwrap();
    let path = disk.path("plugin/dra-device-metadata/default_my-claim/gpu/metadata.json");
    let mounted = fs::File::open(&path).unwrap();
    let length = mounted.metadata().unwrap().len();
    assert_eq!(store.update(&claim(), &name("gpu"), vec![device("gpu-0", "x")]).unwrap(), 2);
    assert_eq!(mounted.metadata().unwrap().len(), length);
    let mut content = Vec::new();
    io::Read::read_to_end(&mut &mounted, &mut content).unwrap();
    assert_eq!(decode(&content).unwrap().metadata.requests[0].devices, [device("gpu-0", "x")]);
    assert_eq!(store.update(&claim(), &name("gpu"), vec![device("gpu-0", "y")]).unwrap(), 3);
}

#[test]
fn the_first_update_of_deferred_metadata_is_generation_one_and_keeps_the_subrequest() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, &two_requests()).unwrap();
    assert_eq!(store.update(&claim(), &name("net"), vec![device("nic-0", "now")]).unwrap(), 1);
    assert_eq!(disk.seen("net").unwrap().requests[0].name, "net/fast");
    assert_eq!(store.update(&claim(), &name("net"), vec![]).unwrap(), 2);
    assert_eq!(disk.seen("net").unwrap().requests[0].name, "net/fast");
}

#[test]
fn a_gated_request_has_no_spec_before_its_first_update() {
    let disk = Disk::new();
    let store = disk.store();
    let gated = [request("net", Delivery::Gated, vec![device("nic-0", "a")])];
    let ids = store.prepare(&claim(), None, &gated).unwrap();
    assert_eq!(ids.len(), 1);
    assert!(!disk.has_spec("net"));
    store.prepare(&claim(), None, &gated).unwrap();
    disk.store().recover();
    assert!(!disk.has_spec("net"));
    assert_eq!(store.update(&claim(), &name("net"), vec![device("nic-0", "b")]).unwrap(), 1);
    assert!(disk.has_spec("net"));
    // A repeated prepare, and a start after a reboot, leave the gate open.
    store.prepare(&claim(), None, &gated).unwrap();
    assert!(disk.has_spec("net"));
    fs::remove_file(disk.path(&format!("cdi/{DRIVER}_metadata_{UID}_net.json"))).unwrap();
    disk.store().recover();
    assert!(disk.has_spec("net"));
}

/// G28: an update is for one claim, one request and the devices that were prepared for it.
#[test]
fn an_update_is_refused_for_what_was_not_prepared() {
    let disk = Disk::new();
    let store = disk.store();
    let error = |outcome: Result<i64, StoreError>| outcome.unwrap_err().to_string();
    assert_eq!(
        error(store.update(&claim(), &name("gpu"), vec![])),
        format!("claim default/my-claim (uid {UID}): not prepared here, so there is no metadata to update")
    );
    store.prepare(&claim(), None, &two_requests()).unwrap();
    let before = disk.all();
    assert!(error(store.update(&successor(), &name("gpu"), vec![])).contains("is another, with uid 0d6a3c0e"));
    assert!(error(store.update(&claim(), &name("tpu"), vec![])).contains("not one of those prepared here: gpu, net"));
    let foreign = error(store.update(&claim(), &name("gpu"), vec![device("nic-0", "x")]));
    assert!(foreign.contains("device pool/nic-0 was not prepared for it"), "{foreign}");
    let invalid = Device { attributes: [("a".into(), Default::default())].into(), ..device("gpu-0", "x") };
    let invalid = error(store.update(&claim(), &name("gpu"), vec![invalid]));
    assert!(invalid.contains("requests[0].devices[0].attributes[a]: has no value"), "{invalid}");
    assert_eq!(disk.all(), before);
}

/// G34: what is not valid is never written.
#[test]
fn metadata_that_is_not_valid_fails_the_prepare_before_anything_is_written() {
    let disk = Disk::new();
    let before = disk.all();
    let mut requests = two_requests();
    requests[1].references[0].devices[0].pool = "Not A Pool".into();
    let error = disk.store().prepare(&claim(), None, &requests).unwrap_err().to_string();
    assert!(error.contains("request net: the driver's metadata is not valid"), "{error}");
    assert_eq!(disk.all(), before);
}

#[test]
fn unprepare_leaves_nothing_and_twice_is_fine() {
    let disk = Disk::new();
    let store = disk.store();
    store.unprepare(&claim()).unwrap();
    store.prepare(&claim(), None, &two_requests()).unwrap();
    store.unprepare(&claim()).unwrap();
    assert_eq!(disk.files_but_root(), Vec::<String>::new());
    store.unprepare(&claim()).unwrap();
}

/// G32: directories are named by namespace and name, so only the UID tells two claims apart.
#[test]
fn a_late_unprepare_of_an_older_uid_leaves_the_new_claim_alone() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, &two_requests()).unwrap();
    store.prepare(&successor(), None, &two_requests()).unwrap();
    assert!(!disk.has_spec("gpu"), "the spec of the claim that is gone is gone");
    let before = disk.all();
    store.unprepare(&claim()).unwrap();
    assert_eq!(disk.all(), before);
    assert_eq!(disk.seen("gpu").unwrap().metadata.uid, successor().uid.as_str());
}

#[test]
fn specs_that_a_reboot_wiped_are_restored_from_the_records() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, &two_requests()).unwrap();
    let before = disk.all();
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    let store = Store::open(SystemFiles, Settings { boot: "next boot".into(), ..disk.settings() }).unwrap();
    let recovery = store.recover();
    assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
    assert_eq!(recovery.claims, [claim()]);
    assert_eq!(disk.all(), before);
    // In another boot nothing is believed: the files are written anew, and count on.
    store.prepare(&claim(), None, &two_requests()).unwrap();
    assert_eq!(disk.seen("gpu").unwrap().metadata.generation, 2);
}

#[test]
fn files_of_a_go_driver_are_adopted_and_rubbish_is_removed() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, &two_requests()).unwrap();
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
    assert_eq!(recovery.claims, [claim()]);
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
fn one_bad_entry_is_reported_left_alone_and_keeps_nothing_from_being_done() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, &two_requests()).unwrap();
    fs::write(disk.path("plugin/dra-device-metadata/README"), "hello").unwrap();
    fs::create_dir(disk.path("plugin/dra-device-metadata/Not_A Claim")).unwrap();
    fs::remove_file(disk.path(&format!("cdi/{DRIVER}_metadata_{UID}_gpu.json"))).unwrap();
    let recovery = disk.store().recover();
    assert_eq!(recovery.claims, [claim()]);
    assert_eq!(recovery.problems.len(), 2, "{:?}", recovery.problems);
    assert!(recovery.problems[1].to_string().contains("README"), "{:?}", recovery.problems);
    assert!(disk.has_spec("gpu"));
    assert!(disk.path("plugin/dra-device-metadata/README").exists());
}

#[test]
fn planted_links_are_neither_followed_nor_written_through() {
    for planted in ["dra-device-metadata", "dra-device-metadata/default_my-claim"] {
        let disk = Disk::new();
        fs::create_dir(disk.path("outside")).unwrap();
        fs::create_dir_all(disk.path("plugin").join(planted).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(disk.path("outside"), disk.path("plugin").join(planted)).unwrap();
        let error = disk.store().prepare(&claim(), None, &two_requests()).unwrap_err().to_string();
        assert!(error.contains(planted), "{error}");
        disk.store().recover();
        assert!(disk.store().unprepare(&claim()).is_err());
        assert_eq!(fs::read_dir(disk.path("outside")).unwrap().count(), 0, "{planted}");
    }
    // Below the claim's own directory, links go with the claim, and what they point at stays.
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, &two_requests()).unwrap();
    fs::create_dir(disk.path("outside")).unwrap();
    fs::write(disk.path("outside/metadata.json"), "precious").unwrap();
    std::os::unix::fs::symlink(disk.path("outside"), disk.path("plugin/dra-device-metadata/default_my-claim/x"))
        .unwrap();
    let file = disk.path("plugin/dra-device-metadata/default_my-claim/gpu/metadata.json");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(disk.path("outside/metadata.json"), &file).unwrap();
    assert!(disk.store().update(&claim(), &name("gpu"), vec![device("gpu-0", "x")]).is_err());
    disk.store().unprepare(&claim()).unwrap();
    assert_eq!(fs::read_to_string(disk.path("outside/metadata.json")).unwrap(), "precious");
    assert!(!disk.path("plugin/dra-device-metadata/default_my-claim").exists());
}

/// A call on the store, and what may be on disk when it is over, one way or the other.
struct Scenario {
    before: fn(&Store<SystemFiles>),
    call: fn(&Store<FaultyFiles>) -> Result<(), StoreError>,
    /// The models that containers may see of the request `gpu`; `None` for no file.
    legal: &'static [Option<&'static str>],
}

const SCENARIOS: [(&str, Scenario); 6] = [
    (
        "prepare",
        Scenario {
            before: |_| {},
            call: |store| store.prepare(&claim(), None, &two_requests()).map(drop),
            legal: &[None, Some("first")],
        },
    ),
    (
        "prepare again",
        Scenario {
            before: |store| drop(store.prepare(&claim(), None, &two_requests()).unwrap()),
            call: |store| store.prepare(&claim(), None, &two_requests()).map(drop),
            legal: &[Some("first")],
        },
    ),
    (
        "prepare with other devices",
        Scenario {
            before: |store| drop(store.prepare(&claim(), None, &two_requests()).unwrap()),
            call: |store| {
                store
                    .prepare(&claim(), None, &[request("gpu", Delivery::Now, vec![device("gpu-1", "other")])])
                    .map(drop)
            },
            legal: &[Some("first"), Some("other")],
        },
    ),
    (
        "prepare a successor",
        Scenario {
            before: |store| drop(store.prepare(&successor(), None, &two_requests()).unwrap()),
            call: |store| store.prepare(&claim(), None, &two_requests()).map(drop),
            legal: &[None, Some("first")],
        },
    ),
    (
        "update",
        Scenario {
            before: |store| drop(store.prepare(&claim(), None, &two_requests()).unwrap()),
            call: |store| store.update(&claim(), &name("gpu"), vec![device("gpu-0", "second, and longer")]).map(drop),
            legal: &[Some("first"), Some("second, and longer")],
        },
    ),
    (
        "unprepare",
        Scenario {
            before: |store| drop(store.prepare(&claim(), None, &two_requests()).unwrap()),
            call: |store| store.unprepare(&claim()),
            legal: &[None, Some("first")],
        },
    ),
];

impl Scenario {
    /// Runs the call with a fault; says whether the fault was ever reached, and how the call ended.
    fn run(&self, fault: Fault) -> (Disk, bool, Result<(), StoreError>) {
        let disk = Disk::new();
        (self.before)(&disk.store());
        let (store, files) = disk.faulty(fault);
        let outcome = store.and_then(|store| (self.call)(&store));
        let at = match fault {
            Fault::Fail(at, _) | Fault::FailTwice(at, _) | Fault::Die(at) | Fault::DieHalfWritten(at) => at,
        };
        let reached = files.calls() > at;
        (disk, reached, outcome)
    }

    /// Nothing torn is ever to be seen, by a container that runs or by one that is created now.
    fn assert_legal(&self, disk: &Disk, context: &str) {
        let seen = disk.seen("gpu").and_then(|metadata| {
            let model = metadata.requests[0].devices[0].attributes["model"].string.clone();
            (metadata.metadata.uid == UID).then_some(model).flatten()
        });
        assert!(self.legal.contains(&seen.as_deref()), "{context}: {seen:?}\n{:#?}", disk.all());
    }

    /// A spec names a file that is there and whole.
    fn assert_specs_resolve(disk: &Disk, context: &str) {
        for request in ["gpu", "net"] {
            let file = disk.path(&format!("plugin/dra-device-metadata/default_my-claim/{request}/metadata.json"));
            assert!(!disk.has_spec(request) || file.exists(), "{context}: {request}\n{:#?}", disk.all());
        }
    }

    /// Whatever has happened, the kubelet's next calls work, and in the end nothing is left.
    fn assert_usable(disk: &Disk, context: &str) {
        let store = disk.store();
        store.prepare(&claim(), None, &two_requests()).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(disk.seen("gpu").is_some(), "{context}");
        assert!(disk.has_spec("gpu") && disk.has_spec("net"), "{context}");
        store.unprepare(&claim()).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(disk.files_but_root(), Vec::<String>::new(), "{context}");
    }
}

#[test]
fn the_process_may_die_between_any_two_calls() {
    for (title, scenario) in SCENARIOS {
        for kind in [Fault::Die as fn(usize) -> Fault, Fault::DieHalfWritten] {
            for at in 0.. {
                let (disk, reached, _) = scenario.run(kind(at));
                let context = format!("{title}, dead at call {at}");
                Scenario::assert_specs_resolve(&disk, &context);
                let recovery = disk.store().recover();
                assert!(recovery.problems.is_empty(), "{context}: {:?}", recovery.problems);
                scenario.assert_legal(&disk, &context);
                Scenario::assert_specs_resolve(&disk, &context);
                let leftovers =
                    disk.files_but_root().into_iter().filter(|name| name.contains(".tmp") || name.contains(".next"));
                assert_eq!(leftovers.collect::<Vec<_>>(), Vec::<String>::new(), "{context}");
                Scenario::assert_usable(&disk, &context);
                if !reached {
                    assert!(at > 4, "{title} makes only {at} calls");
                    break;
                }
            }
        }
    }
}

#[test]
fn any_one_call_may_fail() {
    for (title, scenario) in SCENARIOS {
        for errno in [Errno::NOSPC, Errno::ACCESS, Errno::IO, Errno::ROFS] {
            for at in 0.. {
                let (disk, reached, outcome) = scenario.run(Fault::Fail(at, errno));
                let context = format!("{title}, {errno:?} at call {at}: {outcome:?}");
                scenario.assert_legal(&disk, &context);
                Scenario::assert_specs_resolve(&disk, &context);
                if let Err(error) = &outcome {
                    let message = error.to_string();
                    let names_path = message.contains(&disk.0.path().to_string_lossy().into_owned());
                    assert!(names_path, "{context}");
                }
                let recovery = disk.store().recover();
                assert!(recovery.problems.is_empty(), "{context}: {:?}", recovery.problems);
                scenario.assert_legal(&disk, &context);
                Scenario::assert_usable(&disk, &context);
                if !reached {
                    assert!(outcome.is_ok(), "{context}");
                    break;
                }
            }
        }
    }
}

/// A disk that fails in the middle of a write, and again when the old content is to be put back.
#[test]
fn a_disk_that_fails_twice_leaves_old_or_new_after_the_next_start() {
    for (title, scenario) in SCENARIOS {
        for at in 0.. {
            let (disk, reached, outcome) = scenario.run(Fault::FailTwice(at, Errno::IO));
            let context = format!("{title}, twice from call {at}: {outcome:?}");
            let recovery = disk.store().recover();
            assert!(recovery.problems.is_empty(), "{context}: {:?}", recovery.problems);
            scenario.assert_legal(&disk, &context);
            Scenario::assert_specs_resolve(&disk, &context);
            Scenario::assert_usable(&disk, &context);
            if !reached {
                break;
            }
        }
    }
}

#[test]
fn a_prepare_that_fails_leaves_nothing() {
    for at in 1.. {
        let (disk, reached, outcome) = SCENARIOS[0].1.run(Fault::Fail(at, Errno::NOSPC));
        if outcome.is_err() {
            let left: Vec<String> = disk.files_but_root().into_iter().filter(|name| !name.ends_with('/')).collect();
            assert_eq!(left, Vec::<String>::new(), "no space at call {at}");
        }
        if !reached {
            break;
        }
    }
}
