//! Formats one by one, in addition to the recorded responses; and feature gates.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use crate::resource::Resource;
use crate::rules::names::{is_semantic_version, without_trailing_dash};
use crate::rules::quantity::Quantity;
use crate::rules::value::same;
use crate::rules::{Gates, default_fields, drop_disabled, validate_create, validate_update};

#[rstest]
#[case("0.0.0", true)]
#[case("1.2.3-rc.1+build.5", true)]
#[case("1.2.3+build-rc", true)]
#[case("1.2.3-rc+1-2", true)]
#[case("1.2.3-00a", true)]
#[case("1.2.3-00", false)]
#[case("1.2.3-é", false)]
#[case(" 1.2.3", false)]
#[case("1.2.3+a+b", false)]
fn semantic_versions(#[case] text: &str, #[case] valid: bool) {
    assert_eq!(is_semantic_version(text), valid);
}

#[rstest]
#[case("a-", "a")]
#[case("-", "-")]
#[case("abc-", "aba")]
#[case("abc", "abc")]
fn name_prefixes_may_end_with_a_dash(#[case] prefix: &str, #[case] checked: &str) {
    assert_eq!(without_trailing_dash(prefix), checked);
}

proptest! {
    #[test]
    fn no_string_makes_quantities_panic(text in "\\PC{0,20}") {
        let _ = text.parse::<Quantity>();
    }

    #[test]
    fn a_formatted_quantity_parses_to_the_same_value(
        amount in -1_000_000_000_000i64..1_000_000_000_000,
        suffix in prop::sample::select(vec!["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-3"]),
    ) {
        let quantity: Quantity = format!("{amount}{suffix}").parse().unwrap();
        let again: Quantity = quantity.to_string().parse().unwrap();
        prop_assert!(quantity == again, "{amount}{suffix} became {quantity}, which is {again}");
        prop_assert_eq!(again.to_string(), quantity.to_string());
    }

    #[test]
    fn no_object_makes_the_rules_panic(object in any_json()) {
        let gates = Gates::default();
        for resource in Resource::ALL {
            for mut new in [object.clone(), json!({"metadata": object, "spec": object, "status": object}),
                json!({"spec": {"devices": object, "spec": {"devices": object}}, "status": {"devices": object, "allocation": object}})] {
                let old = new.clone();
                default_fields(resource, &mut new);
                drop_disabled(resource, &mut new, Some(&old), &gates);
                validate_create(resource, &new, &gates);
                validate_update(resource, true, &new, &old, &gates);
                validate_update(resource, false, &new, &old, &gates);
            }
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "name",
        "driver",
        "pool",
        "devices",
        "requests",
        "exactly",
        "firstAvailable",
        "attributes",
        "capacity",
        "value",
        "requestPolicy",
        "validRange",
        "validValues",
        "default",
        "min",
        "step",
        "taints",
        "consumesCounters",
        "counters",
        "results",
        "conditions",
        "networkData",
        "ips",
        "config",
        "opaque",
        "selectors",
        "cel",
        "expression",
        "string",
        "containers",
        "resources",
        "claims",
        "resourceClaims",
        "labels",
        "nodeSelector",
        "nodeSelectorTerms",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9./_ é:-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(names.clone(), inner, 0..5)
                .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

#[test]
fn gates_have_the_defaults_of_kubernetes_and_unknown_names_are_refused() {
    let gates = Gates::default();
    assert!(gates.enabled("DRADeviceTaints") && !gates.enabled("DRAListTypeAttributes"));
    let gates = gates.with("DRADeviceTaints", false).unwrap();
    assert!(!gates.enabled("DRADeviceTaints") && !gates.all()["DRADeviceTaints"]);
    let error = gates.with("DRADeviceTains", true).unwrap_err().to_string();
    assert!(error.contains("\"DRADeviceTains\"") && error.contains("DRADeviceTaints"), "{error}");
}

/// Gates that are locked in 1.37, so there are no recorded responses.
#[rstest]
#[case("DRAPrioritizedList", "ResourceClaim", json!({"spec": {"devices": {"requests": [{"name": "a", "firstAvailable": [{}]}]}}}),
    json!({"spec": {"devices": {"requests": [{"name": "a"}]}}}))]
#[case("DRAAdminAccess", "ResourceClaimTemplate",
    json!({"spec": {"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "c", "adminAccess": true}}]}}}}),
    json!({"spec": {"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "c"}}]}}}}))]
#[case("DRAExtendedResource", "DeviceClass", json!({"spec": {"extendedResourceName": "a/b"}}), json!({"spec": {}}))]
fn disabled_gates_drop_fields_as_older_servers_do(
    #[case] gate: &str,
    #[case] kind: &str,
    #[case] object: Value,
    #[case] dropped: Value,
) {
    let resource = Resource::ALL.into_iter().find(|resource| resource.kind() == kind).unwrap();
    let gates = Gates::default().with(gate, false).unwrap();
    let mut new = object.clone();
    drop_disabled(resource, &mut new, None, &gates);
    assert_eq!(new, dropped);
    let mut new = object.clone();
    drop_disabled(resource, &mut new, Some(&object), &gates);
    assert_eq!(new, object, "the stored object has it already");
}

#[test]
fn device_status_is_dropped_if_its_gate_is_disabled() {
    let gates = Gates::default().with("DRAResourceClaimDeviceStatus", false).unwrap();
    let old =
        json!({"status": {"allocation": {"devices": {"results": [{"driver": "d", "pool": "p", "device": "x"}]}}}});
    let mut new = old.clone();
    new["status"]["devices"] = json!([{"driver": "d", "pool": "p", "device": "x"}]);
    let with_devices = new.clone();
    drop_disabled(Resource::ResourceClaim, &mut new, Some(&old), &gates);
    assert!(same(Some(&new), Some(&old)));
    let mut new = with_devices.clone();
    drop_disabled(Resource::ResourceClaim, &mut new, Some(&with_devices), &gates);
    assert_eq!(new, with_devices);
}

#[test]
fn a_claim_that_is_being_deleted_gets_no_new_consumers_and_finalizers() {
    let user = |uid: &str| json!({"resource": "pods", "name": uid, "uid": uid});
    let old = json!({
        "metadata": {"name": "c", "namespace": "n", "deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["a/b"]},
        "status": {"allocation": {"devices": {}}, "reservedFor": [user("1"), user("2")]},
    });
    let mut new = old.clone();
    new["status"]["reservedFor"] = json!([user("2")]);
    assert_eq!(validate_update(Resource::ResourceClaim, true, &new, &old, &Gates::default()), []);
    new["status"]["reservedFor"] = json!([user("2"), user("3")]);
    let errors = validate_update(Resource::ResourceClaim, true, &new, &old, &Gates::default());
    assert_eq!(
        errors[0].message,
        "Forbidden: new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
    );
    new["metadata"]["finalizers"] = json!(["a/b", "c/d"]);
    let errors = validate_update(Resource::ResourceClaim, false, &new, &old, &Gates::default());
    assert_eq!(
        errors[0].message,
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"c/d\"}"
    );
}
