//! Applying what the list and the watch report.

use std::collections::BTreeMap;
use std::mem::discriminant;

use drakkar_client::ApiError;

use super::super::api::Listed;
use super::super::reflector::Change;
use super::super::stored::{StoredSlice, is_newer};
use super::super::write::{Permission, explain};
use super::{Listing, PublisherTask};

impl PublisherTask {
    /// Applies a change of the API server's slices.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::ListStarting(paused) => {
                self.expect_list();
                // The receiver may be gone, if the reflector was aborted.
                let _ = paused.send(self.newest_version());
                return;
            }
            Change::Failed { what, error } => return self.watch_failed(what, error),
            Change::Listed(listed) => self.apply_list(listed),
            Change::Recovered => {}
            Change::Applied(slice) => {
                let state = self.pools.entry(slice.pool.clone()).or_default();
                if state.apply(*slice) {
                    state.schedule_repair();
                }
            }
            Change::Deleted(slice) => self.apply_deletion(&slice),
        }
        self.watch_error = None;
    }

    /// Stops writes until a list arrives.
    pub(super) fn expect_list(&mut self) {
        if matches!(self.listing, Listing::Done) {
            self.listing = Listing::Again;
        }
    }

    fn watch_failed(&mut self, what: &str, error: ApiError) {
        // The slices that are known are the best there is: writes that conflict ask for another list.
        if matches!(self.listing, Listing::Again) {
            self.listing = Listing::Done;
        }
        let error = explain(what.to_owned(), Permission::Slices, error);
        let is_new = self.watch_error.as_ref().is_none_or(|known| discriminant(known) != discriminant(&error));
        self.report(&error, is_new);
        self.watch_error = Some(error);
    }

    fn apply_list(&mut self, listed: Listed) {
        let mut by_pool: BTreeMap<String, Vec<StoredSlice>> =
            self.pools.keys().map(|pool| (pool.clone(), Vec::new())).collect();
        for slice in listed.slices {
            by_pool.entry(slice.pool.clone()).or_default().push(slice);
        }
        let before = std::mem::replace(&mut self.listing, Listing::Done);
        let is_first = matches!(before, Listing::First { .. });
        for (pool, slices) in by_pool {
            let state = self.pools.entry(pool).or_default();
            if state.replace(slices, listed.is_current) && !is_first {
                state.schedule_repair();
            }
        }
        if let Listing::First { published } = before {
            self.join_election();
            self.set_desired(published, true);
        }
    }

    fn apply_deletion(&mut self, slice: &StoredSlice) {
        let Some(state) = self.pools.get_mut(&slice.pool) else { return };
        let is_foreign = state.remove(&slice.uid);
        if state.is_gone() {
            // The next sync drops the state.
            state.set_due();
        } else if is_foreign {
            tracing::info!(slice = slice.name, pool = slice.pool, "slice deleted by another client");
            state.schedule_repair();
            // The node may have been replaced by another of the same name: then the garbage collector deletes slices that are
            // owned by the old UID as often as they are created.
            self.owner_uid.clone_from(&self.config.node_uid);
        }
    }

    /// Returns the newest resource version of the known slices.
    fn newest_version(&self) -> Option<String> {
        let versions = self.pools.values().flat_map(|state| &state.stored).map(|slice| &slice.resource_version);
        versions.reduce(|newest, version| if is_newer(version, newest) { version } else { newest }).cloned()
    }
}
