use rstest::rstest;

use super::*;

/// The gates of KubeVirt 1.9 with their defaults.
#[rstest]
#[case::gpus("GPUsWithDRA", true)]
#[case::host_devices("HostDevicesWithDRA", true)]
#[case::networks("NetworkDevicesWithDRA", false)]
#[case::passthrough("HostDevices", false)]
#[case::vgpu_migration("VGPULiveMigration", false)]
#[case::numa("PCINUMAAwareTopology", false)]
#[case::iommufd("IOMMUFD", false)]
#[case::grace("GraceIOVirtualization", false)]
#[case::sidecar("Sidecar", false)]
#[case::plugins("Plugins", false)]
fn default_and_lists(#[case] name: &str, #[case] default: bool) {
    let gate: Gate = name.parse().unwrap();
    assert_eq!(gate.to_string(), name);
    let is_enabled = |on: &[&str], off: &[&str]| FeatureGates::from_lists(on, off).is_enabled(gate);
    assert_eq!(FeatureGates::default().is_enabled(gate), default, "in neither list the stage decides");
    assert!(is_enabled(&[name], &[]), "in the list of enabled gates");
    assert!(!is_enabled(&[], &[name]), "in the list of disabled gates");
    assert!(is_enabled(&[name], &[name]), "in both lists the gate is on");
    assert_eq!(is_enabled(&["Other", &name.to_lowercase()], &["Another"]), default, "other names have no effect");
}

#[test]
fn one_gate_does_not_change_another() {
    let gates = FeatureGates::default().with(Gate::Iommufd, true).with(Gate::GpusWithDra, false);
    for gate in Gate::ALL {
        let expected = match gate {
            Gate::Iommufd => true,
            Gate::GpusWithDra => false,
            gate => FeatureGates::default().is_enabled(gate),
        };
        assert_eq!(gates.is_enabled(gate), expected, "{gate}");
    }
}

#[test]
fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
    let error = "GpusWithDra".parse::<Gate>().unwrap_err().to_string();
    assert!(error.starts_with(r#"unknown feature gate "GpusWithDra": known are GPUsWithDRA, HostDevicesWithDRA,"#));
}

#[rstest]
#[case::nothing("kind: KubeVirt", FeatureGates::default())]
#[case::null("kind: KubeVirt\nspec: {configuration: {developerConfiguration: null}}", FeatureGates::default())]
#[case::json(
    r#"{"kind": "KubeVirt", "spec": {"configuration": {"developerConfiguration": {"featureGates": ["HostDevices"]}}}}"#,
    FeatureGates::default().with(Gate::HostDevices, true)
)]
fn from_the_kubevirt_object(#[case] text: &str, #[case] expected: FeatureGates) {
    assert_eq!(FeatureGates::from_kubevirt(&KubeVirt::from_yaml(text).unwrap()), expected);
}

#[test]
fn another_object_is_no_kubevirt() {
    let error = KubeVirt::from_yaml("kind: Pod").unwrap_err().to_string();
    assert!(error.contains(r#"expected an object of kind KubeVirt, found kind "Pod""#), "{error}");
}
