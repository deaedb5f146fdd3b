use serde_json::json;

use super::{World, claim, devices, exactly, selector};

#[test]
fn the_first_free_device_is_taken() {
    let mut world = World::gpus(3);
    assert_eq!(devices(&world.hold("a", &exactly(&json!({})))), ["gpu=gpu-0"]);
    assert_eq!(devices(&world.hold("b", &exactly(&json!({"count": 2})))), ["gpu=gpu-1", "gpu=gpu-2"]);
    assert!(world.refusal(&exactly(&json!({}))).contains("3 in use"));
    world.in_use.set("a", None);
    assert_eq!(devices(&world.allocate(&exactly(&json!({}))).unwrap()), ["gpu=gpu-0"]);
}

#[test]
fn setting_a_claim_repeatedly_counts_it_once() {
    let mut world = World::gpus(1);
    let allocation = world.hold("a", &exactly(&json!({})));
    assert!(!world.in_use.set("a", Some(&allocation)));
    assert!(world.in_use.set("a", None));
    assert!(!world.in_use.set("a", None));
    world.allocate(&exactly(&json!({}))).unwrap();
}

#[test]
fn selectors_of_class_and_request_both_apply() {
    let world = World::with_devices(&json!([
        {"name": "small", "attributes": {"size": {"int": 1}}},
        {"name": "large", "attributes": {"size": {"int": 8}}},
    ]));
    let large = exactly(&json!({"selectors": selector("device.attributes['gpu.example.com'].size > 4")}));
    assert_eq!(devices(&world.allocate(&large).unwrap()), ["gpu=large"]);
}

#[test]
fn an_error_in_a_selector_fails_the_allocation_unless_an_earlier_device_matches() {
    let world = World::with_devices(&json!([
        {"name": "known", "attributes": {"size": {"int": 1}}},
        {"name": "unknown"},
    ]));
    let of_size = |size: i64| {
        exactly(&json!({"selectors": selector(&format!("device.attributes['gpu.example.com'].size == {size}"))}))
    };
    assert_eq!(devices(&world.allocate(&of_size(1)).unwrap()), ["gpu=known"]);
    let refusal = world.refusal(&of_size(2));
    assert!(refusal.contains("no such key: size"), "{refusal}");
    assert!(refusal.contains("device gpu.example.com/worker/unknown"), "{refusal}");
}

#[test]
fn all_takes_every_matching_device_and_at_least_one() {
    let mut world = World::with_devices(&json!([
        {"name": "a", "attributes": {"kind": {"string": "x"}}},
        {"name": "b", "attributes": {"kind": {"string": "y"}}},
        {"name": "c", "attributes": {"kind": {"string": "x"}}},
    ]));
    let all = |kind: &str| {
        let expression = format!("device.attributes['gpu.example.com'].kind == '{kind}'");
        exactly(&json!({"allocationMode": "All", "selectors": selector(&expression)}))
    };
    assert_eq!(devices(&world.allocate(&all("x")).unwrap()), ["gpu=a", "gpu=c"]);
    assert!(world.refusal(&all("z")).contains("3 not matching selector"));
    world.hold("one", &exactly(&json!({})));
    let refusal = world.refusal(&all("x"));
    assert!(refusal.contains("asks for all of class gpu") && refusal.contains("1 in use"), "{refusal}");
}

#[test]
fn admin_access_gets_devices_in_use_but_none_twice() {
    let mut world = World::gpus(2);
    world.hold("a", &exactly(&json!({"count": 2})));
    let allocation = world.hold("admin", &exactly(&json!({"count": 2, "adminAccess": true})));
    assert_eq!(devices(&allocation), ["gpu=gpu-0", "gpu=gpu-1"]);
    assert_eq!(allocation.devices.unwrap().results.unwrap()[0].admin_access, Some(true));
    assert!(world.allocate(&exactly(&json!({"count": 3, "adminAccess": true}))).is_err());
    // Admin access does not take devices from others.
    world.in_use.set("a", None);
    world.allocate(&exactly(&json!({"count": 2}))).unwrap();
}

#[test]
fn the_first_subrequest_that_can_be_allocated_is_chosen() {
    let world = World::with_devices(&json!([
        {"name": "small-0", "attributes": {"large": {"bool": false}}},
        {"name": "small-1", "attributes": {"large": {"bool": false}}},
    ]));
    let claim = claim(&json!({
        "requests": [{"name": "gpu", "firstAvailable": [
            {"name": "large", "deviceClassName": "gpu", "selectors": selector("device.attributes['gpu.example.com'].large")},
            {"name": "small", "deviceClassName": "gpu", "count": 2},
        ]}],
        "config": [
            {"requests": ["gpu/large"], "opaque": {"driver": "gpu.example.com", "parameters": {"of": "large"}}},
            {"requests": ["gpu/small"], "opaque": {"driver": "gpu.example.com", "parameters": {"of": "small"}}},
        ],
    }));
    let allocation = world.allocate(&claim).unwrap();
    assert_eq!(devices(&allocation), ["gpu/small=small-0", "gpu/small=small-1"]);
    let config = allocation.devices.unwrap().config.unwrap();
    assert_eq!(config.len(), 1);
    assert_eq!(config[0].opaque.as_ref().unwrap().parameters.0["of"], "small");
}

