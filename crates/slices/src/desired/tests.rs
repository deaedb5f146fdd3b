//! What a version of a pool shares with the one before, and that it is the same as without it.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use crate::devices::Devices;
use crate::resources::PublishedDevice;

const CONTEXT: ValidationContext<'static> =
    ValidationContext { driver: "gpu.example.com", is_on_node: true, is_single_pool: false };

fn version(pool: Pool, before: Option<&DesiredPool>) -> DesiredPool {
    DesiredPool::new("pool", pool, None, CONTEXT, before).unwrap()
}

fn work(validated: usize, digested: usize, assembled: usize) -> Work {
    Work { validated, digested, assembled }
}

fn gpu(number: usize, revision: i64) -> PublishedDevice {
    PublishedDevice::new(format!("gpu-{number}")).attribute("index", number as i64).attribute("revision", revision)
}

fn gpus(count: usize) -> Pool {
    Pool::default().devices((0..count).map(|number| gpu(number, 0)))
}

fn changed(mut pool: Pool, number: usize) -> Pool {
    pool.devices.set(number, gpu(number, 1));
    pool
}

fn update(devices: impl IntoIterator<Item = PublishedDevice>, removed: &[&str]) -> PoolUpdate {
    let mut update = PoolUpdate::default();
    devices.into_iter().for_each(|device| update.set(&device));
    removed.iter().for_each(|name| update.remove(name));
    update
}

/// The promise of docs/PERFORMANCE.md, in counts: it holds on every machine.
#[test]
fn the_change_of_one_of_ten_thousand_devices_is_work_for_one_device_and_one_slice() {
    let first = version(gpus(10_000), None);
    assert_eq!((first.work, first.slices.len(), first.len()), (work(10_000, 10_000, 79), 79, 10_000));
    let same = version(gpus(10_000), Some(&first));
    assert_eq!(same.work, work(0, 0, 0), "the same again");
    assert!(Arc::ptr_eq(&same.by_name, &first.by_name));
    let second = version(changed(gpus(10_000), 5_000), Some(&first));
    assert_eq!(second.work, work(1, 1, 1), "published as a whole");
    let third = first.updated("pool", &update([gpu(5_000, 1)], &[]), CONTEXT).unwrap();
    assert_eq!(third.work, work(1, 1, 1), "updated alone");
    assert_eq!(contents(&second), contents(&third));
    let digests = |pool: &DesiredPool| pool.slices.iter().map(|slice| slice.digest).collect::<Vec<_>>();
    let differences = digests(&first).iter().zip(digests(&third)).filter(|(one, other)| **one != *other).count();
    assert_eq!(differences, 1);

    let mut more = changed(gpus(10_000), 5_000);
    more.devices.insert(300, PublishedDevice::new("late"));
    let fourth = version(more.clone(), Some(&third));
    assert_eq!(fourth.work, work(1, 1, 1), "one more");
    more.devices.remove(700);
    assert_eq!(version(more, Some(&fourth)).work, work(0, 0, 1), "one less");
    let fifth = fourth.updated("pool", &update([], &["gpu-699", "unknown"]), CONTEXT).unwrap();
    assert_eq!((fifth.work, fifth.len()), (work(0, 0, 1), 10_000), "one removed alone");
    assert!(fifth.get("gpu-699").is_none() && fifth.get("gpu-700").is_some());
}

