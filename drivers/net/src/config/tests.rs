//! Tests of configurations, valid and invalid.

use rstest::rstest;

use super::*;
use crate::attributes::{Attributes, cel_value};
use crate::claim_config::{DeviceDriver, Macvlan, MacvlanMode};

fn with(devices: &str) -> String {
    format!("apiVersion: net.drakkar.dev/v1alpha1\nkind: DriverConfig\ndevices:\n{devices}\n")
}

fn rule(yaml: &str) -> Rule {
    Config::from_yaml(&with(yaml)).unwrap().devices.remove(0)
}

#[test]
fn a_full_configuration_is_read() {
    let rule = rule(
        "- name: data
  match:
    names: ['ens*', bond1]
    types: [physical, vf, bond]
    drivers: [mlx5_core, none]
    addresses: ['0000:3b:*', '0000:3B:00.0']
    macs: ['02:00:5E:*', '02:00:5e:10:00:01']
    cel: device.attributes['net.drakkar.dev'].mtu >= 9000
  share: {kind: macvlan, mode: private, max: 8}
  ipam: [{subnet: 192.0.2.0/24, first: 192.0.2.10, gateway: 192.0.2.1, exclude: [192.0.2.20, 192.0.2.32/28]}]
  allow: [eth0, ens1f0.100]
  attributes: {fabric: a, rail: 3, lossless: true}",
    );
    let macvlan = Macvlan { mode: MacvlanMode::Private };
    assert_eq!(rule.mode, Mode::Share(Share { kind: ShareKind::Macvlan(macvlan), max: 8 }));
    assert_eq!(rule.defaults.macvlan, Some(macvlan));
    assert_eq!(rule.defaults.address_ranges.unwrap()[0].subnet, "192.0.2.0/24".parse().unwrap());
    assert_eq!(rule.allow, ["eth0", "ens1f0.100"]);
    assert_eq!(rule.attributes["rail"], 3.into());
}

#[test]
fn an_interface_is_moved_unless_the_rule_says_otherwise() {
    assert_eq!(rule("- match: {names: ['*']}").mode, Mode::Move);
    assert_eq!(rule("- match: {names: ['*']}\n  mode: move").mode, Mode::Move);
    let dpdk = rule("- match: {types: [vf]}\n  mode: dpdk");
    assert_eq!((dpdk.mode, dpdk.defaults.driver), (Mode::Dpdk, Some(DeviceDriver::VfioPci)));
    let shared = rule("- match: {names: ['*']}\n  share: {kind: ipvlan, mode: l3s}").mode.share().unwrap();
    assert_eq!((shared.kind.as_str(), shared.max), ("ipvlan", 16));
    assert_eq!(rule("- match: {names: ['*']}\n  share: {kind: macvlan, mode: passthru}").mode.share().unwrap().max, 1);
}

