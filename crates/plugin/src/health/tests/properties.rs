//! Whatever happens, a stream that has read all knows what the hub knows.

use std::collections::BTreeMap;

use futures::FutureExt as _;
use proptest::prelude::*;
use tokio::time::advance;

use super::double::*;
use crate::health::table::Told;
use crate::health::*;

#[derive(Debug, Clone)]
enum Step {
    Report(Vec<DeviceHealth>),
    Forget(usize),
    Advance(u64),
    /// A stream reads one message.
    Read(usize),
    /// A stream is opened in place of another.
    Reopen(usize),
    Fail,
}

const STREAMS: usize = 3;

fn device() -> impl Strategy<Value = DeviceHealth> {
    let health = prop_oneof![Just(HealthStatus::Unknown), Just(HealthStatus::Healthy), Just(HealthStatus::Unhealthy)];
    let lease = prop::option::of((0_u64..40_000).prop_map(Duration::from_millis));
    (0_usize..6, health, 0_u8..2, lease).prop_map(|(number, health, message, lease)| DeviceHealth {
        message: message.to_string(),
        health,
        lease,
        ..DeviceHealth::healthy("node-1", format!("gpu-{number}"))
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(device(), 0..5).prop_map(Step::Report),
        3 => (0_usize..6).prop_map(Step::Forget),
        4 => (1_u64..20_000).prop_map(Step::Advance),
        4 => (0..STREAMS).prop_map(Step::Read),
        2 => (0..STREAMS).prop_map(Step::Reopen),
        1 => Just(Step::Fail),
    ]
}

/// A kubelet's stream and what it made of it.
struct Kubelet {
    stream: Subscription,
    devices: BTreeMap<String, Told>,
}

impl Kubelet {
    fn new(hub: &HealthHub) -> Self {
        Self { stream: hub.subscribe().unwrap(), devices: BTreeMap::new() }
    }

    fn read(&mut self) -> bool {
        let Some(told) = self.stream.next().now_or_never() else { return false };
        // The time of a finding is not news: a kubelet does not look at it.
        let told = told.unwrap().unwrap().into_iter().map(|told| Told { last_updated: 0, ..told });
        self.devices.extend(told.map(|told| (told.device_name.clone(), told)));
        true
    }

    fn read_all(&mut self) {
        while self.read() {}
    }
}

/// What a device shall look like: a model that is too simple to be wrong.
struct Expected {
    reported: DeviceHealth,
    age: Duration,
    failed: bool,
}

impl Expected {
    fn told(&self) -> (HealthStatus, String) {
        let lease = self.reported.lease.filter(|lease| !lease.is_zero()).unwrap_or(DEFAULT_LEASE);
        match (self.failed, self.age >= lease) {
            (true, _) => (HealthStatus::Unknown, "the health monitor ended: broken".to_owned()),
            (false, true) => (HealthStatus::Unknown, format!("no health report for {lease:?}")),
            (false, false) => (self.reported.health, self.reported.message.clone()),
        }
    }
}

async fn check(steps: Vec<Step>) {
    let (mut double, stream, mut monitor) = Double::running().await;
    let mut kubelets = vec![Kubelet { stream, devices: BTreeMap::new() }];
    kubelets.resize_with(STREAMS, || Kubelet::new(&double.hub));
    let mut expected = BTreeMap::<String, Expected>::new();
    for step in steps {
        match step {
            Step::Report(devices) => {
                monitor.reporter.report(devices.clone()).await;
                for reported in devices {
                    let name = reported.device_name.clone();
                    expected.insert(name, Expected { reported, age: Duration::ZERO, failed: false });
                }
            }
            Step::Forget(number) => {
                let name = format!("gpu-{number}");
                monitor.reporter.forget("node-1", &name).await;
                expected.remove(&name);
            }
            Step::Advance(milliseconds) => {
                let start = tokio::time::Instant::now();
                advance(Duration::from_millis(milliseconds)).await;
                settle().await;
                for device in expected.values_mut() {
                    device.age += start.elapsed();
                }
            }
            Step::Read(kubelet) => {
                kubelets[kubelet].read();
            }
            Step::Reopen(kubelet) => kubelets[kubelet] = Kubelet::new(&double.hub),
            Step::Fail => {
                let start = tokio::time::Instant::now();
                monitor.end(Order::Fail("broken"));
                monitor = double.monitor().await;
                // A lease that passed before is told by its own words until the failure, then by those of the failure.
                for device in expected.values_mut() {
                    (device.failed, device.age) = (true, device.age + start.elapsed());
                }
            }
        }
    }
    settle().await;
    for kubelet in &mut kubelets {
        kubelet.read_all();
    }
    let mut late = Kubelet::new(&double.hub);
    late.read_all();
    let Kubelet { stream, devices: hub } = late;
    drop(stream);
    let told =
        hub.iter().map(|(name, told)| (name.clone(), (told.health, told.message.clone()))).collect::<BTreeMap<_, _>>();
    let expected = expected.into_iter().map(|(name, device)| (name, device.told())).collect::<BTreeMap<_, _>>();
    assert_eq!(told, expected);
    assert_eq!(double.hub.summary().streams, STREAMS);
    for mut kubelet in kubelets {
        // What only the stream knows is gone, and it knows that.
        kubelet.devices.retain(|name, told| hub.contains_key(name) || told.health != HealthStatus::Unknown);
        assert_eq!(kubelet.devices, hub);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn a_stream_knows_in_the_end_what_the_hub_knows(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(check(steps));
    }
}
