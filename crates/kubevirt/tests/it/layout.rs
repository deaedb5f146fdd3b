//! The layouts besides the released one, and names that must not become paths.

use std::collections::BTreeMap;
use std::fs;

use drakkar_kubevirt::Behaviour;
use drakkar_kubevirt::resolve::{AttributeNames, Layout, ResolveError, Resolver};
use drakkar_kubevirt::vmi::{ClaimRequest, ResourceClaimRef};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tree::{released_tree, tree};

const KEP: &str = "/var/run/dra-device-attributes";

fn claims() -> Vec<ResourceClaimRef> {
    let existing = ResourceClaimRef {
        name: "old".into(),
        resource_claim_name: Some("shared-gpu".into()),
        resource_claim_template_name: None,
    };
    let generated = ResourceClaimRef {
        name: "dyn".into(),
        resource_claim_name: None,
        resource_claim_template_name: Some("pgpu-tmpl".into()),
    };
    vec![existing, generated]
}

fn request(claim: &str, request: &str) -> ClaimRequest {
    ClaimRequest { claim_name: claim.into(), request_name: request.into() }
}

fn files(files: &[(&str, Value)]) -> BTreeMap<String, Option<String>> {
    files.iter().map(|(path, content)| ((*path).to_owned(), Some(content.to_string()))).collect()
}

fn released(claim: &str, pod_claim: Option<&str>, name: &str, address: &str) -> Value {
    json!({"apiVersion": "metadata.resource.k8s.io/v1alpha1", "kind": "DeviceMetadata", "metadata": {"name": claim},
        "podClaimName": pod_claim, "requests": [{"name": name, "devices": [{"driver": "d", "pool": "p", "name": "n",
            "attributes": {"resource.kubernetes.io/pciBusID": {"string": address},
                "resource.kubernetes.io/numaNode": {"int": 1}, "resource.kubernetes.io/pcieRoot": {"string": "pci0000:60"}}}]}]})
}

/// A file as in the text of VEP 10: another version, `device` for the name, and the plural in the attribute.
fn vep10(claim: &str, pod_claim: Option<&str>, attributes: &Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1alpha1", "kind": "DeviceMetadata", "metadata": {"name": claim},
        "podClaimName": pod_claim, "requests": [
            {"name": "other", "devices": [{"driver": "d", "pool": "p", "device": "x", "attributes": {}}]},
            {"name": "r", "devices": [{"driver": "d", "pool": "p", "device": "gpu-2", "attributes": attributes}]}]})
}

fn resolver(root: &TempDir, layout: Layout, behaviour: Behaviour) -> Resolver {
    Resolver::with_root(root.path()).unwrap().layout(layout).with_behaviour(behaviour)
}

#[rstest]
fn the_kep_layout_finds_a_claim_from_a_template_by_its_pod_claim_name(
    #[values(Behaviour::Strict, Behaviour::Extended)] behaviour: Behaviour,
) {
    let root = tree(
        KEP,
        &files(&[
            ("shared-gpu/r/d-metadata.json", released("shared-gpu", None, "r", "0000:01:00.0")),
            ("gen-abc/r/d-metadata.json", released("gen-abc", Some("dyn"), "r", "0000:02:00.0")),
            ("gen-def/r/d-metadata.json", released("gen-def", Some("another"), "r", "0000:03:00.0")),
            ("broken/r/d-metadata.json", json!("text")),
            ("d-0-r.json", json!({})),
        ]),
    );
    let resolver = resolver(&root, Layout::Kep, behaviour);
    assert_eq!(resolver.pci_bus_id(&claims(), &request("old", "r")).unwrap(), "0000:01:00.0");
    assert_eq!(resolver.pci_bus_id(&claims(), &request("dyn", "r")).unwrap(), "0000:02:00.0");
    let error = resolver.pci_bus_id(&claims(), &request("dyn", "missing")).unwrap_err();
    assert!(matches!(error, ResolveError::NoFile { .. }), "{error}");
}

#[test]
fn a_pod_claim_name_of_two_claims_is_ambiguous_and_one_of_none_names_what_is_broken() {
    let root = tree(
        KEP,
        &files(&[
            ("one/r/d-metadata.json", released("one", Some("dyn"), "r", "0000:01:00.0")),
            ("two/r/d-metadata.json", released("two", Some("dyn"), "r", "0000:02:00.0")),
            ("three/q/d-metadata.json", json!("text")),
        ]),
    );
    let resolver = resolver(&root, Layout::Kep, Behaviour::Extended);
    let error = resolver.resolve(&claims(), &request("dyn", "r")).unwrap_err();
    assert!(matches!(error, ResolveError::Ambiguous { .. }), "{error}");
    let error = resolver.resolve(&claims(), &request("dyn", "q")).unwrap_err().to_string();
    assert!(error.contains("three/q/d-metadata.json"), "{error}");
}

