//! The health of published interfaces, for the status of pods that use them.
//!
//! | what | health |
//! |---|---|
//! | a claim holds the interface, and it does not exist any more | unhealthy |
//! | it was moved to a pod, and is not there any more although the pod runs | unhealthy |
//! | it is up and has lost its carrier, on the host or in its pod | unhealthy |
//! | it cannot be looked at in its pod | unknown |
//! | everything else | healthy |
//!
//! An interface that has never had a carrier, or that a program in the pod has set down, is healthy: nothing is known to be broken. The host
//! is followed by events, so what happens there is reported at once; interfaces in pods are looked at at an interval, because a namespace
//! that is followed is kept alive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use drakkar_plugin::{BoxError, DeviceHealth, HealthReporter};
use tokio::time::{Instant, MissedTickBehavior};

use crate::attacher::{Attacher, InPod, Sandbox};
use crate::claims::Claims;
use crate::interfaces::Interfaces;
use crate::journal::Place;
use crate::plan::GONE;

/// How often everything is reported. A third of the lease.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long a report is valid.
const LEASE: Duration = Duration::from_secs(30);

/// What is looked at.
#[derive(Debug, Clone)]
pub(crate) struct Subjects {
    pub(crate) interfaces: Arc<Interfaces>,
    pub(crate) claims: Arc<Claims>,
    pub(crate) attacher: Arc<dyn Attacher>,
    /// The pool of the interfaces.
    pub(crate) node: String,
}

/// Reports the health of all published interfaces until the reporter is closed.
pub(crate) async fn monitor(subjects: Subjects, reports: HealthReporter) -> Result<(), BoxError> {
    let mut changes = subjects.interfaces.changes();
    let mut ticks = tokio::time::interval_at(Instant::now() + INTERVAL, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut memory = Memory::default();
    loop {
        changes.mark_unchanged();
        let look = subjects.clone();
        let (healths, kept) = tokio::task::spawn_blocking(move || {
            let mut memory = memory;
            (memory.look(&look), memory)
        })
        .await?;
        memory = kept;
        let pool_name = || subjects.node.clone();
        let healths =
            healths.into_iter().map(|health| DeviceHealth { pool_name: pool_name(), ..health }.with_lease(LEASE));
        reports.report(healths).await;
        tokio::select! {
            () = reports.closed() => return Ok(()),
            _ = ticks.tick() => {}
            changed = changes.changed() => changed?,
        }
    }
}

/// Whether an interface is up and has a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Carrier {
    is_up: bool,
    /// `None`: the driver of the interface does not tell.
    is_there: Option<bool>,
}

/// What is remembered of devices between two looks.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The devices that have been seen with a carrier where they are now: a device, and its sandbox if it is in one.
    linked: BTreeSet<(String, Option<String>)>,
}

impl Memory {
    /// Looks at all published devices.
    fn look(&mut self, subjects: &Subjects) -> Vec<DeviceHealth> {
        let places: BTreeMap<String, Place> = subjects.claims.places().into_iter().collect();
        let mut seen = BTreeSet::new();
        let mut healths = Vec::new();
        for (device, _, taint) in subjects.interfaces.published() {
            let place = places.get(&device);
            let on_host = subjects.interfaces.host_interface(&device);
            let health = if taint == Some(GONE) {
                DeviceHealth::unhealthy("", &device, "the interface does not exist any more")
            } else if let Some(interface) = on_host {
                let carrier = Carrier { is_up: interface.link.is_up, is_there: interface.link.carrier };
                self.with_carrier((device, None), &interface.link.name, carrier, &mut seen)
            } else if let Some(place) = place {
                let found = subjects.attacher.look(&place.attachment);
                self.in_pod(device, &place.sandbox, &place.attachment.name, found, &mut seen)
            } else {
                DeviceHealth::healthy("", device)
            };
            healths.push(health);
        }
        self.linked = seen;
        healths
    }

    /// Returns the health of an interface in a pod.
    fn in_pod(
        &self,
        device: String,
        sandbox: &Sandbox,
        interface: &str,
        found: drakkar_netlink::Result<InPod>,
        seen: &mut BTreeSet<(String, Option<String>)>,
    ) -> DeviceHealth {
        let name = format!("interface {interface} of pod {}", sandbox.pod);
        match found {
            // The pod ends: that is not the interface's fault.
            Ok(InPod::NoNamespace) => DeviceHealth::healthy("", device),
            Ok(InPod::Missing) => DeviceHealth::unhealthy("", device, format!("{name} is not there any more")),
            Ok(InPod::Found { is_up, carrier }) => {
                let carrier = Carrier { is_up, is_there: carrier };
                self.with_carrier((device, Some(sandbox.id.clone())), &name, carrier, seen)
            }
            Err(error) => DeviceHealth::unknown("", device, format!("{name}: {error}")),
        }
    }

