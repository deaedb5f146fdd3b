//! The limits of a search, for any content that a container has on disk: entries, memory and time.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use drakkar_metadata::Query;
use drakkar_metadata::read::{ErrorClass, ReadError};

use crate::support::{CLAIMS, KEP, Tree, claim_path, device_names, file, metadata, within};

/// The timeout of a test: a search ends after ten seconds.
const LIMIT: Duration = Duration::from_secs(60);

fn query() -> Query {
    "zz/r".parse().unwrap()
}

/// Creates many links to a directory that has as many links to another one.
fn links_to_links(tree: &Tree, base: &str, width: usize) {
    let base = tree.directory(base);
    let middle = tree.directory("/middle");
    let last = tree.directory("/last");
    File::create(last.join("a.x-metadata.json")).unwrap();
    for number in 0..width {
        symlink("/middle", base.join(format!("c{number}"))).unwrap();
        symlink("/last", middle.join(format!("r{number}"))).unwrap();
    }
}

fn good_claim(tree: &Tree) {
    tree.write(claim_path("zz", "r", "a.x"), file(&metadata("zz", "r", "a.x", &["good"])));
}

#[test]
fn directories_full_of_links_have_a_bounded_cost_and_hide_no_valid_claim() {
    let tree = Tree::new();
    links_to_links(&tree, CLAIMS, 9_998);
    good_claim(&tree);
    let discovery = within(LIMIT, move || (tree.reader().discover(), tree)).0;
    let good = discovery.files.iter().find(|file| file.claim.as_str() == "zz").expect("the good claim is found");
    assert_eq!(good.requests().flat_map(|request| &request.devices).count(), 1);
    let limited: Vec<_> =
        discovery.problems.iter().filter(|problem| problem.to_string().contains("too many entries")).collect();
    assert!(!limited.is_empty(), "{:?}", discovery.problems.first());
    assert!(limited.iter().all(|problem| problem.class() == ErrorClass::Invalid));
    assert!(discovery.problems.len() <= 300, "{} problems", discovery.problems.len());
}

#[test]
fn a_file_with_many_paths_is_one_file_with_the_first_paths_and_a_count() {
    let tree = Tree::new();
    links_to_links(&tree, CLAIMS, 60);
    let found = within(LIMIT, move || (tree.reader().discover(), tree)).0;
    let [file] = &found.files[..] else { panic!("{} files", found.files.len()) };
    assert!(file.also_at.len() <= 32, "{} other paths", file.also_at.len());
    assert!(matches!(file.content, Err(ReadError::NotWritten { .. })));
    assert!(found.problems.is_empty(), "{:?}", found.problems);
}

#[test]
fn a_wait_ends_in_time_for_any_content_on_disk() {
    for base in [CLAIMS, KEP] {
        let tree = Tree::new();
        links_to_links(&tree, base, 5_000);
        // In the KEP's layout only the files have the pod claim's name, so that everything is searched.
        let query: Query = "resourceclaimtemplates/nothing/r".parse().unwrap();
        let start = Instant::now();
        let error = within(LIMIT, move || (tree.reader().wait(&query, Duration::from_secs(2), |_| true), tree)).0;
        assert!(matches!(error, Err(ReadError::TimedOut { .. })), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
    }
}

#[test]
fn a_request_is_read_beside_directories_full_of_links() {
    let tree = Tree::new();
    links_to_links(&tree, CLAIMS, 9_998);
    good_claim(&tree);
    let read = within(LIMIT, move || (tree.reader().read(&query()), tree)).0;
    assert_eq!(device_names(read.unwrap().devices()), ["good"]);
}

/// The content of all files would take hundreds of megabytes of memory.
#[test]
fn content_is_kept_only_up_to_the_limit_of_memory() {
    let tree = Tree::new();
    let devices = vec![r#"{"attributes":{"a":{}}}"#; 2_700].join(",");
    for number in 0..40 {
        let content = format!(
            r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1","metadata":{{"uid":"{number}"}},"requests":[{{"name":"r","devices":[{devices}]}}]}}"#
        );
        tree.write(claim_path(&format!("c{number:02}"), "r", "a.x"), content);
    }
    let found = tree.reader().discover();
    let kept = found.files.iter().filter(|file| file.content.is_ok()).count();
    assert!((1..20).contains(&kept), "{kept} files of 7 MB each are kept");
    assert!(found.problems.iter().any(|problem| matches!(problem, ReadError::TooMuch { .. })), "{:?}", found.problems);
}

#[test]
fn a_claim_that_exceeds_its_share_of_the_budget_leaves_the_others_theirs() {
    let tree = Tree::new();
    for number in 0..2_000 {
        let directory = tree.directory(format!("{CLAIMS}/c/r{number}"));
        fs::write(directory.join("a.x-metadata.json"), "").unwrap();
    }
    good_claim(&tree);
    for number in 0..9_000 {
        symlink("c", Path::new(&tree.outside(CLAIMS)).join(format!("d{number}"))).unwrap();
    }
    let found = within(LIMIT, move || (tree.reader().discover(), tree)).0;
    assert!(found.files.iter().any(|file| file.claim.as_str() == "zz" && file.content.is_ok()));
}
