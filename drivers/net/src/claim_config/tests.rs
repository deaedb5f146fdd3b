use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// Adds version and kind.
fn document(mut parameters: Value) -> Value {
    let object = parameters.as_object_mut().unwrap();
    object.entry("apiVersion").or_insert_with(|| API_VERSION.into());
    object.entry("kind").or_insert_with(|| KIND.into());
    parameters
}

/// Returns what is wrong with parameters, in either phase.
fn errors(parameters: Value) -> Vec<String> {
    let errors = match ClaimConfig::parse(&document(parameters), "") {
        Ok(config) => config.validate(),
        Err(errors) => errors,
    };
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn everything_that_can_be_set_is_read() {
    let parameters = json!({
        "interfaceName": "data0", "mtu": 9000, "macAddress": "02:00:5e:10:00:01",
        "addresses": ["192.0.2.10/24", "2001:db8::10/64"],
        "routes": [
            {"destination": "198.51.100.0/24", "gateway": "192.0.2.1", "source": "192.0.2.10", "metric": 50},
            {"destination": "0.0.0.0/0", "gateway": "192.0.2.1", "table": 100},
            {"destination": "2001:db8:1::/48", "gateway": "fe80::1"},
            {"destination": "203.0.113.7/32", "scope": "link"},
            {"destination": "203.0.113.128/25", "gateway": "203.0.113.7"},
            {"destination": "10.0.0.0/8", "gateway": "172.16.0.1", "onLink": true},
        ],
        "rules": [
            {"from": "192.0.2.10/32", "table": 100, "priority": 1000},
            {"fwmark": 7, "table": 100},
        ],
        "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2, "net.ipv6.neigh.IFNAME.gc_stale_time": "120"},
        "macvlan": {"mode": "private"}, "rdmaExclusive": false, "driver": "kernel",
    });
    assert_eq!(errors(parameters.clone()), Vec::<String>::new());
    let config = ClaimConfig::parse(&document(parameters), "").unwrap();
    assert_eq!(config.macvlan, Some(Macvlan { mode: MacvlanMode::Private }));
    assert_eq!(config.rules.as_ref().unwrap()[1].families(), [Family::V4, Family::V6]);
    let stored = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<ClaimConfig>(&stored).unwrap(), config, "the journal has it: {stored}");
}

#[test]
fn routes_without_addresses_use_those_of_the_class_the_rule_or_the_host() {
    assert_eq!(errors(json!({"routes": [{"destination": "198.51.100.0/24", "gateway": "192.0.2.1"}]})), [""; 0]);
}

#[test]
fn all_errors_are_reported_at_once_with_their_paths() {
    let parameters = json!({
        "interfacename": "x", "mtu": 12, "vlan": {"id": 4095, "priority": 1},
        "addresses": ["192.0.2.0/24", 7],
        "routes": [{"destination": "198.51.100.0/24"}, {"destination": "198.51.100.1/24", "gateway": "192.0.2.1/24", "tabel": 3}],
    });
    let config = ClaimConfig::parse(&document(parameters), "config[0].opaque.parameters").unwrap_err();
    let mut errors: Vec<String> = config.iter().map(ToString::to_string).collect();
    errors.sort_unstable();
    let path = |field: &str| format!("config[0].opaque.parameters.{field}");
    assert_eq!(
        errors,
        [
            path("addresses[0]: 192.0.2.0/24 is the network itself: use an address in it, such as 192.0.2.1/24"),
            path("addresses[1]: must be a text, but is the number 7: put it in quotes"),
            path("interfacename: unknown field: did you mean interfaceName?"),
            path("mtu: 12 must be from 68 to 65535"),
            path(
                "routes[1].destination: 198.51.100.1/24 is an address in a network: write 198.51.100.0/24 or 198.51.100.1/32"
            ),
            path("routes[1].gateway: \"192.0.2.1/24\" must not have a prefix length: write 192.0.2.1"),
            path("routes[1].tabel: unknown field: did you mean table?"),
            path("vlan.id: 4095 must be from 1 to 4094"),
            path("vlan.priority: unknown field: use one of id, protocol"),
        ]
    );
}

