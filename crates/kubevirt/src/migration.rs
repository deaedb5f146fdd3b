//! Live migration: whether the devices of a VMI let it move, as KubeVirt's virt-handler decides it.

use crate::gates::{FeatureGates, Gate};
use crate::vmi::{PermittedHostDevices, VirtualMachineInstance};

/// The reason of the condition `LiveMigratable=False` that devices cause.
pub const REASON: &str = "HostDeviceNotLiveMigratable";

/// Whether the devices of a VMI allow live migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveMigration {
    /// No device forbids it.
    Migratable,
    /// A device forbids it.
    NotMigratable {
        /// Why.
        obstacle: Obstacle,
    },
}

/// A device that forbids live migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// There is a host device.
    #[error("the VMI has a host device, which cannot be migrated")]
    HostDevice,
    /// There is more than one GPU.
    #[error("the VMI has more than one GPU")]
    SeveralGpus,
    /// There is a GPU, and the gate is off.
    #[error("the VMI has a GPU, but the feature gate VGPULiveMigration is not enabled")]
    GateDisabled,
    /// The GPU comes from a claim: KubeVirt looks for its device name among the permitted mediated devices.
    #[error("the VMI has a GPU of a claim, which KubeVirt does not migrate")]
    ClaimedGpu,
    /// The GPU is not a permitted mediated device.
    #[error("the VMI has a GPU that is not among the mediated devices of permittedHostDevices")]
    NotMediated,
}

/// Decides whether the devices of a VMI allow live migration.
///
/// A network of a claim does not forbid it, although the target gets no such device: the source unplugs the device, and
/// the target plugs in those of Multus only.
#[must_use]
pub fn live_migration(
    vmi: &VirtualMachineInstance,
    gates: &FeatureGates,
    permitted: Option<&PermittedHostDevices>,
) -> LiveMigration {
    let devices = &vmi.spec.domain.devices;
    let obstacle = match &*devices.gpus {
        _ if !devices.host_devices().is_empty() => Some(Obstacle::HostDevice),
        [] => None,
        [_, _, ..] => Some(Obstacle::SeveralGpus),
        [_] if !gates.is_enabled(Gate::VgpuLiveMigration) => Some(Obstacle::GateDisabled),
        [gpu] if gpu.device_name.is_empty() => Some(Obstacle::ClaimedGpu),
        [gpu] if permitted.is_some_and(|permitted| permitted.permits_mediated(&gpu.device_name)) => None,
        [_] => Some(Obstacle::NotMediated),
    };
    obstacle.map_or(LiveMigration::Migratable, |obstacle| LiveMigration::NotMigratable { obstacle })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::vmi::Workload;

    const NONE: Option<Obstacle> = None;

    #[rstest]
    #[case::no_device("{}", true, NONE)]
    #[case::empty_list("{hostDevices: []}", true, NONE)]
    #[case::host_device("{hostDevices: [{name: h, deviceName: x/y}]}", true, Some(Obstacle::HostDevice))]
    #[case::dra_host_device(
        "{hostDevices: [{name: h, claimName: c, requestName: r}]}",
        true,
        Some(Obstacle::HostDevice)
    )]
    #[case::two_gpus(
        "{gpus: [{name: a, deviceName: v/mdev}, {name: b, deviceName: v/mdev}]}",
        true,
        Some(Obstacle::SeveralGpus)
    )]
    #[case::gate_off("{gpus: [{name: a, deviceName: v/mdev}]}", false, Some(Obstacle::GateDisabled))]
    #[case::vgpu("{gpus: [{name: a, deviceName: v/mdev}]}", true, NONE)]
    #[case::whole_gpu("{gpus: [{name: a, deviceName: v/pci}]}", true, Some(Obstacle::NotMediated))]
    #[case::dra_gpu("{gpus: [{name: a, claimName: c, requestName: r}]}", true, Some(Obstacle::ClaimedGpu))]
    #[case::dra_gpu_gate_off("{gpus: [{name: a, claimName: c, requestName: r}]}", false, Some(Obstacle::GateDisabled))]
    #[case::dra_network("{interfaces: [{name: n, sriov: {}}]}", true, NONE)]
    fn devices_and_gate(#[case] devices: &str, #[case] gate: bool, #[case] expected: Option<Obstacle>) {
        let yaml = format!(
            "{{kind: VirtualMachineInstance, spec: {{domain: {{devices: {devices}}}, \
             networks: [{{name: n, resourceClaim: {{claimName: c, requestName: vf}}}}]}}}}"
        );
        let workload = Workload::from_yaml(&yaml).unwrap();
        let gates = FeatureGates::default().with(Gate::VgpuLiveMigration, gate);
        let permitted: PermittedHostDevices = serde_saphyr::from_str(
            "{pciHostDevices: [{resourceName: v/pci}], mediatedDevices: [{resourceName: v/mdev}]}",
        )
        .unwrap();
        let expected = expected.map_or(LiveMigration::Migratable, |obstacle| LiveMigration::NotMigratable { obstacle });
        assert_eq!(live_migration(workload.vmi(), &gates, Some(&permitted)), expected);
    }

    /// Without a list of permitted devices, no GPU is known to be mediated.
    #[test]
    fn nothing_permitted_is_nothing_mediated() {
        let yaml = "{kind: VirtualMachineInstance, spec: {domain: {devices: {gpus: [{name: a, deviceName: v/mdev}]}}}}";
        let gates = FeatureGates::default().with(Gate::VgpuLiveMigration, true);
        let migration = live_migration(Workload::from_yaml(yaml).unwrap().vmi(), &gates, None);
        assert_eq!(migration, LiveMigration::NotMigratable { obstacle: Obstacle::NotMediated });
    }
}
