//! The devices of the node: inventory, selection and plan, kept up to date and published.
//!
//! One lock guards all of it. Whatever happens (events, another configuration, a claim, the health check) changes one of the
//! inputs, makes a new plan and publishes it if it differs. Everything here reads sysfs and blocks: call it from a thread that
//! may.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_driver_kit::logged::Logged;
use drakkar_plugin::DriverResources;
use drakkar_sysfs::{HostUse, Inventory, PciAddress, PciDevice, ScanError, Sysfs, Uevent};
use tokio::sync::watch;

use crate::attributes::{Attributes, Numa};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::plan::{Decision, Entry, Held, Inputs, MaxInstances, Plan, gone, update_made};
use crate::protect::{direct_use, unknown_use};
use crate::select::{Choice, FormerDrivers, Selection};
use crate::target::Target;

/// Publishes resources. A test can look at them instead.
type Publish = Box<dyn Fn(DriverResources) + Send + Sync>;

/// What claims hold, and the drivers of functions before claims changed them.
pub(crate) type Holdings = (BTreeMap<Target, Held>, FormerDrivers);
/// Asks for what claims hold at this moment.
type AskHoldings = Box<dyn Fn() -> Holdings + Send + Sync>;

/// The devices of the node.
pub(crate) struct Devices {
    sysfs: Sysfs,
    node: String,
    publish: Publish,
    holdings: AskHoldings,
    metrics: Metrics,
    state: Mutex<State>,
    /// Counts changes of the plan, for those who follow it.
    changes: watch::Sender<u64>,
}

struct State {
    inventory: Inventory,
    selection: Selection,
    host_use: HostUse,
    /// As of the last plan.
    held: BTreeMap<Target, Held>,
    gone: BTreeSet<Target>,
    made: BTreeSet<String>,
    former: FormerDrivers,
    max_instances: MaxInstances,
    plan: Plan,
    /// What was logged of each device, so that it is logged once.
    logged: Logged<PciAddress>,
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices").field("node", &self.node).finish_non_exhaustive()
    }
}

/// A scan of a node: its devices, and what it uses itself.
#[derive(Debug)]
pub(crate) struct Scan {
    sysfs: Sysfs,
    inventory: Inventory,
    host_use: HostUse,
}

impl Scan {
    /// Scans a node.
    pub(crate) fn new(sysfs: Sysfs) -> Result<Self, ScanError> {
        let inventory = Inventory::scan(&sysfs)?;
        let host_use = HostUse::find(&sysfs, &inventory);
        for problem in inventory.problems.iter().chain(&host_use.problems) {
            tracing::warn!(%problem, "sysfs not read completely");
        }
        Ok(Self { sysfs, inventory, host_use })
    }
}

