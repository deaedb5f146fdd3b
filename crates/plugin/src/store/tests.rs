//! Tests of the store, with every system call failing in turn and the process dying between any two of them.

mod edits;
mod faults;
mod faulty;
mod gate;
mod known;
mod recovery;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use drakkar_metadata::name::RequestName;
use drakkar_metadata::path::Layout;
use drakkar_metadata::{Device, Metadata, Request, Versions, decode};
use rustix::io::Errno;
use tempfile::TempDir;

use self::faulty::{Fault, FaultyFiles};
use super::recover::Recovery;
use super::*;

const DRIVER: &str = "gpu.example.com";
const UID: &str = "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11";

/// The disk of a node.
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
            exclusive: true,
        }
    }

    fn store(&self) -> Store<SystemFiles> {
        Store::open(SystemFiles, self.settings()).unwrap()
    }

    fn faulty(&self, fault: Fault) -> (Result<Store<FaultyFiles>, StoreError>, FaultyFiles) {
        let files = FaultyFiles::new(fault);
        (Store::open(files.clone(), self.settings()), files)
    }

    /// Returns everything on the disk, by path, with the content of files.
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

    /// Returns the metadata of a request that containers of the claim would see.
    fn seen(&self, request: &str) -> Option<Metadata> {
        self.seen_of(&claim(), request)
    }

    fn seen_of(&self, claim: &ClaimRef, request: &str) -> Option<Metadata> {
        let content = fs::read(self.file_of(claim, request)).ok()?;
        if content.is_empty() {
            return None;
        }
        Some(
            decode(&content)
                .unwrap_or_else(|error| panic!("torn: {error}: {}", String::from_utf8_lossy(&content)))
                .metadata,
        )
    }

    fn file_of(&self, claim: &ClaimRef, request: &str) -> PathBuf {
        let directory = directory_name(&claim.namespace, &claim.name);
        self.path("plugin/dra-device-metadata").join(directory).join(request).join("metadata.json")
    }

    fn has_spec(&self, request: &str) -> bool {
        self.path(&format!("cdi/{DRIVER}_metadata_{UID}_{request}.json")).exists()
    }

    fn files_but_root(&self) -> Vec<String> {
        let ours = |name: &String| !["plugin/", "cdi/", "plugin/dra-device-metadata/"].contains(&name.as_str());
        self.all().into_keys().filter(ours).collect()
    }
}

fn claim() -> ClaimRef {
    ClaimRef { namespace: "default".parse().unwrap(), name: "my-claim".parse().unwrap(), uid: UID.parse().unwrap() }
}

/// Returns a claim whose namespace and name do not fit into one directory name.
fn long_claim() -> ClaimRef {
    ClaimRef { namespace: "n".repeat(63).parse().unwrap(), name: "c".repeat(253).parse().unwrap(), ..claim() }
}

/// Returns a later claim with the same name.
fn successor(of: &ClaimRef) -> ClaimRef {
    ClaimRef { uid: "f1f1f1f1-5c5e-4d53-9d39-0f2f6a1f6a22".parse().unwrap(), ..of.clone() }
}

/// Returns the devices that a claim with [`two_requests`] uses.
fn uses() -> Vec<DeviceUse> {
    vec![device_use("gpu-0", None), device_use("nic-0", Some("a1b2"))]
}

