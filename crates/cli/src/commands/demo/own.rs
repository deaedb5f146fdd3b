//! The story with somebody's own driver: one of its devices, in one of two containers.

use std::process::Command;

use drakkar_node::{ClaimSpec, DriverProcess, Node, PodHandle, device_class};

use super::pod::with_this_command;
use super::show::{Steps, in_container, indented, say, tell_kept, tell_leftovers, yaml};
use super::{keep, shown};
use crate::exit::{Code, Failure};

const POD: &str = include_str!("own-pod.yaml");
/// What the driver is called as long as it has not said its own name.
const UNNAMED: &str = "driver";

pub(super) async fn tell(node: &Node, command: &str, keeps: bool, steps: &mut Steps) -> Result<(), Failure> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]);
    let mut process = node.spawn(UNNAMED, shell)?;
    let told = tokio::select! {
        told = with_driver(node, keeps, steps) => told,
        ended = process.wait() => Err(Failure::new(Code::Invalid, format!("the driver has ended: {}", ended?))),
    };
    told.map_err(|failure| failure.hint(hint(&process)))?;
    process.terminate().await?;
    Ok(())
}

async fn with_driver(node: &Node, keeps: bool, steps: &mut Steps) -> Result<(), Failure> {
    let driver = node.wait_any_registered().await?;
    steps.step(&format!("Driver {driver} is registered with the kubelet"))?;
    node.wait_published(&driver).await?;
    let slices = node.slices(&driver).await?;
    let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).count();
    steps.step(&format!("It has published {devices} devices in {} slices", slices.len()))?;
    say("")?;

    node.create(device_class(&driver)).await?;
    node.create(ClaimSpec::default().request("device", &driver, 1).claim("demo")).await?;
    let pod = node.create_pod(with_this_command(POD)?).await?;
    steps.restart_clock();
    let claims = pod.allocated().await?;
    steps.step("A pod with a claim for one device: the scheduler has chosen")?;
    for (request, device) in claims.into_iter().flat_map(|claim| claim.devices) {
        say(&format!("      request {request}: {device}"))?;
    }
    say("")?;

    if shown::is_so(node) {
        shown::tell(node, steps).await?;
    } else {
        in_containers(&pod, steps).await?;
    }
    if let Some(status) = node.claim("demo").await?.and_then(|claim| claim.status).and_then(|status| status.devices) {
        say("    What the driver has told the API server of the device:")?;
        indented(&yaml(&serde_json::to_value(status).map_err(std::io::Error::from)?)?)?;
        say("")?;
    }

    if keeps {
        return keep(node, &pod, "with").await;
    }
    let claim = node.claim_ref("demo").await?;
    steps.restart_clock();
    pod.delete().await?;
    steps.step("The pod is deleted: containers ended, claim unprepared")?;
    let left = node.leftovers_of(&driver, &[claim]).await?;
    tell_leftovers(&left.of_claims)?;
    tell_kept(&left.of_driver)
}

/// What the containers see of the device.
async fn in_containers(pod: &PodHandle<'_>, steps: &mut Steps) -> Result<(), Failure> {
    pod.running().await?;
    steps.step("The driver has prepared the claim, and the containers run")?;
    if !in_container(pod, "with", &["list"]).await? {
        say("    A driver on drakkar-plugin writes a metadata file if it is told to:")?;
        say("    --enable-device-metadata, or ENABLE_DEVICE_METADATA=true.")?;
        say("")?;
    }
    say("    The container that does not use the claim has nothing of it:")?;
    in_container(pod, "without", &["list"]).await?;
    Ok(())
}

/// What the driver said last, if anything: it may know what is wrong.
pub(super) fn hint(process: &DriverProcess) -> String {
    let log = process.log().unwrap_or_else(|error| error.to_string());
    let log = anstream::adapter::strip_str(&log).to_string();
    let last: Vec<&str> = log.lines().rev().take(5).collect();
    if last.is_empty() {
        return "the driver has printed nothing; it finds its node in KUBECONFIG, NODE_NAME, KUBELET_ROOT_DIR and CDI_DIR"
            .to_owned();
    }
    let lines: Vec<&str> = last.into_iter().rev().collect();
    format!("the driver said last: {}", lines.join(" / "))
}
