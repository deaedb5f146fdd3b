//! Tests of the recovery when a driver starts.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use drakkar_plugin::{PluginBuilder, Services, StartError};
use http::StatusCode;
use rstest::rstest;
use serde_json::Value;

use crate::support::{
    ApiServer, DRIVER, Kubelet, Node, Random, TestClaim, TestDriver, cdi_devices, eventually, numbered_device,
};

/// Returns a node with a prepared claim on which the driver has stopped.
async fn node_with(claim: TestClaim) -> (Node, TestClaim) {
    let node = Node::default();
    let claim = node.claim(claim);
    prepare_and_stop(&node, &claim).await;
    (node, claim)
}

async fn prepare_and_stop(node: &Node, claim: &TestClaim) {
    let helper = node.start(&TestDriver::default()).await;
    Kubelet::of(&helper).await.prepare_one(claim).await.unwrap();
    helper.stop().await.unwrap();
}

fn train() -> TestClaim {
    TestClaim::new("train", "uid-1").device("gpu", "gpu-0")
}

/// Returns the files of a directory with their contents, to check that nothing was changed.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        found.insert(path.clone(), fs::read(&path).unwrap());
    }
    found
}

/// G31: an interrupted prepare, in all its stages, and files of other drivers with similar names.
#[tokio::test]
async fn leftovers_of_an_interrupted_prepare_are_removed() {
    let node = Node::default();
    let root = node.plugin_directory().join("dra-device-metadata");
    fs::create_dir_all(root.join("default_empty")).unwrap();
    fs::create_dir_all(root.join("default_made/gpu")).unwrap();
    fs::create_dir_all(root.join("default_cut/gpu")).unwrap();
    fs::write(root.join("default_cut/gpu/metadata.json"), "{\"kind\": \"Dev").unwrap();
    fs::create_dir_all(root.join("default_cut-record/gpu")).unwrap();
    fs::write(root.join("default_cut-record/.claim.json"), "{\"format\":1,\"namesp").unwrap();
    fs::write(root.join("default_cut-record/gpu/metadata.json"), "").unwrap();
    fs::create_dir(node.cdi_directory()).unwrap();
    fs::write(node.cdi_directory().join(".gpu.example.com_metadata_uid-1_gpu.json.tmp"), "{").unwrap();
    fs::write(node.cdi_directory().join("gpu.example.com_metadata_uid-1_gpu.json"), "{}").unwrap();
    let others = ["vendor.json", "net.example.com_metadata_uid-1_gpu.json", ".vendor.json.tmp", "gpu.example.com.json"];
    for other in others {
        fs::write(node.cdi_directory().join(other), "{}").unwrap();
    }
    let driver = TestDriver::default();
    let helper = node.start(&driver).await;
    let mut expected: Vec<String> = others.iter().map(|name| format!("cdi/{name}")).collect();
    expected.push("plugins/gpu.example.com/dra-device-metadata".into());
    expected.sort();
    assert_eq!(node.files(), expected);
    assert_eq!(*driver.errors.lock().unwrap(), [""; 0]);
    helper.stop().await.unwrap();
}

/// D6: an update that was interrupted after its write-ahead copy is completed, whatever the file looks like.
#[rstest]
#[case::not_started(None)]
#[case::torn(Some(40))]
#[case::emptied(Some(0))]
#[tokio::test]
async fn an_update_that_a_crash_interrupted_is_completed(#[case] cut: Option<usize>) {
    let (node, claim) = node_with(train()).await;
    let file = node.metadata_file(&claim, "gpu");
    let old = fs::read_to_string(&file).unwrap();
    let new = old.replace("\"generation\": 1", "\"generation\": 2");
    fs::write(file.with_file_name(".metadata.json.next"), &new).unwrap();
    fs::write(file.with_file_name(".metadata.json.next.tmp"), "{\"half").unwrap();
    fs::write(node.claim_directory(&claim).join(".claim.json.tmp"), "{\"half").unwrap();
    if let Some(length) = cut {
        fs::write(&file, &new.as_bytes()[..length]).unwrap();
    }
    let helper = node.start(&TestDriver::default()).await;
    assert!(node.is_prepared(&claim));
    assert_eq!(node.metadata(&claim, "gpu")["metadata"]["generation"], 2);
    helper.stop().await.unwrap();
}

