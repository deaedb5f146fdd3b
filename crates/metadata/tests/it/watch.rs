//! Watching for changes.

use std::fs;
use std::ops::ControlFlow;
use std::time::Duration;

use drakkar_metadata::read::{Discovery, Selection};
use rstest::rstest;

use crate::support::{Tree, claim_path, file, from_template, kep_path, metadata, template_path};

/// The timeout of a watch. It is shorter than the polling interval, so that only an event can end the watch in time.
const TIMEOUT: Duration = Duration::from_secs(240);
const NEVER: Duration = Duration::from_secs(3600);

fn written(found: &Discovery) -> usize {
    found.files.iter().filter(|file| file.content.is_ok()).count()
}

/// Every visit but the last changes a file, which must lead to another visit.
#[rstest]
#[case::all("", claim_path("c", "r", "a.x"))]
#[case::all_from_a_template("", template_path("gpus", "r", "a.x"))]
#[case::all_of_the_kep("", kep_path("c", "r", "a.x"))]
#[case::claim("c", claim_path("c", "r", "a.x"))]
#[case::claim_of_the_kep("c", kep_path("c", "r", "a.x"))]
#[case::claim_from_a_template("gpus", template_path("gpus", "r", "a.x"))]
#[case::pod_claim_of_the_kep("gpus", kep_path("c", "r", "a.x"))]
#[case::request("c/r", claim_path("c", "r", "a.x"))]
fn each_step_from_nothing_to_a_removed_file_is_seen(#[case] text: &str, #[case] path: String) {
    let tree = Tree::new();
    let selection = if text.is_empty() { Selection::All } else { text.parse().unwrap() };
    let content = file(&from_template("gpus", metadata("c", "r", "a.x", &["d"])));
    let mut steps = 0;
    let outcome = tree.reader().recheck_every(NEVER).watch(&selection, TIMEOUT, |found| {
        match (steps, found.as_ref().map_or(0, |found| found.files.len()), found.as_ref().map_or(0, written)) {
            (0, 0, 0) => drop(tree.create_parent(&path)),
            (1, 0, 0) => drop(tree.write(&path, "")),
            // In the KEP's layout an empty file does not say whose it is.
            (2, 0 | 1, 0) => fs::write(tree.outside(&path), &content).unwrap(),
            (3, 1, 1) => fs::remove_file(tree.outside(&path)).unwrap(),
            (4, 0, 0) => return ControlFlow::Break(()),
            // An event of an earlier step.
            _ => return ControlFlow::Continue(()),
        }
        steps += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(outcome, Ok(()), "after {steps} steps");
}

#[test]
fn a_watch_without_time_visits_once() {
    let mut visits = 0;
    let outcome = Tree::new().reader().watch(&Selection::All, Duration::ZERO, |found| {
        visits += 1;
        assert!(found.is_err());
        ControlFlow::<()>::Continue(())
    });
    assert!(outcome.is_err());
    assert_eq!(visits, 1);
}
