//! The table of devices: their states, the order of changes, and their leases. It has no clock and no tasks.
//!
//! Every change of a device gets the next change number, and the table keeps the last change of each device in that order.
//! A stream remembers the number up to which it has read. So all streams share one copy of the states, a slow stream finds
//! the latest states, and a state is resent by giving it a new number.
//!
//! A forgotten device is sent as unknown with the shortest lease, because the protocol has no message for it. It stays in
//! the table as *gone* until all streams have read that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drakkar_metadata::name::{DeviceName, NameError, PoolName};
use tokio::time::Instant;

use super::{DEFAULT_LEASE, DeviceHealth, DeviceList, HealthError, HealthStatus, HealthSummary};

/// The number of devices that a kubelet keeps per driver.
pub(super) const MAX_DEVICES: usize = 16384;

/// The bytes of a message that a kubelet keeps.
pub(super) const MAX_MESSAGE: usize = 1024;

/// The limit for the devices in one gRPC message. Clients accept 4 MiB; the rest is a margin for what is not counted.
const MAX_BATCH: usize = 4 * 1024 * 1024 - 64 * 1024;

/// The bytes of a device in a gRPC message except for its texts: tags, lengths and numbers.
const DEVICE_OVERHEAD: usize = 48;

/// Longer leases are shortened to this, so that deadlines cannot overflow.
const MAX_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The longest interval between resends: how long a kubelet that lost its state is without it.
const MAX_RESEND: Duration = Duration::from_secs(10);

/// The shortest interval between resends, for very short leases.
const MIN_RESEND: Duration = Duration::from_millis(333);

/// Devices that are due within this time are resent together.
const RESEND_SLACK: Duration = Duration::from_millis(100);

/// A device's pool and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct DeviceKey {
    pool: PoolName,
    device: DeviceName,
}

impl DeviceKey {
    pub(super) fn new(pool: impl AsRef<str>, device: impl AsRef<str>) -> Result<Self, NameError> {
        Ok(Self { pool: PoolName::new(pool)?, device: DeviceName::new(device)? })
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.pool, self.device)
    }
}

/// The state of a device as streams send it, in both versions of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceState {
    pub(crate) pool_name: String,
    pub(crate) device_name: String,
    pub(crate) health: HealthStatus,
    pub(crate) message: String,
    /// In whole seconds, at least one: a kubelet replaces 0 by its default.
    pub(crate) lease_seconds: i64,
    /// In seconds since the Unix epoch.
    pub(crate) last_updated: i64,
}

/// Identifies a stream that reads the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ReaderId(u64);

type Id = u64;
type Change = u64;

/// All devices, and the read position of each stream.
#[derive(Debug, Default)]
pub(super) struct Table {
    devices: HashMap<Id, Device>,
    keys: HashMap<Arc<DeviceKey>, Id>,
    indexes: Indexes,
    readers: HashMap<ReaderId, ReadPosition>,
    last_id: Id,
    last_change: Change,
    last_reader: u64,
    /// The devices that were last skipped, so that a driver that repeats its report gets the error once.
    last_skipped: Skipped,
}

/// The devices of a report that were skipped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Skipped {
    /// The first invalid name.
    invalid_name: Option<NameError>,
    /// Devices beyond [`MAX_DEVICES`].
    excess: DeviceList,
}

impl Skipped {
    fn is_empty(&self) -> bool {
        self.invalid_name.is_none() && self.excess.is_empty()
    }

    fn into_errors(self) -> Vec<HealthError> {
        let mut errors = vec![];
        errors.extend(self.invalid_name.map(HealthError::InvalidName));
        if !self.excess.is_empty() {
            errors.push(HealthError::TooManyDevices { devices: self.excess });
        }
        errors
    }
}

