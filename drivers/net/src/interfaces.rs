//! The interfaces of the node: inventory, selection and plan, kept up to date and published.
//!
//! One lock guards all of it. Whatever happens (events, another configuration, a claim) changes one of the inputs, makes a new plan
//! and publishes it if it differs. Everything here talks to the kernel and blocks: call it from a thread that may.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_plugin::DriverResources;
use drakkar_sysfs::{PciAddress, PciDevice};
use tokio::sync::watch;

use crate::attributes::{Attributes, Numa};
use crate::claim_config::ClaimConfig;
use crate::config::{Config, Mode};
use crate::events::HostChanges;
use crate::inventory::{Changed, Host, HostInterface, Identity, Inventory, InventoryError};
use crate::plan::{Decision, Entry, HeldInterface, Inputs, Plan};
use crate::protect::Refusal;
use crate::select::{Choice, Key, Selection};

/// Publishes resources. A test can look at them instead.
type Publish = Box<dyn Fn(DriverResources) + Send + Sync>;
/// Asks for what claims hold at this moment.
type AskHeld = Box<dyn Fn() -> Vec<HeldInterface> + Send + Sync>;

/// What the interfaces of a node are published by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the node, which is that of its pool.
    pub node: String,
    /// The configuration.
    pub config: Arc<Config>,
    /// Where the NUMA distances are, and the form of the attribute.
    pub numa: Numa,
    /// The addresses of the node, which are never given away.
    pub node_addresses: Vec<IpAddr>,
}

/// The interfaces of the node.
pub struct Interfaces {
    node: String,
    node_addresses: Vec<IpAddr>,
    publish: Publish,
    held: AskHeld,
    state: Mutex<State>,
    /// Counts changes of the plan, for those who follow it.
    changes: watch::Sender<u64>,
}

struct State {
    host: Host,
    inventory: Inventory,
    selection: Selection,
    plan: Plan,
    /// Whether an update failed in the middle, so that everything has to be read again.
    is_stale: bool,
}

impl std::fmt::Debug for Interfaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interfaces").field("node", &self.node).finish_non_exhaustive()
    }
}

/// A published device: what a claim gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Interface {
    /// The name of the device.
    pub device: String,
    /// How its interface is recognized, on the host and in a pod.
    pub identity: Identity,
    /// The PCI function behind it.
    pub pci: Option<PciAddress>,
    /// How it is handed to claims.
    pub mode: Mode,
    /// The name of its rule.
    pub rule: Option<String>,
    /// What claims get that do not ask for something else.
    pub defaults: ClaimConfig,
    /// What is published of it.
    pub attributes: Arc<Attributes>,
    /// What is known of it, without what its rule adds: record it in the journal, for [`HeldInterface::facts`].
    pub facts: Arc<Attributes>,
    /// Whether it is on the host. Otherwise a claim has it.
    pub is_on_host: bool,
}

/// A device that is not published, or not any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// There is no such device.
    #[error(
        "the driver does not publish a device {device}: its interface is gone, or no rule of the driver's configuration selects it"
    )]
    Unknown {
        /// The name of the device.
        device: String,
    },
    /// The interface must not be handed out any more.
    #[error("device {device} ({interface}) is not published any more: {refusal}")]
    Refused {
        /// The name of the device.
        device: String,
        /// The interface.
        interface: String,
        /// Why.
        refusal: Box<Refusal>,
    },
    /// The host could not be read.
    #[error("device {device}: {message}")]
    Host {
        /// The name of the device.
        device: String,
        /// The error.
        message: String,
    },
}

/// What a decision is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// An interface of the host, with its kind.
    Interface(Box<HostInterface>, crate::inventory::Kind),
    /// A PCI function without an interface.
    Function(Box<PciDevice>),
}

