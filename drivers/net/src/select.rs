//! Selection: the first rule that matches each interface.
//!
//! Matching an interface costs an evaluation of CEL, so the outcome is kept until its attributes change: an event about one
//! interface evaluates that interface.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drakkar_cel::DeviceValue;
use drakkar_sysfs::{PciAddress, PciDevice};

use crate::attributes::{self, Attributes, Numa, cel_value};
use crate::config::{Config, Rule};
use crate::inventory::{Changed, HostInterface, Inventory};
use crate::plan::HeldInterface;

/// Which rule an interface belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// `exclude` matches, with the number of the entry.
    Excluded(usize),
    /// A rule matches, by its number.
    Rule(usize),
    /// Nothing matches.
    Unmatched,
    /// An expression failed. The interface is not published: whether it should be is not known.
    Failed(String),
}

/// What can be selected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// An interface of the host, by index.
    Interface(u32),
    /// A PCI function without an interface.
    Function(PciAddress),
    /// A device of a claim that is not on the host, by name.
    Held(String),
}

/// Something that can be selected, with its attributes and its rule.
#[derive(Debug, Clone)]
pub(crate) struct Matched {
    /// What is known of it, which expressions see.
    pub(crate) facts: Arc<Attributes>,
    /// What is published: with what the rule adds.
    pub(crate) published: Arc<Attributes>,
    pub(crate) choice: Choice,
}

/// The outcome of matching all interfaces against a configuration.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    config: Arc<Config>,
    numa: Numa,
    matched: BTreeMap<Key, Matched>,
}

impl Selection {
    pub(crate) fn new(config: Arc<Config>, numa: Numa) -> Self {
        Self { config, numa, matched: BTreeMap::new() }
    }

    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub(crate) fn numa(&self) -> &Numa {
        &self.numa
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Matched> {
        self.matched.get(key)
    }

    /// Returns the rule of a choice.
    pub(crate) fn rule(&self, choice: &Choice) -> Option<&Rule> {
        match choice {
            Choice::Rule(index) => self.config.devices.get(*index),
            _ => None,
        }
    }

    /// Matches what has changed since the last update.
    pub(crate) fn update(&mut self, inventory: &Inventory, held: &[HeldInterface], changed: &Changed) {
        if changed.all {
            let is_there = |key: &Key| matches!(key, Key::Interface(index) if inventory.interfaces.contains_key(index));
            self.matched.retain(|key, _| !matches!(key, Key::Interface(_)) || is_there(key));
            for interface in inventory.interfaces.values() {
                self.add_interface(inventory, interface);
            }
        } else {
            for index in &changed.interfaces {
                match inventory.interfaces.get(index) {
                    Some(interface) => self.add_interface(inventory, interface),
                    None => drop(self.matched.remove(&Key::Interface(*index))),
                }
            }
        }
        if changed.functions || changed.all {
            let without: BTreeMap<PciAddress, &PciDevice> =
                inventory.functions_without_interface().map(|device| (device.address, device)).collect();
            self.matched.retain(|key, _| !matches!(key, Key::Function(address) if !without.contains_key(address)));
            for device in without.into_values() {
                self.add(Key::Function(device.address), attributes::of_function(device, &self.numa));
            }
        }
        self.update_held(held);
    }

    /// Matches the devices of claims by what was recorded of them.
    fn update_held(&mut self, held: &[HeldInterface]) {
        let names: BTreeSet<&str> = held.iter().map(|held| held.device.as_str()).collect();
        self.matched.retain(|key, _| !matches!(key, Key::Held(name) if !names.contains(name.as_str())));
        for held in held {
            if let Some(facts) = &held.facts {
                self.add(Key::Held(held.device.clone()), facts.clone());
            }
        }
    }

    fn add_interface(&mut self, inventory: &Inventory, interface: &HostInterface) {
        let facts = attributes::of_interface(inventory, interface, &self.numa);
        self.add(Key::Interface(interface.link.index), facts);
    }

    fn add(&mut self, key: Key, facts: Attributes) {
        let is_known = self.matched.get(&key).is_some_and(|known| *known.facts == facts);
        if !is_known {
            let matched = self.match_facts(facts);
            self.matched.insert(key, matched);
        }
    }

    fn match_facts(&self, facts: Attributes) -> Matched {
        let choice = self.choose(&facts);
        let facts = Arc::new(facts);
        let published = match self.rule(&choice) {
            Some(rule) => {
                let mut published = Attributes::clone(&facts);
                attributes::add_rule(&mut published, rule);
                Arc::new(published)
            }
            None => facts.clone(),
        };
        Matched { facts, published, choice }
    }

    fn choose(&self, facts: &Attributes) -> Choice {
        let value = match cel_value(facts) {
            Ok(value) => value,
            Err(error) => return Choice::Failed(error.to_string()),
        };
        for (index, exclude) in self.config.exclude.iter().enumerate() {
            match exclude.matches(facts, &value) {
                Ok(true) => return Choice::Excluded(index),
                Ok(false) => {}
                Err(error) => return Choice::Failed(format!("exclude[{index}].cel: {error}")),
            }
        }
        self.choose_rule(facts, &value)
    }

    fn choose_rule(&self, facts: &Attributes, value: &DeviceValue) -> Choice {
        for (index, rule) in self.config.devices.iter().enumerate() {
            match rule.matches.matches(facts, value) {
                Ok(true) => return Choice::Rule(index),
                Ok(false) => {}
                Err(error) => return Choice::Failed(format!("devices[{index}].match.cel: {error}")),
            }
        }
        Choice::Unmatched
    }
}
