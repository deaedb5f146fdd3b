//! What one look has found, and what it may still cost.
//!
//! A container can make names, links and files without end, so a look has budgets: entries ([`MAX_COST`]), files, bytes
//! and memory, and time. What goes beyond one of them is a problem beside what was found, never a reason to show
//! nothing.

use std::collections::{BTreeMap, HashMap};
use std::mem::size_of;
use std::time::Instant;

use super::find::{Discovery, MetadataFile};
use super::root::Identity;
use super::snapshot::Patience;
use super::{ErrorClass, MAX_CONTENT, MAX_COST, MAX_FILES, MAX_TOTAL_SIZE, ReadError};
use crate::attribute::DeviceAttribute;
use crate::name::RequestName;
use crate::object_meta::{ManagedFieldsEntry, OwnerReference};
use crate::types::{Device, DeviceMetadata, Request};

/// What it costs to open a directory or a file, if a name in a directory costs 1.
const OPENING: usize = 4;
/// How many problems are listed one by one.
const MAX_PROBLEMS: usize = 256;
/// How many other paths of a file are listed. Two layouts make one.
const MAX_ALSO_AT: usize = 16;

/// Files as they are found, each once, and what is left of the budgets.
pub(super) struct Found {
    pub(super) files: Vec<MetadataFile>,
    positions: HashMap<FileKey, usize>,
    problems: Vec<ReadError>,
    /// How many more problems there were, and the class of the worst.
    more_problems: Option<(usize, ErrorClass)>,
    pub(super) patience: Patience,
    /// How many bytes have been read.
    size: u64,
    /// How much memory their content takes.
    content: usize,
    /// What is left of [`MAX_COST`] for what is looked at now.
    allowance: usize,
}

/// What tells that two findings are one file.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum FileKey {
    Inode(Identity, String),
    Owner(String, Option<RequestName>, String),
}

impl Found {
    pub(super) fn new(patience: Patience) -> Self {
        Self {
            files: Vec::new(),
            positions: HashMap::new(),
            problems: Vec::new(),
            more_problems: None,
            patience,
            size: 0,
            content: 0,
            allowance: MAX_COST,
        }
    }

    /// Whether there is already more than any container has.
    pub(super) fn is_full(&self) -> bool {
        self.files.len() >= MAX_FILES || self.size >= MAX_TOTAL_SIZE
    }

    pub(super) fn is_out_of_time(&self) -> bool {
        Instant::now() >= self.patience.walk_until()
    }

    /// Pays for something that is to be opened, if the allowance suffices.
    pub(super) fn pay_for_opening(&mut self) -> bool {
        let left = self.allowance.checked_sub(OPENING);
        self.allowance = left.unwrap_or(0);
        left.is_some()
    }

    /// How many names may still be listed.
    pub(super) fn allowance(&self) -> usize {
        self.allowance
    }

    pub(super) fn pay_for_names(&mut self, count: usize) {
        self.allowance = self.allowance.saturating_sub(count);
    }

    pub(super) fn count_bytes(&mut self, count: usize) {
        self.size += count as u64;
    }

    /// Does something for each item, which has an equal part of what is left; what one does not need, others have.
    pub(super) fn share<T>(&mut self, items: Vec<T>, mut work: impl FnMut(&mut Self, T)) {
        let count = items.len();
        for (index, item) in items.into_iter().enumerate() {
            let part = self.allowance / (count - index);
            let others = self.allowance - part;
            self.allowance = part;
            work(self, item);
            self.allowance += others;
        }
    }

    /// Adds a file, or another path of one; a problem where its content takes more memory than there is for all.
    pub(super) fn add(&mut self, file: MetadataFile) {
        let content = file.content.as_ref().map_or(0, |decoded| memory_of(&decoded.metadata));
        if self.content + content > MAX_CONTENT {
            return self.problem(ReadError::TooMuch { path: file.path });
        }
        let known = file.keys().find_map(|key| self.positions.get(&key).copied());
        let position = known.unwrap_or(self.files.len());
        self.positions.extend(file.keys().map(|key| (key, position)));
        let Some(known) = self.files.get_mut(position) else {
            self.content += content;
            return self.files.push(file);
        };
        let is_newer = file.generation() > known.generation();
        if known.also_at.len() < MAX_ALSO_AT {
            known.also_at.push(file.path);
        } else {
            known.also_at_omitted += 1;
        }
        // Two copies that differ: the one that was written later is right.
        if is_newer {
            self.content += content;
            known.content = file.content;
        }
    }