/// What a device may be depends on the pool.
#[test]
fn devices_are_validated_again_if_the_rules_of_the_pool_change_and_not_digested() {
    let counters = |name: &str| Pool::default().counter_set(name, [("memory", "80Gi")]);
    let consumer = || PublishedDevice::new("consumer").consumes("a", [("memory", "1Gi")]);
    let before = version(counters("a").device(consumer()).device(gpu(0, 0)), None);
    let same = version(counters("a").device(consumer()).device(gpu(0, 0)), Some(&before));
    assert_eq!(same.work, work(0, 0, 0));
    let invalid = counters("b").device(consumer()).device(gpu(0, 0));
    let Err(rejected) = DesiredPool::new("pool", invalid.clone(), None, CONTEXT, Some(&before)) else { panic!() };
    assert!(rejected.error.to_string().contains("the pool has no counter set \"a\""), "{}", rejected.error);
    assert_eq!(rejected.pool, invalid);
    let more =
        version(counters("a").counter_set("b", [("x", "1")]).device(consumer()).device(gpu(0, 0)), Some(&before));
    assert_eq!(more.work, work(2, 0, 0), "the counters are in the header of a slice, whose devices are the same");
    assert_ne!(more.slices[0].digest, before.slices[0].digest);
    assert_eq!(more.slices[1].digest, before.slices[1].digest);
    let generation = Pool { generation: 9, ..counters("a").device(consumer()).device(gpu(0, 0)) };
    assert_eq!(version(generation, Some(&before)).work, work(0, 0, 0), "the generation is no rule");
}

/// Only what changed is validated: the error must still name the place in the whole pool.
#[test]
fn an_invalid_change_is_reported_with_its_place_and_returned_as_a_whole() {
    let before = version(gpus(300), None);
    let broken = PublishedDevice::new("gpu-200").capacity("memory", "much");
    let rejected = before.updated("pool", &update([broken.clone()], &["gpu-7"]), CONTEXT).unwrap_err();
    let message = rejected.error.to_string();
    assert!(message.starts_with("pool pool: devices[199].capacity[memory].value: \"much\""), "{message}");
    let mut whole = gpus(300);
    whole.devices.set(200, broken);
    whole.devices.remove(7);
    assert_eq!(rejected.pool, whole);
    let repaired = update([gpu(200, 1)], &[]);
    let after = DesiredPool::new("pool", rejected.pool, Some(&repaired), CONTEXT, Some(&before)).unwrap();
    assert_eq!((after.len(), after.work), (299, work(1, 1, 2)));
}

#[test]
fn a_name_that_appears_twice_is_found_wherever_it_comes_from() {
    let before = version(gpus(10), None);
    let error = |pool: Pool| match DesiredPool::new("pool", pool, None, CONTEXT, Some(&before)) {
        Err(rejected) => rejected.error.to_string(),
        Ok(_) => panic!("valid"),
    };
    let mut pool = gpus(10);
    pool.devices.push(gpu(3, 0));
    assert_eq!(error(pool), "pool pool: devices[10].name: duplicate: \"gpu-3\"", "the same device again");
    assert_eq!(
        error(gpus(10).device(gpu(11, 0)).device(gpu(11, 1))),
        "pool pool: devices[11].name: duplicate: \"gpu-11\""
    );
}

#[test]
fn devices_are_appended_to_the_last_slice_that_the_driver_chose() {
    let slice = |numbers: &[usize]| PoolSlice {
        devices: numbers.iter().map(|number| gpu(*number, 0)).collect(),
        ..PoolSlice::default()
    };
    let counters = PoolSlice {
        shared_counters: Pool::default().counter_set("a", [("memory", "80Gi")]).shared_counters,
        ..PoolSlice::default()
    };
    let pool = Pool::default().slice(slice(&[0, 1])).slice(counters).slice(slice(&[2, 3]));
    let before = version(pool, None);
    let after = before.updated("pool", &update([gpu(4, 0), gpu(1, 1)], &["gpu-0", "gpu-2"]), CONTEXT).unwrap();
    let names: Vec<Vec<&str>> = after
        .slices
        .iter()
        .map(|slice| (0..slice.devices.len()).map(|index| slice.devices.name(index)).collect())
        .collect();
    assert_eq!(names, [vec!["gpu-1"], vec![], vec!["gpu-3", "gpu-4"]]);
    assert!(after.slices[1].header.shared_counters.is_some());
    assert_eq!(after.work, work(2, 2, 2));
}