/// D13: an incomplete copy counts as none.
#[tokio::test]
async fn a_write_ahead_copy_that_cannot_be_decoded_is_dropped() {
    let (node, claim) = node_with(train()).await;
    let file = node.metadata_file(&claim, "gpu");
    let before = fs::read(&file).unwrap();
    fs::write(file.with_file_name(".metadata.json.next"), &before[..before.len() / 2]).unwrap();
    let helper = node.start(&TestDriver::default()).await;
    assert!(node.is_prepared(&claim));
    assert_eq!(fs::read(&file).unwrap(), before);
    helper.stop().await.unwrap();
}

/// D13: after a power loss files can be empty; the kubelet prepares again, and that must work.
#[tokio::test]
async fn files_that_are_empty_after_a_power_loss_are_written_again() {
    let (node, claim) = node_with(train()).await;
    let whole = fs::read(node.metadata_file(&claim, "gpu")).unwrap();
    for file in [
        node.metadata_file(&claim, "gpu"),
        node.claim_directory(&claim).join(".claim.json"),
        node.spec_file(&claim, "gpu"),
    ] {
        fs::write(file, "").unwrap();
    }
    let helper = node.start(&TestDriver::default()).await;
    assert!(!node.spec_file(&claim, "gpu").exists(), "no container is created with an empty spec");
    Kubelet::of(&helper).await.prepare_one(&claim).await.unwrap();
    assert!(node.is_prepared(&claim));
    assert_eq!(fs::read(node.metadata_file(&claim, "gpu")).unwrap(), whole);
    helper.stop().await.unwrap();
}

/// G31: `/var/run` is empty after a reboot, and containers of static pods may be created before the kubelet prepares again.
#[tokio::test]
async fn a_deleted_cdi_directory_is_restored() {
    let (node, claim) = node_with(train().device("gpu", "gpu-1").device("nic", "nic-0")).await;
    let before = snapshot(&node.cdi_directory());
    assert_eq!(before.len(), 2);
    fs::remove_dir_all(node.cdi_directory()).unwrap();
    let helper = node.start(&TestDriver::default()).await;
    assert_eq!(snapshot(&node.cdi_directory()), before);
    helper.stop().await.unwrap();

    // The same if another directory is configured.
    let elsewhere = node.root.path().join("other-cdi");
    let helper = node.builder().cdi_directory(&elsewhere).start(TestDriver::default()).await.unwrap();
    let names = |files: &BTreeMap<PathBuf, _>| {
        files.keys().map(|path| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&snapshot(&elsewhere)), names(&before));
    Kubelet::of(&helper).await.unprepare_one(&claim).await.unwrap();
    assert!(snapshot(&elsewhere).is_empty());
    helper.stop().await.unwrap();
}

