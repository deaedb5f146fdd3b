//! Several who watch, on one instance.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::time::Duration;

use super::*;

const ALL: WatchFlags = WatchFlags::CREATE.union(WatchFlags::DELETE).union(WatchFlags::DELETE_SELF);

/// What happened, by name: `+a` and `-a`, `end` of a watch.
fn told(events: &[Event]) -> Vec<String> {
    let told = |event: &Event| {
        let name = String::from_utf8(event.name.clone().unwrap_or_default()).unwrap();
        match event.flags {
            flags if flags.contains(ReadFlags::CREATE) => format!("+{name}"),
            flags if flags.contains(ReadFlags::DELETE) => format!("-{name}"),
            flags if flags.contains(ReadFlags::IGNORED) => "end".to_owned(),
            flags => format!("{flags:?}"),
        }
    };
    events.iter().map(told).collect()
}

fn drained(subscription: &Subscription) -> Vec<String> {
    told(&subscription.drain().unwrap())
}

#[test]
fn two_who_watch_one_directory_get_what_each_wants() {
    let instance = Instance::open().unwrap();
    let (first, second) = (Arc::clone(&instance).subscribe(), Arc::clone(&instance).subscribe());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a");
    first.watch(directory.path(), WatchFlags::CREATE).unwrap();
    fs::write(&file, "").unwrap();
    // What was before is not for the second, though the kernel has one watch for both.
    let one = second.watch(directory.path(), WatchFlags::DELETE).unwrap();
    assert_eq!(instance.lock().watches.len(), 1);
    fs::remove_file(&file).unwrap();
    let events = second.drain().unwrap();
    assert_eq!((told(&events), events[0].watch), (vec!["-a".to_owned()], Some(one)));
    assert_eq!(drained(&first), ["+a"]);
    assert_eq!(drained(&first), [""; 0], "it is taken once");
    // One leaves; the other stays.
    drop(first);
    fs::write(&file, "").unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(drained(&second), ["-a"]);
}

#[test]
fn one_who_watches_a_directory_twice_has_one_watch_with_all_flags() {
    let subscription = subscribe().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let first = subscription.watch(directory.path(), WatchFlags::CREATE).unwrap();
    assert_eq!(subscription.watch(&directory.path().join("."), WatchFlags::DELETE).unwrap(), first);
    fs::write(directory.path().join("a"), "").unwrap();
    fs::remove_file(directory.path().join("a")).unwrap();
    assert_eq!(drained(&subscription), ["+a", "-a"]);
}

#[test]
fn what_nobody_watches_any_more_is_not_watched_by_the_kernel() {
    let instance = Instance::open().unwrap();
    let (first, second) = (Arc::clone(&instance).subscribe(), Arc::clone(&instance).subscribe());
    let directory = tempfile::tempdir().unwrap();
    first.watch(directory.path(), ALL).unwrap();
    let watch = second.watch(directory.path(), ALL).unwrap();
    let number = *instance.lock().watches.keys().next().unwrap();
    drop(first);
    assert_eq!(instance.lock().watches[&number].len(), 1);
    drop(second);
    assert!(instance.lock().watches.is_empty() && instance.lock().inboxes.is_empty());
    assert_eq!(inotify::remove_watch(&instance.file, number), Err(Errno::INVAL));
    // Nothing of the old watch comes to a new one.
    let third = instance.subscribe();
    assert_ne!(third.watch(directory.path(), ALL).unwrap(), watch);
    assert_eq!(drained(&third), [""; 0]);
}

#[test]
fn the_end_of_a_directory_is_the_end_of_all_its_watches() {
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
        assert_eq!((told(&events), events[0].watch), (vec!["end".to_owned()], Some(old)));
    }
    fs::write(directory.join("b"), "").unwrap();
    assert_eq!(subscriptions.each_ref().map(drained), [["+b"], ["+b"]]);
}

#[test]
fn all_that_happened_before_is_seen_while_others_read_too() {
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
async fn those_who_wait_are_woken_whatever_their_runtime() {
    let subscription = subscribe().unwrap();
    let directory = tempfile::tempdir().unwrap();
    subscription.watch(directory.path(), ALL).unwrap();
    // Nothing yet; the wait can be given up.
    tokio::time::timeout(Duration::from_millis(1), subscription.next()).await.unwrap_err();
    let file = directory.path().join("a");
    std::thread::spawn(move || fs::write(file, "").unwrap());
    assert_eq!(told(&subscription.next().await.unwrap()), ["+a"]);
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        fs::remove_file(directory.path().join("a")).unwrap();
        told(&runtime.block_on(subscription.next()).unwrap())
    });
    assert_eq!(elsewhere.join().unwrap(), ["-a"]);
}

#[test]
fn many_directories_and_many_who_watch_need_one_instance() {
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
fn lost_events_are_told_once() {
    let instance = Instance::open().unwrap();
    let subscription = Arc::clone(&instance).subscribe();
    let directory = tempfile::tempdir().unwrap();
    subscription.watch(directory.path(), ALL).unwrap();
    let number = *instance.lock().watches.keys().next().unwrap();
    // As the kernel tells it, and because nobody took what came.
    instance.lock().deliver(-1, ReadFlags::QUEUE_OVERFLOW, None);
    assert_eq!(subscription.drain().unwrap()[0].watch, None);
    for event in 0..QUEUE + 10 {
        instance.lock().deliver(number, ReadFlags::CREATE, Some(event.to_string().as_bytes()));
    }
    let events = subscription.drain().unwrap();
    assert_eq!(events.len(), QUEUE + 1);
    assert_eq!(events.last().unwrap().flags, ReadFlags::QUEUE_OVERFLOW);
}
