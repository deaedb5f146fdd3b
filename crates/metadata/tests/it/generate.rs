//! Generated metadata for property tests: any value of the types, and values that are nearly valid.

use std::collections::BTreeMap;

use drakkar_metadata::{
    Device, DeviceAttribute, FieldsV1, ManagedFieldsEntry, Metadata, NetworkDeviceData, ObjectMeta, OwnerReference,
    Request, Time,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

/// Any text, with the characters that JSON and Go escape more often than in random text.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z0-9./-]{0,12}",
        2 => any::<String>(),
        1 => vec(prop_oneof![
            Just('<'), Just('>'), Just('&'), Just('\u{2028}'), Just('\u{2029}'), Just('"'), Just('\\'), Just('/'),
            Just('\0'), Just('\u{8}'), Just('\u{c}'), Just('\n'), Just('\u{7f}'), Just('ü'), Just('🛶'),
        ], 0..8).prop_map(|chars| chars.into_iter().collect()),
    ]
}

/// Any RFC 3339 time but Go's zero time, which means no time.
fn time() -> impl Strategy<Value = Time> {
    (-62_135_596_799_i64..=253_402_300_799).prop_map(|second| Time::from_unix_seconds(second).unwrap())
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        text().prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Into::into),
            btree_map(text(), inner, 0..4).prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

fn fields_v1() -> impl Strategy<Value = FieldsV1> {
    // `null` is an absent field set.
    let json = json().prop_filter("null is absent", |json| !json.is_null());
    (json, any::<bool>()).prop_map(|(json, pretty)| {
        let text = if pretty { serde_json::to_string_pretty(&json).unwrap() } else { json.to_string() };
        FieldsV1::from_json(&text).unwrap()
    })
}

fn owner() -> impl Strategy<Value = OwnerReference> {
    (text(), text(), text(), text(), any::<Option<bool>>(), any::<Option<bool>>()).prop_map(
        |(api_version, kind, name, uid, controller, block_owner_deletion)| OwnerReference {
            api_version,
            kind,
            name,
            uid,
            controller,
            block_owner_deletion,
        },
    )
}

fn managed_fields() -> impl Strategy<Value = ManagedFieldsEntry> {
    (text(), text(), text(), option::of(time()), text(), option::of(fields_v1()), text()).prop_map(
        |(manager, operation, api_version, time, fields_type, fields_v1, subresource)| ManagedFieldsEntry {
            manager,
            operation,
            api_version,
            time,
            fields_type,
            fields_v1,
            subresource,
        },
    )
}

fn object_meta() -> impl Strategy<Value = ObjectMeta> {
    let names = (text(), text(), text(), text(), text(), text());
    let numbers = (prop_oneof![Just(0), any::<i64>()], any::<Option<i64>>());
    let times = (option::of(time()), option::of(time()));
    let maps = (btree_map(text(), text(), 0..3), btree_map(text(), text(), 0..3));
    let lists = (vec(owner(), 0..2), vec(text(), 0..3), vec(managed_fields(), 0..2));
    (names, numbers, times, maps, lists).prop_map(|(names, numbers, times, maps, lists)| ObjectMeta {
        name: names.0,
        generate_name: names.1,
        namespace: names.2,
        self_link: names.3,
        uid: names.4,
        resource_version: names.5,
        generation: numbers.0,
        creation_timestamp: times.0,
        deletion_timestamp: times.1,
        deletion_grace_period_seconds: numbers.1,
        labels: maps.0,
        annotations: maps.1,
        owner_references: lists.0,
        finalizers: lists.1,
        managed_fields: lists.2,
    })
}

fn attribute(text: impl Strategy<Value = String> + Clone + 'static) -> impl Strategy<Value = DeviceAttribute> {
    let scalars = (any::<Option<i64>>(), any::<Option<bool>>(), option::of(text.clone()), option::of(text.clone()));
    let lists = (vec(any::<i64>(), 0..3), vec(any::<bool>(), 0..3), vec(text.clone(), 0..3), vec(text, 0..3));
    (scalars, lists, 0_u8..10).prop_map(|(scalars, lists, only)| {
        let all = DeviceAttribute {
            int: scalars.0,
            bool: scalars.1,
            string: scalars.2,
            version: scalars.3,
            ints: lists.0,
            bools: lists.1,
            strings: lists.2,
            versions: lists.3,
        };
        // Mostly one value, as in a real file.
        let none = DeviceAttribute::default();
        match only {
            0 => DeviceAttribute { int: all.int.or(Some(1)), ..none },
            1 => DeviceAttribute { bool: all.bool.or(Some(false)), ..none },
            2 => DeviceAttribute { string: all.string.or_else(|| Some(String::new())), ..none },
            3 => DeviceAttribute { version: all.version.or_else(|| Some("1.0.0".into())), ..none },
            4 => DeviceAttribute { ints: all.ints, ..none },
            5 => DeviceAttribute { bools: all.bools, ..none },
            6 => DeviceAttribute { strings: all.strings, ..none },
            7 => DeviceAttribute { versions: all.versions, ..none },
            _ => all,
        }
    })
}

