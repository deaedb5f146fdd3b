//! Waiting for metadata that is not written yet.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use drakkar_metadata::read::{ErrorClass, ReadError, RequestMetadata};
use drakkar_metadata::{Query, Reader};
use rstest::rstest;

use crate::support::{Tree, claim_path, device_names, file, from_template, kep_path, metadata, template_path};

/// The timeout of a wait. It is shorter than the polling interval, so that only an event can end the wait in time.
const TIMEOUT: Duration = Duration::from_secs(240);
const PROMPT: Duration = Duration::from_secs(60);
const NEVER: Duration = Duration::from_secs(3600);

fn query() -> Query {
    "c/r".parse().unwrap()
}

fn path() -> String {
    claim_path("c", "r", "a.x")
}

fn written(devices: &[&str]) -> Vec<u8> {
    file(&metadata("c", "r", "a.x", devices))
}

/// Returns a reader that is woken only by events.
fn watcher(tree: &Tree) -> Reader {
    tree.reader().recheck_every(NEVER)
}

fn replace(file_path: &Path, content: &[u8]) {
    let temporary = file_path.with_extension("tmp");
    fs::write(&temporary, content).unwrap();
    fs::rename(temporary, file_path).unwrap();
}

/// Returns whether a thread sleeps in a system call, as `/proc` shows.
fn is_asleep(thread: &Path) -> bool {
    let stat = fs::read_to_string(thread.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// Waits in another thread, and runs `act` when that thread sleeps after its first read.
fn wait_while(
    tree: &Tree,
    query: Query,
    ready: impl FnMut(&RequestMetadata) -> bool + Send,
    act: impl FnOnce(),
) -> (RequestMetadata, Duration) {
    let reader = watcher(tree);
    let (sender, receiver): (Sender<PathBuf>, Receiver<PathBuf>) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let own = fs::read_link("/proc/thread-self").unwrap();
            sender.send(Path::new("/proc").join(own)).unwrap();
            reader.wait(&query, TIMEOUT, ready)
        });
        let thread = receiver.recv().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while !is_asleep(&thread) && !waiting.is_finished() && Instant::now() < deadline {
            thread::yield_now();
        }
        let start = Instant::now();
        act();
        let outcome = waiting.join().unwrap();
        (outcome.unwrap_or_else(|error| panic!("{error}")), start.elapsed())
    })
}

#[test]
fn existing_metadata_is_returned_at_once() {
    let tree = Tree::new();
    tree.write(path(), written(&["d"]));
    let start = Instant::now();
    let found = watcher(&tree).wait(&query(), Duration::ZERO, |_| true).unwrap();
    assert_eq!(device_names(found.devices()), ["d"]);
    assert!(start.elapsed() < PROMPT);
}

#[rstest]
#[case::claim(path(), "c/r")]
#[case::kep(kep_path("c", "r", "a.x"), "c/r")]
#[case::kep_by_claim(kep_path("c", "r", "a.x"), "resourceclaims/c/r")]
#[case::template(template_path("gpus", "r", "a.x"), "gpus/r")]
#[case::kep_by_pod_claim(kep_path("c", "r", "a.x"), "resourceclaimtemplates/gpus/r")]
fn a_file_that_is_empty_and_then_written_in_place_wakes_the_reader(#[case] path: String, #[case] text: &str) {
    let tree = Tree::new();
    let file_path = tree.write(&path, "");
    let content = file(&from_template("gpus", metadata("c", "r", "a.x", &["d"])));
    let query = text.parse().unwrap();
    let (found, took) = wait_while(&tree, query, |_| true, || fs::write(&file_path, &content).unwrap());
    assert_eq!(device_names(found.devices()), ["d"]);
    assert!(took < PROMPT, "took {took:?}");
}

#[test]
fn a_file_that_appears_by_rename_wakes_the_reader() {
    let tree = Tree::new();
    let file_path = tree.create_parent(path());
    let (found, took) = wait_while(&tree, query(), |_| true, || replace(&file_path, &written(&["d"])));
    assert_eq!(device_names(found.devices()), ["d"]);
    assert!(took < PROMPT, "took {took:?}");
}

