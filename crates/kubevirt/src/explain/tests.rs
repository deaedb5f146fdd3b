use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::behaviour::Behaviour;
use crate::vmi::{ResourceClaimRef, Workload};

const BASE: &str = "var/run/kubernetes.io/dra-device-attributes";

fn vmi(spec: &Value) -> VirtualMachineInstance {
    let document = json!({"kind": "VirtualMachineInstance", "metadata": {"name": "v"}, "spec": spec});
    Workload::from_json(&document.to_string()).unwrap().vmi().clone()
}

fn one_gpu() -> VirtualMachineInstance {
    vmi(&json!({
        "resourceClaims": [{"name": "dyn", "resourceClaimTemplateName": "tmpl"}],
        "domain": {"devices": {"gpus": [{"name": "g", "claimName": "dyn", "requestName": "gpu"}]}},
    }))
}

fn write_file(root: &Path, devices: &[Value]) {
    let directory = root.join(BASE).join("resourceclaimtemplates/dyn/gpu");
    fs::create_dir_all(&directory).unwrap();
    let document = json!({
        "kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v1alpha1", "metadata": {"name": "c"},
        "podClaimName": "dyn", "requests": [{"name": "gpu", "devices": devices}],
    });
    fs::write(directory.join("gpu.example.com-metadata.json"), document.to_string()).unwrap();
}

fn device(address: &str) -> Value {
    json!({"driver": "gpu.example.com", "pool": "n", "name": "gpu-0",
        "attributes": {"resource.kubernetes.io/pciBusID": {"string": address}, "resource.kubernetes.io/numaNode": {"int": 1}}})
}

fn explain_all(vmi: &VirtualMachineInstance, root: &Path, behaviour: Behaviour) -> Vec<DeviceExplanation> {
    let resolver = Resolver::with_root(root).unwrap().with_behaviour(behaviour);
    explain(vmi, &ClaimObjects::default(), &resolver, &Environment::default())
}

fn explained(vmi: &VirtualMachineInstance, objects: &ClaimObjects, root: &Path) -> DeviceExplanation {
    let resolver = Resolver::with_root(root).unwrap();
    let mut all = explain(vmi, objects, &resolver, &Environment::default());
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn step<'a>(explanation: &'a DeviceExplanation, subject: &str) -> &'a Step {
    explanation.steps.iter().find(|step| step.subject == subject).unwrap_or_else(|| panic!("{explanation:?}"))
}

#[test]
fn a_device_is_followed_to_its_xml() {
    let root = TempDir::new().unwrap();
    write_file(root.path(), &[device("0000:65:00.0")]);
    let gpu = explained(&one_gpu(), &ClaimObjects::default(), root.path());
    assert_eq!(gpu.outcome(), Outcome::Fine, "{gpu:?}");
    assert_eq!(step(&gpu, "claim").text, "dyn: a claim per pod, from template tmpl");
    assert!(step(&gpu, "file").text.ends_with("/dyn/gpu/gpu.example.com-metadata.json"));
    assert_eq!(step(&gpu, "device").text, "gpu.example.com/n/gpu-0: PCI 0000:65:00.0, NUMA node 1");
    assert!(step(&gpu, "xml").text.starts_with("<hostdev mode='subsystem' type='pci'"), "{gpu:?}");
}

#[test]
fn without_files_the_remedy_depends_on_the_container() {
    let root = TempDir::new().unwrap();
    let elsewhere = explained(&one_gpu(), &ClaimObjects::default(), root.path());
    assert_eq!(elsewhere.outcome(), Outcome::NotFound);
    assert!(step(&elsewhere, "file").remedy.as_ref().unwrap().contains("not a launcher's container"));
    fs::create_dir_all(root.path().join(BASE)).unwrap();
    let launcher = explained(&one_gpu(), &ClaimObjects::default(), root.path());
    assert!(step(&launcher, "file").remedy.as_ref().unwrap().contains("--enable-device-metadata"));
}

#[test]
fn several_devices_work_here_and_are_a_warning_about_released_kubevirt() {
    let root = TempDir::new().unwrap();
    write_file(root.path(), &[device("0000:65:00.0"), device("0000:66:00.0")]);
    let gpu = explained(&one_gpu(), &ClaimObjects::default(), root.path());
    assert_eq!(gpu.outcome(), Outcome::Warning);
    assert!(step(&gpu, "kubevirt").text.contains("2 devices"), "{gpu:?}");
    assert_eq!(step(&gpu, "xml").text.matches("<hostdev").count(), 2);
}

