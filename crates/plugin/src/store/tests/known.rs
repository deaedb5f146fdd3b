//! What the store remembers of files for people.

use super::*;

fn known(store: &Store<SystemFiles>, claim: &ClaimRef) -> Vec<(String, Option<i64>, bool)> {
    let files = store.metadata_files(&claim.uid).into_iter();
    files.map(|(request, file)| (request.to_string(), file.generation, file.written.is_some())).collect()
}

#[test]
fn the_generation_of_each_file_is_known_without_reading_it() {
    let disk = Disk::new();
    let store = disk.store();
    assert_eq!(known(&store, &claim()), []);
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let expected = [("gpu".to_owned(), Some(1), true), ("net".to_owned(), None, true)];
    assert_eq!(known(&store, &claim()), expected);
    store.update(&claim(), &name("gpu"), vec![device("gpu-0", "second")]).unwrap();
    store.update(&claim(), &name("net"), vec![device("nic-0", "first")]).unwrap();
    let updated = [("gpu".to_owned(), Some(2), true), ("net".to_owned(), Some(1), true)];
    assert_eq!(known(&store, &claim()), updated);
    let written = store.metadata_files(&claim().uid);
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    assert_eq!(store.metadata_files(&claim().uid), written, "nothing was written");

    // A later process has only read them.
    let restarted = disk.store();
    restarted.recover();
    let read = [("gpu".to_owned(), Some(2), false), ("net".to_owned(), Some(1), false)];
    assert_eq!(known(&restarted, &claim()), read);
    restarted.prepare(&claim(), None, vec![two_requests().remove(0)], &uses(), vec![]).unwrap();
    assert_eq!(known(&restarted, &claim()), read[..1]);
    restarted.unprepare(&claim()).unwrap();
    assert_eq!(known(&restarted, &claim()), []);
}

#[test]
fn the_files_of_a_claim_are_forgotten_when_another_takes_its_place_or_the_prepare_fails() {
    let disk = Disk::new();
    let store = disk.store();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap();
    let successor = successor(&claim());
    store.prepare(&successor, None, two_requests(), &uses(), vec![]).unwrap();
    assert_eq!((known(&store, &claim()).len(), known(&store, &successor).len()), (0, 2));
    store.unprepare(&successor).unwrap();

    fs::remove_dir_all(disk.path("cdi")).unwrap();
    fs::write(disk.path("cdi"), "not a directory").unwrap();
    store.prepare(&claim(), None, two_requests(), &uses(), vec![]).unwrap_err();
    assert_eq!(known(&store, &claim()), []);
}