/// Slices of an earlier process stay as they are.
#[test]
fn a_pool_is_split_like_the_stored_slices() {
    let pool = version(gpus(130), None);
    assert_eq!(pool.slices.iter().map(|slice| slice.devices.len()).collect::<Vec<_>>(), [65, 65]);
    assert!(pool.rearranged(|_| None, 0).unwrap().is_none(), "without slices it is as it should be");
    let stored: HashMap<String, usize> =
        (0..130).map(|number| (format!("gpu-{number}"), usize::from(number > 99))).collect();
    let split = pool.rearranged(|name| stored.get(name).copied(), 2).unwrap().unwrap();
    assert_eq!(split.slices.iter().map(|slice| slice.devices.len()).collect::<Vec<_>>(), [100, 30]);
    assert_eq!(contents(&split), contents(&pool));
    assert!(split.rearranged(|name| stored.get(name).copied(), 2).unwrap().is_none());
    let (slice, index) = split.get("gpu-100").unwrap();
    assert_eq!((slice.name(index), index), ("gpu-100", 0));
}

/// Capacities are numbers of any size: each change of one is published.
#[test]
fn digests_depend_on_the_value_of_a_capacity_and_not_on_its_text() {
    let digest = |capacity: &str| {
        let device = PublishedDevice::new("a").capacity("memory", capacity);
        version(Pool::default().device(device), None).slices[0].devices.facts(0).digest
    };
    assert_ne!(digest("100E"), digest("200E"));
    assert_ne!(digest("1e30"), digest("1e31"));
    assert_eq!(digest("1Gi"), digest("1048576Ki"));
    assert_eq!(digest("1500m"), digest("1.5"));
}

/// The devices of a version with everything that is known of them, which does not depend on how it was made.
fn contents(pool: &DesiredPool) -> Vec<(String, DeviceFacts, Vec<TaintTime>)> {
    let device = |number: usize| {
        let (slice, index) = pool.locate(number);
        let text = String::from_utf8(slice.devices.text(index).to_vec()).unwrap();
        (text, *slice.devices.facts(index), slice.devices.taints_of(index).cloned().collect())
    };
    (0..pool.len()).map(device).collect()
}

/// A device of random kind: plain, tainted, with a list, with counters of one of two sets, or not valid.
fn device(name: u8, kind: u8, revision: i64) -> PublishedDevice {
    let device = PublishedDevice::new(format!("gpu-{name}")).attribute("revision", revision);
    match kind {
        0 => device.taint("k", format!("v{revision}"), "NoSchedule").taint("l", "", "None"),
        1 => device.attribute("list", vec![1, 2]),
        2 => device.consumes("a", [("memory", "1Gi")]),
        3 => device.consumes("b", [("memory", "1Gi")]),
        4 => device.capacity("memory", "much"),
        _ => device.capacity("memory", "1Gi"),
    }
}

/// Pools with random devices, in random order and with duplicates, and with one or two sets of counters.
fn pools() -> impl Strategy<Value = Pool> {
    let devices = prop::collection::vec((0u8..12, 0u8..40, 0i64..2), 0..12);
    (devices, any::<bool>(), any::<bool>()).prop_map(|(devices, has_both, is_chosen)| {
        let pool = Pool { devices_per_slice: Some(3), ..Pool::default().counter_set("a", [("memory", "80Gi")]) };
        let pool = if has_both { pool.counter_set("b", [("memory", "80Gi")]) } else { pool };
        let devices: Vec<PublishedDevice> =
            devices.into_iter().map(|(name, kind, revision)| device(name, kind, revision)).collect();
        if !is_chosen {
            return pool.devices(devices);
        }
        let counters = PoolSlice { shared_counters: pool.shared_counters, ..PoolSlice::default() };
        let slices = devices
            .chunks(4)
            .map(|devices| PoolSlice { devices: devices.iter().cloned().collect::<Devices>(), ..PoolSlice::default() });
        Pool { slices: std::iter::once(counters).chain(slices).collect(), ..Pool::default() }
    })
}