/// G31: the kubelet does not unprepare a claim that was deleted while the driver was stopped. After the grace period its files
/// are removed and its device is free; other claims stay.
#[rstest]
#[case::deleted(false)]
#[case::replaced_by_another_with_the_same_name(true)]
#[tokio::test]
async fn leftovers_of_claims_that_are_gone_are_removed(#[case] replaced: bool) {
    let (node, gone) = node_with(train()).await;
    let stays = node.claim(TestClaim::new("stays", "uid-2").device("gpu", "gpu-1"));
    prepare_and_stop(&node, &stays).await;
    node.api.remove("default", "train");
    let next = TestClaim::new(if replaced { "train" } else { "next" }, "uid-3").device("gpu", "gpu-0");
    let next = node.claim(next);

    let driver = TestDriver::default();
    let helper = node.builder().orphan_grace(Duration::ZERO).start(driver.clone()).await.unwrap();
    eventually("the spec is removed", || (!node.spec_file(&gone, "gpu").exists()).then_some(())).await;
    eventually("the files are removed", || (!node.claim_directory(&gone).exists()).then_some(())).await;
    let kubelet = Kubelet::of(&helper).await;
    kubelet.prepare_one(&next).await.unwrap();
    assert!(node.is_prepared(&stays) && node.is_prepared(&next));
    assert_eq!(driver.take_calls()[0], "unprepare train", "the framework calls the driver");
    assert_eq!(*driver.errors.lock().unwrap(), [""; 0]);
    kubelet.unprepare_one(&gone).await.unwrap();
    assert!(node.is_prepared(&next), "a late unprepare of the old claim leaves the new one alone");
    helper.stop().await.unwrap();
}

/// G31: without a response from the API server nothing is removed.
#[tokio::test]
async fn no_claim_loses_its_files_when_the_api_server_fails() {
    let (node, claim) = node_with(train()).await;
    node.api.remove("default", "train");
    node.api.fail_next(&[StatusCode::FORBIDDEN; 100]);
    let driver = TestDriver::default();
    let helper = node.builder().orphan_grace(Duration::ZERO).start(driver.clone()).await.unwrap();
    let error = eventually("the error is reported", || driver.errors.lock().unwrap().first().cloned()).await;
    assert_eq!(
        error,
        "unprepare orphaned claims: get resourceclaim default/train (uid uid-1): the API server answered 403 \
         Forbidden: not today",
    );
    assert!(node.is_prepared(&claim));
    helper.stop().await.unwrap();
}