fn device_use(device: &str, share_id: Option<&str>) -> DeviceUse {
    DeviceUse { pool: "pool".into(), device: device.into(), share_id: share_id.map(Into::into) }
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

fn claims(recovery: &Recovery) -> Vec<ClaimRef> {
    recovery.claims.iter().map(|found| found.claim.clone()).collect()
}

fn name(text: &str) -> RequestName {
    text.parse().unwrap()
}

#[test]
fn prepare_writes_file_record_and_spec_and_returns_the_ids() {
    let disk = Disk::new();
    let ids = disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
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

/// Namespace and name can have 317 bytes together, a directory name only 255.
#[test]
fn a_claim_with_the_longest_names_is_prepared_updated_and_unprepared_like_any_other() {
    let disk = Disk::new();
    let store = disk.store();
    let claim = long_claim();
    let neighbour = ClaimRef {
        name: format!("{}x", "c".repeat(252)).parse().unwrap(),
        uid: "11111111-5c5e-4d53-9d39-0f2f6a1f6a33".parse().unwrap(),
        ..long_claim()
    };
    store.prepare(&claim, None, two_requests(), &uses(), vec![]).unwrap();
    store.prepare(&neighbour, None, two_requests(), &uses(), vec![]).unwrap();
    assert_eq!(disk.seen_of(&claim, "gpu").unwrap().metadata.name, claim.name.as_str());
    let spec = fs::read_to_string(disk.path(&format!("cdi/{DRIVER}_metadata_{UID}_gpu.json"))).unwrap();
    assert!(spec.contains(disk.file_of(&claim, "gpu").to_str().unwrap()), "{spec}");
    assert_eq!(store.update(&claim, &name("gpu"), vec![device("gpu-0", "second")]).unwrap(), 2);

    let recovery = disk.store().recover();
    assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
    let mut found = claims(&recovery);
    found.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!(found, [claim.clone(), neighbour.clone()]);

    store.unprepare(&claim).unwrap();
    assert!(disk.seen_of(&claim, "gpu").is_none());
    assert_eq!(disk.seen_of(&neighbour, "gpu").unwrap().metadata.uid, neighbour.uid.as_str());
    store.unprepare(&neighbour).unwrap();
    assert_eq!(disk.files_but_root(), Vec::<String>::new());
}

#[test]
fn the_longest_names_of_driver_and_request_fit_and_a_uid_that_does_not_is_refused_before_anything_is_written() {
    let disk = Disk::new();
    let driver = format!("{}.example.com", "d".repeat(51));
    let settings = Settings { driver: driver.parse().unwrap(), ..disk.settings() };
    let store = Store::open(SystemFiles, settings).unwrap();
    let longest = [request(&"r".repeat(63), Delivery::Now, vec![device("gpu-0", "first")])];
    store.prepare(&claim(), None, &longest, &[], vec![]).unwrap();
    assert!(disk.path(&format!("cdi/{driver}_metadata_{UID}_{}.json", "r".repeat(63))).exists());
    store.unprepare(&claim()).unwrap();

    let before = disk.all();
    // The name of the spec has 251 bytes, and its temporary name five more.
    let claim =
        ClaimRef { uid: "u".repeat(251 - 63 - 63 - "_metadata_".len() - "_.json".len()).parse().unwrap(), ..claim() };
    let error = store.prepare(&claim, None, &longest, &[], vec![]).unwrap_err().to_string();
    assert!(error.contains("the file name must be no more than 255 bytes, has 256"), "{error}");
    assert_eq!(disk.all(), before);
}

/// On ext4, system calls take most of the time.
#[test]
fn prepare_and_unprepare_make_no_unnecessary_system_calls() {
    let disk = Disk::new();
    let (store, files) = disk.faulty(Fault::Die(usize::MAX));
    let store = store.unwrap();
    let gpu = [request("gpu", Delivery::Now, vec![device("gpu-0", "first")])];
    let counted = |work: &dyn Fn()| {
        let before = files.calls();
        work();
        files.calls() - before
    };
    store.prepare(&successor(&long_claim()), None, &gpu, &uses(), vec![]).unwrap();
    // Create two directories; create and write three files, check the mode of one, rename one.
    assert_eq!(counted(&|| drop(store.prepare(&claim(), None, &gpu, &uses(), vec![]).unwrap())), 10);
    // Open a directory, so that no link is followed; remove three files, two directories.
    assert_eq!(counted(&|| store.unprepare(&claim()).unwrap()), 6);
}

/// The directory of all claims is kept open between calls.
#[test]
fn a_directory_of_all_claims_that_is_deleted_or_replaced_is_noticed() {
    let disk = Disk::new();
    let store = disk.store();
    let root = disk.path("plugin/dra-device-metadata");
    for remove in [(|root, _| fs::remove_dir_all(root)) as fn(&Path, &Path) -> io::Result<()>, |root, away| {
        fs::rename(root, away)?;
        fs::create_dir(root)
    }] {
        store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
        store.unprepare(&claim()).unwrap();
        remove(&root, &disk.path("away")).unwrap();
        store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
        assert!(disk.seen("gpu").is_some() && disk.has_spec("gpu"), "{:#?}", disk.all());
        store.unprepare(&claim()).unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "{:#?}", disk.all());
        assert!(!disk.path("away/default_my-claim/gpu/metadata.json").exists());
    }
    // Files that are taken away while the claim is prepared.
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    fs::remove_dir_all(&root).unwrap();
    store.unprepare(&claim()).unwrap();
}

#[test]
fn an_unprepare_by_the_process_that_prepared_follows_no_link() {
    for planted in
        ["dra-device-metadata", "dra-device-metadata/default_my-claim", "dra-device-metadata/default_my-claim/gpu"]
    {
        let disk = Disk::new();
        let store = disk.store();
        store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
        let place = disk.path("plugin").join(planted);
        fs::rename(&place, disk.path("outside")).unwrap();
        let before = disk.all();
        std::os::unix::fs::symlink(disk.path("outside"), &place).unwrap();
        let unprepared = store.unprepare(&claim());
        let outside = |all: &BTreeMap<String, String>| -> Vec<String> {
            all.keys().filter(|name| name.starts_with("outside")).cloned().collect()
        };
        assert_eq!(outside(&disk.all()), outside(&before), "{planted}: {unprepared:?}");
    }
}

/// Containers do not run as the driver's user.
#[test]
fn metadata_and_specs_are_world_readable_whatever_the_umask_is() {
    let disk = Disk::new();
    let umask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let prepared = disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]);
    nix::sys::stat::umask(umask);
    prepared.unwrap();
    for file in [disk.file_of(&claim(), "gpu"), disk.path(&format!("cdi/{DRIVER}_metadata_{UID}_gpu.json"))] {
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o644, "{}", file.display());
    }
}

