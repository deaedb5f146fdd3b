//! The behaviour of upstream's controller, and where it differs on purpose.

#![allow(clippy::unwrap_used)]

use drakkar_client::DraVersion;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::resources::{Pool, PoolSlice, PublishedDevice};
use crate::validate::ValidationContext;

/// Slices with one device each, whose attribute has this value.
fn desired(contents: &[i64], generation: i64) -> DesiredPool {
    let slices = contents.iter().enumerate().map(|(index, content)| PoolSlice {
        devices: vec![PublishedDevice::new(format!("d{index}")).attribute("content", *content)].into(),
        ..PoolSlice::default()
    });
    let pool = Pool { slices: slices.collect(), generation, ..Pool::default() };
    let context = ValidationContext { driver: "gpu.example.com", is_on_node: true, is_single_pool: false };
    DesiredPool::new("pool", pool, None, context, None).unwrap()
}

/// A slice that the API server stores.
fn stored(name: &str, generation: i64, count: i64, index: usize, content: i64) -> StoredSlice {
    let object = json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "7"},
        "spec": {
            "driver": "gpu.example.com", "nodeName": "node-1",
            "pool": {"name": "pool", "generation": generation, "resourceSliceCount": count},
            "devices": [{"name": format!("d{index}"), "attributes": {"content": {"int": content}}}],
        },
    });
    StoredSlice::read(object.to_string().as_bytes(), DraVersion::V1).unwrap()
}

fn named(index: usize, tail: &str) -> String {
    format!("{index:05x}-gpu.example.com-node-1-{tail}")
}

/// The stored slices of a pool with these contents.
fn published(contents: &[i64], generation: i64) -> Vec<StoredSlice> {
    let count = i64::try_from(contents.len()).unwrap();
    let one = |(index, content): (usize, &i64)| stored(&named(index, "a"), generation, count, index, *content);
    contents.iter().enumerate().map(one).collect()
}

fn writes(desired: &DesiredPool, stored: &[StoredSlice]) -> Writes {
    let known = Known { stored, remembered: 0, rollout: None };
    diff(Some(desired), known, |index, slice| desired.slices[index].digest == slice.digest)
}

/// Returns the numbers of creates, updates and deletes, and the generation.
fn counts(writes: &Writes) -> (usize, usize, usize, i64) {
    let deletes = writes.delete_first.len() + writes.delete_last.len();
    (writes.create.len(), writes.update.len(), deletes, writes.generation)
}

#[rstest]
#[case::first(&[], &[1], (1, 0, 0, 1))]
#[case::identical(&[1, 2], &[1, 2], (0, 0, 0, 5))]
#[case::one_of_one(&[1], &[9], (0, 1, 0, 5))]
#[case::one_of_two(&[1, 2], &[1, 9], (0, 1, 0, 5))]
#[case::two_of_three(&[1, 2, 3], &[1, 8, 9], (0, 3, 0, 6))]
#[case::one_of_three_removed(&[1, 2, 3], &[1, 3], (0, 2, 1, 6))]
#[case::one_added_to_three(&[1, 2, 3], &[1, 2, 3, 4], (1, 3, 0, 6))]
fn a_change_of_several_slices_is_a_new_generation(
    #[case] before: &[i64],
    #[case] after: &[i64],
    #[case] expected: (usize, usize, usize, i64),
) {
    assert_eq!(counts(&writes(&desired(after, 0), &published(before, 5))), expected);
}

#[test]
fn a_pool_that_is_not_desired_is_deleted() {
    let stored = published(&[1, 2], 3);
    let writes = diff(None, Known { stored: &stored, remembered: 3, rollout: None }, |_, _| true);
    assert_eq!((writes.delete_first, writes.create.len()), (vec![0, 1], 0));
}

#[test]
fn slices_with_a_duplicate_or_excess_index_are_deleted_first() {
    let mut stored = published(&[1, 2], 5);
    stored.push(self::stored(&named(1, "b"), 5, 2, 1, 2));
    stored.push(self::stored(&named(2, "a"), 5, 2, 2, 2));
    let writes = writes(&desired(&[1, 2], 0), &stored);
    assert_eq!((writes.delete_first.as_slice(), counts(&writes)), (&[2, 3][..], (0, 0, 2, 5)));
}

#[test]
fn slices_of_older_generations_are_deleted_last() {
    let stored =
        [(0, 1), (1, 2), (2, 1)].map(|(index, generation)| stored(&named(index, "a"), generation, 3, index, 1));
    let writes = writes(&desired(&[1], 0), &stored);
    assert_eq!((counts(&writes), writes.delete_first.len()), ((1, 0, 3, 3), 0));
}

#[test]
fn slices_with_other_names_are_replaced() {
    let random = |tail: &str, index| stored(&format!("node-1-gpu.example.com-{tail}"), 5, 3, index, 1);
    let all = [random("a", 0), random("b", 1), random("c", 2)];
    assert_eq!(counts(&writes(&desired(&[1, 1, 1], 0), &all)), (3, 0, 3, 6));
    let mixed = [random("a", 0), stored(&named(1, "x"), 5, 3, 1, 1), random("c", 2)];
    assert_eq!(counts(&writes(&desired(&[1, 1, 1], 0), &mixed)), (2, 1, 2, 6));
}

