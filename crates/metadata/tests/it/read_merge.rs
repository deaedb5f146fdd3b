//! Several files of a request: of several drivers, in both layouts, some of them broken.

use std::fs;

use drakkar_metadata::read::{ErrorClass, ReadError};
use drakkar_metadata::{Metadata, ObjectMeta, Query, Request, merge};
use rstest::rstest;

use crate::support::{Tree, claim_path, device, device_names, file, from_template, kep_path, metadata, template_path};

fn query(text: &str) -> Query {
    text.parse().unwrap()
}

fn with_generation(generation: i64, mut metadata: Metadata) -> Metadata {
    metadata.metadata.generation = generation;
    metadata
}

#[test]
fn several_drivers_are_merged_in_the_order_of_their_files() {
    let tree = Tree::new();
    // '-' sorts before '.', so the order of files differs from that of the drivers' names.
    for driver in ["b.x", "a.x", "a-b.x", "a"] {
        let name = driver.replace('.', "-");
        tree.write(claim_path("c", "r", driver), file(&metadata("c", "r", driver, &[&name])));
    }
    let read = tree.reader().read(&query("c/r")).unwrap().complete().unwrap();
    let mut files = ["b.x", "a.x", "a-b.x", "a"].map(|driver| format!("{driver}-metadata.json"));
    files.sort();
    let expected: Vec<String> =
        files.iter().map(|file| file.trim_end_matches("-metadata.json").replace('.', "-")).collect();
    assert_eq!(device_names(read.devices()), expected);
    assert_eq!(read.metadata.requests.len(), 1);
    assert_eq!(read.metadata.metadata, ObjectMeta::default());
    let of_files: Vec<_> = read.files.iter().map(|file| file.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(of_files, files);
    assert!(read.files.iter().all(|file| file.content.as_ref().unwrap().metadata.metadata.name == "c"));
}

#[test]
fn the_first_pod_claim_name_counts() {
    let tree = Tree::new();
    let of = |driver: &str| metadata("pod-gpus-1", "r", driver, &["d"]);
    tree.write(template_path("gpus", "r", "a.x"), file(&of("a.x")));
    tree.write(template_path("gpus", "r", "b.x"), file(&from_template("second", of("b.x"))));
    tree.write(template_path("gpus", "r", "c.x"), file(&from_template("third", of("c.x"))));
    let read = tree.reader().read(&query("resourceclaimtemplates/gpus/r")).unwrap();
    assert_eq!(read.metadata.pod_claim_name.as_deref(), Some("second"));
}

#[test]
fn requests_of_the_same_name_are_joined_and_others_follow_in_order() {
    let of = |requests: &[(&str, &[&str])]| Metadata {
        metadata: ObjectMeta { name: "c".into(), ..ObjectMeta::default() },
        requests: requests
            .iter()
            .map(|(name, devices)| Request {
                name: (*name).into(),
                devices: devices.iter().map(|name| device("d.x", name)).collect(),
            })
            .collect(),
        ..Metadata::default()
    };
    let first = of(&[("r/a", &["1"]), ("r", &["2"])]);
    let second = of(&[("r/b", &["3"]), ("r", &["4"]), ("r/a", &["5"])]);
    let merged = merge([&first, &second]);
    let shown: Vec<_> =
        merged.requests.iter().map(|request| (request.name.as_str(), device_names(&request.devices))).collect();
    assert_eq!(shown, [("r/a", vec!["1", "5"]), ("r", vec!["2", "4"]), ("r/b", vec!["3"])]);
    assert_eq!(merged.metadata, ObjectMeta::default());
    assert_eq!(merge([]), Metadata::default());
    let tree = Tree::new();
    tree.write(claim_path("c", "r", "a.x"), file(&first));
    tree.write(claim_path("c", "r", "b.x"), file(&second));
    assert_eq!(tree.reader().read(&query("c/r")).unwrap().metadata, merged);
}

#[test]
fn a_broken_file_does_not_hide_a_good_one() {
    let tree = Tree::new();
    tree.write(claim_path("c", "r", "a.x"), file(&metadata("c", "r", "a.x", &["good"])));
    let broken = tree.write(claim_path("c", "r", "b.x"), "broken");
    let read = tree.reader().read(&query("c/r")).unwrap();
    assert_eq!(device_names(read.devices()), ["good"]);
    assert_eq!((read.files.len(), read.problems.len()), (1, 1));
    assert_eq!(read.problems[0].class(), ErrorClass::Invalid);
    let error = read.complete().unwrap_err();
    assert!(error.to_string().contains(&broken.display().to_string()), "{error}");
}

#[test]
fn if_all_files_are_broken_the_error_names_each() {
    let tree = Tree::new();
    let first = tree.write(claim_path("c", "r", "a.x"), "broken");
    let second = tree.write(claim_path("c", "r", "b.x"), "{}");
    let third = tree.write(claim_path("c", "r", "c.x"), "");
    let error = tree.reader().read(&query("c/r")).unwrap_err();
    assert!(matches!(&error, ReadError::Several(problems) if problems.len() == 3), "{error:?}");
    assert_eq!(error.class(), ErrorClass::Invalid);
    for path in [first, second, third] {
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn an_empty_file_is_not_written_yet() {
    let tree = Tree::new();
    let path = tree.write(claim_path("c", "r", "a.x"), "");
    let error = tree.reader().read(&query("c/r")).unwrap_err();
    assert!(matches!(&error, ReadError::NotWritten { path: named } if *named == path), "{error:?}");
    assert_eq!(error.class(), ErrorClass::NotWritten);
    assert!(error.to_string().contains("not written yet"), "{error}");
    tree.write(claim_path("c", "r", "b.x"), file(&metadata("c", "r", "b.x", &["d"])));
    let read = tree.reader().read(&query("c/r")).unwrap();
    assert_eq!((device_names(read.devices()), read.problems.len()), (vec!["d"], 1));
    assert_eq!(read.complete().unwrap_err().class(), ErrorClass::NotWritten);
}

/// Creates the same metadata in both layouts: as a link to the same file, or as a copy.
fn in_both_layouts(kubernetes: &str, kep: &str, first: &Metadata, second: Option<&Metadata>) -> Tree {
    let tree = Tree::new();
    let original = tree.write(kubernetes, file(first));
    match second {
        None => fs::hard_link(original, tree.create_parent(kep)).unwrap(),
        Some(copy) => drop(tree.write(kep, file(copy))),
    }
    tree
}

#[rstest]
#[case::claim("c/r", claim_path("c", "r", "a.x"), None)]
#[case::claim_said_so("resourceclaims/c/r", claim_path("c", "r", "a.x"), None)]
#[case::template("gpus/r", template_path("gpus", "r", "a.x"), Some("gpus"))]
#[case::template_said_so("resourceclaimtemplates/gpus/r", template_path("gpus", "r", "a.x"), Some("gpus"))]
fn a_file_in_both_layouts_counts_once(#[case] text: &str, #[case] path: String, #[case] pod_claim: Option<&str>) {
    let mut written = metadata("c", "r", "a.x", &["d"]);
    written.pod_claim_name = pod_claim.map(str::to_owned);
    let kep = kep_path("c", "r", "a.x");
    for copy in [None, Some(&written)] {
        let tree = in_both_layouts(&path, &kep, &written, copy);
        let read = tree.reader().read(&query(text)).unwrap().complete().unwrap();
        assert_eq!(device_names(read.devices()), ["d"]);
        assert_eq!(read.files.len(), 1);
        assert_eq!(read.files[0].path, tree.outside(&path));
        assert_eq!(read.files[0].also_at, [tree.outside(&kep)]);
        let discovery = tree.reader().discover();
        assert_eq!(discovery.files.len(), 1);
        assert_eq!(discovery.files[0].path, tree.outside(&path));
        assert_eq!(discovery.files[0].also_at, [tree.outside(&kep)]);
    }
}

#[test]
fn a_broken_or_empty_file_in_both_layouts_is_one_problem() {
    for content in ["", "broken"] {
        let tree = Tree::new();
        let original = tree.write(claim_path("c", "r", "a.x"), content);
        fs::hard_link(original, tree.create_parent(kep_path("c", "r", "a.x"))).unwrap();
        assert_eq!(tree.reader().discover().files.len(), 1);
        let error = tree.reader().read(&query("c/r")).unwrap_err();
        assert!(!matches!(error, ReadError::Several(_)), "{error:?}");
    }
}

#[rstest]
#[case::the_first_is_newer(3, 2, "first")]
#[case::the_second_is_newer(2, 3, "second")]
#[case::both_are_alike(2, 2, "first")]
fn the_later_one_of_two_copies_is_used(#[case] first: i64, #[case] second: i64, #[case] expected: &str) {
    let one = with_generation(first, metadata("c", "r", "a.x", &["first"]));
    let other = with_generation(second, metadata("c", "r", "a.x", &["second"]));
    let kubernetes = claim_path("c", "r", "a.x");
    let kep = kep_path("c", "r", "a.x");
    let tree = in_both_layouts(&kubernetes, &kep, &one, Some(&other));
    let read = tree.reader().read(&query("c/r")).unwrap();
    assert_eq!((device_names(read.devices()), read.files.len()), (vec![expected], 1));
    let discovery = tree.reader().discover();
    let decoded = discovery.files[0].content.as_ref().unwrap();
    assert_eq!(device_names(&decoded.metadata.requests[0].devices), [expected]);
    assert_eq!(decoded.metadata.metadata.generation, first.max(second));
}

#[test]
fn files_of_two_drivers_or_two_requests_are_not_copies() {
    let tree = Tree::new();
    for (request, driver) in [("r", "a.x"), ("r", "b.x"), ("s", "a.x")] {
        tree.write(claim_path("c", request, driver), file(&metadata("c", request, driver, &["d"])));
    }
    assert_eq!(tree.reader().discover().files.len(), 3);
    assert_eq!(tree.reader().read(&query("c/r")).unwrap().devices().count(), 2);
}

#[test]
fn claims_without_a_uid_are_different_claims() {
    let tree = Tree::new();
    for claim in ["a", "b"] {
        let mut written = metadata(claim, "r", "a.x", &["d"]);
        written.metadata.uid.clear();
        tree.write(claim_path(claim, "r", "a.x"), file(&written));
    }
    assert_eq!(tree.reader().discover().files.len(), 2);
}
