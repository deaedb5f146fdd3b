//! Device taints and the tolerations of requests (KEP-5055).

use k8s_openapi::api::resource::v1::{DeviceTaint, DeviceToleration};

/// The first taint that keeps a request without a fitting toleration from getting the device.
pub(super) fn preventing<'a>(taints: &'a [DeviceTaint], tolerations: &[DeviceToleration]) -> Option<&'a DeviceTaint> {
    taints.iter().find(|taint| {
        // Other effects, `None` among them, keep nobody away.
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    })
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let all_or =
        |given: &Option<String>, own: &str| given.as_deref().is_none_or(|given| given.is_empty() || given == own);
    let value = |of: &Option<String>| of.clone().unwrap_or_default();
    all_or(&toleration.effect, &taint.effect)
        && all_or(&toleration.key, &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "Exists" => true,
            "" | "Equal" => value(&toleration.value) == value(&taint.value),
            _ => false,
        }
}

/// `key=value:effect`.
pub(super) fn text(taint: &DeviceTaint) -> String {
    match taint.value.as_deref() {
        None | Some("") => format!("{}:{}", taint.key, taint.effect),
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
    }
}
