//! The spec for a metadata file: golden files, names, and what is refused.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use drakkar_cdi::{MetadataDevice, MetadataSpecError, PathProblem, Spec, validate_strict};
use drakkar_metadata::path::ContainerFile;
use rstest::rstest;

use crate::support::{findings, golden};

const HOST: &str = "/var/lib/kubelet/plugins/gpu.example.com/dra-device-metadata/default_my-claim/gpu/metadata.json";
const KEP: &str = "/var/run/dra-device-attributes/my-claim/gpu/gpu.example.com-metadata.json";
const KUBERNETES: &str =
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/my-claim/gpu/gpu.example.com-metadata.json";
const DIGIT: &str = "3f0c1a52-8c1f-4a5e-9d64-0b7a6b2f1c11";
const LETTER: &str = "c4a1f0d2-8c1f-4a5e-9d64-0b7a6b2f1c11";

fn device(driver: &str, uid: &str, request: &str) -> Result<MetadataDevice, MetadataSpecError> {
    MetadataDevice::new(driver.parse().unwrap(), uid.parse().unwrap(), request.parse().unwrap())
}

fn gpu() -> MetadataDevice {
    device("gpu.example.com", DIGIT, "gpu").unwrap()
}

#[rstest]
#[case::digit_one_mount(DIGIT, &[KUBERNETES], golden!("metadata_digit_one_mount"))]
#[case::digit_two_mounts(DIGIT, &[KEP, KUBERNETES], golden!("metadata_digit_two_mounts"))]
#[case::letter_one_mount(LETTER, &[KUBERNETES], golden!("metadata_letter_one_mount"))]
#[case::letter_two_mounts(LETTER, &[KEP, KUBERNETES], golden!("metadata_letter_two_mounts"))]
fn the_file_is_byte_for_byte_the_golden_one(#[case] uid: &str, #[case] paths: &[&str], #[case] golden: &str) {
    let spec = device("gpu.example.com", uid, "gpu").unwrap().spec(HOST, paths).unwrap();
    assert_eq!(String::from_utf8(spec.to_json()).unwrap(), golden);
    assert_eq!(Spec::parse(golden.as_bytes()).unwrap(), spec);
    validate_strict(&spec).unwrap();
}

/// The names in Kubernetes' tests (A.1).
#[test]
fn names_are_those_of_kubernetes() {
    let device = device("example.com", "1234-claim-uid", "gpu-request").unwrap();
    assert_eq!(device.file_name(), "example.com_metadata_1234-claim-uid_gpu-request.json");
    assert_eq!(device.id().to_string(), "example.com/metadata=1234-claim-uid_gpu-request");
    let path = ContainerFile::parse(Path::new(
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/my-claim/gpu-request/example.com-metadata.json",
    ));
    let spec = device.spec("/var/lib/x/metadata.json", [path.unwrap().path()]).unwrap();
    assert_eq!((spec.cdi_version.as_str(), spec.kind.as_str()), ("0.5.0", "example.com/metadata"));
    assert_eq!(spec.devices[0].name, "1234-claim-uid_gpu-request");
    let mount = &spec.devices[0].container_edits.mounts[0];
    assert_eq!(mount.options, ["ro", "bind"]);
    assert_eq!(mount.fs_type, "");
    assert!(mount.container_path.ends_with("/resourceclaims/my-claim/gpu-request/example.com-metadata.json"));
}

#[test]
fn mounts_keep_the_order_given() {
    let spec = gpu().spec(HOST, [KUBERNETES, KEP]).unwrap();
    let mounts = &spec.devices[0].container_edits.mounts;
    assert_eq!(mounts.iter().map(|mount| mount.container_path.as_str()).collect::<Vec<_>>(), [KUBERNETES, KEP]);
    assert!(mounts.iter().all(|mount| mount.host_path == HOST));
}

/// G35.
#[test]
fn a_driver_name_that_is_invalid_in_cdi_is_refused() {
    let error = device("3d.example.com", DIGIT, "gpu").unwrap_err().to_string();
    assert!(error.starts_with("CDI vendor \"3d.example.com\": must start with a letter"), "{error}");
}

/// Kubernetes and runtimes allow upper case; only the strict level refuses it.
#[test]
fn a_driver_in_upper_case_is_refused_only_at_the_strict_level() {
    let spec = device("GPU.example.com", LETTER, "gpu").unwrap().spec(HOST, [KEP]).unwrap();
    let findings = findings(&spec);
    assert_eq!(findings.len(), 1);
    assert!(
        findings[0].starts_with("strict kind: \"GPU.example.com\" is not valid: must be lower-case"),
        "{findings:?}"
    );
}

#[test]
fn a_file_name_is_never_longer_than_linux_allows() {
    let driver = format!("a{}", ".b".repeat(31));
    let request = "r".repeat(63);
    // 63 + 10 + uid + 1 + 63 + 5
    assert_eq!(device(&driver, &"u".repeat(113), &request).unwrap().file_name().len(), 255);
    let error = device(&driver, &"u".repeat(114), &request).unwrap_err();
    assert!(matches!(error, MetadataSpecError::FileName { .. }));
    assert!(error.to_string().ends_with("the file name must be no more than 255 bytes, has 256"), "{error}");
}

