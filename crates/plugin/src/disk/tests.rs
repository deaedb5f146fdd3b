//! File work on a runtime with one thread, as drivers have it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::*;

/// How long work hangs that nobody lets go on: far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Work that hangs until it is let go on, and says whether it was.
fn hanging() -> (Sender<()>, impl FnOnce() -> bool + Send + 'static) {
    let (go_on, door): (Sender<()>, Receiver<()>) = channel();
    (go_on, move || door.recv_timeout(PATIENCE).is_ok())
}

/// Starts work in a task of its own.
fn start(disk: &Arc<Disk>, work: impl FnOnce() -> bool + Send + 'static) -> JoinHandle<Result<bool, DiskError>> {
    let disk = disk.clone();
    tokio::spawn(async move { disk.run(work).await })
}

/// Lets spawned tasks begin.
async fn let_others_run() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

/// Only a runtime that goes on can let the work go on.
#[tokio::test]
async fn work_that_hangs_does_not_hold_up_the_runtime() {
    let disk = Arc::new(Disk::default());
    for _ in 0..3 {
        let (go_on, work) = hanging();
        let hung = start(&disk, work);
        let_others_run().await;
        go_on.send(()).ok();
        assert!(hung.await.unwrap().unwrap(), "the runtime stood still until the work gave up");
    }
}

#[tokio::test]
async fn the_disk_is_not_trusted_while_work_hangs() {
    let disk = Arc::new(Disk::default());
    let (go_on, work) = hanging();
    let hung = start(&disk, work);
    let_others_run().await;
    // As if any time since the last slow piece of work had passed.
    disk.trust.distrusted_until.store(0, Ordering::Relaxed);
    assert!(!disk.trust.is_given(Instant::now()));
    assert!(disk.run(|| true).await.unwrap(), "other work waits for the one that hangs");
    assert!(!disk.trust.is_given(Instant::now()));
    go_on.send(()).ok();
    assert!(hung.await.unwrap().unwrap(), "the runtime stood still until the work gave up");
}

/// Far more work than there are threads: what hangs holds up nobody but those that come when all threads hang.
#[tokio::test]
async fn a_piece_of_work_has_a_thread_for_itself_and_their_number_is_limited() {
    let disk = Arc::new(Disk::default());
    let (doors, hung): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| hanging()).map(|(go_on, work)| (go_on, start(&disk, work))).unzip();
    let_others_run().await;
    let last = start(&disk, || true);
    let_others_run().await;
    assert!(!last.is_finished(), "there are more threads than there may be");
    doors[7].send(()).ok();
    assert!(last.await.unwrap().unwrap());
    for go_on in doors {
        go_on.send(()).ok();
    }
    for hung in hung {
        assert!(hung.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn work_that_waited_makes_the_disk_distrusted_and_time_makes_it_trusted_again() {
    let disk = Disk::default();
    assert!(disk.trust.is_given(Instant::now()));
    // Not a wait for something: work that takes its time.
    disk.run(|| thread::sleep(WAIT * 10)).await.unwrap();
    assert!(!disk.trust.is_given(Instant::now()));
    assert!(disk.trust.is_given(Instant::now() + DISTRUST * 2));
}

/// Others may have the processor for long. That is no reason to distrust the disk.
#[tokio::test]
async fn work_that_only_takes_long_is_no_reason_for_distrust() {
    let disk = Disk::default();
    let spin = || {
        let begun = Instant::now();
        while begun.elapsed() < WAIT * 10 {
            std::hint::spin_loop();
        }
    };
    disk.run(spin).await.unwrap();
    assert!(disk.trust.is_given(Instant::now()));
}

/// While the disk is well the same thread is used again and again.
#[tokio::test]
async fn a_thread_is_kept_for_the_next_work() {
    let disk = Disk::default();
    let first = disk.run(|| thread::current().id()).await.unwrap();
    assert_ne!(first, thread::current().id());
    for _ in 0..10 {
        assert_eq!(disk.run(|| thread::current().id()).await.unwrap(), first);
    }
}

/// Memory has nothing to wait for. Work that shows otherwise is the last one on this thread for a while.
#[tokio::test]
async fn brief_work_on_files_in_memory_is_done_at_once_unless_it_waited() {
    let here = thread::current().id();
    let disk = Disk::on(Medium::Memory);
    assert_eq!(disk.run_brief(|| thread::current().id()).await.unwrap(), here);
    assert_ne!(disk.run(|| thread::current().id()).await.unwrap(), here, "what may wait for a lock");
    disk.run_brief(|| thread::sleep(WAIT * 10)).await.unwrap();
    assert_ne!(disk.run_brief(|| thread::current().id()).await.unwrap(), here);
    assert_ne!(Disk::default().run_brief(|| thread::current().id()).await.unwrap(), here, "a disk may hang");
    let error = Disk::on(Medium::Memory).run_brief(|| panic!("a bad bit")).await.unwrap_err();
    assert!(matches!(error, DiskError::Panicked(_)), "{error}");
}

/// A panic in file work is an error, whether or not somebody waits for it, and the thread goes on.
#[tokio::test]
async fn a_panic_is_an_error() {
    let disk = Disk::default();
    for _ in 0..2 {
        let error = disk.run(|| panic!("a bad sector")).await.unwrap_err().to_string();
        assert!(error.contains("panicked"), "{error}");
        disk.trust.distrusted_until.store(u64::MAX, Ordering::Relaxed);
    }
    assert!(disk.run(|| true).await.unwrap());
}

#[tokio::test]
async fn work_that_has_begun_is_finished_although_its_caller_has_gone() {
    let disk = Arc::new(Disk::default());
    let (go_on, work) = hanging();
    let (done, finished) = channel();
    let hung = start(&disk, move || work() && done.send(()).is_ok());
    let_others_run().await;
    hung.abort();
    assert!(hung.await.unwrap_err().is_cancelled());
    go_on.send(()).unwrap();
    finished.recv_timeout(PATIENCE).unwrap();
}

thread_local! {
    /// Dropped with its thread.
    static HELD: std::cell::RefCell<Option<Sender<()>>> = const { std::cell::RefCell::new(None) };
}

/// A driver that ends has no threads any more, and does not wait for those that hang.
#[tokio::test]
async fn threads_end_with_the_disk_and_one_that_hangs_does_not_hold_up_the_end() {
    let disk = Arc::new(Disk::default());
    let (held, ended) = channel();
    disk.run(move || HELD.set(Some(held))).await.unwrap();
    let (go_on, work) = hanging();
    let hung = start(&disk, work);
    let_others_run().await;
    hung.abort();
    hung.await.unwrap_err();
    drop(disk);
    assert!(ended.try_recv() == Err(TryRecvError::Empty), "it still hangs");
    go_on.send(()).unwrap();
    assert_eq!(ended.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
}
