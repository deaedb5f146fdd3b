//! Tests of every validation rule of the API server for an entry.

use rstest::rstest;

use super::super::validate::problems;
use super::*;
use crate::metadata::NetworkDeviceData;

fn device() -> DeviceStatus {
    DeviceStatus::new("node-1", "gpu-0")
}

fn with_ips<T: Into<String>>(ips: impl IntoIterator<Item = T>) -> DeviceStatus {
    let ips = ips.into_iter().map(Into::into).collect();
    device().network_data(NetworkDeviceData { ips, ..NetworkDeviceData::default() })
}

fn with_condition(type_: &str, reason: &str) -> DeviceStatus {
    device().condition(DeviceCondition::new(type_, ConditionStatus::True, reason))
}

fn text(length: usize) -> String {
    "x".repeat(length)
}

#[rstest]
#[case::nothing_but_a_name(device())]
#[case::pool_of_parts(DeviceStatus::new("rack-1/node-1.example.com", "gpu-0"))]
#[case::share(device().share_id(SHARE))]
#[case::ready(device().ready("Configured", "all is well"))]
#[case::eight_conditions((0..8).fold(device(), |device, number| device.not_ready("A", "").condition(
    DeviceCondition::new(if number == 0 { "Ready".to_owned() } else { format!("C{number}") }, ConditionStatus::Unknown, "A"))))]
#[case::type_with_domain(with_condition("example.com/Link.Up_now-1", "Up"))]
#[case::longest_type(with_condition(&format!("{}/{}", text(253), text(63)), "A"))]
#[case::reason_of_all_kinds(with_condition("Ready", "A1_,:b_"))]
#[case::longest_reason(with_condition("Ready", &text(1024)))]
#[case::longest_message(device().ready("A", text(32 * 1024)))]
#[case::empty_data(device().data(json!({})))]
#[case::longest_data(device().data(json!({"a": text(10_240 - 8)})))]
#[case::longest_data_with_escapes(device().data(json!({"a": "<".repeat(1705)})))]
#[case::no_network(device().network_data(NetworkDeviceData::default()))]
#[case::network(device().network_data(NetworkDeviceData {
    interface_name: text(256), hardware_address: text(128), ips: vec!["10.0.0.5/24".into()] }))]
#[case::addresses(with_ips(["10.0.0.5/24", "0.0.0.0/0", "10.0.0.5/32", "2001:db8::1/64", "2001:db8:0:1:1:1:1:1/64",
    "::102:304/96", "::/0", "fe80::1/128"]))]
#[case::sixteen_addresses(with_ips((0..16).map(|number| format!("10.0.0.{number}/24"))))]
fn valid_entries_have_no_problems(#[case] device: DeviceStatus) {
    assert_eq!(problems(&[device]), Vec::<String>::new());
}

#[rstest]
#[case::no_pool(DeviceStatus::new("", "gpu-0"), "pool: ")]
#[case::pool(DeviceStatus::new("a//b", "gpu-0"), "pool: ")]
#[case::device(DeviceStatus::new("node-1", "GPU.0"), "device: ")]
#[case::share_in_upper_case(device().share_id(SHARE.to_uppercase()), "shareID: ")]
#[case::short_share(device().share_id("aaaaaaaa"), "shareID: ")]
#[case::share_without_dashes(device().share_id(SHARE.replace('-', "")), "shareID: ")]
#[case::no_type(with_condition("", "A"), "conditions[0].type: ")]
#[case::type_of_words(with_condition("is ready", "A"), "conditions[0].type: ")]
#[case::type_end(with_condition("Ready-", "A"), "conditions[0].type: ")]
#[case::long_type(with_condition(&text(64), "A"), "conditions[0].type: ")]
#[case::type_with_two_slashes(with_condition("a/b/C", "A"), "conditions[0].type: ")]
#[case::type_with_empty_domain(with_condition("/C", "A"), "conditions[0].type: ")]
#[case::type_with_bad_domain(with_condition("Example.com/C", "A"), "conditions[0].type: ")]
#[case::no_reason(with_condition("Ready", ""), "conditions[0].reason: ")]
#[case::reason_of_words(with_condition("Ready", "It works"), "conditions[0].reason: ")]
#[case::reason_from_a_digit(with_condition("Ready", "1A"), "conditions[0].reason: ")]
#[case::reason_to_a_comma(with_condition("Ready", "A,"), "conditions[0].reason: ")]
#[case::long_reason(with_condition("Ready", &text(1025)), "conditions[0].reason: has 1025 bytes")]
#[case::long_message(device().ready("A", text(32 * 1024 + 1)), "conditions[0].message: has 32769 bytes")]
#[case::array(device().data(json!([])), "data: must be a JSON object")]
#[case::null(device().data(Value::Null), "data: must be a JSON object")]
#[case::scalar(device().data(json!("text")), "data: must be a JSON object")]
#[case::long_data(device().data(json!({"a": text(10_240 - 7)})), "data: has 10241 bytes")]
#[case::data_that_is_long_with_escapes(device().data(json!({"a": "<".repeat(1706)})), "data: has 10244 bytes")]
#[case::interface(device().network_data(NetworkDeviceData { interface_name: text(257), ..NetworkDeviceData::default() }),
    "networkData.interfaceName: has 257 bytes")]
