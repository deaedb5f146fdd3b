//! What is shared between one publish and the next.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::resources::PublishedDevice;

const CONTEXT: ValidationContext<'static> =
    ValidationContext { driver: "gpu.example.com", is_on_node: true, is_single_pool: false };

fn validated(devices: &[(&str, i64)], before: Option<&Devices>) -> ValidatedPool {
    let devices = devices.iter().map(|(name, number)| PublishedDevice::new(*name).attribute("number", *number));
    ValidatedPool::new("pool", Pool::default().devices(devices), CONTEXT, before).unwrap()
}

/// Ten thousand devices of which one has changed are neither stored twice nor digested again.
#[test]
fn unchanged_devices_are_shared_with_the_last_publish_in_any_order() {
    let before = validated(&[("a", 1), ("b", 1), ("c", 1)], None).devices;
    let after = validated(&[("c", 1), ("new", 1), ("a", 1), ("b", 2)], Some(&before)).devices;
    let is_same = |name: &str| before.get(name).is_some_and(|device| Arc::ptr_eq(device, after.get(name).unwrap()));
    assert_eq!(["a", "b", "c", "new"].map(is_same), [true, false, true, false]);
    assert_ne!(before.get("b").unwrap().digest, after.get("b").unwrap().digest);
    let fresh = validated(&[("c", 1), ("new", 1), ("a", 1), ("b", 2)], None).devices;
    let contents = |devices: &Devices| -> Vec<(String, Digest)> {
        devices.in_order.iter().map(|device| (device.json.get().to_owned(), device.digest)).collect()
    };
    assert_eq!(contents(&after), contents(&fresh), "the same as without an earlier publish");
}

/// Capacities are numbers of any size: each change of one is published.
#[test]
fn digests_depend_on_the_value_of_a_capacity_and_not_on_its_text() {
    let digest = |capacity: &str| {
        let device = PublishedDevice::new("a").capacity("memory", capacity);
        ValidatedPool::new("pool", Pool::default().device(device), CONTEXT, None).unwrap().devices.in_order[0].digest
    };
    assert_ne!(digest("100E"), digest("200E"));
    assert_ne!(digest("1e30"), digest("1e31"));
    assert_eq!(digest("1Gi"), digest("1048576Ki"));
    assert_eq!(digest("1500m"), digest("1.5"));
}