#[rstest]
#[case::claim(path(), "c/r")]
#[case::template(template_path("gpus", "r", "a.x"), "gpus/r")]
#[case::kep_by_pod_claim(kep_path("c", "r", "a.x"), "gpus/r")]
fn directories_that_appear_one_by_one_lead_the_reader_to_the_file(#[case] path: String, #[case] text: &str) {
    let tree = Tree::new();
    let file_path = tree.outside(&path);
    let content = file(&from_template("gpus", metadata("c", "r", "a.x", &["d"])));
    let root = tree.root().to_owned();
    let (found, took) = wait_while(
        &tree,
        text.parse().unwrap(),
        |_| true,
        || {
            let mut directories: Vec<&Path> =
                file_path.ancestors().skip(1).take_while(|directory| *directory != root.as_path()).collect();
            directories.reverse();
            for directory in directories {
                fs::create_dir(directory).unwrap();
                // Lets the reader run between any two steps.
                thread::yield_now();
            }
            fs::write(&file_path, &content).unwrap();
        },
    );
    assert_eq!(device_names(found.devices()), ["d"]);
    assert!(took < PROMPT, "took {took:?}");
}

#[test]
fn directories_that_appear_behind_a_link_lead_the_reader_to_the_file() {
    let tree = Tree::new();
    tree.directory("/var");
    tree.directory("/run");
    symlink("/run", tree.outside("/var/run")).unwrap();
    let (found, took) = wait_while(
        &tree,
        query(),
        |_| true,
        || {
            tree.write(path().replacen("/var/run", "/run", 1), written(&["d"]));
        },
    );
    assert_eq!(device_names(found.devices()), ["d"]);
    assert!(took < PROMPT, "took {took:?}");
}

#[rstest]
#[case::in_place(|file_path: &Path, content: &[u8]| fs::write(file_path, content).unwrap())]
#[case::by_rename(replace)]
#[case::removed_and_created(|file_path: &Path, content: &[u8]| {
    fs::remove_file(file_path).unwrap();
    fs::write(file_path, content).unwrap();
})]
#[case::with_its_directory(|file_path: &Path, content: &[u8]| {
    let directory = file_path.parent().unwrap();
    fs::remove_dir_all(directory).unwrap();
    fs::create_dir(directory).unwrap();
    fs::write(file_path, content).unwrap();
})]
fn a_change_between_read_and_sleep_is_not_lost(#[case] change: fn(&Path, &[u8])) {
    let tree = Tree::new();
    let file_path = tree.write(path(), written(&["old"]));
    let mut looks = 0;
    let start = Instant::now();
    let found = watcher(&tree).wait(&query(), TIMEOUT, |found| {
        looks += 1;
        if looks == 1 {
            assert_eq!(device_names(found.devices()), ["old"]);
            change(&file_path, &written(&["new"]));
            return false;
        }
        device_names(found.devices()) == ["new"]
    });
    assert_eq!(device_names(found.unwrap().devices()), ["new"]);
    assert!(start.elapsed() < PROMPT, "took {:?}", start.elapsed());
}

#[test]
fn many_changes_between_read_and_sleep_are_not_lost() {
    let tree = Tree::new();
    let file_path = tree.write(path(), written(&["d-0"]));
    let mut next = 0;
    let start = Instant::now();
    let found = watcher(&tree).wait(&query(), TIMEOUT, |found| {
        if next < 100 && device_names(found.devices()) == [format!("d-{next}")] {
            next += 1;
            let content = written(&[&format!("d-{next}")]);
            if next % 2 == 0 { replace(&file_path, &content) } else { fs::write(&file_path, content).unwrap() }
        }
        device_names(found.devices()) == ["d-100"]
    });
    assert_eq!(device_names(found.unwrap().devices()), ["d-100"]);
    assert!(start.elapsed() < TIMEOUT, "took {:?}", start.elapsed());
}

