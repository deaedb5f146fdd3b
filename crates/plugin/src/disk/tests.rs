//! Tests of file work on a runtime with one thread, as most drivers use.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::*;

/// How long hanging work waits before it fails: far longer than any test takes.
const HANG_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns work that hangs until it is resumed, and returns whether it was.
fn hanging() -> (Sender<()>, impl FnOnce() -> bool + Send + 'static) {
    let (resume, resumed): (Sender<()>, Receiver<()>) = channel();
    (resume, move || resumed.recv_timeout(HANG_TIMEOUT).is_ok())
}

/// Starts work in its own task.
fn start(disk: &Arc<Disk>, work: impl FnOnce() -> bool + Send + 'static) -> JoinHandle<Result<bool, DiskError>> {
    let disk = disk.clone();
    tokio::spawn(async move { disk.run(work).await })
}

/// Lets spawned tasks start.
async fn run_other_tasks() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

/// Only a runtime that is not blocked can resume the work.
#[tokio::test]
async fn work_that_hangs_does_not_block_the_runtime() {
    let disk = Arc::new(Disk::default());
    for _ in 0..3 {
        let (resume, work) = hanging();
        let hung = start(&disk, work);
        run_other_tasks().await;
        resume.send(()).ok();
        assert!(hung.await.unwrap().unwrap(), "the runtime was blocked until the work timed out");
    }
}

#[tokio::test]
async fn the_disk_counts_as_slow_while_work_hangs() {
    let disk = Arc::new(Disk::default());
    let (resume, work) = hanging();
    let hung = start(&disk, work);
    run_other_tasks().await;
    // As if the slow period of the last job had passed.
    disk.latency.slow_until.store(0, Ordering::Relaxed);
    assert!(!disk.latency.is_fast(Instant::now()));
    assert!(disk.run(|| true).await.unwrap(), "other work waits for the job that hangs");
    assert!(!disk.latency.is_fast(Instant::now()));
    resume.send(()).ok();
    assert!(hung.await.unwrap().unwrap(), "the runtime was blocked until the work timed out");
}

