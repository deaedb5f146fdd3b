//! A pool as it should be published: valid, and split into slices.
//!
//! Each version is made from the one before. A device that did not change is neither decoded, validated nor digested again,
//! and a slice whose devices did not change is shared. So the change of one of ten thousand devices is work for one device and
//! one slice, and a comparison of texts for the others.

mod assembly;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::resource::v1::CounterSet;

use self::assembly::{Assembly, Flat, Plan};
use super::PublishError;
use super::content::{DeviceFacts, Digest, SliceHeader, TaintTime};
use super::device_json;
use super::draft::{DeviceLists, Draft, Origin};
use super::layout::{Placement, arrange};
use super::resources::{NodeSelection, Pool, PoolSlice};
use super::slice_devices::SliceDevices;
use super::update::PoolUpdate;
use super::validate::{MAX_COUNTER_SETS, Shape, Validation, ValidationContext};

/// One slice of a pool as it should be.
#[derive(Debug, Clone)]
pub(super) struct DesiredSlice {
    pub(super) header: Arc<SliceHeader>,
    pub(super) devices: Arc<SliceDevices>,
    pub(super) digest: Digest,
    /// The number of its first device among the pool's.
    first: usize,
}

/// A pool as it should be.
#[derive(Debug)]
pub(crate) struct DesiredPool {
    /// The pool without devices, counters and slices.
    properties: Pool,
    pub(super) slices: Vec<DesiredSlice>,
    /// Whether the driver has split the pool itself.
    is_chosen: bool,
    /// The numbers of the devices in the order of their names. Shared with the version before if that has the same names.
    by_name: Arc<[u32]>,
    pub(super) work: Work,
}

/// What had to be done for a version of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// The number of devices that were decoded and validated.
    pub(super) validated: usize,
    /// The number of devices that were digested.
    pub(super) digested: usize,
    /// The number of slices that were put together.
    pub(super) assembled: usize,
}

/// A version of a pool that is not valid, and why.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) error: PublishError,
    /// The version, which later changes of single devices refer to.
    pub(super) pool: Pool,
}

impl DesiredPool {
    /// Validates a pool, with later changes of single devices, and splits it into slices. `before` is the version that was
    /// published last.
    pub(super) fn new(
        name: &str,
        mut pool: Pool,
        update: Option<&PoolUpdate>,
        context: ValidationContext<'_>,
        before: Option<&Self>,
    ) -> Result<Self, Box<Rejected>> {
        let lists = DeviceLists::take(&mut pool);
        let mut draft = Draft::of_pool(pool, &lists);
        if let Some(update) = update {
            draft.edit(update, None);
        }
        Self::of_draft(name, draft, context, before)
    }

    /// Changes single devices of this version.
    pub(super) fn updated(
        &self,
        name: &str,
        update: &PoolUpdate,
        context: ValidationContext<'_>,
    ) -> Result<Self, Box<Rejected>> {
        let mut draft = Draft::of_desired(self);
        draft.edit(update, Some(self));
        Self::of_draft(name, draft, context, Some(self))
    }

    fn of_draft(
        name: &str,
        mut draft: Draft<'_>,
        context: ValidationContext<'_>,
        before: Option<&Self>,
    ) -> Result<Self, Box<Rejected>> {
        let before = before.map(|before| (before, Flat::of(before)));
        let before = before.as_ref().map(|(before, flat)| (*before, flat));
        let origins = draft.origins.take().unwrap_or_else(|| match before {
            Some((before, flat)) => before.origins(flat, &draft.texts),
            None => vec![Origin::New; draft.texts.len()],
        });
        let desired = validated(name, &draft, &origins, context, before).and_then(|(facts, taints, work)| {
            let encode = |error| PublishError::Encode { pool: name.to_owned(), source: Arc::new(error) };
            let slice_of = |device: usize| Some(before?.1.slices[origins[device].number()?]);
            let plans = plans(&draft.pool, &draft.shape, &facts, slice_of, before.map_or(0, |(it, _)| it.slices.len()));
            let assembly = Assembly { texts: &draft.texts, facts: &facts, taints: &taints, origins: &origins, before };
            let properties = without_content(&draft.pool);
            assembly.assemble(properties, !draft.pool.slices.is_empty(), plans, work).map_err(encode)
        });
        desired.map_err(|error| Box::new(Rejected { error, pool: draft.into_pool() }))
    }

