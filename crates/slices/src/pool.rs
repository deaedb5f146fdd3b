//! One pool: what is wanted of it, what the API server has of it, and when to look at the difference again.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::content::{Digest, TaintTime};
use super::diff::{Known, Writes, diff};
use super::name;
use super::stored::Stored;
use super::wanted::{Checked, Wanted};
use drakkar_client::Backoff;
use drakkar_client::backoff::jittered;

/// How long after a change by somebody else the next one is waited for: a kubelet that wipes slices deletes one after the
/// other.
const SETTLE: Duration = Duration::from_millis(50);
/// How long that may go on.
const SETTLE_AT_MOST: Duration = Duration::from_millis(500);
/// How often slices are repaired at once within a minute. Whoever needs more than that has an adversary.
const REPAIRS: usize = 5;
const REPAIRS_WITHIN: Duration = Duration::from_secs(60);
const CONTEST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// When to see whether the API server keeps fields by now that it has dropped.
const DROPPED: Backoff = Backoff::new(Duration::from_secs(300), Duration::from_secs(3600));

/// A pool, wanted or not.
#[derive(Debug, Default)]
pub(super) struct PoolState {
    pub(super) wanted: Option<Wanted>,
    /// Whether what the driver published last is not valid, so that everything stays as it was.
    pub(super) is_held: bool,
    pub(super) stored: Vec<Stored>,
    /// The UIDs of slices that were deleted here. The watch may still tell older things of them.
    deleted: Vec<String>,
    /// Since when taints are there, by device, also while no slice says so.
    taints: HashMap<String, Vec<TaintTime>>,
    /// What the API server made of what it was sent, where it dropped fields.
    settled_for: HashMap<Digest, Digest>,
    /// How often that was found so.
    drops: u32,
    /// What was sent to see whether fields are kept by now.
    probe: Option<Digest>,
    retry_dropped: Option<Instant>,
    pub(super) was_told_of_drops: bool,
    /// The generation that is being written, from its first slice to its last.
    pub(super) rollout: Option<i64>,
    /// When to look at the difference.
    pub(super) due: Option<Instant>,
    /// Since when somebody else has been changing slices.
    disturbed: Option<Instant>,
    repairs: VecDeque<Instant>,
    pub(super) failures: u32,
    /// Of what kind the trouble is that the driver was told of last.
    pub(super) told: Option<std::mem::Discriminant<super::PublishError>>,
    pub(super) problem: Option<String>,
}

impl PoolState {
    /// Wants something else of the pool.
    pub(super) fn want(&mut self, checked: Option<Checked>) -> Result<(), serde_json::Error> {
        self.wanted = match checked {
            None => None,
            Some(checked) => {
                let (homes, slices) = self.homes();
                Some(checked.split(|device| homes.get(device).copied(), slices)?)
            }
        };
        self.forget_taints();
        self.is_held = false;
        self.rollout = None;
        self.was_told_of_drops = false;
        self.drops = 0;
        let wanted = self.wanted.as_ref();
        self.settled_for
            .retain(|sent, _| wanted.is_some_and(|wanted| wanted.slices.iter().any(|slice| slice.digest == *sent)));
        if self.settled_for.is_empty() {
            self.retry_dropped = None;
            self.probe = None;
        }
        self.calm();
        self.due = Some(Instant::now());
        Ok(())
    }

    /// In which slice each device is, and how many slices there are.
    fn homes(&self) -> (HashMap<&str, usize>, usize) {
        if let Some(wanted) = &self.wanted {
            let items = (0..wanted.slices.len())
                .flat_map(|slice| wanted.items(slice).iter().map(move |item| (&*item.name, slice)));
            return (items.collect(), wanted.slices.len());
        }
        // What an earlier process published.
        let Some(highest) = self.stored.iter().map(|slice| slice.generation).max() else { return (HashMap::new(), 0) };
        let width = name::width(self.stored.len());
        let (mut homes, mut slices) = (HashMap::new(), 0);
        for slice in self.stored.iter().filter(|slice| slice.generation == highest) {
            let Some(index) = name::index(&slice.name, width).filter(|index| *index < self.stored.len()) else {
                continue;
            };
            slices = slices.max(index + 1);
            homes.extend(slice.devices.iter().map(|device| (&**device, index)));
        }
        (homes, slices)
    }