#[rstest]
fn the_layout_of_vep_10_has_one_file_per_driver_and_claim(
    #[values(Behaviour::Strict, Behaviour::Extended)] behaviour: Behaviour,
) {
    let plural = json!({"resources.kubernetes.io/pciBusID": {"string": "0000:01:00.0"}});
    let uuid = json!({"mDevUUID": {"stringValue": "7b1d3f60-5a4e-4a8e-9f0e-0b7c2d1e9a01"}});
    let root = tree(
        KEP,
        &files(&[
            ("gpu.example/shared-gpu/metadata.json", vep10("shared-gpu", None, &plural)),
            ("gpu.example/gen-abc/metadata.json", vep10("gen-abc", Some("dyn"), &uuid)),
            ("other.example/gen-xyz/metadata.json", json!([1])),
        ]),
    );
    let resolver = resolver(&root, Layout::Vep10Seed, behaviour);
    let resolved = resolver.resolve(&claims(), &request("old", "r")).unwrap();
    assert_eq!(resolved.devices[0].pci_bus_id.as_deref(), Some("0000:01:00.0"));
    assert_eq!(resolved.devices[0].id(), "d/p/gpu-2");
    assert!(resolved.files[0].ends_with("gpu.example/shared-gpu/metadata.json"));
    assert!(resolver.mdev_uuid(&claims(), &request("dyn", "r")).is_ok());
    let error = resolver.resolve(&claims(), &request("old", "missing")).unwrap_err().to_string();
    assert!(error.contains("other, r"), "{error}");
}

#[test]
fn a_layout_is_never_guessed() {
    let root =
        tree(KEP, &files(&[("shared-gpu/r/d-metadata.json", released("shared-gpu", None, "r", "0000:01:00.0"))]));
    for layout in [Layout::Released, Layout::Vep10Seed] {
        let resolver = resolver(&root, layout, Behaviour::Extended);
        let error = resolver.resolve(&claims(), &request("old", "r")).unwrap_err();
        assert!(matches!(error, ResolveError::NoFile { .. }), "{error}");
    }
}

#[test]
fn other_spellings_of_attributes_are_read_only_when_asked_for() {
    let content = |attributes: Value| {
        json!({"apiVersion": "metadata.resource.k8s.io/v1alpha1",
            "requests": [{"name": "r", "devices": [{"attributes": attributes}]}]})
    };
    let path = "resourceclaims/shared-gpu/r/d-metadata.json";
    let string = |text: &str| json!({"string": text});
    for (attributes, pci, mdev) in [
        (json!({"resource.k8s.io/pciBusID": string("k8s"), "mDevUUID": string("u")}), "k8s", Some("u")),
        (
            json!({"resource.k8s.io/pciBusID": string("k8s"), "resources.kubernetes.io/pciBusID": string("plural")}),
            "plural",
            None,
        ),
        (
            json!({"resource.kubernetes.io/pciBusID": string("canonical"), "resources.kubernetes.io/pciBusID": string("plural")}),
            "canonical",
            None,
        ),
    ] {
        let root = released_tree(&files(&[(path, content(attributes.clone()))]));
        let lenient = Resolver::with_root(root.path()).unwrap().attribute_names(AttributeNames::Lenient);
        assert_eq!(lenient.pci_bus_id(&claims(), &request("old", "r")).unwrap(), pci);
        assert_eq!(lenient.mdev_uuid(&claims(), &request("old", "r")).ok().as_deref(), mdev);
        let canonical = Resolver::with_root(root.path()).unwrap();
        let found = canonical.pci_bus_id(&claims(), &request("old", "r"));
        assert_eq!(found.is_ok(), pci == "canonical");
        if let Err(error) = found {
            assert!(error.to_string().contains("is not a name that KubeVirt reads"), "{error}");
        }
    }
}

