//! Property test: after any sequence of events, a stream that has read all changes has the state of the hub.

use std::collections::BTreeMap;

use futures::FutureExt as _;
use proptest::prelude::*;
use tokio::time::advance;

use super::double::*;
use crate::health::table::DeviceState;
use crate::health::*;

#[derive(Debug, Clone)]
enum Event {
    Report(Vec<DeviceHealth>),
    Forget(usize),
    Advance(u64),
    /// A stream reads one message.
    Read(usize),
    /// A stream is replaced by a new one.
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

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => prop::collection::vec(device(), 0..5).prop_map(Event::Report),
        3 => (0_usize..6).prop_map(Event::Forget),
        4 => (1_u64..20_000).prop_map(Event::Advance),
        4 => (0..STREAMS).prop_map(Event::Read),
        2 => (0..STREAMS).prop_map(Event::Reopen),
        1 => Just(Event::Fail),
    ]
}

/// A kubelet's stream, and the states that it has read from it.
struct Kubelet {
    stream: Subscription,
    devices: BTreeMap<String, DeviceState>,
}

impl Kubelet {
    fn new(hub: &HealthHub) -> Self {
        Self { stream: hub.subscribe().unwrap(), devices: BTreeMap::new() }
    }

    fn read(&mut self) -> bool {
        let Some(states) = self.stream.next().now_or_never() else { return false };
        // A new time alone is not a change: kubelets ignore it.
        let states = states.unwrap().unwrap().into_iter().map(|state| DeviceState { last_updated: 0, ..state });
        self.devices.extend(states.map(|state| (state.device_name.clone(), state)));
        true
    }

    fn read_all(&mut self) {
        while self.read() {}
    }
}

/// A simple model of a device, for the expected state.
struct Expected {
    reported: DeviceHealth,
    age: Duration,
    failed: bool,
}

impl Expected {
    fn state(&self) -> (HealthStatus, String) {
        let lease = self.reported.lease.filter(|lease| !lease.is_zero()).unwrap_or(DEFAULT_LEASE);
        match (self.failed, self.age >= lease) {
            (true, _) => (HealthStatus::Unknown, "the health monitor ended: broken".to_owned()),
            (false, true) => (HealthStatus::Unknown, format!("no health report for {lease:?}")),
            (false, false) => (self.reported.health, self.reported.message.clone()),
        }
    }
}

async fn check(events: Vec<Event>) {
    let (mut double, stream, mut monitor) = Double::running().await;
    let mut kubelets = vec![Kubelet { stream, devices: BTreeMap::new() }];
    kubelets.resize_with(STREAMS, || Kubelet::new(&double.hub));
    let mut expected = BTreeMap::<String, Expected>::new();
    for event in events {
        match event {
            Event::Report(devices) => {
                monitor.reporter.report(devices.clone()).await;
                for reported in devices {
                    let name = reported.device_name.clone();
                    expected.insert(name, Expected { reported, age: Duration::ZERO, failed: false });
                }
            }
            Event::Forget(number) => {
                let name = format!("gpu-{number}");
                monitor.reporter.forget("node-1", &name).await;
                expected.remove(&name);
            }
            Event::Advance(milliseconds) => {
                let start = tokio::time::Instant::now();
                advance(Duration::from_millis(milliseconds)).await;
                run_ready_tasks().await;
                for device in expected.values_mut() {
                    device.age += start.elapsed();
                }
            }
            Event::Read(kubelet) => {
                kubelets[kubelet].read();
            }
            Event::Reopen(kubelet) => kubelets[kubelet] = Kubelet::new(&double.hub),
            Event::Fail => {
                let start = tokio::time::Instant::now();
                monitor.end(Exit::Fail("broken"));
                monitor = double.monitor().await;
                // The message of the failure replaces that of an expired lease.
                for device in expected.values_mut() {
                    device.failed = true;
                    device.age += start.elapsed();
                }
            }
        }
    }
    run_ready_tasks().await;
    for kubelet in &mut kubelets {
        kubelet.read_all();
    }
    let mut late = Kubelet::new(&double.hub);
    late.read_all();
    let Kubelet { stream, devices: hub } = late;
    drop(stream);
    let states = hub
        .iter()
        .map(|(name, state)| (name.clone(), (state.health, state.message.clone())))
        .collect::<BTreeMap<_, _>>();
    let expected = expected.into_iter().map(|(name, device)| (name, device.state())).collect::<BTreeMap<_, _>>();
    assert_eq!(states, expected);
    assert_eq!(double.hub.summary().streams, STREAMS);
    for mut kubelet in kubelets {
        // Forgotten devices are unknown in the stream and absent in the hub.
        kubelet.devices.retain(|name, state| hub.contains_key(name) || state.health != HealthStatus::Unknown);
        assert_eq!(kubelet.devices, hub);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn a_stream_ends_up_with_the_state_of_the_hub(events in prop::collection::vec(event(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(check(events));
    }
}