impl Interfaces {
    /// Takes over an open host and a scan of it. Nothing is published before [`Self::publish`].
    ///
    /// `held` and `publish` are called with the lock held: they must not ask this for anything.
    pub fn new(
        host: Host,
        inventory: Inventory,
        settings: Settings,
        held: impl Fn() -> Vec<HeldInterface> + Send + Sync + 'static,
        publish: impl Fn(DriverResources) + Send + Sync + 'static,
    ) -> Self {
        let Settings { node, config, numa, node_addresses } = settings;
        let selection = Selection::new(config, numa);
        let state = State { host, inventory, selection, plan: Plan::default(), is_stale: false };
        Self {
            node,
            node_addresses,
            publish: Box::new(publish),
            held: Box::new(held),
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic can leave a plan that is not published; the next one is complete again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the plan for the first time and publishes it.
    pub fn publish(&self) {
        let mut state = self.lock();
        self.replan(&mut state, &Changed::all(), true);
    }

    /// Takes in what the kernel has reported. After an error, the next call reads everything again.
    pub fn apply(&self, changes: &HostChanges) -> Result<(), InventoryError> {
        let mut state = self.lock();
        let changed = state.update(|inventory, host| {
            let mut changed = inventory.apply(host, &changes.network)?;
            changed.extend(inventory.apply_devices(host, &changes.devices)?);
            Ok(changed)
        })?;
        if !changed.is_empty() {
            self.replan(&mut state, &changed, false);
        }
        Ok(())
    }

    /// Reads everything again, after events were lost.
    pub fn resync(&self) -> Result<(), InventoryError> {
        let mut state = self.lock();
        let changed = state.update(Inventory::resync)?;
        self.replan(&mut state, &changed, false);
        Ok(())
    }

    /// Replaces the configuration.
    pub fn set_config(&self, config: Arc<Config>) {
        // Expressions can take their time, once for each interface: claims do not wait for them. An interface that changes meanwhile
        // is matched again with the plan.
        let (numa, inventory) = {
            let state = self.lock();
            (state.selection.numa().clone(), state.inventory.clone())
        };
        let mut selection = Selection::new(config, numa);
        selection.update(&inventory, &(self.held)(), &Changed::all());
        let mut state = self.lock();
        state.selection = selection;
        self.replan(&mut state, &Changed::all(), false);
    }

    /// Takes in what was done for a claim. The interfaces of its devices are read again: the events about them may not be there yet.
    pub fn claims_changed(&self, devices: impl IntoIterator<Item = String>) -> Result<(), InventoryError> {
        let mut state = self.lock();
        let indices: Vec<u32> = devices
            .into_iter()
            .filter_map(|device| state.plan.entries.get(&device).map(|entry| entry.identity.index))
            .filter(|index| *index != 0)
            .collect();
        let refreshed = state.update(|inventory, host| {
            let mut changed = Changed::default();
            for index in indices {
                changed.extend(inventory.refresh(host, index)?);
            }
            Ok(changed)
        });
        let changed = refreshed.as_ref().cloned().unwrap_or_default();
        self.replan(&mut state, &changed, false);
        refreshed.map(drop)
    }

    /// Returns a published device by name.
    pub fn lookup(&self, device: &str) -> Option<Interface> {
        let state = self.lock();
        state.plan.entries.get(device).map(|entry| state.interface(device, entry))
    }

    /// Returns the interface of a published device, if it is on the host.
    pub fn host_interface(&self, device: &str) -> Option<HostInterface> {
        let state = self.lock();
        let entry = state.plan.entries.get(device).filter(|entry| entry.is_on_host)?;
        state.inventory.interfaces.get(&entry.identity.index).cloned()
    }

    /// Returns a device for a claim that is about to get it: its interface is read again, so that one that the host has begun to need
    /// a moment ago is refused. One that a claim already has is returned as it is.
    pub fn require(&self, device: &str) -> Result<Interface, LookupError> {
        let known = self.lookup(device).filter(|known| known.is_on_host && known.identity.index != 0);
        if let Some(known) = known {
            let mut state = self.lock();
            let refreshed = state.update(|inventory, host| inventory.refresh(host, known.identity.index));
            let changed = refreshed
                .map_err(|error| LookupError::Host { device: device.to_owned(), message: error.to_string() })?;
            if !changed.is_empty() {
                self.replan(&mut state, &changed, false);
            }
            if let Some(decision) = state.plan.decisions.get(&Key::Interface(known.identity.index))
                && let Some(refusal) = &decision.refusal
            {
                return Err(LookupError::Refused {
                    device: device.to_owned(),
                    interface: known.identity.name,
                    refusal: Box::new(refusal.clone()),
                });
            }
        }
        self.lookup(device).ok_or_else(|| LookupError::Unknown { device: device.to_owned() })
    }

    /// Returns the names of all published devices, each with whether it is on the host and how it is tainted.
    pub fn published(&self) -> Vec<(String, bool, Option<&'static str>)> {
        let state = self.lock();
        let entries = state.plan.entries.iter();
        entries
            .map(|(name, entry)| (name.clone(), entry.is_on_host, entry.taint.map(crate::plan::Taint::key)))
            .collect()
    }

    /// Returns what becomes of each interface and of each function without one.
    pub fn decisions(&self) -> Vec<(Subject, Decision)> {
        let state = self.lock();
        let subject = |key: &Key| match key {
            Key::Interface(index) => {
                let interface = state.inventory.interfaces.get(index)?;
                Some(Subject::Interface(Box::new(interface.clone()), state.inventory.kind(interface)))
            }
            Key::Function(address) => {
                state.inventory.pci.devices.get(address).map(|device| Subject::Function(Box::new(device.clone())))
            }
            Key::Held(_) => None,
        };
        let decisions = state.plan.decisions.iter();
        decisions.filter_map(|(key, decision)| Some((subject(key)?, decision.clone()))).collect()
    }

    /// Returns a channel that changes when the plan does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Makes a new plan, and publishes it if it differs.
    fn replan(&self, state: &mut State, changed: &Changed, is_first: bool) {
        let held = (self.held)();
        state.selection.update(&state.inventory, &held, changed);
        let plan = Plan::new(Inputs {
            inventory: &state.inventory,
            selection: &state.selection,
            node_addresses: &self.node_addresses,
            held: &held,
            previous: Some(&state.plan),
        });
        state.log_refusals(&plan);
        log_taints(&state.plan, &plan);
        let is_changed = is_first || !plan.publishes_the_same(&state.plan);
        state.plan = plan;
        if is_changed {
            (self.publish)(state.plan.resources(&self.node));
        }
        self.changes.send_modify(|changes| *changes += 1);
    }
}

impl State {
    /// Updates the inventory. After a failure everything is read again, now or with the next update.
    fn update(
        &mut self,
        update: impl FnOnce(&mut Inventory, &mut Host) -> Result<Changed, InventoryError>,
    ) -> Result<Changed, InventoryError> {
        let was_stale = std::mem::replace(&mut self.is_stale, true);
        let mut changed = if was_stale { self.inventory.resync(&mut self.host)? } else { Changed::default() };
        if was_stale {
            // The failed update may have changed some interfaces.
            changed = Changed::all();
        }
        changed.extend(update(&mut self.inventory, &mut self.host)?);
        self.is_stale = false;
        Ok(changed)
    }

    fn interface(&self, device: &str, entry: &Entry) -> Interface {
        let rule = entry.rule.and_then(|index| self.selection.config().devices.get(index));
        Interface {
            device: device.to_owned(),
            identity: entry.identity.clone(),
            pci: entry.pci,
            mode: entry.mode,
            rule: rule.and_then(|rule| rule.name.clone()),
            defaults: rule.map(|rule| rule.defaults.clone()).unwrap_or_default(),
            attributes: entry.attributes.clone(),
            facts: entry.facts.clone(),
            is_on_host: entry.is_on_host,
        }
    }

    /// Logs why interfaces that a rule matches are not published, when that changes.
    fn log_refusals(&self, plan: &Plan) {
        let is_new = |(key, decision): &(&Key, &Decision)| self.plan.decisions.get(*key) != Some(*decision);
        for (key, decision) in plan.decisions.iter().filter(is_new) {
            let reason = match (&decision.choice, &decision.refusal) {
                (Choice::Failed(message), _) => message.clone(),
                (_, Some(refusal)) => refusal.to_string(),
                _ => continue,
            };
            let interface = match key {
                Key::Interface(index) => self.inventory.interfaces.get(index).map(|known| known.link.name.clone()),
                Key::Function(address) => Some(address.to_string()),
                Key::Held(device) => Some(device.clone()),
            };
            let interface = interface.unwrap_or_default();
            // Pods come and go, and that their cables are not handed out surprises nobody.
            if decision.refusal.as_ref().is_some_and(is_expected) {
                tracing::debug!(interface, reason, "interface refused");
            } else {
                tracing::warn!(interface, reason, "interface refused");
            }
        }
    }
}

fn is_expected(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Loopback
            | Refusal::OfPod { .. }
            | Refusal::PodNetwork { .. }
            | Refusal::Tunnel { .. }
            | Refusal::Elsewhere { .. }
    )
}

/// Logs taints that come and go.
fn log_taints(before: &Plan, plan: &Plan) {
    for (name, entry) in plan.entries.iter().filter(|(_, entry)| entry.taint.is_some()) {
        let taint_before = before.entries.get(name).and_then(|entry| entry.taint);
        if let Some(taint) = entry.taint.filter(|_| taint_before != entry.taint) {
            tracing::warn!(device = name, taint = taint.key(), "device tainted");
        }
    }
    for (name, _) in before.entries.iter().filter(|(_, entry)| entry.taint.is_some()) {
        if plan.entries.get(name).is_some_and(|entry| entry.taint.is_none()) {
            tracing::info!(device = name, "device no longer tainted");
        }
    }
}
