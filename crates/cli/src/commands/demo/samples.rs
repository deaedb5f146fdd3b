//! The demo with the sample drivers: GPUs, whose metadata is known at once, and a network interface, whose metadata is
//! known later.

use std::process::Command;

use drakkar_node::{DriverProcess, Node, NodeError, PodHandle};
use drakkar_plugin::{Flags, PluginBuilder, logging};

use super::pod::with_this_command;
use super::print::{Progress, in_container, print_indented, print_line, report_leftovers, yaml};
use super::{COMMAND_IN_CONTAINER, driver_log, dry_run, keep, runtime};
use crate::args::SampleKind;
use crate::exit::{Code, Failure};
use crate::sample_drivers::Sample;

/// The demo's GPU driver.
const GPUS: Sample = Sample::Gpu { count: 2 };
const OBJECTS: &str = include_str!("objects.yaml");
const POD: &str = include_str!("pod.yaml");

/// Runs a sample driver until a signal ends it.
pub(crate) fn run_sample_driver(kind: SampleKind, count: u16, flags: &Flags) -> Result<(), Failure> {
    let sample = match kind {
        SampleKind::Gpu => Sample::Gpu { count },
        SampleKind::Net => Sample::Net,
    };
    let node = flags.node_name.clone().unwrap_or_default();
    logging::init(flags);
    let builder = PluginBuilder::new(sample.driver()).version(env!("CARGO_PKG_VERSION")).flags(flags);
    let result = runtime()?.block_on(sample.run(builder, &node));
    result.map_err(|error| Failure::new(Code::System, format!("{}: {error}", sample.driver())))
}

pub(super) async fn run(node: &Node, keep_running: bool, progress: &mut Progress) -> Result<(), Failure> {
    let mut gpus = start(node, GPUS, "gpu")?;
    let mut net = start(node, Sample::Net, "net")?;
    let (status, process) = tokio::select! {
        result = with_drivers(node, keep_running, progress) => {
            result?;
            gpus.terminate().await?;
            net.terminate().await?;
            return Ok(());
        }
        status = gpus.wait() => (status?, gpus),
        status = net.wait() => (status?, net),
    };
    let failure = Failure::new(Code::Invalid, format!("a sample driver exited: {status}"));
    Err(driver_log::attach(failure, &process))
}

async fn with_drivers(node: &Node, keep_running: bool, progress: &mut Progress) -> Result<(), Failure> {
    for sample in [GPUS, Sample::Net] {
        node.wait_registered(sample.driver()).await?;
        node.wait_published(sample.driver()).await?;
    }
    progress.complete("Two drivers: registered with the kubelet, devices published")?;
    for sample in [GPUS, Sample::Net] {
        print_line(&format!("      {}  {}", sample.driver(), devices(node, sample).await?.join(", ")))?;
    }
    print_line("")?;

    progress.restart_clock();
    node.apply(OBJECTS).await?;
    let pod = node.create_pod(with_this_command(POD)?).await?;
    progress.complete("A pod with two claims, and two containers with one claim each")?;
    let claims = POD.lines().skip_while(|line| !line.contains("resourceClaims:"));
    claims.map(|line| line.strip_prefix("  ").unwrap_or(line)).try_for_each(print_indented)?;
    print_line("")?;

    progress.restart_clock();
    let claims = pod.allocated().await?;
    progress.complete("The scheduler has allocated devices to the claims")?;
    for claim in claims {
        for (request, device) in claim.devices {
            print_line(&format!("      claim {:<22} request {request:<4} {device}", claim.name))?;
        }
    }
    print_line("")?;

    if dry_run::is_dry_run(node) {
        dry_run::run(node, progress).await?;
    } else {
        in_containers(&pod, progress).await?;
    }

    progress.restart_clock();
    let status = node.wait_device_status("net").await?;
    progress.complete("The network driver has reported status.devices of claim net")?;
    print_indented(&yaml(&serde_json::to_value(status).map_err(std::io::Error::from)?)?)?;
    print_line("")?;

    if keep_running {
        return keep(node, &pod, "train").await;
    }
    delete_pod(node, &pod, progress).await?;
    print_line("")?;
    print_line("`drakkar demo --keep` keeps the node running at the end.")?;
    print_line("`drakkar demo --driver COMMAND` runs the demo with your own driver.")
}

/// Shows the devices' metadata in the containers.
async fn in_containers(pod: &PodHandle<'_>, progress: &mut Progress) -> Result<(), Failure> {
    pod.running().await?;
    progress.complete("The drivers have prepared the claims; the containers are running")?;
    print_line("    The GPU driver wrote its metadata when it prepared the claim:")?;
    in_container(pod, "train", &["list"]).await?;
    in_container(pod, "train", &["get", "gpus/gpu", "pciBusID"]).await?;
    // Whether it has been written is a race, which the demo shows.
    print_line("    The other container has only the file of its own request, which the")?;
    print_line("    network driver writes once the network is set up:")?;
    in_container(pod, "serve", &["list"]).await?;

    progress.restart_clock();
    let waited = pod.exec("serve", [COMMAND_IN_CONTAINER, "wait", "net/eth", "--for", "ips"]).await?;
    if !waited.status.success() {
        return Err(Failure::new(Code::NotWritten, String::from_utf8_lossy(&waited.stderr).into_owned()));
    }
    progress.complete("The network is set up, and the running container sees the update")?;
    in_container(pod, "serve", &["read", "net/eth"]).await?;
    Ok(())
}

fn start(node: &Node, sample: Sample, kind: &str) -> Result<DriverProcess, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["sample-driver", kind, "--enable-device-metadata"]);
    Ok(node.spawn(sample.driver(), command)?)
}

async fn devices(node: &Node, sample: Sample) -> Result<Vec<String>, NodeError> {
    let slices = node.slices(sample.driver()).await?;
    let devices = slices.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default());
    Ok(devices.map(|device| device.name).collect())
}

/// Deletes the pod and checks that nothing of it is left.
async fn delete_pod(node: &Node, pod: &PodHandle<'_>, progress: &mut Progress) -> Result<(), Failure> {
    progress.restart_clock();
    pod.delete().await?;
    progress.complete("The pod is deleted: containers stopped, claims unprepared")?;
    let mut leftovers = Vec::new();
    for sample in [GPUS, Sample::Net] {
        leftovers.extend(node.leftovers(sample.driver()).await?);
    }
    report_leftovers(&leftovers)
}