#[test]
fn a_missing_claim_names_those_that_there_are() {
    let mut vmi = one_gpu();
    vmi.spec.resource_claims[0].name = "other".into();
    let gpu = explained(&vmi, &ClaimObjects::default(), Path::new("/"));
    assert_eq!(gpu.outcome(), Outcome::Error);
    assert_eq!(step(&gpu, "claim").text, "dyn is not in spec.resourceClaims, it has other");
}

#[test]
fn requests_are_checked_against_known_templates() {
    let root = TempDir::new().unwrap();
    let template = |request: Value| {
        let object = json!({"kind": "ResourceClaimTemplate", "metadata": {"name": "tmpl"},
            "spec": {"spec": {"devices": {"requests": [request]}}}});
        ClaimObjects::among([&json!({"kind": "Pod"}), &object])
    };
    let other = template(json!({"name": "nic", "exactly": {"deviceClassName": "c"}}));
    let gpu = explained(&one_gpu(), &other, root.path());
    assert_eq!(step(&gpu, "request").text, "gpu is not a request of the claim, it has nic");
    assert_eq!(gpu.outcome(), Outcome::Error);
    let one = template(json!({"name": "gpu", "exactly": {"deviceClassName": "c"}}));
    assert_eq!(step(&explained(&one_gpu(), &one, root.path()), "request").text, "gpu: one device of class c");
    for (request, expected) in [
        (json!({"name": "gpu", "exactly": {"deviceClassName": "c", "count": 3}}), "3 devices"),
        (json!({"name": "gpu", "exactly": {"deviceClassName": "c", "allocationMode": "All"}}), "all devices"),
        (json!({"name": "gpu", "firstAvailable": [{"name": "a", "deviceClassName": "c"}]}), "firstAvailable"),
    ] {
        let gpu = explained(&one_gpu(), &template(request), root.path());
        let step = step(&gpu, "request");
        assert_eq!(step.outcome, Outcome::Warning);
        assert!(step.text.contains(expected), "{gpu:?}");
    }
}

#[test]
fn devices_of_device_plugins_come_from_their_variables() {
    let vmi = vmi(&json!({"domain": {"devices": {"gpus": [{"name": "g", "deviceName": "vendor.example/gpu"}]}}}));
    let gpu = explained(&vmi, &ClaimObjects::default(), Path::new("/"));
    assert!(step(&gpu, "device").text.contains("PCI_RESOURCE_VENDOR_EXAMPLE_GPU"), "{gpu:?}");
    assert_eq!(gpu.outcome(), Outcome::NotFound, "no variable is set");
    let environment = [("PCI_RESOURCE_VENDOR_EXAMPLE_GPU", "0000:65:00.0")].into_iter().collect();
    let all = explain(&vmi, &ClaimObjects::default(), &Resolver::new(), &environment);
    assert_eq!(all[0].outcome(), Outcome::Fine, "{all:?}");
    assert!(step(&all[0], "xml").text.contains("bus='0x65'"), "{all:?}");
    let environment = [("PCI_RESOURCE_VENDOR_EXAMPLE_GPU", "")].into_iter().collect();
    let all = explain(&vmi, &ClaimObjects::default(), &Resolver::new(), &environment);
    assert_eq!(all[1].outcome(), Outcome::Error, "a variable without a device: {all:?}");
}

/// Two GPUs: `g` from the template, and `h` from the claim `old`, each with one device.
fn two_gpus(root: &Path, first: &[Value], second: &[Value]) -> VirtualMachineInstance {
    let mut vmi = one_gpu();
    let spec = &mut vmi.spec;
    let mut gpu = spec.domain.devices.gpus[0].clone();
    gpu.name = "h".into();
    gpu.claim_request.as_mut().unwrap().claim_name = "old".into();
    spec.domain.devices.gpus.push(gpu);
    spec.resource_claims.push(ResourceClaimRef {
        name: "old".into(),
        resource_claim_name: Some("old".into()),
        ..ResourceClaimRef::default()
    });
    write_file(root, second);
    let directory = root.join(BASE);
    fs::create_dir_all(directory.join("resourceclaims/old")).unwrap();
    fs::rename(directory.join("resourceclaimtemplates/dyn/gpu"), directory.join("resourceclaims/old/gpu")).unwrap();
    write_file(root, first);
    vmi
}