    /// A taint that is not wanted any more has no time to keep: when it comes again, it is new.
    fn forget_taints(&mut self) {
        let Some(wanted) = &self.wanted else { return self.taints.clear() };
        self.taints.retain(|device, known| {
            let item = wanted.devices.get(device);
            known.retain(|taint| item.is_some_and(|item| item.taints.iter().any(|one| one.is_same_taint(taint))));
            !known.is_empty()
        });
    }

    /// Since when taints are there, by device.
    pub(super) fn taints(&self) -> &HashMap<String, Vec<TaintTime>> {
        &self.taints
    }

    /// Trouble is over.
    pub(super) fn calm(&mut self) {
        self.failures = 0;
        if !self.is_held {
            self.told = None;
            self.problem = None;
        }
    }

    /// Takes over what the API server has now of a slice, and says whether that is news.
    pub(super) fn put(&mut self, slice: Stored) -> bool {
        if self.deleted.contains(&slice.uid) {
            return false;
        }
        self.learn_taints(&slice);
        match self.stored.iter_mut().find(|known| known.uid == slice.uid) {
            Some(known) if !slice.is_newer_than(&known.resource_version) => false,
            Some(known) => {
                *known = slice;
                true
            }
            None => {
                self.stored.push(slice);
                // Which of two slices with the same index is the first does not depend on who came first.
                self.stored.sort_by(|one, other| one.name.cmp(&other.name));
                true
            }
        }
    }

    fn learn_taints(&mut self, slice: &Stored) {
        for (device, taint) in slice.taints_by_device() {
            let known = self.taints.entry(device.to_owned()).or_default();
            match known.iter_mut().find(|known| known.is_same_taint(taint)) {
                Some(known) => known.added = taint.added.or(known.added),
                None => known.push(taint.clone()),
            }
        }
    }

    /// A slice is gone. Says whether that is news: not if it was deleted here.
    pub(super) fn gone(&mut self, uid: &str) -> bool {
        self.deleted.retain(|deleted| deleted != uid);
        let before = self.stored.len();
        self.stored.retain(|slice| slice.uid != uid);
        self.stored.len() < before
    }

    /// Records that a slice was deleted here.
    pub(super) fn record_deletion(&mut self, uid: &str) {
        self.stored.retain(|slice| slice.uid != uid);
        self.deleted.push(uid.to_owned());
    }

    /// Replaces what is known by a list, and says whether that is news.
    ///
    /// Versions are not compared: a list is never older than what was written here (`source` sees to it), and in a cluster
    /// that was restored from a backup the older version is the true one. Only a list that is not `is_current` may still have
    /// slices that were deleted here.
    pub(super) fn replace(&mut self, mut listed: Vec<Stored>, is_current: bool) -> bool {
        if is_current {
            self.deleted.clear();
        }
        self.deleted.retain(|uid| listed.iter().any(|slice| slice.uid == *uid));
        listed.retain(|slice| !self.deleted.contains(&slice.uid));
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        listed.iter().for_each(|slice| self.learn_taints(slice));
        let state = |slice: &Stored| (slice.uid.clone(), slice.resource_version.clone());
        let is_news = !listed.iter().map(state).eq(self.stored.iter().map(state));
        self.stored = listed;
        is_news
    }

    /// Somebody else has changed something.
    pub(super) fn disturb(&mut self) {
        if self.is_left_alone() {
            return;
        }
        let now = Instant::now();
        let was_disturbed = self.disturbed.is_some();
        let since = *self.disturbed.get_or_insert(now);
        let due = (now + SETTLE).min(since + SETTLE_AT_MOST);
        self.due = Some(match self.due {
            // What is waited for because of trouble is still waited for.
            Some(other) if self.failures > 0 => other.max(due),
            Some(other) if !was_disturbed => other.min(due),
            _ => due,
        });
    }