impl Devices {
    /// Takes over a scan of the node. Nothing is published before [`Self::publish`].
    pub(crate) fn new(
        scan: Scan,
        node: &str,
        config: Arc<Config>,
        numa: Numa,
        metrics: Metrics,
        holdings: impl Fn() -> Holdings + Send + Sync + 'static,
        publish: impl Fn(DriverResources) + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            inventory: scan.inventory,
            selection: Selection::new(config, numa),
            host_use: scan.host_use,
            held: BTreeMap::new(),
            gone: BTreeSet::new(),
            made: BTreeSet::new(),
            former: FormerDrivers::new(),
            max_instances: MaxInstances::default(),
            plan: Plan::default(),
            logged: Logged::default(),
        };
        Self {
            sysfs: scan.sysfs,
            node: node.to_owned(),
            publish: Box::new(publish),
            holdings: Box::new(holdings),
            metrics,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic can leave a plan that is not published; the next one is complete again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the plan for the first time and publishes it.
    pub(crate) fn publish(&self) {
        let mut state = self.lock();
        self.replan(&mut state, true);
    }

    /// Takes in events.
    pub(crate) fn apply(&self, events: &[Uevent]) -> Result<(), ScanError> {
        self.metrics.events(events.len());
        let mut state = self.lock();
        let changes = state.inventory.apply_all(&self.sysfs, events)?;
        if changes.is_empty() {
            return Ok(());
        }
        if !changes.added.is_empty() || changes.rescanned {
            state.host_use = HostUse::find(&self.sysfs, &state.inventory);
        }
        self.replan(&mut state, false);
        Ok(())
    }

    /// Replaces the configuration.
    pub(crate) fn set_config(&self, config: Arc<Config>) {
        // Expressions can take their time, once for each device: claims do not wait for them. A device that changes meanwhile is
        // matched again with the plan.
        let (numa, inventory, former) = {
            let state = self.lock();
            (state.selection.numa().clone(), state.inventory.clone(), state.former.clone())
        };
        let mut selection = Selection::new(config, numa);
        selection.update(&inventory, &former);
        let mut state = self.lock();
        state.host_use = HostUse::find(&self.sysfs, &state.inventory);
        state.selection = selection;
        self.replan(&mut state, false);
    }

    /// Reads again what the kernel sends no events about: configuration space and link of published devices, and what the host
    /// uses.
    pub(crate) fn refresh(&self) -> Result<(), ScanError> {
        let mut state = self.lock();
        let decisions = state.plan.decisions.iter().filter(|(_, decision)| matches!(decision.choice, Choice::Rule(_)));
        let addresses: BTreeSet<PciAddress> = decisions.map(|(address, _)| *address).collect();
        state.inventory.refresh(&self.sysfs, addresses)?;
        state.host_use = HostUse::find(&self.sysfs, &state.inventory);
        self.replan(&mut state, false);
        Ok(())
    }

    /// Takes in what was done for a claim. The functions of its devices are read again: the events about them may not be there
    /// yet.
    pub(crate) fn claims_changed(&self, addresses: impl IntoIterator<Item = PciAddress>) -> Result<(), ScanError> {
        let mut state = self.lock();
        state.inventory.refresh(&self.sysfs, addresses)?;
        self.replan(&mut state, false);
        Ok(())
    }

    /// Returns a published device by name.
    pub(crate) fn entry(&self, name: &str) -> Option<Entry> {
        self.lock().plan.entries.get(name).cloned()
    }

    /// Returns the attributes of a PCI function.
    pub(crate) fn attributes(&self, address: PciAddress) -> Option<Arc<Attributes>> {
        self.lock().selection.devices.get(&address).map(|matched| matched.attributes.clone())
    }

    /// Returns the first of some devices of which the host uses a function at this moment, or may use it: its name, the function,
    /// and why. The rule of a device can allow it by name. Virtual functions that this driver has made are its own as long as nothing
    /// else is known.
    pub(crate) fn host_use(&self, unused: &[Unused]) -> Option<(String, PciAddress, String)> {
        if unused.is_empty() {
            return None;
        }
        let mut state = self.lock();
        state.host_use = HostUse::find(&self.sysfs, &state.inventory);
        let state = &*state;
        let made_of = |target: &Target| match target {
            Target::VirtualFunction { physical, .. } => Some(*physical),
            _ => None,
        };
        let is_made = |device: &&PciDevice| {
            let physical = device.physical_function;
            physical.is_some() && state.held.keys().any(|target| made_of(target) == physical)
        };
        let use_of = |function: PciAddress| {
            let uses = direct_use(&state.host_use, function);
            let uses = uses.map(|uses| format!("the host has begun to use it: {uses}"));
            let unknown = || {
                let device = state.inventory.devices.get(&function).filter(|device| !is_made(device))?;
                let problem = unknown_use(&state.host_use, device)?;
                Some(format!("it is not known any more whether the host uses it: {problem}"))
            };
            uses.or_else(unknown)
        };
        unused.iter().find_map(|Unused { device, rule_of, functions }| {
            let rule = match state.selection.devices.get(rule_of).map(|matched| &matched.choice) {
                Some(Choice::Rule(index)) => state.selection.config().devices.get(*index),
                _ => None,
            };
            let is_allowed = |function: &PciAddress| rule.is_some_and(|rule| rule.allow_in_use.contains(function));
            let mut others = functions.iter().filter(|function| !is_allowed(function));
            others.find_map(|function| Some((device.clone(), *function, use_of(*function)?)))
        })
    }

    /// Returns all published devices, with the PCI function behind each and whether a claim holds it.
    pub(crate) fn published(&self) -> Vec<Published> {
        let state = self.lock();
        let held = &state.held;
        let published = |(name, entry): (&String, &Entry)| {
            let address = match &entry.target {
                Target::Function(address) => Some(*address),
                Target::VirtualFunction { physical, index } => {
                    let functions = state.inventory.devices.get(physical).and_then(|device| device.sriov.as_ref());
                    let function = functions.and_then(|sriov| sriov.virtual_functions.get(usize::from(*index)));
                    Some(function.copied().unwrap_or(*physical))
                }
                Target::NewMdev { parent, .. } => crate::plan::parent_address(parent),
                Target::Mdev { uuid } => {
                    state.inventory.mdevs.get(uuid).and_then(|mdev| crate::plan::parent_address(&mdev.parent))
                }
            };
            let device = address.and_then(|address| state.inventory.devices.get(&address)).cloned();
            let is_gone = state.gone.contains(&entry.target);
            Published { name: name.clone(), address, device, is_gone, is_held: held.contains_key(&entry.target) }
        };
        state.plan.entries.iter().map(published).collect()
    }

    /// Returns what becomes of each PCI device, with the device.
    pub(crate) fn decisions(&self) -> Vec<(PciDevice, Decision)> {
        let state = self.lock();
        let decisions = state.plan.decisions.iter();
        decisions
            .filter_map(|(address, decision)| Some((state.inventory.devices.get(address)?.clone(), decision.clone())))
            .collect()
    }

    /// Returns a channel that changes when the plan does.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn sysfs(&self) -> &Sysfs {
        &self.sysfs
    }

