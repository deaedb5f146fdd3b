//! Faults of the driver's files and of CDI specs.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::node::{DRIVER, HealthyNode};

/// Changes a JSON file.
fn edit(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let mut object = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut object);
    fs::write(path, serde_json::to_vec(&object).unwrap()).unwrap();
}

/// Truncates a file in the middle.
fn truncate(path: &Path) {
    let content = fs::read(path).unwrap();
    fs::write(path, &content[..content.len() / 2]).unwrap();
}

#[tokio::test]
async fn a_cdi_spec_that_cannot_be_parsed() {
    let node = HealthyNode::start().await;
    truncate(&node.spec());
    node.report(&[]).await.assert_only("cdi-spec-invalid", "_metadata_");
}

#[tokio::test]
async fn a_cdi_spec_that_runtimes_refuse() {
    let node = HealthyNode::start().await;
    edit(&node.spec(), |spec| spec["cdiVersion"] = "9.9.9".into());
    node.report(&[]).await.assert_only("cdi-spec-invalid", "9.9.9");
}

#[tokio::test]
async fn a_cdi_spec_of_somebody_else_that_runtimes_ignore() {
    let node = HealthyNode::start().await;
    fs::write(node.node.cdi_directory().join("vendor.json"), "{}").unwrap();
    node.report(&[]).await.assert_only("cdi-spec-foreign", "vendor.json: ");
}

#[tokio::test]
async fn a_cdi_spec_of_a_claim_that_is_gone() {
    let node = HealthyNode::start().await;
    let uid = node.node.claim_ref("train").await.unwrap().uid.to_string();
    // With the same first character: a device name that starts with a digit needs a newer version of CDI.
    let other = format!("{}-gone", &uid[..31]);
    let spec = fs::read_to_string(node.spec()).unwrap().replace(&uid, &other);
    fs::write(node.node.cdi_directory().join(format!("{DRIVER}_metadata_{other}_gpu.json")), spec).unwrap();
    node.report(&[]).await.assert_only("cdi-spec-orphaned", &other);
}

#[tokio::test]
async fn no_cdi_spec_for_a_prepared_request() {
    let node = HealthyNode::start().await;
    fs::remove_file(node.spec()).unwrap();
    node.report(&[]).await.assert_only("cdi-spec-missing", "no CDI spec for request gpu");
}

#[tokio::test]
async fn a_cdi_spec_that_mounts_another_file() {
    let node = HealthyNode::start().await;
    edit(&node.spec(), |spec| {
        spec["devices"][0]["containerEdits"]["mounts"][0]["hostPath"] = "/etc/shadow".into();
    });
    node.report(&[]).await.assert_only("cdi-spec-differs", "mounts another file than ");
}

