//! The rules of runtimes: each with its field and message.

use drakkar_cdi::{ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec, validate};
use rstest::rstest;

use crate::support::{device, finding, findings, mount, small};

#[test]
fn a_valid_spec_has_no_findings() {
    assert_eq!(findings(&small()), Vec::<String>::new());
}

#[rstest]
#[case::unknown_version(
    |spec: &mut Spec| spec.cdi_version = "1.2.0".into(),
    "cdiVersion: CDI version \"1.2.0\": unknown, must be one of 0.1.0, 0.2.0, 0.3.0, 0.4.0, 0.5.0, 0.6.0, 0.7.0, 0.8.0, 1.0.0, 1.1.0"
)]
#[case::no_content_is_so_old(
    |spec: &mut Spec| spec.cdi_version = "0.2.0".into(),
    "cdiVersion: version 0.2.0 is too low: the content needs 0.3.0"
)]
#[case::version_too_low(
    |spec: &mut Spec| spec.devices[0].name = "0".into(),
    "cdiVersion: version 0.3.0 is too low: the content needs 0.5.0"
)]
#[case::kind_without_class(
    |spec: &mut Spec| spec.kind = "example.com".into(),
    "kind: \"example.com\" is not valid: must have the form vendor/class"
)]
#[case::kind_with_empty_class(
    |spec: &mut Spec| spec.kind = "example.com/".into(),
    "kind: \"example.com/\" is not valid: must have the form vendor/class"
)]
#[case::kind_with_bad_vendor(
    |spec: &mut Spec| spec.kind = "example.com-/gpu".into(),
    "kind: \"example.com-\" is not valid: must end with a letter or digit"
)]
#[case::kind_with_bad_class(
    |spec: &mut Spec| spec.kind = "example.com/_gpu".into(),
    "kind: \"_gpu\" is not valid: must start with a letter"
)]
#[case::kind_with_two_slashes(
    |spec: &mut Spec| spec.kind = "example.com/gpu/x".into(),
    "kind: \"gpu/x\" is not valid: must not have '/': only letters, digits and '-', '_', '.'"
)]
#[case::no_devices(|spec: &mut Spec| spec.devices.clear(), "devices: at least one device is required")]
#[case::device_without_name(
    |spec: &mut Spec| spec.devices[0].name.clear(),
    "devices[0].name: \"\" is not valid: must not be empty"
)]
#[case::bad_device_name(
    |spec: &mut Spec| spec.devices[0].name = "gpu-".into(),
    "devices[0].name: \"gpu-\" is not valid: must end with a letter or digit"
)]
#[case::same_device_twice(
    |spec: &mut Spec| spec.devices.extend([device("gpu1"), device("gpu0")]),
    "devices[2].name: \"gpu0\" is a duplicate"
)]
#[case::device_without_edits(
    |spec: &mut Spec| spec.devices[0].container_edits = ContainerEdits::default(),
    "devices[0].containerEdits: a device must have at least one edit"
)]
fn a_broken_structure_is_found(#[case] change: fn(&mut Spec), #[case] expected: &str) {
    let mut spec = small();
    change(&mut spec);
    assert_eq!(finding(&spec), format!("runtime {expected}"));
}

#[test]
fn the_edits_of_the_spec_may_be_empty_and_the_rdt_of_a_device_too() {
    let mut spec = small();
    spec.cdi_version = "0.7.0".into();
    spec.devices[0].container_edits =
        ContainerEdits { intel_rdt: Some(IntelRdt::default()), ..ContainerEdits::default() };
    assert_eq!(findings(&spec), Vec::<String>::new());
}

fn hook() -> Hook {
    Hook { hook_name: "prestart".into(), path: "/bin/hook".into(), ..Hook::default() }
}

fn node() -> DeviceNode {
    DeviceNode { path: "/dev/x".into(), ..DeviceNode::default() }
}

fn net(host_interface_name: &str, name: &str) -> NetDevice {
    NetDevice { host_interface_name: host_interface_name.into(), name: name.into() }
}

fn clos_id(id: &str) -> Option<IntelRdt> {
    Some(IntelRdt { clos_id: id.into(), ..IntelRdt::default() })
}

const NAME_VALUE: &str = "must have the form NAME=value";