/// `/var/run` may be cleaned at any time.
#[test]
fn a_cdi_directory_that_is_deleted_or_created_again_is_noticed() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    assert!(disk.has_spec("gpu") && disk.has_spec("net"));
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    fs::create_dir(disk.path("cdi")).unwrap();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    assert!(disk.has_spec("gpu") && disk.has_spec("net"));
    fs::remove_dir_all(disk.path("cdi")).unwrap();
    store.unprepare(&claim()).unwrap();
    assert_eq!(disk.files_but_root(), Vec::<String>::new());
}

#[test]
fn unprepare_removes_foreign_files_from_the_claims_directory() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    fs::write(disk.file_of(&claim(), "gpu").with_file_name(".metadata.json.next.tmp"), "{").unwrap();
    fs::write(disk.file_of(&claim(), "gpu").with_file_name("planted"), "").unwrap();
    fs::create_dir(disk.path("plugin/dra-device-metadata/default_my-claim/other")).unwrap();
    fs::write(disk.path("plugin/dra-device-metadata/default_my-claim/.claim.json.tmp"), "{").unwrap();
    store.unprepare(&claim()).unwrap();
    assert_eq!(disk.files_but_root(), Vec::<String>::new());
}

#[test]
fn a_claim_from_a_template_is_mounted_under_the_name_of_the_pods_entry() {
    let disk = Disk::new();
    disk.store().prepare(&claim(), Some(&"gpus".parse().unwrap()), two_requests(), &uses(), vec![]).unwrap();
    assert_eq!(disk.seen("gpu").unwrap().pod_claim_name.as_deref(), Some("gpus"));
    let spec = fs::read_to_string(disk.path(&format!("cdi/{DRIVER}_metadata_{UID}_gpu.json"))).unwrap();
    assert!(spec.contains("/resourceclaimtemplates/gpus/gpu/"), "{spec}");
}

