//! Examples and properties of the split.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Slices of devices by number. Heavy devices are negative.
type Slices = Vec<Vec<i64>>;

fn placements(devices: &[i64], current: &Slices) -> Vec<Placement> {
    let assigned: HashMap<i64, usize> =
        current.iter().enumerate().flat_map(|(slice, devices)| devices.iter().map(move |d| (d.abs(), slice))).collect();
    devices.iter().map(|d| Placement { is_heavy: *d < 0, slice: assigned.get(&d.abs()).copied() }).collect()
}

fn rearrange(devices: &[i64], current: &Slices) -> Slices {
    let lengths = arrange(&placements(devices, current), current.len(), None);
    let mut rest = devices.iter().copied();
    lengths.iter().map(|length| rest.by_ref().take(*length).collect()).collect()
}

fn fresh(devices: impl IntoIterator<Item = i64>) -> Slices {
    rearrange(&devices.into_iter().collect::<Vec<_>>(), &Vec::new())
}

fn changed(before: &Slices, after: &Slices) -> usize {
    (0..before.len().max(after.len())).filter(|slice| before.get(*slice) != after.get(*slice)).count()
}

#[test]
fn an_empty_pool_has_one_slice() {
    assert_eq!(fresh([]), [Vec::<i64>::new()]);
}

/// G56: upstream leaves the limits to the driver.
#[test]
fn pools_are_split_evenly_within_the_limits() {
    let sizes = |slices: Slices| slices.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(sizes(fresh(1..=128)), [128]);
    assert_eq!(sizes(fresh(1..=129)), [65, 64]);
    assert_eq!(sizes(fresh(-64..=-1)), [64]);
    assert_eq!(sizes(fresh(-65..=-1)), [33, 32]);
    assert_eq!(fresh(1..=10_000).len(), 79);
    assert_eq!(arrange(&placements(&[1, 2, 3], &vec![]), 0, Some(2)), [2, 1]);
}

#[test]
fn adding_or_removing_one_of_ten_thousand_devices_changes_one_slice() {
    let before = fresh((1..=10_000).map(|number| number * 2));
    for at in [0, 1, 126, 127, 5_000, 9_999, 10_000] {
        let mut devices: Vec<i64> = before.concat();
        devices.insert(at, 1);
        assert_eq!(changed(&before, &rearrange(&devices, &before)), 1, "added at {at}");
    }
    for at in [0, 126, 5_000, 9_999] {
        let mut devices: Vec<i64> = before.concat();
        devices.remove(at);
        assert_eq!(changed(&before, &rearrange(&devices, &before)), 1, "removed at {at}");
    }
}

#[test]
fn a_device_after_the_last_full_slice_starts_a_new_one() {
    let before = fresh(1..=128);
    let after = rearrange(&(1..=129).collect::<Vec<_>>(), &before);
    assert_eq!(after, [(1..=128).collect::<Vec<_>>(), vec![129]]);
}

#[test]
fn adding_to_a_full_slice_moves_one_device_across_each_border_to_the_nearest_slice_that_is_not() {
    let before: Slices = vec![(1..=128).collect(), (201..=328).collect(), (401..=500).collect()];
    let mut devices = before.concat();
    devices.insert(5, 199);
    let after = rearrange(&devices, &before);
    assert_eq!(after.iter().map(Vec::len).collect::<Vec<_>>(), [128, 128, 101]);
    assert_eq!((after[1][0], after[2][0]), (128, 328));
}

#[test]
fn the_first_taint_in_a_large_slice_makes_all_slices_small() {
    let before = fresh(1..=256);
    let mut devices = before.concat();
    devices[3] = -devices[3];
    let after = rearrange(&devices, &before);
    assert_eq!(after.iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 64, 64]);
    let mut devices = after.concat();
    devices[200] = -devices[200];
    assert_eq!(
        rearrange(&devices, &after).iter().map(Vec::len).collect::<Vec<_>>(),
        [64; 4],
        "the next taint changes no sizes"
    );
}

#[test]
fn slices_are_merged_when_most_devices_are_gone() {
    let before = fresh(1..=1280);
    assert_eq!(rearrange(&(1..=900).collect::<Vec<_>>(), &before).len(), 10, "gaps stay");
    assert_eq!(rearrange(&(1..=100).collect::<Vec<_>>(), &before).len(), 1);
}

/// Devices in order, some of them heavy.
fn devices() -> impl Strategy<Value = Vec<i64>> {
    (prop::collection::btree_set(1i64..5000, 0..700), prop::bool::weighted(0.3), any::<u64>()).prop_map(
        |(devices, some_heavy, salt)| {
            let heavy = |number: i64| some_heavy && (number as u64 ^ salt).is_multiple_of(7);
            devices.into_iter().map(|number| if heavy(number) { -number } else { number }).collect()
        },
    )
}

proptest! {
    #[test]
    fn order_and_limits_are_kept(before in devices(), after in devices(), shuffle in any::<bool>()) {
        let mut after = after;
        if shuffle {
            after.reverse();
        }
        let first = fresh(before);
        let second = rearrange(&after, &first);
        prop_assert_eq!(second.concat(), after);
        for slice in first.iter().chain(&second) {
            let limit = if slice.iter().any(|device| *device < 0) { MAX_HEAVY_DEVICES } else { MAX_DEVICES };
            prop_assert!(slice.len() <= limit);
        }
        prop_assert!(!second.is_empty());
        prop_assert_eq!(&rearrange(&second.concat(), &second), &second, "nothing moves without a reason");
    }

    #[test]
    fn adding_or_removing_a_device_moves_at_most_one_device_across_each_border(
        before in devices().prop_filter("light ones", |devices| devices.iter().all(|device| *device > 0)),
        at in any::<prop::sample::Index>(),
        add in any::<bool>(),
    ) {
        prop_assume!(before.len() > 1);
        let before = fresh(before);
        let mut devices = before.concat();
        let at = at.index(devices.len());
        if add {
            devices.insert(at, 9999);
        } else {
            devices.remove(at);
        }
        let after = rearrange(&devices, &before);
        let assigned: HashMap<i64, usize> = after.iter().enumerate().flat_map(|(s, d)| d.iter().map(move |d| (*d, s))).collect();
        let moved = before.iter().enumerate().flat_map(|(s, d)| d.iter().map(move |d| (*d, s)))
            .filter(|(device, slice)| assigned.get(device).is_some_and(|home| home != slice)).count();
        prop_assert!(moved < after.len());
        if !add {
            prop_assert_eq!((moved, changed(&before, &after)), (0, 1));
        }
    }
}
