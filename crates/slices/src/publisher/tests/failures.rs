//! What is said of publishing that fails, and for how long.

use super::*;
use crate::overview::PoolOverview;

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
    let overview = publisher.overview.clone();
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
    // A warning comes with the first try after it is due, and tries are at random moments, 45 s apart at most.
    let due = [20, 40, 80, 160].map(Duration::from_secs);
    let is_due = |(gap, due): (&Duration, &Duration)| gap >= due && *gap <= *due + Duration::from_secs(46);
    assert!(gaps.len() == 4 && gaps.iter().zip(&due).all(is_due), "intervals grow: {gaps:?}");
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

/// The pages of a driver show what is published and why not, within a limit.
#[tokio::test(start_paused = true)]
async fn the_overview_has_the_pools_with_their_slices_and_the_first_devices() {
    let server = Arc::new(Server::default());
    let publisher = Running::start(&server);
    assert_eq!(publisher.overview.pools(10, 10), (vec![], 0));
    let gpus = (0..200).map(|index| PublishedDevice::new(format!("gpu-{index}")));
    let gpus = gpus.fold(Pool::default(), Pool::device);
    let nics = Pool::default().device(PublishedDevice::new("nic-0"));
    let resources = DriverResources::default().pool("a", gpus.clone()).pool("b", nics);
    publisher.handle.publish(resources.clone()).unwrap();
    publisher.until(PublishStatus::Published).await;
    let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
    let a = PoolOverview {
        name: "a".to_owned(),
        slices: 2,
        generation: 1,
        devices: 200,
        device_names: names(&["gpu-0", "gpu-1"]),
        problem: None,
    };
    let b = PoolOverview { name: "b".to_owned(), slices: 1, devices: 1, device_names: vec![], ..a.clone() };
    assert_eq!(publisher.overview.pools(10, 2), (vec![a.clone(), b], 2));
    assert_eq!(publisher.overview.pools(1, 2), (vec![a], 2));

    server.refuses.store(true, Ordering::Relaxed);
    publisher.handle.publish(resources.pool("b", gpus)).unwrap();
    let mut status = publisher.handle.status();
    status.wait_for(|status| matches!(status, PublishStatus::Failing(_))).await.unwrap();
    drop(status);
    let (pools, _) = publisher.overview.pools(10, 0);
    let problems: Vec<_> = pools.iter().map(|pool| (pool.slices, pool.devices, pool.problem)).collect();
    assert_eq!(problems, [(2, 200, None), (1, 200, Some("the API server does not accept the driver's credentials"))]);
}