/// An invalid entry among the directories of claims.
enum Bad {
    File(&'static str),
    Directory(&'static str),
    Link(&'static str),
    NotUnicode,
}

impl Bad {
    /// Creates the entry, and returns its path.
    fn plant(&self, root: &Path) -> PathBuf {
        match self {
            Self::File(name) => {
                fs::write(root.join(name), "what is this?").unwrap();
                root.join(name)
            }
            Self::Directory(name) => {
                fs::create_dir_all(root.join(name)).unwrap();
                root.join(name)
            }
            Self::Link(name) => {
                symlink("/nonexistent", root.join(name)).unwrap();
                root.join(name)
            }
            Self::NotUnicode => {
                let path = root.join(OsStr::from_bytes(b"default_\xff"));
                fs::create_dir(&path).unwrap();
                path
            }
        }
    }
}

/// G31, G37: an invalid entry is reported and left alone, and does not affect others.
#[rstest]
#[case::foreign_file(Bad::File("README"), Some("README: not the directory of a claim; left alone"))]
#[case::foreign_directory(Bad::Directory("lost+found"), Some("lost+found: not the directory of a claim; left alone"))]
#[case::odd_name(Bad::Directory("a_b_c"), Some("a_b_c: not the directory of a claim; left alone"))]
#[case::file_with_the_name_of_a_claim(Bad::File("default_file"), Some("default_file: Not a directory"))]
#[case::link_with_the_name_of_a_claim(Bad::Link("default_link"), Some("default_link: Not a directory"))]
#[case::record_that_cannot_be_read(Bad::Directory("default_odd/.claim.json"), Some(".claim.json: not a regular file"))]
#[case::name_that_is_not_unicode(Bad::NotUnicode, None)]
#[tokio::test]
async fn an_invalid_entry_does_not_prevent_the_driver_from_starting(#[case] bad: Bad, #[case] reported: Option<&str>) {
    let (node, claim) = node_with(train()).await;
    fs::remove_dir_all(node.cdi_directory()).unwrap();
    let planted = bad.plant(&node.plugin_directory().join("dra-device-metadata"));

    let driver = TestDriver::default();
    let helper = node.start(&driver).await;
    let errors = driver.errors.lock().unwrap().clone();
    match reported {
        Some(reported) => {
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].starts_with("recover what an earlier instance left: "), "{errors:?}");
            assert!(errors[0].contains(reported), "{errors:?}");
        }
        None => assert_eq!(errors, [""; 0]),
    }
    assert!(planted.symlink_metadata().is_ok(), "it is left alone");
    assert!(node.is_prepared(&claim), "the others are restored");
    let kubelet = Kubelet::of(&helper).await;
    let other = node.claim(TestClaim::new("other", "uid-2").device("gpu", "gpu-1"));
    kubelet.prepare_one(&other).await.unwrap();
    kubelet.unprepare_one(&claim).await.unwrap();
    assert!(node.is_prepared(&other) && !node.is_prepared(&claim));
    helper.stop().await.unwrap();
}

/// The same for the directory itself: the driver starts, and each prepare fails with the cause.
#[tokio::test]
async fn a_file_in_place_of_the_directory_is_reported_and_fails_prepares() {
    let node = Node::default();
    fs::create_dir_all(node.plugin_directory()).unwrap();
    let path = node.plugin_directory().join("dra-device-metadata");
    fs::write(&path, "").unwrap();
    let driver = TestDriver::default();
    let helper = node.start(&driver).await;
    assert_eq!(driver.errors.lock().unwrap().len(), 1);
    let claim = node.claim(train());
    let error = Kubelet::of(&helper).await.prepare_one(&claim).await.unwrap_err();
    assert!(error.contains("default/train") && error.contains(path.to_str().unwrap()), "{error}");
    helper.stop().await.unwrap();
}

/// Writes the files of the Go framework for a claim (contract, sections 5.2 and 5.3).
fn write_like_go(node: &Node) {
    let directory = node.plugin_directory().join("dra-device-metadata/default_train/gpu");
    fs::create_dir_all(&directory).unwrap();
    let document = r#"{
  "kind": "DeviceMetadata",
  "apiVersion": "metadata.resource.k8s.io/v1beta1",
  "metadata": {
    "name": "train",
    "namespace": "default",
    "uid": "uid-1",
    "generation": 3
  },
  "requests": [
    {
      "name": "gpu",
      "devices": [
        {
          "driver": "gpu.example.com",
          "pool": "node-1",
          "name": "gpu-0",
          "attributes": {
            "model": {
              "string": "m1"
            }
          }
        }
      ]
    }
  ]
}
"#;
    let alpha = document.replace("v1beta1", "v1alpha1");
    fs::write(directory.join("metadata.json"), format!("{document}{alpha}")).unwrap();
    fs::create_dir_all(node.cdi_directory()).unwrap();
    let spec = serde_json::json!({
        "cdiVersion": "0.3.0", "kind": "gpu.example.com/metadata",
        "devices": [{"name": "uid-1_gpu", "containerEdits": {"mounts": [{
            "hostPath": directory.join("metadata.json"),
            "containerPath": "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/train/gpu/gpu.example.com-metadata.json",
            "options": ["ro", "bind"],
        }]}}],
        "containerEdits": {},
    });
    fs::write(node.cdi_directory().join("gpu.example.com_metadata_uid-1_gpu.json"), spec.to_string()).unwrap();
}

