//! The driver's own metrics, beside those of the framework.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use drakkar_plugin::Handles;
use drakkar_plugin::prometheus_client::metrics::counter::Counter;
use drakkar_plugin::prometheus_client::metrics::family::{Family, MetricConstructor};
use drakkar_plugin::prometheus_client::metrics::gauge::Gauge;
use drakkar_plugin::prometheus_client::metrics::histogram::Histogram;

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
        metrics.config_valid.set(1);
        handles.register_metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("drakkar_net");
            registry.register(
                "config_valid",
                "Whether the configuration file is valid: 1, or 0 while the last valid one is used",
                metrics.config_valid.clone(),
            );
            registry.register(
                "config_reloads",
                "Changes of the configuration file by outcome",
                metrics.reloads.clone(),
            );
            registry.register("held_devices", "Devices that prepared claims hold", metrics.prepared.clone());
            registry.register("attached_interfaces", "Interfaces that are in pods", metrics.attached.clone());
            registry.register("attaches", "Pods whose interfaces were attached, by outcome", metrics.attaches.clone());
            registry.register(
                "restores",
                "Pods whose interfaces were brought back, by outcome",
                metrics.restores.clone(),
            );
            registry.register(
                "hook_duration_seconds",
                "Duration of the runtime's hooks for pods with claims of this driver",
                metrics.hooks.clone(),
            );
            registry.register(
                "nri_connected",
                "Whether the runtime is connected and synchronized: 1, or 0 while pods start without the driver",
                metrics.nri_connected.clone(),
            );
            registry.register(
                "nri_connections",
                "Synchronized connections to the runtime",
                metrics.nri_connections.clone(),
            );
        });
        metrics
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
