//! The writes between one state of a pool and the next.

use drakkar_plugin::{DriverResources, Pool, PoolSlice, PublishedDevice};
use rstest::rstest;
use serde_json::json;

use super::publishing::{names, pool, publish};
use super::resources;
use crate::support::{Cluster, POOL, TestDriver};

/// Slices with one device each, with this number.
fn chosen(numbers: &[i64]) -> DriverResources {
    let slice = |number: &i64| PoolSlice {
        devices: vec![PublishedDevice::new(format!("d{number}")).attribute("number", *number)].into(),
        ..PoolSlice::default()
    };
    resources(Pool { slices: numbers.iter().map(slice).collect(), ..Pool::default() })
}

/// A.7: the writes of a change, and that a second publish writes nothing.
#[rstest]
#[case::one_of_two(&[1, 2], &[1, 9], &["update"], 1)]
#[case::two_of_three(&[1, 2, 3], &[1, 8, 9], &["update"; 3], 2)]
#[case::one_of_three_removed(&[1, 2, 3], &[1, 3], &["update", "update", "delete"], 2)]
#[case::one_added_to_three(&[1, 2, 3], &[1, 2, 3, 4], &["update", "update", "update", "create"], 2)]
#[tokio::test]
async fn a_change_writes_as_little_as_possible(
    #[case] before: &[i64],
    #[case] after: &[i64],
    #[case] writes: &[&str],
    #[case] generation: i64,
) {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, chosen(before)).await;
    cluster.take_slice_verbs();
    publish(&helper, chosen(after)).await;
    assert_eq!(cluster.take_slice_verbs(), writes);
    let slices = cluster.slices().await;
    let expected: Vec<String> = after.iter().map(|number| format!("d{number}")).collect();
    assert_eq!(slices.iter().flat_map(|slice| names(slice)).collect::<Vec<_>>(), expected);
    let count = i64::try_from(after.len()).unwrap();
    assert!(slices.iter().all(|slice| pool(slice) == (generation, count)), "{slices:#?}");
    publish(&helper, chosen(after)).await;
    assert_eq!(cluster.take_slice_verbs(), [""; 0]);
}

/// A.7: slices of an earlier process or another program, by name and generation. They are adopted or deleted, with this number
/// of creates, updates and deletes, and a second publish writes nothing.
#[rstest]
#[case::with_an_index_twice_and_one_too_high(&[("00000-a", 5), ("00001-a", 5), ("00001-b", 5), ("00002-a", 5)], &[1, 2], (0, 0, 2), 5)]
#[case::of_older_generations(&[("00000-a", 1), ("00001-a", 2), ("00002-a", 1)], &[1], (1, 0, 3), 3)]
#[case::with_random_names(&[("a", 5), ("b", 5), ("c", 5)], &[1, 2, 3], (3, 0, 3), 6)]
#[case::with_some_random_names(&[("a", 5), ("00001-a", 5), ("c", 5)], &[1, 2, 3], (2, 1, 2), 6)]
#[tokio::test]
async fn leftover_slices_are_adopted_or_deleted(
    #[case] leftovers: &[(&str, i64)],
    #[case] desired: &[i64],
    #[case] writes: (usize, usize, usize),
    #[case] generation: i64,
) {
    let cluster = Cluster::new().await;
    let count = i64::try_from(desired.len()).unwrap();
    for (position, (name, generation)) in leftovers.iter().enumerate() {
        let index = name.split_once('-').map_or(position, |(index, _)| index.parse().unwrap());
        let device = json!({"name": format!("d{}", index + 1), "attributes": {"number": {"int": index + 1}}});
        let slice = json!({
            "metadata": {"name": format!("{name}-{}", cluster.names.driver)},
            "spec": {
                "driver": cluster.names.driver, "nodeName": cluster.names.node, "devices": [device],
                "pool": {"name": POOL, "generation": generation, "resourceSliceCount": count},
            },
        });
        let slice = serde_json::from_value(slice).unwrap();
        cluster.slice_api().create(&Default::default(), &slice).await.unwrap();
    }
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, chosen(desired)).await;
    let verbs = cluster.take_slice_verbs();
    let times = |expected: &str| verbs.iter().filter(|verb| **verb == expected).count();
    assert_eq!((times("create"), times("update"), times("delete")), writes, "{verbs:?}");
    let slices = cluster.slices().await;
    assert_eq!(
        slices.iter().flat_map(names).collect::<Vec<_>>(),
        desired.iter().map(|n| format!("d{n}")).collect::<Vec<_>>()
    );
    assert!(slices.iter().all(|slice| pool(slice) == (generation, count)), "{slices:#?}");
    publish(&helper, chosen(desired)).await;
    assert_eq!(cluster.take_slice_verbs(), [""; 0]);
}