#[rstest]
#[case::env_without_value(
    |edits: &mut ContainerEdits| edits.env = vec!["A=".into(), "B".into()],
    format!("env[1]: \"B\" is not valid: {NAME_VALUE}")
)]
#[case::env_without_name(
    |edits: &mut ContainerEdits| edits.env = vec!["=a".into()],
    format!("env[0]: \"=a\" is not valid: {NAME_VALUE}")
)]
#[case::empty_env(
    |edits: &mut ContainerEdits| edits.env = vec![String::new()],
    format!("env[0]: \"\" is not valid: {NAME_VALUE}")
)]
#[case::node_without_path(
    |edits: &mut ContainerEdits| edits.device_nodes = vec![DeviceNode::default()],
    "deviceNodes[0].path: required value is missing"
)]
#[case::node_type(
    |edits: &mut ContainerEdits| edits.device_nodes = vec![node(), DeviceNode { node_type: "x".into(), ..node() }],
    "deviceNodes[1].type: \"x\" is not valid: must be one of b, c, u, p"
)]
#[case::permissions(
    |edits: &mut ContainerEdits| edits.device_nodes = vec![DeviceNode { permissions: "rx".into(), ..node() }],
    "deviceNodes[0].permissions: \"rx\" is not valid: must be made of 'r', 'w' and 'm'"
)]
#[case::mount_without_source(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("", "/b")],
    "mounts[0].hostPath: required value is missing"
)]
#[case::mount_without_target(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("/a", "")],
    "mounts[0].containerPath: required value is missing"
)]
#[case::hook_name(
    |edits: &mut ContainerEdits| edits.hooks = vec![Hook { hook_name: "preStart".into(), ..hook() }],
    "hooks[0].hookName: \"preStart\" is not valid: must be one of prestart, createRuntime, createContainer, startContainer, poststart, poststop"
)]
#[case::hook_without_path(
    |edits: &mut ContainerEdits| edits.hooks = vec![Hook { path: String::new(), ..hook() }],
    "hooks[0].path: required value is missing"
)]
#[case::hook_env(
    |edits: &mut ContainerEdits| edits.hooks = vec![Hook { env: vec!["A".into()], ..hook() }],
    format!("hooks[0].env[0]: \"A\" is not valid: {NAME_VALUE}")
)]
#[case::net_device_without_host(
    |edits: &mut ContainerEdits| edits.net_devices = vec![net("", "b")],
    "netDevices[0].hostInterfaceName: required value is missing"
)]
#[case::net_device_without_name(
    |edits: &mut ContainerEdits| edits.net_devices = vec![net("a", "")],
    "netDevices[0].name: required value is missing"
)]
#[case::net_device_host_twice(
    |edits: &mut ContainerEdits| edits.net_devices = vec![net("a", "b"), net("a", "c")],
    "netDevices[1].hostInterfaceName: \"a\" is a duplicate"
)]
#[case::net_device_name_twice(
    |edits: &mut ContainerEdits| edits.net_devices = vec![net("a", "b"), net("c", "b")],
    "netDevices[1].name: \"b\" is a duplicate"
)]
#[case::clos_id_here(
    |edits: &mut ContainerEdits| edits.intel_rdt = clos_id("."),
    "intelRdt.closID: \".\" is not valid: must be a file name of at most 4095 bytes, or \"/\""
)]
#[case::clos_id_parent(
    |edits: &mut ContainerEdits| edits.intel_rdt = clos_id(".."),
    "intelRdt.closID: \"..\" is not valid: must be a file name of at most 4095 bytes, or \"/\""
)]
#[case::clos_id_slash(
    |edits: &mut ContainerEdits| edits.intel_rdt = clos_id("a/b"),
    "intelRdt.closID: \"a/b\" is not valid: must be a file name of at most 4095 bytes, or \"/\""
)]
#[case::clos_id_newline(
    |edits: &mut ContainerEdits| edits.intel_rdt = clos_id("a\n"),
    "intelRdt.closID: \"a\\n\" is not valid: must be a file name of at most 4095 bytes, or \"/\""
)]
#[case::clos_id_length(
    |edits: &mut ContainerEdits| edits.intel_rdt = clos_id(&"a".repeat(4096)),
    format!("intelRdt.closID: \"{}\"… (4096 bytes) is not valid: must be a file name of at most 4095 bytes, or \"/\"", "a".repeat(80))
)]
#[case::dropped_cmt(
    |edits: &mut ContainerEdits| edits.intel_rdt = Some(IntelRdt { enable_cmt: Some(false), ..IntelRdt::default() }),
    "intelRdt.enableCMT: removed in CDI 1.1.0: newer runtimes refuse a file that has it; use enableMonitoring"
)]
#[case::dropped_mbm(
    |edits: &mut ContainerEdits| edits.intel_rdt = Some(IntelRdt { enable_mbm: Some(true), ..IntelRdt::default() }),
    "intelRdt.enableMBM: removed in CDI 1.1.0: newer runtimes refuse a file that has it; use enableMonitoring"
)]
fn a_broken_edit_is_found_in_the_spec_and_in_a_device(
    #[case] change: fn(&mut ContainerEdits),
    #[case] expected: impl AsRef<str>,
) {
    let mut in_spec = small();
    change(&mut in_spec.container_edits);
    in_spec.cdi_version = in_spec.minimum_version().to_string();
    assert_eq!(finding(&in_spec), format!("runtime containerEdits.{}", expected.as_ref()));
    let mut in_device = small();
    in_device.devices.push(device("gpu1"));
    change(&mut in_device.devices[1].container_edits);
    in_device.cdi_version = in_device.minimum_version().to_string();
    assert_eq!(finding(&in_device), format!("runtime devices[1].containerEdits.{}", expected.as_ref()));
}