#[test]
fn a_device_has_its_place_in_the_hosts_topology() {
    let path = "resourceclaims/shared-gpu/r/d-metadata.json";
    let root = released_tree(&files(&[(path, released("shared-gpu", None, "r", "0000:01:00.0"))]));
    let resolved = Resolver::with_root(root.path()).unwrap().resolve(&claims(), &request("old", "r")).unwrap();
    let device = &resolved.devices[0];
    assert_eq!((device.numa_node, device.pcie_root.as_deref()), (Some(1), Some("pci0000:60")));
}

#[test]
fn a_subrequest_can_be_named_and_several_alternatives_are_distinguished() {
    let entry = |name: &str, address: &str| json!({"name": name, "devices": [{"attributes": {"resource.kubernetes.io/pciBusID": {"string": address}}}]});
    let content = json!({"apiVersion": "metadata.resource.k8s.io/v1beta1",
        "requests": [entry("r/high", "0000:01:00.0"), entry("r/low", "0000:02:00.0"), entry("rx", "0000:03:00.0")]});
    let root = released_tree(&files(&[("resourceclaims/shared-gpu/r/d-metadata.json", content)]));
    let resolver = Resolver::with_root(root.path()).unwrap();
    let addresses = |name: &str| {
        let devices = resolver.resolve(&claims(), &request("old", name)).unwrap().devices;
        devices.into_iter().filter_map(|device| device.pci_bus_id).collect::<Vec<String>>()
    };
    assert_eq!(addresses("r"), ["0000:01:00.0", "0000:02:00.0"]);
    assert_eq!(addresses("r/low"), ["0000:02:00.0"]);
}

#[test]
fn a_missing_file_is_reported_with_what_is_there_instead() {
    let root = released_tree(&BTreeMap::new());
    let message = |claim: &str, name: &str| {
        let resolver = Resolver::with_root(root.path()).unwrap();
        resolver.resolve(&claims(), &request(claim, name)).unwrap_err().to_string()
    };
    assert!(message("old", "r").contains("dra-device-attributes does not exist"), "{}", message("old", "r"));
    let base = root.path().join("var/run/kubernetes.io/dra-device-attributes/resourceclaims/shared-gpu");
    fs::create_dir_all(base.join("q")).unwrap();
    assert!(message("old", "r").contains("resourceclaims/shared-gpu has \"q\""), "{}", message("old", "r"));
    assert!(message("old", "q").contains("shared-gpu/q is empty"), "{}", message("old", "q"));
    assert!(message("dyn", "r").contains("dra-device-attributes has \"resourceclaims\""), "{}", message("dyn", "r"));
}

/// Names that lead out of a directory, or to another one, if they become part of a path or a pattern.
const HOSTILE: &[&str] = &[
    "..",
    ".",
    "",
    "*",
    "?",
    "[a-z]",
    "a/b",
    "../..",
    "/etc",
    "r\\",
    "r\0",
    "R",
    "r/../../x",
    "../../../../outside",
    "ä",
];

#[rstest]
fn no_name_leads_to_another_file(#[values(Behaviour::Strict, Behaviour::Extended)] behaviour: Behaviour) {
    let secret = released("secret", Some("dyn"), "r", "0000:66:06.6");
    let path = "resourceclaims/shared-gpu/r/d-metadata.json";
    let root = released_tree(&files(&[(path, secret.clone()), ("resourceclaims/d-metadata.json", secret.clone())]));
    for outside in ["", "etc", "var", "var/run", "var/run/kubernetes.io", "outside"] {
        fs::create_dir_all(root.path().join(outside)).unwrap();
        fs::write(root.path().join(outside).join("d-metadata.json"), secret.to_string()).unwrap();
    }
    for layout in [Layout::Released, Layout::Kep, Layout::Vep10Seed] {
        let resolver = resolver(&root, layout, behaviour);
        for name in HOSTILE {
            let entry = |claim: Option<&str>| {
                vec![ResourceClaimRef {
                    name: if claim.is_some() { "ref".into() } else { (*name).into() },
                    resource_claim_name: claim.map(str::to_owned),
                    resource_claim_template_name: None,
                }]
            };
            for (claims, wanted) in [
                (claims(), request("old", name)),
                (claims(), request("dyn", name)),
                (entry(Some(name)), request("ref", "r")),
                (entry(None), request(name, "r")),
            ] {
                let error = resolver.resolve(&claims, &wanted).unwrap_err();
                assert!(matches!(error, ResolveError::Name(_) | ResolveError::NoFile { .. }), "{name:?}: {error}");
            }
        }
    }
}

