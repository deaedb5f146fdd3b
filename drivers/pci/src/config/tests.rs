//! Tests of configurations, valid and invalid.

use rstest::rstest;

use super::*;

fn error(yaml: &str) -> String {
    Config::from_yaml(yaml).unwrap_err().to_string()
}

fn with(devices: &str) -> String {
    format!("apiVersion: pci.drakkar.dev/v1alpha1\nkind: DriverConfig\ndevices:\n{devices}\n")
}

#[test]
fn a_full_configuration_is_read() {
    let config = Config::from_yaml(&with(
        "- name: gpus
  match:
    addresses: ['0000:6?:*', '0000:3B:00.0']
    ids: ['10de:*', 10de:2236]
    classes: [display, nvme, '0x0302']
    drivers: [nvidia, none, 'mlx5_*']
    cel: device.attributes['pci.drakkar.dev'].vendorID == '10de'
  mode: kernel
  iommuBackend: iommufd
  virtualFunctions: {count: max, onDemand: false}
  mdevTypes: ['nvidia-*']
  companions: bind
  allowInUse: ['0000:65:00.0']
  attributes: {team: ml, rank: 3, fast: true}",
    ))
    .unwrap();
    let rule = &config.devices[0];
    assert_eq!(rule.mode, crate::Mode::Kernel);
    assert_eq!(rule.virtual_functions, Some(VirtualFunctions { count: Count::Max, on_demand: false }));
    assert!(rule.publishes_type("nvidia-63", None));
    assert!(!rule.publishes_type("i915-1", None));
    assert_eq!(rule.attributes["rank"], 3.into());
    assert_eq!(rule.attributes["fast"], true.into());
}

#[rstest]
#[case::no_version("kind: DriverConfig\n", "missing field `apiVersion`")]
#[case::version(
    "apiVersion: v2\nkind: DriverConfig\n",
    "apiVersion is \"v2\": this driver reads \"pci.drakkar.dev/v1alpha1\""
)]
#[case::kind("apiVersion: pci.drakkar.dev/v1alpha1\nkind: Pod\n", "kind is \"Pod\": it must be \"DriverConfig\"")]
#[case::field(&with("- matches: {}"), "line 4, column 3: devices[0].matches: unknown field `matches`, expected one of name, match, mode")]
#[case::empty_match(&with("- match: {}"), "devices[0].match: it matches everything")]
#[case::id(&with("- match: {ids: ['10de']}"), "line 4, column 17: devices[0].match.ids[0]: \"10de\" is no pattern for ids")]
#[case::class(&with("- match: {classes: [displays]}"), "devices[0].match.classes[0]: \"displays\" is no class")]
#[case::address(&with("- match: {addresses: ['65:00.0']}"), "with its domain")]
#[case::glob(&with("- match: {addresses: ['0000:[65:00.0']}"), "is no pattern")]
#[case::braces(&with(&format!("- match: {{addresses: ['{}0000:65:00.0{}']}}", "{".repeat(100), "}".repeat(100))), "nests braces deeper than 8")]
#[case::long_braces(&with(&format!("- match: {{addresses: ['{}{}']}}", "{".repeat(260), "}".repeat(260))), "a pattern has at most 256")]
#[case::long(&with(&format!("- match: {{drivers: ['{}']}}", "?".repeat(257))), "has 257 bytes: a pattern has at most 256")]
#[case::cel(&with("- match: {cel: 'device.name == 1'}"), "devices[0].match.cel: CEL compile error")]
#[case::mode(&with("- match: {classes: [nvme]}\n  mode: vfio-pci"), "devices[0].mode: unknown variant `vfio-pci`, expected one of vfio, kernel, none")]
#[case::count(&with("- match: {classes: [nvme]}\n  virtualFunctions: {count: 0}"), "a number from 1 to 65535, or max")]
#[case::in_use(&with("- match: {classes: [nvme]}\n  allowInUse: ['*']"), "patterns are not allowed here")]
#[case::own(&with("- match: {classes: [nvme]}\n  attributes: {vendor: me}"), "vendor is an attribute that the driver publishes itself")]
#[case::attribute(&with("- match: {classes: [nvme]}\n  attributes: {'a b': me}"), "a b")]
#[case::twice(&with("- {name: a, match: {classes: [nvme]}}\n- {name: a, match: {classes: [nvme]}}"), "two rules are called \"a\"")]
#[case::yaml("devices: [", "line 1")]
fn an_error_names_place_field_and_remedy(#[case] yaml: &str, #[case] expected: &str) {
    let message = error(yaml);
    assert!(message.contains(expected), "{message}");
}

