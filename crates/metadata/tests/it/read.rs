//! Reading in a container by claim and request, in every layout.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use drakkar_metadata::read::{ClaimKey, ClaimSelector, ErrorClass, QueryError, ReadError};
use drakkar_metadata::{Format, Query, Reader, Version};
use rstest::rstest;

use crate::support::{
    CLAIMS, KEP, TEMPLATES, Tree, claim_path, device_names, file, from_template, kep_path, metadata, template_path,
};

const DRIVER: &str = "gpu.example.com";
const UID: &str = "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11";

fn query(text: &str) -> Query {
    text.parse().unwrap()
}

fn names(tree: &Tree, text: &str) -> Vec<String> {
    let read = tree.reader().read(&query(text)).unwrap();
    device_names(read.devices()).into_iter().map(str::to_owned).collect()
}

#[rstest]
#[case(claim_path("my-claim", "gpu", DRIVER))]
#[case(kep_path("my-claim", "gpu", DRIVER))]
fn a_request_is_read_by_the_name_of_its_claim(#[case] path: String) {
    let tree = Tree::new();
    let written = metadata("my-claim", "gpu", DRIVER, &["gpu-0", "gpu-1"]);
    let outside = tree.write(&path, file(&written));
    for text in ["my-claim/gpu", "resourceclaims/my-claim/gpu"] {
        let read = tree.reader().read(&query(text)).unwrap();
        assert_eq!(read.metadata.requests, written.requests);
        assert_eq!(device_names(read.devices()), ["gpu-0", "gpu-1"]);
        assert!(read.problems.is_empty());
        assert_eq!(read.files.len(), 1);
        let found = &read.files[0];
        assert_eq!((&found.path, found.also_at.as_slice()), (&outside, [].as_slice()));
        assert_eq!(found.claim, ClaimKey::Claim("my-claim".parse().unwrap()));
        assert_eq!(found.request.as_ref().map(AsRef::as_ref), Some("gpu"));
        assert_eq!(found.driver, DRIVER);
        assert_eq!(found.content.as_ref().unwrap().metadata, written);
        assert_eq!(found.content.as_ref().unwrap().format, Format::Released(Version::V1Beta1));
    }
    let by_pod_claim = tree.reader().read(&query("resourceclaimtemplates/my-claim/gpu"));
    assert_eq!(by_pod_claim.unwrap_err().class(), ErrorClass::NotFound);
}

#[rstest]
#[case(template_path("gpus", "gpu", DRIVER))]
#[case(kep_path("pod-gpus-x7k2p", "gpu", DRIVER))]
fn a_request_is_read_by_the_name_of_its_pod_claim(#[case] path: String) {
    let tree = Tree::new();
    let written = from_template("gpus", metadata("pod-gpus-x7k2p", "gpu", DRIVER, &["gpu-0"]));
    tree.write(&path, file(&written));
    // Another claim, which does not match.
    tree.write(kep_path("other", "gpu", DRIVER), file(&metadata("other", "gpu", DRIVER, &["gpu-9"])));
    for text in ["gpus/gpu", "resourceclaimtemplates/gpus/gpu"] {
        let read = tree.reader().read(&query(text)).unwrap();
        assert_eq!(read.metadata.pod_claim_name.as_deref(), Some("gpus"));
        assert_eq!(device_names(read.devices()), ["gpu-0"]);
        assert_eq!(read.files[0].claim_label(), "gpus");
    }
    let by_claim = tree.reader().read(&query("resourceclaims/gpus/gpu"));
    assert_eq!(by_claim.unwrap_err().class(), ErrorClass::NotFound);
}

#[test]
fn a_query_can_have_a_claim_name_with_dots() {
    let tree = Tree::new();
    tree.write(claim_path("my.claim.v2", "gpu", DRIVER), file(&metadata("my.claim.v2", "gpu", DRIVER, &["gpu-0"])));
    assert_eq!(names(&tree, "my.claim.v2/gpu"), ["gpu-0"]);
}