#[rstest]
#[case::no_version("kind: DriverConfig\n", "missing field `apiVersion`")]
#[case::version("apiVersion: v2\nkind: DriverConfig\n", "this driver reads \"net.drakkar.dev/v1alpha1\"")]
#[case::kind("apiVersion: net.drakkar.dev/v1alpha1\nkind: Pod\n", "kind is \"Pod\": it must be \"DriverConfig\"")]
#[case::field(&with("- matches: {}"), "line 4, column 3: devices[0].matches: unknown field `matches`, expected one of name, match")]
#[case::empty_match(&with("- match: {}"), "devices[0].match: it matches everything: set one of names, types")]
#[case::kind_of_interface(&with("- match: {types: [nic]}"), "devices[0].match.types[0]: \"nic\" is no type: use one of physical, vf")]
#[case::mac(&with("- match: {macs: ['02:00']}"), "a pattern such as 02:00:*")]
#[case::not_a_mac(&with("- match: {macs: ['0g:*']}"), "devices[0].match.macs[0]: \"0g:*\" has 'g'")]
#[case::address(&with("- match: {addresses: ['65:00.0']}"), "devices[0].match.addresses[0]: \"65:00.0\" is neither")]
#[case::cel(&with("- match: {cel: 'device.name == 1'}"), "devices[0].match.cel: CEL compile error")]
#[case::mode(&with("- match: {names: ['*']}\n  mode: bridge"), "devices[0].mode: unknown variant `bridge`, expected one of move, dpdk")]
#[case::both(&with("- match: {names: ['*']}\n  mode: dpdk\n  share: {kind: macvlan}"), "devices[0]: share and mode exclude each other")]
#[case::share_kind(&with("- match: {names: ['*']}\n  share: {kind: vlan}"), "devices[0].share.kind: unknown variant `vlan`")]
#[case::share_mode(&with("- match: {names: ['*']}\n  share: {kind: ipvlan, mode: bridge}"), "devices[0].share: mode: \"bridge\" is not known")]
#[case::none(&with("- match: {names: ['*']}\n  share: {kind: macvlan, max: 0}"), "devices[0].share: max: 0 claims cannot share")]
#[case::passthru(&with("- match: {names: ['*']}\n  share: {kind: macvlan, mode: passthru, max: 2}"), "from 1 to 1 in mode passthru")]
#[case::range(&with("- match: {names: ['*']}\n  ipam: [{subnet: 192.0.2.0/24, first: 198.51.100.1}]"), "devices[0]: ipam[0].first: ")]
#[case::no_network(&with("- match: {names: ['*']}\n  ipam: [{subnet: here}]"), "devices[0].ipam[0].subnet: ")]
#[case::dpdk_address(&with("- match: {types: [vf]}\n  mode: dpdk\n  ipam: [{subnet: 192.0.2.0/24}]"), "ipam: mode: dpdk has no interface")]
#[case::allowed_pattern(&with("- match: {names: ['*']}\n  allow: ['eth*']"), "devices[0].allow[0]: \"eth*\" is a pattern")]
#[case::loopback(&with("- match: {names: ['*']}\n  allow: [lo]"), "the loopback interface cannot be handed out")]
#[case::long_name(&with("- match: {names: ['*']}\n  allow: [abcdefghijklmnop]"), "it has 1 to 15 bytes")]
#[case::own_attribute(&with("- match: {names: ['*']}\n  attributes: {mtu: 1}"), "mtu is an attribute that the driver publishes itself")]
#[case::attributes(&with("- match: {names: ['*']}\n  attributes: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1}"), "a rule can add at most 6")]
#[case::twice(&with("- {name: a, match: {names: [a]}}\n- {name: a, match: {names: [b]}}"), "two rules are called \"a\"")]
fn an_error_names_the_field_and_what_is_allowed(#[case] yaml: &str, #[case] expected: &str) {
    let error = Config::from_yaml(yaml).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

fn attributes(values: &[(&str, &str)]) -> Attributes {
    values.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
}

#[rstest]
#[case("names: ['ens*']", true)]
#[case("names: [eth0, ens1f0]", true)]
#[case("names: ['eth*']", false)]
#[case("types: [vf]", false)]
#[case("types: [vf, physical]", true)]
#[case("drivers: ['mlx*'], names: ['ens*']", false)]
#[case("drivers: [ice]", true)]
#[case("drivers: [none]", false)]
#[case("addresses: ['0000:3B:*']", true)]
#[case("macs: ['02:00:5E:*']", true)]
#[case("macs: ['02:00:5e:10:00:02']", false)]
#[case("cel: \"device.attributes['net.drakkar.dev'].type == 'physical'\"", true)]
#[case("names: ['ens*'], cel: device.driver == 'other'", false)]
fn all_fields_and_one_of_each_list_must_match(#[case] condition: &str, #[case] expected: bool) {
    let facts = attributes(&[
        ("interfaceName", "ens1f0"),
        ("type", "physical"),
        ("driver", "ice"),
        ("resource.kubernetes.io/pciBusID", "0000:3b:00.0"),
        ("mac", "02:00:5e:10:00:01"),
    ]);
    let rule = rule(&format!("- match: {{{condition}}}"));
    assert_eq!(rule.matches.matches(&facts, &cel_value(&facts).unwrap()), Ok(expected));
}

#[test]
fn a_function_without_an_interface_matches_no_name() {
    let facts = attributes(&[("type", "vf")]);
    let value = cel_value(&facts).unwrap();
    assert_eq!(rule("- match: {names: ['*']}").matches.matches(&facts, &value), Ok(false));
    assert_eq!(rule("- match: {types: [vf], drivers: [none]}").matches.matches(&facts, &value), Ok(true));
}