    /// Splits the pool as the stored slices are: `slice_of` returns the slice that a device is in, of `slices` slices. Returns
    /// `None` if it is split like that.
    pub(super) fn rearranged(
        &self,
        slice_of: impl Fn(&str) -> Option<usize>,
        slices: usize,
    ) -> Result<Option<Self>, serde_json::Error> {
        let flat = Flat::of(self);
        let facts: Vec<DeviceFacts> = flat.facts.iter().map(|facts| **facts).collect();
        let assigned = |device: usize| slice_of(self.name(device));
        let (pool, shape) = self.with_counters();
        let plans = plans(&pool, &shape, &facts, assigned, slices);
        if plans.iter().map(|plan| plan.devices).eq(self.slices.iter().map(|slice| slice.devices.len())) {
            return Ok(None);
        }
        let origins: Vec<Origin> = (0..flat.texts.len()).map(Origin::Same).collect();
        let taints: Vec<(usize, TaintTime)> = self
            .slices
            .iter()
            .flat_map(|slice| {
                slice.devices.taints().iter().map(|(device, taint)| (slice.first + device, taint.clone()))
            })
            .collect();
        let assembly = Assembly {
            texts: &flat.texts,
            facts: &facts,
            taints: &taints,
            origins: &origins,
            before: Some((self, &flat)),
        };
        assembly.assemble(self.properties.clone(), self.is_chosen, plans, Work::default()).map(Some)
    }

    /// Returns whether slices name the node.
    pub(super) fn names_node(&self) -> bool {
        self.properties.nodes == NodeSelection::ThisNode
    }

    /// Returns the generation that the driver asks for.
    pub(super) fn generation(&self) -> i64 {
        self.properties.generation
    }

    /// Returns the number of devices.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the names of the devices in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.slices.iter().flat_map(|slice| (0..slice.devices.len()).map(|index| slice.devices.name(index)))
    }

    /// Returns the texts of the devices in order.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.slices.iter().flat_map(|slice| slice.devices.texts())
    }

    /// Returns the slice with a device, and the index of the device in it.
    pub(super) fn get(&self, name: &str) -> Option<(&SliceDevices, usize)> {
        let (slice, index) = self.locate(self.number_of(name.as_bytes())?);
        Some((&slice.devices, index))
    }

    /// Returns the number of a device among the pool's.
    pub(super) fn number_of(&self, name: &[u8]) -> Option<usize> {
        let found = self.by_name.binary_search_by(|number| self.name(*number as usize).as_bytes().cmp(name));
        found.ok().map(|position| self.by_name[position] as usize)
    }

    fn name(&self, number: usize) -> &str {
        let (slice, index) = self.locate(number);
        slice.devices.name(index)
    }

    fn locate(&self, number: usize) -> (&DesiredSlice, usize) {
        // The last one that begins at or before it: slices without devices begin where the next one does.
        let slice = &self.slices[self.slices.partition_point(|slice| slice.first <= number) - 1];
        (slice, number - slice.first)
    }

    /// Returns the pool without devices, and their numbers.
    pub(super) fn with_counters(&self) -> (Pool, Shape) {
        let mut pool = self.properties.clone();
        let mut shape = Shape::default();
        if self.is_chosen {
            let slice = |slice: &DesiredSlice| PoolSlice {
                shared_counters: slice.header.shared_counters.clone().unwrap_or_default(),
                ..PoolSlice::default()
            };
            pool.slices = self.slices.iter().map(slice).collect();
            shape.slices = self.slices.iter().map(|slice| slice.devices.len()).collect();
        } else {
            pool.shared_counters = self.counter_sets().cloned().collect();
            shape.devices = self.len();
        }
        (pool, shape)
    }

    fn counter_sets(&self) -> impl Iterator<Item = &CounterSet> {
        self.slices.iter().filter_map(|slice| slice.header.shared_counters.as_ref()).flatten()
    }

    /// Compares devices with those of this version.
    fn origins(&self, flat: &Flat<'_>, texts: &[&[u8]]) -> Vec<Origin> {
        // Nearly always the device that follows the one before.
        let mut next = 0;
        let origin = |text: &&[u8]| {
            let name = device_json::name(text);
            let number = match flat.texts.get(next) {
                Some(known) if known == text => Some(next),
                Some(known) if device_json::name(known) == name => Some(next),
                _ => self.number_of(name),
            };
            let Some(number) = number else { return Origin::New };
            next = number + 1;
            if flat.texts[number] == *text { Origin::Same(number) } else { Origin::Changed(number) }
        };
        texts.iter().map(origin).collect()
    }

    /// Returns whether a device that is valid in this pool is valid in another one.
    fn has_rules_of(&self, other: &Pool) -> bool {
        let is_per_device = |pool: &Pool| pool.nodes == NodeSelection::PerDevice;
        let others = other.shared_counters.iter().chain(other.slices.iter().flat_map(|slice| &slice.shared_counters));
        is_per_device(&self.properties) == is_per_device(other)
            && self.properties.partition_type_attribute == other.partition_type_attribute
            && self.counter_sets().eq(others)
    }
}

type Validated = (Vec<DeviceFacts>, Vec<(usize, TaintTime)>, Work);

