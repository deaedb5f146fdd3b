//! What holds for every VMI.

use std::collections::HashSet;

use drakkar_kubevirt::admission::{CauseType, as_remarshalled, validate, warnings};
use drakkar_kubevirt::render::render;
use drakkar_kubevirt::vmi::{ClaimRequest, Gpu, HostDevice, Interface, Network, ResourceClaimRef};
use drakkar_kubevirt::vmi::{VirtualMachineInstance, Workload};
use drakkar_kubevirt::{Behaviour, FeatureGates, Gate};
use proptest::prelude::*;

/// Few names, so that they meet.
fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "a", "b", "c", "x.y", "A", "a/b"]).prop_map(str::to_owned)
}

fn request() -> impl Strategy<Value = ClaimRequest> {
    (name(), name()).prop_map(|(claim_name, request_name)| ClaimRequest { claim_name, request_name })
}

fn claim() -> impl Strategy<Value = ResourceClaimRef> {
    (name(), prop::option::of(name()), prop::option::of(name())).prop_map(
        |(name, resource_claim_name, resource_claim_template_name)| ResourceClaimRef {
            name,
            resource_claim_name,
            resource_claim_template_name,
        },
    )
}

fn gpu() -> impl Strategy<Value = Gpu> {
    (name(), name(), prop::option::of(request())).prop_map(|(name, device_name, claim_request)| Gpu {
        name,
        device_name,
        claim_request,
        ..Gpu::default()
    })
}

fn host_device() -> impl Strategy<Value = HostDevice> {
    gpu().prop_map(|Gpu { name, device_name, claim_request, tag, .. }| HostDevice {
        name,
        device_name,
        claim_request,
        tag,
    })
}

fn network() -> impl Strategy<Value = Network> {
    (name(), any::<bool>(), prop::option::of(request())).prop_map(|(name, pod, resource_claim)| Network {
        name,
        pod,
        resource_claim,
        ..Network::default()
    })
}

fn interface() -> impl Strategy<Value = Interface> {
    (name(), any::<[bool; 3]>()).prop_map(|(name, [sriov, masquerade, binding])| Interface {
        name,
        sriov,
        masquerade,
        binding,
        ..Interface::default()
    })
}

fn few<T: std::fmt::Debug>(element: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    prop::collection::vec(element, 0..5)
}

prop_compose! {
    fn workload()(
        claims in few(claim()), gpus in few(gpu()), host_devices in prop::option::of(few(host_device())),
        networks in few(network()), interfaces in few(interface()),
    ) -> Workload {
        let mut vmi = VirtualMachineInstance::default();
        vmi.spec.resource_claims = claims;
        vmi.spec.domain.devices.gpus = gpus;
        vmi.spec.domain.devices.host_devices = host_devices;
        vmi.spec.domain.devices.interfaces = interfaces;
        vmi.spec.networks = networks;
        Workload::Vmi(vmi)
    }
}

/// Mostly valid ones: what devices refer to is most often there.
fn plausible() -> impl Strategy<Value = Workload> {
    let known = || prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned);
    let request = move || {
        (known(), 0..20_u8)
            .prop_map(|(claim_name, number)| ClaimRequest { claim_name, request_name: format!("r{number}") })
    };
    let devices = move || prop::collection::vec(request(), 0..4);
    (devices(), devices(), devices(), 2..=3_usize).prop_map(|(gpus, host_devices, networks, claims)| {
        let mut vmi = VirtualMachineInstance::default();
        let claim = |name: &&str| ResourceClaimRef {
            name: (*name).to_owned(),
            resource_claim_name: Some("x".to_owned()),
            resource_claim_template_name: None,
        };
        vmi.spec.resource_claims = ["a", "b", "c"].iter().take(claims).map(claim).collect();
        let devices = &mut vmi.spec.domain.devices;
        devices.gpus = gpus.into_iter().map(|request| Gpu { claim_request: Some(request), ..Gpu::default() }).collect();
        let host_device = |request| HostDevice { claim_request: Some(request), ..HostDevice::default() };
        devices.host_devices = Some(host_devices.into_iter().map(host_device).collect());
        for (index, request) in networks.into_iter().enumerate() {
            let name = format!("n{index}");
            devices.interfaces.push(Interface { name: name.clone(), sriov: true, ..Interface::default() });
            vmi.spec.networks.push(Network { name, resource_claim: Some(request), ..Network::default() });
        }
        Workload::Vmi(vmi)
    })
}

fn gates() -> impl Strategy<Value = FeatureGates> {
    any::<[bool; 4]>().prop_map(|[gpus, host_devices, networks, passthrough]| {
        FeatureGates::default()
            .with(Gate::GpusWithDra, gpus)
            .with(Gate::HostDevicesWithDra, host_devices)
            .with(Gate::NetworkDevicesWithDra, networks)
            .with(Gate::HostDevices, passthrough)
    })
}

proptest! {
    /// Both behaviours refuse the same, with the same types and fields.
    #[test]
    fn behaviours_agree_on_types_and_fields(workload in workload(), gates in gates()) {
        let found = |behaviour| -> Vec<(CauseType, String)> {
            validate(&workload, &gates, behaviour).into_iter().map(|cause| (cause.reason, cause.field)).collect()
        };
        prop_assert_eq!(found(Behaviour::Strict), found(Behaviour::Extended));
    }

    #[test]
    fn remarshalling_twice_changes_nothing_more(workload in workload()) {
        let once = as_remarshalled(workload);
        prop_assert_eq!(as_remarshalled(once.clone()), once);
    }

    /// What is admitted has a pod: all its claims exist, and no request is there twice.
    #[test]
    fn what_is_admitted_can_be_rendered(workload in plausible()) {
        let gates = Gate::ALL.into_iter().fold(FeatureGates::default(), |gates, gate| gates.with(gate, true));
        prop_assume!(validate(&workload, &gates, Behaviour::Strict).is_empty());
        let pod = render(workload.vmi(), &gates, None).unwrap();
        let names: HashSet<&str> = pod.resource_claims.iter().map(|claim| &*claim.name).collect();
        prop_assert_eq!(names.len(), pod.resource_claims.len());
        prop_assert!(pod.claims.iter().all(|claim| names.contains(&*claim.name)));
        let distinct: HashSet<_> = pod.claims.iter().collect();
        prop_assert_eq!(distinct.len(), pod.claims.len());
    }

    #[test]
    fn warnings_never_fail(workload in workload()) {
        for warning in warnings(&workload) {
            prop_assert!(warning.to_string().starts_with("spec."));
        }
    }
}