#[rstest]
#[case(json!({"interfaceName": "sixteen-letters-"}), "interfaceName: \"sixteen-letters-\" is too long: the kernel takes at most 15 bytes")]
#[case(json!({"interfaceName": "a/b"}), "interfaceName: \"a/b\" has '/': use ASCII letters")]
#[case(json!({"interfaceName": "a b"}), "interfaceName: \"a b\" has ' '")]
#[case(json!({"interfaceName": "a%db"}), "has '%'")]
#[case(json!({"interfaceName": "fourteen-chars%d"}), "at most 13 bytes before %d")]
#[case(json!({"interfaceName": "eth0"}), "every pod already has")]
#[case(json!({"interfaceName": ""}), "interfaceName: must not be empty")]
#[case(json!({"macAddress": "01:00:5e:10:00:01"}), "is a multicast address (the lowest bit of the first byte is 1): an interface needs a unicast address, such as 02:00:5e:10:00:01")]
#[case(json!({"macAddress": "02:00:5e"}), "is not a MAC address: write six pairs")]
#[case(json!({"macAddress": "00:00:00:00:00:00"}), "all zeros")]
#[case(json!({"mtu": "9000"}), "mtu: must be a whole number, but is the text \"9000\"")]
#[case(json!({"addresses": ["192.0.2.255/24"]}), "is the broadcast address of its network")]
#[case(json!({"addresses": ["192.0.2.7"]}), "has no prefix length: write 192.0.2.7/32")]
#[case(json!({"addresses": ["224.0.0.1/32"]}), "multicast")]
#[case(json!({"addresses": ["::ffff:192.0.2.1/128"]}), "write it as IPv4")]
#[case(json!({"addresses": ["192.0.2.7/24", "192.0.2.7/25"]}), "addresses[1]: 192.0.2.7 is there twice")]
#[case(json!({"addresses": {"a": 1}}), "addresses: must be a list, but is an object")]
#[case(json!({"routes": [{"destination": "default"}]}), "write 0.0.0.0/0 for IPv4")]
#[case(json!({"routes": [{"gateway": "192.0.2.1"}]}), "routes[0].destination: is missing")]
#[case(json!({"addresses": ["192.0.2.7/24"], "routes": [{"destination": "0.0.0.0/0", "gateway": "192.0.2.1"}]}), "the pod has a default route of its own")]
#[case(json!({"addresses": ["192.0.2.7/24"], "routes": [{"destination": "198.51.100.0/24", "gateway": "10.0.0.1"}]}), "routes[0].gateway: 10.0.0.1 is in no network of the interface's addresses: add such an address, or set onLink: true")]
#[case(json!({"addresses": ["192.0.2.7/24"], "routes": [{"destination": "198.51.100.0/24", "gateway": "192.0.2.7"}]}), "is an address of the interface itself")]
#[case(json!({"addresses": ["192.0.2.7/24"], "routes": [{"destination": "198.51.100.0/24", "gateway": "2001:db8::1"}]}), "2001:db8::1 is IPv6, but the destination is IPv4")]
#[case(json!({"addresses": ["192.0.2.7/24"], "routes": [{"destination": "2001:db8::/32"}]}), "the interface gets no IPv6 address")]
#[case(json!({"macvlan": {}, "routes": [{"destination": "198.51.100.0/24"}]}), "the interface gets no IPv4 address")]
#[case(json!({"routes": [{"destination": "198.51.100.0/24", "gateway": "2001:db8::1"}]}), "2001:db8::1 is IPv6, but the destination is IPv4")]
#[case(json!({"addresses": ["192.0.2.7/24"], "routes": [{"destination": "198.51.100.0/24", "source": "192.0.2.8"}]}), "routes[0].source: 192.0.2.8 is not one of addresses")]
#[case(json!({"addresses": ["192.0.2.7/24"], "routes": [{"destination": "198.51.100.0/24"}, {"destination": "198.51.100.0/24"}]}), "routes[1].destination: 198.51.100.0/24 is there twice")]
#[case(json!({"addresses": ["192.0.2.7/24"], "routes": [{"destination": "198.51.100.0/24", "gateway": "192.0.2.1", "scope": "link"}]}), "routes[0].scope: a route with a gateway is global")]
#[case(json!({"routes": [{"destination": "198.51.100.0/24", "table": 255}]}), "255 is the table that the kernel keeps itself")]
#[case(json!({"routes": [{"destination": "198.51.100.0/24", "scope": "lnik"}]}), "\"lnik\" is not known: did you mean link?")]
#[case(json!({"rules": [{"table": 254}]}), "rules[0]: matches every packet: set from, to or fwmark")]
#[case(json!({"rules": [{"from": "192.0.2.0/24", "table": 100}]}), "rules[0].table: no route is in table 100: add one with table: 100")]
#[case(json!({"rules": [{"from": "192.0.2.0/24", "to": "2001:db8::/32", "table": 254}]}), "must be of one family")]
#[case(json!({"rules": [{"fwmark": 1, "table": 254, "priority": 0}]}), "rules[0].priority: 0 must be from 1")]
#[case(json!({"rules": [{"fwmark": 1}]}), "rules[0].table: is missing")]
#[case(json!({"sysctls": {"net.ipv4.ip_forward": 1}}), "sysctls[net.ipv4.ip_forward]: not a setting of one interface")]
#[case(json!({"sysctls": {"net.ipv4.conf.all.rp_filter": 1}}), "write net.ipv4.conf.IFNAME.rp_filter, with IFNAME for its name")]
#[case(json!({"sysctls": {"net.ipv4.conf.IFNAME.rpfilter": 1}}), "did you mean rp_filter?")]
#[case(json!({"sysctls": {"net.ipv4.conf.IFNAME.rp_filter": "on"}}), "must be a whole number")]
#[case(json!({"sysctls": {"net.ipv4.conf.IFNAME.../../x": 1}}), "cannot be set")]
#[case(json!({"addresses": ["2001:db8::7/64"], "sysctls": {"net.ipv6.conf.IFNAME.disable_ipv6": 1}}), "the interface gets IPv6 addresses")]
#[case(json!({"addresses": ["2001:db8::7/64"], "mtu": 1000}), "IPv6 needs an MTU of at least 1280")]
#[case(json!({"macvlan": {}, "ipvlan": {"mode": "l3"}}), "ipvlan: macvlan is set as well")]
#[case(json!({"macvlan": {}, "rdmaExclusive": true}), "an RDMA device goes along with its own interface")]
#[case(json!({"ipvlan": {}, "macAddress": "02:00:00:00:00:01"}), "an ipvlan interface has the MAC address of its device")]
#[case(json!({"vlan": {}}), "vlan.id: is missing")]
#[case(json!({"vlan": 100}), "vlan: must be an object with fields, but is the number 100")]
#[case(json!({"driver": "vfio"}), "driver: \"vfio\" is not known: use one of kernel, vfio-pci")]
#[case(json!({"driver": "vfio-pci", "mtu": 9000}), "mtu: a device with the driver vfio-pci has no interface")]
#[case(json!({"addressRanges": [{"subnet": "192.0.2.0/24", "first": "10.0.0.1"}]}), "addressRanges[0].first: 10.0.0.1 is not in the subnet 192.0.2.0/24")]
#[case(json!({"addressRanges": [{"subnet": "192.0.2.0/24", "first": "192.0.2.9", "last": "192.0.2.8"}]}), "addressRanges[0].last: 192.0.2.8 is before first")]
#[case(json!({"addressRanges": [{"subnet": "192.0.2.0/30", "exclude": ["192.0.2.1", "192.0.2.2"]}]}), "no address is left to hand out")]
#[case(json!({"addressRange": {}}), "unknown field: did you mean addressRanges?")]
#[case(json!({"kind": "Config"}), "kind: must be ClaimConfig")]
#[case(json!({"apiVersion": "net.drakkar.dev/v1", "mut": 1}), "apiVersion: must be net.drakkar.dev/v1alpha1")]
fn an_error_says_what_is_wrong_and_what_is_right(#[case] parameters: Value, #[case] expected: &str) {
    let errors = errors(parameters);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains(expected), "{}", errors[0]);
}