#[rstest]
#[case::plain("gpu.example.com_metadata_1234-uid_gpu.json", ["gpu.example.com", "1234-uid", "gpu"])]
#[case::underscore_in_uid("d_metadata_a_b_c_r.json", ["d", "a_b_c", "r"])]
#[case::infix_in_uid("d_metadata_a_metadata_b_r.json", ["d", "a_metadata_b", "r"])]
#[case::named_like_the_class("metadata_metadata_metadata_metadata.json", ["metadata", "metadata", "metadata"])]
#[case::suffix_in_uid("d_metadata_a.json_r.json", ["d", "a.json", "r"])]
fn a_file_name_is_parsed(#[case] name: &str, #[case] parts: [&str; 3]) {
    let device = MetadataDevice::from_file_name(name).unwrap();
    assert_eq!([device.driver().as_str(), device.claim_uid().as_str(), device.request().as_str()], parts);
    assert_eq!(device.file_name(), name);
}

#[rstest]
#[case::empty("")]
#[case::suffix_only(".json")]
#[case::yaml("d_metadata_u_r.yaml")]
#[case::upper_case_suffix("d_metadata_u_r.JSON")]
#[case::temporary(".d_metadata_u_r.json.123.tmp")]
#[case::hidden(".d_metadata_u_r.json")]
#[case::no_request("d_metadata_u.json")]
#[case::empty_request("d_metadata_u_.json")]
#[case::empty_uid("d_metadata__r.json")]
#[case::empty_driver("_metadata_u_r.json")]
#[case::other_class("d_gpu_u_r.json")]
#[case::go_library("d-metadata_u_r.json")]
#[case::upper_case_request("d_metadata_u_R.json")]
#[case::dot_in_request("d_metadata_u_r.x.json")]
#[case::underscore_in_driver("d_x_metadata_u_r.json")]
#[case::path("x/d_metadata_u_r.json")]
#[case::way_up("../d_metadata_u_r.json")]
#[case::way_up_in_uid("d_metadata_../../etc_r.json")]
#[case::digit("3d_metadata_u_r.json")]
#[case::newline("d_metadata_u_r.json\n")]
fn another_file_name_is_not_that_of_a_metadata_device(#[case] name: &str) {
    assert_eq!(MetadataDevice::from_file_name(name), None);
}

#[rstest]
#[case::empty("", PathProblem::Relative)]
#[case::relative("var/run/x", PathProblem::Relative)]
#[case::root("/", PathProblem::Root)]
#[case::way_up("/var/../etc/x", PathProblem::NotClean)]
#[case::here("/var/./x", PathProblem::NotClean)]
#[case::doubled("/var//x", PathProblem::NotClean)]
#[case::directory("/var/x/", PathProblem::NotClean)]
#[case::newline("/var/x\ny", PathProblem::Control)]
#[case::nul("/var/x\0y", PathProblem::Control)]
#[case::delete("/var/x\u{7f}y", PathProblem::Control)]
#[case::no_character("/var/x\u{fffe}y", PathProblem::Control)]
fn a_path_that_runtimes_resolve_differently_is_refused(#[case] path: &str, #[case] problem: PathProblem) {
    let host = gpu().spec(path, [KEP]).unwrap_err();
    let container = gpu().spec(HOST, [KEP, path]).unwrap_err();
    for (error, named) in [(host, "host path"), (container, "path in the container")] {
        assert!(
            matches!(&error, MetadataSpecError::Path { which, problem: found, .. }
            if *which == named && *found == problem),
            "{error:?}"
        );
        let message = error.to_string();
        let start = format!("CDI device gpu.example.com/metadata={DIGIT}_gpu: {named} {path:?}: must ");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn a_path_that_is_not_utf8_is_refused() {
    let error = gpu().spec(OsStr::from_bytes(b"/var/\xff"), [KEP]).unwrap_err();
    assert!(matches!(error, MetadataSpecError::Path { problem: PathProblem::NotUtf8, .. }));
}

#[rstest]
#[case("/proc")]
#[case("/proc/self/x")]
#[case("/sys")]
#[case("/sys/x")]
fn nothing_is_mounted_in_proc_or_sys(#[case] path: &str) {
    let error = gpu().spec(HOST, [path]).unwrap_err();
    assert!(matches!(error, MetadataSpecError::Path { problem: PathProblem::Kernel, .. }));
    // They are allowed as a source.
    gpu().spec(format!("{path}/file"), [KEP]).unwrap();
}

#[test]
fn a_directory_whose_name_only_starts_with_proc_is_allowed() {
    gpu().spec(HOST, ["/process/x", "/system/x", "/proc-x"]).unwrap();
}

#[test]
fn there_is_at_least_one_mount_and_targets_are_unique() {
    let error = gpu().spec::<&str>(HOST, []).unwrap_err();
    assert!(matches!(error, MetadataSpecError::NoContainerPath { .. }), "{error}");
    let error = gpu().spec(HOST, [KEP, KUBERNETES, KEP]).unwrap_err();
    assert_eq!(gpu().spec_json(HOST, &[KEP, KUBERNETES, KEP]).unwrap_err().to_string(), error.to_string());
    assert!(error.to_string().ends_with("-metadata.json\" is repeated"), "{error}");
}