#[test]
fn a_name_of_a_claim_and_a_pod_claim_is_ambiguous_without_a_prefix() {
    let tree = Tree::new();
    tree.write(claim_path("gpus", "gpu", DRIVER), file(&metadata("gpus", "gpu", DRIVER, &["named"])));
    let generated = from_template("gpus", metadata("pod-gpus-x7k2p", "gpu", DRIVER, &["generated"]));
    tree.write(template_path("gpus", "gpu", DRIVER), file(&generated));
    let error = tree.reader().read(&query("gpus/gpu")).unwrap_err();
    assert!(matches!(error, ReadError::Ambiguous { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("resourceclaims/gpus/gpu") && text.contains("resourceclaimtemplates/gpus/gpu"), "{text}");
    assert_eq!(names(&tree, "resourceclaims/gpus/gpu"), ["named"]);
    assert_eq!(names(&tree, "resourceclaimtemplates/gpus/gpu"), ["generated"]);
    assert_eq!(tree.reader().discover().files.len(), 2);
}

#[rstest]
#[case::no_request("my-claim")]
#[case::empty("")]
#[case::empty_request("my-claim/")]
#[case::empty_claim("/gpu")]
#[case::four_parts("a/b/c/d")]
#[case::way_up("../gpu")]
#[case::way_up_in_the_request("my-claim/..")]
#[case::upper_case("My-claim/gpu")]
#[case::a_pod_claim_with_a_dot("resourceclaimtemplates/a.b/gpu")]
#[case::nul("my-claim/gpu\0")]
fn a_text_that_is_not_a_query_is_refused(#[case] text: &str) {
    match text.parse::<Query>() {
        Err(error @ (QueryError::Form(_) | QueryError::Name(_))) => assert!(!error.to_string().is_empty()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_query_is_printed_as_it_is_written() {
    for text in ["a/b", "a/b/c", "resourceclaims/a/b", "resourceclaimtemplates/a/b/c"] {
        assert_eq!(query(text).to_string(), text);
    }
    let built = Query::of(ClaimSelector::Claim("a".parse().unwrap()), "b".parse().unwrap())
        .with_subrequest("c".parse().unwrap())
        .with_driver("d.x".parse().unwrap());
    assert_eq!(built.to_string(), "resourceclaims/a/b/c from driver d.x");
}

#[test]
fn only_the_selected_driver_is_read() {
    let tree = Tree::new();
    tree.write(claim_path("c", "r", "a.x"), file(&metadata("c", "r", "a.x", &["from-a"])));
    tree.write(claim_path("c", "r", "b.x"), "broken");
    let reader = tree.reader();
    let read = reader.read(&query("c/r").with_driver("a.x".parse().unwrap())).unwrap().complete().unwrap();
    assert_eq!(device_names(read.devices()), ["from-a"]);
    assert!(reader.read(&query("c/r").with_driver("b.x".parse().unwrap())).is_err());
    let error = reader.read(&query("c/r").with_driver("c.x".parse().unwrap())).unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotFound);
    assert!(error.to_string().contains("from driver c.x"), "{error}");
}

#[test]
fn only_the_selected_subrequest_is_read() {
    let tree = Tree::new();
    tree.write(claim_path("c", "r", "a.x"), file(&metadata("c", "r/large", "a.x", &["large-0"])));
    tree.write(claim_path("c", "r", "b.x"), file(&metadata("c", "r/small", "b.x", &["small-0"])));
    assert_eq!(names(&tree, "c/r"), ["large-0", "small-0"]);
    assert_eq!(names(&tree, "c/r/small"), ["small-0"]);
    assert_eq!(names(&tree, "c/r/large"), ["large-0"]);
    let none = tree.reader().read(&query("c/r/medium"));
    assert!(none.is_err() || none.unwrap().devices().next().is_none());
}

#[test]
fn other_requests_of_a_file_are_omitted() {
    let tree = Tree::new();
    let mut both = metadata("c", "r", "a.x", &["mine"]);
    both.requests.extend(metadata("c", "other", "a.x", &["not-mine"]).requests);
    tree.write(claim_path("c", "r", "a.x"), file(&both));
    assert_eq!(names(&tree, "c/r"), ["mine"]);
}

#[test]
fn a_missing_request_is_not_found_and_the_error_lists_the_directories() {
    let tree = Tree::new();
    let error = tree.reader().read(&query("my-claim/gpu")).unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotFound);
    let text = error.to_string();
    for directory in
        [format!("{CLAIMS}/my-claim/gpu"), format!("{TEMPLATES}/my-claim/gpu"), format!("{KEP}/my-claim/gpu")]
    {
        assert!(text.contains(&tree.outside(&directory).display().to_string()), "{directory}: {text}");
    }
    tree.directory(format!("{CLAIMS}/my-claim/gpu"));
    tree.directory(KEP);
    assert_eq!(tree.reader().read(&query("my-claim/gpu")).unwrap_err().class(), ErrorClass::NotFound);
    let discovery = tree.reader().discover();
    assert!(discovery.files.is_empty() && discovery.problems.is_empty(), "{discovery:?}");
}

#[test]
fn an_empty_root_has_no_files_and_a_missing_root_is_an_error() {
    let tree = Tree::new();
    let discovery = tree.reader().discover();
    assert!(discovery.files.is_empty() && discovery.problems.is_empty());
    let missing = tree.root().join("missing");
    let error = Reader::with_root(&missing).unwrap_err();
    assert!(error.to_string().contains(&missing.display().to_string()), "{error}");
    assert_eq!(error.class(), ErrorClass::NotFound);
}

#[test]
fn other_files_than_metadata_files_are_ignored() {
    let tree = Tree::new();
    tree.write(claim_path("c", "r", "a.x"), file(&metadata("c", "r", "a.x", &["d"])));
    for name in ["README", "a.x-metadata.json.bak", ".a.x-metadata.json.123.tmp", "metadata.json", "b.x-metadata.yaml"]
    {
        tree.write(format!("{CLAIMS}/c/r/{name}"), "not metadata");
    }
    tree.write(format!("{CLAIMS}/stray-file"), "");
    let read = tree.reader().read(&query("c/r")).unwrap().complete().unwrap();
    assert_eq!((device_names(read.devices()), read.files.len()), (vec!["d"], 1));
    let discovery = tree.reader().discover();
    assert_eq!(discovery.files.len(), 1);
    assert!(discovery.problems.is_empty(), "{:?}", discovery.problems);
}

#[test]
fn a_directory_can_be_listed_by_its_path() {
    let tree = Tree::new();
    let path = PathBuf::from(claim_path("c", "r", "b.x"));
    tree.write(&path, "");
    tree.write(claim_path("c", "r", "a.x"), "");
    let directory = path.parent().unwrap();
    assert_eq!(tree.reader().list_directory(directory).unwrap(), ["a.x-metadata.json", "b.x-metadata.json"]);
    let missing = tree.reader().list_directory(Path::new("/nowhere")).unwrap_err();
    assert_eq!(missing.class(), ErrorClass::NotFound);
    assert!(tree.reader().list_directory(&path).is_err());
}

#[test]
fn one_file_can_be_read_by_its_path() {
    let tree = Tree::new();
    let written = metadata("c", "r", "a.x", &["d"]);
    let path = PathBuf::from(claim_path("c", "r", "a.x"));
    tree.write(&path, file(&written));
    assert_eq!(tree.reader().read_file(&path).unwrap().metadata, written);
    assert_eq!(tree.reader().read_bytes(&path).unwrap(), file(&written));
    let missing = tree.reader().read_file(Path::new("/nowhere.json")).unwrap_err();
    assert_eq!(missing.class(), ErrorClass::NotFound);
    assert!(missing.to_string().contains("/nowhere.json"), "{missing}");
    let typeless = tree.write("/some.json", "{}");
    let error = tree.reader().read_file(Path::new("/some.json")).unwrap_err();
    assert!(error.to_string().contains(&typeless.display().to_string()), "{error}");
}

#[test]
fn a_reader_of_its_own_root_reads_by_plain_path() {
    let tree = Tree::new();
    let written = metadata("c", "r", "a.x", &["d"]);
    let outside = tree.write("/data/some.json", file(&written));
    assert_eq!(Reader::new().read_file(&outside).unwrap().metadata, written);
    assert_eq!(Reader::with_root("/").unwrap().read_file(&outside).unwrap().metadata, written);
    let directory = outside.parent().unwrap();
    let error = Reader::new().read_file(directory).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: is a directory, not a file", directory.display()));
}

/// One file in each of the five layouts.
fn five_layouts() -> Tree {
    let tree = Tree::new();
    tree.write(claim_path("a", "r", DRIVER), file(&metadata("a", "r", DRIVER, &["d-a"])));
    let generated = from_template("b", metadata("pod-b-x7k2p", "r", DRIVER, &["d-b"]));
    tree.write(template_path("b", "r", DRIVER), file(&generated));
    tree.write(kep_path("c", "r", DRIVER), file(&metadata("c", "r", DRIVER, &["d-c"])));
    let vep10 = r#"{"apiVersion":"resource.k8s.io/v1alpha1","kind":"DeviceMetadata","metadata":{"name":"d"},
        "podClaimName":"pod-d","requests":[{"name":"r","devices":[{"driver":"gpu.example.com","device":"d-d"}]}]}"#;
    tree.write(format!("{KEP}/{DRIVER}/d/metadata.json"), vep10);
    let draft = r#"{"claims":[{"claimName":"e","requests":[{"requestName":"r","attributes":{"foo":"bar"}}]}]}"#;
    tree.write(format!("{KEP}/{DRIVER}-{UID}-r.json"), draft);
    tree
}

#[test]
fn discovery_finds_all_five_layouts_in_order() {
    let tree = five_layouts();
    let discovery = tree.reader().discover();
    assert!(discovery.problems.is_empty(), "{:?}", discovery.problems);
    let claims: Vec<&str> = discovery.files.iter().map(|file| file.claim.as_str()).collect();
    assert_eq!(claims, ["a", "b", "c", "d", "e"]);
    for file in &discovery.files {
        let decoded = file.content.as_ref().unwrap();
        let device = &decoded.metadata.requests[0].devices[0];
        assert_eq!((device.driver.as_str(), file.driver.as_str()), (DRIVER, DRIVER));
        assert_eq!(file.request.is_none(), decoded.format == Format::Vep10);
        assert!(file.path.starts_with(tree.root()) && file.path.is_file());
    }
}

#[test]
fn discovery_is_in_the_order_of_claim_request_and_driver() {
    let tree = Tree::new();
    for (claim, request, driver) in [("b", "r", "a.x"), ("a", "s", "a.x"), ("a", "r", "b.x"), ("a", "r", "a.x")] {
        tree.write(kep_path(claim, request, driver), file(&metadata(claim, request, driver, &["d"])));
    }
    let discovery = tree.reader().discover();
    let order: Vec<_> = discovery
        .files
        .iter()
        .map(|file| (file.claim.as_str(), file.request.as_ref().unwrap().as_str(), file.driver.as_str()))
        .collect();
    assert_eq!(order, [("a", "r", "a.x"), ("a", "r", "b.x"), ("a", "s", "a.x"), ("b", "r", "a.x")]);
}

#[rstest]
#[case("a/r", "d-a")]
#[case("b/r", "d-b")]
#[case("c/r", "d-c")]
#[case("d/r", "d-d")]
#[case("pod-d/r", "d-d")]
#[case("resourceclaims/d/r", "d-d")]
#[case("resourceclaimtemplates/pod-d/r", "d-d")]
#[case("e/r", "")]
fn each_layout_can_be_read(#[case] text: &str, #[case] device: &str) {
    assert_eq!(names(&five_layouts(), text), [device]);
}

#[test]
fn a_reader_of_released_versions_reads_no_older_format() {
    let tree = five_layouts();
    let reader = tree.reader().released_only();
    assert_eq!(device_names(reader.read(&query("a/r")).unwrap().devices()), ["d-a"]);
    assert_eq!(reader.read(&query("d/r")).unwrap_err().class(), ErrorClass::Invalid);
    assert!(reader.read(&query("e/r")).is_err());
    let discovery = reader.discover();
    assert_eq!(discovery.files.iter().filter(|file| file.content.is_ok()).count(), 3);
}

#[test]
fn an_absolute_link_inside_the_root_stays_inside() {
    let tree = Tree::new();
    tree.directory("/var");
    tree.directory("/run");
    symlink("/run", tree.outside("/var/run")).unwrap();
    let path = claim_path("c", "r", "a.x").replacen("/var/run", "/run", 1);
    tree.write(path, file(&metadata("c", "r", "a.x", &["d"])));
    assert_eq!(names(&tree, "c/r"), ["d"]);
    assert_eq!(tree.reader().discover().files.len(), 1);
}

#[rstest]
#[case::absolute(false)]
#[case::relative(true)]
fn a_link_to_a_file_outside_the_root_is_not_followed(#[case] relative: bool) {
    let tree = Tree::new();
    let outside = Tree::new();
    let secret = outside.write("/secret", file(&metadata("c", "r", "a.x", &["secret"])));
    let link = tree.create_parent(claim_path("c", "r", "a.x"));
    let up = Path::new("../../../../../../../../../../../..").join(secret.strip_prefix("/").unwrap());
    symlink(if relative { &up } else { &secret }, &link).unwrap();
    assert!(fs::read(&link).is_ok(), "the link itself is good");
    let error = tree.reader().read(&query("c/r")).unwrap_err();
    assert!(error.to_string().contains(&link.display().to_string()), "{error}");
    assert!(tree.reader().discover().files.iter().all(|file| file.content.is_err()));
}

#[test]
fn a_link_to_a_directory_outside_the_root_is_not_followed() {
    let tree = Tree::new();
    let outside = Tree::new();
    outside.write("/c/r/a.x-metadata.json", file(&metadata("c", "r", "a.x", &["secret"])));
    symlink(outside.root(), tree.create_parent(CLAIMS)).unwrap();
    assert!(tree.reader().read(&query("c/r")).is_err());
    assert!(tree.reader().discover().files.is_empty());
}

#[test]
fn a_link_to_a_file_inside_the_root_is_followed() {
    let tree = Tree::new();
    tree.write("/data/here.json", file(&metadata("c", "r", "a.x", &["d"])));
    symlink("/data/here.json", tree.create_parent(claim_path("c", "r", "a.x"))).unwrap();
    assert_eq!(names(&tree, "c/r"), ["d"]);
}

#[test]
fn in_the_kep_layout_a_claims_name_takes_precedence_over_a_pod_claim() {
    let tree = Tree::new();
    tree.write(kep_path("net", "r", "a.x"), file(&metadata("net", "r", "a.x", &["named"])));
    tree.write(kep_path("gen", "r", "a.x"), file(&from_template("net", metadata("gen", "r", "a.x", &["generated"]))));
    let reader = tree.reader();
    let names =
        |query: &Query| reader.read(query).unwrap().devices().map(|device| device.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&query("net/r")), ["named"]);
    assert_eq!(names(&Query::claim("net", "r").unwrap()), ["named"]);
    assert_eq!(names(&Query::pod_claim("net", "r").unwrap()), ["generated"]);
}

#[test]
fn two_claims_that_differ_only_in_their_files_are_not_mixed() {
    let tree = Tree::new();
    for (claim, content) in [
        ("one", from_template("net", metadata("one", "r", "a.x", &["first"]))),
        ("two", from_template("net", metadata("two", "r", "a.x", &["second"]))),
    ] {
        tree.write(kep_path(claim, "r", "a.x"), file(&content));
    }
    let error = tree.reader().read(&query("net/r")).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Ambiguous, "{error}");
}

#[test]
fn a_file_that_is_not_written_yet_belongs_to_the_same_claim() {
    let tree = Tree::new();
    let of = |driver: &str| format!("{KEP}/{driver}/c/metadata.json");
    let content = String::from_utf8(file(&metadata("c", "r", "a.x", &["d"]))).unwrap();
    tree.write(
        of("a.x"),
        content.replace("metadata.resource.k8s.io", "resource.k8s.io").replace("\"name\": \"d\"", "\"device\": \"d\""),
    );
    tree.write(of("b.x"), "");
    let read = tree.reader().read(&query("c/r")).unwrap();
    assert_eq!(device_names(read.devices()), ["d"]);
    assert!(matches!(&read.problems[..], [ReadError::NotWritten { .. }]), "{:?}", read.problems);
}
