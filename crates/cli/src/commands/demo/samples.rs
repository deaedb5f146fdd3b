//! The story with the sample drivers: a GPU whose metadata is there at once, and a network interface whose comes later.

use std::process::Command;

use drakkar_node::{DriverProcess, Node, NodeError, PodHandle};
use drakkar_plugin::{Flags, PluginBuilder};

use super::own::hint;
use super::pod::with_this_command;
use super::show::{Steps, in_container, indented, say};
use super::{COMMAND_IN_CONTAINER, keep, runtime, shown};
use crate::args::SampleKind;
use crate::exit::{Code, Failure};
use crate::sample_drivers::Sample;

/// The demo's GPU driver.
const GPUS: Sample = Sample::Gpu { count: 2 };
const OBJECTS: &str = include_str!("objects.yaml");
const POD: &str = include_str!("pod.yaml");

/// Runs a sample driver until a signal ends it.
pub(crate) fn drive(kind: SampleKind, count: u16, flags: &Flags) -> Result<(), Failure> {
    let sample = match kind {
        SampleKind::Gpu => Sample::Gpu { count },
        SampleKind::Net => Sample::Net,
    };
    let node = flags.node_name.clone().unwrap_or_default();
    let builder = PluginBuilder::new(sample.driver()).flags(flags);
    let ended = runtime()?.block_on(sample.run(builder, &node));
    ended.map_err(|error| Failure::new(Code::Refused, format!("{}: {error}", sample.driver())))
}

pub(super) async fn tell(node: &Node, keeps: bool, steps: &mut Steps) -> Result<(), Failure> {
    let [mut gpus, mut net] = [start(node, GPUS, "gpu")?, start(node, Sample::Net, "net")?];
    let ended = tokio::select! {
        told = with_drivers(node, keeps, steps) => {
            told?;
            gpus.terminate().await?;
            net.terminate().await?;
            return Ok(());
        }
        ended = gpus.wait() => (ended?, hint(&gpus)),
        ended = net.wait() => (ended?, hint(&net)),
    };
    Err(Failure::new(Code::Invalid, format!("a sample driver has ended: {}", ended.0)).hint(ended.1))
}

async fn with_drivers(node: &Node, keeps: bool, steps: &mut Steps) -> Result<(), Failure> {
    for sample in [GPUS, Sample::Net] {
        node.wait_registered(sample.driver()).await?;
        node.wait_published(sample.driver()).await?;
    }
    steps.step("Two drivers: registered with the kubelet, devices published")?;
    for sample in [GPUS, Sample::Net] {
        say(&format!("      {}  {}", sample.driver(), devices(node, sample).await?.join(", ")))?;
    }
    say("")?;

    steps.restart_clock();
    node.apply(OBJECTS).await?;
    let pod = node.create_pod(with_this_command(POD)?).await?;
    steps.step("A pod with two claims, and two containers that use one each")?;
    indented(POD.split_once("resourceClaims:").map_or(POD, |(_, rest)| rest).trim_start_matches('\n'))?;
    say("")?;

    steps.restart_clock();
    let claims = pod.allocated().await?;
    steps.step("The scheduler has given the claims their devices")?;
    for claim in claims {
        for (request, device) in claim.devices {
            say(&format!("      claim {:<22} request {request:<4} {device}", claim.name))?;
        }
    }
    say("")?;

    if shown::is_so(node) {
        shown::tell(node, steps).await?;
    } else {
        in_containers(&pod, steps).await?;
    }

    steps.restart_clock();
    let status = node.wait_device_status("net").await?;
    steps.step("The driver has told the API server, too: status.devices of net")?;
    indented(&super::show::yaml(&serde_json::to_value(status).map_err(std::io::Error::from)?)?)?;
    say("")?;

    if keeps {
        return keep(node, &pod, "train").await;
    }
    end(node, &pod, steps).await?;
    say("")?;
    say("`drakkar demo --keep` leaves it running to look around, and")?;
    say("`drakkar demo --driver COMMAND` does this with a driver of your own.")
}

/// What the containers see of their devices.
async fn in_containers(pod: &PodHandle<'_>, steps: &mut Steps) -> Result<(), Failure> {
    pod.running().await?;
    steps.step("The drivers have prepared the claims, and the containers run")?;
    say("    The GPU driver knew its devices when the claim was prepared:")?;
    in_container(pod, "train", &["list"]).await?;
    in_container(pod, "train", &["get", "gpus/gpu", "pciBusID"]).await?;
    say("    The other container has the file of its own request and no other. The")?;
    say("    network driver delivers when the network is set up, a moment later:")?;
    in_container(pod, "serve", &["list"]).await?;

    steps.restart_clock();
    let waited = pod.exec("serve", [COMMAND_IN_CONTAINER, "wait", "net/eth", "--for", "ips"]).await?;
    if !waited.status.success() {
        return Err(Failure::new(Code::NotWritten, String::from_utf8_lossy(&waited.stderr).into_owned()));
    }
    steps.step("The network is set up, and the running container sees it")?;
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

/// The pod goes, and with it all that there was of it.
async fn end(node: &Node, pod: &PodHandle<'_>, steps: &mut Steps) -> Result<(), Failure> {
    steps.restart_clock();
    pod.delete().await?;
    steps.step("The pod is deleted: containers ended, claims unprepared")?;
    let mut left = Vec::new();
    for sample in [GPUS, Sample::Net] {
        left.extend(node.leftovers(sample.driver()).await?);
    }
    super::show::tell_leftovers(&left)
}