#[rstest]
#[case::node_types(|edits: &mut ContainerEdits| {
    edits.device_nodes = ["", "b", "c", "u", "p"].map(|node_type| DeviceNode { node_type: node_type.into(), ..node() }).into();
})]
#[case::permissions(|edits: &mut ContainerEdits| {
    edits.device_nodes = ["", "r", "rwm", "mw"].map(|some| DeviceNode { permissions: some.into(), ..node() }).into();
})]
#[case::env(|edits: &mut ContainerEdits| edits.env = vec!["A=".into(), "A==".into(), "A=b=c".into()])]
#[case::hooks(|edits: &mut ContainerEdits| {
    edits.hooks = validate::HOOK_NAMES.iter().map(|name| Hook { hook_name: (*name).into(), ..hook() }).collect();
})]
#[case::root_clos_id(|edits: &mut ContainerEdits| edits.intel_rdt = clos_id("/"))]
#[case::longest_clos_id(|edits: &mut ContainerEdits| edits.intel_rdt = clos_id(&"a".repeat(4095)))]
#[case::dots_clos_id(|edits: &mut ContainerEdits| edits.intel_rdt = clos_id("..."))]
#[case::same_interface_name_on_both_sides(|edits: &mut ContainerEdits| {
    edits.net_devices = vec![net("a", "b"), net("b", "a")];
})]
fn allowed_values_have_no_findings(#[case] change: fn(&mut ContainerEdits)) {
    let mut spec = small();
    change(&mut spec.container_edits);
    spec.cdi_version = spec.minimum_version().to_string();
    assert_eq!(findings(&spec), Vec::<String>::new());
}

#[test]
fn net_devices_of_two_blocks_may_be_the_same() {
    let mut spec = small();
    spec.cdi_version = "1.1.0".into();
    spec.container_edits.net_devices = vec![net("a", "b")];
    spec.devices[0].container_edits.net_devices = vec![net("a", "b")];
    assert_eq!(findings(&spec), Vec::<String>::new());
}

/// Runtimes parse JSON with a YAML parser, which refuses these characters unless they are escaped, and neither Go's
/// serializer nor this crate's escapes them.
#[rstest]
fn a_character_that_runtimes_cannot_parse_is_found_anywhere(
    #[values('\u{7f}', '\u{80}', '\u{9f}', '\u{fffe}', '\u{ffff}')] c: char,
) {
    let text = format!("a{c}b");
    let mut spec = small();
    spec.annotations = [("key".into(), text.clone())].into();
    spec.devices[0].annotations = [(text.clone(), "value".into())].into();
    let edits = &mut spec.devices[0].container_edits;
    edits.env = vec![format!("A={text}")];
    edits.hooks = vec![Hook { args: vec![text.clone()], env: vec![format!("A={text}")], ..hook() }];
    edits.mounts =
        vec![Mount { options: vec!["bind".into(), text.clone()], fs_type: text.clone(), ..mount("/a", "/b") }];
    edits.net_devices = vec![net(&text, &text)];
    edits.intel_rdt = Some(IntelRdt {
        clos_id: text.clone(),
        l3_cache_schema: text.clone(),
        mem_bw_schema: text.clone(),
        schemata: Some(vec![text.clone()]),
        ..IntelRdt::default()
    });
    edits.device_nodes = vec![DeviceNode { path: format!("/{text}"), host_path: format!("/{text}"), ..node() }];
    spec.cdi_version = "1.1.0".into();
    let error = validate(&spec).unwrap_err();
    let fields: Vec<&str> = error.findings().iter().map(|finding| finding.field.as_str()).collect();
    let annotation = format!("devices[0].annotations[{text}]");
    let edits = [
        "env[0]",
        "deviceNodes[0].path",
        "deviceNodes[0].hostPath",
        "netDevices[0].hostInterfaceName",
        "netDevices[0].name",
        "hooks[0].args[0]",
        "hooks[0].env[0]",
        "mounts[0].options[1]",
        "mounts[0].type",
        "intelRdt.closID",
        "intelRdt.l3CacheSchema",
        "intelRdt.memBwSchema",
        "intelRdt.schemata[0]",
    ]
    .map(|field| format!("devices[0].containerEdits.{field}"));
    let expected: Vec<&str> =
        ["annotations[key]", &annotation].into_iter().chain(edits.iter().map(String::as_str)).collect();
    assert_eq!(fields, expected);
    assert!(error.to_string().contains(&format!("must not have {c:?}: runtimes cannot parse a file with it")));
}

#[test]
fn all_findings_are_reported_in_order() {
    let spec = Spec {
        devices: vec![device("-"), device("-")],
        container_edits: ContainerEdits { mounts: vec![Mount::default()], ..ContainerEdits::default() },
        ..Spec::default()
    };
    let error = validate(&spec).unwrap_err();
    let fields: Vec<&str> = error.findings().iter().map(|finding| finding.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "cdiVersion",
            "kind",
            "devices[0].name",
            "devices[1].name",
            "devices[1].name",
            "containerEdits.mounts[0].hostPath",
            "containerEdits.mounts[0].containerPath",
        ]
    );
    assert_eq!(error.to_string().matches("; ").count(), 6);
}
