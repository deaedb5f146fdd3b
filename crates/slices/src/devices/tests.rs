//! The list behaves like a vector of devices.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn device(number: i64) -> PublishedDevice {
    let device = PublishedDevice::new(format!("gpu-{number}")).attribute("number", number);
    if number % 3 == 0 { device.taint("k", "x".repeat(number.unsigned_abs() as usize % 60), "None") } else { device }
}

/// A change of a list.
#[derive(Debug, Clone)]
enum Change {
    Push(i64),
    Set(prop::sample::Index, i64),
    Insert(prop::sample::Index, i64),
    Remove(prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (0i64..100).prop_map(Change::Push),
        (index(), 0i64..100).prop_map(|(index, number)| Change::Set(index, number)),
        (index(), 0i64..100).prop_map(|(index, number)| Change::Insert(index, number)),
        index().prop_map(Change::Remove),
    ]
}

proptest! {
    #[test]
    fn it_behaves_like_a_vector(changes in prop::collection::vec(change(), 0..30)) {
        let mut list = Devices::new();
        let mut vector: Vec<PublishedDevice> = Vec::new();
        for change in changes {
            match change {
                Change::Push(number) => {
                    list.push(device(number));
                    vector.push(device(number));
                }
                Change::Set(index, number) if !vector.is_empty() => {
                    let index = index.index(vector.len());
                    list.set(index, device(number));
                    vector[index] = device(number);
                }
                Change::Insert(index, number) => {
                    let index = index.index(vector.len() + 1);
                    list.insert(index, device(number));
                    vector.insert(index, device(number));
                }
                Change::Remove(index) if !vector.is_empty() => {
                    let index = index.index(vector.len());
                    prop_assert_eq!(list.remove(index), vector.remove(index));
                }
                Change::Set(..) | Change::Remove(_) => {}
            }
            prop_assert_eq!(list.len(), vector.len());
            prop_assert_eq!(list.is_empty(), vector.is_empty());
            prop_assert!(list.iter().eq(vector.iter().cloned()));
            prop_assert_eq!(&list, &Devices::from(vector.clone()));
        }
        prop_assert_eq!(list.get(vector.len()), None);
    }
}

#[test]
#[should_panic(expected = "index out of bounds")]
fn a_device_that_is_not_there_cannot_be_replaced() {
    Devices::from_iter([device(1)]).set(1, device(2));
}

/// Ten thousand devices are published by drivers of network interfaces and partitions.
#[test]
fn a_device_takes_little_more_memory_than_its_text() {
    let list: Devices = (0..1000).map(device).collect();
    let text: usize = list.texts().map(<[u8]>::len).sum();
    assert_eq!(text, list.text.len());
    assert!(list.text.capacity() + 8 * list.ends.capacity() < 3 * text);
}