#[test]
fn several_requests_never_get_the_same_device() {
    let world = World::gpus(2);
    let two = claim(&json!({"requests": [
        {"name": "first", "exactly": {"deviceClassName": "gpu"}},
        {"name": "second", "exactly": {"deviceClassName": "any"}},
    ]}));
    assert_eq!(devices(&world.allocate(&two).unwrap()), ["first=gpu-0", "second=gpu-1"]);
    let refusal = world.allocate_all(&[&two, &exactly(&json!({}))]).unwrap_err().to_string();
    assert!(refusal.contains("not for all of them together"), "{refusal}");
}

#[test]
fn a_first_choice_that_leaves_nothing_is_undone() {
    // The first request could take either, the second only `b`... and `b` comes first.
    let world = World::with_devices(&json!([
        {"name": "b", "attributes": {"good": {"bool": true}}},
        {"name": "a", "attributes": {"good": {"bool": false}}},
    ]));
    let claim = claim(&json!({"requests": [
        {"name": "any", "exactly": {"deviceClassName": "gpu"}},
        {"name": "good", "exactly": {"deviceClassName": "gpu", "selectors": selector("device.attributes['gpu.example.com'].good")}},
    ]}));
    assert_eq!(devices(&world.allocate(&claim).unwrap()), ["any=a", "good=b"]);
}

#[test]
fn match_attribute_finds_devices_with_a_common_value() {
    let device = |name: &str, driver_root: &str| json!({"name": name, "attributes": {"resource.kubernetes.io/pcieRoot": {"string": driver_root}}});
    let mut world = World::with_devices(&json!([device("gpu-0", "root-0"), device("gpu-1", "root-1")]));
    world.slice(&json!({
        "driver": "nic.example.com", "pool": {"name": "nics", "generation": 1, "resourceSliceCount": 1},
        "devices": [device("nic-1", "root-1"), {"name": "nic-without"}],
    }));
    world.class("nic", &json!({"selectors": selector("device.driver == 'nic.example.com'")}));
    let pair = |attribute: &str| {
        claim(&json!({
            "requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "gpu"}},
                {"name": "nic", "exactly": {"deviceClassName": "nic"}},
            ],
            "constraints": [{"requests": ["gpu", "nic"], "matchAttribute": attribute}],
        }))
    };
    let allocation = world.allocate(&pair("resource.kubernetes.io/pcieRoot")).unwrap();
    assert_eq!(devices(&allocation), ["gpu=gpu-1", "nic=nic-1"]);
    let refusal = world.refusal(&pair("gpu.example.com/other"));
    assert!(refusal.contains("that have the same gpu.example.com/other"), "{refusal}");
}

#[test]
fn constraints_support_names_without_domain_and_lists() {
    let device = |name: &str, links: &[&str]| json!({"name": name, "attributes": {"links": {"strings": links}}});
    let world = World::with_devices(&json!([
        device("a", &["1", "2"]),
        device("b", &["3"]),
        device("c", &["2", "4"]),
        device("d", &["1"]),
    ]));
    let constrained = |count: usize, kind: &str| {
        claim(&json!({
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}],
            "constraints": [{kind: "gpu.example.com/links"}],
        }))
    };
    assert_eq!(devices(&world.allocate(&constrained(2, "matchAttribute")).unwrap()), ["gpu=a", "gpu=c"]);
    assert!(world.allocate(&constrained(3, "matchAttribute")).is_err());
    assert_eq!(devices(&world.allocate(&constrained(2, "distinctAttribute")).unwrap()), ["gpu=a", "gpu=b"]);
    assert_eq!(devices(&world.allocate(&constrained(3, "distinctAttribute")).unwrap()), ["gpu=b", "gpu=c", "gpu=d"]);
    assert!(world.allocate(&constrained(4, "distinctAttribute")).is_err());
}

#[test]
fn class_config_comes_first_and_once_for_each_class() {
    let mut world = World::gpus(3);
    let opaque = |of: &str| json!({"opaque": {"driver": "gpu.example.com", "parameters": {"of": of}}});
    world.class("one", &json!({"config": [opaque("one")]}));
    world.class("two", &json!({"config": [opaque("two")]}));
    let request = |name: &str, class: &str| json!({"name": name, "exactly": {"deviceClassName": class}});
    let claim = claim(&json!({
        "requests": [request("a", "one"), request("b", "two"), request("c", "one")],
        "config": [opaque("claim"), {"requests": ["a", "b", "c"], "opaque": opaque("all")["opaque"]}],
    }));
    let config = world.allocate(&claim).unwrap().devices.unwrap().config.unwrap();
    let seen: Vec<_> = config
        .iter()
        .map(|config| {
            let of = config.opaque.as_ref().unwrap().parameters.0["of"].as_str().unwrap();
            format!("{} {of} {:?}", config.source, config.requests.as_deref().unwrap_or_default())
        })
        .collect();
    let expected = [r#"FromClass one ["a", "c"]"#, r#"FromClass two ["b"]"#, "FromClaim claim []", "FromClaim all []"];
    assert_eq!(seen, expected);
}

#[test]
fn config_of_a_class_for_all_requests_names_none() {
    let mut world = World::gpus(1);
    world.class("gpu", &json!({"config": [{"opaque": {"driver": "gpu.example.com", "parameters": {}}}]}));
    let config = world.allocate(&exactly(&json!({}))).unwrap().devices.unwrap().config.unwrap();
    assert_eq!((config[0].source.as_str(), &config[0].requests), ("FromClass", &None));
}
