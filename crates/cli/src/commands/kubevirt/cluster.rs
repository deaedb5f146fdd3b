//! The configuration of a cluster, from the command line.

use std::path::Path;

use drakkar_kubevirt::vmi::{KubeVirt, PermittedHostDevices};
use drakkar_kubevirt::{Behaviour, FeatureGates};

use super::documents::Documents;
use crate::args::kubevirt::{ClusterOptions, GateOptions};
use crate::commands::input::Input;
use crate::exit::{Code, Failure};

/// What a cluster's configuration decides about a virtual machine.
#[derive(Debug, Clone)]
pub(crate) struct ClusterConfig {
    pub(crate) gates: FeatureGates,
    pub(crate) permitted: Option<PermittedHostDevices>,
    pub(crate) behaviour: Behaviour,
}

impl ClusterConfig {
    pub(crate) fn read(input: &Input, options: &ClusterOptions) -> Result<Self, Failure> {
        Ok(Self { behaviour: options.strictness.into(), ..Self::of_gates(input, &options.gates)? })
    }

    /// Reads the configuration for what is the same in both behaviours.
    pub(crate) fn of_gates(input: &Input, options: &GateOptions) -> Result<Self, Failure> {
        let mut gates = FeatureGates::default();
        let mut permitted = None;
        if let Some(file) = &options.kubevirt {
            let kubevirt = read_kubevirt(input, file)?;
            gates = FeatureGates::from_kubevirt(&kubevirt);
            permitted = kubevirt.spec.configuration.permitted_host_devices;
        }
        for gate in &options.disabled {
            gates = gates.with(*gate, false);
        }
        for gate in &options.enabled {
            gates = gates.with(*gate, true);
        }
        Ok(Self { gates, permitted, behaviour: Behaviour::default() })
    }
}

/// Reads the KubeVirt object of a file, which may be in a list, as `kubectl get` prints it.
fn read_kubevirt(input: &Input, file: &Path) -> Result<KubeVirt, Failure> {
    let documents = Documents::read(input, file)?;
    let mut found = documents.all.iter().filter(|document| document["kind"] == "KubeVirt");
    let Some(object) = found.next().or(documents.all.first()) else {
        let message = format!("{}: no KubeVirt object", file.display());
        return Err(Failure::new(Code::Invalid, message).hint("give the output of kubectl get kubevirt -A -o yaml"));
    };
    // A cluster has one. Two are those of two clusters, or an old and a new version.
    if found.next().is_some() {
        let message = format!("{}: {} KubeVirt objects", file.display(), found.count() + 2);
        return Err(Failure::new(Code::Usage, message).hint("give a file with the one of the cluster"));
    }
    KubeVirt::from_value(object).map_err(|error| documents.invalid(object, &error))
}
