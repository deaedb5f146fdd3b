//! Echoes: the events of a watch that repeat what the answers to this process's own writes said.
//!
//! The slices of ten thousand devices are megabytes of JSON. An event that repeats the answer to a write is recognized by the
//! object's UID and resource version, and not decoded. One that arrives before the answer is decoded and then ignored, as any
//! event that is not newer than the known state.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::stored::StoredSlice;

/// The resource versions of writes that a watch has yet to repeat, by UID.
#[derive(Debug, Default)]
pub(super) struct Echoes(Mutex<HashMap<String, String>>);

impl Echoes {
    /// Expects an event for a slice that was written.
    pub(super) fn expect(&self, stored: &StoredSlice) {
        self.lock().insert(stored.uid.clone(), stored.resource_version.clone());
    }

    /// Returns whether an event is expected, which it is then no longer.
    pub(super) fn take(&self, uid: &str, resource_version: &str) -> bool {
        let mut expected = self.lock();
        let is_echo = expected.get(uid).is_some_and(|version| version == resource_version);
        if is_echo {
            expected.remove(uid);
        }
        is_echo
    }

    /// Expects no event of the slice any longer: it is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Expects no event.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        // Nothing panics while the lock is held, so a poisoned lock cannot occur.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