#[test]
fn a_route_without_a_gateway_takes_that_of_the_range() {
    let config = ClaimConfig::parse(
        &document(json!({
            "addressRanges": [{"subnet": "192.0.2.0/24", "gateway": "192.0.2.1"}],
            "routes": [{"destination": "198.51.100.0/24"}, {"destination": "203.0.113.0/24", "scope": "link"}],
        })),
        "",
    )
    .unwrap();
    assert_eq!(config.validate(), []);
    let routes = config.routes.as_ref().unwrap();
    assert_eq!(config.gateway_of(&routes[0]), Some("192.0.2.1".parse().unwrap()));
    assert_eq!(config.gateway_of(&routes[1]), None);
}

#[test]
fn too_many_addresses_are_refused() {
    let addresses: Vec<String> = (1..=17).map(|last| format!("192.0.2.{last}/24")).collect();
    assert_eq!(errors(json!({"addresses": addresses})), ["addresses: 17 addresses: an interface can have at most 16"]);
    #[cfg(feature = "driver")]
    assert_eq!(MAX_ADDRESSES, drakkar_metadata::validate::MAX_IPS);
}

fn layer(path: &str, parameters: Value) -> Layer {
    Layer { path: path.to_owned(), config: ClaimConfig::parse(&document(parameters), path).unwrap() }
}