    /// Notes a problem; that a budget for all is used up, once.
    pub(super) fn problem(&mut self, problem: ReadError) {
        let once = [
            |problem: &ReadError| matches!(problem, ReadError::TooMuch { .. }),
            |problem: &ReadError| matches!(problem, ReadError::OutOfTime { .. }),
        ];
        if once.iter().any(|is| is(&problem) && self.problems.iter().any(is)) {
            return;
        }
        if self.problems.len() < MAX_PROBLEMS || once.iter().any(|is| is(&problem)) {
            return self.problems.push(problem);
        }
        let (count, class) = self.more_problems.unwrap_or((0, problem.class()));
        self.more_problems = Some((count + 1, class.max(problem.class())));
    }

    /// Takes over what kept another look from being whole.
    pub(super) fn problems_of_budgets(&mut self, other: Self) {
        let is_budget = |problem: &ReadError| {
            matches!(
                problem,
                ReadError::TooMuch { .. } | ReadError::OutOfTime { .. } | ReadError::TooManyEntries { .. }
            )
        };
        for problem in other.problems.into_iter().filter(is_budget) {
            self.problem(problem);
        }
    }

    pub(super) fn into_discovery(self) -> Discovery {
        let Self { mut files, mut problems, more_problems, .. } = self;
        problems.extend(more_problems.map(|(count, class)| ReadError::MoreProblems { count, class }));
        files.sort_by(|a, b| {
            let by_name = a.claim.as_str().cmp(b.claim.as_str());
            by_name.then_with(|| (&a.claim, &a.request, &a.driver).cmp(&(&b.claim, &b.request, &b.driver)))
        });
        Discovery { files, problems }
    }
}

/// About how much memory some content takes. Small things are large in memory: an empty device is some 200 bytes, and a
/// map with one entry has space for eleven.
fn memory_of(content: &DeviceMetadata) -> usize {
    let DeviceMetadata { metadata: meta, pod_claim_name, requests } = content;
    let names = [&meta.name, &meta.generate_name, &meta.namespace, &meta.self_link, &meta.uid, &meta.resource_version];
    let texts: usize =
        names.iter().map(|text| text.len()).sum::<usize>() + pod_claim_name.as_ref().map_or(0, String::len);
    let map = |map: &BTreeMap<String, String>| {
        map_nodes::<String, String>(map.len()) + map.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
    };
    let owners = meta.owner_references.iter().map(|owner| {
        size_of::<OwnerReference>() + owner.api_version.len() + owner.kind.len() + owner.name.len() + owner.uid.len()
    });
    let managers = meta
        .managed_fields
        .iter()
        .map(|entry| size_of::<ManagedFieldsEntry>() + serde_json::to_string(entry).map_or(0, |text| text.len()));
    texts
        + map(&meta.labels)
        + map(&meta.annotations)
        + strings(&meta.finalizers)
        + owners.sum::<usize>()
        + managers.sum::<usize>()
        + requests.iter().map(memory_of_request).sum::<usize>()
}

fn memory_of_request(request: &Request) -> usize {
    size_of::<Request>() + request.name.len() + request.devices.iter().map(memory_of_device).sum::<usize>()
}

fn memory_of_device(device: &Device) -> usize {
    let attributes = device.attributes.iter().map(|(name, value)| {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let lists = strings(&value.strings) + strings(&value.versions) + value.bools.len() + value.ints.len() * 8;
        name.len() + text(&value.string) + text(&value.version) + lists
    });
    let network = device
        .network_data
        .as_ref()
        .map_or(0, |data| data.interface_name.len() + data.hardware_address.len() + strings(&data.ips));
    size_of::<Device>()
        + device.driver.len()
        + device.pool.len()
        + device.name.len()
        + map_nodes::<String, DeviceAttribute>(device.attributes.len())
        + attributes.sum::<usize>()
        + network
}

fn strings(list: &[String]) -> usize {
    list.iter().map(|text| size_of::<String>() + text.len()).sum()
}

/// The nodes of a `BTreeMap`, which are half full at least and have space for eleven entries.
fn map_nodes<K, V>(entries: usize) -> usize {
    entries.div_ceil(6) * 11 * (size_of::<K>() + size_of::<V>())
}
