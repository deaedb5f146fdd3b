//! Device taints and the tolerations of requests (KEP-5055).

use k8s_openapi::api::resource::v1::{DeviceTaint, DeviceToleration};

/// Returns the first taint that the tolerations do not tolerate.
pub(super) fn untolerated<'a>(taints: &'a [DeviceTaint], tolerations: &[DeviceToleration]) -> Option<&'a DeviceTaint> {
    taints.iter().find(|taint| {
        // Other effects, such as `None`, do not prevent allocation.
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    })
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let empty_or_equal =
        |given: &Option<String>, own: &str| given.as_deref().is_none_or(|given| given.is_empty() || given == own);
    let value = |value: &Option<String>| value.clone().unwrap_or_default();
    empty_or_equal(&toleration.effect, &taint.effect)
        && empty_or_equal(&toleration.key, &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "Exists" => true,
            "" | "Equal" => value(&toleration.value) == value(&taint.value),
            _ => false,
        }
}

/// Formats a taint as `key=value:effect`.
pub(super) fn text(taint: &DeviceTaint) -> String {
    match taint.value.as_deref() {
        None | Some("") => format!("{}:{}", taint.key, taint.effect),
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
    }
}
