//! Which call works on which claim: calls for the same claim wait for each other.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use drakkar_metadata::name::ClaimUid;

/// The claims that calls work on.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<BTreeSet<ClaimUid>>,
    given_back: Condvar,
}

/// The right to work on claims, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    claims: BTreeSet<ClaimUid>,
}

impl Turns {
    /// Waits until no other call works on any of these claims, then takes all of them at once: a call has one turn, so no two
    /// calls wait for each other. `None`: it took too long.
    pub(super) fn wait(&self, claims: BTreeSet<ClaimUid>, until: Instant) -> Option<Turn<'_>> {
        let mut taken = self.taken();
        while !claims.is_disjoint(&taken) {
            let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            taken = self.given_back.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        taken.extend(claims.iter().cloned());
        Some(Turn { turns: self, claims })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeSet<ClaimUid>> {
        // The set is whole after every operation on it, also if a thread panicked.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = self.turns.taken();
        for claim in &self.claims {
            taken.remove(claim);
        }
        self.turns.given_back.notify_all();
    }
}
