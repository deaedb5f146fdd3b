//! `drakkar list`: lists all devices of this container.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use drakkar_metadata::name::RequestName;
use drakkar_metadata::path::{CLAIMS_SUBDIR, KEP_DIR, KUBERNETES_DIR, TEMPLATES_SUBDIR};
use drakkar_metadata::read::{ClaimKey, Discovery, ErrorClass, MetadataFile, ReadError, Reader};
use drakkar_metadata::{Device, Request};
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::args::Output;
use crate::exit::{Code, Failure, NO_METADATA_HINT};
use crate::output::table::{Sink, Table};
use crate::output::{cell, plain, styled, write_yaml};

pub(crate) fn run(reader: &Reader, output: Output) -> Result<(), Failure> {
    let Discovery { files, problems, .. } = reader.discover();
    if files.is_empty() && problems.is_empty() {
        let message = format!("no device metadata: nothing below {KUBERNETES_DIR} or {KEP_DIR}");
        return Err(Failure::new(Code::NotFound, message).hint(NO_METADATA_HINT));
    }
    match output {
        Output::Table => styled(|output| write_table(output, &files))?,
        Output::Json => plain(|output| {
            serde_json::to_writer_pretty(&mut *output, &FileList(&files))?;
            output.write_all(b"\n")
        })?,
        Output::Yaml => plain(|output| write_yaml(output, &FileList(&files)))?,
    }
    // A file that is not written yet is not an error; a broken one is.
    let is_broken = |error: &ReadError| error.class() != ErrorClass::NotWritten;
    let broken = files.into_iter().filter_map(|file| file.content.err()).filter(is_broken);
    Failure::all(&broken.chain(problems).collect::<Vec<_>>()).map_or(Ok(()), Err)
}

/// Writes a line for each device, and for each request and file without devices.
fn write_table(output: &mut dyn Write, files: &[MetadataFile]) -> io::Result<()> {
    let ambiguous = ambiguous_labels(files);
    let table = Table::new(["CLAIM", "REQUEST", "DRIVER", "DEVICE", "DETAILS"]);
    table.write(output, |sink| files.iter().try_for_each(|file| rows_of(file, &ambiguous, sink)))
}

pub(super) fn rows_of(file: &MetadataFile, ambiguous: &HashSet<&str>, sink: &mut Sink<'_, 5>) -> io::Result<()> {
    let label = file.claim_label();
    let claim = if ambiguous.contains(label) { qualified_claim(file).into() } else { Cow::from(label) };
    let mut row = |request: &str, driver: &str, device: &str, details: Cow<'_, str>| {
        let device = if device.is_empty() { "-" } else { device };
        sink([claim.as_ref().into(), request.into(), driver.into(), device.into(), details.as_ref().into()])
    };
    let decoded = match &file.content {
        Ok(decoded) => decoded,
        Err(error) => {
            let request = file.request.as_ref().map_or("", RequestName::as_str);
            return row(request, &file.driver, "", status(error).into());
        }
    };
    for request in &decoded.metadata.requests {
        if request.devices.is_empty() {
            row(&request.name, &file.driver, "", "no devices".into())?;
        }
        for device in &request.devices {
            row(&request.name, &device.driver, &device.name, details(device).into())?;
        }
    }
    Ok(())
}

/// Returns the names that several claims have. Such a claim is printed in its unambiguous form.
fn ambiguous_labels(files: &[MetadataFile]) -> HashSet<&str> {
    let mut first_of: HashMap<&str, &MetadataFile> = HashMap::new();
    let mut ambiguous = HashSet::new();
    for file in files {
        let first = *first_of.entry(file.claim_label()).or_insert(file);
        if !first.is_of_same_claim(file) {
            ambiguous.insert(file.claim_label());
        }
    }
    ambiguous
}

/// Returns the unambiguous form of a claim's name, as accepted on the command line.
fn qualified_claim(file: &MetadataFile) -> String {
    match &file.claim {
        ClaimKey::Claim(name) => format!("{CLAIMS_SUBDIR}/{name}"),
        ClaimKey::PodClaim(name) => format!("{TEMPLATES_SUBDIR}/{name}"),
    }
}

/// Returns the most useful facts about a device: its address, interface or number of attributes.
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

/// A list of files that is serialized one by one.
struct FileList<'a>(&'a [MetadataFile]);

impl Serialize for FileList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Document::of))
    }
}

/// A file in the JSON and YAML output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document<'a> {
    also_at: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "is_zero")]
    also_at_omitted: usize,
    claim: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_name: Option<&'a str>,
    devices: Devices<'a>,
    driver: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    path: Cow<'a, str>,
    reference: String,
    request: Option<&'a str>,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a str>,
}

impl<'a> Document<'a> {
    pub(super) fn of(file: &'a MetadataFile) -> Self {
        let content = file.content.as_ref();
        let meta = content.ok().map(|decoded| &decoded.metadata.metadata);
        Self {
            also_at: file.also_at.iter().map(|path| path.to_string_lossy()).collect(),
            also_at_omitted: file.also_at_omitted,
            claim: file.claim_label(),
            claim_name: meta.map(|meta| meta.name.as_str()),
            devices: Devices(content.map_or(&[], |decoded| decoded.metadata.requests.as_slice())),
            driver: &file.driver,
            error: content.err().map(ToString::to_string),
            format: content.ok().map(|decoded| decoded.format.to_string()),
            generation: meta.map(|meta| meta.generation),
            namespace: meta.map(|meta| meta.namespace.as_str()),
            path: file.path.to_string_lossy(),
            reference: qualified_claim(file),
            request: file.request.as_ref().map(RequestName::as_str),
            status: content.map_or_else(status, |_| "written"),
            uid: meta.map(|meta| meta.uid.as_str()),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Truncates a request's name that is too long to be valid, because it is repeated for each device of a file.
fn short(request: &str) -> Cow<'_, str> {
    const MAX_LENGTH: usize = 256;
    if request.len() > MAX_LENGTH { cell(request).into() } else { request.into() }
}

/// The devices of all requests, each with the name of its request.
struct Devices<'a>(&'a [Request]);

impl Serialize for Devices<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let devices = self.0.iter().flat_map(|request| request.devices.iter().map(move |device| (request, device)));
        serializer.collect_seq(devices.map(|(request, device)| {
            let mut value = json!(device);
            value["request"] = short(&request.name).into();
            value
        }))
    }
}
