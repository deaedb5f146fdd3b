//! Changes of single devices.

use super::*;

fn gpu(number: usize, revision: i64) -> PublishedDevice {
    PublishedDevice::new(format!("gpu-{number}")).attribute("revision", revision)
}

fn gpus(count: usize) -> Pool {
    Pool::default().devices((0..count).map(|number| gpu(number, 0)))
}

/// Returns the names and revisions of the stored devices.
fn devices(server: &Server) -> Vec<(String, i64)> {
    let mut slices = server.state.lock().unwrap().slices.clone();
    slices.sort_by_key(|slice| slice["metadata"]["name"].as_str().unwrap().to_owned());
    let devices = slices.iter().flat_map(|slice| slice["spec"]["devices"].as_array().unwrap());
    devices
        .map(|device| {
            let revision = device["attributes"]["revision"]["int"].as_i64().unwrap();
            (device["name"].as_str().unwrap().to_owned(), revision)
        })
        .collect()
}

fn version(server: &Server) -> u64 {
    server.state.lock().unwrap().version
}

fn expected(revisions: &[(usize, i64)]) -> Vec<(String, i64)> {
    revisions.iter().map(|(number, revision)| (format!("gpu-{number}"), *revision)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_update_of_one_device_is_one_write() {
    let server = Arc::new(Server::default());
    let publisher = Running::start(&server);
    publisher.publish(gpus(300)).await;
    assert_eq!(version(&server), 3);
    publisher.handle.update_devices("pool", [gpu(200, 1)]).unwrap();
    publisher.until(PublishStatus::Published).await;
    assert_eq!(version(&server), 4);
    let mut all: Vec<(usize, i64)> = (0..300).map(|number| (number, i64::from(number == 200))).collect();
    assert_eq!(devices(&server), expected(&all));

    publisher.handle.remove_devices("pool", ["gpu-7", "unknown"]).unwrap();
    publisher.until(PublishStatus::Published).await;
    assert_eq!(version(&server), 5);
    all.remove(7);
    assert_eq!(devices(&server), expected(&all));
    let (pools, _) = publisher.overview.pools(1, 8);
    assert_eq!((pools[0].devices, &*pools[0].device_names[7]), (299, "gpu-8"));
}

/// Several calls before the publisher's task runs: the order of the calls counts.
#[tokio::test(start_paused = true)]
async fn updates_are_of_the_resources_that_were_published_before_them() {
    let server = Arc::new(Server::default());
    let publisher = Running::start(&server);
    let handle = &publisher.handle;
    handle.publish(DriverResources::default().pool("pool", gpus(3))).unwrap();
    handle.update_devices("pool", [gpu(1, 1), gpu(3, 1)]).unwrap();
    handle.update_devices("pool", [gpu(1, 2)]).unwrap();
    handle.remove_devices("pool", ["gpu-0"]).unwrap();
    publisher.until(PublishStatus::Published).await;
    assert_eq!(devices(&server), expected(&[(1, 2), (2, 0), (3, 1)]));
    handle.update_devices("pool", [gpu(1, 3)]).unwrap();
    handle.publish(DriverResources::default().pool("pool", gpus(2))).unwrap();
    publisher.until(PublishStatus::Published).await;
    assert_eq!(devices(&server), expected(&[(0, 0), (1, 0)]), "what is published replaces updates");
}

#[tokio::test(start_paused = true)]
async fn devices_of_a_pool_that_is_not_published_cannot_be_updated() {
    let server = Arc::new(Server::default());
    let publisher = Running::start(&server);
    let unknown = publisher.handle.update_devices("pool", [gpu(0, 0)]).unwrap_err();
    assert_eq!(unknown.to_string(), "pool pool: it is not published; publish it before you change devices of it");
    assert_eq!(*publisher.handle.status().borrow(), PublishStatus::Nothing, "nothing changes");
    publisher.publish(gpus(1)).await;
    publisher.handle.publish(DriverResources::default()).unwrap();
    assert!(matches!(publisher.handle.remove_devices("pool", ["gpu-0"]), Err(PublishError::UnknownPool { .. })));
}

/// A driver that repairs the one invalid device must not have to publish all of them again.
#[tokio::test(start_paused = true)]
async fn an_update_makes_an_invalid_pool_valid() {
    let server = Arc::new(Server::default());
    let publisher = Running::start(&server);
    publisher.publish(gpus(2)).await;
    let mut invalid = gpus(3);
    invalid.devices.set(1, gpu(1, 1).capacity("memory", "much"));
    publisher.handle.publish(DriverResources::default().pool("pool", invalid)).unwrap();
    let is_failing = |status: &PublishStatus| matches!(status, PublishStatus::Failing(_));
    publisher.handle.status().wait_for(is_failing).await.unwrap();
    assert_eq!(devices(&server), expected(&[(0, 0), (1, 0)]), "the last valid version stays");
    publisher.handle.update_devices("pool", [gpu(2, 5)]).unwrap();
    publisher.handle.status().wait_for(is_failing).await.unwrap();
    publisher.handle.update_devices("pool", [gpu(1, 2)]).unwrap();
    publisher.until(PublishStatus::Published).await;
    assert_eq!(devices(&server), expected(&[(0, 0), (1, 2), (2, 5)]));

    publisher.handle.update_devices("pool", [gpu(0, 1).capacity("memory", "much")]).unwrap();
    publisher.handle.status().wait_for(is_failing).await.unwrap();
    publisher.handle.update_devices("pool", [gpu(0, 7)]).unwrap();
    publisher.until(PublishStatus::Published).await;
    assert_eq!(devices(&server), expected(&[(0, 7), (1, 2), (2, 5)]));
}

/// The first list is delayed on a node of a large cluster: attributes have to be there before.
#[tokio::test(start_paused = true)]
async fn updates_before_the_first_list_are_published_with_it() {
    let server = Arc::new(Server::default());
    let config = PublisherConfig::new("gpu.example.com").node("node-1").node_uid("node");
    let config = config.start_within(Duration::from_secs(3600));
    let publisher = Publisher::start(DraClient::new(server.client()), config, Arc::new(()));
    let handle = publisher.handle();
    let other = Pool::default().device(gpu(9, 0));
    handle.publish(DriverResources::default().pool("pool", gpus(2)).pool("other", other)).unwrap();
    let attributes = publisher.attributes();
    let revision = async |device: &str| attributes.get("pool", device).await.unwrap().unwrap()["revision"].int;
    assert_eq!(revision("gpu-1").await, Some(0));
    handle.update_devices("pool", [gpu(1, 4)]).unwrap();
    while revision("gpu-1").await != Some(4) {
        tokio::task::yield_now().await;
    }
    assert_eq!(version(&server), 0, "nothing was written yet");
    handle.status().wait_for(|status| *status == PublishStatus::Published).await.unwrap();
    let mut stored = devices(&server);
    stored.sort();
    assert_eq!(stored, expected(&[(0, 0), (1, 4), (9, 0)]));
}
