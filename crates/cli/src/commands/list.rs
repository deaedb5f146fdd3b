//! `drakkar list`: everything that this container has.

use drakkar_metadata::Device;
use drakkar_metadata::name::RequestName;
use drakkar_metadata::path::{CLAIMS_SUBDIR, KEP_DIR, KUBERNETES_DIR, TEMPLATES_SUBDIR};
use drakkar_metadata::read::{ClaimKey, Discovery, ErrorClass, MetadataFile, ReadError, Reader};
use serde_json::{Value, json};

use crate::args::Output;
use crate::exit::{Code, Failure, WHERE_METADATA_COMES_FROM};
use crate::output::table::Table;
use crate::output::{print, print_bytes, print_yaml};

pub(crate) fn run(reader: &Reader, output: Output) -> Result<(), Failure> {
    let Discovery { files, problems, .. } = reader.discover();
    if files.is_empty() && problems.is_empty() {
        let message = format!("no device metadata here: nothing below {KUBERNETES_DIR} or {KEP_DIR}");
        return Err(Failure::new(Code::NotFound, message).hint(WHERE_METADATA_COMES_FROM));
    }
    match output {
        Output::Table => print(&table(&files))?,
        Output::Json => print_bytes(format!("{:#}\n", documents(&files)).as_bytes())?,
        Output::Yaml => print_yaml(&documents(&files))?,
    }
    // A driver that has yet to deliver is nothing wrong; what is broken is.
    let is_broken = |error: &ReadError| error.class() != ErrorClass::NotWritten;
    let broken = files.into_iter().filter_map(|file| file.content.err()).filter(is_broken);
    Failure::all(&broken.chain(problems).collect::<Vec<_>>()).map_or(Ok(()), Err)
}

fn table(files: &[MetadataFile]) -> String {
    let mut table = Table::new(["CLAIM", "REQUEST", "DRIVER", "DEVICE", "DETAILS"]);
    for file in files {
        let claim = claim_text(file, files);
        let request = file.request.as_ref().map(ToString::to_string).unwrap_or_default();
        match &file.content {
            Ok(decoded) => {
                for request in &decoded.metadata.requests {
                    if request.devices.is_empty() {
                        let none = "no devices".to_owned();
                        table.row([claim.clone(), request.name.clone(), file.driver.clone(), "-".into(), none]);
                    }
                    for device in &request.devices {
                        let name = if device.name.is_empty() { "-".to_owned() } else { device.name.clone() };
                        table.row([claim.clone(), request.name.clone(), device.driver.clone(), name, details(device)]);
                    }
                }
            }
            Err(error) => table.row([claim, request, file.driver.clone(), "-".into(), status(error).to_owned()]),
        }
    }
    table.render()
}

/// The claim as one would name it on the command line: by its label, if no other claim here has the same.
fn claim_text(file: &MetadataFile, files: &[MetadataFile]) -> String {
    let label = file.claim_label();
    let is_other = |other: &MetadataFile| other.claim_label() == label && !other.is_of_same_claim(file);
    if files.iter().any(is_other) { qualified_claim(file) } else { label.to_owned() }
}

/// The claim in the form that is never ambiguous.
fn qualified_claim(file: &MetadataFile) -> String {
    match &file.claim {
        ClaimKey::Claim(name) => format!("{CLAIMS_SUBDIR}/{name}"),
        ClaimKey::PodClaim(name) => format!("{TEMPLATES_SUBDIR}/{name}"),
    }
}

/// The one thing that somebody who looks for this device most likely wants.
fn details(device: &Device) -> String {
    let mut details = Vec::new();
    if let Some(uuid) = device.mdev_uuid() {
        details.push(format!("mdev {uuid}"));
    } else if let Some(address) = device.pci_bus_id() {
        details.push(format!("pci {address}"));
    }
    details.extend(device.interface_name().map(str::to_owned));
    details.extend(device.ips().first().cloned());
    if details.is_empty() {
        let count = device.attributes.len();
        let plural = if count == 1 { "" } else { "s" };
        return format!("{count} attribute{plural}");
    }
    details.join(" ")
}

fn status(error: &ReadError) -> &'static str {
    match error.class() {
        ErrorClass::NotWritten => "not written yet",
        ErrorClass::NotFound | ErrorClass::Unreadable => "cannot be read",
        _ => "broken",
    }
}

fn documents(files: &[MetadataFile]) -> Value {
    files.iter().map(document).collect()
}

fn document(file: &MetadataFile) -> Value {
    let mut document = json!({
        "claim": file.claim_label(),
        "reference": qualified_claim(file),
        "request": file.request.as_ref().map(RequestName::as_str),
        "driver": file.driver,
        "path": file.path.to_string_lossy(),
        "alsoAt": file.also_at.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
    });
    match &file.content {
        Ok(decoded) => {
            let meta = &decoded.metadata.metadata;
            document["status"] = "written".into();
            document["format"] = decoded.format.to_string().into();
            document["claimName"] = meta.name.as_str().into();
            document["namespace"] = meta.namespace.as_str().into();
            document["uid"] = meta.uid.as_str().into();
            document["generation"] = meta.generation.into();
            document["devices"] = decoded
                .metadata
                .requests
                .iter()
                .flat_map(|request| request.devices.iter().map(move |device| (request, device)))
                .map(|(request, device)| {
                    let mut value = json!(device);
                    value["request"] = request.name.as_str().into();
                    value
                })
                .collect();
        }
        Err(error) => {
            document["status"] = status(error).into();
            document["error"] = error.to_string().into();
            document["devices"] = json!([]);
        }
    }
    document
}
