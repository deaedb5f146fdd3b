//! Validation: every rule, the number of errors and their fields.

use drakkar_metadata::validate::FieldProblem;
use drakkar_metadata::{
    DeviceAttribute, ManagedFieldsEntry, Metadata, NetworkDeviceData, ObjectMeta, OwnerReference, Request, decode,
    validate,
};
use rstest::rstest;

use crate::support::{device, fixture, metadata};

fn valid() -> Metadata {
    let mut metadata = metadata("my-claim", "request/subrequest", "gpu.example.com", &["gpu-0", "gpu-1"]);
    metadata.pod_claim_name = Some("my-gpu".into());
    let device = &mut metadata.requests[0].devices[1];
    device.pool = "rack-1/node.example.com".into();
    device.attributes = [
        ("a".to_owned(), DeviceAttribute::from(0)),
        ("b".to_owned(), false.into()),
        ("c".to_owned(), "".into()),
        ("d".to_owned(), DeviceAttribute::version("not semver: not checked here")),
        ("e".to_owned(), vec![1].into()),
        ("f".to_owned(), vec![true].into()),
        ("g".to_owned(), vec!["x".repeat(64)].into()),
        ("h".to_owned(), DeviceAttribute::versions(["1.0.0"])),
        ("keys are / not checked".to_owned(), "x".repeat(1000).into()),
    ]
    .into();
    device.network_data = Some(NetworkDeviceData {
        interface_name: "i".repeat(256),
        ips: (0..16).map(|last| format!("10.0.0.{last}/24")).collect(),
        hardware_address: "a".repeat(128),
    });
    metadata
}

/// Returns the fields with errors, in order.
fn fields(metadata: &Metadata) -> Vec<String> {
    match validate(metadata) {
        Ok(()) => Vec::new(),
        Err(error) => error.errors().iter().map(|error| error.field.clone()).collect(),
    }
}

fn with(change: impl FnOnce(&mut Metadata)) -> Metadata {
    let mut metadata = valid();
    change(&mut metadata);
    metadata
}

fn with_device(change: impl FnOnce(&mut drakkar_metadata::Device)) -> Metadata {
    with(|metadata| change(&mut metadata.requests[0].devices[1]))
}

fn with_network(data: NetworkDeviceData) -> Metadata {
    with_device(|device| device.network_data = Some(data))
}

const DEVICE: &str = "requests[0].devices[1]";

#[test]
fn a_valid_object_has_no_errors() {
    assert_eq!(validate(&valid()), Ok(()));
    assert_eq!(validate(&Metadata::default()), Ok(()));
}

#[rstest]
#[case::upper_case(Some("GPU"), 1)]
#[case::underscore(Some("a_b"), 1)]
#[case::dot(Some("a.b"), 1)]
#[case::empty(Some(""), 1)]
#[case::too_long(Some("a123456789a123456789a123456789a123456789a123456789a123456789a123"), 1)]
#[case::as_long_as_can_be(Some("a123456789a123456789a123456789a123456789a123456789a123456789a12"), 0)]
#[case::absent(None, 0)]
fn a_pod_claim_name_is_a_label(#[case] name: Option<&str>, #[case] errors: usize) {
    let metadata = with(|metadata| metadata.pod_claim_name = name.map(str::to_owned));
    assert_eq!(fields(&metadata), vec!["podClaimName"; errors]);
}

#[test]
fn a_request_needs_a_name_of_any_form() {
    assert_eq!(fields(&with(|metadata| metadata.requests[0].name.clear())), ["requests[0].name"]);
    assert_eq!(fields(&with(|metadata| metadata.requests[0].name = "A/b/../C".into())), [""; 0]);
    let second = with(|metadata| metadata.requests.push(Request::default()));
    assert_eq!(fields(&second), ["requests[1].name"]);
}

#[rstest]
#[case::empty("", 1)]
#[case::as_long_as_can_be(&"a".repeat(63), 0)]
#[case::too_long(&"a".repeat(64), 1)]
#[case::upper_case_is_let_through("GPU.Example.com", 0)]
#[case::underscore("gpu_example.com", 1)]
#[case::slash("gpu/example", 1)]
#[case::trailing_dot("gpu.", 1)]
fn a_driver_is_a_subdomain_in_any_case(#[case] driver: &str, #[case] errors: usize) {
    assert_eq!(fields(&with_device(|device| device.driver = driver.into())), vec![format!("{DEVICE}.driver"); errors]);
}

