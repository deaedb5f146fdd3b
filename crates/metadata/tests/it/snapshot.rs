//! Reading during writes: only whole documents, and none that is older than the last.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use drakkar_metadata::{AttributeValue, Metadata, Reader};

use crate::support::{Tree, claim_path, file, metadata};

const READERS: usize = 2;
/// The maximum number of updates between two reads. Otherwise a busy machine could give all its time to the writer.
const BURST: usize = 50;

/// Returns a document of about 2000 bytes with the generation in every attribute.
fn document(generation: i64) -> Vec<u8> {
    let mut written = metadata("c", "r", "a.x", &["d"]);
    written.metadata.generation = generation;
    let attributes = (0..20).map(|number| (format!("a{number:02}"), generation.into())).collect();
    written.requests[0].devices[0].attributes = attributes;
    file(&written)
}

/// Returns the generation, and fails if its copies differ.
fn generation_of(read: &Metadata) -> i64 {
    let generation = read.metadata.generation;
    let attributes = &read.requests[0].devices[0].attributes;
    assert_eq!(attributes.len(), 20, "generation {generation}");
    for (name, value) in attributes {
        assert_eq!(value.value(), Some(AttributeValue::Int(generation)), "{name} in generation {generation}");
    }
    generation
}

/// Updates a file in place: one write per update, which never shortens the file.
struct Writer {
    file: File,
    longest: usize,
}

impl Writer {
    fn open(file_path: &Path) -> Self {
        Self { file: OpenOptions::new().write(true).open(file_path).unwrap(), longest: 0 }
    }

    fn update(&mut self, generation: i64) {
        let mut content = document(generation);
        self.longest = self.longest.max(content.len());
        content.resize(self.longest, b'\n');
        self.file.write_all_at(&content, 0).unwrap();
    }
}

/// Reads until `done`, and at least once after it. Returns the number of reads and the last generation.
fn read_until_done(reader: &Reader, path: &Path, done: &AtomicBool, all_reads: &AtomicUsize) -> (usize, i64) {
    let mut reads = 0;
    let mut last = 0;
    loop {
        let finished = done.load(Ordering::Acquire);
        let decoded = reader.read_file(path).unwrap_or_else(|error| panic!("after {reads} reads: {error}"));
        let generation = generation_of(&decoded.metadata);
        assert!(generation >= last, "generation {generation} after {last}");
        last = generation;
        reads += 1;
        all_reads.fetch_add(1, Ordering::Release);
        if finished {
            return (reads, last);
        }
    }
}

/// Runs a writer of `updates` updates against readers, and returns the number of reads during the writes.
fn read_against(updates: i64, update: impl Fn(&mut Writer, i64)) -> usize {
    let tree = Tree::new();
    let path = PathBuf::from(claim_path("c", "r", "a.x"));
    let file_path = tree.write(&path, document(0));
    let done = AtomicBool::new(false);
    let start = Barrier::new(READERS + 1);
    let all_reads = AtomicUsize::new(0);
    let outcomes: Vec<(usize, i64)> = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                scope.spawn(|| {
                    let reader = tree.reader();
                    start.wait();
                    read_until_done(&reader, &path, &done, &all_reads)
                })
            })
            .collect();
        let mut writer = Writer::open(&file_path);
        start.wait();
        let mut seen = 0;
        for generation in 1..=updates {
            update(&mut writer, generation);
            if usize::try_from(generation).unwrap().is_multiple_of(BURST) {
                let is_reading = || readers.iter().any(|reader| !reader.is_finished());
                while all_reads.load(Ordering::Acquire) == seen && is_reading() {
                    thread::yield_now();
                }
                seen = all_reads.load(Ordering::Acquire);
            }
        }
        done.store(true, Ordering::Release);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    for (_, last) in &outcomes {
        assert_eq!(*last % 1000, updates % 1000, "the last read sees the last update");
    }
    // The read after the last write does not count.
    outcomes.iter().map(|(reads, _)| reads - 1).sum()
}

#[test]
fn documents_have_about_two_thousand_bytes() {
    assert!((1800..4000).contains(&document(1000).len()), "{}", document(1000).len());
}

#[test]
fn a_reader_sees_whole_documents_while_a_writer_with_the_lock_writes_back_to_back() {
    let start = Instant::now();
    let reads = read_against(2000, |writer, generation| {
        writer.file.lock().unwrap();
        writer.update(generation);
        writer.file.unlock().unwrap();
    });
    eprintln!("{reads} reads during 2000 locked updates in {:?}", start.elapsed());
    assert!(reads > 0);
}

/// One write per update, as in drivers on other frameworks: the reader waits for a write in progress.
#[test]
fn a_reader_sees_whole_documents_while_a_writer_without_the_lock_writes_back_to_back() {
    let start = Instant::now();
    let reads = read_against(2000, Writer::update);
    eprintln!("{reads} reads during 2000 updates without a lock in {:?}", start.elapsed());
    assert!(reads > 0);
}