    /// Makes a new plan, and publishes it if it differs.
    fn replan(&self, state: &mut State, is_first: bool) {
        let (held, former) = (self.holdings)();
        // Of functions that were put back the driver of the inventory counts again, which may be that of the claim.
        let put_back: Vec<PciAddress> =
            state.former.keys().filter(|address| !former.contains_key(*address)).copied().collect();
        if let Err(error) = state.inventory.refresh(&self.sysfs, put_back) {
            tracing::warn!(%error, "devices of an unprepared claim not read");
        }
        state.selection.update(&state.inventory, &former);
        state.max_instances.update(&state.inventory);
        update_made(&mut state.made, &held, &state.inventory);
        let gone = gone(&held, &state.inventory, &self.sysfs);
        let plan = Plan::new(Inputs {
            inventory: &state.inventory,
            selection: &state.selection,
            host_use: &state.host_use,
            held: &held,
            gone: &gone,
            made: &state.made,
            max_instances: &state.max_instances,
            previous: Some(&state.plan),
        });
        self.metrics.planned(&plan, &held);
        log_refusals(&mut state.logged, &plan);
        log_taints(&state.plan, &plan);
        let is_changed = is_first || !plan.publishes_the_same(&state.plan);
        state.plan = plan;
        state.held = held;
        state.gone = gone;
        state.former = former;
        if is_changed {
            (self.publish)(state.plan.resources(&self.node));
        }
        // Also a plan that publishes the same can say something new of a device's health.
        self.changes.send_modify(|changes| *changes += 1);
    }
}

/// A device that the host must not use.
#[derive(Debug)]
pub(crate) struct Unused {
    /// Its name.
    pub(crate) device: String,
    /// The function whose rule it is published by: its own, or the physical one.
    pub(crate) rule_of: PciAddress,
    /// Its function, and those of its companions.
    pub(crate) functions: Vec<PciAddress>,
}

/// A published device and the function behind it.
#[derive(Debug, Clone)]
pub(crate) struct Published {
    pub(crate) name: String,
    pub(crate) address: Option<PciAddress>,
    pub(crate) device: Option<PciDevice>,
    /// Whether the hardware is gone while a claim holds it.
    pub(crate) is_gone: bool,
    pub(crate) is_held: bool,
}

/// Logs why devices that a rule matches are not published: each reason once, until it changes.
fn log_refusals(logged: &mut Logged<PciAddress>, plan: &Plan) {
    logged.retain(|address| plan.decisions.contains_key(address));
    for (address, decision) in &plan.decisions {
        let message = match (&decision.choice, &decision.refusal) {
            (Choice::Failed(message), _) => Some(message.clone()),
            (_, Some(refusal)) => Some(refusal.to_string()),
            _ => None,
        };
        match message {
            Some(message) if logged.is_new(*address, &message) => {
                // That bridges are not handed out surprises nobody.
                if matches!(decision.refusal, Some(crate::Refusal::Bridge)) {
                    tracing::debug!(%address, reason = message, "device refused");
                } else {
                    tracing::warn!(%address, reason = message, "device refused");
                }
            }
            Some(_) => {}
            None => logged.forget(address),
        }
    }
}

/// Logs taints that come and go.
fn log_taints(before: &Plan, plan: &Plan) {
    for (name, entry) in &plan.entries {
        let taint_before = before.entries.get(name).and_then(|entry| entry.taint);
        match entry.taint {
            Some(taint) if taint_before != Some(taint) => {
                tracing::warn!(device = name, taint = taint.key(), "device tainted");
            }
            None if taint_before.is_some() => tracing::info!(device = name, "device no longer tainted"),
            _ => {}
        }
    }
}
