//! The storage: all objects, and a bounded window of events. It replaces `etcd` and the watch cache.
//!
//! One counter gives every write its resource version. Stored objects are immutable: readers share them, and each is
//! serialized once for all clients. The store does not know its watchers: a watcher keeps its own position and asks for the
//! events since then, so a slow one blocks no writer; one that has fallen behind the window gets [`Expired`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use super::resource::Resource;

/// Namespace (empty for cluster-scoped objects) and name.
pub(crate) type Key = (String, String);

/// An object at one resource version, without `apiVersion` and `kind`, which depend on the path it is read by.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) value: Value,
    pub(crate) version: u64,
    json: OnceLock<Bytes>,
}

impl Object {
    pub(crate) fn new(mut value: Value, version: u64) -> Self {
        value["metadata"]["resourceVersion"] = version.to_string().into();
        Self { value, version, json: OnceLock::new() }
    }

    /// Wraps an object that is not stored, for a dry run.
    pub(crate) fn draft(value: Value) -> Self {
        Self { value, version: 0, json: OnceLock::new() }
    }

    /// Returns the object as JSON, without `apiVersion` and `kind`.
    pub(crate) fn json(&self) -> &Bytes {
        self.json.get_or_init(|| self.value.to_string().into())
    }
}

/// A change of an object: a creation if it has no `before`, a deletion if it has no `after`.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) version: u64,
    pub(crate) before: Option<Arc<Object>>,
    pub(crate) after: Option<Arc<Object>>,
    /// The last state of a deleted object, with the version of the deletion.
    pub(crate) deleted: Option<Arc<Object>>,
}

/// All objects at one resource version, like a backup of `etcd`.
#[derive(Clone, Debug)]
pub struct Snapshot {
    version: u64,
    objects: Vec<BTreeMap<Key, Arc<Object>>>,
}

/// The requested resource version is older than the event window.
#[derive(Debug)]
pub(crate) struct Expired {
    pub(crate) oldest: u64,
}

/// The object has changed since the caller read it.
#[derive(Debug)]
pub(crate) struct Stale;

#[derive(Debug)]
pub(crate) struct Store {
    state: Mutex<State>,
    changed: Vec<watch::Sender<u64>>,
    window: usize,
}

#[derive(Debug)]
struct State {
    version: u64,
    tables: Vec<Table>,
}

#[derive(Debug, Default)]
struct Table {
    objects: BTreeMap<Key, Arc<Object>>,
    events: VecDeque<Event>,
    /// The version of the newest event that was dropped from the window.
    compacted: u64,
}

impl Store {
    /// Creates a store that keeps `window` events per resource.
    pub(crate) fn new(window: usize) -> Self {
        let tables = Resource::ALL.iter().map(|_| Table::default()).collect();
        let changed = Resource::ALL.iter().map(|_| watch::Sender::new(1)).collect();
        Self { state: Mutex::new(State { version: 1, tables }), changed, window: window.max(1) }
    }

    pub(crate) fn version(&self) -> u64 {
        self.state().version
    }

    pub(crate) fn get(&self, resource: Resource, key: &Key) -> Option<Arc<Object>> {
        self.state().tables[resource as usize].objects.get(key).cloned()
    }

    /// Returns the objects of one namespace, or of all, sorted by name, and the current version.
    pub(crate) fn list(&self, resource: Resource, namespace: Option<&str>) -> (u64, Vec<Arc<Object>>) {
        let state = self.state();
        let objects = &state.tables[resource as usize].objects;
        let found = match namespace {
            None => objects.values().cloned().collect(),
            Some(namespace) => objects
                .range((namespace.to_owned(), String::new())..)
                .take_while(|((other, _), _)| other == namespace)
                .map(|(_, object)| object.clone())
                .collect(),
        };
        (state.version, found)
    }