/// Validates a draft. Returns the facts and the taints of its devices.
fn validated(
    name: &str,
    draft: &Draft<'_>,
    origins: &[Origin],
    context: ValidationContext<'_>,
    before: Option<(&DesiredPool, &Flat<'_>)>,
) -> Result<Validated, PublishError> {
    let mut validation = Validation::new(name, &draft.pool, &draft.shape, Some(context));
    let numbers = origins.iter().map(|origin| origin.number());
    if numbers.clone().all(|number| number.is_some()) && numbers.is_sorted_by(|one, next| one < next) {
        // Some of the names before, each at most once.
        validation.trust_names();
    }
    let has_same_rules = before.is_some_and(|(before, _)| before.has_rules_of(&draft.pool));
    let mut facts = Vec::with_capacity(draft.texts.len());
    let mut taints: Vec<(usize, TaintTime)> = Vec::new();
    let mut work = Work::default();
    for (number, (path, text)) in draft.shape.paths().zip(&draft.texts).enumerate() {
        let known = match (origins[number], before) {
            (Origin::Same(known), Some((before, flat))) => {
                let slice = &before.slices[flat.slices[known]];
                let its_taints = slice.devices.taints_of(known - slice.first);
                taints.extend(its_taints.map(|taint| (number, taint.clone())));
                Some(*flat.facts[known])
            }
            _ => None,
        };
        if let Some(known) = known
            && has_same_rules
        {
            validation.valid_device(path, text, &known);
            facts.push(known);
            continue;
        }
        work.validated += 1;
        let device = match device_json::read(text) {
            Ok(device) => device,
            Err(error) => {
                validation.unreadable(path, &error);
                continue;
            }
        };
        validation.device(path, text, &device);
        match known {
            Some(known) => facts.push(known),
            None if validation.is_valid() => {
                work.digested += 1;
                let encode = |error| PublishError::Encode { pool: name.to_owned(), source: Arc::new(error) };
                let (its_facts, its_taints) = DeviceFacts::of(device).map_err(encode)?;
                facts.push(its_facts);
                taints.extend(its_taints.into_iter().map(|taint| (number, taint)));
            }
            // Not needed any longer.
            None => {}
        }
    }
    validation.finish(name)?;
    Ok((facts, taints, work))
}

/// Returns the slices of a pool. `slice_of` returns the slice that a device is in now, of `slices` slices.
///
/// Slices with shared counters come first: their number hardly ever changes, so they do not move devices to other slices.
fn plans(
    pool: &Pool,
    shape: &Shape,
    facts: &[DeviceFacts],
    slice_of: impl Fn(usize) -> Option<usize>,
    slices: usize,
) -> Vec<Plan> {
    let base = Arc::new(SliceHeader::of_pool(pool));
    let partitioned = pool.partition_type_attribute.as_ref().map(|attribute| {
        Arc::new(SliceHeader { partition_type_attribute: Some(attribute.clone()), ..(*base).clone() })
    });
    let counters = |sets: &[CounterSet]| Plan {
        header: Arc::new(SliceHeader { shared_counters: Some(sets.to_vec()), ..(*base).clone() }),
        devices: 0,
    };
    let mut next = 0;
    let mut devices = |length: usize| {
        let facts = &facts[next..next + length];
        next += length;
        // The API allows the field only in a slice with a device that consumes counters.
        let partitioned = partitioned.as_ref().filter(|_| facts.iter().any(|device| device.consumes_counters));
        Plan { header: partitioned.unwrap_or(&base).clone(), devices: length }
    };
    if !pool.slices.is_empty() {
        let slice = |(slice, length): (&PoolSlice, &usize)| match slice.shared_counters.as_slice() {
            [] => devices(*length),
            sets => counters(sets),
        };
        return pool.slices.iter().zip(&shape.slices).map(slice).collect();
    }
    let mut plans: Vec<Plan> = pool.shared_counters.chunks(MAX_COUNTER_SETS).map(counters).collect();
    let first = plans.len();
    // A pool with nothing but counters needs no slice without devices.
    if first > 0 && facts.is_empty() {
        return plans;
    }
    let placement = |(number, device): (usize, &DeviceFacts)| Placement {
        is_heavy: device.is_heavy,
        slice: slice_of(number).and_then(|slice| slice.checked_sub(first)),
    };
    let placements: Vec<Placement> = facts.iter().enumerate().map(placement).collect();
    let lengths = arrange(&placements, slices.saturating_sub(first), pool.devices_per_slice);
    plans.extend(lengths.into_iter().map(devices));
    plans
}

/// Returns the properties of a pool without devices, counters and slices.
fn without_content(pool: &Pool) -> Pool {
    Pool {
        nodes: pool.nodes.clone(),
        devices_per_slice: pool.devices_per_slice,
        generation: pool.generation,
        partition_type_attribute: pool.partition_type_attribute.clone(),
        skip_node_operations: pool.skip_node_operations.clone(),
        ..Pool::default()
    }
}