#[rstest]
#[case::empty("", 1)]
#[case::several_parts("a/b.c/d-e", 0)]
#[case::trailing_slash("worker-0/", 1)]
#[case::leading_slash("/worker-0", 1)]
#[case::doubled_slash("a//b", 1)]
#[case::upper_case("Worker", 1)]
#[case::dots("..", 1)]
#[case::as_long_as_can_be(&"a".repeat(253), 0)]
#[case::too_long(&"a".repeat(254), 1)]
fn a_pool_is_subdomains_joined_with_slashes(#[case] pool: &str, #[case] errors: usize) {
    assert_eq!(fields(&with_device(|device| device.pool = pool.into())), vec![format!("{DEVICE}.pool"); errors]);
}

#[rstest]
#[case::empty("", 1)]
#[case::upper_case("GPU-0", 1)]
#[case::dot("gpu.0", 1)]
#[case::trailing_dash("gpu-", 1)]
#[case::as_long_as_can_be(&"a".repeat(63), 0)]
#[case::too_long(&"a".repeat(64), 1)]
fn a_device_name_is_a_label(#[case] name: &str, #[case] errors: usize) {
    assert_eq!(fields(&with_device(|device| device.name = name.into())), vec![format!("{DEVICE}.name"); errors]);
}

#[test]
fn more_than_32_attributes_are_one_error() {
    let named = |count: usize, attribute: &DeviceAttribute| {
        let attributes = (0..count).map(|number| (format!("a{number}"), attribute.clone())).collect();
        with_device(|device| device.attributes = attributes)
    };
    assert_eq!(fields(&named(32, &true.into())), [""; 0]);
    assert_eq!(fields(&named(33, &true.into())), [format!("{DEVICE}.attributes")]);
    assert_eq!(fields(&named(40, &DeviceAttribute::default())), [format!("{DEVICE}.attributes")]);
    assert_eq!(fields(&named(32, &DeviceAttribute::default())).len(), 32);
    let error = validate(&named(33, &true.into())).unwrap_err();
    assert_eq!(error.errors()[0].problem, FieldProblem::TooMany { count: 33, limit: 32 });
}

#[rstest]
#[case::none(DeviceAttribute::default(), FieldProblem::NoValue)]
#[case::an_empty_list(DeviceAttribute::from(Vec::<i64>::new()), FieldProblem::NoValue)]
#[case::two_scalars(
    DeviceAttribute { int: Some(0), ..DeviceAttribute::from("") },
    FieldProblem::SeveralValues(vec!["int", "string"])
)]
#[case::scalar_and_list(
    DeviceAttribute { bool: Some(false), ..DeviceAttribute::versions(["1.0.0"]) },
    FieldProblem::SeveralValues(vec!["bool", "versions"])
)]
fn an_attribute_has_exactly_one_value(#[case] attribute: DeviceAttribute, #[case] expected: FieldProblem) {
    let metadata = with_device(|device| device.attributes = [("example.com/model".into(), attribute)].into());
    let error = validate(&metadata).unwrap_err();
    assert_eq!(error.errors().len(), 1);
    assert_eq!(error.errors()[0].field, format!("{DEVICE}.attributes[example.com/model]"));
    assert_eq!(error.errors()[0].problem, expected);
}

#[test]
fn an_element_of_strings_has_at_most_64_bytes() {
    let list = vec!["x".repeat(64), "x".repeat(65), "ü".repeat(33)];
    let metadata = with_device(|device| device.attributes = [("a".into(), list.into())].into());
    let prefix = format!("{DEVICE}.attributes[a].strings");
    assert_eq!(fields(&metadata), [format!("{prefix}[1]"), format!("{prefix}[2]")]);
    let versions = DeviceAttribute::versions(["x".repeat(1000)]);
    assert_eq!(fields(&with_device(|device| device.attributes = [("a".into(), versions)].into())), [""; 0]);
}