#[test]
fn later_parameters_override_earlier_ones_field_by_field() {
    let mut merged = Merged::default();
    merged.add(layer("rule", json!({"mtu": 1500, "macvlan": {"mode": "vepa"}})));
    merged.add(layer("class", json!({"mtu": 9000, "addressRanges": [{"subnet": "192.0.2.0/24"}], "routes": []})));
    merged.add(layer("claim", json!({"addresses": ["10.0.0.7/24"], "ipvlan": {}})));
    let expected = document(json!({"mtu": 9000, "addresses": ["10.0.0.7/24"], "routes": [], "ipvlan": {}}));
    assert_eq!(merged.config, ClaimConfig::parse(&expected, "").unwrap());
}

#[test]
fn an_error_of_merged_parameters_is_reported_where_the_field_was_set() {
    let mut merged = Merged::default();
    merged.add(layer("class: config[0].opaque.parameters", json!({"mtu": 1000})));
    merged.add(layer(
        "config[2].opaque.parameters",
        json!({"addresses": ["2001:db8::1/64"], "routes": [{"destination": "10.0.0.0/8"}]}),
    ));
    let errors: Vec<String> = merged.validate().iter().map(|error| error.path.clone()).collect();
    assert_eq!(errors, ["config[2].opaque.parameters.routes[0].destination", "class: config[0].opaque.parameters.mtu"]);
}

#[test]
fn documents_are_checked_whatever_contains_the_parameters() {
    let entry =
        |parameters: Value| json!({"opaque": {"driver": "net.drakkar.dev", "parameters": document(parameters)}});
    let other = json!({"opaque": {"driver": "other.example.com", "parameters": {"mtu": "what"}}});
    let claim = json!({"kind": "ResourceClaim", "metadata": {"name": "a"}, "spec": {"devices": {"config": [other, entry(json!({"mtu": 1}))]}}});
    let checked = check_document(&claim).unwrap();
    assert_eq!((checked.subject.as_str(), checked.parameters), ("ResourceClaim a", 1));
    assert_eq!(
        checked.errors[0].to_string(),
        "spec.devices.config[1].opaque.parameters.mtu: 1 must be from 68 to 65535"
    );
    let template = json!({"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": {"spec": {"devices": {"config": [entry(json!({"mut": 1}))]}}}});
    let path = &check_document(&template).unwrap().errors[0].path;
    assert_eq!(path, "spec.spec.devices.config[0].opaque.parameters.mut");
    let class =
        json!({"kind": "DeviceClass", "metadata": {"name": "c"}, "spec": {"config": [entry(json!({"mtu": 1500}))]}});
    assert_eq!(check_document(&class).unwrap().errors, []);
    assert_eq!(check_document(&document(json!({"mtu": 1}))).unwrap().errors[0].path, "mtu");
    assert_eq!(check_document(&json!({"kind": "Pod"})), None);
    assert_eq!(check_document(&json!({"kind": "DeviceClass"})).unwrap().parameters, 0);
}