/// A spec that runtimes load, and that is not what the driver wrote: the container does not start, or gets something else.
#[tokio::test]
async fn a_cdi_spec_that_is_not_that_of_the_request() {
    type Change<'a> = &'a dyn Fn(&mut serde_json::Value);
    let node = HealthyNode::start().await;
    let written = fs::read(node.spec()).unwrap();
    let edits = |spec: &mut serde_json::Value, name: &str, value: serde_json::Value| {
        spec["devices"][0]["containerEdits"][name] = value;
    };
    let uid = node.node.claim_ref("train").await.unwrap().uid;
    let id = format!("does not define {DRIVER}/metadata={uid}_gpu, which the kubelet passes on");
    let changes: [(Change<'_>, &str); 7] = [
        (&|spec| spec["kind"] = format!("{DRIVER}/other").into(), &id),
        (&|spec| spec["devices"][0]["name"] = "other".into(), &id),
        (&|spec| spec["devices"][0]["containerEdits"] = json!({"env": ["A=b"]}), "does not mount "),
        (
            &|spec| spec["devices"][0]["containerEdits"]["mounts"][0]["containerPath"] = "/etc/passwd".into(),
            "mounts the metadata at another path: /etc/passwd",
        ),
        (
            &|spec| spec["devices"][0]["containerEdits"]["mounts"][0]["options"] = json!(["rw", "bind"]),
            "has more than read-only mounts of the metadata",
        ),
        (&|spec| edits(spec, "deviceNodes", json!([{"path": "/dev/kmsg"}])), "has more than read-only mounts"),
        (&|spec| spec["containerEdits"] = json!({"env": ["LD_PRELOAD=/x"]}), "has more than read-only mounts"),
    ];
    for (change, message) in changes {
        edit(&node.spec(), change);
        node.report(&[]).await.assert_only("cdi-spec-differs", message);
        let mut inspect = super::node::command();
        inspect.args(node.options(&["inspect", "default/train", "--no-api", "-o", "json"]));
        let (code, text) = super::node::run(inspect).await;
        assert_eq!((code, text.contains(message)), (1, true), "{message}: {text}");
        fs::write(node.spec(), &written).unwrap();
    }
    assert_eq!(node.report(&[]).await.problems(), Vec::<String>::new());
}

#[tokio::test]
async fn a_cdi_device_in_two_files() {
    let node = HealthyNode::start().await;
    let spec = node.spec();
    fs::copy(&spec, spec.with_file_name("copy.json")).unwrap();
    node.report(&[]).await.assert_only("cdi-device-conflict", "copy.json");
}

#[tokio::test]
async fn a_metadata_file_that_is_missing() {
    let node = HealthyNode::start().await;
    fs::remove_file(node.metadata()).unwrap();
    node.report(&[]).await.assert_only("metadata-missing", "request gpu has no metadata file");
}

#[tokio::test]
async fn a_metadata_file_that_is_truncated() {
    let node = HealthyNode::start().await;
    truncate(&node.metadata());
    node.report(&[]).await.assert_only("metadata-invalid", "default_train/gpu/metadata.json: ");
}

#[tokio::test]
async fn a_metadata_file_for_another_request() {
    let node = HealthyNode::start().await;
    edit(&node.metadata(), |document| document["requests"][0]["name"] = "other".into());
    node.report(&[]).await.assert_only("metadata-differs", "it is for request other, not gpu");
}

#[tokio::test]
async fn a_metadata_file_for_another_claim() {
    let node = HealthyNode::start().await;
    edit(&node.metadata(), |document| document["metadata"]["uid"] = "7f9a7f0a-6c0b-4f0f-8f5e-0c5d8b1f3c11".into());
    node.report(&[]).await.assert_only("metadata-differs", "it is for the claim with uid 7f9a7f0a-");
}

#[tokio::test]
async fn a_request_that_the_record_does_not_know() {
    let node = HealthyNode::start().await;
    fs::create_dir(node.claim().join("extra")).unwrap();
    node.report(&[]).await.assert_only("metadata-extra", "default_train/extra: the claim's record has no such request");
}

#[tokio::test]
async fn a_file_that_everybody_can_write() {
    let node = HealthyNode::start().await;
    fs::set_permissions(node.metadata(), Permissions::from_mode(0o666)).unwrap();
    let report = node.report(&[]).await;
    report.assert_only("world-writable", "metadata.json has mode 0666");
    let remedy = report.findings.iter().find_map(|finding| finding.remedy.clone()).unwrap();
    assert_eq!(remedy, format!("chmod o-w {}", node.metadata().display()));
}

#[tokio::test]
async fn a_cdi_directory_that_everybody_can_write() {
    let node = HealthyNode::start().await;
    fs::set_permissions(node.node.cdi_directory(), Permissions::from_mode(0o777)).unwrap();
    node.report(&[]).await.assert_only("world-writable", "cdi has mode 0777");
}

#[tokio::test]
async fn a_file_of_another_user() {
    let node = HealthyNode::start().await;
    if let Err(error) = std::os::unix::fs::chown(node.metadata(), Some(4711), None) {
        return println!("skipped: only root can give a file away: {error}");
    }
    node.report(&[]).await.assert_only("wrong-owner", "metadata.json belongs to user 4711");
}

#[tokio::test]
async fn a_state_record_that_cannot_be_read() {
    let node = HealthyNode::start().await;
    truncate(&node.claim().join(".claim.json"));
    node.report(&[]).await.assert_only("record-unreadable", "truncated, corrupt or of an unknown format");
}

#[tokio::test]
async fn a_directory_of_a_claim_without_a_record() {
    let node = HealthyNode::start().await;
    fs::remove_file(node.claim().join(".claim.json")).unwrap();
    node.report(&[]).await.assert_only("record-missing", "default_train has no state record");
}

#[tokio::test]
async fn what_a_crash_left_of_a_write() {
    let node = HealthyNode::start().await;
    let path = node.claim().join("gpu/.metadata.json.next");
    let file = File::create(path).unwrap();
    assert_eq!(node.report(&[]).await.problems(), Vec::<String>::new(), "it may be in progress");
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    node.report(&[]).await.assert_only("temporary-file", ".metadata.json.next is what a crash left");
}

#[tokio::test]
async fn a_link_where_a_directory_belongs() {
    let node = HealthyNode::start().await;
    let elsewhere = node.directory().join("elsewhere");
    fs::rename(node.plugin().join("dra-device-metadata"), &elsewhere).unwrap();
    symlink(&elsewhere, node.plugin().join("dra-device-metadata")).unwrap();
    node.report(&[]).await.assert_only("not-a-directory", "dra-device-metadata: a symbolic link, where only");
}

#[tokio::test]
async fn a_file_where_the_directory_of_cdi_specs_belongs() {
    let node = HealthyNode::start().await;
    fs::remove_dir_all(node.node.cdi_directory()).unwrap();
    fs::write(node.node.cdi_directory(), "").unwrap();
    let report = node.report(&[]).await;
    assert_eq!(report.problems(), ["cdi-dir-unusable", "cdi-spec-missing"], "{report:#?}");
}

/// What this user may not read says nothing about the node: no finding asks to remove the kubelet's checkpoint.
#[tokio::test]
async fn a_user_who_is_not_root_is_told_so() {
    let node = HealthyNode::start().await;
    let checkpoint = node.node.kubelet_root().join("dra_manager_state");
    fs::set_permissions(&checkpoint, Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(node.directory(), Permissions::from_mode(0o755)).unwrap();
    let mut doctor = super::node::command();
    doctor.args(node.options(&["doctor", "--no-api", "-o", "json"]));
    let is_root = File::open(&checkpoint).is_ok();
    if is_root {
        doctor.uid(65534).gid(65534).current_dir("/");
    }
    let text = match doctor.output().await {
        Ok(output) => String::from_utf8(output.stdout).unwrap(),
        Err(error) => return println!("skipped: this is root, and nobody cannot run the command: {error}"),
    };
    let report: super::node::Report = serde_json::from_str(&text).unwrap();
    assert_eq!(report.problems(), Vec::<String>::new(), "{report:#?}");
    let skipped: Vec<&str> = report.with_status("skipped").map(|finding| &*finding.message).collect();
    let skipped = skipped.join("\n");
    assert!(skipped.contains("dra_manager_state: Permission denied (os error 13); run as root"), "{skipped}");
    if is_root {
        assert!(skipped.contains("drivers: 1 socket in the registry: permission denied; run as root"), "{skipped}");
    }
}
