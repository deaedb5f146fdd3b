//! Which claim works on what: calls that touch the same group, physical function or parent wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drakkar_plugin::ClaimRef;

use super::PrepareError;

/// The time to wait for another claim, longer than a write to sysfs may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Something that one call at a time may work on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A claim, by UID.
    Claim(String),
    /// An IOMMU group.
    Group(u32),
    /// A function, or another parent of mediated devices, by name.
    Device(String),
}

/// Who works on what.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<BTreeMap<Key, String>>,
    given_back: Condvar,
}

/// The right to work on something, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    keys: BTreeSet<Key>,
}

impl Turns {
    /// Waits until no other call works on the claim. To be called before [`Turns::wait`]: nobody waits for a claim while
    /// others wait for them, so that no two calls wait for each other.
    pub(super) fn wait_for_claim(&self, claim: &ClaimRef) -> Result<Turn<'_>, PrepareError> {
        self.wait(claim, BTreeSet::from([Key::Claim(claim.uid.to_string())]))
    }

    /// Waits until no other call works on any of these, then takes all of them at once.
    pub(super) fn wait(&self, claim: &ClaimRef, keys: BTreeSet<Key>) -> Result<Turn<'_>, PrepareError> {
        self.take(claim, keys, PATIENCE)
    }

    /// Takes what is free, and fails if it is not: for a call that has other keys already.
    pub(super) fn take_now(&self, claim: &ClaimRef, keys: BTreeSet<Key>) -> Result<Turn<'_>, PrepareError> {
        self.take(claim, keys, Duration::ZERO)
    }

    fn take(&self, claim: &ClaimRef, keys: BTreeSet<Key>, patience: Duration) -> Result<Turn<'_>, PrepareError> {
        let start = Instant::now();
        let mut taken = self.taken();
        while let Some(holder) = keys.iter().find_map(|key| taken.get(key)).cloned() {
            let waited = start.elapsed();
            let Some(left) = patience.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Err(PrepareError::Busy { claim: claim.to_string(), waited, holder });
            };
            let woken = self.given_back.wait_timeout(taken, left);
            taken = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        taken.extend(keys.iter().map(|key| (key.clone(), claim.to_string())));
        Ok(Turn { turns: self, keys })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<Key, String>> {
        // The map is whole after every operation on it, also if a thread panicked.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Returns whether it includes this.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = self.turns.taken();
        for key in &self.keys {
            taken.remove(key);
        }
        self.turns.given_back.notify_all();
    }
}