    fn with_carrier(
        &self,
        key: (String, Option<String>),
        name: &str,
        carrier: Carrier,
        seen: &mut BTreeSet<(String, Option<String>)>,
    ) -> DeviceHealth {
        let device = key.0.clone();
        let is_linked = carrier.is_there == Some(true);
        let was_linked = self.linked.contains(&key);
        if is_linked || was_linked {
            seen.insert(key);
        }
        if was_linked && carrier.is_up && carrier.is_there == Some(false) {
            DeviceHealth::unhealthy("", device, format!("{name} has lost its carrier"))
        } else {
            DeviceHealth::healthy("", device)
        }
    }
}

#[cfg(test)]
mod tests {
    use drakkar_plugin::HealthStatus;

    use super::*;

    /// A look at one interface, as all that there is.
    fn look(memory: &mut Memory, is_up: bool, is_there: Option<bool>) -> (HealthStatus, String) {
        let mut seen = BTreeSet::new();
        let key = ("if-eth1".to_owned(), None);
        let health = memory.with_carrier(key, "eth1", Carrier { is_up, is_there }, &mut seen);
        memory.linked = seen;
        (health.health, health.message)
    }

    #[test]
    fn a_carrier_that_is_lost_is_unhealthy_and_one_that_never_was_is_not() {
        let healthy = (HealthStatus::Healthy, String::new());
        let mut memory = Memory::default();
        assert_eq!(look(&mut memory, true, Some(false)), healthy, "never seen");
        assert_eq!(look(&mut memory, true, Some(true)), healthy);
        let lost = (HealthStatus::Unhealthy, "eth1 has lost its carrier".to_owned());
        assert_eq!(look(&mut memory, true, Some(false)), lost);
        assert_eq!(look(&mut memory, true, Some(false)), lost, "and stays so");
        assert_eq!(look(&mut memory, false, Some(false)), healthy, "somebody has set it down");
        assert_eq!(look(&mut memory, true, None), healthy, "the driver does not tell");
        assert_eq!(look(&mut memory, true, Some(true)), healthy, "it is back");
    }

    /// A look at one interface in a sandbox, as all that there is.
    fn look_in(memory: &mut Memory, sandbox: &str, found: drakkar_netlink::Result<InPod>) -> (HealthStatus, String) {
        let sandbox = Sandbox {
            id: sandbox.to_owned(),
            pod_uid: "uid".to_owned(),
            pod: "default/train".to_owned(),
            namespace: "/var/run/netns/cni-1".into(),
        };
        let mut seen = BTreeSet::new();
        let health = memory.in_pod("if-eth1".to_owned(), &sandbox, "data0", found, &mut seen);
        memory.linked = seen;
        (health.health, health.message)
    }

    #[test]
    fn an_interface_in_a_pod_is_unhealthy_if_it_is_gone_and_unknown_if_nobody_can_tell() {
        let healthy = (HealthStatus::Healthy, String::new());
        let memory = &mut Memory::default();
        assert_eq!(look_in(memory, "one", Ok(InPod::Found { is_up: true, carrier: Some(true) })), healthy);
        let gone = "interface data0 of pod default/train is not there any more".to_owned();
        assert_eq!(look_in(memory, "one", Ok(InPod::Missing)), (HealthStatus::Unhealthy, gone));
        assert_eq!(look_in(memory, "one", Ok(InPod::NoNamespace)), healthy, "the pod ends");
        let error = drakkar_netlink::Error::Refused {
            operation: "interface data0: look".to_owned(),
            errno: rustix::io::Errno::NOBUFS,
            message: None,
        };
        let text = format!("interface data0 of pod default/train: {error}");
        assert_eq!(look_in(memory, "one", Err(error)), (HealthStatus::Unknown, text));
    }

    #[test]
    fn a_carrier_of_the_last_sandbox_is_not_one_of_the_next() {
        let healthy = (HealthStatus::Healthy, String::new());
        let found = |carrier| Ok(InPod::Found { is_up: true, carrier: Some(carrier) });
        let memory = &mut Memory::default();
        assert_eq!(look_in(memory, "one", found(true)), healthy);
        assert_eq!(look_in(memory, "two", found(false)), healthy, "it never had one there");
        assert_eq!(look_in(memory, "two", found(true)), healthy);
        let lost = "interface data0 of pod default/train has lost its carrier".to_owned();
        assert_eq!(look_in(memory, "two", found(false)), (HealthStatus::Unhealthy, lost));
    }
}
