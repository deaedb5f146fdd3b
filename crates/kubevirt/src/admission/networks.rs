//! Rules about networks: those of DRA, and KubeVirt's general ones that a network of a claim can break.

use std::collections::{HashMap, HashSet};

use super::devices::pair;
use super::{CauseType, Report};
use crate::gates::{FeatureGates, Gate};
use crate::vmi::{Interface, Network, VmiSpec};

pub(super) fn validate(spec: &VmiSpec, gates: &FeatureGates, report: &mut Report) {
    let networks: HashMap<&str, &Network> = spec.networks.iter().map(|network| (&*network.name, network)).collect();
    let interfaces = &spec.domain.devices.interfaces;
    // As in KubeVirt, the first interface of a name.
    let by_name = first_by_name(interfaces);
    sources(&spec.networks, report);
    bindings(interfaces, &networks, report);
    unique_networks(&spec.networks, report);
    dra(spec, &by_name, gates, report);
    for (index, network) in spec.networks.iter().enumerate() {
        if !by_name.contains_key(&*network.name) {
            let message = format!("network {:?} has no interface of the same name", network.name);
            report.add(CauseType::Required, format_args!("networks[{index}].name"), message);
        }
    }
    unique_interfaces(interfaces, report);
    for (index, interface) in interfaces.iter().enumerate() {
        if !networks.contains_key(&*interface.name) {
            let message = format!("interface {:?} has no network of the same name", interface.name);
            report.add(CauseType::Invalid, format_args!("domain.devices.interfaces[{index}].name"), message);
        }
    }
    interface_fields(interfaces, report);
}

fn first_by_name(interfaces: &[Interface]) -> HashMap<&str, &Interface> {
    let mut by_name = HashMap::with_capacity(interfaces.len());
    for interface in interfaces {
        by_name.entry(&*interface.name).or_insert(interface);
    }
    by_name
}

/// Every network has exactly one source.
fn sources(networks: &[Network], report: &mut Report) {
    for (index, network) in networks.iter().enumerate() {
        let sources = usize::from(network.pod)
            + usize::from(network.multus.is_some())
            + usize::from(network.resource_claim.is_some());
        let message = match sources {
            0 => "a network needs a type: pod, multus or resourceClaim",
            1 => continue,
            _ => "a network has only one type: pod, multus or resourceClaim",
        };
        report.add(CauseType::Required, format_args!("networks[{index}]"), message);
    }
}

/// Every interface has exactly one binding, and one that its network can have.
fn bindings(interfaces: &[Interface], networks: &HashMap<&str, &Network>, report: &mut Report) {
    for (index, interface) in interfaces.iter().enumerate() {
        let entry = format_args!("domain.devices.interfaces[{index}]");
        if interface.bindings() != 1 {
            let message =
                format!("interface {:?} must have exactly one binding method or binding plugin", interface.name);
            report.add(CauseType::Invalid, entry, message);
        }
        let on_pod_network = networks.get(&*interface.name).is_some_and(|network| network.pod);
        for (binding, present) in [("masquerade", interface.masquerade), ("passtBinding", interface.passt_binding)] {
            if present && !on_pod_network {
                let message = format!("binding {binding} needs the pod network");
                report.add(CauseType::Invalid, format_args!("{entry}.name"), message);
            }
        }
    }
}

fn unique_networks(networks: &[Network], report: &mut Report) {
    let mut seen = HashSet::with_capacity(networks.len());
    for (index, network) in networks.iter().enumerate() {
        if !seen.insert(&*network.name) {
            let message = format!("there is more than one network {:?}: names of networks are unique", network.name);
            report.add(CauseType::Duplicate, format_args!("networks[{index}].name"), message);
        }
    }
}

fn unique_interfaces(interfaces: &[Interface], report: &mut Report) {
    let mut seen = HashSet::with_capacity(interfaces.len());
    for (index, interface) in interfaces.iter().enumerate() {
        if !seen.insert(&*interface.name) {
            let message = format!("network {:?} has more than one interface", interface.name);
            report.add(CauseType::Duplicate, format_args!("domain.devices.interfaces[{index}].name"), message);
        }
    }
}

