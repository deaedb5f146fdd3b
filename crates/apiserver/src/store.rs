//! What `etcd` and the watch cache are to a real server: all objects, and a bounded memory of what happened to them.
//!
//! One counter gives every write its resource version. An object, once stored, never changes: readers share it, and it is
//! serialized once, however many clients get it. A watcher is not known here: it remembers how far it is and asks for
//! what came since, so a slow one holds up no writer; when it has fallen behind the window, it is told so.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use super::resource::Resource;

/// Namespace (empty for cluster-wide objects) and name.
pub(crate) type Key = (String, String);

/// An object as it was at one version. `apiVersion` and `kind` are not in it: the path that it is read by gives them.
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

    /// An object that is not stored.
    pub(crate) fn draft(value: Value) -> Self {
        Self { value, version: 0, json: OnceLock::new() }
    }

    /// The object as JSON, without `apiVersion` and `kind`.
    pub(crate) fn json(&self) -> &Bytes {
        self.json.get_or_init(|| self.value.to_string().into())
    }
}

/// What happened to an object: it came when it was not there before, it went when it is not there after.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) version: u64,
    pub(crate) before: Option<Arc<Object>>,
    pub(crate) after: Option<Arc<Object>>,
    /// The last state, with the version of the deletion.
    pub(crate) deleted: Option<Arc<Object>>,
}

/// All objects at one time, as a backup of `etcd` has them.
#[derive(Clone, Debug)]
pub struct Snapshot {
    version: u64,
    objects: Vec<BTreeMap<Key, Arc<Object>>>,
}

/// The version that was asked for is older than the window.
#[derive(Debug)]
pub(crate) struct Expired {
    pub(crate) oldest: u64,
}

/// The object is not, or no longer, what the caller has seen.
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
    /// The version of the newest event that is forgotten.
    forgotten: u64,
}

impl Store {
    /// `window`: how many events of a resource are remembered.
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

    /// The objects of one namespace, or of all, by name, and the version at which they are these.
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

    pub(crate) fn create(&self, resource: Resource, key: Key, value: Value) -> Result<Arc<Object>, Stale> {
        let mut state = self.state();
        if state.tables[resource as usize].objects.contains_key(&key) {
            return Err(Stale);
        }
        let object = Arc::new(Object::new(value, state.version + 1));
        state.tables[resource as usize].objects.insert(key, object.clone());
        self.record(state, resource, None, Some(object.clone()), None);
        Ok(object)
    }

    /// Puts `value` in the place of what is there, if that has still the version `seen`.
    pub(crate) fn replace(&self, resource: Resource, key: &Key, seen: u64, value: Value) -> Result<Arc<Object>, Stale> {
        let mut state = self.state();
        let version = state.version + 1;
        let Some(place) = state.tables[resource as usize].objects.get_mut(key).filter(|old| old.version == seen) else {
            return Err(Stale);
        };
        let object = Arc::new(Object::new(value, version));
        let before = std::mem::replace(place, object.clone());
        self.record(state, resource, Some(before), Some(object.clone()), None);
        Ok(object)
    }

    /// Removes the object if it has still the version `seen`; the result is `last` with the version of the deletion.
    pub(crate) fn remove(&self, resource: Resource, key: &Key, seen: u64, last: Value) -> Result<Arc<Object>, Stale> {
        let mut state = self.state();
        let version = state.version + 1;
        let objects = &mut state.tables[resource as usize].objects;
        if objects.get(key).is_none_or(|old| old.version != seen) {
            return Err(Stale);
        }
        let before = objects.remove(key);
        let deleted = Arc::new(Object::new(last, version));
        self.record(state, resource, before, None, Some(deleted.clone()));
        Ok(deleted)
    }

    /// All objects as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let objects = state.tables.iter().map(|table| table.objects.clone()).collect();
        Snapshot { version: state.version, objects }
    }

    /// Has the objects of a snapshot again, and its version: versions that were given out since will be given out again.
    /// Nothing is remembered of what happened.
    pub(crate) fn restore(&self, snapshot: &Snapshot) {
        let mut state = self.state();
        state.version = snapshot.version;
        for (table, objects) in state.tables.iter_mut().zip(&snapshot.objects) {
            *table = Table { objects: objects.clone(), events: VecDeque::new(), forgotten: snapshot.version };
        }
        drop(state);
        for changed in &self.changed {
            changed.send_replace(snapshot.version);
        }
    }

    /// What happened after `version`, at most `most` events, and the version up to which this is all.
    pub(crate) fn since(&self, resource: Resource, version: u64, most: usize) -> Result<(u64, Vec<Event>), Expired> {
        let state = self.state();
        let table = &state.tables[resource as usize];
        if version < table.forgotten {
            return Err(Expired { oldest: table.forgotten });
        }
        let from = table.events.partition_point(|event| event.version <= version);
        let events: Vec<Event> = table.events.range(from..).take(most).cloned().collect();
        let upto = match events.last() {
            Some(last) if from + events.len() < table.events.len() => last.version,
            _ => state.version,
        };
        Ok((upto, events))
    }

    /// Changes whenever something happened to an object of the resource.
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
                table.forgotten = event.version;
            }
        }
        drop(state);
        // Two writers may come here in the other order; a receiver only wants to know that there is something new.
        self.changed[resource as usize].send_modify(|last| *last = version.max(*last));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
