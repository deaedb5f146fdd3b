//! Versions, and the minimum version of each kind of content.

use drakkar_cdi::{CdiVersion, ContainerEdits, DeviceNode, IntelRdt, Mount, NetDevice, Spec};
use rstest::rstest;

use crate::support::small;

#[test]
fn known_versions_are_ordered_and_parse_back() {
    assert!(CdiVersion::KNOWN.is_sorted());
    for version in CdiVersion::KNOWN {
        assert_eq!(version.to_string().parse(), Ok(version));
        assert_eq!(format!("v{version}").parse(), Ok(version));
    }
    assert!(CdiVersion::V0_8_0 < CdiVersion::V1_0_0);
}

#[rstest]
#[case::empty("")]
#[case::future("1.2.0")]
#[case::two_prefixes("vv1.0.0")]
#[case::upper_case_prefix("V1.0.0")]
#[case::short("1.0")]
#[case::space("1.0.0 ")]
#[case::zeros("00.3.0")]
fn unknown_versions_are_refused_with_the_list_of_known_ones(#[case] text: &str) {
    let error = text.parse::<CdiVersion>().unwrap_err().to_string();
    assert!(error.starts_with(&format!("CDI version {text:?}: unknown, must be one of 0.1.0, ")), "{error}");
    assert!(error.ends_with(", 1.1.0"), "{error}");
}

/// Go's library considers only the last device; see the note at `minimum_version`.
#[test]
fn the_first_device_counts_for_the_minimum_version() {
    let mut spec = small();
    spec.devices.push(small().devices.remove(0));
    spec.devices[0].container_edits.mounts = vec![Mount { fs_type: "tmpfs".into(), ..Mount::default() }];
    assert_eq!(spec.minimum_version(), CdiVersion::V0_4_0);
}

fn edits(change: impl FnOnce(&mut ContainerEdits)) -> ContainerEdits {
    let mut edits = ContainerEdits { env: vec!["A=b".into()], ..ContainerEdits::default() };
    change(&mut edits);
    edits
}

fn rdt(rdt: IntelRdt) -> ContainerEdits {
    edits(|edits| edits.intel_rdt = Some(rdt))
}

/// Each case is tested in the edits of the spec, of the only device and of the last device.
#[rstest]
#[case::net_device("1.1.0", edits(|edits| edits.net_devices = vec![NetDevice::default()]))]
#[case::schemata("1.1.0", rdt(IntelRdt { schemata: Some(vec!["L3:0=f".into()]), ..IntelRdt::default() }))]
#[case::empty_schemata("1.1.0", rdt(IntelRdt { schemata: Some(Vec::new()), ..IntelRdt::default() }))]
#[case::monitoring("1.1.0", rdt(IntelRdt { enable_monitoring: true, ..IntelRdt::default() }))]
#[case::rdt("0.7.0", rdt(IntelRdt::default()))]
#[case::gids("0.7.0", edits(|edits| edits.additional_gids = vec![0]))]
#[case::node_host_path("0.5.0", edits(|edits| {
    edits.device_nodes = vec![DeviceNode::default(), DeviceNode { host_path: "/dev/x".into(), ..DeviceNode::default() }];
}))]
#[case::node("0.3.0", edits(|edits| edits.device_nodes = vec![DeviceNode::default()]))]
#[case::mount_type("0.4.0", edits(|edits| {
    edits.mounts = vec![Mount::default(), Mount { fs_type: "tmpfs".into(), ..Mount::default() }];
}))]
#[case::mount("0.3.0", edits(|edits| edits.mounts = vec![Mount::default()]))]
#[case::env("0.3.0", edits(|_| {}))]
fn edits_need_their_version_at_every_level(#[case] version: &str, #[case] edits: ContainerEdits) {
    let mut spec = small();
    spec.container_edits = edits.clone();
    assert_eq!(spec.minimum_version().as_str(), version, "spec");
    let mut spec = small();
    spec.devices[0].container_edits = edits.clone();
    assert_eq!(spec.minimum_version().as_str(), version, "device");
    let mut spec = small();
    spec.devices.push(small().devices.remove(0));
    spec.devices[1].container_edits = edits;
    assert_eq!(spec.minimum_version().as_str(), version, "last device");
}

#[rstest]
#[case::spec_annotation("0.6.0", |spec: &mut Spec| spec.annotations = [("a".into(), "b".into())].into())]
#[case::device_annotation("0.6.0", |spec: &mut Spec| spec.devices[0].annotations = [("a".into(), "b".into())].into())]
#[case::dot_in_class("0.6.0", |spec: &mut Spec| spec.kind = "example.com/gpu.v2".into())]
#[case::dot_in_vendor("0.3.0", |spec: &mut Spec| spec.kind = "example.com/gpu".into())]
#[case::no_class("0.3.0", |spec: &mut Spec| spec.kind = "example.com".into())]
#[case::digit("0.5.0", |spec: &mut Spec| spec.devices[0].name = "0gpu".into())]
#[case::digit_inside("0.3.0", |spec: &mut Spec| spec.devices[0].name = "g0".into())]
#[case::other_digit("0.3.0", |spec: &mut Spec| spec.devices[0].name = "٣".into())]
#[case::no_devices("0.3.0", |spec: &mut Spec| spec.devices.clear())]
#[case::declared_does_not_count("0.3.0", |spec: &mut Spec| spec.cdi_version = "1.1.0".into())]
fn names_and_annotations_need_their_version(#[case] version: &str, #[case] change: fn(&mut Spec)) {
    let mut spec = small();
    change(&mut spec);
    assert_eq!(spec.minimum_version().as_str(), version);
}

#[test]
fn the_highest_requirement_is_the_minimum_version() {
    let mut spec = small();
    spec.devices[0].name = "0".into();
    spec.container_edits.mounts = vec![Mount { fs_type: "none".into(), ..Mount::default() }];
    assert_eq!(spec.minimum_version(), CdiVersion::V0_5_0);
    spec.annotations.insert("a".into(), "b".into());
    assert_eq!(spec.minimum_version(), CdiVersion::V0_6_0);
    spec.container_edits.additional_gids.push(1);
    assert_eq!(spec.minimum_version(), CdiVersion::V0_7_0);
    spec.devices[0].container_edits.net_devices.push(NetDevice::default());
    assert_eq!(spec.minimum_version(), CdiVersion::V1_1_0);
}