/// G26: a repeated prepare keeps generation and updated data, and touches no file.
#[test]
fn a_repeated_prepare_returns_the_same_and_touches_nothing() {
    let disk = Disk::new();
    let store = disk.store();
    let first = store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    store.update(&claim(), &name("net"), vec![device("nic-0", "second")]).unwrap();
    let before = disk.all();
    let inode = |path: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(disk.path(path)).unwrap());
    let record = inode("plugin/dra-device-metadata/default_my-claim/.claim.json");
    assert_eq!(store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap(), first);
    assert_eq!(disk.all(), before);
    assert_eq!(inode("plugin/dra-device-metadata/default_my-claim/.claim.json"), record);
    assert_eq!(disk.seen("net").unwrap().requests[0].devices, [device("nic-0", "second")]);
}

/// A driver may list its devices in another order than before. Updates since then stay.
#[test]
fn a_repeated_prepare_with_the_devices_in_another_order_keeps_updates_and_touches_nothing() {
    let disk = Disk::new();
    let store = disk.store();
    let in_order = |devices: [&str; 2]| {
        let devices = devices.map(|name| device(name, "first")).to_vec();
        vec![request("net", Delivery::Now, devices)]
    };
    store.prepare(&claim(), None, in_order(["nic-0", "nic-1"]), &uses(), vec![]).unwrap();
    let updated = vec![device("nic-0", "second"), device("nic-1", "second")];
    store.update(&claim(), &name("net"), updated.clone()).unwrap();
    let before = disk.all();

    store.prepare(&claim(), None, in_order(["nic-1", "nic-0"]), &uses(), vec![]).unwrap();

    assert_eq!(disk.all(), before);
    assert_eq!(disk.seen("net").unwrap().requests[0].devices, updated);
}

#[test]
fn a_repeated_prepare_writes_a_file_that_is_missing_or_damaged() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let file = disk.file_of(&claim(), "gpu");
    let damages: [fn(&Path); 4] = [
        |file| fs::write(file, "").unwrap(),
        |file| fs::write(file, "{\"kind").unwrap(),
        |file| fs::remove_file(file).unwrap(),
        |file| fs::remove_dir_all(file.parent().unwrap()).unwrap(),
    ];
    for damage in damages {
        damage(&file);
        store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
        assert_eq!(disk.seen("gpu").unwrap().requests[0].devices, [device("gpu-0", "first")]);
    }
}

#[test]
fn a_repeated_prepare_with_other_devices_writes_a_new_generation_into_the_same_file() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let path = disk.path("plugin/dra-device-metadata/default_my-claim/gpu/metadata.json");
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
    let before = inode();
    let other = [request("gpu", Delivery::Now, vec![device("gpu-7", "other")])];
    store.prepare(&claim(), None, &other, &[], vec![]).unwrap();
    assert_eq!(disk.seen("gpu").unwrap().metadata.generation, 2);
    assert_eq!(disk.seen("gpu").unwrap().requests[0].devices, [device("gpu-7", "other")]);
    assert_eq!(inode(), before);
    // The request that is no longer prepared is removed.
    assert!(!disk.has_spec("net") && !disk.path("plugin/dra-device-metadata/default_my-claim/net").exists());
}

#[test]
fn an_update_is_seen_through_the_same_inode_and_never_shrinks_the_file() {
    let disk = Disk::new();
    let store = disk.store();
    let long = [request("gpu", Delivery::Now, vec![device("gpu-0", &"long".repeat(15))])];
    store.prepare(&claim(), None, &long, &[], vec![]).unwrap();
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
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
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
    let ids = store.prepare(&claim(), None, &gated, &[], vec![]).unwrap();
    assert_eq!(ids.len(), 1);
    assert!(!disk.has_spec("net"));
    store.prepare(&claim(), None, &gated, &[], vec![]).unwrap();
    disk.store().recover();
    assert!(!disk.has_spec("net"));
    assert_eq!(store.update(&claim(), &name("net"), vec![device("nic-0", "b")]).unwrap(), 1);
    assert!(disk.has_spec("net"));
    // A repeated prepare and a recovery keep the gate open.
    store.prepare(&claim(), None, &gated, &[], vec![]).unwrap();
    assert!(disk.has_spec("net"));
    fs::remove_file(disk.path(&format!("cdi/{DRIVER}_metadata_{UID}_net.json"))).unwrap();
    disk.store().recover();
    assert!(disk.has_spec("net"));
}

