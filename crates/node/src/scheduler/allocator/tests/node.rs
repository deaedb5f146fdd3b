//! Tests of pools, their generations, and node selection.

use rstest::rstest;
use serde_json::{Value, json};

use super::{World, devices, exactly};

fn term(field: &str, key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"nodeSelectorTerms": [{field: [{"key": key, "operator": operator, "values": values}]}]})
}

#[rstest]
#[case(json!({"nodeName": "worker"}), true)]
#[case(json!({"nodeName": "other"}), false)]
#[case(json!({"allNodes": true}), true)]
#[case(json!({"nodeSelector": term("matchExpressions", "zone", "In", &["a", "b"])}), true)]
#[case(json!({"nodeSelector": term("matchExpressions", "zone", "NotIn", &["a"])}), false)]
#[case(json!({"nodeSelector": term("matchExpressions", "zone", "Exists", &[])}), true)]
#[case(json!({"nodeSelector": term("matchExpressions", "rack", "DoesNotExist", &[])}), true)]
#[case(json!({"nodeSelector": term("matchExpressions", "cores", "Gt", &["8"])}), true)]
#[case(json!({"nodeSelector": term("matchExpressions", "cores", "Lt", &["8"])}), false)]
#[case(json!({"nodeSelector": term("matchFields", "metadata.name", "In", &["worker"])}), true)]
#[case(json!({"nodeSelector": {"nodeSelectorTerms": [{}]}}), false)]
fn slices_apply_to_the_nodes_they_select(#[case] selection: Value, #[case] here: bool) {
    let mut world = World::gpus(0);
    world.slices.clear();
    for (label, value) in [("zone", "a"), ("cores", "16")] {
        world.node.labels.insert(label.to_owned(), value.to_owned());
    }
    let mut spec = json!({"devices": [{"name": "gpu-0"}]});
    spec.as_object_mut().unwrap().extend(selection.as_object().unwrap().clone());
    world.slice(&spec);
    let outcome = world.allocate(&exactly(&json!({})));
    assert_eq!(outcome.is_ok(), here, "{outcome:?}");
    if let Err(refusal) = outcome {
        assert!(refusal.to_string().contains("no resource slice has a device for this node"), "{refusal}");
    }
}

#[test]
fn an_allocation_selects_the_nodes_where_it_can_be_used() {
    let selector_of = |selection: Value| {
        let mut world = World::gpus(0);
        world.slices.clear();
        world.node.labels.insert("zone".to_owned(), "a".to_owned());
        let mut spec = json!({"devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]});
        spec.as_object_mut().unwrap().extend(selection.as_object().unwrap().clone());
        world.slice(&spec);
        let allocation = world.allocate(&exactly(&json!({"count": 2}))).unwrap();
        serde_json::to_value(allocation.node_selector).unwrap()
    };
    let by_name = term("matchFields", "metadata.name", "In", &["worker"]);
    let by_zone = term("matchExpressions", "zone", "In", &["a"]);
    assert_eq!(selector_of(json!({"nodeName": "worker"})), by_name);
    assert_eq!(selector_of(json!({"allNodes": true})), Value::Null);
    assert_eq!(selector_of(json!({"nodeSelector": by_zone})), by_zone);
    let devices = json!([
        {"name": "gpu-0", "allNodes": true}, {"name": "elsewhere", "nodeName": "other"},
        {"name": "gpu-1", "nodeName": "worker"},
    ]);
    assert_eq!(selector_of(json!({"perDeviceNodeSelection": true, "devices": devices})), by_name);
}

#[test]
fn only_the_newest_generation_counts_and_only_if_complete() {
    let mut world = World::gpus(1);
    let pool = |generation: i64| json!({"name": "worker", "generation": generation, "resourceSliceCount": 2});
    world.slice(&json!({"pool": pool(2), "devices": [{"name": "new-0"}]}));
    let refusal = world.refusal(&exactly(&json!({})));
    assert!(
        refusal.contains("pool worker of driver gpu.example.com is being updated: 1 of 2 slices are published"),
        "{refusal}"
    );
    let refusal = world.refusal(&exactly(&json!({"allocationMode": "All"})));
    assert!(refusal.contains("asks for all devices, but pool worker"), "{refusal}");
    world.slice(&json!({"pool": pool(2), "devices": [{"name": "new-1"}]}));
    assert_eq!(devices(&world.allocate(&exactly(&json!({"count": 2}))).unwrap()), ["gpu=new-0", "gpu=new-1"]);
}

#[test]
fn slices_of_other_nodes_count_for_completeness() {
    let mut world = World::gpus(0);
    world.slices.clear();
    let pool = json!({"name": "shared", "generation": 1, "resourceSliceCount": 2});
    world.slice(&json!({"pool": pool, "nodeName": "other", "devices": [{"name": "there"}]}));
    world.slice(&json!({"pool": pool, "nodeName": "worker", "devices": [{"name": "here"}]}));
    assert_eq!(devices(&world.allocate(&exactly(&json!({}))).unwrap()), ["gpu=here"]);
}

#[test]
fn a_pool_with_duplicate_device_names_is_not_used() {
    let world = World::with_devices(&json!([{"name": "gpu-0"}, {"name": "gpu-0"}]));
    let refusal = world.refusal(&exactly(&json!({})));
    assert!(refusal.contains("is invalid: it has two devices with the name gpu-0"), "{refusal}");
}

#[test]
fn pools_and_slices_are_ordered_by_name() {
    let mut world = World::gpus(0);
    world.slices.clear();
    let pool = |name: &str, count: i64| json!({"name": name, "generation": 1, "resourceSliceCount": count});
    world.slice(&json!({"pool": pool("b", 1), "devices": [{"name": "b-0"}]}));
    world.slice(&json!({"pool": pool("a", 2), "devices": [{"name": "a-1"}]}));
    world.slice(&json!({"pool": pool("a", 2), "devices": [{"name": "a-0"}]}));
    world.slices.reverse();
    let allocation = world.allocate(&exactly(&json!({"count": 3}))).unwrap();
    assert_eq!(devices(&allocation), ["gpu=a-1", "gpu=a-0", "gpu=b-0"]);
}