#[test]
fn entries_of_one_request_complete_each_other() {
    let entry = |requests: &[&str], parameters: Value| json!({"requests": requests, "opaque": {"driver": "net.drakkar.dev", "parameters": document(parameters)}});
    let claim = |entries: Vec<Value>| json!({"kind": "ResourceClaim", "metadata": {"name": "a"}, "spec": {"devices": {"config": entries}}});
    let rules = json!({"rules": [{"fwmark": 1, "table": 100}]});
    let routes = json!({"routes": [{"destination": "10.0.0.0/8", "table": 100}]});
    let whole = claim(vec![entry(&[], rules.clone()), entry(&["a"], routes.clone())]);
    let errors = check_document(&whole).unwrap().errors;
    assert_eq!(errors.len(), 1, "a request other than a gets rules without a route: {errors:?}");
    let whole = claim(vec![entry(&["a"], rules.clone()), entry(&["a"], routes.clone())]);
    assert_eq!(check_document(&whole).unwrap().errors, []);
    let apart = claim(vec![entry(&["a"], rules), entry(&["b"], routes)]);
    let errors = check_document(&apart).unwrap().errors;
    assert!(
        errors.iter().all(|error| error.path.starts_with("spec.devices.config[0]")) && !errors.is_empty(),
        "{errors:?}"
    );
}

#[cfg(feature = "driver")]
mod of_claim {
    use drakkar_plugin::Claim;

    use super::*;

    fn of(config: &Value) -> Result<ClaimConfig, String> {
        let object = json!({
            "metadata": {"namespace": "default", "name": "a", "uid": "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11"},
            "spec": {},
            "status": {"allocation": {"devices": {
                "results": [{"request": "fast", "driver": "net.drakkar.dev", "pool": "node-1", "device": "eth1"}],
                "config": config,
            }}},
        });
        let claim = Claim::from_object("net.drakkar.dev", serde_json::from_value(object).unwrap()).unwrap();
        let result = claim.results().next().unwrap().clone();
        let defaults = ClaimConfig { mtu: Some(1500), ..ClaimConfig::default() };
        ClaimConfig::of(&claim, &result, &defaults).map_err(|error| error.to_string())
    }

    fn entry(source: &str, driver: &str, parameters: Value) -> Value {
        json!({"source": source, "opaque": {"driver": driver, "parameters": document(parameters)}})
    }

    #[test]
    fn a_claim_overrides_its_class_and_the_class_overrides_the_rule() {
        let config = of(&json!([
            entry("FromClass", "net.drakkar.dev", json!({"mtu": 9000, "interfaceName": "a"})),
            entry("FromClaim", "net.drakkar.dev", json!({"interfaceName": "b"})),
        ]));
        let expected = json!({"mtu": 9000, "interfaceName": "b"});
        assert_eq!(config.unwrap(), ClaimConfig::parse(&document(expected), "").unwrap());
        assert_eq!(of(&json!([])).unwrap().mtu, Some(1500));
    }

    #[test]
    fn errors_have_the_path_in_the_claim_or_class_that_the_user_wrote() {
        let error = of(&json!([
            entry("FromClass", "other.example.com", json!({})),
            entry("FromClass", "net.drakkar.dev", json!({"mtu": 1})),
            entry(
                "FromClaim",
                "net.drakkar.dev",
                json!({"routes": [{"destination": "10.0.0.0/8"}, {"destination": "10.0.0.0/9", "gateway": "x"}]})
            ),
        ]));
        assert_eq!(
            error.unwrap_err(),
            "request fast: device class: config[1].opaque.parameters.mtu: 1 must be from 68 to 65535; \
             config[0].opaque.parameters.routes[1].gateway: \"x\" is not an address, such as 192.0.2.1 or 2001:db8::1"
        );
    }
}
