//! What has to be written so that the API server has a pool as it is wanted: a decision about facts, nothing is done here.
//!
//! A slice of the wanted index and the highest generation is brought up to date; everything else of the pool goes. A change
//! of one slice is just that; more than one, or a slice more, is a new generation, which every slice is written with, since
//! the scheduler takes the slices of the highest generation and only if all of them are there.

use super::content::TaintTime;
use super::name;
use super::stored::Stored;
use super::wanted::Wanted;

/// What is to be written. Indices are those of the wanted and of the stored slices.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Writes {
    /// The generation that the pool has then.
    pub(super) generation: i64,
    /// Slices that would be counted among the new ones: to be deleted first.
    pub(super) delete_first: Vec<usize>,
    /// Wanted and stored.
    pub(super) update: Vec<(usize, usize)>,
    pub(super) create: Vec<usize>,
    /// Slices of older generations, which are in nobody's way: to be deleted when the new ones are there (G53).
    pub(super) delete_last: Vec<usize>,
}

impl Writes {
    pub(super) fn len(&self) -> usize {
        self.delete_first.len() + self.update.len() + self.create.len() + self.delete_last.len()
    }
}

/// What is known of a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) stored: &'a [Stored],
    /// The highest generation that it ever had.
    pub(super) remembered: i64,
    /// The generation that is being written, if not all of it is written yet. It is finished, and not begun anew.
    pub(super) rollout: Option<i64>,
}

/// What has to be written. `is_as_good` tells whether what the API server has is the best that can be had of what is wanted.
pub(super) fn diff(
    wanted: Option<&Wanted>,
    Known { stored, remembered, rollout }: Known<'_>,
    is_as_good: impl Fn(usize, &Stored) -> bool,
) -> Writes {
    let Some(wanted) = wanted else {
        return Writes { delete_first: (0..stored.len()).collect(), ..Writes::default() };
    };
    let highest = stored.iter().map(|slice| slice.generation).max().unwrap_or(0);
    let width = name::width(wanted.slices.len());
    let is_rollout = rollout == Some(highest) && highest > 0;
    let mut current: Vec<Option<usize>> = vec![None; wanted.slices.len()];
    let mut obsolete = Vec::new();
    let (newest, older): (Vec<usize>, Vec<usize>) =
        (0..stored.len()).partition(|number| stored[*number].generation == highest);
    for number in newest.into_iter().chain(older) {
        let slice = &stored[number];
        let place = match slice.generation == highest || is_rollout {
            true => name::index(&slice.name, width).and_then(|index| current.get_mut(index)),
            false => None,
        };
        match place {
            Some(place @ None) => *place = Some(number),
            _ => obsolete.push(number),
        }
    }
    let count = i64::try_from(wanted.slices.len()).unwrap_or(i64::MAX);
    let mut changed = Vec::new();
    let mut create = Vec::new();
    for (index, place) in current.iter().enumerate() {
        match place {
            None => create.push(index),
            Some(number) => {
                let slice = &stored[*number];
                let is_old = slice.generation != highest || slice.count != count;
                if is_old || times_differ(wanted, index, slice) || !is_as_good(index, slice) {
                    changed.push((index, *number));
                }
            }
        }
    }
    let generation = if wanted.generation > highest.max(remembered) {
        wanted.generation
    } else if is_rollout || (create.is_empty() && changed.len() <= 1) {
        highest
    } else {
        highest.max(remembered) + 1
    };
    let update = match generation == highest {
        true => changed,
        false => current.iter().enumerate().filter_map(|(index, place)| Some((index, (*place)?))).collect(),
    };
    let (delete_first, delete_last) = obsolete.into_iter().partition(|number| stored[*number].generation >= generation);
    Writes { generation, delete_first, update, create, delete_last }
}

fn times_differ(wanted: &Wanted, index: usize, stored: &Stored) -> bool {
    if stored.taints.is_empty() {
        return false;
    }
    let theirs: Vec<TaintTime> = stored.taints.iter().map(|(_, taint)| taint.clone()).collect();
    TaintTime::differ(&wanted.taints(index), &theirs)
}

#[cfg(test)]
mod tests;
