//! Benchmarks of the launcher's part: from a VMI and the metadata files to domain XML.
//!
//! The promises: the devices and the XML of a VMI with 16 devices take less than a millisecond, and the time per VMI does
//! not depend on the number of VMIs.
//!
//! `cargo bench -p drakkar-kubevirt --bench resolve`

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::fs;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use drakkar_kubevirt::Behaviour;
use drakkar_kubevirt::device_plugin::Environment;
use drakkar_kubevirt::hostdev::{HostDev, Options, PciFields, Source, host_devices};
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::vmi::VirtualMachineInstance;
use drakkar_kubevirt::xml::{self, Form, edit};
use serde_json::json;
use tempfile::TempDir;

fn main() {
    divan::main();
}

/// A metadata file with one device of eight attributes, as large as those of real drivers.
const FILE: &str = include_str!("../../metadata/benches/one_device.json");

/// Creates a VMI with a GPU per request of one claim, and the files of its launcher.
fn launcher(devices: usize) -> (VirtualMachineInstance, TempDir) {
    let root = tempfile::tempdir().unwrap();
    let claim = root.path().join("var/run/kubernetes.io/dra-device-attributes/resourceclaims/gpus");
    let template: serde_json::Value = serde_json::from_str(FILE).unwrap();
    let mut gpus = Vec::new();
    for number in 0..devices {
        let request = format!("gpu-{number}");
        let mut content = template.clone();
        content["apiVersion"] = json!("metadata.resource.k8s.io/v1alpha1");
        content["requests"][0]["name"] = json!(request);
        content["requests"][0]["devices"][0]["attributes"]["resource.kubernetes.io/pciBusID"] =
            json!({"string": format!("0000:{number:02x}:00.0")});
        fs::create_dir_all(claim.join(&request)).unwrap();
        fs::write(claim.join(&request).join("gpu.example.com-metadata.json"), content.to_string()).unwrap();
        gpus.push(json!({"name": format!("g{number}"), "claimName": "gpus", "requestName": request}));
    }
    let vmi = json!({"metadata": {"name": "vm"}, "spec": {
        "resourceClaims": [{"name": "gpus", "resourceClaimName": "gpus"}], "domain": {"devices": {"gpus": gpus}}}});
    (serde_json::from_value(vmi).unwrap(), root)
}

fn convert(vmi: &VirtualMachineInstance, resolver: &Resolver) -> String {
    let devices = host_devices(vmi, resolver, &Environment::default(), &Options::default()).unwrap();
    xml::write(&devices, Form::Canonical)
}

#[divan::bench(args = [1, 8, 16])]
fn resolve_and_xml(bencher: Bencher<'_, '_>, devices: usize) {
    let (vmi, root) = launcher(devices);
    let resolver = Resolver::with_root(root.path()).unwrap();
    bencher.counter(ItemsCount::new(devices)).bench(|| convert(black_box(&vmi), &resolver));
}

#[divan::bench(args = [1, 8, 16])]
fn resolve_and_xml_strict(bencher: Bencher<'_, '_>, devices: usize) {
    let (vmi, root) = launcher(devices);
    let resolver = Resolver::with_root(root.path()).unwrap().with_behaviour(Behaviour::Strict);
    bencher.counter(ItemsCount::new(devices)).bench(|| convert(black_box(&vmi), &resolver));
}

/// Every VMI has its own files, as in the launchers of a cluster. The counter gives VMIs per second.
#[divan::bench(args = [10, 100, 1000], sample_count = 5)]
fn many_vmis_of_8_devices(bencher: Bencher<'_, '_>, vmis: usize) {
    let launchers: Vec<(VirtualMachineInstance, TempDir)> = (0..vmis).map(|_| launcher(8)).collect();
    bencher.counter(ItemsCount::new(vmis)).bench_local(|| {
        for (vmi, root) in &launchers {
            black_box(convert(vmi, &Resolver::with_root(root.path()).unwrap()));
        }
    });
}

#[divan::bench(args = [16])]
fn edit_domain(bencher: Bencher<'_, '_>, devices: usize) {
    let devices: Vec<HostDev> = (0..devices)
        .map(|number| {
            let fields = PciFields::parse(&format!("0000:{number:02x}:00.0"), Behaviour::Extended).unwrap();
            HostDev::new(format!("dra-gpu-{number}"), Source::Pci(fields))
        })
        .collect();
    let disk = "    <disk type='file' device='disk'><source file='/a'/><target dev='vda' bus='virtio'/></disk>\n";
    let document = format!("<domain>\n  <devices>\n{}  </devices>\n</domain>\n", disk.repeat(40));
    bencher.bench(|| edit::put_hostdevs(black_box(&document), &devices).unwrap());
}
