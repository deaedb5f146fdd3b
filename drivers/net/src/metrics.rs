//! The driver's own metrics, beside those of the framework.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use drakkar_plugin::Handles;
use drakkar_plugin::prometheus_client::metrics::counter::Counter;
use drakkar_plugin::prometheus_client::metrics::family::{Family, MetricConstructor};
use drakkar_plugin::prometheus_client::metrics::gauge::Gauge;
use drakkar_plugin::prometheus_client::metrics::histogram::Histogram;
use drakkar_plugin::prometheus_client::registry::Registry;

use crate::claims::Count;

/// The buckets of durations in seconds. A runtime waits two seconds by default, and the driver gives up after three quarters.
const BUCKETS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0];

/// A label and its value.
type Label = [(&'static str, &'static str); 1];

/// Makes histograms of durations.
#[derive(Debug, Clone, Copy, Default)]
struct Durations;

impl MetricConstructor<Histogram> for Durations {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

/// The driver's metrics. Clones are the same metrics.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    config_valid: Gauge,
    reloads: Family<Label, Counter>,
    prepared: Gauge<i64, AtomicI64>,
    attached: Gauge<i64, AtomicI64>,
    attaches: Family<Label, Counter>,
    restores: Family<Label, Counter>,
    hooks: Family<Label, Histogram, Durations>,
    nri_connected: Gauge,
    nri_connections: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            config_valid: Gauge::default(),
            reloads: Family::default(),
            prepared: Gauge::default(),
            attached: Gauge::default(),
            attaches: Family::default(),
            restores: Family::default(),
            hooks: Family::new_with_constructor(Durations),
            nri_connected: Gauge::default(),
            nri_connections: Counter::default(),
        }
    }
}

/// The hooks of a runtime that are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    Run,
    Stop,
    Remove,
}

impl Hook {
    fn name(self) -> &'static str {
        match self {
            Self::Run => "run_pod_sandbox",
            Self::Stop => "stop_pod_sandbox",
            Self::Remove => "remove_pod_sandbox",
        }
    }
}

impl Metrics {
    /// Registers the metrics with the framework's endpoint.
    pub(crate) fn register(handles: &Handles) -> Self {
        let metrics = Self::default();
        handles.register_metrics(|registry| metrics.register_in(registry));
        metrics
    }

    fn register_in(&self, registry: &mut Registry) {
        self.config_valid.set(1);
        // Exposed at zero from the start, so that the first failure is an increase.
        for outcome in ["valid", "invalid"] {
            drop(self.reloads.get_or_create(&[("outcome", outcome)]));
        }
        for hook in [Hook::Run, Hook::Stop, Hook::Remove] {
            drop(self.hooks.get_or_create(&[("hook", hook.name())]));
        }
        for is_success in [true, false] {
            drop(self.attaches.get_or_create(&[("outcome", outcome(is_success))]));
            drop(self.restores.get_or_create(&[("outcome", outcome(is_success))]));
        }
        let registry = registry.sub_registry_with_prefix("drakkar_net");
        registry.register(
            "config_valid",
            "Whether the configuration file is valid: 1, or 0 while the last valid one is used",
            self.config_valid.clone(),
        );
        registry.register("config_reloads", "Changes of the configuration file by outcome", self.reloads.clone());
        registry.register("held_devices", "Devices that prepared claims hold", self.prepared.clone());
        registry.register("attached_interfaces", "Interfaces that are in pods", self.attached.clone());
        registry.register("attaches", "Pods whose interfaces were attached, by outcome", self.attaches.clone());
        registry.register("restores", "Pods whose interfaces were brought back, by outcome", self.restores.clone());
        registry.register(
            "hook_duration_seconds",
            "Duration of the runtime's hooks for pods with claims of this driver",
            self.hooks.clone(),
        );
        registry.register(
            "nri_connected",
            "Whether the runtime is connected and synchronized: 1, or 0 while pods start without the driver",
            self.nri_connected.clone(),
        );
        registry.register("nri_connections", "Synchronized connections to the runtime", self.nri_connections.clone());
    }

    pub(crate) fn reloaded(&self, is_valid: bool) {
        self.config_valid.set(is_valid.into());
        let outcome = if is_valid { "valid" } else { "invalid" };
        self.reloads.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn held(&self, count: Count) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.prepared.set(number(count.devices));
        self.attached.set(number(count.attached));
    }

    pub(crate) fn attached(&self, is_success: bool) {
        self.attaches.get_or_create(&[("outcome", outcome(is_success))]).inc();
    }

    pub(crate) fn restored(&self, is_success: bool) {
        self.restores.get_or_create(&[("outcome", outcome(is_success))]).inc();
    }

    pub(crate) fn hook(&self, hook: Hook, duration: Duration) {
        self.hooks.get_or_create(&[("hook", hook.name())]).observe(duration.as_secs_f64());
    }

    pub(crate) fn connected(&self, is_connected: bool) {
        if is_connected && self.nri_connected.get() == 0 {
            self.nri_connections.inc();
        }
        self.nri_connected.set(is_connected.into());
    }
}

fn outcome(is_success: bool) -> &'static str {
    if is_success { "success" } else { "error" }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use drakkar_plugin::prometheus_client::encoding::text::encode;

    use super::*;

    /// Alerts and dashboards query these names.
    #[test]
    fn the_guide_has_exactly_the_metrics_of_the_driver() {
        let mut registry = Registry::default();
        Metrics::default().register_in(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let exposed: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .map(|(name, kind)| format!("{name}{}", if kind == "counter" { "_total" } else { "" }))
            .collect();
        let guide = include_str!("../../../docs/network-driver.md");
        let rows = guide.lines().filter(|line| line.starts_with("| `drakkar_net_"));
        let documented: BTreeSet<String> = rows
            .flat_map(|row| row.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
            .filter(|word| word.starts_with("drakkar_net_"))
            .map(str::to_owned)
            .collect();
        assert_eq!(documented, exposed);
    }
}
