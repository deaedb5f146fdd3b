//! The split of a pool into slices: in the driver's order, within the limits of the API, and with as few changes as possible.
//!
//! A change within one slice is one write. A change of two slices, or of their number, is a new generation and a write of all.
//! So a device stays in its slice as long as that is not full: an added device goes to a slice of its neighbours, a removed one
//! leaves a gap, and an empty slice stays. Only if a slice is full do devices move, as few as possible, to the nearest slice
//! that is not. If no slices are known, or few devices are still in them, devices are spread evenly over as few slices as
//! possible, which leaves free capacity in each.
//!
//! The first taint in a slice of more than 64 devices is such a case: all slices become small. Splitting just that one would
//! save little, since an additional slice is a new generation anyway, and so would be the first taint in each other slice. This
//! way there is one new generation, and further taints are one write each.

/// The largest number of devices in a slice.
pub(super) const MAX_DEVICES: usize = 128;
/// The largest number of devices in a slice if one of them is heavy: has taints, consumes counters, or has a list attribute.
pub(super) const MAX_HEAVY_DEVICES: usize = 64;

/// A device to be assigned to a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placement {
    /// Whether a slice with this device may have only half as many devices.
    pub(super) is_heavy: bool,
    /// The slice that it is in now.
    pub(super) slice: Option<usize>,
}

/// Returns the number of devices in each slice, in the order of the devices; at least one slice. There are `slices` now.
pub(super) fn arrange(devices: &[Placement], slices: usize, per_slice: Option<usize>) -> Vec<usize> {
    let limits = Limits::new(devices, per_slice);
    let kept = kept(devices, slices);
    let stay = kept.iter().flatten().count();
    if slices == 0 || stay * 2 < devices.len() || slices > 2 * limits.min_slices(devices.len()) + 1 {
        return limits.spread(devices.len());
    }
    let assigned = assign(devices, &kept, slices, &limits);
    let mut lengths = vec![0; slices.max(assigned.last().map_or(0, |last| last + 1))];
    for slice in &assigned {
        lengths[*slice] += 1;
    }
    shift(&mut lengths, &limits);
    if limits.are_kept(devices, &lengths) { lengths } else { limits.spread(devices.len()) }
}

/// The numbers of devices that slices of a pool may have.
struct Limits {
    /// The limit of a slice without heavy devices.
    light: usize,
    /// The limit of a slice with a heavy device.
    heavy: usize,
    /// The limit of a slice whose devices are not known yet.
    safe: usize,
}

impl Limits {
    fn new(devices: &[Placement], per_slice: Option<usize>) -> Self {
        let limit = per_slice.unwrap_or(MAX_DEVICES).max(1);
        let light = MAX_DEVICES.min(limit);
        let heavy = MAX_HEAVY_DEVICES.min(limit);
        let safe = if devices.iter().any(|device| device.is_heavy) { heavy } else { light };
        Self { light, heavy, safe }
    }

    /// Returns the smallest number of slices for this number of devices.
    fn min_slices(&self, devices: usize) -> usize {
        devices.div_ceil(self.safe).max(1)
    }

    /// Spreads devices evenly over as few slices as possible.
    fn spread(&self, devices: usize) -> Vec<usize> {
        let slices = self.min_slices(devices);
        (0..slices).map(|slice| devices / slices + usize::from(slice < devices % slices)).collect()
    }

    fn of(&self, is_heavy: bool) -> usize {
        if is_heavy { self.heavy } else { self.light }
    }

    fn are_kept(&self, devices: &[Placement], lengths: &[usize]) -> bool {
        let mut rest = devices;
        lengths.iter().all(|length| {
            let (slice, following) = rest.split_at((*length).min(rest.len()));
            rest = following;
            *length <= self.of(slice.iter().any(|device| device.is_heavy))
        })
    }
}

/// Returns the slices of the devices that stay where they are: as many as possible without a change of order (a longest
/// non-decreasing subsequence).
fn kept(devices: &[Placement], slices: usize) -> Vec<Option<usize>> {
    // The last device of the best subsequence of each length so far.
    let mut ends: Vec<usize> = Vec::new();
    // The predecessor of each device in its subsequence.
    let mut before: Vec<Option<usize>> = vec![None; devices.len()];
    let slice_of = |device: usize| devices[device].slice.unwrap_or_default();
    for (number, device) in devices.iter().enumerate() {
        let Some(slice) = device.slice.filter(|slice| *slice < slices) else { continue };
        let length = ends.partition_point(|end| slice_of(*end) <= slice);
        before[number] = length.checked_sub(1).map(|shorter| ends[shorter]);
        match ends.get_mut(length) {
            Some(end) => *end = number,
            None => ends.push(number),
        }
    }
    let mut kept = vec![None; devices.len()];
    let mut next = ends.last().copied();
    while let Some(number) = next {
        kept[number] = devices[number].slice;
        next = before[number];
    }
    kept
}

/// Assigns each device to a slice: those that stay keep theirs, others get one between those of their neighbours, if possible
/// one that is not full.
fn assign(devices: &[Placement], kept: &[Option<usize>], slices: usize, limits: &Limits) -> Vec<usize> {
    let mut lengths = vec![0; slices];
    let mut heavy = vec![false; slices];
    for (device, slice) in devices.iter().zip(kept) {
        if let Some(slice) = slice {
            lengths[*slice] += 1;
            heavy[*slice] |= device.is_heavy;
        }
    }
    // For each device, the slice of the next device that stays.
    let mut next = vec![None; devices.len()];
    let mut following = None;
    for (number, slice) in kept.iter().enumerate().rev() {
        next[number] = following;
        following = slice.or(following);
    }
    let mut assigned = Vec::with_capacity(devices.len());
    let mut current = 0;
    for (number, device) in devices.iter().enumerate() {
        if let Some(slice) = kept[number] {
            current = slice;
            assigned.push(slice);
            continue;
        }
        let mut has_capacity = |slice: usize| {
            if slice == lengths.len() {
                lengths.push(0);
                heavy.push(false);
            }
            lengths[slice] < limits.of(heavy[slice] || device.is_heavy)
        };
        // After the last device that stays, new slices may be added.
        let last = next[number].unwrap_or(usize::MAX);
        let mut slice = current;
        while !has_capacity(slice) && slice < last {
            slice += 1;
        }
        // If all are full, the slice of the preceding neighbour gets too many, which `shift` corrects.
        current = if has_capacity(slice) { slice } else { current };
        lengths[current] += 1;
        heavy[current] |= device.is_heavy;
        assigned.push(current);
    }
    assigned
}

/// Moves devices from slices with too many to the nearest that are not full, across all slices in between.
fn shift(lengths: &mut Vec<usize>, limits: &Limits) {
    let limit = limits.light;
    for slice in 0.. {
        while slice < lengths.len() && lengths[slice] > limit {
            let has_capacity = |length: &usize| *length < limits.safe;
            let left = lengths[..slice].iter().rposition(has_capacity);
            let right = lengths[slice + 1..].iter().position(has_capacity).map_or(lengths.len(), |at| slice + 1 + at);
            let target = match left {
                Some(left) if slice - left < right - slice => left,
                _ => right,
            };
            if target == lengths.len() {
                lengths.push(0);
            }
            // The slices in between pass on as many as they get.
            let moved = (lengths[slice] - limit).min(limits.safe - lengths[target]);
            lengths[slice] -= moved;
            lengths[target] += moved;
        }
        if slice >= lengths.len() {
            break;
        }
    }
}

#[cfg(test)]
mod tests;
