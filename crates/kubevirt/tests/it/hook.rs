//! The hook's result in libvirt's hands, and its guide and manifests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use drakkar_kubevirt::admission::validate;
use drakkar_kubevirt::hook::{DeviceKind, HookOptions, annotated_devices, annotation, mutate_domain};
use drakkar_kubevirt::render::render;
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::vmi::{VirtualMachineInstance, Workload};
use drakkar_kubevirt::{Behaviour, FeatureGates};
use serde_json::{Value, json};

use crate::libvirt::{has_libvirt, run, schema, text};
use crate::tree::released_tree;

const GUIDE: &str = include_str!("../../../../docs/kubevirt-hook.md");
const MANIFESTS: [(&str, &str); 3] = [
    ("hook-sidecar", include_str!("../../manifests/hook-sidecar.yaml")),
    ("hook-plugin", include_str!("../../manifests/hook-plugin.yaml")),
    ("hook-validation", include_str!("../../manifests/hook-validation.yaml")),
];

/// A domain with a PCI device of KubeVirt's own, and two NUMA nodes.
const DOMAIN: &str = r#"<domain type="test">
  <name>d0</name>
  <memory unit="KiB">2097152</memory>
  <vcpu>4</vcpu>
  <numatune>
    <memory mode="strict" nodeset="0-1"/>
    <memnode cellid="0" mode="strict" nodeset="0"/>
    <memnode cellid="1" mode="strict" nodeset="1"/>
  </numatune>
  <os><type arch="x86_64" machine="q35">hvm</type></os>
  <cpu>
    <numa>
      <cell id="0" cpus="0-1" memory="1048576" unit="KiB"/>
      <cell id="1" cpus="2-3" memory="1048576" unit="KiB"/>
    </numa>
  </cpu>
  <devices>
    <controller type="pci" index="0" model="pcie-root"></controller>
    <hostdev type="pci" managed="no"><source><address domain="0x0000" bus="0x65" slot="0x00" function="0x0"></address></source><alias name="ua-dra-gpu-own"></alias></hostdev>
  </devices>
</domain>
"#;

fn file(request: &str, devices: &[Value]) -> (String, Option<String>) {
    let devices: Vec<Value> = (0..)
        .zip(devices)
        .map(|(number, attributes)| {
            json!({"driver": "d.example", "pool": "p", "name": format!("d{number}"), "attributes": attributes})
        })
        .collect();
    let document = json!({
        "apiVersion": "metadata.resource.k8s.io/v1alpha1",
        "kind": "DeviceMetadata",
        "metadata": {"name": "gold", "namespace": "lab", "uid": "u", "generation": 1},
        "requests": [{"name": request, "devices": devices}],
    });
    (format!("resourceclaims/gold/{request}/d.example-metadata.json"), Some(document.to_string()))
}

fn pci(address: &str, node: u32) -> Value {
    json!({"resource.kubernetes.io/pciBusID": {"string": address}, "resource.kubernetes.io/numaNode": {"int": node}})
}

/// What libvirt has of a domain after it was defined: what virt-launcher gives to the hook the second time.
fn define(directory: &Path, document: &str) -> String {
    let file = directory.join("domain.xml");
    fs::write(&file, document).unwrap();
    let script = format!("define {}; dumpxml --inactive d0", file.display());
    let output = run(Command::new("virsh").args(["-c", "test:///default", &script]));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let start = printed.find("<domain").unwrap_or_else(|| panic!("virsh: {}", text(&output)));
    printed[start..].trim_end().to_owned()
}

#[test]
fn libvirt_defines_what_the_hook_returns_and_the_hook_leaves_what_libvirt_prints() {
    if !has_libvirt() {
        return;
    }
    let mdev = json!({"mdevUUID": {"string": "b2f4ad2e-11e5-4b39-8a3c-0f2f9a4dc7b1"}});
    let files = BTreeMap::from([
        file("own", &[pci("0000:65:00.0", 0)]),
        file("gpus", &[pci("0000:66:00.0", 1), pci("0000:67:00.0", 0)]),
        file("vgpu", &[mdev]),
    ]);
    let root = released_tree(&files);
    let vmi: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": {
            "name": "vm",
            "annotations": {
                "drakkar.dev/gpus": "g=train/gpus",
                "drakkar.dev/host-devices": "v=train/vgpu",
                "drakkar.dev/numa-placement": "required",
            },
        },
        "spec": {
            "resourceClaims": [{"name": "train", "resourceClaimName": "gold"}],
            "domain": {"devices": {"gpus": [{"name": "own", "claimName": "train", "requestName": "own"}]}},
        },
    }))
    .unwrap();
    let resolver = Resolver::with_root(root.path()).unwrap();
    let mutate = |domain: &str| mutate_domain(&vmi, domain, &resolver, &HookOptions::default()).unwrap().into_owned();
    let first = mutate(DOMAIN);
    schema(root.path(), &first).unwrap();
    let printed = define(root.path(), &first);
    for expected in ["ua-dra-gpu-own", "ua-dra-gpu-g-0", "ua-dra-gpu-g-1", "ua-dra-hostdevice-v", "pcie-expander-bus"] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    assert_eq!(mutate(&printed), printed);
}