#[test]
fn a_reader_sees_whole_documents_while_a_writer_without_the_lock_pauses_between_writes() {
    let start = Instant::now();
    let reads = read_against(600, |writer, generation| {
        writer.update(generation);
        thread::sleep(Duration::from_millis(1));
    });
    eprintln!("{reads} reads during 600 updates without a lock in {:?}", start.elapsed());
    assert!(reads > 0);
}

#[test]
fn a_reader_waits_for_an_update_that_takes_two_writes_under_the_lock() {
    let reads = read_against(60, |writer, generation| {
        // All documents have the same length, so that halves of two documents together are valid JSON.
        let content = document(1000 + generation);
        let (first, second) = content.split_at(content.len() / 4);
        writer.file.lock().unwrap();
        writer.file.write_all_at(first, 0).unwrap();
        thread::sleep(Duration::from_millis(1));
        writer.file.write_all_at(second, first.len() as u64).unwrap();
        writer.file.set_len(content.len() as u64).unwrap();
        writer.file.unlock().unwrap();
        thread::sleep(Duration::from_millis(3));
    });
    eprintln!("{reads} reads during 60 updates of two writes each");
    assert!(reads > 0);
}

#[test]
fn a_lock_that_is_never_released_does_not_block_readers() {
    let tree = Tree::new();
    let path = PathBuf::from(claim_path("c", "r", "a.x"));
    let file_path = tree.write(&path, document(7));
    let holder = File::open(&file_path).unwrap();
    // An old modification time, so that no write seems to be in progress.
    holder.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    holder.lock().unwrap();
    let start = Instant::now();
    let read = tree.reader().read_file(&path).unwrap();
    let took = start.elapsed();
    eprintln!("read a locked file in {took:?}");
    assert_eq!(generation_of(&read.metadata), 7);
    assert!(took < Duration::from_secs(2), "took {took:?}");
    assert!(File::open(&file_path).unwrap().try_lock_shared().is_err(), "the lock was held all the while");
}

/// A process that can only read the file never releases its exclusive lock, so the writer writes without the lock, as drivers
/// do.
#[test]
fn a_lock_that_is_never_released_on_a_file_with_updates_does_not_block_readers() {
    let tree = Tree::new();
    let path = PathBuf::from(claim_path("c", "r", "a.x"));
    let file_path = tree.write(&path, document(1));
    let holder = File::open(&file_path).unwrap();
    holder.lock().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut writer = Writer::open(&file_path);
            let mut generation = 1;
            while !done.load(Ordering::Acquire) {
                writer.update(generation);
                generation += 1;
                thread::sleep(Duration::from_secs(1));
            }
        });
        let reader = tree.reader();
        let reads: Vec<_> = (0..2).map(|_| reader.read_file(&path)).collect();
        done.store(true, Ordering::Release);
        writing.join().unwrap();
        for read in reads {
            generation_of(&read.unwrap_or_else(|error| panic!("{error}")).metadata);
        }
    });
    assert!(File::open(&file_path).unwrap().try_lock_shared().is_err(), "the lock was held all the while");
}

#[test]
fn a_reader_waits_for_a_writer_that_pauses_within_an_update() {
    let tree = Tree::new();
    let path = PathBuf::from(claim_path("c", "r", "a.x"));
    let file_path = tree.write(&path, document(1));
    let writer = File::options().write(true).open(&file_path).unwrap();
    writer.lock().unwrap();
    let content = document(2);
    writer.write_all_at(&content[..content.len() / 2], 0).unwrap();
    let reader = tree.reader();
    let read = thread::scope(|scope| {
        let reading = scope.spawn(|| reader.read_file(&path));
        // Long after the reader's timeout for the lock.
        thread::sleep(Duration::from_millis(250));
        writer.write_all_at(&content, 0).unwrap();
        writer.unlock().unwrap();
        reading.join().unwrap()
    });
    assert_eq!(generation_of(&read.unwrap().metadata), 2);
}

/// The timeout for locks is for all files together.
#[test]
fn many_locked_files_take_no_longer_than_one() {
    let tree = Tree::new();
    let mut holders = Vec::new();
    for number in 0..100 {
        let mut content = metadata("c", "r", "a.x", &["d"]);
        content.metadata.uid = format!("uid-{number}");
        let file_path = tree.write(claim_path(&format!("c{number}"), "r", "a.x"), file(&content));
        let holder = File::open(&file_path).unwrap();
        holder.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
        holder.lock().unwrap();
        holders.push(holder);
    }
    let start = Instant::now();
    assert_eq!(tree.reader().discover().files.iter().filter(|file| file.content.is_ok()).count(), 100);
    assert!(start.elapsed() < Duration::from_secs(3), "took {:?}", start.elapsed());
}

#[test]
fn a_reader_releases_its_lock() {
    let tree = Tree::new();
    let path = PathBuf::from(claim_path("c", "r", "a.x"));
    let file_path = tree.write(&path, document(7));
    let reader = tree.reader();
    reader.read_file(&path).unwrap();
    assert!(File::open(&file_path).unwrap().try_lock().is_ok());
}
