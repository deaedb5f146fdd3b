//! The cost of one virtual machine with eight devices among many: from JSON to causes, pod claims and XML.
//!
//! Time is CPU time, so that other work on the machine does not count; memory is what stays resident while all objects
//! and results are kept. Run it with `cargo bench -p drakkar-kubevirt --bench scale`.
#![allow(missing_docs)]

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Duration;

use drakkar_kubevirt::admission::{as_remarshalled, validate, warnings};
use drakkar_kubevirt::hostdev::{Options, host_devices};
use drakkar_kubevirt::render::render;
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::vmi::Workload;
use drakkar_kubevirt::xml::{Form, write};
use drakkar_kubevirt::{Behaviour, FeatureGates};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

type Failure = Box<dyn Error>;

const DEVICES: usize = 8;

fn main() -> Result<(), Failure> {
    // Cargo adds `--bench`; a test run of benches adds `--test`, for which a few machines are enough.
    let is_test = std::env::args().any(|argument| argument == "--test");
    let counts: &[usize] = if is_test { &[1, 2] } else { &[250, 500, 1_000, 2_000, 4_000] };
    println!(
        "{:>8} {:>12} {:>12} {:>12} {:>16} {:>12}",
        "machines", "read", "validate", "render", "resolve and XML", "memory"
    );
    for count in counts {
        let root = tempfile::tempdir()?;
        for machine in 0..*count {
            files(root.path(), machine)?;
        }
        measure(root.path(), *count)?;
    }
    Ok(())
}

fn measure(root: &Path, count: usize) -> Result<(), Failure> {
    let documents: Vec<String> = (0..count).map(document).collect();
    let gates = FeatureGates::default();
    let resolver = Resolver::with_root(root)?;
    let environment = [("PCI_RESOURCE", "")].into_iter().collect();
    let before = resident()?;

    let (read, workloads) = timed(|| {
        let read = |document: &String| Workload::from_json(document).map(as_remarshalled);
        documents.iter().map(read).collect::<Result<Vec<_>, _>>()
    });
    let workloads = workloads?;
    let (validated, causes) = timed(|| {
        let check = |workload| validate(workload, &gates, Behaviour::Extended).len() + warnings(workload).len();
        workloads.iter().map(check).sum::<usize>()
    });
    if causes > 0 {
        return Err("a machine is not admitted".into());
    }
    let (rendered, pods) =
        timed(|| workloads.iter().map(|workload| render(workload.vmi(), &gates, None)).collect::<Result<Vec<_>, _>>());
    let (resolved, documents) = timed(|| {
        let domain = |workload: &Workload| {
            let devices = host_devices(workload.vmi(), &resolver, &environment, &Options::default())?;
            Ok::<_, Failure>(write(&devices, Form::Canonical))
        };
        workloads.iter().map(domain).collect::<Result<Vec<_>, _>>()
    });
    let kept = (pods?, documents?);
    let memory = resident()?.saturating_sub(before) / count;
    let micros = |time: Duration| format!("{:.2} us", time.as_secs_f64() * 1e6 / count as f64);
    println!(
        "{count:>8} {:>12} {:>12} {:>12} {:>16} {:>12}",
        micros(read),
        micros(validated),
        micros(rendered),
        micros(resolved),
        format!("{memory} B")
    );
    drop(kept);
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let cpu_time = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
    };
    let start = cpu_time();
    let result = work();
    (cpu_time() - start, result)
}

/// The resident memory of the process in bytes.
fn resident() -> Result<usize, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kibibytes: usize = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024)
}

fn document(machine: usize) -> String {
    let gpu =
        |device| json!({"name": format!("gpu-{device}"), "claimName": "gpus", "requestName": format!("r{device}")});
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": format!("vm-{machine}"), "namespace": "lab"},
        "spec": {
            "resourceClaims": [{"name": "gpus", "resourceClaimName": format!("vm-{machine}-gpus")}],
            "domain": {"devices": {"gpus": (0..DEVICES).map(gpu).collect::<Vec<_>>()}},
        },
    })
    .to_string()
}

fn files(root: &Path, machine: usize) -> Result<(), Failure> {
    let base = root.join("var/run/kubernetes.io/dra-device-attributes/resourceclaims");
    for device in 0..DEVICES {
        let directory = base.join(format!("vm-{machine}-gpus/r{device}"));
        fs::create_dir_all(&directory)?;
        let address = format!("{machine:04x}:{device:02x}:00.0");
        let document = json!({
            "kind": "DeviceMetadata",
            "apiVersion": "metadata.resource.k8s.io/v1alpha1",
            "metadata": {"name": format!("vm-{machine}-gpus"), "namespace": "lab", "uid": "u", "generation": 1},
            "requests": [{"name": format!("r{device}"), "devices": [{
                "driver": "gpu.example", "pool": "node-1", "name": format!("gpu-{device}"),
                "attributes": {"resource.kubernetes.io/pciBusID": {"string": address}},
            }]}],
        });
        fs::write(directory.join("gpu.example-metadata.json"), document.to_string())?;
    }
    Ok(())
}
