//! Rules of KubeVirt that are not about DRA and that DRA devices can break. Their fields are not paths of the object, in
//! KubeVirt as here.

use super::{CauseType, Report};
use crate::gates::{FeatureGates, Gate};
use crate::vmi::{VgpuDisplay, VmiSpec};

pub(super) fn validate(spec: &VmiSpec, gates: &FeatureGates, report: &mut Report) {
    let strict = report.behaviour.is_strict();
    let displays = spec.domain.devices.gpus.iter().filter_map(|gpu| gpu.display());
    if displays.filter(|display| has_frame_buffer(display, strict)).count() > 1 {
        report.add(CauseType::Invalid, "GPUs", "only one display may have ramFB");
    }
    if spec.domain.devices.host_devices.is_some() && !gates.is_enabled(Gate::HostDevices) {
        let message = format!("host devices need the feature gate {}, which is not enabled", Gate::HostDevices);
        report.add_gate(Gate::HostDevices, "HostDevices", message);
    }
}

/// KubeVirt 1.9 skips a `ramFB` without `enabled`: in a cluster its defaults have been applied before.
fn has_frame_buffer(display: &VgpuDisplay, strict: bool) -> bool {
    let unset = display.ram_fb.as_ref().is_some_and(|ram_fb| ram_fb.enabled.is_none());
    display.is_ram_fb_enabled() && !(strict && unset)
}
