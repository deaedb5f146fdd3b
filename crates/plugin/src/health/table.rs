//! What is known of the devices: their states, the order of changes, and their leases. No clock and no tasks.
//!
//! Every change of a device has a number of its own, the highest so far, and the changes are kept in that order, only
//! the last of each device. A stream remembers the number up to which it has read. So all streams share one copy, a
//! slow one finds the latest states when it comes back, and sending a state again is to give it a new number.
//!
//! A device that is forgotten is told of as unknown with the shortest lease, because the protocol knows no better word;
//! it stays in the table as *gone* until all streams have read that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drakkar_metadata::name::{DeviceName, NameError, PoolName};
use tokio::time::Instant;

use super::{DEFAULT_LEASE, DeviceHealth, HealthError, HealthStatus, HealthSummary, Names};

/// How many devices a kubelet keeps for one driver.
pub(super) const MAX_DEVICES: usize = 16384;

/// What a kubelet takes as a message, in bytes.
pub(super) const MAX_MESSAGE: usize = 1024;

/// What goes into one gRPC message at most. Clients take 4 MiB; the rest is room for what is not counted.
const MAX_BATCH: usize = 4 * 1024 * 1024 - 64 * 1024;

/// The bytes of a device in a gRPC message, but for its texts: tags, lengths and numbers.
const DEVICE_OVERHEAD: usize = 48;

/// No clock is asked for more than this.
const MAX_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A kubelet that lost what it knew is told again after this time at the latest.
const MAX_RESEND: Duration = Duration::from_secs(10);

/// No device is sent again more often, however short its lease.
const MIN_RESEND: Duration = Duration::from_millis(333);

/// Devices that are due within this time are sent again together.
const RESEND_SLACK: Duration = Duration::from_millis(100);

/// A device by pool and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pool: PoolName,
    device: DeviceName,
}

impl Name {
    pub(super) fn new(pool: impl Into<String>, device: impl Into<String>) -> Result<Self, NameError> {
        Ok(Self { pool: PoolName::new(pool)?, device: DeviceName::new(device)? })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.pool, self.device)
    }
}

/// What a stream is told of a device. The two versions of the protocol write it down alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) pool_name: String,
    pub(crate) device_name: String,
    pub(crate) health: HealthStatus,
    pub(crate) message: String,
    /// In whole seconds, at least one: a kubelet takes 0 for its default.
    pub(crate) lease_seconds: i64,
    /// In seconds since 1970.
    pub(crate) last_updated: i64,
}

/// A stream that reads the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Reader(u64);

type Id = u64;
type Change = u64;

/// All devices, and how far each stream has read.
#[derive(Debug, Default)]
pub(super) struct Table {
    devices: HashMap<Id, Device>,
    names: HashMap<Arc<Name>, Id>,
    indexes: Indexes,
    readers: HashMap<Reader, Position>,
    last_id: Id,
    last_change: Change,
    last_reader: u64,
    /// What was last refused, so that a driver that repeats itself is told once.
    last_refusal: String,
}

impl Table {
    /// Takes a report. Returns what of it was refused, unless the last report with a refusal had the same.
    pub(super) fn report(&mut self, report: Vec<DeviceHealth>, now: Instant, wall: SystemTime) -> Vec<HealthError> {
        let mut no_room = Names::default();
        let mut bad_name = None;
        for device in report {
            let DeviceHealth { pool_name, device_name, health, message, lease, last_updated } = device;
            let name = match Name::new(pool_name, device_name) {
                Ok(name) => name,
                Err(error) => {
                    bad_name.get_or_insert(error);
                    continue;
                }
            };
            let last_updated = unix_seconds(last_updated.unwrap_or(wall));
            let Some(id) = self.admit(&name, now, wall) else {
                no_room.push(&name);
                continue;
            };
            let lease = match lease {
                None | Some(Duration::ZERO) => DEFAULT_LEASE,
                Some(lease) => lease.min(MAX_LEASE),
            };
            let message = cut(message);
            // A number that is not used in the end does no harm.
            let change = self.next_change();
            self.edit(id, |device| {
                let fresh = matches!(device.phase, Phase::Fresh(_));
                let same = (device.health, device.lease) == (health, lease) && device.message == message;
                (device.health, device.message, device.lease) = (health, message, lease);
                (device.last_updated, device.phase) = (last_updated, Phase::Fresh(now + lease));
                if !(fresh && same) {
                    device.send(change, now);
                }
            });
        }
        let mut refusals = vec![];
        refusals.extend(bad_name.map(HealthError::Name));
        refusals.extend((!no_room.is_empty()).then_some(HealthError::TooMany { devices: no_room }));
        let refusal = refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if refusal.is_empty() || refusal == self.last_refusal {
            return vec![];
        }
        self.last_refusal = refusal;
        refusals
    }