#[test]
fn the_configuration_of_the_readme_is_valid_and_has_every_field() {
    let readme = include_str!("../../README.md");
    let blocks = readme.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let written: Vec<&str> = blocks.filter(|block| block.contains("kind: DriverConfig")).collect();
    assert_eq!(written.len(), 1);
    let config = Config::from_yaml(written[0]).unwrap();
    assert_eq!(config.devices.len(), 2);
    let fields = ["name", "match", "mode", "iommuBackend", "virtualFunctions", "mdevTypes", "companions", "allowInUse"];
    let of_match = ["addresses", "ids", "classes", "drivers", "parents", "cel"];
    for field in fields.iter().chain(&of_match).chain(&["attributes", "exclude"]) {
        assert!(written[0].contains(&format!("{field}:")), "{field}");
    }
}

#[rstest]
#[case::wildcards("?".repeat(256))]
#[case::stars("*".repeat(256))]
#[case::any_directories("**/".repeat(85))]
#[case::classes("[!a-z]".repeat(42))]
#[case::alternatives(format!("{{{}}}", "?,".repeat(127)))]
#[case::nested(format!("{}a{}", "{*,".repeat(8), "}".repeat(8)))]
#[case::nested_stars(format!("{}{}", "{**/".repeat(8), "}".repeat(8)))]
fn the_most_expensive_patterns_are_compiled(#[case] pattern: String) {
    Config::from_yaml(&with(&format!("- match: {{drivers: ['{pattern}']}}"))).unwrap();
}

#[test]
fn a_pipe_is_refused_without_waiting_for_a_writer() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for path in [pipe.as_path(), Path::new("/dev/zero"), directory.path()] {
        let error = Config::from_file(path).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}

#[rstest]
#[case::patterns(format!("- match: {{drivers: [{}]}}", vec!["'?*'"; 30_000].join(",")))]
#[case::rules(vec!["- match: {drivers: ['*']}"; 30_000].join("\n"))]
#[case::repeated_patterns(format!(
    "- match: {{drivers: &list [{}]}}\n{}", vec!["'?*'"; 50].join(","), vec!["- match: {drivers: *list}"; 90].join("\n")
))]
#[case::repeated_expression(format!(
    "- match: {{cel: &text \"{}true\"}}\n{}", "true && ".repeat(20), vec!["- match: {cel: *text}"; 1000].join("\n")
))]
fn a_file_that_takes_long_to_read_is_refused(#[case] rules: String) {
    let message = error(&with(&rules));
    assert!(message.contains("too large: a configuration has at most 4000 values"), "{message}");
}

#[test]
fn a_large_configuration_is_read() {
    let rule = "- match: {ids: ['10de:2236', '10de:2237'], drivers: [nvidia, nouveau, 'vfio*']}\n  mode: vfio\n";
    assert_eq!(Config::from_yaml(&with(&rule.repeat(250))).unwrap().devices.len(), 250);
    let aliases = format!("- match: {{ids: &gpus ['10de:*']}}\n{}", "- match: {ids: *gpus}\n".repeat(50));
    assert_eq!(Config::from_yaml(&with(&aliases)).unwrap().devices.len(), 51);
}
