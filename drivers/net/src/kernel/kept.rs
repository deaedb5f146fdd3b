//! Network namespaces of pods that are kept alive until their interfaces are back.
//!
//! When a namespace ends, the kernel gives cards back and deletes virtual interfaces. A runtime can end it before the driver hears of that:
//! containerd does not announce the end of pods from before its own restart. An open namespace does not end. So one with a virtual
//! interface that has to come back stays open until it is back, at the latest when the kubelet unprepares the claim. One with cards
//! alone is left to the kernel, which brings them back even if the driver is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_netlink::{Namespace, NamespaceId};

/// The namespaces that are kept. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept(Arc<Mutex<BTreeMap<NamespaceId, Entry>>>);

#[derive(Debug)]
struct Entry {
    namespace: Arc<Namespace>,
    /// The interfaces that have to come back, by their marks.
    marks: BTreeSet<String>,
}

impl Kept {
    /// Keeps a namespace for an interface.
    pub(super) fn keep(&self, namespace: Namespace, mark: &str) {
        let mut entries = self.entries();
        let id = namespace.id();
        let entry =
            entries.entry(id).or_insert_with(|| Entry { namespace: Arc::new(namespace), marks: BTreeSet::new() });
        entry.marks.insert(mark.to_owned());
    }

    /// Lets a namespace go, if no other interface needs it.
    pub(super) fn release(&self, id: NamespaceId, mark: &str) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&id) else { return };
        entry.marks.remove(mark);
        if entry.marks.is_empty() {
            entries.remove(&id);
        }
    }

    /// Returns a namespace that is kept.
    pub(super) fn get(&self, id: NamespaceId) -> Option<Arc<Namespace>> {
        self.entries().get(&id).map(|entry| entry.namespace.clone())
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<NamespaceId, Entry>> {
        // The map is whole after every operation on it, also if a thread panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
