//! The strict rules, beyond those of runtimes.

use drakkar_cdi::{ContainerEdits, DeviceNode, Hook, Mount, Spec};
use rstest::rstest;

use crate::support::{finding, findings, mount, small};

const CLEAN: &str = "must be clean: no '.' or '..', no doubled or trailing slash";

#[rstest]
#[case::version_too_high(
    |spec: &mut Spec| spec.cdi_version = "0.6.0".into(),
    "cdiVersion: version 0.6.0 is higher than needed: 0.3.0 suffices, and older runtimes know it"
)]
#[case::version_prefix(
    |spec: &mut Spec| spec.cdi_version = "v0.3.0".into(),
    "cdiVersion: version must be written without the leading 'v'"
)]
#[case::vendor_upper_case(
    |spec: &mut Spec| spec.kind = "Example.com/gpu".into(),
    "kind: \"Example.com\" is not valid: must be lower-case letters, digits, '-' and '.', every part between dots starting and ending with a letter or digit"
)]
#[case::long_vendor(
    |spec: &mut Spec| spec.kind = format!("{}/gpu", "v".repeat(254)),
    format!("kind: \"{}\"… (254 bytes) is not valid: must be no more than 253 bytes, has 254", "v".repeat(80))
)]
#[case::long_class(
    |spec: &mut Spec| spec.kind = format!("example.com/{}", "c".repeat(64)),
    format!("kind: \"{}\" is not valid: must be no more than 63 bytes, has 64", "c".repeat(64))
)]
fn strict_names_and_versions_follow_the_specification(
    #[case] change: fn(&mut Spec),
    #[case] expected: impl AsRef<str>,
) {
    let mut spec = small();
    change(&mut spec);
    assert_eq!(finding(&spec), format!("strict {}", expected.as_ref()));
}

fn hook(path: &str, timeout: Option<i64>) -> Hook {
    Hook { hook_name: "poststop".into(), path: path.into(), timeout, ..Hook::default() }
}

#[rstest]
#[case::relative_source(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("a", "/b")],
    "mounts[0].hostPath: \"a\" is not valid: must be absolute"
)]
#[case::unclean_source(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("/a/../b", "/b")],
    format!("mounts[0].hostPath: \"/a/../b\" is not valid: {CLEAN}")
)]
#[case::relative_target(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("/a", "b")],
    "mounts[0].containerPath: \"b\" is not valid: must be absolute"
)]
#[case::unclean_target(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("/a", "/b/")],
    format!("mounts[0].containerPath: \"/b/\" is not valid: {CLEAN}")
)]
#[case::root_target(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("/a", "/")],
    "mounts[0].containerPath: \"/\" is not valid: must not be the root directory"
)]
#[case::control_character(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("/a", "/b\tc")],
    "mounts[0].containerPath: \"/b\\tc\" is not valid: must have no control characters"
)]
#[case::proc(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("/proc/x", "/proc/x")],
    "mounts[0].containerPath: \"/proc/x\" is not valid: must not be in /proc or /sys"
)]
#[case::sys(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("/sys/x", "/sys")],
    "mounts[0].containerPath: \"/sys\" is not valid: must not be in /proc or /sys"
)]
#[case::same_target(
    |edits: &mut ContainerEdits| edits.mounts = vec![mount("/a", "/b"), mount("/c", "/b")],
    "mounts[1].containerPath: \"/b\" is a duplicate"
)]
#[case::no_bind(
    |edits: &mut ContainerEdits| edits.mounts = vec![Mount { options: vec!["ro".into()], ..mount("/a", "/b") }],
    "mounts[0].options: must have \"bind\" or \"rbind\": runtimes do not add it, and without it the mount fails"
)]
#[case::relative_node(
    |edits: &mut ContainerEdits| edits.device_nodes = vec![DeviceNode { path: "dev/x".into(), ..DeviceNode::default() }],
    "deviceNodes[0].path: \"dev/x\" is not valid: must be absolute"
)]
#[case::relative_host_node(
    |edits: &mut ContainerEdits| edits.device_nodes = vec![DeviceNode { path: "/dev/x".into(), host_path: "x".into(), ..DeviceNode::default() }],
    "deviceNodes[0].hostPath: \"x\" is not valid: must be absolute"
)]
#[case::no_permissions(
    |edits: &mut ContainerEdits| edits.device_nodes = vec![DeviceNode { path: "/dev/x".into(), permissions: "none".into(), ..DeviceNode::default() }],
    "deviceNodes[0].permissions: \"none\" is refused by runtimes with a CDI library before 1.1.1"
)]
#[case::relative_hook(
    |edits: &mut ContainerEdits| edits.hooks = vec![hook("hook", None)],
    "hooks[0].path: \"hook\" is not valid: must be absolute"
)]
#[case::no_time(
    |edits: &mut ContainerEdits| edits.hooks = vec![hook("/hook", Some(0))],
    "hooks[0].timeout: 0 is not valid: must be greater than zero"
)]
#[case::folded(
    |edits: &mut ContainerEdits| edits.env = vec!["A=a\u{85}b".into()],
    "env[0]: must not have '\\u{85}': runtimes parse it as a space"
)]
fn strict_edits_work_in_every_runtime(#[case] change: fn(&mut ContainerEdits), #[case] expected: impl AsRef<str>) {
    let mut spec = small();
    change(&mut spec.container_edits);
    spec.cdi_version = spec.minimum_version().to_string();
    assert_eq!(finding(&spec), format!("strict containerEdits.{}", expected.as_ref()));
    let mut spec = small();
    change(&mut spec.devices[0].container_edits);
    spec.cdi_version = spec.minimum_version().to_string();
    assert_eq!(finding(&spec), format!("strict devices[0].containerEdits.{}", expected.as_ref()));
}

#[rstest]
#[case::name("model", true)]
#[case::upper_case("Example.COM/Model_1.x-y", true)]
#[case::longest(&format!("{}/{}", "p".repeat(253), "n".repeat(63)), true)]
#[case::empty("", false)]
#[case::no_prefix("/model", false)]
#[case::no_name("example.com/", false)]
#[case::two_slashes("a/b/c", false)]
#[case::underscore_in_prefix("a_b/c", false)]
#[case::dots_in_prefix("a..b/c", false)]
#[case::dash_first("-a", false)]
#[case::dot_last("a.", false)]
#[case::space("a b", false)]
#[case::umlaut("ä", false)]
#[case::long_prefix(&format!("{}/n", "p".repeat(254)), false)]
#[case::long_name(&"n".repeat(64), false)]
fn annotations_follow_the_rules_of_kubernetes(#[case] key: &str, #[case] valid: bool) {
    let mut spec = small();
    spec.cdi_version = "0.6.0".into();
    spec.devices[0].annotations = [(key.into(), "value".into())].into();
    match valid {
        true => assert_eq!(findings(&spec), Vec::<String>::new()),
        false => assert!(finding(&spec).starts_with(&format!("strict devices[0].annotations[{key}]: \"")), "{key}"),
    }
}

#[test]
fn annotations_have_a_maximum_size() {
    let mut spec = small();
    spec.cdi_version = "0.6.0".into();
    spec.annotations = [("a".into(), "x".repeat(256 * 1024 - 1))].into();
    assert_eq!(findings(&spec), Vec::<String>::new());
    spec.annotations.insert("b".into(), String::new());
    assert_eq!(finding(&spec), "strict annotations: too long: 262145 bytes in total, at most 262144 are allowed");
}