fn mediated(uuid: &str) -> Value {
    let mut device = device("0000:65:00.0");
    device["attributes"]["mdevUUID"] = json!({ "string": uuid });
    device
}

#[test]
fn only_the_first_of_two_mediated_devices_has_a_display() {
    let root = TempDir::new().unwrap();
    let vmi = two_gpus(
        root.path(),
        &[mediated("aa618089-8b16-4d01-a136-25a0f3c73123")],
        &[mediated("bb618089-8b16-4d01-a136-25a0f3c73123")],
    );
    let all = explain_all(&vmi, root.path(), Behaviour::Extended);
    assert!(step(&all[0], "xml").text.contains("display='on'"), "{all:?}");
    assert!(!step(&all[1], "xml").text.contains("display='on'"), "{all:?}");
}

#[test]
fn two_entries_with_one_address_are_an_error_of_all_devices() {
    let root = TempDir::new().unwrap();
    let vmi = two_gpus(root.path(), &[device("0000:65:00.0")], &[device("0000:65:00.0")]);
    let all = explain_all(&vmi, root.path(), Behaviour::Extended);
    let together = all.last().unwrap();
    assert_eq!((together.kind, together.outcome()), ("all", Outcome::Error), "{all:?}");
    assert!(step(together, "xml").text.contains("are both the PCI device 0000:65:00.0"), "{all:?}");
}

#[test]
fn two_entries_of_one_name_are_identified_by_position() {
    let root = TempDir::new().unwrap();
    let mut vmi = two_gpus(root.path(), &[device("0000:65:00.0")], &[mediated("aa618089-8b16-4d01-a136-25a0f3c73123")]);
    vmi.spec.domain.devices.gpus[1].name = "g".into();
    let all = explain_all(&vmi, root.path(), Behaviour::Extended);
    assert!(step(&all[0], "xml").text.contains("type='pci'"), "{all:?}");
    assert!(step(&all[1], "xml").text.contains("type='mdev'"), "{all:?}");
    assert_eq!(step(&all[0], "xml").text.matches("<hostdev").count(), 1, "{all:?}");
    assert!(step(&all[2], "xml").text.contains("two host devices have the alias"), "{all:?}");
}

#[test]
fn a_name_that_cannot_be_an_alias_is_an_error() {
    let root = TempDir::new().unwrap();
    write_file(root.path(), &[device("0000:65:00.0")]);
    let mut vmi = one_gpu();
    vmi.spec.domain.devices.gpus[0].name = "a b".into();
    let all = explain_all(&vmi, root.path(), Behaviour::Extended);
    assert_eq!(all[1].outcome(), Outcome::Error, "{all:?}");
    assert!(step(&all[1], "xml").text.contains("rename the device"), "{all:?}");
}

#[test]
fn annotated_devices_are_explained_and_need_the_hook() {
    let root = TempDir::new().unwrap();
    write_file(root.path(), &[device("0000:65:00.0"), device("0000:66:00.0")]);
    let mut vmi = one_gpu();
    vmi.spec.domain.devices.gpus.clear();
    vmi.metadata.annotations.insert("drakkar.dev/gpus".into(), "all=dyn/gpu".into());
    let all = explain_all(&vmi, root.path(), Behaviour::Extended);
    assert_eq!((all[0].kind, &*all[0].name, all[0].outcome()), ("gpu", "all", Outcome::Fine), "{all:?}");
    assert!(step(&all[0], "kubevirt").text.contains("needs the hook"), "{all:?}");
    assert_eq!(step(&all[0], "xml").text.matches("<hostdev").count(), 2, "{all:?}");
    let all = explain_all(&vmi, root.path(), Behaviour::Strict);
    assert!(step(&all[0], "kubevirt").text.contains("ignored"), "{all:?}");
    vmi.metadata.annotations.insert("drakkar.dev/gpus".into(), "all".into());
    let all = explain_all(&vmi, root.path(), Behaviour::Extended);
    assert_eq!(all[0].outcome(), Outcome::Error, "{all:?}");
}

