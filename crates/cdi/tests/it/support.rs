//! Shared by the tests: a valid spec, and the findings of one.

use drakkar_cdi::{ContainerEdits, Device, Level, Mount, Spec, validate, validate_strict};

/// Reads a golden file.
macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!("../golden/", $name, ".json"))
    };
}
pub(crate) use golden;

/// Returns the smallest spec that is valid at the strict level.
pub(crate) fn small() -> Spec {
    Spec {
        cdi_version: "0.3.0".into(),
        kind: "example.com/gpu".into(),
        devices: vec![device("gpu0")],
        ..Spec::default()
    }
}

pub(crate) fn device(name: &str) -> Device {
    let container_edits = ContainerEdits { env: vec!["GPU=0".into()], ..ContainerEdits::default() };
    Device { name: name.into(), container_edits, ..Device::default() }
}

pub(crate) fn mount(host_path: &str, container_path: &str) -> Mount {
    Mount {
        host_path: host_path.into(),
        container_path: container_path.into(),
        options: vec!["ro".into(), "bind".into()],
        ..Mount::default()
    }
}

/// Returns the findings of both levels, prefixed with `runtime` or `strict`, and checks that the runtime level has its part.
pub(crate) fn findings(spec: &Spec) -> Vec<String> {
    let all = validate_strict(spec).map_or_else(|error| error.findings().to_vec(), |()| Vec::new());
    let runtime = validate(spec).map_or_else(|error| error.findings().to_vec(), |()| Vec::new());
    assert!(runtime.iter().eq(all.iter().filter(|finding| finding.level == Level::Runtime)));
    let level = |level| if level == Level::Runtime { "runtime" } else { "strict" };
    all.iter().map(|finding| format!("{} {finding}", level(finding.level))).collect()
}

/// Returns the only finding.
pub(crate) fn finding(spec: &Spec) -> String {
    let [finding] = findings(spec).try_into().unwrap_or_else(|other| panic!("not one finding: {other:#?}"));
    finding
}