#[test]
fn the_generation_of_the_driver_is_used_if_it_is_higher() {
    assert_eq!(counts(&writes(&desired(&[1, 2], 9), &published(&[1, 2], 5))), (0, 2, 0, 9));
    assert_eq!(counts(&writes(&desired(&[1, 2], 4), &published(&[1, 2], 5))), (0, 0, 0, 5));
    assert_eq!(counts(&writes(&desired(&[1], 7), &[])), (1, 0, 0, 7));
}

/// G57: upstream starts at 1 again after a wipe.
#[test]
fn a_generation_does_not_go_back_after_a_wipe() {
    let desired = desired(&[1, 2], 0);
    let writes = diff(Some(&desired), Known { stored: &[], remembered: 41, rollout: None }, |_, _| false);
    assert_eq!(counts(&writes), (2, 0, 0, 42));
}

#[test]
fn an_interrupted_rollout_is_finished_and_not_started_again() {
    let desired = desired(&[1, 2, 3], 0);
    let mut stored = published(&[1, 0, 0], 5);
    stored[0].generation = 6;
    stored.remove(2);
    let known = Known { stored: &stored, remembered: 6, rollout: Some(6) };
    let writes = diff(Some(&desired), known, |index, slice| desired.slices[index].digest == slice.digest);
    assert_eq!((writes.update.as_slice(), counts(&writes)), (&[(1, 1)][..], (1, 1, 0, 6)));
}

/// G50: the time of each taint is compared on its own.
#[rstest]
#[case("2026-01-02T03:04:05Z", None, false)]
#[case("2026-01-02T03:04:05Z", Some("2026-01-02T03:04:06Z"), false)]
#[case("2026-01-02T03:04:05Z", Some("2026-01-02T03:04:09Z"), true)]
fn taint_times_that_differ_by_more_than_a_second_are_written(
    #[case] theirs: &str,
    #[case] ours: Option<&str>,
    #[case] differ: bool,
) {
    let taint = |time: Option<&str>| {
        let taint = json!([
            {"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
            {"key": "b", "effect": "NoExecute", "timeAdded": time},
        ]);
        serde_json::from_value::<Vec<k8s_openapi::api::resource::v1::DeviceTaint>>(taint).unwrap()
    };
    let device = PublishedDevice { taints: taint(ours), ..PublishedDevice::new("d0") };
    let context = ValidationContext { driver: "d", is_on_node: true, is_single_pool: false };
    let desired = DesiredPool::new("pool", Pool::default().device(device), None, context, None).unwrap();
    let object = json!({
        "metadata": {"name": named(0, "a"), "uid": "u", "resourceVersion": "1"},
        "spec": {"driver": "d", "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "d0", "taints": taint(Some(theirs))}]},
    });
    let stored = [StoredSlice::read(object.to_string().as_bytes(), DraVersion::V1).unwrap()];
    let writes = writes(&desired, &stored);
    assert_eq!(writes.update.len(), usize::from(differ));
}

proptest! {
    /// Whatever was stored: after the writes nothing is left to write, and generations have not gone back.
    #[test]
    fn a_second_diff_is_empty(
        before in prop::collection::vec((0usize..4, 0i64..3, 0i64..4, 0i64..3, any::<bool>()), 0..6),
        after in prop::collection::vec(0i64..3, 1..4),
        remembered in 0i64..6,
    ) {
        let desired = desired(&after, 0);
        let mut stored: Vec<StoredSlice> = before.iter().enumerate().map(|(number, (index, content, generation, count, named_so))| {
            let name = if *named_so { named(*index, &number.to_string()) } else { format!("other-{number}") };
            stored(&name, *generation, *count, *index, *content)
        }).collect();
        let same = |index: usize, slice: &StoredSlice| desired.slices[index].digest == slice.digest;
        let known = Known { stored: &stored, remembered, rollout: None };
        let first = diff(Some(&desired), known, same);
        let highest = stored.iter().map(|slice| slice.generation).max().unwrap_or(0);
        prop_assert!(first.generation >= highest);
        prop_assert!(first.create.is_empty() || first.generation > remembered);
        let count = i64::try_from(after.len()).unwrap();
        for (index, number) in &first.update {
            let name = stored[*number].name.clone();
            stored[*number] = self::stored(&name, first.generation, count, *index, after[*index]);
        }
        let created: Vec<StoredSlice> = first.create.iter()
            .map(|index| self::stored(&named(*index, "new"), first.generation, count, *index, after[*index])).collect();
        let gone: Vec<usize> = first.delete_first.iter().chain(&first.delete_last).copied().collect();
        let mut number = 0;
        stored.retain(|_| { number += 1; !gone.contains(&(number - 1)) });
        stored.extend(created);
        let known = Known { stored: &stored, remembered: remembered.max(first.generation), rollout: None };
        let second = diff(Some(&desired), known, same);
        prop_assert_eq!(second.len(), 0, "{:?}", second);
        prop_assert_eq!(stored.len(), after.len());
    }
}
