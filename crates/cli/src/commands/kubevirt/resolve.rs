//! `drakkar kubevirt resolve`: the addresses of devices from claims.

use std::borrow::Cow;

use drakkar_kubevirt::device_plugin::Environment;
use drakkar_kubevirt::hostdev::{DeviceList, HostDevError, Options, convert};
use drakkar_kubevirt::resolve::{ResolvedRequest, Resolver};
use drakkar_kubevirt::vmi::{Network, VirtualMachineInstance};
use serde::Serialize;

use super::devices::{failure, note_released, resolve_failure};
use crate::args::Output;
use crate::exit::Failure;
use crate::output::table::{Row, Table};
use crate::output::{plain, styled, write_yaml};

/// A device of a virtual machine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resolved {
    kind: &'static str,
    name: String,
    /// The annotation that names the device: the hook adds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    annotation: Option<&'static str>,
    claim: String,
    request: String,
    driver: String,
    pool: String,
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pci_bus_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mdev_uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    numa_node: Option<u32>,
    files: Vec<std::path::PathBuf>,
}

pub(crate) fn run(vmi: &VirtualMachineInstance, resolver: &Resolver, output: Output) -> Result<(), Failure> {
    // Devices of device plugins are not resolved, so their variables do not matter.
    let environment = Environment::default();
    let mut converted = convert(vmi, resolver, &environment, &Options::with_annotated());
    converted.resolved.sort_by_key(|(entry, _)| entry.list());
    let mut all = Vec::new();
    for (entry, resolved) in &converted.resolved {
        // A device without an address that its kind can use is an error.
        if converted.error_of(entry).is_none() {
            all.extend(rows(entry.list(), entry.name(), resolved));
        }
    }
    let is_ours = |error: &&HostDevError| error.device().is_some() || matches!(error, HostDevError::Annotation(_));
    let mut failures: Vec<Failure> = converted.errors.iter().filter(is_ours).map(failure).collect();
    for network in other_networks(vmi) {
        let Some(request) = &network.resource_claim else { continue };
        match resolver.resolve(&vmi.spec.resource_claims, request) {
            Ok(resolved) => all.extend(rows(DeviceList::Interfaces, &network.name, &resolved)),
            Err(error) => {
                let message = format!("network {:?}: {error}", network.name);
                failures.push(resolve_failure(&error, message));
            }
        }
    }
    match output {
        Output::Table => print_table(&all)?,
        Output::Yaml => plain(|writer| write_yaml(writer, &all))?,
        Output::Json => plain(|writer| {
            serde_json::to_writer_pretty(&mut *writer, &all)?;
            writer.write_all(b"\n")
        })?,
    }
    note_released(vmi, resolver, &environment, &converted);
    Failure::join(failures).map_or(Ok(()), Err)
}

/// Returns the networks with a claim that have no SR-IOV interface: they have devices, but no host devices.
fn other_networks(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &Network> {
    let interfaces = &vmi.spec.domain.devices.interfaces;
    let is_converted =
        |network: &&Network| interfaces.iter().any(|interface| interface.sriov && interface.name == network.name);
    vmi.spec.networks.iter().filter(move |network| !is_converted(network))
}

fn rows(list: DeviceList, name: &str, resolved: &ResolvedRequest) -> Vec<Resolved> {
    let rows = resolved.devices.iter().map(|device| Resolved {
        kind: list.kind(),
        name: name.to_owned(),
        annotation: list.annotation(),
        claim: resolved.claim.clone(),
        request: device.request.clone(),
        driver: device.driver.clone(),
        pool: device.pool.clone(),
        device: device.name.clone(),
        pci_bus_id: device.pci_bus_id.clone(),
        mdev_uuid: device.mdev_uuid.clone(),
        numa_node: device.numa_node,
        files: resolved.files.clone(),
    });
    rows.collect()
}

fn print_table(all: &[Resolved]) -> std::io::Result<()> {
    let table = Table::new(["DEVICE", "CLAIM/REQUEST", "DRIVER", "ADDRESS"]);
    styled(|writer| {
        table.write(writer, |sink| {
            for device in all {
                let address = device.mdev_uuid.as_deref().or(device.pci_bus_id.as_deref()).unwrap_or("none");
                let row: Row<'_, 4> = [
                    format!("{} {}", device.kind, device.name).into(),
                    format!("{}/{}", device.claim, device.request).into(),
                    Cow::Borrowed(&device.driver),
                    Cow::Borrowed(address),
                ];
                sink(row)?;
            }
            Ok(())
        })
    })
}
