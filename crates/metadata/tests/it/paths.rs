//! Paths: built and parsed, in every layout.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use drakkar_metadata::path::{ContainerFile, HostFile, Layout, PathError, claim_directory};
use rstest::rstest;

const UID: &str = "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11";

fn claim_file() -> ContainerFile {
    ContainerFile::Claim {
        claim: "my.claim".parse().unwrap(),
        request: "gpu".parse().unwrap(),
        driver: "gpu.example.com".parse().unwrap(),
    }
}

#[rstest]
#[case(
    claim_file(),
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/my.claim/gpu/gpu.example.com-metadata.json",
    Some(Layout::Kubernetes)
)]
#[case(
    ContainerFile::Template { pod_claim: "gpus".parse().unwrap(), request: "gpu".parse().unwrap(), driver: "GPU.x".parse().unwrap() },
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpus/gpu/GPU.x-metadata.json",
    Some(Layout::Kubernetes)
)]
#[case(
    ContainerFile::Kep { claim: "my.claim".parse().unwrap(), request: "gpu".parse().unwrap(), driver: "d.x".parse().unwrap() },
    "/var/run/dra-device-attributes/my.claim/gpu/d.x-metadata.json",
    Some(Layout::Kep)
)]
#[case(
    ContainerFile::Vep10 { driver: "d.x".parse().unwrap(), claim: "my.claim".parse().unwrap() },
    "/var/run/dra-device-attributes/d.x/my.claim/metadata.json",
    None
)]
#[case(
    ContainerFile::EarlyDraft { driver: "d-d.x".parse().unwrap(), uid: UID.parse().unwrap(), request: "a-b".parse().unwrap() },
    "/var/run/dra-device-attributes/d-d.x-0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11-a-b.json",
    None
)]
fn a_layout_has_its_path(#[case] file: ContainerFile, #[case] path: &str, #[case] layout: Option<Layout>) {
    assert_eq!(file.path().as_os_str(), path);
    assert_eq!(ContainerFile::parse(Path::new(path)), Ok(file.clone()));
    assert_eq!(file.layout(), layout);
    assert!(path.contains(file.driver().as_str()));
    assert_eq!(file.request().is_none(), matches!(file, ContainerFile::Vep10 { .. }));
}

#[rstest]
#[case::empty("")]
#[case::relative("var/run/dra-device-attributes/c/r/d-metadata.json")]
#[case::elsewhere("/etc/passwd")]
#[case::the_directory("/var/run/dra-device-attributes")]
#[case::a_claim_directory("/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/r")]
#[case::another_subdirectory("/var/run/kubernetes.io/dra-device-attributes/other/c/r/d-metadata.json")]
#[case::too_deep("/var/run/dra-device-attributes/c/r/s/d-metadata.json")]
#[case::parent("/var/run/dra-device-attributes/c/../d-metadata.json")]
#[case::parent_in_front("/var/run/../run/dra-device-attributes/c/r/d-metadata.json")]
#[case::here("/var/run/dra-device-attributes/./c/r/d-metadata.json")]
#[case::here_inside("/var/run/dra-device-attributes/c/./r/d-metadata.json")]
#[case::here_in_front("/var/./run/dra-device-attributes/c/r/d-metadata.json")]
#[case::doubled_slash("/var/run/dra-device-attributes/c//r/d-metadata.json")]
#[case::doubled_slash_behind_the_directory("/var/run/dra-device-attributes//c/r/d-metadata.json")]
#[case::doubled_slash_in_front("//var/run/dra-device-attributes/c/r/d-metadata.json")]
#[case::doubled_slash_in_the_directory("/var/run//dra-device-attributes/c/r/d-metadata.json")]
#[case::trailing_slash("/var/run/dra-device-attributes/c/r/d-metadata.json/")]
#[case::another_suffix("/var/run/dra-device-attributes/c/r/d-metadata.yaml")]
#[case::suffix_in_upper_case("/var/run/dra-device-attributes/c/r/d-METADATA.JSON")]
#[case::a_prefix_that_is_no_directory("/var/run/dra-device-attributes-2/c/r/d-metadata.json")]
#[case::a_draft_without_a_uid("/var/run/dra-device-attributes/driver-uid-request.json")]
#[case::a_draft_without_a_request("/var/run/dra-device-attributes/d-0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11.json")]
fn a_path_in_no_layout_is_not_a_metadata_file(#[case] text: &str) {
    let error = ContainerFile::parse(Path::new(text)).unwrap_err();
    assert_eq!(error, PathError::NoLayout(text.into()));
    assert!(error.to_string().contains(text), "{error}");
}