/// G28: an update is for one claim, one request and the devices that were prepared for it.
#[test]
fn an_update_for_another_claim_request_or_device_is_refused() {
    let disk = Disk::new();
    let store = disk.store();
    let error = |outcome: Result<i64, StoreError>| outcome.unwrap_err().to_string();
    assert_eq!(
        error(store.update(&claim(), &name("gpu"), vec![])),
        format!("claim default/my-claim (uid {UID}): not prepared here, so there is no metadata to update")
    );
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let before = disk.all();
    assert!(
        error(store.update(&successor(&claim()), &name("gpu"), vec![])).contains("prepared here, with uid 0d6a3c0e")
    );
    assert!(error(store.update(&claim(), &name("tpu"), vec![])).contains("not prepared here; prepared: gpu, net"));
    let foreign = error(store.update(&claim(), &name("gpu"), vec![device("nic-0", "x")]));
    assert!(foreign.contains("device pool/nic-0 was not prepared for this request"), "{foreign}");
    let invalid = Device { attributes: [("a".into(), Default::default())].into(), ..device("gpu-0", "x") };
    let invalid = error(store.update(&claim(), &name("gpu"), vec![invalid]));
    assert!(invalid.contains("requests[0].devices[0].attributes[a]: has no value"), "{invalid}");
    assert_eq!(disk.all(), before);
}

/// G34: invalid metadata is never written.
#[test]
fn invalid_metadata_fails_the_prepare_before_anything_is_written() {
    let disk = Disk::new();
    let before = disk.all();
    let mut requests = two_requests();
    requests[1].references[0].devices[0].pool = "Not A Pool".into();
    let error = disk.store().prepare(&claim(), None, &requests, &[], vec![]).unwrap_err().to_string();
    assert!(error.contains("request net: the driver's metadata is not valid"), "{error}");
    assert_eq!(disk.all(), before);
}

#[test]
fn unprepare_removes_everything_and_can_be_repeated() {
    let disk = Disk::new();
    let store = disk.store();
    store.unprepare(&claim()).unwrap();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    store.unprepare(&claim()).unwrap();
    assert_eq!(disk.files_but_root(), Vec::<String>::new());
    store.unprepare(&claim()).unwrap();
}

/// G32: directories are named after namespace and name, so only the UID distinguishes two claims.
#[test]
fn a_late_unprepare_of_an_older_uid_leaves_the_new_claim_alone() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    store.prepare(&successor(&claim()), None, two_requests(), &uses(), vec![]).unwrap();
    assert!(!disk.has_spec("gpu"), "the spec of the older claim is left over");
    let before = disk.all();
    store.unprepare(&claim()).unwrap();
    assert_eq!(disk.all(), before);
    assert_eq!(disk.seen("gpu").unwrap().metadata.uid, successor(&claim()).uid.as_str());
}

#[test]
fn planted_links_are_neither_followed_nor_written_through() {
    for planted in ["dra-device-metadata", "dra-device-metadata/default_my-claim"] {
        let disk = Disk::new();
        fs::create_dir(disk.path("outside")).unwrap();
        fs::create_dir_all(disk.path("plugin").join(planted).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(disk.path("outside"), disk.path("plugin").join(planted)).unwrap();
        let error = disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap_err().to_string();
        assert!(error.contains(planted), "{error}");
        disk.store().recover();
        assert!(disk.store().unprepare(&claim()).is_err());
        assert_eq!(fs::read_dir(disk.path("outside")).unwrap().count(), 0, "{planted}");
    }
    // Links in the claim's own directory are removed with the claim, but not their targets.
    let disk = Disk::new();
    disk.store().prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
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
