//! The state of a search: the files found, and the rest of its budgets.
//!
//! A container can create any number of names, links and files, so a search has limits: cost ([`MAX_COST`]), files,
//! bytes, memory and time. Reaching one is a problem beside the files that were found; it never hides them.

use std::collections::{BTreeMap, HashMap};
use std::mem::size_of;
use std::time::Instant;

use super::find::{Discovery, MetadataFile};
use super::root::Identity;
use super::snapshot::Deadlines;
use super::{ErrorClass, MAX_CONTENT, MAX_COST, MAX_FILES, MAX_TOTAL_SIZE, ReadError};
use crate::attribute::DeviceAttribute;
use crate::name::RequestName;
use crate::object_meta::{ManagedFieldsEntry, OwnerReference};
use crate::types::{Device, Metadata, Request};

/// The cost of opening a directory or a file; a name in a directory costs 1.
const OPEN_COST: usize = 4;
/// The maximum number of problems that are listed one by one.
const MAX_PROBLEMS: usize = 256;
/// The maximum number of other paths of a file. Two layouts make one.
const MAX_ALSO_AT: usize = 16;

/// A search in progress. Each file is listed once.
pub(super) struct Search {
    pub(super) files: Vec<MetadataFile>,
    positions: HashMap<FileKey, usize>,
    problems: Vec<ReadError>,
    /// The number of problems that are not listed, and their most severe class.
    more_problems: Option<(usize, ErrorClass)>,
    pub(super) deadlines: Deadlines,
    /// The bytes read so far.
    size: u64,
    /// The memory that their content takes.
    content: usize,
    /// The rest of [`MAX_COST`] for the current directory.
    budget: usize,
}

/// Identifies a file that has several paths.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum FileKey {
    Inode(Identity, String),
    Owner(String, Option<RequestName>, String),
}

impl Search {
    pub(super) fn new(deadlines: Deadlines) -> Self {
        Self {
            files: Vec::new(),
            positions: HashMap::new(),
            problems: Vec::new(),
            more_problems: None,
            deadlines,
            size: 0,
            content: 0,
            budget: MAX_COST,
        }
    }

    /// Returns whether the limit of files or bytes is reached.
    pub(super) fn is_full(&self) -> bool {
        self.files.len() >= MAX_FILES || self.size >= MAX_TOTAL_SIZE
    }

    pub(super) fn is_out_of_time(&self) -> bool {
        Instant::now() >= self.deadlines.search_until()
    }

    /// Charges the cost of opening a path; `false` if the budget does not suffice.
    pub(super) fn charge_open(&mut self) -> bool {
        let rest = self.budget.checked_sub(OPEN_COST);
        self.budget = rest.unwrap_or(0);
        rest.is_some()
    }

    /// Returns the number of names that may still be listed.
    pub(super) fn budget(&self) -> usize {
        self.budget
    }

    pub(super) fn charge_names(&mut self, count: usize) {
        self.budget = self.budget.saturating_sub(count);
    }

    pub(super) fn count_bytes(&mut self, count: usize) {
        self.size += count as u64;
    }

    /// Runs `work` for each item with an equal share of the remaining budget; an unused rest goes to the next items.
    pub(super) fn share_budget<T>(&mut self, items: Vec<T>, mut work: impl FnMut(&mut Self, T)) {
        let count = items.len();
        for (index, item) in items.into_iter().enumerate() {
            let share = self.budget / (count - index);
            let others = self.budget - share;
            self.budget = share;
            work(self, item);
            self.budget += others;
        }
    }

    /// Adds a file, or another path of a known one. Records a problem if the limit of memory is reached.
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
        // If two copies differ, the later one counts.
        if is_newer {
            self.content += content;
            known.content = file.content;
        }
    }

    /// Records a problem. Reaching a limit of the whole search is recorded once.
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

    /// Adds the problems of another search that reached a limit.
    pub(super) fn add_limit_problems(&mut self, other: Self) {
        let is_limit = |problem: &ReadError| {
            matches!(
                problem,
                ReadError::TooMuch { .. } | ReadError::OutOfTime { .. } | ReadError::TooManyEntries { .. }
            )
        };
        for problem in other.problems.into_iter().filter(is_limit) {
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

/// Estimates the memory of a file's content. Small JSON can be large in memory: an empty device takes about 200 bytes, and
/// a map with one entry has space for eleven.
fn memory_of(content: &Metadata) -> usize {
    let Metadata { metadata: meta, pod_claim_name, requests } = content;
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

/// Estimates the memory of a `BTreeMap`'s nodes, which have space for eleven entries and are at least half full.
fn map_nodes<K, V>(entries: usize) -> usize {
    entries.div_ceil(6) * 11 * (size_of::<K>() + size_of::<V>())
}
