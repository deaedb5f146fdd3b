//! The driver that the tests on a real cluster deploy. It has simulated devices, and its flags select what it uses of the
//! framework.
//!
//! Tests control it by files in the directory `control` below its plugin directory, which it polls ten times a second:
//! `revision` (a number; when it changes, the metadata of all prepared claims is updated), `unhealthy` (names of devices) and
//! `deliver` (any content; deferred metadata is delivered).

#![forbid(unsafe_code)]

mod control;
mod deliver;
mod devices;
mod driver;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use drakkar_plugin::{BoxError, DeferredMetadata, Flags, PluginBuilder, logging};
use tokio::sync::mpsc;

use crate::control::Control;
use crate::deliver::{Delivery, deliver, follow_revisions};
use crate::devices::resources;
use crate::driver::{E2e, Prepared};

/// A DRA driver without hardware, for tests on a real cluster
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The name of the driver
    #[arg(long, default_value = "gpu.example.com")]
    driver_name: String,
    /// The number of devices to publish
    #[arg(long, default_value_t = 8)]
    devices: usize,
    /// When containers get the metadata of their devices
    #[arg(long, value_enum, default_value_t = Metadata::Immediate)]
    metadata: Metadata,
    /// Deliver deferred and gated metadata only when the control file `deliver` exists
    #[arg(long)]
    deliver_on_request: bool,
    /// Report the devices' health to the kubelet
    #[arg(long)]
    health: bool,
    /// Report the devices in the status of claims
    #[arg(long)]
    status: bool,
    #[command(flatten)]
    plugin: Flags,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Metadata {
    /// With prepare
    Immediate,
    /// After prepare; the file is empty until then
    Deferred,
    /// After prepare; no container starts before
    Gated,
    /// From the published attributes: the driver provides no metadata itself
    Published,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::init(&arguments.plugin);
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), BoxError> {
    let node = arguments.plugin.node_name.clone().ok_or("the node's name is missing: set --node-name or NODE_NAME")?;
    let plugin = arguments.plugin.kubelet_root_dir.join("plugins").join(&arguments.driver_name);
    let control = Arc::new(Control::new(&plugin.join("control"))?);
    let (deliveries, queue) = mpsc::unbounded_channel();
    let prepared = Prepared::default();
    let deferred = match arguments.metadata {
        Metadata::Gated => DeferredMetadata::Gate,
        _ => DeferredMetadata::Placeholder,
    };
    let resources = resources(&node, arguments.devices)?;
    let builder = PluginBuilder::new(&arguments.driver_name)
        .version(env!("CARGO_PKG_VERSION"))
        .flags(&arguments.plugin)
        .deferred_metadata(deferred)
        .metadata_from_published(arguments.metadata == Metadata::Published);
    let helper = builder
        .start_with(|handles| {
            handles.publish_resources(resources)?;
            Ok(E2e {
                node,
                count: arguments.devices,
                metadata: arguments.metadata,
                health: arguments.health,
                control: control.clone(),
                prepared: prepared.clone(),
                deliveries: deliveries.clone(),
                reporter: arguments.status.then(|| handles.status_reporter()),
            })
        })
        .await?;
    let delivery = Delivery { updater: helper.handles().metadata_updater(), status: arguments.status };
    let tasks = [
        tokio::spawn(deliver(queue, arguments.deliver_on_request, delivery, control.clone())),
        tokio::spawn(follow_revisions(control, prepared, deliveries)),
    ];
    let ended = helper.run_until_signal().await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(ended?)
}