impl Table {
    /// Applies a report. Returns errors for skipped devices, unless the last report with skipped devices had the same.
    pub(super) fn report(&mut self, report: Vec<DeviceHealth>, now: Instant, wall: SystemTime) -> Vec<HealthError> {
        let mut skipped = Skipped::default();
        for device in report {
            let DeviceHealth { pool_name, device_name, health, message, lease, last_updated } = device;
            let key = match DeviceKey::new(pool_name, device_name) {
                Ok(key) => key,
                Err(error) => {
                    skipped.invalid_name.get_or_insert(error);
                    continue;
                }
            };
            let last_updated = unix_seconds(last_updated.unwrap_or(wall));
            let Some(id) = self.find_or_insert(&key, now, wall) else {
                skipped.excess.push(&key);
                continue;
            };
            let lease = match lease {
                None | Some(Duration::ZERO) => DEFAULT_LEASE,
                Some(lease) => lease.min(MAX_LEASE),
            };
            let message = truncate(message);
            // Gaps in the change numbers are harmless.
            let change = self.next_change();
            self.edit(id, |device| {
                let fresh = matches!(device.phase, Phase::Fresh(_));
                let same = (device.health, device.lease) == (health, lease) && device.message == message;
                device.health = health;
                device.message = message;
                device.lease = lease;
                device.last_updated = last_updated;
                device.phase = Phase::Fresh(now + lease);
                if !(fresh && same) {
                    device.send(change, now);
                }
            });
        }
        if skipped.is_empty() || skipped == self.last_skipped {
            return vec![];
        }
        self.last_skipped = skipped.clone();
        skipped.into_errors()
    }

    /// Forgets a device and announces that to the streams that know it.
    pub(super) fn forget(&mut self, key: &DeviceKey, now: Instant, wall: SystemTime) {
        if let Some(id) = self.keys.get(key).copied().filter(|id| self.is_present(*id)) {
            self.mark_gone(id, now, wall);
            self.last_skipped = Skipped::default();
        }
    }

    /// Marks all devices as unknown, for this reason.
    pub(super) fn mark_all_unknown(&mut self, reason: &str, now: Instant, wall: SystemTime) {
        let message = truncate(reason.to_owned());
        for id in self.indexes.changes.values().copied().collect::<Vec<_>>() {
            if self.is_present(id) {
                let change = self.next_change();
                self.edit(id, |device| {
                    device.mark_unknown(message.clone(), now, wall);
                    device.send(change, now);
                });
            }
        }
    }

    /// Processes what is due: marks devices with an expired lease as unknown and returns them, and resends other devices.
    pub(super) fn process_due(&mut self, now: Instant, wall: SystemTime) -> DeviceList {
        let mut expired = DeviceList::default();
        while let Some((_, id)) = self.indexes.fresh.first().copied().filter(|(end, _)| *end <= now) {
            let change = self.next_change();
            self.edit(id, |device| {
                expired.push(&device.key);
                device.mark_unknown(format!("no health report for {:?}", device.lease), now, wall);
                device.send(change, now);
            });
        }
        let is_due = |first: Option<&(Instant, Id)>, until| first.copied().filter(|(due, _)| *due <= until);
        if !self.readers.is_empty() && is_due(self.indexes.resends.first(), now).is_some() {
            while let Some((_, id)) = is_due(self.indexes.resends.first(), now + RESEND_SLACK) {
                let change = self.next_change();
                self.edit(id, |device| device.send(change, now));
            }
        }
        expired
    }