#[test]
fn a_symbolic_link_does_not_lead_out_of_the_root() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("d-metadata.json");
    fs::write(&secret, released("secret", None, "r", "0000:66:06.6").to_string()).unwrap();
    let root = released_tree(&BTreeMap::from([("resourceclaims/shared-gpu/".to_owned(), None)]));
    let directory = root.path().join("var/run/kubernetes.io/dra-device-attributes/resourceclaims/shared-gpu");
    let resolver = Resolver::with_root(root.path()).unwrap();
    std::os::unix::fs::symlink(outside.path(), directory.join("r")).unwrap();
    assert!(resolver.resolve(&claims(), &request("old", "r")).is_err());
    fs::create_dir(directory.join("q")).unwrap();
    std::os::unix::fs::symlink(&secret, directory.join("q/d-metadata.json")).unwrap();
    assert!(resolver.resolve(&claims(), &request("old", "q")).is_err());
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(HOSTILE).prop_map(str::to_owned),
        "[a-z0-9.-]{0,8}",
        Just("r".to_owned()),
        Just("shared-gpu".to_owned()),
        any::<String>(),
    ]
}

fn any_content() -> impl Strategy<Value = Vec<u8>> {
    let valid = released("shared-gpu", Some("dyn"), "r", "0000:01:00.0").to_string().into_bytes();
    let mutated =
        (Just(valid.clone()), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut bytes, index, byte)| {
            let position = index.index(bytes.len());
            bytes[position] = byte;
            bytes
        });
    let cut = (Just(valid.clone()), any::<prop::sample::Index>())
        .prop_map(|(bytes, index)| bytes[..index.index(bytes.len())].to_vec());
    let tokens = prop::sample::select(
        &[
            "{",
            "}",
            "[",
            "]",
            "null",
            "\"apiVersion\":",
            "\"metadata.resource.k8s.io/v1alpha1\"",
            "\"requests\":",
            "\"name\":",
            "\"r\"",
            "\"devices\":",
            "\"attributes\":",
            "\"string\":",
            ",",
            "1e999",
            "-0",
            "\u{feff}",
            " ",
        ][..],
    );
    let soup = prop::collection::vec(tokens, 0..32).prop_map(|tokens| tokens.concat().into_bytes());
    prop_oneof![prop::collection::vec(any::<u8>(), 0..64), Just(valid), mutated, cut, soup]
}

proptest! {
    /// Whatever the files and the names are, resolving never panics and never reads a file outside the base directory.
    #[test]
    fn resolving_stays_inside_the_base_directory(
        content in any_content(), claim_name in any_name(), entry_name in any_name(), object in prop::option::of(any_name()),
        request_name in any_name(), driver in "[a-z.]{0,4}", is_strict in any::<bool>(), layout in 0..3,
    ) {
        let root = tempfile::tempdir().unwrap();
        let layout = [Layout::Released, Layout::Kep, Layout::Vep10Seed][usize::try_from(layout).unwrap()];
        let base = root.path().join(layout.base_directory().strip_prefix("/").unwrap());
        for directory in [
            "resourceclaims/shared-gpu/r", "resourceclaimtemplates/r/r", "shared-gpu/r", "d/shared-gpu", "d/r",
        ] {
            fs::create_dir_all(base.join(directory)).unwrap();
            fs::write(base.join(directory).join(format!("{driver}-metadata.json")), &content).unwrap();
            fs::write(base.join(directory).join("metadata.json"), &content).unwrap();
        }
        let outside = released("outside", Some(&entry_name), &request_name, "0000:66:06.6").to_string();
        for directory in base.ancestors().skip(1).take_while(|directory| directory.starts_with(root.path())) {
            fs::write(directory.join("d-metadata.json"), &outside).unwrap();
            fs::write(directory.join("metadata.json"), &outside).unwrap();
        }
        let behaviour = if is_strict { Behaviour::Strict } else { Behaviour::Extended };
        let claims = [ResourceClaimRef { name: entry_name.clone(), resource_claim_name: object, resource_claim_template_name: None }];
        let resolver = resolver(&root, layout, behaviour);
        for claim_name in [claim_name, entry_name] {
            if let Ok(resolved) = resolver.resolve(&claims, &ClaimRequest { claim_name, request_name: request_name.clone() }) {
                prop_assert!(resolved.files.iter().all(|file| file.starts_with(&base)));
                prop_assert!(resolved.devices.iter().all(|device| device.pci_bus_id.as_deref() != Some("0000:66:06.6")));
            }
        }
    }
}