/// Asserts the remedy of the only problem.
fn assert_remedy(all: &[DeviceExplanation], expected: &str) {
    let remedies: Vec<&str> =
        all.iter().flat_map(|device| &device.steps).filter_map(|step| step.remedy.as_deref()).collect();
    assert!(remedies.len() == 1 && remedies[0].contains(expected), "expected {expected:?}: {all:#?}");
}

#[test]
fn a_launcher_without_metadata_is_recognized_as_one() {
    let root = TempDir::new().unwrap();
    fs::create_dir_all(root.path().join("var/run/kubevirt")).unwrap();
    let all = explain_all(&one_gpu(), root.path(), Behaviour::Extended);
    assert_remedy(&all, "this container has no metadata at all");
}

#[test]
fn a_missing_file_says_what_there_is_instead() {
    let root = TempDir::new().unwrap();
    fs::create_dir_all(root.path().join(BASE).join("resourceclaimtemplates/dyn/nic")).unwrap();
    let all = explain_all(&one_gpu(), root.path(), Behaviour::Extended);
    assert!(step(&all[0], "file").text.ends_with("resourceclaimtemplates/dyn has \"nic\""), "{all:?}");
}

#[test]
fn each_error_has_its_own_remedy() {
    let root = TempDir::new().unwrap();
    let two = [device("0000:65:00.0"), device("0000:66:00.0")];
    write_file(root.path(), &two);
    let strict = || explain_all(&one_gpu(), root.path(), Behaviour::Strict);
    let extended = || explain_all(&one_gpu(), root.path(), Behaviour::Extended);
    assert_remedy(&strict(), "use one request per device");
    assert_remedy(&extended(), "annotate drakkar.dev/gpus: g=dyn/gpu");
    let file = root.path().join(BASE).join("resourceclaimtemplates/dyn/gpu/gpu.example.com-metadata.json");
    let second = file.with_file_name("other.example.com-metadata.json");
    fs::copy(&file, &second).unwrap();
    assert_remedy(&strict(), "one request per driver");
    fs::remove_file(&second).unwrap();
    write_file(root.path(), &[device("65:00.0")]);
    assert_remedy(&extended(), "must publish the device's address");
    write_file(root.path(), &[json!({"driver": "d", "pool": "p", "name": "n", "attributes": {}})]);
    assert_remedy(&extended(), "the driver must publish mdevUUID or resource.kubernetes.io/pciBusID");
    fs::write(&file, "{").unwrap();
    assert_remedy(&extended(), &format!("check {}", file.display()));
    let beta = fs::read_to_string({
        write_file(root.path(), &two[..1]);
        &file
    });
    fs::write(&file, beta.unwrap().replace("v1alpha1", "v1beta1")).unwrap();
    assert_remedy(&extended(), "let the driver write v1alpha1 too, or the hook");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/nowhere", &file).unwrap();
    assert_remedy(&extended(), "a link to nothing");
    assert_eq!(extended()[0].outcome(), Outcome::NotFound);
    let mut bad = one_gpu();
    bad.spec.domain.devices.gpus[0].claim_request.as_mut().unwrap().request_name = "No Name".into();
    assert_remedy(&explain_all(&bad, root.path(), Behaviour::Extended), "correct requestName");
}

#[test]
fn an_interface_has_remedies_without_the_hook() {
    let root = TempDir::new().unwrap();
    let vmi = vmi(&json!({
        "resourceClaims": [{"name": "dyn", "resourceClaimTemplateName": "tmpl"}],
        "networks": [{"name": "n", "resourceClaim": {"claimName": "dyn", "requestName": "gpu"}}],
        "domain": {"devices": {"interfaces": [{"name": "n", "sriov": {}}]}},
    }));
    write_file(root.path(), &[device("0000:65:00.0"), device("0000:66:00.0")]);
    let all = explain_all(&vmi, root.path(), Behaviour::Extended);
    assert!(step(&all[0], "device").outcome < all[0].outcome(), "{all:?}");
    let last = all[0].steps.last().unwrap();
    assert!(last.text.contains("one request and one interface per device") && last.remedy.is_none(), "{all:?}");
    let mut mdev = mediated("aa618089-8b16-4d01-a136-25a0f3c73123");
    mdev["attributes"].as_object_mut().unwrap().remove("resource.kubernetes.io/pciBusID");
    write_file(root.path(), &[mdev]);
    assert_remedy(&explain_all(&vmi, root.path(), Behaviour::Extended), "an interface needs a PCI device");
}
