//! What the API server has, as the list and the watch tell it.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::super::source::Change;
use super::super::stored::is_newer;
use super::super::write::explain;
use super::Task;

impl Task {
    /// Takes over what happened to slices.
    pub(super) fn learn(&mut self, change: Change) {
        match change {
            Change::Listing(paused) => {
                self.is_list_awaited = true;
                // Whoever asked may be gone.
                let _ = paused.send(self.newest_version());
                return;
            }
            Change::Trouble { what, error } => {
                self.is_list_awaited = false;
                let error = explain(what.to_owned(), &error);
                let kind = std::mem::discriminant(&error);
                let is_new = self.source_trouble.as_ref().is_none_or(|known| std::mem::discriminant(known) != kind);
                self.report(&error, is_new);
                self.source_trouble = Some(error);
                return;
            }
            Change::All(listed) => {
                let mut by_pool: BTreeMap<String, Vec<_>> = BTreeMap::new();
                for pool in self.pools.keys() {
                    by_pool.insert(pool.clone(), Vec::new());
                }
                for slice in listed.slices {
                    by_pool.entry(slice.pool.clone()).or_default().push(slice);
                }
                self.is_list_awaited = false;
                let was_listed = std::mem::replace(&mut self.is_listed, true);
                if !was_listed {
                    self.take_turn();
                }
                for (pool, slices) in by_pool {
                    let state = self.pools.entry(pool).or_default();
                    if state.replace(slices, listed.is_current) && was_listed {
                        state.disturb();
                    }
                }
                if self.checked.is_some() {
                    self.want();
                }
            }
            Change::Fine => {}
            Change::Put(slice) => {
                let state = self.pools.entry(slice.pool.clone()).or_default();
                if state.put(*slice) {
                    state.disturb();
                }
            }
            Change::Gone(slice) => {
                if let Some(state) = self.pools.get_mut(&slice.pool) {
                    let is_news = state.gone(&slice.uid);
                    if state.is_forgotten() {
                        // Nothing is left of the pool: the next pass drops it.
                        state.due = Some(Instant::now());
                    } else if is_news {
                        tracing::info!(slice = slice.name, pool = slice.pool, "somebody else deleted a slice");
                        state.disturb();
                        // The node may be another of the same name: slices of a node that is gone are collected again and
                        // again.
                        self.owner_uid.clone_from(&self.config.node_uid);
                    }
                }
            }
        }
        self.source_trouble = None;
    }

    /// The newest version of a slice that is known.
    fn newest_version(&self) -> Option<String> {
        let versions = self.pools.values().flat_map(|state| &state.stored).map(|slice| &slice.resource_version);
        versions.reduce(|newest, version| if is_newer(version, newest) { version } else { newest }).cloned()
    }
}
