//! `drakkar read`: shows the metadata of a claim or a request.

use std::borrow::Cow;
use std::io::{self, Write};

use drakkar_metadata::read::{MetadataFile, ReadError, Selection};
use drakkar_metadata::{Device, Format, KIND, Metadata, Reader, Request, Version, encode, merge};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::Output;
use crate::exit::Failure;
use crate::output::table::Table;
use crate::output::{cell, plain, print_bytes, style, styled, write_yaml};

pub(crate) fn run(reader: &Reader, selection: &Selection, output: Output, to: Option<Version>) -> Result<(), Failure> {
    let found = reader.select(selection)?;
    let (files, broken): (Vec<_>, Vec<_>) = found.files.into_iter().partition(|file| file.content.is_ok());
    let problems: Vec<ReadError> =
        broken.into_iter().filter_map(|file| file.content.err()).chain(found.problems).collect();
    if files.is_empty() {
        return Err(ReadError::all(problems).into());
    }
    match output {
        Output::Table => styled(|output| write_tables(output, &files))?,
        Output::Json => {
            let (metadata, version) = document(&files, to);
            print_bytes(&encode(&metadata, &version.into()))?;
        }
        Output::Yaml => {
            let (metadata, version) = document(&files, to);
            plain(|output| write_yaml(output, &Document::of(&metadata, version)))?;
        }
    }
    // The files that could not be read are reported after the others are printed.
    Failure::all(&problems).map_or(Ok(()), Err)
}

/// Returns the document to print and its version: the file's own if there is only one, otherwise all files merged.
fn document(files: &[MetadataFile], to: Option<Version>) -> (Cow<'_, Metadata>, Version) {
    let contents = || files.iter().filter_map(|file| file.content.as_ref().ok());
    let version = match contents().next().map(|decoded| decoded.format) {
        Some(Format::Released(version)) => version,
        _ => Version::V1Beta1,
    };
    let mut all = contents();
    let metadata = match (all.next(), all.next()) {
        (Some(only), None) => Cow::Borrowed(&only.metadata),
        _ => Cow::Owned(merge(contents().map(|decoded| &decoded.metadata))),
    };
    (metadata, to.unwrap_or(version))
}

/// A metadata document for YAML, with the fields in the order of the JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    kind: &'static str,
    api_version: &'static str,
    /// A JSON value, because parts of the metadata are kept as JSON text.
    metadata: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_claim_name: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Request]>::is_empty")]
    requests: &'a [Request],
}

impl<'a> Document<'a> {
    fn of(metadata: &'a Metadata, version: Version) -> Self {
        Self {
            kind: KIND,
            api_version: version.api_version(),
            metadata: json!(metadata.metadata),
            pod_claim_name: metadata.pod_claim_name.as_deref(),
            requests: &metadata.requests,
        }
    }
}

fn write_tables(output: &mut dyn Write, files: &[MetadataFile]) -> io::Result<()> {
    let bold = style::HEADER;
    for file in files {
        let Ok(decoded) = &file.content else { continue };
        let meta = &decoded.metadata.metadata;
        writeln!(
            output,
            "{bold}{}{bold:#}  claim {}/{}, generation {}, from {}",
            cell(file.claim_label()),
            cell(&meta.namespace),
            cell(&meta.name),
            meta.generation,
            cell(&file.driver),
        )?;
        for request in &decoded.metadata.requests {
            for device in &request.devices {
                let [request, driver, pool, name] =
                    [&request.name, &device.driver, &device.pool, &device.name].map(|text| cell(text));
                writeln!(output, "  {request}  {driver}/{pool}/{name}")?;
                write_device(output, device)?;
            }
        }
    }
    Ok(())
}

fn write_device(output: &mut dyn Write, device: &Device) -> io::Result<()> {
    Table::new(["ATTRIBUTE", "KIND", "VALUE"]).indent(4).write(output, |sink| {
        for (name, attribute) in &device.attributes {
            let kinds: Vec<&str> = attribute.set_values().map(|value| value.kind()).collect();
            sink([name.into(), kinds.join(",").into(), attribute.to_string().into()])?;
        }
        let Some(data) = &device.network_data else { return Ok(()) };
        let rows = [
            ("networkData.interfaceName", "string", Cow::from(&data.interface_name)),
            ("networkData.ips", "strings", data.ips.join(",").into()),
            ("networkData.hardwareAddress", "string", Cow::from(&data.hardware_address)),
        ];
        for (name, kind, value) in rows.into_iter().filter(|(_, _, value)| !value.is_empty()) {
            sink([name.into(), kind.into(), value])?;
        }
        Ok(())
    })
}