#[rstest]
#[case::interface_name(NetworkDeviceData { interface_name: "i".repeat(257), ..Default::default() }, "interfaceName")]
#[case::interface_name_in_bytes(NetworkDeviceData { interface_name: "ü".repeat(129), ..Default::default() }, "interfaceName")]
#[case::too_many_ips(NetworkDeviceData { ips: (0..17).map(|n| n.to_string()).collect(), ..Default::default() }, "ips")]
#[case::too_many_and_repeated_ips(NetworkDeviceData { ips: vec!["same".into(); 17], ..Default::default() }, "ips")]
#[case::the_second_of_two_equal_ips(
    NetworkDeviceData { ips: vec!["a".into(), "b".into(), "a".into()], ..Default::default() }, "ips[2]"
)]
#[case::hardware_address(NetworkDeviceData { hardware_address: "a".repeat(129), ..Default::default() }, "hardwareAddress")]
fn network_data_has_limits(#[case] data: NetworkDeviceData, #[case] field: &str) {
    assert_eq!(fields(&with_network(data)), [format!("{DEVICE}.networkData.{field}")]);
}

#[test]
fn an_ip_that_is_repeated_twice_is_two_errors() {
    let data = NetworkDeviceData { ips: vec!["a".into(); 3], ..NetworkDeviceData::default() };
    let prefix = format!("{DEVICE}.networkData.ips");
    assert_eq!(fields(&with_network(data)), [format!("{prefix}[1]"), format!("{prefix}[2]")]);
}

#[test]
fn a_generation_is_not_negative() {
    let metadata = |generation| with(|metadata| metadata.metadata.generation = generation);
    assert_eq!(fields(&metadata(-1)), ["metadata.generation"]);
    assert_eq!(fields(&metadata(0)), [""; 0]);
    assert_eq!(fields(&metadata(i64::MAX)), [""; 0]);
}

#[test]
fn an_owner_has_a_version_a_kind_a_name_and_a_uid() {
    let whole = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: "p".into(),
        uid: "u".into(),
        ..OwnerReference::default()
    };
    let owners = vec![whole, OwnerReference::default()];
    let metadata = with(|metadata| metadata.metadata.owner_references = owners);
    let of = |field: &str| format!("metadata.ownerReferences[1].{field}");
    assert_eq!(fields(&metadata), [of("apiVersion"), of("kind"), of("name"), of("uid")]);
}

#[test]
fn the_operation_of_a_manager_is_apply_or_update() {
    let entry = |operation: &str| ManagedFieldsEntry { operation: operation.into(), ..ManagedFieldsEntry::default() };
    let entries = vec![entry("Apply"), entry("Update"), entry(""), entry("apply")];
    let metadata = with(|metadata| metadata.metadata.managed_fields = entries);
    let error = validate(&metadata).unwrap_err();
    let problems: Vec<_> = error.errors().iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "metadata.managedFields[2].operation: required value is missing",
            "metadata.managedFields[3].operation: \"apply\" is not valid: must be one of Apply, Update",
        ]
    );
}

#[test]
fn all_errors_are_reported_in_the_order_of_the_document() {
    let mut broken = device("", "GPU");
    broken.pool = "a/".into();
    broken.attributes = [("a".into(), DeviceAttribute::default())].into();
    broken.network_data = Some(NetworkDeviceData { interface_name: "i".repeat(257), ..Default::default() });
    let metadata = Metadata {
        metadata: ObjectMeta { generation: -1, ..ObjectMeta::default() },
        pod_claim_name: Some("A".into()),
        requests: vec![Request { name: String::new(), devices: vec![broken] }],
    };
    let at = |field: &str| format!("requests[0].devices[0].{field}");
    let expected = [
        "metadata.generation".to_owned(),
        "podClaimName".to_owned(),
        "requests[0].name".to_owned(),
        at("driver"),
        at("pool"),
        at("name"),
        at("attributes[a]"),
        at("networkData.interfaceName"),
    ];
    assert_eq!(fields(&metadata), expected);
    let text = validate(&metadata).unwrap_err().to_string();
    assert!(expected.iter().all(|field| text.contains(&format!("{field}: "))), "{text}");
    assert_eq!(text.matches("; ").count(), expected.len() - 1);
}

#[test]
fn the_fixtures_placeholder_values_are_invalid() {
    let decoded = decode(&fixture("v1beta1-v1alpha1.json")).unwrap().metadata;
    assert_eq!(
        fields(&decoded),
        ["metadata.managedFields[0].operation", "podClaimName", "requests[0].devices[0].attributes[model]"]
    );
}

#[test]
fn a_message_has_a_long_value_truncated_and_escaped() {
    let name = format!("\u{1b}[31m{}", "x".repeat(10_000));
    let text = validate(&with(|metadata| metadata.pod_claim_name = Some(name))).unwrap_err().to_string();
    assert!(text.len() < 500 && !text.contains('\u{1b}'), "{text}");
}
