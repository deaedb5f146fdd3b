//! What a start finds and does.

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

use crate::support::{ApiServer, DRIVER, Kubelet, Node, Random, TestClaim, TestDriver, cdi_devices, eventually, news};

/// A node on which a claim is prepared and no driver runs any more.
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

/// What is in a directory, with contents: to see that nothing of it was touched.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        found.insert(path.clone(), fs::read(&path).unwrap());
    }
    found
}

/// G31: half of a prepare, in all its stages, and what others cannot tell from it.
#[tokio::test]
async fn what_a_crash_left_of_a_prepare_is_removed() {
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
    let mut left: Vec<String> = others.iter().map(|name| format!("cdi/{name}")).collect();
    left.push("plugins/gpu.example.com/dra-device-metadata".into());
    left.sort();
    assert_eq!(node.files(), left);
    assert_eq!(*driver.errors.lock().unwrap(), [""; 0]);
    helper.stop().await.unwrap();
}

/// D6: an update that was cut off after its write-ahead copy is finished, whatever the file looks like.
#[rstest]
#[case::not_begun(None)]
#[case::torn(Some(40))]
#[case::emptied(Some(0))]
#[tokio::test]
async fn an_update_that_a_crash_cut_off_is_finished(#[case] cut: Option<usize>) {
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

/// D13: a copy of an update that is not whole is none.
#[tokio::test]
async fn a_write_ahead_copy_that_cannot_be_read_is_dropped() {
    let (node, claim) = node_with(train()).await;
    let file = node.metadata_file(&claim, "gpu");
    let before = fs::read(&file).unwrap();
    fs::write(file.with_file_name(".metadata.json.next"), &before[..before.len() / 2]).unwrap();
    let helper = node.start(&TestDriver::default()).await;
    assert!(node.is_prepared(&claim));
    assert_eq!(fs::read(&file).unwrap(), before);
    helper.stop().await.unwrap();
}

/// D13: after a power loss files can be empty; the kubelet prepares again, and that has to work.
#[tokio::test]
async fn files_that_a_power_loss_emptied_are_written_anew() {
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

/// G31: `/var/run` is gone after a reboot, and containers of static pods may come before the kubelet asks.
#[tokio::test]
async fn a_wiped_cdi_directory_is_restored() {
    let (node, claim) = node_with(train().device("gpu", "gpu-1").device("nic", "nic-0")).await;
    let before = snapshot(&node.cdi_directory());
    assert_eq!(before.len(), 2);
    fs::remove_dir_all(node.cdi_directory()).unwrap();
    let helper = node.start(&TestDriver::default()).await;
    assert_eq!(snapshot(&node.cdi_directory()), before);
    helper.stop().await.unwrap();

    // The same when an operator chooses another one.
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

/// G31: when the kubelet has had its time, nobody will ever unprepare a claim that was deleted while the driver was away, so
/// its files go and its device is free; others stay.
#[rstest]
#[case::deleted(false)]
#[case::replaced_by_another_of_that_name(true)]
#[tokio::test]
async fn what_is_left_of_claims_that_are_gone_is_removed(#[case] replaced: bool) {
    let (node, gone) = node_with(train()).await;
    let stays = node.claim(TestClaim::new("stays", "uid-2").device("gpu", "gpu-1"));
    prepare_and_stop(&node, &stays).await;
    node.api.remove("default", "train");
    let next = TestClaim::new(if replaced { "train" } else { "next" }, "uid-3").device("gpu", "gpu-0");
    let next = node.claim(next);

    let driver = TestDriver::default();
    let helper = node.builder().orphan_grace(Duration::ZERO).start(driver.clone()).await.unwrap();
    eventually("the spec goes", || (!node.spec_file(&gone, "gpu").exists()).then_some(())).await;
    eventually("the files go", || (!node.claim_directory(&gone).exists()).then_some(())).await;
    let kubelet = Kubelet::of(&helper).await;
    kubelet.prepare_one(&next).await.unwrap();
    assert!(node.is_prepared(&stays) && node.is_prepared(&next));
    assert_eq!(driver.take_calls()[0], "unprepare train", "nobody else tells the driver");
    assert_eq!(*driver.errors.lock().unwrap(), [""; 0]);
    kubelet.unprepare_one(&gone).await.unwrap();
    assert!(node.is_prepared(&next), "a late unprepare of the old claim leaves the new one alone");
    helper.stop().await.unwrap();
}

/// G31: who cannot ask does not remove.
#[tokio::test]
async fn an_api_server_that_fails_costs_no_claim_its_files() {
    let (node, claim) = node_with(train()).await;
    node.api.remove("default", "train");
    node.api.fail_next(&[StatusCode::FORBIDDEN; 100]);
    let driver = TestDriver::default();
    let helper = node.builder().orphan_grace(Duration::ZERO).start(driver.clone()).await.unwrap();
    let error = eventually("the driver is told", || driver.errors.lock().unwrap().first().cloned()).await;
    assert_eq!(
        error,
        "look for claims that are gone: get resourceclaim default/train (uid uid-1): the API server answered 403 \
         Forbidden: not today",
    );
    assert!(node.is_prepared(&claim));
    helper.stop().await.unwrap();
}

/// What is wrong in one place.
enum Bad {
    File(&'static str),
    Directory(&'static str),
    Link(&'static str),
    NotUnicode,
}

impl Bad {
    /// Puts it beside the directories of claims.
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

/// G31, G37: one bad entry keeps nothing else from being done, is told, and is left for somebody to look at.
#[rstest]
#[case::foreign_file(Bad::File("README"), Some("README: not the directory of a claim; left alone"))]
#[case::foreign_directory(Bad::Directory("lost+found"), Some("lost+found: not the directory of a claim; left alone"))]
#[case::odd_name(Bad::Directory("a_b_c"), Some("a_b_c: not the directory of a claim; left alone"))]
#[case::file_with_the_name_of_a_claim(Bad::File("default_file"), Some("default_file: Not a directory"))]
#[case::link_with_the_name_of_a_claim(Bad::Link("default_link"), Some("default_link: Not a directory"))]
#[case::record_that_cannot_be_read(Bad::Directory("default_odd/.claim.json"), Some(".claim.json: not a regular file"))]
#[case::name_that_is_not_unicode(Bad::NotUnicode, None)]
#[tokio::test]
async fn a_bad_entry_does_not_keep_the_driver_from_starting(#[case] bad: Bad, #[case] told: Option<&str>) {
    let (node, claim) = node_with(train()).await;
    fs::remove_dir_all(node.cdi_directory()).unwrap();
    let planted = bad.plant(&node.plugin_directory().join("dra-device-metadata"));

    let driver = TestDriver::default();
    let helper = node.start(&driver).await;
    let errors = driver.errors.lock().unwrap().clone();
    match told {
        Some(told) => {
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].starts_with("bring in order what an earlier instance left: "), "{errors:?}");
            assert!(errors[0].contains(told), "{errors:?}");
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

/// The same for the directory itself: the driver starts, and each prepare says what is wrong.
#[tokio::test]
async fn a_file_in_the_place_of_the_directory_is_told_and_fails_prepares() {
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

/// What the Go framework writes for a claim (contract, sections 5.2 and 5.3).
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

/// A driver that was built on the Go framework is replaced by one built on this: its claims are in use and stay so.
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
    let thief = node.claim(TestClaim::new("thief", "uid-2").device("gpu", "gpu-0"));
    let error = kubelet.prepare_one(&thief).await.unwrap_err();
    assert!(error.starts_with("device node-1/gpu-0 is still prepared for claim default/train (uid uid-1)"), "{error}");
    let devices = kubelet.prepare_one(&claim).await.unwrap();
    assert!(cdi_devices(&devices).contains(&"gpu.example.com/metadata=uid-1_gpu"), "{devices:?}");
    assert_eq!(node.metadata(&claim, "gpu")["metadata"]["generation"], 3, "prepared again, not anew");
    assert_eq!(helper.update_request_metadata(&claim.reference(), "gpu", news("gpu-0", 1)).await.unwrap(), 4);

    kubelet.unprepare_one(&claim).await.unwrap();
    assert!(!node.is_prepared(&claim));
    kubelet.prepare_one(&thief).await.unwrap();
    helper.stop().await.unwrap();
}

/// G21: a restart does not make a device free.
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
         pods are gone; claim default/other (uid uid-2) can have it after that",
    );
    assert!(!node.is_prepared(&other));
    kubelet.prepare_one(&claim).await.unwrap();
    kubelet.unprepare_one(&claim).await.unwrap();
    kubelet.prepare_one(&other).await.unwrap();
    helper.stop().await.unwrap();
}

/// Where somebody may have planted a link: below the driver's directory, or in the CDI directory.
#[rstest]
#[case::all_claims("plugins/gpu.example.com/dra-device-metadata", "")]
#[case::claim("plugins/gpu.example.com/dra-device-metadata/default_train", "")]
#[case::request("plugins/gpu.example.com/dra-device-metadata/default_train/gpu", "")]
#[case::record("plugins/gpu.example.com/dra-device-metadata/default_train/.claim.json", "metadata.json")]
#[case::record_on_its_way("plugins/gpu.example.com/dra-device-metadata/default_train/.claim.json.tmp", "metadata.json")]
#[case::file("plugins/gpu.example.com/dra-device-metadata/default_train/gpu/metadata.json", "metadata.json")]
#[case::copy("plugins/gpu.example.com/dra-device-metadata/default_train/gpu/.metadata.json.next", "metadata.json")]
#[case::copy_on_its_way(
    "plugins/gpu.example.com/dra-device-metadata/default_train/gpu/.metadata.json.next.tmp",
    "metadata.json"
)]
#[case::spec("cdi/gpu.example.com_metadata_uid-1_gpu.json", "metadata.json")]
#[case::spec_on_its_way("cdi/.gpu.example.com_metadata_uid-1_gpu.json.tmp", "metadata.json")]
#[tokio::test]
async fn a_planted_link_is_not_followed(
    #[case] link: &str,
    #[case] target: &str,
    #[values(false, true)] is_prepared: bool,
) {
    let outside = tempfile::tempdir().unwrap();
    let (node, claim) = node_with(train()).await;
    // What is outside is as tempting as can be: it could be the claim's own.
    let secret = fs::read_to_string(node.metadata_file(&claim, "gpu")).unwrap().replace("\"gpu-0\"", "\"secret\"");
    for name in ["metadata.json", ".metadata.json.next", ".claim.json"] {
        fs::write(outside.path().join(name), &secret).unwrap();
    }
    let before = snapshot(outside.path());
    let link = node.root.path().join(link);
    if is_prepared {
        // In the place of what is there.
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
        let _ = helper.update_request_metadata(&claim.reference(), "gpu", news("gpu-0", 1)).await;
    }
    // Read as whoever follows no link would.
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

/// The same for what is not the store's: the lock file and the sockets.
#[tokio::test]
async fn a_link_in_the_place_of_a_lock_or_a_socket_is_refused() {
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

/// Tells the process that is to be killed where to work, and the numbers that it may use.
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

/// Not a test: the process that [`a_process_that_is_killed_at_any_moment_loses_nothing`] kills.
#[test]
#[ignore = "runs until it is killed"]
fn process_that_is_killed() {
    let (Some(root), Ok(round)) = (std::env::var_os(CRASH_DIRECTORY), std::env::var(CRASH_ROUND)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work_until_killed(Path::new(&root), round.parse().unwrap()));
}

/// Prepares, updates and unprepares each claim in an order of its own, and keeps a journal.
async fn work_until_killed(root: &Path, round: u64) {
    let api = ApiServer::default();
    let claims = crash_claims(&api);
    let builder = PluginBuilder::new(DRIVER).client(api.client()).kubelet_root(root).cdi_directory(root.join("cdi"));
    let helper = builder.device_metadata(true).start(TestDriver::default()).await.unwrap();
    let work = claims.iter().enumerate().map(async |(index, claim)| {
        let mut journal = fs::OpenOptions::new().append(true).open(root.join(format!("journal-{index}"))).unwrap();
        let mut note = |line: String| journal.write_all(format!("{line}\n").as_bytes()).unwrap();
        let kubelet = Kubelet::of(&helper).await;
        let mut random = Random(round * 1000 + index as u64);
        for step in 1.. {
            match random.below(5) {
                0 | 1 => {
                    note("begin prepare".into());
                    kubelet.prepare_one(claim).await.unwrap();
                    note("end prepare".into());
                }
                2 | 3 => {
                    let number = i64::try_from(round).unwrap() * 1_000_000 + step;
                    note(format!("begin update {number}"));
                    let news = news(&format!("gpu-{index}"), number);
                    match helper.update_request_metadata(&claim.reference(), "gpu", news).await {
                        Ok(_) => note("end update".into()),
                        Err(error) if error.is_not_prepared() => note("end nothing".into()),
                        Err(error) => panic!("{error}"),
                    }
                }
                _ => {
                    note("begin unprepare".into());
                    kubelet.unprepare_one(claim).await.unwrap();
                    note("end unprepare".into());
                }
            }
        }
    });
    futures::future::join_all(work).await;
}

/// What is known of a claim: not prepared, or prepared with the number of its last update, if it had one.
type Known = Option<Option<i64>>;

/// What may be true of a claim after a journal: what was done, and what was begun.
fn possible(mut known: Known, journal: &str) -> Vec<Known> {
    let mut begun = known;
    let mut is_open = false;
    for line in journal.lines() {
        match line.split_once(' ') {
            Some(("begin", what)) => {
                is_open = true;
                begun = match what.split_once(' ') {
                    None if what == "prepare" => Some(known.flatten()),
                    None => None,
                    Some((_, number)) => known.map(|_| Some(number.parse().unwrap())),
                };
            }
            Some(("end", what)) => {
                is_open = false;
                known = if what == "nothing" { known } else { begun };
            }
            _ => panic!("{line}"),
        }
    }
    if is_open { vec![known, begun] } else { vec![known] }
}

/// Ends a process, and waits for its end, whatever becomes of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Promise "crash-only": whatever moment a process dies at, files are old or new, nothing leaks, nothing in use is lost.
#[tokio::test]
async fn a_process_that_is_killed_at_any_moment_loses_nothing() {
    let node = Node::default();
    let claims = crash_claims(&node.api);
    let mut known: Vec<Known> = vec![None; CRASH_CLAIMS];
    let mut random = Random(5304);
    let journal_of = |index: usize| node.root.path().join(format!("journal-{index}"));
    let (mut steps, mut cut_off) = (0, 0);
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
        // Some die before they have begun, others in the middle of whatever they do after so many lines.
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
        // Not a wait for anything: the moment of death is to be any.
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
            cut_off += possible.len() - 1;
        }
        let rubbish: Vec<String> =
            node.files().into_iter().filter(|name| name.ends_with(".tmp") || name.ends_with(".next")).collect();
        assert_eq!(rubbish, [""; 0]);
        helper.stop().await.unwrap();
    }
    assert_eq!(node.sockets(), [""; 0]);
    assert!(steps > 100 && cut_off > 10, "too little was going on: {steps} steps, {cut_off} of them cut off");
}

/// Also before anything is brought in order: a runtime reads specs whether the driver runs or not.
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
            let is_whole = drakkar_metadata::decode(&content).is_ok();
            assert!(is_whole || file.with_file_name(".metadata.json.next").exists(), "torn: {}", file.display());
        }
    }
}

/// G8: what looks like half of a crash may be what the living instance is writing.
#[tokio::test]
async fn a_second_instance_is_refused_before_it_touches_anything() {
    let node = Node::default();
    let helper = node.start(&TestDriver::default()).await;
    let kubelet = Kubelet::of(&helper).await;
    let x = node.claim(TestClaim::new("x", "uid-x").device("gpu", "gpu-0"));
    kubelet.prepare_one(&x).await.unwrap();
    // As it is in the middle of a prepare of the living instance: a directory, a file, no record yet.
    let half = node.plugin_directory().join("dra-device-metadata/default_y/gpu");
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("metadata.json"), "").unwrap();
    let error = node.builder().start(TestDriver::default()).await.unwrap_err();
    assert!(error.to_string().contains("another process listens"), "{error}");
    assert!(half.exists(), "the refused instance removed what the living one was writing");
    helper.stop().await.unwrap();
}

/// They are those of the process that serves.
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
