//! What is said of publishing that fails, and for how long.

use super::*;
use crate::overview::Overview;

/// Records the warnings: the time since the start and the number of tries.
#[derive(Default)]
struct Warnings(Mutex<Vec<(Duration, u32)>>);

impl Observer for Warnings {
    fn still_failing(&self, error: &PublishError, _since: SystemTime, tries: u32) {
        assert!(error.to_string().contains("answered 401"), "{error}");
        let mut warnings = self.0.lock().unwrap();
        let start = START.with(|start| *start);
        warnings.push((start.elapsed(), tries));
    }
}

thread_local! {
    /// The start of the test, which has one thread.
    static START: Instant = Instant::now();
}

impl Warnings {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_the_token_is_warned_about_in_growing_intervals_until_it_accepts_it() {
    START.with(|_| ());
    let server = Arc::new(Server::default());
    server.refuses.store(true, Ordering::Relaxed);
    let warnings = Arc::new(Warnings::default());
    let publisher = Running::start_with(&server, warnings.clone());
    let pending = publisher.pending.clone();
    let overview = Overview::of(pending);
    assert_eq!(overview.never_published(), None, "nothing is to be published");
    let resources = DriverResources::default().pool("pool", tainted());
    publisher.handle.publish(resources).unwrap();
    assert_eq!(overview.never_published().unwrap(), "resources are not published yet");

    while warnings.len() < 5 {
        sleep(Duration::from_secs(1)).await;
    }
    let seen = warnings.0.lock().unwrap().clone();
    let gaps: Vec<Duration> = seen.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(seen[0].0 >= Duration::from_secs(10), "{seen:?}");
    assert!(gaps.windows(2).all(|pair| pair[1] > pair[0]), "intervals grow: {gaps:?}");
    assert!(seen.windows(2).all(|pair| pair[1].1 > pair[0].1), "tries are counted: {seen:?}");
    let reason = overview.never_published().unwrap();
    assert!(reason.starts_with("resources are not published after "), "{reason}");
    assert!(reason.contains(" tries since 2"), "{reason}");
    assert!(reason.ends_with(": the API server does not accept the driver's credentials, see the log"), "{reason}");
    assert!(overview.is_pending());

    server.refuses.store(false, Ordering::Relaxed);
    publisher.until(PublishStatus::Published).await;
    assert_eq!((overview.never_published(), overview.is_pending()), (None, false));

    // What was published once stays published, and a new outage is counted from one.
    server.refuses.store(true, Ordering::Relaxed);
    let before = warnings.len();
    let other = Pool::default().device(PublishedDevice::new("gpu-1"));
    publisher.handle.publish(DriverResources::default().pool("pool", other)).unwrap();
    while warnings.len() == before {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(warnings.0.lock().unwrap().last().unwrap().1 < seen[4].1);
    assert_eq!((overview.never_published(), overview.is_pending()), (None, true));
}