    /// What has to be written. None while it must not be.
    pub(super) fn writes(&mut self, remembered: i64) -> Option<Writes> {
        if self.is_left_alone() {
            self.due = None;
            return None;
        }
        if let Some(when) = self.retry_dropped.filter(|when| *when <= Instant::now()) {
            tracing::debug!(since = ?when.elapsed(), "seeing whether the API server keeps fields that it dropped");
            self.retry_dropped = None;
            // One slice is enough to find out.
            self.probe = self.settled_for.keys().next().copied();
            if let Some(sent) = self.probe {
                self.settled_for.remove(&sent);
            }
        }
        let known = Known { stored: &self.stored, remembered, rollout: self.rollout };
        let writes = diff(self.wanted.as_ref(), known, |index, slice| {
            let wanted = self.wanted.as_ref().and_then(|wanted| wanted.slices.get(index)).map(|slice| slice.digest);
            wanted.is_some_and(|wanted| wanted == slice.digest || self.settled_for.get(&wanted) == Some(&slice.digest))
        });
        Some(writes)
    }

    /// Nothing had to be written after all.
    pub(super) fn is_in_order(&mut self) {
        self.disturbed = None;
        self.rollout = None;
        self.calm();
    }

    /// Whether slices are to be left alone for now because somebody else writes them all the time.
    pub(super) fn is_contested(&mut self) -> bool {
        let now = Instant::now();
        if self.disturbed.take().is_none() {
            return false;
        }
        while self.repairs.front().is_some_and(|repair| now.duration_since(*repair) > REPAIRS_WITHIN) {
            self.repairs.pop_front();
        }
        self.repairs.push_back(now);
        let too_many = self.repairs.len().saturating_sub(REPAIRS);
        if too_many > 0 {
            self.due = Some(now + CONTEST.delay(u32::try_from(too_many).unwrap_or(u32::MAX)));
        }
        too_many > 0
    }

    /// The API server kept a slice as it was sent.
    pub(super) fn kept(&mut self, sent: Digest) {
        self.settled_for.remove(&sent);
        if self.probe.take_if(|probe| *probe == sent).is_some() && !self.settled_for.is_empty() {
            // It keeps now what it dropped: the others are worth a try.
            self.settled_for.clear();
            self.due = Some(Instant::now());
        }
        if self.settled_for.is_empty() {
            self.drops = 0;
            self.retry_dropped = None;
        }
    }

    /// The API server dropped fields of a slice: that is what can be had, for now.
    pub(super) fn settle(&mut self, sent: Digest, got: Digest) {
        self.settled_for.insert(sent, got);
        if self.retry_dropped.is_none() {
            self.drops += 1;
            self.retry_dropped = Some(Instant::now() + DROPPED.delay(self.drops));
        }
    }

    /// Whether the pool is to stay as it is: what the driver wants is not valid, and it wanted nothing before.
    fn is_left_alone(&self) -> bool {
        self.is_held && self.wanted.is_none()
    }

    /// When to look next. A time that has come is only told where looking leads somewhere: it is the task's next wake-up.
    pub(super) fn next(&self) -> Option<Instant> {
        if self.is_left_alone() { None } else { [self.due, self.retry_dropped].into_iter().flatten().min() }
    }

    /// Whether nothing is left of the pool.
    pub(super) fn is_forgotten(&self) -> bool {
        self.wanted.is_none()
            && !self.is_held
            && self.stored.is_empty()
            && self.due.is_none()
            && self.deleted.is_empty()
    }

    /// Waits, because a newer instance publishes.
    pub(super) fn stand_by(&mut self, pause: Duration) {
        let until = Instant::now() + jittered(pause, 1.0..=2.0);
        self.due = Some(until);
        // Neither is it the time to see whether dropped fields are kept by now.
        self.retry_dropped = self.retry_dropped.map(|when| when.max(until));
        self.disturbed = None;
    }
}
