//! The demo with the user's own driver: one of its devices, in one of two containers.

use std::process::Command;

use drakkar_node::{ClaimSpec, Node, PodHandle, device_class};

use super::pod::with_this_command;
use super::print::{
    Progress, counted, in_container, print_indented, print_line, report_kept_files, report_leftovers, yaml,
};
use super::waiting::{missing_devices, missing_of_pod, missing_registration, wait_for, wait_for_pod};
use super::{driver_log, dry_run, edits, keep};
use crate::exit::{Code, Failure};

const POD: &str = include_str!("own-pod.yaml");
/// The driver's name until it has registered.
const UNNAMED: &str = "driver";

pub(super) async fn run(
    node: &Node,
    command: &str,
    keep_running: bool,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]);
    let mut process = node.spawn(UNNAMED, shell)?;
    let result = tokio::select! {
        result = with_driver(node, keep_running, progress) => result,
        status = process.wait() => Err(Failure::new(Code::Invalid, format!("the driver exited: {}", status?))),
    };
    result.map_err(|failure| driver_log::attach(failure, &process))?;
    process.terminate().await?;
    Ok(())
}

async fn with_driver(node: &Node, keep_running: bool, progress: &mut Progress) -> Result<(), Failure> {
    let driver = wait_for(node.wait_any_registered(), async || missing_registration(node).await).await?;
    progress.complete(&format!("Driver {driver} is registered with the kubelet"))?;
    wait_for(node.wait_published(&driver), async || missing_devices(node, &driver).await).await?;
    let slices = node.slices(&driver).await?;
    let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).count();
    let devices = counted(devices, "device");
    let slices = counted(slices.len(), "ResourceSlice");
    progress.complete(&format!("It has published {devices} in {slices}"))?;
    print_line("")?;

    node.create(device_class(&driver)).await?;
    node.create(ClaimSpec::default().request("device", &driver, 1).claim("demo")).await?;
    let pod = node.create_pod(with_this_command(POD)?).await?;
    progress.restart_clock();
    let allocated = wait_for(pod.allocated(), async || missing_of_pod(&pod).await);
    let claims = wait_for_pod(node, &pod, &driver, allocated).await?;
    progress.complete("A pod with a claim for one device: the scheduler has allocated it")?;
    for (request, device) in claims.into_iter().flat_map(|claim| claim.devices) {
        print_line(&format!("      request {request}: {device}"))?;
    }
    print_line("")?;

    if dry_run::is_dry_run(node) {
        wait_for_pod(node, &pod, &driver, dry_run::run(node, progress)).await?;
    } else {
        let running = wait_for(pod.running(), async || missing_of_pod(&pod).await);
        wait_for_pod(node, &pod, &driver, running).await?;
        in_containers(node, &pod, progress).await?;
    }
    if let Some(status) = node.claim("demo").await?.and_then(|claim| claim.status).and_then(|status| status.devices) {
        print_line("    The device status that the driver reported to the API server:")?;
        print_indented(&yaml(&serde_json::to_value(status).map_err(std::io::Error::from)?)?)?;
        print_line("")?;
    }

    if keep_running {
        return keep(node, &pod, "with").await;
    }
    let claim = node.claim_ref("demo").await?;
    progress.restart_clock();
    pod.delete().await?;
    progress.complete("The pod is deleted: containers stopped, claim unprepared")?;
    let leftovers = node.leftovers_of(&driver, &[claim]).await?;
    report_leftovers(&leftovers.of_claims)?;
    report_kept_files(&leftovers.of_driver)
}

/// Shows the device and its metadata in the containers.
async fn in_containers(node: &Node, pod: &PodHandle<'_>, progress: &mut Progress) -> Result<(), Failure> {
    progress.complete("The driver has prepared the claim; the containers are running")?;
    edits::print_of(node, "demo").await?;
    if !in_container(pod, "with", &["list"]).await? {
        print_line("    A driver that uses drakkar-plugin writes metadata files if you set")?;
        print_line("    --enable-device-metadata or ENABLE_DEVICE_METADATA=true.")?;
        print_line("")?;
    }
    print_line("    The container that does not use the claim has no metadata of it:")?;
    in_container(pod, "without", &["list"]).await?;
    Ok(())
}