/// More jobs than threads: a job that hangs delays others only if all threads hang.
#[tokio::test]
async fn each_job_has_its_own_thread_and_the_number_of_threads_is_limited() {
    let disk = Arc::new(Disk::default());
    let (resumes, hung): (Vec<_>, Vec<_>) =
        (0..MAX_THREADS).map(|_| hanging()).map(|(resume, work)| (resume, start(&disk, work))).unzip();
    run_other_tasks().await;
    let last = start(&disk, || true);
    run_other_tasks().await;
    assert!(!last.is_finished(), "the number of threads is not limited");
    resumes[7].send(()).ok();
    assert!(last.await.unwrap().unwrap());
    for resume in resumes {
        resume.send(()).ok();
    }
    for hung in hung {
        assert!(hung.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn the_disk_counts_as_slow_for_a_while_after_work_that_blocked() {
    let disk = Disk::default();
    assert!(disk.latency.is_fast(Instant::now()));
    // Blocks, as a slow disk does.
    disk.run(|| thread::sleep(MAX_BLOCKING_WAIT * 10)).await.unwrap();
    assert!(!disk.latency.is_fast(Instant::now()));
    assert!(disk.latency.is_fast(Instant::now() + SLOW_PERIOD * 2));
}

/// Other processes may use the CPU for long, which does not make the disk slow.
#[tokio::test]
async fn work_that_takes_long_without_blocking_does_not_make_the_disk_slow() {
    let disk = Disk::default();
    let spin = || {
        let started = Instant::now();
        while started.elapsed() < MAX_BLOCKING_WAIT * 10 {
            std::hint::spin_loop();
        }
    };
    disk.run(spin).await.unwrap();
    assert!(disk.latency.is_fast(Instant::now()));
}

/// While the disk is fast, the same thread is used again and again.
#[tokio::test]
async fn a_thread_is_reused_for_the_next_job() {
    let disk = Disk::default();
    let first = disk.run(|| thread::current().id()).await.unwrap();
    assert_ne!(first, thread::current().id());
    for _ in 0..10 {
        assert_eq!(disk.run(|| thread::current().id()).await.unwrap(), first);
    }
}

/// Files in memory do not block. After work that blocked twice nevertheless, work runs on other threads for a while.
#[tokio::test]
async fn brief_work_on_files_in_memory_runs_on_the_calling_thread_unless_it_blocked() {
    let here = thread::current().id();
    let disk = Disk::on(Medium::Memory);
    assert_eq!(disk.run_brief(|| thread::current().id()).await.unwrap(), here);
    assert_ne!(disk.run(|| thread::current().id()).await.unwrap(), here, "work that may wait for a lock");
    disk.latency.examined_until.store(0, Ordering::Relaxed);
    disk.run_brief(|| thread::sleep(MAX_BLOCKING_WAIT * 10)).await.unwrap();
    assert!(disk.latency.is_fast(Instant::now()), "it may have been the CPU that was busy");
    disk.run_brief(|| thread::sleep(MAX_BLOCKING_WAIT * 10)).await.unwrap();
    assert_ne!(disk.run_brief(|| thread::current().id()).await.unwrap(), here);
    assert_ne!(Disk::default().run_brief(|| thread::current().id()).await.unwrap(), here, "a disk may hang");
    let error = Disk::on(Medium::Memory).run_brief(|| panic!("a bad bit")).await.unwrap_err();
    assert!(matches!(error, DiskError::Panicked(_)), "{error}");
}

/// Counts as many calls as make brief work queue.
fn concurrent_calls(disk: &Disk) -> Vec<CallInFlight<'_>> {
    (0..CONCURRENT_CALLS).map(|_| disk.count_call()).collect()
}

/// Starts brief work in its own task.
fn start_brief(disk: &Arc<Disk>, work: impl FnOnce() -> bool + Send + 'static) -> JoinHandle<Result<bool, DiskError>> {
    let disk = disk.clone();
    tokio::spawn(async move { disk.run_brief(work).await })
}

/// Usually on one thread. On a busy machine, where that thread may not run for a while, others help.
#[tokio::test]
async fn brief_work_of_concurrent_calls_runs_on_other_threads_in_turn() {
    let here = thread::current().id();
    for medium in [Medium::Memory, Medium::Disk] {
        let disk = Arc::new(Disk::on(medium));
        let calls = concurrent_calls(&disk);
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let started: Vec<_> = (0..50)
            .map(|number| {
                let order = order.clone();
                start_brief(&disk, move || {
                    order.lock().unwrap().push((number, thread::current().id()));
                    true
                })
            })
            .collect();
        for started in started {
            assert!(started.await.unwrap().unwrap());
        }
        let order = std::mem::take(&mut *order.lock().unwrap());
        assert_eq!(order.len(), 50);
        for (_, thread) in &order {
            assert_ne!(*thread, here);
            let own = order.iter().filter(|(_, other)| other == thread).map(|(number, _)| *number);
            assert!(own.is_sorted(), "{order:?}");
        }
        drop(calls);
        let last = disk.run_brief(|| thread::current().id()).await.unwrap();
        assert_eq!(last == here, medium == Medium::Memory, "no other call is in flight");
    }
}

#[tokio::test]
async fn queued_work_does_not_wait_for_a_piece_that_hangs_and_a_panic_is_its_own() {
    for medium in [Medium::Memory, Medium::Disk] {
        let disk = Arc::new(Disk::on(medium));
        let _calls = concurrent_calls(&disk);
        let (resumes, hung): (Vec<_>, Vec<_>) =
            (0..3).map(|_| hanging()).map(|(resume, work)| (resume, start_brief(&disk, work))).unzip();
        run_other_tasks().await;
        let panicked = start_brief(&disk, || panic!("a bad bit"));
        let last = start_brief(&disk, || true);
        assert!(last.await.unwrap().unwrap(), "it waits for the work that hangs");
        let error = panicked.await.unwrap().unwrap_err();
        assert!(matches!(error, DiskError::Panicked(_)), "{error}");
        resumes.iter().for_each(|resume| resume.send(()).unwrap());
        for hung in hung {
            assert!(hung.await.unwrap().unwrap(), "it was waited for until it timed out");
        }
    }
}

/// While a thread hangs, an idle one is woken for each piece; afterwards a busy one takes the next piece again.
#[tokio::test]
async fn a_stall_lasts_until_the_work_that_hangs_has_ended() {
    let disk = Arc::new(Disk::on(Medium::Memory));
    let _calls = concurrent_calls(&disk);
    let (resume, work) = hanging();
    let hung = start_brief(&disk, work);
    run_other_tasks().await;
    for _ in 0..3 {
        assert!(disk.run_brief(|| true).await.unwrap());
        assert!(disk.queue.has_stalled());
    }
    resume.send(()).unwrap();
    assert!(hung.await.unwrap().unwrap());
    while disk.queue.has_stalled() {
        // The threads look at the queue once more before they wait or end.
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn queued_work_has_no_more_threads_than_other_work() {
    let disk = Arc::new(Disk::on(Medium::Memory));
    let _calls = concurrent_calls(&disk);
    let (report, reported) = channel();
    let (resumes, hung): (Vec<_>, Vec<_>) = (0..MAX_THREADS + 1)
        .map(|_| {
            let (resume, work) = hanging();
            let report = report.clone();
            (resume, start_brief(&disk, move || report.send(()).is_ok() && work()))
        })
        .unzip();
    let mut running = 0;
    while running < MAX_THREADS {
        // The runtime's thread must be free: it is what checks the progress.
        tokio::time::sleep(MAX_BLOCKING_WAIT).await;
        running += reported.try_iter().count();
    }
    assert_eq!((running, disk.threads.available_permits()), (MAX_THREADS, 0));
    let last = start(&disk, || true);
    run_other_tasks().await;
    assert!(!last.is_finished(), "the number of threads is not limited");
    resumes.iter().for_each(|resume| resume.send(()).unwrap());
    for hung in hung {
        assert!(hung.await.unwrap().unwrap());
    }
    assert!(last.await.unwrap().unwrap());
}

/// Sends when the thread that holds it ends.
struct EndOfThread(Sender<()>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        self.0.send(()).ok();
    }
}

thread_local! {
    static END: std::cell::RefCell<Option<EndOfThread>> = const { std::cell::RefCell::new(None) };
}

#[tokio::test]
async fn of_the_threads_of_queued_work_one_stays_until_the_disk_is_dropped() {
    let disk = Arc::new(Disk::on(Medium::Memory));
    let calls = concurrent_calls(&disk);
    let (end, ended) = channel();
    let (resumes, hung): (Vec<_>, Vec<_>) = (0..4)
        .map(|_| {
            let (resume, work) = hanging();
            let end = end.clone();
            let work = move || {
                END.set(Some(EndOfThread(end)));
                work()
            };
            (resume, start_brief(&disk, work))
        })
        .unzip();
    run_other_tasks().await;
    assert!(start_brief(&disk, || true).await.unwrap().unwrap(), "by the fifth thread");
    resumes.iter().for_each(|resume| resume.send(()).unwrap());
    for hung in hung {
        assert!(hung.await.unwrap().unwrap());
    }
    drop(end);
    for _ in 0..3 {
        ended.recv_timeout(HANG_TIMEOUT).expect("more than one thread is idle");
    }
    drop(calls);
    drop(disk);
    // The last one has the end too, unless it is the fifth, which has none.
    while ended.recv_timeout(HANG_TIMEOUT) != Err(RecvTimeoutError::Disconnected) {}
}

/// A panic in file work is an error, whether a thread or a task waits for it, and the thread survives.
#[tokio::test]
async fn a_panic_is_an_error() {
    let disk = Disk::default();
    for _ in 0..2 {
        let error = disk.run(|| panic!("a bad sector")).await.unwrap_err().to_string();
        assert!(error.contains("panicked"), "{error}");
        disk.latency.slow_until.store(u64::MAX, Ordering::Relaxed);
    }
    assert!(disk.run(|| true).await.unwrap());
}

#[tokio::test]
async fn work_that_has_started_completes_although_its_caller_is_gone() {
    let disk = Arc::new(Disk::default());
    let (resume, work) = hanging();
    let (done, finished) = channel();
    let hung = start(&disk, move || work() && done.send(()).is_ok());
    run_other_tasks().await;
    hung.abort();
    assert!(hung.await.unwrap_err().is_cancelled());
    resume.send(()).unwrap();
    finished.recv_timeout(HANG_TIMEOUT).unwrap();
}

thread_local! {
    /// Dropped with its thread.
    static HELD: std::cell::RefCell<Option<Sender<()>>> = const { std::cell::RefCell::new(None) };
}

/// A driver that stops leaves no idle threads, and does not wait for those that hang.
#[tokio::test]
async fn threads_end_with_the_disk_and_one_that_hangs_does_not_delay_that() {
    let disk = Arc::new(Disk::default());
    let (held, ended) = channel();
    disk.run(move || HELD.set(Some(held))).await.unwrap();
    let (resume, work) = hanging();
    let hung = start(&disk, work);
    run_other_tasks().await;
    hung.abort();
    hung.await.unwrap_err();
    drop(disk);
    assert!(ended.try_recv() == Err(TryRecvError::Empty), "it still hangs");
    resume.send(()).unwrap();
    assert_eq!(ended.recv_timeout(HANG_TIMEOUT), Err(RecvTimeoutError::Disconnected));
}