/// A driver built with the Go framework is replaced by one built with this framework: its claims are in use and stay prepared.
#[tokio::test]
async fn claims_that_a_go_driver_prepared_are_adopted() {
    let node = Node::default();
    let claim = node.claim(train());
    write_like_go(&node);
    let before = fs::read(node.metadata_file(&claim, "gpu")).unwrap();
    let driver = TestDriver::default();
    let helper = node.start(&driver).await;
    assert_eq!(*driver.errors.lock().unwrap(), [""; 0]);
    assert!(node.is_prepared(&claim));
    assert_eq!(fs::read(node.metadata_file(&claim, "gpu")).unwrap(), before, "containers use it");

    let kubelet = Kubelet::of(&helper).await;
    let rival = node.claim(TestClaim::new("rival", "uid-2").device("gpu", "gpu-0"));
    let error = kubelet.prepare_one(&rival).await.unwrap_err();
    assert!(error.starts_with("device node-1/gpu-0 is still prepared for claim default/train (uid uid-1)"), "{error}");
    let devices = kubelet.prepare_one(&claim).await.unwrap();
    assert!(cdi_devices(&devices).contains(&"gpu.example.com/metadata=uid-1_gpu"), "{devices:?}");
    assert_eq!(
        node.metadata(&claim, "gpu")["metadata"]["generation"],
        3,
        "the adopted claim starts again at generation 1"
    );
    assert_eq!(
        helper.handles().update_request_metadata(&claim.reference(), "gpu", numbered_device("gpu-0", 1)).await.unwrap(),
        4
    );

    kubelet.unprepare_one(&claim).await.unwrap();
    assert!(!node.is_prepared(&claim));
    kubelet.prepare_one(&rival).await.unwrap();
    helper.stop().await.unwrap();
}

/// G21: a restart does not release devices.
#[tokio::test]
async fn a_device_of_a_claim_that_was_prepared_before_the_start_is_refused_to_others() {
    let (node, claim) = node_with(train()).await;
    let other = node.claim(TestClaim::new("other", "uid-2").device("gpu", "gpu-0"));
    let helper = node.start(&TestDriver::default()).await;
    let kubelet = Kubelet::of(&helper).await;
    let error = kubelet.prepare_one(&other).await.unwrap_err();
    assert_eq!(
        error,
        "device node-1/gpu-0 is still prepared for claim default/train (uid uid-1), which the kubelet unprepares when its \
         pods are gone; claim default/other (uid uid-2) can be prepared after that",
    );
    assert!(!node.is_prepared(&other));
    kubelet.prepare_one(&claim).await.unwrap();
    kubelet.unprepare_one(&claim).await.unwrap();
    kubelet.prepare_one(&other).await.unwrap();
    helper.stop().await.unwrap();
}

/// Links may be planted below the driver's directory, or in the CDI directory.
#[rstest]
#[case::all_claims("plugins/gpu.example.com/dra-device-metadata", "")]
#[case::claim("plugins/gpu.example.com/dra-device-metadata/default_train", "")]
#[case::request("plugins/gpu.example.com/dra-device-metadata/default_train/gpu", "")]
#[case::record("plugins/gpu.example.com/dra-device-metadata/default_train/.claim.json", "metadata.json")]
#[case::temporary_record("plugins/gpu.example.com/dra-device-metadata/default_train/.claim.json.tmp", "metadata.json")]
#[case::file("plugins/gpu.example.com/dra-device-metadata/default_train/gpu/metadata.json", "metadata.json")]
#[case::copy("plugins/gpu.example.com/dra-device-metadata/default_train/gpu/.metadata.json.next", "metadata.json")]
#[case::temporary_copy(
    "plugins/gpu.example.com/dra-device-metadata/default_train/gpu/.metadata.json.next.tmp",
    "metadata.json"
)]
#[case::spec("cdi/gpu.example.com_metadata_uid-1_gpu.json", "metadata.json")]
#[case::temporary_spec("cdi/.gpu.example.com_metadata_uid-1_gpu.json.tmp", "metadata.json")]
#[tokio::test]
async fn a_planted_link_is_not_followed(
    #[case] link: &str,
    #[case] target: &str,
    #[values(false, true)] is_prepared: bool,
) {
    let outside = tempfile::tempdir().unwrap();
    let (node, claim) = node_with(train()).await;
    // The files outside are as plausible as possible: they could be the claim's own.
    let secret = fs::read_to_string(node.metadata_file(&claim, "gpu")).unwrap().replace("\"gpu-0\"", "\"secret\"");
    for name in ["metadata.json", ".metadata.json.next", ".claim.json"] {
        fs::write(outside.path().join(name), &secret).unwrap();
    }
    let before = snapshot(outside.path());
    let link = node.root.path().join(link);
    if is_prepared {
        // Replaces the existing entry.
        if link.is_dir() {
            fs::remove_dir_all(&link).unwrap();
        } else {
            let _ = fs::remove_file(&link);
        }
    } else {
        fs::remove_dir_all(node.plugin_directory()).unwrap();
        fs::remove_dir_all(node.cdi_directory()).unwrap();
        fs::create_dir_all(link.parent().unwrap()).unwrap();
    }
    symlink(outside.path().join(target), &link).unwrap();

    let driver = TestDriver::default();
    let helper = node.start(&driver).await;
    let kubelet = Kubelet::of(&helper).await;
    for _ in 0..2 {
        if let Err(error) = kubelet.prepare_one(&claim).await {
            assert!(error.contains("default/train") && error.contains(node.root.path().to_str().unwrap()), "{error}");
        }
        let _ = helper.handles().update_request_metadata(&claim.reference(), "gpu", numbered_device("gpu-0", 1)).await;
    }
    // Only files that are reached without following a link out of the node's directory.
    for path in [node.metadata_file(&claim, "gpu"), node.spec_file(&claim, "gpu")] {
        let is_inside =
            path.canonicalize().is_ok_and(|real| real.starts_with(node.root.path().canonicalize().unwrap()));
        if is_inside {
            assert!(!fs::read_to_string(&path).unwrap().contains("secret"), "read from outside: {}", path.display());
        }
    }
    let _ = kubelet.unprepare_one(&claim).await;
    helper.stop().await.unwrap();
    assert_eq!(snapshot(outside.path()), before, "something outside was written or removed");
}

