//! The measured driver: it prepares whatever is allocated, with four attributes of metadata, and publishes a given number of
//! devices. `interop driver` in e2e/interop does the same on Kubernetes' Go framework.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use drakkar_plugin::{
    BoxError, Claim, ClaimRef, Device, DeviceAttribute, DeviceMetadata, DraPlugin, DriverResources, Flags, Helper,
    PluginBuilder, Pool, PublishStatus, PublishedDevice,
};
use tokio::sync::mpsc;

/// A DRA driver without hardware, for benchmarks
#[derive(Parser)]
struct Arguments {
    /// The driver's name
    #[arg(long, default_value = "gpu.example.com", value_name = "NAME")]
    driver_name: String,
    /// The number of devices to publish at the start
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    devices: u64,
    /// Publish on demand: each line of standard input is a number of devices, the revision of the one in the middle, and `all`
    /// to publish all of them or `one` to update the one in the middle. Each is answered with the nanoseconds in which the
    /// devices are made, and those from then until everything is published
    #[arg(long)]
    orders: bool,
    #[command(flatten)]
    plugin: Flags,
}

struct Minimal;

impl DraPlugin for Minimal {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        claim
            .results()
            .map(|result| Ok(Device { metadata: Some(metadata(&result.device)?), ..Device::from(result) }))
            .collect()
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

/// The metadata of a device.
fn metadata(device: &str) -> Result<DeviceMetadata, BoxError> {
    let index: u64 = device.strip_prefix("gpu-").ok_or_else(|| format!("device {device} does not exist"))?.parse()?;
    Ok(DeviceMetadata::default()
        .attribute("resource.kubernetes.io/pciBusID", address(index))
        .attribute("index", i64::try_from(index)?)
        .attribute("model", "LATEST-GPU-MODEL")
        .attribute("driverVersion", DeviceAttribute::version("1.0.0")))
}

/// The simulated PCI address of a device.
fn address(index: u64) -> String {
    format!("0000:{:02x}:{:02x}.0", 3 + index / 32, index % 32)
}

/// A device with the attributes of the Go driver's devices.
fn small(index: u64) -> PublishedDevice {
    PublishedDevice::new(format!("gpu-{index}"))
        .attribute("resource.kubernetes.io/pciBusID", address(index))
        .attribute("model", "LATEST-GPU-MODEL")
        .attribute("driverVersion", DeviceAttribute::version("1.0.0"))
        .capacity("memory", "80Gi")
}

/// A device with as many attributes as those of larger drivers: about 460 bytes of JSON.
fn large(number: u64, revision: u64) -> PublishedDevice {
    let address = format!("{:04x}:{:02x}:{:02x}.0", number >> 13, (number >> 5) & 0xff, number & 0x1f);
    let index = i64::try_from(number).unwrap_or(i64::MAX);
    PublishedDevice::new(format!("gpu-{number}"))
        .attribute("index", index)
        .attribute("uuid", format!("GPU-5f3c1e0a-77a4-4f0e-8a55-{number:012x}"))
        .attribute("model", "Example Accelerator 9000 PCIe 80GB")
        .attribute("architecture", "example-9")
        .attribute("driverVersion", DeviceAttribute::version(format!("570.{revision}.0")))
        .attribute("numaNode", index % 8)
        .attribute("resource.kubernetes.io/pciBusID", address)
        .attribute("resource.kubernetes.io/pcieRoot", format!("pci{:04x}:{:02x}", number >> 13, (number >> 5) & 0xff))
        .capacity("memory", "80Gi")
        .capacity("multiprocessors", "132")
}

/// Publishes on demand: see `--orders`.
fn follow_orders(helper: &Helper, pool: String) {
    let (lines, mut orders) = mpsc::unbounded_channel::<(u64, u64, bool)>();
    std::thread::spawn(move || {
        let input = std::io::stdin().lines().map_while(Result::ok);
        for order in input.filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()? == "one"))
        }) {
            // The receiver is gone only when the driver is stopping.
            lines.send(order).ok();
        }
    });
    let publisher = helper.handles().publisher();
    tokio::spawn(async move {
        while let Some((count, revision, is_one)) = orders.recv().await {
            let middle = count / 2;
            let mut status = publisher.status();
            let begin = Instant::now();
            let (made, published) = if is_one {
                let device = large(middle, revision);
                (begin.elapsed(), publisher.update_devices(&pool, [device]))
            } else {
                let devices = (0..count).map(|number| large(number, if number == middle { revision } else { 0 }));
                let resources = DriverResources::default().pool(pool.as_str(), Pool::default().devices(devices));
                (begin.elapsed(), publisher.publish(resources))
            };
            if let Err(error) = published {
                eprintln!("error: {error}");
                continue;
            }
            if status.wait_for(|status| *status == PublishStatus::Published).await.is_ok() {
                println!("{} {}", made.as_nanos(), (begin.elapsed() - made).as_nanos());
            }
        }
    });
}

async fn run(arguments: Arguments) -> Result<(), BoxError> {
    let node = arguments.plugin.node_name.clone().unwrap_or_default();
    let builder = PluginBuilder::new(arguments.driver_name).flags(&arguments.plugin);
    let helper = builder
        .start_with(|handles| {
            if arguments.devices > 0 {
                let pool = Pool::default().devices((0..arguments.devices).map(small));
                handles.publish_resources(DriverResources::default().pool(node.as_str(), pool))?;
            }
            Ok(Minimal)
        })
        .await?;
    if arguments.orders {
        follow_orders(&helper, node);
    }
    Ok(helper.run_until_signal().await?)
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Without a line for each claim, as the Go driver.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .init();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