#[test]
fn the_vm_of_the_guide_is_admitted_and_its_request_is_left_to_the_hook() {
    let vm = GUIDE
        .split("```yaml\n")
        .skip(1)
        .filter_map(|block| block.split("```").next())
        .flat_map(|block| block.split("---\n"))
        .find(|document| document.contains("kind: VirtualMachine"))
        .unwrap();
    let workload = Workload::from_yaml(vm).unwrap();
    assert_eq!(validate(&workload, &FeatureGates::default(), Behaviour::Strict), []);
    let vmi = workload.vmi();
    let [device] = &annotated_devices(&vmi.metadata.annotations).unwrap()[..] else { panic!("one device") };
    assert_eq!((device.kind, device.name.as_str()), (DeviceKind::Gpu, "gpu"));
    assert!(vmi.spec.resource_claims.iter().any(|claim| claim.name == device.request.claim_name));
    let rendered = render(vmi, &FeatureGates::default(), None).unwrap();
    assert_eq!(rendered.resource_claims, vmi.spec.resource_claims);
    assert_eq!(rendered.claims, [], "KubeVirt gives the launcher no request: the policy does");
}

#[test]
fn the_manifests_and_the_guide_have_the_annotations_of_the_code() {
    for (name, manifest) in MANIFESTS {
        for annotation in [annotation::GPUS, annotation::HOST_DEVICES] {
            assert!(manifest.contains(annotation), "{name}: {annotation}");
        }
        assert!(GUIDE.contains(&format!("crates/kubevirt/manifests/{name}.yaml")), "{name}");
    }
    for annotation in [annotation::GPUS, annotation::HOST_DEVICES, annotation::NUMA_PLACEMENT] {
        assert!(GUIDE.contains(&format!("`{annotation}`")), "{annotation}");
    }
    assert!(MANIFESTS[2].1.contains(annotation::NUMA_PLACEMENT));
}

/// Any of the annotations brings the hook, both for KubeVirt, which calls it, and for the policy, which adds it.
#[test]
fn the_plugin_is_for_every_annotation() {
    let documents: Vec<Value> = serde_saphyr::from_multiple(MANIFESTS[1].1).unwrap();
    let conditions = [&documents[0]["spec"]["condition"], &documents[1]["spec"]["matchConditions"][0]["expression"]];
    for condition in conditions.map(|condition| condition.as_str().unwrap()) {
        for annotation in [annotation::GPUS, annotation::HOST_DEVICES, annotation::NUMA_PLACEMENT] {
            assert!(condition.contains(annotation), "{annotation}: {condition}");
        }
    }
}

/// An annotation is checked when it is added later too. An update of something else does not fail on what is stored.
#[test]
fn annotations_are_validated_at_creation_and_change() {
    let documents: Vec<Value> = serde_saphyr::from_multiple(MANIFESTS[2].1).unwrap();
    let spec = &documents[0]["spec"];
    assert_eq!(spec["matchConstraints"]["resourceRules"][0]["operations"], json!(["CREATE", "UPDATE"]));
    let condition = spec["matchConditions"][0]["expression"].as_str().unwrap();
    for part in ["request.operation == 'CREATE'", "deletionTimestamp", "oldObject.spec", "oldObject.metadata"] {
        assert!(condition.contains(part), "{condition}");
    }
}

const WEBHOOK: &str = include_str!("../../manifests/webhook.yaml");

/// The webhook of the manifest decides by the gates of the cluster, from a directory that Kubernetes updates.
#[test]
fn the_webhook_of_the_manifest_reads_the_kubevirt_object() {
    let documents: Vec<Value> = serde_saphyr::from_multiple(WEBHOOK).unwrap();
    let pod = &documents.iter().find(|document| document["kind"] == "Deployment").unwrap()["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert!(container["args"].as_array().unwrap().contains(&json!("--kubevirt=/kubevirt/kubevirt.yaml")));
    let named =
        |list: &Value| list.as_array().unwrap().iter().find(|entry| entry["name"] == "kubevirt").cloned().unwrap();
    let mount = named(&container["volumeMounts"]);
    assert_eq!((&mount["mountPath"], mount.get("subPath")), (&json!("/kubevirt"), None));
    let expected = json!({"name": "kubevirt-config", "items": [{"key": "kubevirt.yaml", "path": "kubevirt.yaml"}]});
    assert_eq!(named(&pod["volumes"])["configMap"], expected);
}

#[test]
fn the_guide_has_the_texts_of_the_errors() {
    let own = json!({"resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"}});
    let root = released_tree(&BTreeMap::from([file("own", &[own]), file("gpu", &[pci("0000:66:00.0", 0)])]));
    let resolver = Resolver::with_root(root.path()).unwrap();
    let no_nodes = DOMAIN.replace("<cell ", "<none ");
    let refused = |annotations: Value| {
        let vmi = serde_json::from_value(json!({
            "metadata": {"name": "vm", "annotations": annotations},
            "spec": {"resourceClaims": [
                {"name": "train", "resourceClaimTemplateName": "four-gpus"},
                {"name": "gold", "resourceClaimName": "gold"},
            ]},
        }));
        mutate_domain(&vmi.unwrap(), &no_nodes, &resolver, &HookOptions::default()).unwrap_err().to_string()
    };
    // The start of the text up to what depends on the case, and the rest of it, as in the table of the guide.
    for (annotations, start, rest) in [
        (
            json!({"drakkar.dev/gpus": "gpu=train/gpus"}),
            "GPU \"gpu\": claim \"train\" request \"gpus\": no files matching ",
            "; the driver must write device metadata, and the container must reference the request; the hook reads the files \
             in its own container, ",
        ),
        (json!({"drakkar.dev/gpus": "gpu=gold/own"}), "", " are the same device of the host"),
        (
            json!({"drakkar.dev/gpus": "gpu=gold/gpu", "drakkar.dev/numa-placement": "required"}),
            "annotation drakkar.dev/numa-placement: ",
            "no guest NUMA node mapping is available",
        ),
    ] {
        let text = refused(annotations);
        for part in [start, rest] {
            assert!(text.contains(part), "{part:?}: {text}");
            assert!(GUIDE.contains(part), "{part:?}");
        }
    }
}