/// The same for the lock file and the sockets, which do not belong to the store.
#[tokio::test]
async fn a_link_in_place_of_the_lock_file_or_a_socket_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let node = Node::default();
    fs::create_dir_all(node.plugin_directory()).unwrap();
    symlink(outside.path().join("lock"), node.plugin_directory().join("serialize.lock")).unwrap();
    let error = node.builder().rolling_update("pod-1").start(TestDriver::default()).await.unwrap_err();
    assert!(matches!(error, StartError::Lock { .. }), "{error}");
    assert!(
        error.to_string().ends_with("serialize.lock: is a symbolic link, not a regular file: move it away"),
        "{error}"
    );
    symlink(outside.path().join("socket"), node.plugin_directory().join("dra@kubelet.sock")).unwrap();
    let error = node.builder().start(TestDriver::default()).await.unwrap_err();
    assert!(error.to_string().ends_with("dra@kubelet.sock: is a symbolic link, not a socket: move it away"), "{error}");
    assert!(snapshot(outside.path()).is_empty());
}

/// The environment variables with the directory and the round of the process that is killed.
const CRASH_DIRECTORY: &str = "DRAKKAR_TEST_CRASH_DIRECTORY";
const CRASH_ROUND: &str = "DRAKKAR_TEST_CRASH_ROUND";
const CRASH_CLAIMS: usize = 6;
const CRASH_ROUNDS: u64 = 30;

fn crash_claims(api: &ApiServer) -> Vec<TestClaim> {
    let claim =
        |index| TestClaim::new(&format!("c{index}"), &format!("uid-{index}")).device("gpu", &format!("gpu-{index}"));
    let claims: Vec<TestClaim> = (0..CRASH_CLAIMS).map(claim).collect();
    claims.iter().for_each(|claim| api.put(&claim.object));
    claims
}

/// The process that [`a_process_that_is_killed_at_any_time_loses_nothing`] kills; not a test of its own.
#[test]
#[ignore = "runs until it is killed"]
fn process_that_is_killed() {
    let (Some(root), Ok(round)) = (std::env::var_os(CRASH_DIRECTORY), std::env::var(CRASH_ROUND)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work_until_killed(Path::new(&root), round.parse().unwrap()));
}

