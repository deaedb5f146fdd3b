//! Tests of subscriptions that share one instance.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::time::Duration;

use super::*;

const ALL: WatchFlags = WatchFlags::CREATE.union(WatchFlags::DELETE).union(WatchFlags::DELETE_SELF);

/// Describes events: `+a` for a created file, `-a` for a deleted one, `end` for the end of a watch.
fn describe(events: &[Event]) -> Vec<String> {
    let describe = |event: &Event| {
        let name = String::from_utf8(event.name.clone().unwrap_or_default()).unwrap();
        match event.flags {
            flags if flags.contains(ReadFlags::CREATE) => format!("+{name}"),
            flags if flags.contains(ReadFlags::DELETE) => format!("-{name}"),
            flags if flags.contains(ReadFlags::IGNORED) => "end".to_owned(),
            flags => format!("{flags:?}"),
        }
    };
    events.iter().map(describe).collect()
}

fn drained(subscription: &Subscription) -> Vec<String> {
    describe(&subscription.drain().unwrap())
}

#[test]
fn two_subscriptions_to_one_directory_get_the_events_each_asked_for() {
    let instance = Instance::open().unwrap();
    let first = Arc::clone(&instance).subscribe();
    let second = Arc::clone(&instance).subscribe();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a");
    first.watch(directory.path(), WatchFlags::CREATE).unwrap();
    fs::write(&file, "").unwrap();
    // The second gets no earlier events, though the kernel has one watch for both.
    let one = second.watch(directory.path(), WatchFlags::DELETE).unwrap();
    assert_eq!(instance.lock().watches.len(), 1);
    fs::remove_file(&file).unwrap();
    let events = second.drain().unwrap();
    assert_eq!((describe(&events), events[0].watch), (vec!["-a".to_owned()], Some(one)));
    assert_eq!(drained(&first), ["+a"]);
    assert_eq!(drained(&first), [""; 0], "an event is delivered once");
    // Dropping one subscription leaves the other's watch alone.
    drop(first);
    fs::write(&file, "").unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(drained(&second), ["-a"]);
}

#[test]
fn watching_a_directory_twice_gives_one_watch_with_all_flags() {
    let subscription = subscribe().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let first = subscription.watch(directory.path(), WatchFlags::CREATE).unwrap();
    assert_eq!(subscription.watch(&directory.path().join("."), WatchFlags::DELETE).unwrap(), first);
    fs::write(directory.path().join("a"), "").unwrap();
    fs::remove_file(directory.path().join("a")).unwrap();
    assert_eq!(drained(&subscription), ["+a", "-a"]);
}

#[test]
fn a_directory_that_no_subscription_watches_is_not_watched_by_the_kernel() {
    let instance = Instance::open().unwrap();
    let first = Arc::clone(&instance).subscribe();
    let second = Arc::clone(&instance).subscribe();
    let directory = tempfile::tempdir().unwrap();
    first.watch(directory.path(), ALL).unwrap();
    let watch = second.watch(directory.path(), ALL).unwrap();
    let descriptor = *instance.lock().watches.keys().next().unwrap();
    drop(first);
    assert_eq!(instance.lock().watches[&descriptor].len(), 1);
    drop(second);
    assert!(instance.lock().watches.is_empty() && instance.lock().queues.is_empty());
    assert_eq!(inotify::remove_watch(&instance.file, descriptor), Err(Errno::INVAL));
    // A new watch gets no event of the old one.
    let third = instance.subscribe();
    assert_ne!(third.watch(directory.path(), ALL).unwrap(), watch);
    assert_eq!(drained(&third), [""; 0]);
}

#[test]
fn removing_a_directory_ends_all_its_watches() {
    let subscriptions = [subscribe().unwrap(), subscribe().unwrap()];
    let base = tempfile::tempdir().unwrap();
    let directory = base.path().join("a");
    fs::create_dir(&directory).unwrap();
    let old = subscriptions.each_ref().map(|subscription| subscription.watch(&directory, WatchFlags::CREATE).unwrap());
    fs::remove_dir(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    for (subscription, old) in subscriptions.iter().zip(old) {
        assert_ne!(subscription.watch(&directory, WatchFlags::CREATE).unwrap(), old);
        let events = subscription.drain().unwrap();
        assert_eq!((describe(&events), events[0].watch), (vec!["end".to_owned()], Some(old)));
    }
    fs::write(directory.join("b"), "").unwrap();
    assert_eq!(subscriptions.each_ref().map(drained), [["+b"], ["+b"]]);
}

#[test]
fn drain_returns_all_earlier_events_while_others_read() {
    let instance = Instance::open().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let subscription = Arc::clone(&instance).subscribe();
                let directory = tempfile::tempdir().unwrap();
                subscription.watch(directory.path(), ALL).unwrap();
                for number in 0..500 {
                    fs::write(directory.path().join(number.to_string()), "").unwrap();
                    assert_eq!(drained(&subscription), [format!("+{number}")]);
                }
            });
        }
    });
}

#[tokio::test]
async fn waiting_subscriptions_are_woken_on_any_runtime() {
    let subscription = subscribe().unwrap();
    let directory = tempfile::tempdir().unwrap();
    subscription.watch(directory.path(), ALL).unwrap();
    // No event yet; the wait can be cancelled.
    tokio::time::timeout(Duration::from_millis(1), subscription.next()).await.unwrap_err();
    let file = directory.path().join("a");
    std::thread::spawn(move || fs::write(file, "").unwrap());
    assert_eq!(describe(&subscription.next().await.unwrap()), ["+a"]);
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        fs::remove_file(directory.path().join("a")).unwrap();
        describe(&runtime.block_on(subscription.next()).unwrap())
    });
    assert_eq!(elsewhere.join().unwrap(), ["-a"]);
}

#[test]
fn many_directories_and_subscriptions_need_one_instance() {
    let base = tempfile::tempdir().unwrap();
    let all: Vec<_> = (0..300)
        .map(|number| {
            let directory = base.path().join(number.to_string());
            fs::create_dir(&directory).unwrap();
            let subscription = subscribe().unwrap();
            subscription.watch(&directory, ALL).unwrap();
            (subscription, directory)
        })
        .collect();
    for (number, (_, directory)) in all.iter().enumerate() {
        fs::write(directory.join(format!("file-{number}")), "").unwrap();
    }
    for (number, (subscription, _)) in all.iter().enumerate() {
        assert_eq!(drained(subscription), [format!("+file-{number}")]);
    }
}

#[test]
fn an_overflow_is_reported_once() {
    let instance = Instance::open().unwrap();
    let subscription = Arc::clone(&instance).subscribe();
    let directory = tempfile::tempdir().unwrap();
    subscription.watch(directory.path(), ALL).unwrap();
    let descriptor = *instance.lock().watches.keys().next().unwrap();
    // First the kernel's overflow, then an overflow of the subscription's own queue.
    instance.lock().deliver(-1, ReadFlags::QUEUE_OVERFLOW, None);
    assert_eq!(subscription.drain().unwrap()[0].watch, None);
    for event in 0..MAX_QUEUED_EVENTS + 10 {
        instance.lock().deliver(descriptor, ReadFlags::CREATE, Some(event.to_string().as_bytes()));
    }
    let events = subscription.drain().unwrap();
    assert_eq!(events.len(), MAX_QUEUED_EVENTS + 1);
    assert_eq!(events.last().unwrap().flags, ReadFlags::QUEUE_OVERFLOW);
}