#[case::hardware(device().network_data(NetworkDeviceData { hardware_address: text(129), ..NetworkDeviceData::default() }),
    "networkData.hardwareAddress: has 129 bytes")]
#[case::addresses(with_ips((0..17).map(|number| format!("10.0.0.{number}/24"))), "networkData.ips: has 17 entries")]
#[case::same_address(with_ips(["10.0.0.5/24", "10.0.0.5/24"]), "networkData.ips[1]: \"10.0.0.5/24\" is a duplicate")]
#[case::no_prefix(with_ips(["10.0.0.5"]), "networkData.ips[0]: \"10.0.0.5\" must be an address with a prefix length")]
#[case::prefix(with_ips(["10.0.0.5/33"]), "networkData.ips[0]: \"10.0.0.5/33\" must be an address")]
#[case::zone(with_ips(["fe80::1%eth0/64"]), "networkData.ips[0]: ")]
#[case::leading_zero(with_ips(["010.0.0.5/24"]), "networkData.ips[0]: ")]
#[case::sign(with_ips(["10.0.0.5/+24"]), "networkData.ips[0]: \"10.0.0.5/+24\" must be written as \"10.0.0.5/24\"")]
#[case::prefix_zero(with_ips(["2001:db8::1/064"]), "must be written as \"2001:db8::1/64\"")]
#[case::upper_case(with_ips(["2001:DB8::1/64"]), "must be written as \"2001:db8::1/64\"")]
#[case::long_form(with_ips(["2001:db8:0:0::1/64"]), "must be written as \"2001:db8::1/64\"")]
#[case::mapped(with_ips(["::ffff:1.2.3.4/120"]), "must be written as \"1.2.3.4/24\"")]
#[case::mapped_wide(with_ips(["::ffff:1.2.3.4/64"]), "networkData.ips[0]: ")]
#[case::compatible(with_ips(["::1.2.3.4/96"]), "must be written as \"::102:304/96\"")]
fn invalid_entries_have_a_problem(#[case] device: DeviceStatus, #[case] problem: &str) {
    let name = format!("device {}/{}: ", device.pool_name, device.device_name);
    let found = problems(&[device]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(&name) && found[0].contains(problem), "{found:?}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let mut bad = device().data(json!(1));
    bad.conditions = vec![DeviceCondition::new("Ready", ConditionStatus::True, "A"); 9];
    bad.conditions[3].observed_generation = Some(-1);
    let found = problems(&[bad, device()]);
    assert_eq!(found.iter().filter(|problem| problem.contains("\"Ready\" is a duplicate")).count(), 8);
    for problem in
        ["conditions: has 9 entries", "conditions[3].observedGeneration: -1", "data: ", "gpu-0: duplicate report"]
    {
        assert!(found.iter().any(|found| found.contains(problem)), "{problem}: {found:?}");
    }
}

#[test]
fn two_shares_of_a_device_are_no_duplicates() {
    let other = SHARE.replace('a', "b");
    assert!(problems(&[device().share_id(SHARE), device().share_id(other), device()]).is_empty());
}