/// What the domain takes from an interface: its name becomes an alias, its address a place on the guest's bus.
fn interface_fields(interfaces: &[Interface], report: &mut Report) {
    for (index, interface) in interfaces.iter().enumerate() {
        let entry = format_args!("domain.devices.interfaces[{index}]");
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if interface.name.is_empty() || !interface.name.bytes().all(allowed) {
            let message = "the name of an interface has letters, digits, dashes (-) and underscores (_) only";
            report.add(CauseType::Invalid, format_args!("{entry}.name"), message);
        }
        let address = &interface.pci_address;
        if !address.is_empty() && !is_pci_address(address) {
            let message = format!("interface {:?} has a malformed PCI address ({address})", interface.name);
            report.add(CauseType::Invalid, format_args!("{entry}.pciAddress"), message);
        }
    }
}

/// KubeVirt's pattern of a PCI address: `DDDD:BB:SS.F`, hexadecimal, a function from 0 to 7.
fn is_pci_address(text: &str) -> bool {
    let hex = |text: &[u8]| text.iter().all(u8::is_ascii_hexdigit);
    match text.as_bytes() {
        [domain @ .., b':', b1, b2, b':', s1, s2, b'.', b'0'..=b'7'] => {
            domain.len() == 4 && hex(domain) && hex(&[*b1, *b2, *s1, *s2])
        }
        _ => false,
    }
}

/// The rules about networks of claims.
fn dra(spec: &VmiSpec, interfaces: &HashMap<&str, &Interface>, gates: &FeatureGates, report: &mut Report) {
    if spec.networks.iter().all(|network| network.resource_claim.is_none()) {
        return;
    }
    if !gates.is_enabled(Gate::NetworkDevicesWithDra) {
        let gate = Gate::NetworkDevicesWithDra;
        let message = format!("networks has networks of DRA claims, but the feature gate {gate} is not enabled");
        return report.add_gate(gate, "networks", message);
    }
    if spec.networks.iter().any(|network| network.multus.is_some()) {
        let message = "Multus networks and networks of DRA claims in one VMI are not supported";
        return report.add(CauseType::Invalid, "networks", message);
    }
    let claims: HashSet<&str> = spec.resource_claims.iter().map(|claim| &*claim.name).collect();
    let mut pairs = HashSet::new();
    for (index, network) in spec.networks.iter().enumerate() {
        let Some(request) = &network.resource_claim else { continue };
        binding(interfaces, &network.name, report);
        let claim_field = format_args!("networks[{index}].resourceClaim.claimName");
        if request.claim_name.is_empty() {
            report.add(CauseType::Required, claim_field, "claimName is required for a DRA network");
        }
        if request.request_name.is_empty() {
            let field = format_args!("networks[{index}].resourceClaim.requestName");
            report.add(CauseType::Required, field, "requestName is required for a DRA network");
        }
        let Some(pair) = pair(request) else { continue };
        if !claims.contains(&*request.claim_name) {
            let message = format!("the network's claim {:?} is not in resourceClaims", request.claim_name);
            report.add(CauseType::NotFound, claim_field, message);
        }
        if pairs.contains(&pair) {
            let message = format!("duplicate claimName/requestName combination {pair:?}");
            report.add(CauseType::Duplicate, format_args!("networks[{index}]"), message);
        }
        pairs.insert(pair);
    }
}

/// A claim's network is for an SR-IOV interface or a binding plugin. That there is an interface is another rule.
fn binding(interfaces: &HashMap<&str, &Interface>, network: &str, report: &mut Report) {
    if interfaces.get(network).is_some_and(|interface| !interface.sriov && !interface.binding) {
        let message = format!("DRA network {network:?} needs an interface with sriov or a binding plugin");
        report.add(CauseType::Invalid, "domain.devices.interfaces", message);
    }
}
