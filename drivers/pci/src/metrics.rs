//! The driver's own metrics, beside those of the framework.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicI64;

use drakkar_plugin::Handles;
use drakkar_plugin::prometheus_client::metrics::counter::Counter;
use drakkar_plugin::prometheus_client::metrics::family::Family;
use drakkar_plugin::prometheus_client::metrics::gauge::Gauge;
use drakkar_plugin::prometheus_client::registry::Registry;

use crate::plan::{Held, Plan};
use crate::select::Choice;
use crate::target::Target;

/// The reasons of all refusals, so that a reason that no longer applies goes to 0.
const REASONS: [&str; 15] = [
    "bridge",
    "companion",
    "group_excluded",
    "group_in_use",
    "group_other",
    "group_shared",
    "group_virtual_functions",
    "has_mdev",
    "held",
    "in_use",
    "no_iommu",
    "no_iommu_group",
    "use_unknown",
    "virtual_function_in_use",
    "virtual_functions",
];

/// A label and its value.
type Label = [(&'static str, &'static str); 1];

/// The driver's metrics. Clones are the same metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    config_valid: Gauge,
    reloads: Family<Label, Counter>,
    published: Gauge<i64, AtomicI64>,
    held: Gauge<i64, AtomicI64>,
    pending: Gauge<i64, AtomicI64>,
    refused: Family<Label, Gauge>,
    failed: Gauge<i64, AtomicI64>,
    events: Counter,
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
        for reason in REASONS {
            drop(self.refused.get_or_create(&[("reason", reason)]));
        }
        let registry = registry.sub_registry_with_prefix("drakkar_pci");
        registry.register(
            "config_valid",
            "Whether the configuration file is valid: 1, or 0 while the last valid one is used",
            self.config_valid.clone(),
        );
        registry.register("config_reloads", "Changes of the configuration file by outcome", self.reloads.clone());
        registry.register("published_devices", "Devices that are published", self.published.clone());
        registry.register("held_devices", "Devices that prepared claims hold", self.held.clone());
        registry.register(
            "pending_devices",
            "Devices that are being prepared, or that could not be taken back yet",
            self.pending.clone(),
        );
        registry.register(
            "refused_devices",
            "PCI functions that a rule matches and that are not published, by reason",
            self.refused.clone(),
        );
        registry.register(
            "failed_expressions",
            "PCI functions on which a CEL expression of the configuration fails",
            self.failed.clone(),
        );
        registry.register("uevents", "Events of the kernel", self.events.clone());
    }

    pub(crate) fn reloaded(&self, is_valid: bool) {
        self.config_valid.set(is_valid.into());
        let outcome = if is_valid { "valid" } else { "invalid" };
        self.reloads.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn events(&self, count: usize) {
        self.events.inc_by(count.try_into().unwrap_or(u64::MAX));
    }

    /// Shows a plan.
    pub(crate) fn planned(&self, plan: &Plan, held: &BTreeMap<Target, Held>) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.published.set(number(plan.entries.len()));
        self.held.set(number(held.len()));
        self.pending.set(number(held.values().filter(|held| !held.is_prepared).count()));
        let failed = plan.decisions.values().filter(|decision| matches!(decision.choice, Choice::Failed(_)));
        self.failed.set(number(failed.count()));
        for reason in REASONS {
            let refusals = plan.decisions.values().filter_map(|decision| decision.refusal.as_ref());
            let count = refusals.filter(|refusal| refusal.reason() == reason).count();
            self.refused.get_or_create(&[("reason", reason)]).set(number(count));
        }
    }
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
        let guide = include_str!("../../../docs/pci-driver.md");
        let rows = guide.lines().filter(|line| line.starts_with("| `drakkar_pci_"));
        let documented: BTreeSet<String> = rows
            .flat_map(|row| row.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
            .filter(|word| word.starts_with("drakkar_pci_"))
            .map(str::to_owned)
            .collect();
        assert_eq!(documented, exposed);
    }
}