#[rstest]
#[case::nothing_there(None, ErrorClass::NotFound, "no metadata for c/r")]
#[case::not_written(Some(""), ErrorClass::NotWritten, "not written yet")]
#[case::broken(Some("broken"), ErrorClass::Invalid, "not valid JSON")]
fn a_timeout_has_the_last_error_and_its_duration(
    #[case] content: Option<&str>,
    #[case] class: ErrorClass,
    #[case] problem: &str,
) {
    let tree = Tree::new();
    if let Some(content) = content {
        tree.write(path(), content);
    }
    let timeout = Duration::from_millis(300);
    let start = Instant::now();
    let error = watcher(&tree).wait(&query(), timeout, |_| true).unwrap_err();
    let took = start.elapsed();
    assert!(took >= timeout && took < timeout + PROMPT, "took {took:?}");
    assert_eq!(error.class(), class);
    let ReadError::TimedOut { waited, .. } = &error else { panic!("{error:?}") };
    assert!(*waited >= timeout && *waited <= took);
    let text = error.to_string();
    assert!(text.starts_with("timed out after 0.") && text.contains(problem), "{text}");
}

#[test]
fn a_timeout_with_metadata_that_is_not_ready_is_reported() {
    let tree = Tree::new();
    tree.write(path(), written(&["d"]));
    let error = watcher(&tree).wait(&query(), Duration::from_millis(50), |_| false).unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotWritten);
    assert!(error.to_string().ends_with("c/r does not meet the condition"), "{error}");
}

#[test]
fn a_broken_file_is_returned_after_its_repair() {
    let tree = Tree::new();
    let file_path = tree.write(path(), "broken");
    let (found, took) = wait_while(&tree, query(), |_| true, || fs::write(&file_path, written(&["d"])).unwrap());
    assert_eq!(device_names(found.devices()), ["d"]);
    assert!(took < PROMPT, "took {took:?}");
}

#[test]
fn a_wait_includes_a_driver_that_has_not_written_yet() {
    let tree = Tree::new();
    tree.write(claim_path("c", "r", "a.x"), file(&metadata("c", "r", "a.x", &["early"])));
    let late = tree.write(claim_path("c", "r", "b.x"), "");
    let content = file(&metadata("c", "r", "b.x", &["late"]));
    let (found, took) = wait_while(&tree, query(), |_| true, || fs::write(&late, &content).unwrap());
    assert_eq!(device_names(found.devices()), ["early", "late"]);
    assert!(took < PROMPT, "took {took:?}");
}

#[test]
fn a_late_update_reaches_a_waiting_reader() {
    let tree = Tree::new();
    let file_path = tree.write(path(), written(&["first"]));
    let ready = |found: &RequestMetadata| device_names(found.devices()) == ["second"];
    let (found, took) = wait_while(&tree, query(), ready, || fs::write(&file_path, written(&["second"])).unwrap());
    assert_eq!(device_names(found.devices()), ["second"]);
    assert!(took < PROMPT, "took {took:?}");
}

#[test]
fn an_ambiguous_name_is_not_waited_on() {
    let tree = Tree::new();
    tree.write(claim_path("gpus", "r", "a.x"), file(&metadata("gpus", "r", "a.x", &["d"])));
    tree.write(template_path("gpus", "r", "a.x"), file(&metadata("pod-gpus-1", "r", "a.x", &["d"])));
    let start = Instant::now();
    let error = watcher(&tree).wait(&"gpus/r".parse().unwrap(), TIMEOUT, |_| true).unwrap_err();
    assert!(matches!(error, ReadError::Ambiguous { .. }), "{error:?}");
    assert!(start.elapsed() < PROMPT);
}

#[test]
fn without_events_the_reader_polls() {
    let tree = Tree::new();
    tree.write(path(), written(&["d"]));
    let mut looks = 0;
    let reader = tree.reader().recheck_every(Duration::from_millis(10));
    let found = reader.wait(&query(), TIMEOUT, |_| {
        looks += 1;
        looks == 3
    });
    assert_eq!(device_names(found.unwrap().devices()), ["d"]);
}

#[test]
fn a_reader_that_waits_does_not_wake_itself() {
    let tree = Tree::new();
    tree.write(path(), written(&["d"]));
    let mut looks = 0;
    let outcome = watcher(&tree).wait(&query(), Duration::from_millis(300), |_| {
        looks += 1;
        false
    });
    assert!(outcome.is_err());
    assert!(looks <= 3, "looked {looks} times though nothing changed");
}