/// Prepares, updates and unprepares each claim in random order, and keeps a journal.
async fn work_until_killed(root: &Path, round: u64) {
    let api = ApiServer::default();
    let claims = crash_claims(&api);
    let builder = PluginBuilder::new(DRIVER).client(api.client()).kubelet_root(root).cdi_directory(root.join("cdi"));
    let helper = builder.device_metadata(true).start(TestDriver::default()).await.unwrap();
    let work = claims.iter().enumerate().map(async |(index, claim)| {
        let mut journal = fs::OpenOptions::new().append(true).open(root.join(format!("journal-{index}"))).unwrap();
        let mut log = |line: String| journal.write_all(format!("{line}\n").as_bytes()).unwrap();
        let kubelet = Kubelet::of(&helper).await;
        let mut random = Random(round * 1000 + index as u64);
        for step in 1.. {
            match random.below(5) {
                0 | 1 => {
                    log("begin prepare".into());
                    kubelet.prepare_one(claim).await.unwrap();
                    log("end prepare".into());
                }
                2 | 3 => {
                    let number = i64::try_from(round).unwrap() * 1_000_000 + step;
                    log(format!("begin update {number}"));
                    let devices = numbered_device(&format!("gpu-{index}"), number);
                    match helper.handles().update_request_metadata(&claim.reference(), "gpu", devices).await {
                        Ok(_) => log("end update".into()),
                        Err(error) if error.is_not_prepared() => log("end nothing".into()),
                        Err(error) => panic!("{error}"),
                    }
                }
                _ => {
                    log("begin unprepare".into());
                    kubelet.unprepare_one(claim).await.unwrap();
                    log("end unprepare".into());
                }
            }
        }
    });
    futures::future::join_all(work).await;
}

/// The state of a claim: not prepared, or prepared with the number of its last update, if it had one.
type Known = Option<Option<i64>>;

/// Returns the possible states of a claim after a journal: after the last completed call, and after the one that was running.
fn possible(mut known: Known, journal: &str) -> Vec<Known> {
    let mut started = known;
    let mut is_open = false;
    for line in journal.lines() {
        match line.split_once(' ') {
            Some(("begin", what)) => {
                is_open = true;
                started = match what.split_once(' ') {
                    None if what == "prepare" => Some(known.flatten()),
                    None => None,
                    Some((_, number)) => known.map(|_| Some(number.parse().unwrap())),
                };
            }
            Some(("end", what)) => {
                is_open = false;
                known = if what == "nothing" { known } else { started };
            }
            _ => panic!("{line}"),
        }
    }
    if is_open { vec![known, started] } else { vec![known] }
}

