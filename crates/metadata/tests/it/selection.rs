//! Selecting the files of a claim, of a request, or all.

use drakkar_metadata::read::{Discovery, ErrorClass, ReadError, Selection};
use rstest::rstest;

use crate::support::{Tree, claim_path, file, from_template, kep_path, metadata, template_path};

fn selection(text: &str) -> Selection {
    text.parse().unwrap()
}

/// Returns request and driver of each file.
fn files(found: &Discovery) -> Vec<(&str, &str)> {
    let request = |file: &&drakkar_metadata::read::MetadataFile| file.request.is_some();
    found.files.iter().filter(request).map(|file| (file.request.as_ref().unwrap().as_str(), &*file.driver)).collect()
}

/// A claim with two requests, one of them from two drivers, beside another claim.
fn tree() -> Tree {
    let tree = Tree::new();
    tree.write(claim_path("c", "gpu", "b.x"), file(&metadata("c", "gpu", "b.x", &["gpu-0"])));
    tree.write(claim_path("c", "gpu", "a.x"), file(&metadata("c", "gpu", "a.x", &["gpu-1"])));
    tree.write(claim_path("c", "nic", "a.x"), "");
    tree.write(claim_path("other", "gpu", "a.x"), "{");
    tree
}

#[test]
fn a_claim_has_all_its_files_also_those_that_are_not_written_yet() {
    let tree = tree();
    let found = tree.reader().select(&selection("c")).unwrap();
    assert_eq!(files(&found), [("gpu", "a.x"), ("gpu", "b.x"), ("nic", "a.x")]);
    assert_eq!(found.files[2].content.as_ref().unwrap_err().class(), ErrorClass::NotWritten);
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    let of_driver = tree.reader().select(&selection("c").with_driver("b.x".parse().unwrap())).unwrap();
    assert_eq!(files(&of_driver), [("gpu", "b.x")]);
}

#[test]
fn a_request_has_only_its_own_files_and_all_has_every_file() {
    let tree = tree();
    assert_eq!(files(&tree.reader().select(&selection("c/gpu")).unwrap()), [("gpu", "a.x"), ("gpu", "b.x")]);
    assert_eq!(tree.reader().select(&Selection::All).unwrap().files.len(), 4);
    let subrequest = tree.reader().select(&selection("c/gpu/large")).unwrap_err();
    assert_eq!(subrequest.class(), ErrorClass::NotFound);
}

#[rstest]
#[case::template(template_path("gpus", "gpu", "a.x"))]
#[case::kep(kep_path("pod-gpus-x7k2p", "gpu", "a.x"))]
fn a_claim_from_a_template_is_selected_by_the_name_of_the_pods_entry(#[case] path: String) {
    let tree = Tree::new();
    let content = file(&from_template("gpus", metadata("pod-gpus-x7k2p", "gpu", "a.x", &["d"])));
    tree.write(path, content);
    for text in ["gpus", "resourceclaimtemplates/gpus"] {
        assert_eq!(files(&tree.reader().select(&selection(text)).unwrap()), [("gpu", "a.x")], "{text}");
    }
    assert_eq!(tree.reader().select(&selection("resourceclaims/gpus")).unwrap_err().class(), ErrorClass::NotFound);
}

#[test]
fn a_file_in_both_layouts_counts_once() {
    let tree = Tree::new();
    let content = file(&metadata("c", "gpu", "a.x", &["d"]));
    tree.write(claim_path("c", "gpu", "a.x"), &content);
    tree.write(kep_path("c", "gpu", "a.x"), &content);
    let found = tree.reader().select(&selection("c")).unwrap();
    assert_eq!(files(&found), [("gpu", "a.x")]);
    assert_eq!(found.files[0].also_at.len(), 1);
}

#[test]
fn a_name_of_two_claims_is_ambiguous() {
    let tree = Tree::new();
    tree.write(claim_path("gpus", "gpu", "a.x"), file(&metadata("gpus", "gpu", "a.x", &["named"])));
    let generated = from_template("gpus", metadata("pod-gpus-x7k2p", "gpu", "a.x", &["generated"]));
    tree.write(template_path("gpus", "gpu", "a.x"), file(&generated));
    let error = tree.reader().select(&selection("gpus")).unwrap_err();
    assert!(matches!(error, ReadError::Ambiguous { .. }), "{error:?}");
    assert!(error.to_string().ends_with("use resourceclaims/gpus or resourceclaimtemplates/gpus"), "{error}");
    assert_eq!(tree.reader().select(&selection("resourceclaims/gpus")).unwrap().files.len(), 1);
}

#[test]
fn what_does_not_exist_is_not_found_and_named() {
    let tree = Tree::new();
    for (selection, name) in [(Selection::All, "this container"), (selection("c"), "c"), (selection("c/r"), "c/r")] {
        let error = tree.reader().select(&selection).unwrap_err();
        assert_eq!(error.class(), ErrorClass::NotFound);
        assert!(error.to_string().starts_with(&format!("no metadata for {name}: looked in /")), "{error}");
    }
}

#[test]
fn a_selection_is_printed_as_it_is_written() {
    for text in ["a", "a/b", "a/b/c", "resourceclaims/a", "resourceclaimtemplates/a", "resourceclaims/a/b"] {
        assert_eq!(selection(text).to_string(), text);
    }
    for text in ["", "a/", "/a", "a/b/c/d", "..", "A", "resourceclaimtemplates/a.b"] {
        assert!(text.parse::<Selection>().is_err(), "{text}");
    }
}