    /// Returns when [`Self::process_due`] is due next. Without a stream nothing is resent.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let expiry = self.indexes.fresh.first();
        let resend = self.indexes.resends.first().filter(|_| !self.readers.is_empty());
        expiry.into_iter().chain(resend).map(|(deadline, _)| *deadline).min()
    }

    /// Adds a stream.
    pub(super) fn open(&mut self, now: Instant) -> ReaderId {
        if self.readers.is_empty() {
            // The stream reads all devices now, so the resend intervals start now.
            for id in self.devices.keys().copied().collect::<Vec<_>>() {
                self.edit(id, |device| device.resend = now + device.resend_after());
            }
        }
        self.last_reader += 1;
        let reader = ReaderId(self.last_reader);
        self.readers.insert(reader, ReadPosition { read: 0, opened: self.last_change });
        reader
    }

    /// Removes a stream.
    pub(super) fn close(&mut self, reader: ReaderId) {
        self.readers.remove(&reader);
        self.purge_gone();
    }

    /// Returns the changes since the stream last read, or as many as fit in a message. Empty when it has read all.
    pub(super) fn read(&mut self, reader: ReaderId) -> Vec<DeviceState> {
        let Some(position) = self.readers.get_mut(&reader) else { return vec![] };
        let mut states = vec![];
        let mut bytes = 0;
        for (change, id) in self.indexes.changes.range(position.read + 1..) {
            let Some(device) = self.devices.get(id) else { continue };
            if device.phase != Phase::Gone || *change > position.opened {
                let state = device.state();
                bytes += state.message.len() + state.pool_name.len() + state.device_name.len() + DEVICE_OVERHEAD;
                if bytes > MAX_BATCH {
                    break;
                }
                states.push(state);
            }
            position.read = *change;
        }
        self.purge_gone();
        states
    }

    /// Returns the devices that are not healthy, at most `limit`, and their number.
    pub(super) fn not_healthy(&self, limit: usize) -> (Vec<DeviceState>, usize) {
        let is_shown = |device: &&Device| device.phase != Phase::Gone && device.health != HealthStatus::Healthy;
        let shown = self.devices.values().filter(is_shown).take(limit).map(Device::state).collect();
        (shown, self.devices.values().filter(is_shown).count())
    }

    /// Counts the devices by health.
    pub(super) fn summary(&self) -> HealthSummary {
        let mut summary = HealthSummary::default();
        for device in self.devices.values().filter(|device| device.phase != Phase::Gone) {
            match device.health {
                HealthStatus::Unknown => summary.unknown += 1,
                HealthStatus::Healthy => summary.healthy += 1,
                HealthStatus::Unhealthy => summary.unhealthy += 1,
            }
        }
        summary
    }

    /// Returns the id of a device, which is inserted if it is new. At [`MAX_DEVICES`] it evicts the device that has been
    /// stale the longest, or returns `None` if there is none.
    fn find_or_insert(&mut self, key: &DeviceKey, now: Instant, wall: SystemTime) -> Option<Id> {
        let known = self.keys.get(key).copied();
        if known.is_some_and(|id| self.is_present(id)) {
            return known;
        }
        if self.devices.len() - self.indexes.gone.len() >= MAX_DEVICES {
            let (_, oldest) = self.indexes.stale.first().copied()?;
            self.mark_gone(oldest, now, wall);
        }
        // Looked up again: a gone device keeps its key until it is purged, which may just have happened.
        if let Some(id) = self.keys.get(key) {
            return Some(*id);
        }
        self.last_id += 1;
        let id = self.last_id;
        let key = Arc::new(key.clone());
        let device = Device::gone(key.clone(), self.next_change(), now);
        self.indexes.link(id, &device);
        self.keys.insert(key, id);
        self.devices.insert(id, device);
        Some(id)
    }

    fn mark_gone(&mut self, id: Id, now: Instant, wall: SystemTime) {
        let change = self.next_change();
        self.edit(id, |device| {
            *device = Device { last_updated: unix_seconds(wall), ..Device::gone(device.key.clone(), change, now) };
        });
        self.purge_gone();
    }

    /// Removes gone devices that all streams have read. A stream that does not read cannot make the table grow without
    /// limit: beyond [`MAX_DEVICES`] they are removed unread, and expire in the kubelet with their lease.
    fn purge_gone(&mut self) {
        let read_by_all = self.readers.values().map(|position| position.read.max(position.opened)).min();
        let read_by_all = read_by_all.unwrap_or(Change::MAX);
        while let Some((change, id)) = self.indexes.gone.first().copied() {
            if change > read_by_all && self.indexes.gone.len() <= MAX_DEVICES {
                break;
            }
            if let Some(device) = self.devices.remove(&id) {
                self.indexes.unlink(id, &device);
                self.keys.remove(&device.key);
            }
        }
    }

    fn is_present(&self, id: Id) -> bool {
        self.devices.get(&id).is_some_and(|device| device.phase != Phase::Gone)
    }

    fn next_change(&mut self) -> Change {
        self.last_change += 1;
        self.last_change
    }

    /// Changes a device and updates the indexes. All changes of devices go through this.
    fn edit(&mut self, id: Id, edit: impl FnOnce(&mut Device)) {
        if let Some(device) = self.devices.get_mut(&id) {
            self.indexes.unlink(id, device);
            edit(device);
            self.indexes.link(id, device);
        }
    }
}