/// Kills a process and waits for it on drop, whether the test succeeds or not.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Promise "crash-only": whenever a process dies, files are old or new, nothing leaks, nothing in use is lost.
#[tokio::test]
async fn a_process_that_is_killed_at_any_time_loses_nothing() {
    let node = Node::default();
    let claims = crash_claims(&node.api);
    let mut known: Vec<Known> = vec![None; CRASH_CLAIMS];
    let mut random = Random(5304);
    let journal_of = |index: usize| node.root.path().join(format!("journal-{index}"));
    let mut steps = 0;
    let mut interrupted = 0;
    for round in 1..=CRASH_ROUNDS {
        (0..CRASH_CLAIMS).for_each(|index| fs::write(journal_of(index), "").unwrap());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "recovery::process_that_is_killed", "--ignored", "--nocapture"])
            .env(CRASH_DIRECTORY, node.root.path())
            .env(CRASH_ROUND, round.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut child = Killed(child.unwrap());
        // Some processes die before they have done anything, others after a random number of lines.
        let lines = if round % 5 == 0 { 0 } else { 1 + random.below(60) };
        eventually("the process works", || {
            let written =
                || (0..CRASH_CLAIMS).map(|index| fs::read_to_string(journal_of(index)).unwrap().lines().count());
            if lines > 0 {
                assert!(child.0.try_wait().unwrap().is_none(), "the process ended by itself");
            }
            (written().sum::<usize>() >= lines).then_some(())
        })
        .await;
        // Not a wait for a condition: the process is to be killed at a random time.
        tokio::time::sleep(Duration::from_micros(random.below(20_000) as u64)).await;
        drop(child);

        every_spec_names_a_file(&node.cdi_directory());
        let driver = TestDriver::default();
        let helper = node.start(&driver).await;
        assert_eq!(*driver.errors.lock().unwrap(), [""; 0], "round {round}");
        for (index, claim) in claims.iter().enumerate() {
            let journal = fs::read_to_string(journal_of(index)).unwrap();
            let found: Known = node.is_prepared(claim).then(|| {
                let device = &node.metadata(claim, "gpu")["requests"][0]["devices"][0];
                device.pointer("/attributes/number/int").map(|number| number.as_i64().unwrap())
            });
            let possible = possible(known[index], &journal);
            assert!(possible.contains(&found), "round {round}, {}: {found:?} of {possible:?}\n{journal}", claim.name());
            known[index] = found;
            steps += journal.lines().count() / 2;
            interrupted += possible.len() - 1;
        }
        let leftovers: Vec<String> =
            node.files().into_iter().filter(|name| name.ends_with(".tmp") || name.ends_with(".next")).collect();
        assert_eq!(leftovers, [""; 0]);
        helper.stop().await.unwrap();
    }
    assert_eq!(node.sockets(), [""; 0]);
    assert!(steps > 100 && interrupted > 10, "too few calls: {steps} steps, {interrupted} of them interrupted");
}

/// Asserts that specs name complete files, even before recovery: a runtime reads specs whether the driver runs or not.
fn every_spec_names_a_file(cdi: &Path) {
    let Ok(entries) = fs::read_dir(cdi) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.file_name().unwrap().as_bytes().starts_with(b".") {
            continue;
        }
        let spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for mount in spec.pointer("/devices/0/containerEdits/mounts").and_then(Value::as_array).unwrap() {
            let file = Path::new(mount["hostPath"].as_str().unwrap());
            let content = fs::read(file).unwrap();
            let is_complete = drakkar_metadata::decode(&content).is_ok();
            assert!(is_complete || file.with_file_name(".metadata.json.next").exists(), "torn: {}", file.display());
        }
    }
}

/// G8: what looks like a leftover of a crash may be what the running instance is writing.
#[tokio::test]
async fn a_second_instance_is_refused_before_it_touches_anything() {
    let node = Node::default();
    let helper = node.start(&TestDriver::default()).await;
    let kubelet = Kubelet::of(&helper).await;
    let x = node.claim(TestClaim::new("x", "uid-x").device("gpu", "gpu-0"));
    kubelet.prepare_one(&x).await.unwrap();
    // The state in the middle of a prepare of the running instance: a directory, a file, no record yet.
    let half = node.plugin_directory().join("dra-device-metadata/default_y/gpu");
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("metadata.json"), "").unwrap();
    let error = node.builder().start(TestDriver::default()).await.unwrap_err();
    assert!(error.to_string().contains("another process listens"), "{error}");
    assert!(half.exists(), "the refused instance removed what the running one was writing");
    helper.stop().await.unwrap();
}

/// The files belong to the process that serves.
#[tokio::test]
async fn a_process_that_only_registers_leaves_files_alone() {
    let node = Node::default();
    let helper =
        node.builder().services(Services::default().registration(false)).start(TestDriver::default()).await.unwrap();
    let half = node.plugin_directory().join("dra-device-metadata/default_y/gpu");
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("metadata.json"), "").unwrap();
    let registrar =
        node.builder().services(Services::default().dra_socket(false)).start(TestDriver::default()).await.unwrap();
    assert!(half.exists(), "the registration process removed what the serving one was writing");
    registrar.stop().await.unwrap();
    helper.stop().await.unwrap();
}
