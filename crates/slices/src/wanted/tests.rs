//! What is kept from one publish to the next.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::resources::PublishedDevice;

const PLACE: Place<'static> = Place { driver: "gpu.example.com", is_on_node: true, is_for_others: false };

fn checked(devices: &[(&str, i64)], before: Option<&Devices>) -> Checked {
    let devices = devices.iter().map(|(name, number)| PublishedDevice::new(*name).attribute("number", *number));
    Checked::new("pool", Pool::default().devices(devices), PLACE, before).unwrap()
}

/// Ten thousand devices of which one has changed are not kept twice, nor digested again.
#[test]
fn a_device_that_has_not_changed_is_the_same_as_before_wherever_it_is_now() {
    let before = checked(&[("a", 1), ("b", 1), ("c", 1)], None).devices;
    let after = checked(&[("c", 1), ("new", 1), ("a", 1), ("b", 2)], Some(&before)).devices;
    let is_same = |name: &str| before.get(name).is_some_and(|item| Arc::ptr_eq(item, after.get(name).unwrap()));
    assert_eq!(["a", "b", "c", "new"].map(is_same), [true, false, true, false]);
    assert_ne!(before.get("b").unwrap().digest, after.get("b").unwrap().digest);
    let fresh = checked(&[("c", 1), ("new", 1), ("a", 1), ("b", 2)], None).devices;
    let contents = |devices: &Devices| -> Vec<(String, Digest)> {
        devices.items.iter().map(|item| (item.json.get().to_owned(), item.digest)).collect()
    };
    assert_eq!(contents(&after), contents(&fresh), "as if there had been nothing before");
}

/// Capacities are numbers of any size: one that changes is always published.
#[test]
fn a_capacity_that_changes_is_another_device_and_another_text_of_it_is_not() {
    let digest = |capacity: &str| {
        let device = PublishedDevice::new("a").capacity("memory", capacity);
        Checked::new("pool", Pool::default().device(device), PLACE, None).unwrap().devices.items[0].digest
    };
    assert_ne!(digest("100E"), digest("200E"));
    assert_ne!(digest("1e30"), digest("1e31"));
    assert_eq!(digest("1Gi"), digest("1048576Ki"));
    assert_eq!(digest("1500m"), digest("1.5"));
}