#[rstest]
#[case::no_driver("/var/run/dra-device-attributes/c/r/-metadata.json", "driver name")]
#[case::upper_case_claim("/var/run/dra-device-attributes/C/r/d-metadata.json", "claim name")]
#[case::upper_case_request("/var/run/dra-device-attributes/c/R/d-metadata.json", "request name")]
#[case::dotted_request("/var/run/dra-device-attributes/c/r.s/d-metadata.json", "request name")]
#[case::dotted_pod_claim(
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/a.b/r/d-metadata.json",
    "pod claim name"
)]
#[case::nul("/var/run/dra-device-attributes/c\0/r/d-metadata.json", "claim name")]
#[case::underscore("/var/run/dra-device-attributes/d_x/c/metadata.json", "driver name")]
#[case::a_draft_with_an_odd_request(
    "/var/run/dra-device-attributes/d-0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11-R.json",
    "request name"
)]
fn an_invalid_name_in_a_path_is_reported(#[case] text: &str, #[case] kind: &str) {
    match ContainerFile::parse(Path::new(text)).unwrap_err() {
        PathError::Name { path, name } => {
            assert_eq!(path, Path::new(text));
            assert_eq!(name.kind(), kind);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_part_of_300_characters_is_not_a_name() {
    let path = format!("/var/run/dra-device-attributes/{}/r/d-metadata.json", "c".repeat(300));
    assert!(matches!(ContainerFile::parse(Path::new(&path)), Err(PathError::Name { .. })));
}

#[rstest]
#[case(b"/var/run/dra-device-attributes/\xff/r/d-metadata.json".as_slice())]
#[case(b"/var/run/dra-device-attributes/c/r/\xff-metadata.json")]
#[case(b"\xff")]
fn a_path_that_is_not_utf8_is_not_a_metadata_file(#[case] bytes: &[u8]) {
    let path = Path::new(OsStr::from_bytes(bytes));
    assert_eq!(ContainerFile::parse(path), Err(PathError::NoLayout(path.into())));
    assert_eq!(HostFile::parse(path), Err(PathError::NoLayout(path.into())));
}

fn host(namespace: &str, claim: &str) -> HostFile {
    HostFile { namespace: namespace.parse().unwrap(), claim: claim.parse().unwrap(), request: "gpu".parse().unwrap() }
}

#[test]
fn a_file_on_the_host_has_its_path() {
    let file = host("default", "my.claim");
    let path = file.relative_path().unwrap();
    assert_eq!(path.as_os_str(), "dra-device-metadata/default_my.claim/gpu/metadata.json");
    assert_eq!(HostFile::parse(&path), Ok(file));
}

#[rstest]
#[case("/dra-device-metadata/ns_c/r/metadata.json")]
#[case("dra-device-metadata/ns_c/r/metadata.json/")]
#[case("dra-device-metadata//ns_c/r/metadata.json")]
#[case("dra-device-metadata/ns_c/../metadata.json")]
#[case("./dra-device-metadata/ns_c/r/metadata.json")]
#[case("dra-device-metadata/nsc/r/metadata.json")]
#[case("dra-device-metadata/ns_c/r/other.json")]
#[case("dra-device-metadata/ns_c/metadata.json")]
#[case("other/ns_c/r/metadata.json")]
#[case("")]
fn another_path_on_the_host_is_not_a_metadata_file(#[case] text: &str) {
    assert_eq!(HostFile::parse(Path::new(text)), Err(PathError::NoLayout(text.into())));
}

#[rstest]
#[case("dra-device-metadata/_c/r/metadata.json", "namespace")]
#[case("dra-device-metadata/ns_/r/metadata.json", "claim name")]
#[case("dra-device-metadata/ns_a_b/r/metadata.json", "claim name")]
#[case("dra-device-metadata/n.s_c/r/metadata.json", "namespace")]
#[case("dra-device-metadata/ns_c/R/metadata.json", "request name")]
fn an_invalid_name_in_a_path_on_the_host_is_reported(#[case] text: &str, #[case] kind: &str) {
    match HostFile::parse(Path::new(text)).unwrap_err() {
        PathError::Name { name, .. } => assert_eq!(name.kind(), kind),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_whose_directory_would_be_too_long_has_no_path() {
    let longest = host(&"n".repeat(63), &"c".repeat(191));
    assert_eq!(claim_directory(&longest.namespace, &longest.claim).unwrap().len(), 255);
    assert_eq!(HostFile::parse(&longest.relative_path().unwrap()), Ok(longest));
    let file = host(&"n".repeat(63), &"c".repeat(192));
    let error = file.relative_path().unwrap_err();
    assert!(matches!(error, PathError::TooLong { length: 256, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("256 bytes") && text.contains(&"c".repeat(192)) && text.contains("255"), "{text}");
}

#[test]
fn the_layouts_have_names() {
    for (text, layout) in [("kubernetes", Layout::Kubernetes), ("kep", Layout::Kep)] {
        assert_eq!(text.parse(), Ok(layout));
        assert_eq!(layout.to_string(), text);
    }
    let error = "Kep".parse::<Layout>().unwrap_err().to_string();
    assert!(error.contains("\"Kep\"") && error.contains("kubernetes and kep"), "{error}");
}