    /// Forgets a device. Streams that know of it are told.
    pub(super) fn forget(&mut self, name: &Name, now: Instant, wall: SystemTime) {
        if let Some(id) = self.names.get(name).copied().filter(|id| self.is_here(*id)) {
            self.part_with(id, now, wall);
            self.last_refusal.clear();
        }
    }

    /// Nothing is known of any device any more, for this reason.
    pub(super) fn doubt_all(&mut self, reason: &str, now: Instant, wall: SystemTime) {
        let message = cut(reason.to_owned());
        for id in self.indexes.changes.values().copied().collect::<Vec<_>>() {
            if self.is_here(id) {
                let change = self.next_change();
                self.edit(id, |device| {
                    device.doubt(message.clone(), now, wall);
                    device.send(change, now);
                });
            }
        }
    }

    /// Does what is due: doubts devices whose lease has passed, and returns them; sends others again.
    pub(super) fn tick(&mut self, now: Instant, wall: SystemTime) -> Names {
        let mut lapsed = Names::default();
        while let Some((_, id)) = self.indexes.fresh.first().copied().filter(|(end, _)| *end <= now) {
            let change = self.next_change();
            self.edit(id, |device| {
                lapsed.push(&device.name);
                device.doubt(format!("no health report for {:?}", device.lease), now, wall);
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
        lapsed
    }

    /// When [`Self::tick`] has something to do. Without a stream there is nobody to send anything to again.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let lapse = self.indexes.fresh.first();
        let resend = self.indexes.resends.first().filter(|_| !self.readers.is_empty());
        lapse.into_iter().chain(resend).map(|(deadline, _)| *deadline).min()
    }

    /// A stream begins to read.
    pub(super) fn open(&mut self, now: Instant) -> Reader {
        if self.readers.is_empty() {
            // It is about to read everything.
            for id in self.devices.keys().copied().collect::<Vec<_>>() {
                self.edit(id, |device| device.resend = now + device.resend_after());
            }
        }
        self.last_reader += 1;
        let reader = Reader(self.last_reader);
        self.readers.insert(reader, Position { read: 0, opened: self.last_change });
        reader
    }

    /// A stream has ended.
    pub(super) fn close(&mut self, reader: Reader) {
        self.readers.remove(&reader);
        self.drop_gone();
    }

    /// What changed since the stream last read, or as much of it as fits in a message. Empty when it has read all.
    pub(super) fn read(&mut self, reader: Reader) -> Vec<Told> {
        let Some(position) = self.readers.get_mut(&reader) else { return vec![] };
        let (mut told, mut bytes) = (vec![], 0);
        for (change, id) in self.indexes.changes.range(position.read + 1..) {
            let Some(device) = self.devices.get(id) else { continue };
            if device.phase != Phase::Gone || *change > position.opened {
                let device = device.told();
                bytes += device.message.len() + device.pool_name.len() + device.device_name.len() + DEVICE_OVERHEAD;
                if bytes > MAX_BATCH {
                    break;
                }
                told.push(device);
            }
            position.read = *change;
        }
        self.drop_gone();
        told
    }

    /// Counts the devices.
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

    /// The device of this name, made if need be and if there is room. Devices that are stale make room, the longest first.
    fn admit(&mut self, name: &Name, now: Instant, wall: SystemTime) -> Option<Id> {
        let known = self.names.get(name).copied();
        if known.is_some_and(|id| self.is_here(id)) {
            return known;
        }
        if self.devices.len() - self.indexes.gone.len() >= MAX_DEVICES {
            let (_, longest) = self.indexes.stale.first().copied()?;
            self.part_with(longest, now, wall);
        }
        // One that is gone is still told of by this name, unless it has just been dropped.
        if let Some(id) = self.names.get(name) {
            return Some(*id);
        }
        self.last_id += 1;
        let (id, name) = (self.last_id, Arc::new(name.clone()));
        let device = Device::gone(name.clone(), self.next_change(), now);
        self.indexes.link(id, &device);
        self.names.insert(name, id);
        self.devices.insert(id, device);
        Some(id)
    }

    fn part_with(&mut self, id: Id, now: Instant, wall: SystemTime) {
        let change = self.next_change();
        self.edit(id, |device| {
            *device = Device { last_updated: unix_seconds(wall), ..Device::gone(device.name.clone(), change, now) };
        });
        self.drop_gone();
    }

    /// Drops what is gone and has been read by all streams. A stream that reads nothing cannot make this grow without
    /// bound: what is then dropped unread leaves the kubelet with the end of its lease.
    fn drop_gone(&mut self) {
        let read_by_all = self.readers.values().map(|position| position.read.max(position.opened)).min();
        let read_by_all = read_by_all.unwrap_or(Change::MAX);
        while let Some((change, id)) = self.indexes.gone.first().copied() {
            if change > read_by_all && self.indexes.gone.len() <= MAX_DEVICES {
                break;
            }
            if let Some(device) = self.devices.remove(&id) {
                self.indexes.unlink(id, &device);
                self.names.remove(&device.name);
            }
        }
    }

    fn is_here(&self, id: Id) -> bool {
        self.devices.get(&id).is_some_and(|device| device.phase != Phase::Gone)
    }

    fn next_change(&mut self) -> Change {
        self.last_change += 1;
        self.last_change
    }

    /// The one place where a device changes, so that the indexes follow.
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
    name: Arc<Name>,
    health: HealthStatus,
    message: String,
    lease: Duration,
    last_updated: i64,
    change: Change,
    phase: Phase,
    /// When it is to be sent again.
    resend: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Believed until then.
    Fresh(Instant),
    /// Not believed since then.
    Stale(Instant),
    /// Forgotten.
    Gone,
}

impl Device {
    /// A device that there is not.
    fn gone(name: Arc<Name>, change: Change, now: Instant) -> Self {
        Self {
            name,
            health: HealthStatus::Unknown,
            message: "the driver has no such device any more".to_owned(),
            lease: Duration::from_secs(1),
            last_updated: 0,
            change,
            phase: Phase::Gone,
            resend: now,
        }
    }

    fn doubt(&mut self, message: String, now: Instant, wall: SystemTime) {
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

    fn told(&self) -> Told {
        let seconds = self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0);
        Told {
            pool_name: self.name.pool.to_string(),
            device_name: self.name.device.to_string(),
            health: self.health,
            message: self.message.clone(),
            lease_seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
            last_updated: self.last_updated,
        }
    }
}

/// The devices in several orders. Who changes a device unlinks it before and links it after ([`Table::edit`]).
#[derive(Debug, Default)]
struct Indexes {
    /// All devices by their last change.
    changes: BTreeMap<Change, Id>,
    /// Devices that are [`Phase::Fresh`], by the end of their lease.
    fresh: BTreeSet<(Instant, Id)>,
    /// Devices that are [`Phase::Stale`], the longest first.
    stale: BTreeSet<(Instant, Id)>,
    /// Devices that are [`Phase::Gone`], the longest first.
    gone: BTreeSet<(Change, Id)>,
    /// Devices that are not gone, by the time when they are to be sent again.
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

#[derive(Debug, Clone, Copy)]
struct Position {
    /// The last change that was read.
    read: Change,
    /// The last change when the stream was opened: it has never heard of what was gone by then.
    opened: Change,
}

/// A message that a kubelet does not cut: it would cut in the middle of a character.
fn cut(mut message: String) -> String {
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
