//! The difference between a pool as it should be and as the API server stores it: a pure function from state to writes.
//!
//! A stored slice with a desired index and the highest generation is updated in place; all others of the pool are deleted. A
//! change of one slice keeps the generation. A change of several, or an additional slice, is a new generation with which every
//! slice is written, because the scheduler uses the slices of the highest generation, and only if all of them exist.

use super::content::TaintTime;
use super::desired::DesiredPool;
use super::name;
use super::stored::StoredSlice;

/// The writes that a pool needs. Numbers are indices of desired and of stored slices.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Writes {
    /// The generation that is written.
    pub(super) generation: i64,
    /// Stored slices that the scheduler would count among the new ones: deleted first.
    pub(super) delete_first: Vec<usize>,
    /// Pairs of desired and stored slices.
    pub(super) update: Vec<(usize, usize)>,
    /// Desired slices.
    pub(super) create: Vec<usize>,
    /// Stored slices of older generations, which the scheduler ignores: deleted once the new ones exist (G53).
    pub(super) delete_last: Vec<usize>,
}

impl Writes {
    pub(super) fn len(&self) -> usize {
        self.delete_first.len() + self.update.len() + self.create.len() + self.delete_last.len()
    }
}

/// What is known about a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) stored: &'a [StoredSlice],
    /// The highest generation that the pool ever had.
    pub(super) remembered: i64,
    /// The generation whose rollout was interrupted: it is finished, and not started again.
    pub(super) rollout: Option<i64>,
}

/// Returns the writes that a pool needs; `None` is a pool that should not exist. `is_current` tells whether a stored slice has
/// the desired content, or all of it that the API server keeps.
pub(super) fn diff(
    desired: Option<&DesiredPool>,
    Known { stored, remembered, rollout }: Known<'_>,
    is_current: impl Fn(usize, &StoredSlice) -> bool,
) -> Writes {
    let Some(desired) = desired else {
        return Writes { delete_first: (0..stored.len()).collect(), ..Writes::default() };
    };
    let highest = stored.iter().map(|slice| slice.generation).max().unwrap_or(0);
    let width = name::width(desired.slices.len());
    let is_rollout = rollout == Some(highest) && highest > 0;
    let mut current: Vec<Option<usize>> = vec![None; desired.slices.len()];
    let mut obsolete = Vec::new();
    let (newest, older): (Vec<usize>, Vec<usize>) =
        (0..stored.len()).partition(|number| stored[*number].generation == highest);
    for number in newest.into_iter().chain(older) {
        let slice = &stored[number];
        let slot = if slice.generation == highest || is_rollout {
            name::index(&slice.name, width).and_then(|index| current.get_mut(index))
        } else {
            None
        };
        match slot {
            Some(slot @ None) => *slot = Some(number),
            _ => obsolete.push(number),
        }
    }
    let count = i64::try_from(desired.slices.len()).unwrap_or(i64::MAX);
    let mut changed = Vec::new();
    let mut create = Vec::new();
    for (index, slot) in current.iter().enumerate() {
        match slot {
            None => create.push(index),
            Some(number) => {
                let slice = &stored[*number];
                let is_old = slice.generation != highest || slice.count != count;
                if is_old || times_differ(desired, index, slice) || !is_current(index, slice) {
                    changed.push((index, *number));
                }
            }
        }
    }
    let generation = if desired.generation() > highest.max(remembered) {
        desired.generation()
    } else if is_rollout || (create.is_empty() && changed.len() <= 1) {
        highest
    } else {
        highest.max(remembered) + 1
    };
    let update = if generation == highest {
        changed
    } else {
        current.iter().enumerate().filter_map(|(index, slot)| Some((index, (*slot)?))).collect()
    };
    let (delete_first, delete_last) = obsolete.into_iter().partition(|number| stored[*number].generation >= generation);
    Writes { generation, delete_first, update, create, delete_last }
}

fn times_differ(desired: &DesiredPool, index: usize, stored: &StoredSlice) -> bool {
    if stored.taints.is_empty() {
        return false;
    }
    let desired = desired.slices.get(index).map_or(&[][..], |slice| slice.devices.taints());
    TaintTime::differ(desired.iter().map(|(_, taint)| taint), stored.taints.iter().map(|(_, taint)| taint))
}

#[cfg(test)]
mod tests;