fn assert_consistent(pool: &DesiredPool) -> Result<(), TestCaseError> {
    let mut first = 0;
    for slice in &pool.slices {
        prop_assert_eq!(slice.first, first);
        first += slice.devices.len();
        let digest = slice.header.digest(slice.devices.all_facts().map(|facts| facts.digest)).unwrap();
        prop_assert_eq!(slice.digest, digest);
        let devices: Vec<serde_json::Value> = serde_json::from_str(slice.devices.json()).unwrap();
        prop_assert_eq!(devices.len(), slice.devices.len());
    }
    prop_assert_eq!(first, pool.len());
    for (number, name) in pool.names().enumerate() {
        prop_assert_eq!(pool.number_of(name.as_bytes()), Some(number));
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_version_is_the_same_with_and_without_the_ones_before(versions in prop::collection::vec(pools(), 1..5)) {
        let mut before: Option<DesiredPool> = None;
        for pool in versions {
            let fresh = DesiredPool::new("pool", pool.clone(), None, CONTEXT, None);
            let next = DesiredPool::new("pool", pool.clone(), None, CONTEXT, before.as_ref());
            match (fresh, next) {
                (Ok(fresh), Ok(next)) => {
                    prop_assert_eq!(contents(&next), contents(&fresh));
                    assert_consistent(&next)?;
                    before = Some(next);
                }
                (Err(fresh), Err(next)) => {
                    prop_assert_eq!(next.error.to_string(), fresh.error.to_string());
                    prop_assert_eq!(next.pool, pool);
                }
                (fresh, next) => prop_assert!(false, "{:?} {:?}", fresh, next),
            }
        }
    }

    #[test]
    fn an_update_is_the_same_as_a_publish_with_these_devices_changed(
        pool in pools(),
        changes in prop::collection::vec((0u8..14, prop::option::of((0u8..40, 0i64..2))), 0..5),
    ) {
        let Ok(before) = DesiredPool::new("pool", pool.clone(), None, CONTEXT, None) else { return Ok(()) };
        let mut update = PoolUpdate::default();
        let mut last: BTreeMap<u8, Option<PublishedDevice>> = BTreeMap::new();
        for (name, change) in changes {
            let new = change.map(|(kind, revision)| device(name, kind, revision));
            match &new {
                Some(device) => update.set(device),
                None => update.remove(&format!("gpu-{name}")),
            }
            last.insert(name, new);
        }
        let mut whole = pool.clone();
        let last_list = whole.slices.len();
        let lists = std::iter::once(&mut whole.devices).chain(whole.slices.iter_mut().map(|slice| &mut slice.devices));
        let mut added: Vec<String> = update.names().map(|name| String::from_utf8(name.to_vec()).unwrap()).collect();
        let by_name = |name: &str| last.iter().find(|(number, _)| format!("gpu-{number}") == name).map(|(_, new)| new);
        for (number, list) in lists.enumerate() {
            let changed = list.iter().filter_map(|device| {
                added.retain(|name| *name != device.name);
                by_name(&device.name).map_or(Some(device), Clone::clone)
            });
            let mut changed: Devices = changed.collect();
            if number == last_list {
                changed.extend(added.iter().filter_map(|name| by_name(name).cloned().flatten()));
            }
            *list = changed;
        }
        let published = DesiredPool::new("pool", whole.clone(), None, CONTEXT, Some(&before));
        match (published, before.updated("pool", &update, CONTEXT)) {
            (Ok(published), Ok(updated)) => {
                prop_assert_eq!(contents(&updated), contents(&published));
                let lengths = |pool: &DesiredPool| pool.slices.iter().map(|slice| slice.devices.len()).collect::<Vec<_>>();
                prop_assert_eq!(lengths(&updated), lengths(&published));
                assert_consistent(&updated)?;
            }
            (Err(published), Err(updated)) => {
                prop_assert_eq!(updated.error.to_string(), published.error.to_string());
                prop_assert_eq!(updated.pool, whole);
            }
            (published, updated) => prop_assert!(false, "{:?} {:?}", published, updated),
        }
    }
}