    pub(crate) fn create(&self, resource: Resource, key: Key, value: Value) -> Result<Arc<Object>, Value> {
        let mut state = self.state();
        if state.tables[resource as usize].objects.contains_key(&key) {
            return Err(value);
        }
        let object = Arc::new(Object::new(value, state.version + 1));
        state.tables[resource as usize].objects.insert(key, object.clone());
        self.record(state, resource, None, Some(object.clone()), None);
        Ok(object)
    }

    /// Replaces an object if its version is `expected`.
    pub(crate) fn replace(
        &self,
        resource: Resource,
        key: &Key,
        expected: u64,
        value: Value,
    ) -> Result<Arc<Object>, Stale> {
        let mut state = self.state();
        let version = state.version + 1;
        let Some(slot) = state.tables[resource as usize].objects.get_mut(key).filter(|old| old.version == expected)
        else {
            return Err(Stale);
        };
        let object = Arc::new(Object::new(value, version));
        let before = std::mem::replace(slot, object.clone());
        self.record(state, resource, Some(before), Some(object.clone()), None);
        Ok(object)
    }

    /// Removes an object if its version is `expected`. Returns `last` with the version of the deletion.
    pub(crate) fn remove(
        &self,
        resource: Resource,
        key: &Key,
        expected: u64,
        last: Value,
    ) -> Result<Arc<Object>, Stale> {
        let mut state = self.state();
        let version = state.version + 1;
        let objects = &mut state.tables[resource as usize].objects;
        if objects.get(key).is_none_or(|old| old.version != expected) {
            return Err(Stale);
        }
        let before = objects.remove(key);
        let deleted = Arc::new(Object::new(last, version));
        self.record(state, resource, before, None, Some(deleted.clone()));
        Ok(deleted)
    }

    /// Takes a snapshot of all objects.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let objects = state.tables.iter().map(|table| table.objects.clone()).collect();
        Snapshot { version: state.version, objects }
    }

    /// Restores the objects and the version of a snapshot: later versions are assigned again. The event window is emptied.
    pub(crate) fn restore(&self, snapshot: &Snapshot) {
        let mut state = self.state();
        state.version = snapshot.version;
        for (table, objects) in state.tables.iter_mut().zip(&snapshot.objects) {
            *table = Table { objects: objects.clone(), events: VecDeque::new(), compacted: snapshot.version };
        }
        drop(state);
        for changed in &self.changed {
            changed.send_replace(snapshot.version);
        }
    }

    /// Returns at most `limit` events after `version`, and the version up to which they are complete.
    pub(crate) fn events_since(
        &self,
        resource: Resource,
        version: u64,
        limit: usize,
    ) -> Result<(u64, Vec<Event>), Expired> {
        let state = self.state();
        let table = &state.tables[resource as usize];
        if version < table.compacted {
            return Err(Expired { oldest: table.compacted });
        }
        let from = table.events.partition_point(|event| event.version <= version);
        let events: Vec<Event> = table.events.range(from..).take(limit).cloned().collect();
        let upto = match events.last() {
            Some(last) if from + events.len() < table.events.len() => last.version,
            _ => state.version,
        };
        Ok((upto, events))
    }

    /// Returns a receiver that is notified of every write to the resource.
    pub(crate) fn subscribe(&self, resource: Resource) -> watch::Receiver<u64> {
        self.changed[resource as usize].subscribe()
    }

    fn record(
        &self,
        mut state: MutexGuard<'_, State>,
        resource: Resource,
        before: Option<Arc<Object>>,
        after: Option<Arc<Object>>,
        deleted: Option<Arc<Object>>,
    ) {
        state.version += 1;
        let version = state.version;
        let table = &mut state.tables[resource as usize];
        table.events.push_back(Event { version, before, after, deleted });
        while table.events.len() > self.window {
            if let Some(event) = table.events.pop_front() {
                table.compacted = event.version;
            }
        }
        drop(state);
        // Concurrent writers can get here out of order; receivers need the newest version only.
        self.changed[resource as usize].send_modify(|last| *last = version.max(*last));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics between two parts of a change, so the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