#[derive(Debug)]
struct Device {
    key: Arc<DeviceKey>,
    health: HealthStatus,
    message: String,
    lease: Duration,
    last_updated: i64,
    change: Change,
    phase: Phase,
    /// When the device is due to be resent.
    resend: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Valid until then.
    Fresh(Instant),
    /// Unknown since then: the lease expired or the monitor failed.
    Stale(Instant),
    /// Forgotten.
    Gone,
}

impl Device {
    /// Creates a device that does not exist.
    fn gone(key: Arc<DeviceKey>, change: Change, now: Instant) -> Self {
        Self {
            key,
            health: HealthStatus::Unknown,
            message: "the driver no longer has this device".to_owned(),
            lease: Duration::from_secs(1),
            last_updated: 0,
            change,
            phase: Phase::Gone,
            resend: now,
        }
    }

    fn mark_unknown(&mut self, message: String, now: Instant, wall: SystemTime) {
        self.health = HealthStatus::Unknown;
        self.message = message;
        self.last_updated = unix_seconds(wall);
        self.phase = Phase::Stale(now);
    }

    fn send(&mut self, change: Change, now: Instant) {
        self.change = change;
        self.resend = now + self.resend_after();
    }

    fn resend_after(&self) -> Duration {
        (self.lease / 3).clamp(MIN_RESEND, MAX_RESEND)
    }

    fn state(&self) -> DeviceState {
        let seconds = self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0);
        DeviceState {
            pool_name: self.key.pool.to_string(),
            device_name: self.key.device.to_string(),
            health: self.health,
            message: self.message.clone(),
            lease_seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
            last_updated: self.last_updated,
        }
    }
}

/// The devices in several orders. A device is unlinked before a change and linked after it ([`Table::edit`]).
#[derive(Debug, Default)]
struct Indexes {
    /// All devices by their last change.
    changes: BTreeMap<Change, Id>,
    /// Devices that are [`Phase::Fresh`], by the end of their lease.
    fresh: BTreeSet<(Instant, Id)>,
    /// Devices that are [`Phase::Stale`], the oldest first.
    stale: BTreeSet<(Instant, Id)>,
    /// Devices that are [`Phase::Gone`], the oldest first.
    gone: BTreeSet<(Change, Id)>,
    /// Devices that are not gone, by the time when they are due to be resent.
    resends: BTreeSet<(Instant, Id)>,
}

impl Indexes {
    fn link(&mut self, id: Id, device: &Device) {
        self.changes.insert(device.change, id);
        match device.phase {
            Phase::Fresh(end) => self.fresh.insert((end, id)),
            Phase::Stale(since) => self.stale.insert((since, id)),
            Phase::Gone => self.gone.insert((device.change, id)),
        };
        if device.phase != Phase::Gone {
            self.resends.insert((device.resend, id));
        }
    }

    fn unlink(&mut self, id: Id, device: &Device) {
        self.changes.remove(&device.change);
        match device.phase {
            Phase::Fresh(end) => self.fresh.remove(&(end, id)),
            Phase::Stale(since) => self.stale.remove(&(since, id)),
            Phase::Gone => self.gone.remove(&(device.change, id)),
        };
        self.resends.remove(&(device.resend, id));
    }
}

/// How far a stream has read.
#[derive(Debug, Clone, Copy)]
struct ReadPosition {
    /// The last change that was read.
    read: Change,
    /// The last change when the stream was opened. Devices that were gone by then are not sent to it.
    opened: Change,
}

/// Truncates a message between characters. The kubelet would truncate it in the middle of one.
fn truncate(mut message: String) -> String {
    const ELLIPSIS: &str = "...";
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE - ELLIPSIS.len()));
        message.push_str(ELLIPSIS);
    }
    message
}

fn unix_seconds(time: SystemTime) -> i64 {
    let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => seconds(after),
        Err(before) => -seconds(before.duration()),
    }
}
