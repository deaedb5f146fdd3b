//! Which devices of a pool share a slice: in the driver's order, within the limits, and as before as far as that goes.
//!
//! A change within one slice is one write; a change of two, or of their number, is a new generation and a write of all. So a
//! device stays where it is while there is room: one that is added goes into a slice of its neighbours, one that is removed
//! leaves a hole, and a slice that is empty stays. Only when a slice is full do devices move on, as few as possible, to the
//! nearest that is not. Where nothing is known or little is left of it, devices are spread evenly over as few slices as there
//! can be, which leaves room in all.
//!
//! The first taint in a slice of more than 64 devices is such a case: all slices are made small. To split just that one would
//! save little, because a slice more is a new generation all the same, and the first taint in each other slice would be one
//! again; so there is one, and further taints are one write each.

/// How many devices a slice may have.
pub(super) const MAX_DEVICES: usize = 128;
/// How many it may have if one of them has taints, consumes counters or has a list among its attributes.
pub(super) const MAX_HEAVY_DEVICES: usize = 64;

/// A device, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    /// Whether a slice with it may have only half of the devices.
    pub(super) is_heavy: bool,
    /// The slice that it is in so far.
    pub(super) slice: Option<usize>,
}

/// How many of the devices, in their order, each slice gets; at least one slice. There are `slices` so far.
pub(super) fn arrange(devices: &[Seat], slices: usize, per_slice: Option<usize>) -> Vec<usize> {
    let limits = Limits::new(devices, per_slice);
    let kept = kept(devices, slices);
    let stay = kept.iter().flatten().count();
    if slices == 0 || stay * 2 < devices.len() || slices > 2 * limits.least(devices.len()) + 1 {
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

/// The limits of one pool.
struct Limits {
    /// Of a slice without heavy devices.
    light: usize,
    /// Of a slice with one.
    heavy: usize,
    /// Of a slice of which that is not known.
    safe: usize,
}

impl Limits {
    fn new(devices: &[Seat], per_slice: Option<usize>) -> Self {
        let at_most = per_slice.unwrap_or(MAX_DEVICES).max(1);
        let (light, heavy) = (MAX_DEVICES.min(at_most), MAX_HEAVY_DEVICES.min(at_most));
        let safe = if devices.iter().any(|device| device.is_heavy) { heavy } else { light };
        Self { light, heavy, safe }
    }

    /// How many slices are needed.
    fn least(&self, devices: usize) -> usize {
        devices.div_ceil(self.safe).max(1)
    }

    /// Evenly over as few slices as there can be.
    fn spread(&self, devices: usize) -> Vec<usize> {
        let slices = self.least(devices);
        (0..slices).map(|slice| devices / slices + usize::from(slice < devices % slices)).collect()
    }

    fn of(&self, is_heavy: bool) -> usize {
        if is_heavy { self.heavy } else { self.light }
    }

    fn are_kept(&self, devices: &[Seat], lengths: &[usize]) -> bool {
        let mut rest = devices;
        lengths.iter().all(|length| {
            let (slice, behind) = rest.split_at((*length).min(rest.len()));
            rest = behind;
            *length <= self.of(slice.iter().any(|device| device.is_heavy))
        })
    }
}

/// The slices of those that stay: as many as can be without a change of order (a longest non-decreasing subsequence).
fn kept(devices: &[Seat], slices: usize) -> Vec<Option<usize>> {
    // The last device of the best subsequence of each length so far, and who is before each device in its subsequence.
    let mut ends: Vec<usize> = Vec::new();
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

/// A slice for each device: those that stay have theirs, others get one between those of their neighbours, if possible one
/// with room.
fn assign(devices: &[Seat], kept: &[Option<usize>], slices: usize, limits: &Limits) -> Vec<usize> {
    let mut lengths = vec![0; slices];
    let mut heavy = vec![false; slices];
    for (device, slice) in devices.iter().zip(kept) {
        if let Some(slice) = slice {
            lengths[*slice] += 1;
            heavy[*slice] |= device.is_heavy;
        }
    }
    // The next slice of one that stays, seen from each device.
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
        let mut has_room = |slice: usize| {
            if slice == lengths.len() {
                lengths.push(0);
                heavy.push(false);
            }
            lengths[slice] < limits.of(heavy[slice] || device.is_heavy)
        };
        // Behind the last one that stays there may be more slices.
        let last = next[number].unwrap_or(usize::MAX);
        let mut slice = current;
        while !has_room(slice) && slice < last {
            slice += 1;
        }
        // If there is no room at all, too many are where the neighbour before is.
        current = if has_room(slice) { slice } else { current };
        lengths[current] += 1;
        heavy[current] |= device.is_heavy;
        assigned.push(current);
    }
    assigned
}

/// Moves devices from slices that have too many to the nearest that have room, across all slices between.
fn shift(lengths: &mut Vec<usize>, limits: &Limits) {
    let limit = limits.light;
    for slice in 0.. {
        while slice < lengths.len() && lengths[slice] > limit {
            let has_room = |length: &usize| *length < limits.safe;
            let left = lengths[..slice].iter().rposition(has_room);
            let right = lengths[slice + 1..].iter().position(has_room).map_or(lengths.len(), |at| slice + 1 + at);
            let target = match left {
                Some(left) if slice - left < right - slice => left,
                _ => right,
            };
            if target == lengths.len() {
                lengths.push(0);
            }
            // The slices between pass on as many as they get.
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
