//! The tables are consistent. `e2e/interop` compares them with Kubernetes' own definitions.

use std::collections::BTreeSet;

use super::*;

#[test]
fn names_and_numbers_are_unique() {
    let names: BTreeSet<&str> = types().iter().map(|of| of.name).collect();
    assert_eq!(names.len(), types().len());
    for of in types() {
        let names: BTreeSet<&str> = of.fields.iter().map(|field| field.name).collect();
        assert_eq!(names.len(), of.fields.len(), "{}", of.name);
        let numbers: BTreeSet<_> = of.fields.iter().map(|field| (field.embedded_in, field.number)).collect();
        assert_eq!(numbers.len(), of.fields.len(), "{}", of.name);
        for field in of.fields.iter().filter_map(|field| field.embedded_in) {
            assert!(!numbers.contains(&(None, field)), "{}: {field} is a field and an embedded message", of.name);
        }
    }
}

#[test]
fn only_lists_are_merged_and_their_keys_are_fields_of_the_items() {
    for of in types() {
        for field in of.fields {
            let path = format!("{}.{}", of.name, field.name);
            let is_list = matches!(field.kind, Kind::List(_));
            match field.list_type {
                ListType::Atomic => assert!(!field.patch_merge, "{path}"),
                ListType::Set => assert!(is_list && field.kind.item().object().is_none(), "{path}"),
                ListType::Map(keys) => {
                    let item = field.kind.item().object().unwrap();
                    assert!(is_list && keys.iter().all(|key| item.field(key).is_some()), "{path}");
                }
            }
        }
    }
}

/// Structs are written whether they have `omitempty` or not, and lists and maps are no pointers.
#[test]
fn presence_fits_the_kind() {
    for of in types() {
        for field in of.fields {
            let fits = match field.kind {
                Kind::Object(_) => matches!(field.presence, Presence::Always | Presence::Pointer),
                Kind::List(_) | Kind::Map(..) => matches!(field.presence, Presence::Always | Presence::OmitEmpty),
                _ => true,
            };
            assert!(fits, "{}.{}", of.name, field.name);
        }
    }
}

#[test]
fn kinds_are_found_by_version() {
    for version in ["resource.k8s.io/v1", "resource.k8s.io/v1beta2"] {
        for kind in ["ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"] {
            assert_eq!(of(version, kind).unwrap().name, format!("v1.{kind}"));
            assert_eq!(of(version, &format!("{kind}List")).unwrap().name, format!("v1.{kind}List"));
        }
    }
    assert!(of("resource.k8s.io/v1beta1", "ResourceSlice").is_none());
    assert!(of("v1", "ResourceSlice").is_none());
    assert!(of("v1", "Pod").is_none());
    assert!(of("resource.k8s.io/v1", "DeleteOptions").is_some());
    assert!(of("resource.k8s.io/v1beta1", "DeleteOptions").is_some());
    assert!(of("v1", "DeleteOptions").is_some());
    assert!(of("v1", "Status").is_some());
}

#[test]
fn fields_are_found_by_path() {
    assert_eq!(RESOURCE_CLAIM.at("status.devices.conditions.reason").unwrap().number, 5);
    assert_eq!(RESOURCE_SLICE.at("spec.devices.attributes.int").unwrap().number, 2);
    assert!(RESOURCE_SLICE.at("spec.driver.name").is_none());
    assert!(RESOURCE_SLICE.at("status").is_none());
}
