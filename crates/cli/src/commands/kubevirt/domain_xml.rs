//! `drakkar kubevirt domain-xml`: the host devices of a virtual machine, or a domain with them.

use std::fmt::Display;

use drakkar_kubevirt::device_plugin::Environment;
use drakkar_kubevirt::hook::{HookError, HookOptions, annotated_devices, mutate_domain};
use drakkar_kubevirt::hostdev::{HostDev, Options, convert};
use drakkar_kubevirt::placement::{HostTopology, numa};
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::vmi::VirtualMachineInstance;
use drakkar_kubevirt::xml::{self, Form, edit};
use drakkar_kubevirt::{Behaviour, Gate};

use super::cluster::ClusterConfig;
use super::devices::{failure, note, note_released};
use crate::exit::{Code, Failure};
use crate::output::plain;

pub(crate) fn run(
    vmi: &VirtualMachineInstance,
    cluster: &ClusterConfig,
    resolver: &Resolver,
    domain: Option<String>,
    host: &HostTopology,
) -> Result<(), Failure> {
    let environment = Environment::of_process();
    // In a domain the hook's own code adds its devices.
    let options = if domain.is_some() { Options::default() } else { Options::with_annotated() };
    let converted = convert(vmi, resolver, &environment, &options);
    note_released(vmi, resolver, &environment, &converted);
    let mut devices = converted.into_result().map_err(|error| failure(&error))?;
    let text = match domain {
        Some(domain) => {
            let domain = with_devices(&domain, vmi, cluster, &mut devices, host)?;
            with_annotated(domain, vmi, resolver, host)?
        }
        None => {
            if is_placed(vmi, cluster) {
                note("the devices are not placed on the guest's NUMA nodes: that needs the domain, use --domain FILE");
            }
            let mut text = xml::write(&devices, form(cluster));
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text
        }
    };
    Ok(plain(|writer| writer.write_all(text.as_bytes()))?)
}

fn form(cluster: &ClusterConfig) -> Form {
    match cluster.behaviour {
        Behaviour::Extended => Form::Canonical,
        Behaviour::Strict => Form::Kubevirt,
    }
}

/// Returns whether KubeVirt places the devices by their NUMA nodes.
fn is_placed(vmi: &VirtualMachineInstance, cluster: &ClusterConfig) -> bool {
    let is_dedicated = vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement);
    cluster.gates.is_enabled(Gate::PciNumaAwareTopology) && is_dedicated
}

/// Returns a domain with KubeVirt's devices.
fn with_devices(
    domain: &str,
    vmi: &VirtualMachineInstance,
    cluster: &ClusterConfig,
    devices: &mut [HostDev],
    host: &HostTopology,
) -> Result<String, Failure> {
    let mut controllers = Vec::new();
    if is_placed(vmi, cluster) {
        let cpu = vmi.spec.domain.cpu.as_ref();
        let is_strict = cpu.is_some_and(|cpu| cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough));
        let guest = edit::topology(domain).map_err(invalid)?;
        let options = numa::NumaOptions::new(is_strict, cluster.behaviour);
        let placement = numa::place(devices, &guest, host, options).map_err(invalid)?;
        for warning in &placement.warnings {
            note(warning);
        }
        controllers = placement.controllers;
    }
    let domain = edit::put_controllers_as(domain, &controllers, form(cluster)).map_err(invalid)?;
    edit::put_hostdevs_as(&domain, devices, form(cluster)).map_err(invalid)
}

/// Returns a domain as the hook changes it, if the VMI has its annotations.
fn with_annotated(
    domain: String,
    vmi: &VirtualMachineInstance,
    resolver: &Resolver,
    host: &HostTopology,
) -> Result<String, Failure> {
    let is_hooked = !matches!(annotated_devices(&vmi.metadata.annotations), Ok(devices) if devices.is_empty());
    if !is_hooked || resolver.behaviour().is_strict() {
        return Ok(domain);
    }
    let mut options = HookOptions::default();
    options.host = host.clone();
    match mutate_domain(vmi, &domain, resolver, &options) {
        Ok(changed) => Ok(changed.into_owned()),
        Err(HookError::Device { source }) => Err(failure(&source)),
        Err(error) => Err(Failure::new(Code::Invalid, error.to_string())),
    }
}

fn invalid(error: impl Display) -> Failure {
    Failure::new(Code::Invalid, format!("the domain: {error}"))
}
