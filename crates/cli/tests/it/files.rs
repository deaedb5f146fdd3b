//! `validate`, `convert` and `schema`.

use std::fs;

use drakkar_metadata::{Version, Versions, decode, encode};
use snapbox::str;
use tempfile::TempDir;

use crate::support::{Container, drakkar, gpus};

fn directory_with(files: &[(&str, &[u8])]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for (name, content) in files {
        fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

#[test]
fn validate_lists_the_versions_of_a_valid_file() {
    let both: Versions = "v1beta1,v1alpha1".parse().unwrap();
    let directory = directory_with(&[("good.json", &encode(&gpus(), &both))]);
    drakkar().current_dir(&directory).args(["validate", "good.json"]).assert().success().stdout_eq(str![[r#"
good.json: ok (metadata.resource.k8s.io/v1beta1, metadata.resource.k8s.io/v1alpha1)

"#]]);
}

#[test]
fn validate_reports_every_error_of_every_file() {
    let mut wrong = gpus();
    wrong.pod_claim_name = Some("NO".into());
    wrong.requests[0].devices[0].driver.clear();
    wrong.requests[0].devices[1].attributes.insert("none".into(), Default::default());
    let good = encode(&gpus(), &Version::V1Beta1.into());
    let unlike = [good.as_slice(), &encode(&wrong, &Versions::default())].concat();
    let directory = directory_with(&[("good.json", &good), ("bad.json", &unlike), ("ugly.json", b"{]")]);
    drakkar()
        .current_dir(&directory)
        .args(["validate", "good.json", "bad.json", "ugly.json", "absent.json"])
        .assert()
        .code(5)
        .stdout_eq(str![[r#"
good.json: ok (metadata.resource.k8s.io/v1beta1)
bad.json: metadata.resource.k8s.io/v1alpha1: podClaimName: "NO" is not valid: must be lower-case letters, digits and '-', starting and ending with a letter or digit
bad.json: metadata.resource.k8s.io/v1alpha1: requests[0].devices[0].driver: required value is missing
bad.json: metadata.resource.k8s.io/v1alpha1: requests[0].devices[1].attributes[none]: has no value: exactly one of int, bool, string, version, ints, bools, strings, versions must be set
bad.json: metadata.resource.k8s.io/v1alpha1 differs from metadata.resource.k8s.io/v1beta1: readers of different versions would see different devices
ugly.json: not valid JSON: key must be a string (line 1, column 2)

"#]])
        .stderr_eq(str![[r#"
drakkar: absent.json: No such file or directory (os error 2)
drakkar: 2 of 4 files are not valid

"#]]);
}

#[test]
fn validate_reads_standard_input_and_notes_unknown_versions() {
    let future = r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v7"}"#;
    let file = [future.as_bytes(), &encode(&gpus(), &Versions::default())].concat();
    drakkar().args(["validate", "-"]).stdin(file).assert().success().stdout_eq(str![[r#"
-: note: no metadata document of a known version found, only metadata.resource.k8s.io/v7; a newer reader may know them
-: ok (metadata.resource.k8s.io/v1alpha1)

"#]]);
    drakkar().args(["validate", "-"]).stdin("\n").assert().code(5).stdout_eq(str![[r#"
-: no metadata document found

"#]]);
    for command in [vec!["validate", "-"], vec!["convert", "-", "--to", "v1beta1"]] {
        drakkar().args(command).stdin("").assert().code(4).stdout_eq("").stderr_eq(str![[r#"
drakkar: -: not written yet

"#]]);
    }
}

#[test]
fn absolute_paths_are_read_below_the_root() {
    let container = Container::with_gpus();
    let file =
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/devices/gpu/gpu.example.com-metadata.json";
    container.drakkar(["validate", file]).assert().success();
    std::os::unix::fs::symlink("/etc/hostname", container.root().join("link.json")).unwrap();
    container.drakkar(["validate", "/link.json"]).assert().code(3).stderr_eq(str![[r#"
drakkar: [..]/link.json: No such file or directory (os error 2)
hint: the link's target does not exist below the root; a driver removes it when the claim is unprepared

"#]]);
}

#[test]
fn a_file_with_many_errors_has_a_short_report() {
    let broken = r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1","requests":1}"#;
    let output = drakkar().args(["validate", "-"]).stdin(broken.repeat(5000)).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(output.stdout.split(|byte| *byte == b'\n').count(), 101);
    let mut wrong = gpus();
    wrong.requests[0].devices = vec![Default::default(); 1000];
    let output = drakkar().args(["validate", "-"]).stdin(encode(&wrong, &Versions::default())).output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert_eq!(report.lines().count(), 101);
    assert!(report.ends_with(": and 2900 more\n"), "{report}");
}

#[test]
fn convert_writes_the_requested_versions() {
    let directory = directory_with(&[("old.json", &encode(&gpus(), &Version::V1Alpha1.into()))]);
    let convert = |to: &str| {
        let output = drakkar().current_dir(&directory).args(["convert", "old.json", "--to", to]).output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    assert_eq!(convert("v1beta1"), encode(&gpus(), &Version::V1Beta1.into()));
    assert_eq!(convert("v1alpha1,v1beta1"), encode(&gpus(), &"v1alpha1,v1beta1".parse().unwrap()));
}

#[test]
fn convert_reads_the_formats_that_were_never_released() {
    let vep10 = r#"{"apiVersion": "resource.k8s.io/v1alpha1", "kind": "DeviceMetadata",
        "metadata": {"name": "c"}, "podClaimName": "p", "requests": [{"name": "r", "devices": [
            {"driver": "a.example.com", "pool": "p", "device": "d", "attributes": {"x": {"string": "y"}}}]}]}"#;
    let output = drakkar().args(["convert", "-", "--to", "v1beta1"]).stdin(vep10).output().unwrap();
    let converted = decode(&output.stdout).unwrap().metadata;
    assert_eq!(converted.requests[0].devices[0].name, "d");
    assert_eq!(converted.pod_claim_name.as_deref(), Some("p"));
}

#[test]
fn convert_reports_errors_in_its_input() {
    drakkar().args(["convert", "-", "--to", "v1beta1"]).stdin("{}").assert().code(5).stdout_eq("").stderr_eq(str![[
        r#"
drakkar: -: document 1 has no usable apiVersion

"#
    ]]);
    drakkar().args(["convert", "-", "--to", "v2"]).assert().code(2).stderr_eq(str![[r#"
error: invalid value 'v2' for '--to <VERSION[,VERSION]>': unknown metadata version "v2": known are v1beta1 and v1alpha1

For more information, try '--help'.

"#]]);
}

#[test]
fn schema_prints_the_json_schema_of_a_version() {
    for version in ["v1alpha1", "v1beta1"] {
        let output = drakkar().args(["schema", version]).output().unwrap();
        let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let api_version = format!("metadata.resource.k8s.io/{version}");
        assert_eq!(schema["properties"]["apiVersion"]["const"], api_version.as_str());
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    }
}

#[test]
fn other_objects_and_directories_are_named() {
    let pod = b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: trainer\n";
    let pod_json = b"{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}";
    let directory = directory_with(&[("pod.yaml", pod), ("pod.json", pod_json)]);
    drakkar()
        .current_dir(&directory)
        .args(["validate", "pod.yaml", "pod.json"])
        .assert()
        .code(5)
        .stdout_eq(str![[r#"
pod.yaml: is a Pod (v1), not device metadata, which is JSON of kind DeviceMetadata
pod.json: is a Pod (v1), not device metadata, which is JSON of kind DeviceMetadata

"#]])
        .stderr_eq(str![[r#"
drakkar: 2 of 2 files are not valid
hint: the metadata of a pod is in its containers: run `drakkar list` there

"#]]);
    drakkar().current_dir(&directory).args(["validate", "."]).assert().code(5).stderr_eq(str![[r#"
drakkar: .: is a directory, not a file
hint: name the files in it, for example DIRECTORY/*-metadata.json

"#]]);
    drakkar().current_dir(&directory).args(["convert", "pod.yaml", "--to", "v1beta1"]).assert().code(5).stderr_eq(
        str![[r#"
drakkar: pod.yaml: is a Pod (v1), not device metadata, which is JSON of kind DeviceMetadata

"#]],
    );
}