fn network_data() -> impl Strategy<Value = NetworkDeviceData> {
    (text(), vec(text(), 0..4), text()).prop_map(|(interface_name, ips, hardware_address)| NetworkDeviceData {
        interface_name,
        ips,
        hardware_address,
    })
}

fn device() -> impl Strategy<Value = Device> {
    let attributes = btree_map(text(), attribute(text().boxed()), 0..4);
    (text(), text(), text(), attributes, option::of(network_data())).prop_map(
        |(driver, pool, name, attributes, network_data)| Device { driver, pool, name, attributes, network_data },
    )
}

/// Any metadata that the types can hold.
pub(crate) fn any_metadata() -> impl Strategy<Value = Metadata> {
    let request = (text(), vec(device(), 0..3)).prop_map(|(name, devices)| Request { name, devices });
    (object_meta(), option::of(text()), vec(request, 0..3)).prop_map(|(metadata, pod_claim_name, requests)| Metadata {
        metadata,
        pod_claim_name,
        requests,
    })
}

/// Normalizes the white space of field sets, which encoding does not preserve.
pub(crate) fn same_layout(mut metadata: Metadata) -> Metadata {
    for fields in metadata.metadata.managed_fields.iter_mut().filter_map(|entry| entry.fields_v1.as_mut()) {
        let value: serde_json::Value = serde_json::from_str(fields.as_json()).unwrap();
        *fields = FieldsV1::from_json(&value.to_string()).unwrap();
    }
    metadata
}

/// A name that matches `valid` or, sometimes, an invalid one.
fn name_or_not(valid: &'static str) -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        12 => valid.prop_map(|name| name),
        1 => Just(String::new()),
        1 => "[A-Za-z0-9./_ -]{1,6}",
        1 => "[a-z]{62,66}",
        1 => "[a-z]{252,255}",
        1 => Just("a\n".to_owned()),
    ]
    .boxed()
}

fn text_around(limit: usize) -> impl Strategy<Value = String> + Clone {
    let near = (limit - 1..=limit + 1).prop_map(|length| "x".repeat(length));
    prop_oneof![8 => "[ -~]{0,8}", 1 => near].boxed()
}

/// Metadata in ASCII that is valid or breaks some rules.
pub(crate) fn nearly_valid() -> impl Strategy<Value = Metadata> {
    let few = btree_map("[a-z]{1,3}(/[a-z]{1,3})?", attribute(text_around(64)), 0..3).boxed();
    let many = (31_usize..=34)
        .prop_map(|count| (0..count).map(|number| (format!("a{number}"), DeviceAttribute::from(true))).collect())
        .boxed();
    let attributes = prop_oneof![12 => few, 1 => many].prop_map(|map: BTreeMap<String, DeviceAttribute>| map);
    let ips = prop_oneof![6 => vec("[0-9]{1,4}", 0..4), 1 => vec("[0-9]{9}", 15..18)];
    let network = (text_around(256), ips, text_around(128)).prop_map(|(interface_name, ips, hardware_address)| {
        NetworkDeviceData { interface_name, ips, hardware_address }
    });
    let device = (
        name_or_not("[A-Za-z0-9]{1,3}(\\.[a-z]{1,3})?"),
        name_or_not("[a-z0-9]{1,3}(/[a-z]{1,3}(\\.[a-z])?)?"),
        name_or_not("[a-z0-9]([a-z0-9-]{0,3}[a-z0-9])?"),
        attributes,
        option::of(network),
    )
        .prop_map(|(driver, pool, name, attributes, network_data)| Device {
            driver,
            pool,
            name,
            attributes,
            network_data,
        });
    let request = (prop_oneof![8 => "[ -~]{1,4}", 1 => Just(String::new())], vec(device, 0..2))
        .prop_map(|(name, devices)| Request { name, devices });
    let filled = || prop_oneof![9 => "[!-~]{1,4}", 1 => Just(String::new())];
    let owner = (filled(), filled(), filled(), filled()).prop_map(|(api_version, kind, name, uid)| OwnerReference {
        api_version,
        kind,
        name,
        uid,
        ..OwnerReference::default()
    });
    let operation = prop_oneof![4 => Just("Apply"), 4 => Just("Update"), 1 => Just(""), 1 => Just("Patch")];
    let managed = operation
        .prop_map(|operation| ManagedFieldsEntry { operation: operation.into(), ..ManagedFieldsEntry::default() });
    let generation = prop_oneof![4 => 0_i64..3, 1 => Just(i64::MAX), 1 => Just(-1), 1 => Just(i64::MIN)];
    let meta = (generation, vec(owner, 0..2), vec(managed, 0..2)).prop_map(
        |(generation, owner_references, managed_fields)| ObjectMeta {
            name: "my-claim".into(),
            generation,
            owner_references,
            managed_fields,
            ..ObjectMeta::default()
        },
    );
    let pod_claim = option::of(name_or_not("[a-z]([a-z0-9-]{0,3}[a-z0-9])?"));
    (meta, pod_claim, vec(request, 0..2)).prop_map(|(metadata, pod_claim_name, requests)| Metadata {
        metadata,
        pod_claim_name,
        requests,
    })
}
