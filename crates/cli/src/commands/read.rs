//! `drakkar read`: all about one request.

use std::fmt::Write as _;

use drakkar_metadata::read::{ReadError, RequestMetadata};
use drakkar_metadata::show::Printable;
use drakkar_metadata::{Device, DeviceMetadata, Format, Query, Reader, Version, encode};
use serde_json::Value;

use crate::args::Output;
use crate::exit::Failure;
use crate::output::table::Table;
use crate::output::{print, print_bytes, print_yaml, style};

pub(crate) fn run(reader: &Reader, query: &Query, output: Output, to: Option<Version>) -> Result<(), Failure> {
    let request = reader.read(query)?;
    match output {
        Output::Table => print(&tables(&request))?,
        Output::Json => print_bytes(&document(&request, to))?,
        Output::Yaml => {
            // What was encoded a moment ago is one JSON document.
            let value: Value = serde_json::from_slice(&document(&request, to)).map_err(std::io::Error::from)?;
            print_yaml(&value)?;
        }
    }
    problems(&request.problems)
}

/// What could be read has been shown; what could not is told, and is the exit code.
pub(crate) fn problems(problems: &[ReadError]) -> Result<(), Failure> {
    Failure::all(problems).map_or(Ok(()), Err)
}

/// One document: the file as it is if there is only one, all of them merged otherwise.
fn document(request: &RequestMetadata, to: Option<Version>) -> Vec<u8> {
    let mut written = request.files.iter().filter_map(|file| file.content.as_ref().ok());
    let (first, more) = (written.next(), written.next().is_some());
    let version = match first.map(|decoded| decoded.format) {
        Some(Format::Released(version)) => version,
        _ => Version::V1Beta1,
    };
    let metadata: &DeviceMetadata = match first {
        Some(only) if !more => &only.metadata,
        _ => &request.metadata,
    };
    encode(metadata, &to.unwrap_or(version).into())
}

fn tables(request: &RequestMetadata) -> String {
    let mut text = String::new();
    let bold = style::HEADER;
    for file in &request.files {
        let Ok(decoded) = &file.content else { continue };
        let meta = &decoded.metadata.metadata;
        let _ = writeln!(
            text,
            "{bold}{}{bold:#}  claim {}/{}, generation {}, from {}",
            Printable::whole(file.claim_label()),
            Printable::whole(&meta.namespace),
            Printable::whole(&meta.name),
            meta.generation,
            Printable::whole(&file.driver),
        );
        for request in &decoded.metadata.requests {
            for device in &request.devices {
                let _ = writeln!(
                    text,
                    "  {}  {}/{}/{}",
                    Printable::whole(&request.name),
                    Printable::whole(&device.driver),
                    Printable::whole(&device.pool),
                    Printable::whole(&device.name)
                );
                text.push_str(&device_table(device));
            }
        }
    }
    text
}

fn device_table(device: &Device) -> String {
    let mut table = Table::new(["ATTRIBUTE", "KIND", "VALUE"]).indent(4);
    for (name, attribute) in &device.attributes {
        let kinds: Vec<&str> = attribute.set_values().map(|value| value.kind()).collect();
        table.row([name.clone(), kinds.join(","), attribute.to_string()]);
    }
    if let Some(data) = &device.network_data {
        let mut row = |name: &str, kind: &str, value: String| {
            if !value.is_empty() {
                table.row([format!("networkData.{name}"), kind.to_owned(), value]);
            }
        };
        row("interfaceName", "string", data.interface_name.clone());
        row("ips", "strings", data.ips.join(","));
        row("hardwareAddress", "string", data.hardware_address.clone());
    }
    table.render()
}
