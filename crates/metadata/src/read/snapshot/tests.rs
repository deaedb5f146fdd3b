use std::cell::Cell;

use super::*;

/// A file whose content changes after a number of reads.
struct Changing {
    contents: [&'static [u8]; 2],
    changes_after: usize,
    reads: Cell<usize>,
}

impl Changing {
    fn new(old: &'static [u8], new: &'static [u8], changes_after: usize) -> Self {
        Self { contents: [old, new], changes_after, reads: Cell::new(0) }
    }
}

/// Reads a few bytes at a time, so that a write can happen in the middle of the file.
fn read_short(content: &[u8], buffer: &mut [u8], offset: u64) -> usize {
    let rest = content.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
    let count = rest.len().min(buffer.len()).min(4);
    buffer[..count].copy_from_slice(&rest[..count]);
    count
}

impl Source for Changing {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.contents[usize::from(self.reads.get() >= self.changes_after)];
        self.reads.set(self.reads.get() + 1);
        Ok(read_short(content, buffer, offset))
    }

    fn lock(&self, _: Instant) -> SharedLock<'_> {
        SharedLock::Unsupported
    }

    fn finish_write(&self) {}

    fn stamp(&self) -> io::Result<(Stamp, Duration)> {
        unreachable!("only a locked file needs its stamp")
    }
}

#[test]
fn a_write_between_any_two_reads_never_gives_a_mix() {
    let old: &[u8] = b"old old old old";
    let new: &[u8] = b"new new new new, and longer";
    for changes_after in 0..24 {
        let content =
            read_consistent(&Changing::new(old, new, changes_after), old.len() as u64, 1000, Deadlines::default())
                .unwrap();
        assert!(content == old || content == new, "{}", String::from_utf8_lossy(&content));
    }
}

#[test]
fn a_file_that_has_grown_beyond_the_limit_is_too_large() {
    let source = Changing::new(b"", b"0123456789", 0);
    assert!(matches!(read_consistent(&source, 0, 9, Deadlines::default()), Err(SnapshotError::TooLarge)));
    assert_eq!(read_consistent(&source, 0, 10, Deadlines::default()).unwrap(), b"0123456789");
}

/// A file that another process never unlocks, and a clock that advances only while the reader sleeps.
struct Locked {
    start: Instant,
    elapsed: Cell<Duration>,
    /// The interval between updates.
    period: Duration,
    /// Whether the file system's clock is comparable with the reader's.
    has_age: bool,
}

impl Locked {
    fn new(period: Duration) -> Self {
        Self { start: Instant::now(), elapsed: Cell::new(Duration::ZERO), period, has_age: true }
    }

    fn deadlines(&self) -> Deadlines {
        Deadlines::from(self.start)
    }

    /// Returns the number of updates so far.
    fn updates(&self) -> u32 {
        u32::try_from(self.elapsed.get().as_nanos() / self.period.as_nanos()).unwrap()
    }

    fn read(&self, deadlines: Deadlines) -> Result<(), SnapshotError> {
        read_consistent(self, 4, 10, deadlines).map(|content| assert_eq!(content.len(), 4))
    }
}

impl Source for Locked {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(read_short(&self.updates().to_be_bytes(), buffer, offset))
    }

    fn lock(&self, _: Instant) -> SharedLock<'_> {
        SharedLock::Refused
    }

    fn finish_write(&self) {}

    fn stamp(&self) -> io::Result<(Stamp, Duration)> {
        let last = self.period * self.updates();
        let stamp = Stamp { size: 4, modified: (0, i64::from(self.updates())), changed: (0, 0) };
        Ok((stamp, if self.has_age { self.elapsed.get() - last } else { Duration::ZERO }))
    }

    fn now(&self) -> Instant {
        self.start + self.elapsed.get()
    }

    fn sleep(&self, time: Duration) {
        self.elapsed.set(self.elapsed.get() + time);
    }
}

#[test]
fn a_locked_file_is_read_if_there_was_no_write_for_a_second() {
    for has_age in [true, false] {
        let source = Locked { has_age, ..Locked::new(Duration::from_secs(3600)) };
        source.read(source.deadlines()).unwrap();
        let waited = source.elapsed.get();
        assert!(waited >= MAX_QUIET && waited < MAX_QUIET * 2, "{waited:?}");
    }
}

#[test]
fn a_locked_file_with_an_old_modification_time_is_read_at_once() {
    let source = Locked::new(Duration::from_secs(3600));
    source.elapsed.set(Duration::from_secs(60));
    let deadlines = Deadlines::from(source.now());
    source.read(deadlines).unwrap();
    assert_eq!(source.elapsed.get(), Duration::from_secs(60));
}

#[test]
fn a_locked_file_with_frequent_updates_is_read_before_the_deadline() {
    for period in [3000, 1000, 500, 100, 50] {
        for has_age in [true, false] {
            let source = Locked { has_age, ..Locked::new(Duration::from_millis(period)) };
            source.read(source.deadlines()).unwrap_or_else(|error| panic!("every {period} ms: {error:?}"));
            assert!(source.elapsed.get() <= REREAD_TIMEOUT + Duration::from_millis(10), "{:?}", source.elapsed.get());
        }
    }
}

#[test]
fn a_locked_file_with_continuous_updates_is_an_error() {
    let source = Locked::new(Duration::from_millis(5));
    assert!(matches!(source.read(source.deadlines()), Err(SnapshotError::Changing)));
    let without_time = Deadlines { reread_until: source.now(), ..source.deadlines() };
    assert!(matches!(source.read(without_time), Err(SnapshotError::Changing)));
}

/// Reads a file during writes, often enough to meet some in progress.
#[test]
fn a_read_after_waiting_for_a_write_is_complete() {
    const SIZE: usize = 16 * 1024 * 1024;
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = file.reopen().unwrap();
    let reader = File::open(file.path()).unwrap();
    let byte_at = |offset: usize| {
        let mut byte = [0];
        FileExt::read_at(&reader, &mut byte, offset as u64).unwrap();
        byte[0]
    };
    writer.write_all_at(&vec![0; SIZE], 0).unwrap();
    let mut in_the_middle = 0;
    for generation in 1..=20_u8 {
        let content = vec![generation; SIZE];
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| writer.write_all_at(&content, 0).unwrap());
            while !writing.is_finished() && byte_at(0) != generation {
                std::hint::spin_loop();
            }
            in_the_middle += usize::from(byte_at(SIZE - 1) != generation);
            reader.finish_write();
            assert_eq!(byte_at(SIZE - 1), generation);
        });
    }
    eprintln!("met {in_the_middle} of 20 writes in progress");
}
