//! `drakkar get`: prints bare values, for scripts, or the names of what there is.

use std::collections::BTreeSet;
use std::io::Write;

use drakkar_metadata::name::DeviceName;
use drakkar_metadata::read::{MetadataFile, Selection};
use drakkar_metadata::{AttributeValue, Device, Query, Reader};
use serde_json::{Value, json};

use crate::args::LineOutput;
use crate::exit::{Code, Failure};
use crate::output::{cell, plain};

/// What to print of a request.
pub(crate) struct Wanted<'a> {
    pub(crate) attribute: Option<&'a str>,
    pub(crate) device: Option<&'a DeviceName>,
    /// Prints values with control characters, too.
    pub(crate) raw: bool,
}

pub(crate) fn run(
    reader: &Reader,
    selection: &Selection,
    wanted: &Wanted<'_>,
    output: LineOutput,
) -> Result<(), Failure> {
    match (selection, wanted.attribute) {
        (Selection::Request(query), Some(attribute)) => values(reader, query, attribute, wanted, output),
        (Selection::Request(query), None) => {
            let request = reader.read(query)?.complete()?;
            print_names(&request.devices().flat_map(attribute_names).collect(), output)
        }
        (selection, attribute) => {
            let files = reader.select(selection)?.files;
            let names: BTreeSet<String> = files.iter().flat_map(request_names).collect();
            if attribute.is_none() {
                return print_names(&names, output);
            }
            let message = format!("{selection} is a claim; an attribute belongs to one of its requests");
            let known = join(names.iter().map(String::as_str));
            Err(Failure::new(Code::Usage, message).hint(format!("the requests of {selection} are: {known}")))
        }
    }
}

/// Returns the requests of a file: that of its path or, for a file with all requests of a claim, those of its content.
fn request_names(file: &MetadataFile) -> Vec<String> {
    match &file.request {
        Some(request) => vec![request.to_string()],
        None => file.requests().map(|request| request.base_name().to_owned()).collect(),
    }
}

/// Returns the names under which a device has values.
fn attribute_names(device: &Device) -> Vec<String> {
    let of_network = ["interfaceName", "ips", "hardwareAddress"];
    let of_network = of_network.into_iter().filter(|name| device.lookup(name).is_some()).map(str::to_owned);
    device.attributes.keys().cloned().chain(of_network).collect()
}

fn print_names(names: &BTreeSet<String>, output: LineOutput) -> Result<(), Failure> {
    Ok(plain(|writer| match output {
        LineOutput::Json => write_json(writer, &json!(names)),
        LineOutput::Text => names.iter().try_for_each(|name| writeln!(writer, "{}", cell(name))),
    })?)
}

fn values(
    reader: &Reader,
    query: &Query,
    attribute: &str,
    wanted: &Wanted<'_>,
    output: LineOutput,
) -> Result<(), Failure> {
    let request = reader.read(query)?.complete()?;
    let is_selected = |candidate: &&Device| wanted.device.is_none_or(|name| *name == candidate.name.as_str());
    let devices: Vec<&Device> = request.devices().filter(is_selected).collect();
    if devices.is_empty() {
        let names = join(request.devices().map(|device| device.name.as_str()));
        let message = match wanted.device {
            Some(name) => format!("{query} has no device {name}; it has: {names}"),
            None => format!("{query} has no devices"),
        };
        return Err(Failure::new(Code::NotFound, message));
    }
    for device in &devices {
        let Some(value) = device.lookup(attribute) else {
            let known = join(device.attributes.keys().map(String::as_str));
            let name = cell(&device.name);
            let message = format!("device {name} of {query} has no {attribute}; its attributes are: {known}");
            return Err(Failure::new(Code::NotFound, message));
        };
        let Some(value) = value.value() else {
            let name = cell(&device.name);
            let message = format!("device {name} of {query}: {attribute} does not have exactly one value");
            return Err(Failure::new(Code::Invalid, message).hint(format!("`drakkar read {query}` shows its values")));
        };
        // JSON escapes them.
        let is_unsafe = output == LineOutput::Text && !wanted.raw;
        if is_unsafe && value.elements().iter().any(|element| element.contains(is_control)) {
            let name = cell(&device.name);
            let message = format!("device {name} of {query}: {attribute} contains a control character");
            let hint = "--raw prints it unchanged; a newline in a value then looks like the end of the value";
            return Err(Failure::new(Code::Invalid, message).hint(hint));
        }
    }
    Ok(plain(|writer| match output {
        LineOutput::Json => {
            let values: Vec<Value> = devices.iter().filter_map(|device| json_value(device, attribute)).collect();
            write_json(writer, &json!(values))
        }
        LineOutput::Text => {
            for value in devices.iter().filter_map(|device| device.lookup(attribute)) {
                for element in value.value().iter().flat_map(AttributeValue::elements) {
                    writeln!(writer, "{element}")?;
                }
            }
            Ok(())
        }
    })?)
}

/// Returns the value of a device with its type: a number is a number, and a list is a list.
fn json_value(device: &Device, attribute: &str) -> Option<Value> {
    let found = device.lookup(attribute)?;
    let value = match found.value()? {
        AttributeValue::Int(value) => json!(value),
        AttributeValue::Bool(value) => json!(value),
        AttributeValue::String(value) | AttributeValue::Version(value) => json!(value),
        AttributeValue::Ints(list) => json!(list),
        AttributeValue::Bools(list) => json!(list),
        AttributeValue::Strings(list) | AttributeValue::Versions(list) => json!(list),
        // A type that a later version of the library adds.
        other => json!(other.elements()),
    };
    Some(json!({"device": device.name, "driver": device.driver, "pool": device.pool, "value": value}))
}

fn write_json(writer: &mut dyn Write, value: &Value) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut *writer, value)?;
    writer.write_all(b"\n")
}

/// Returns whether a character ends a line or controls a terminal. Real values have no such characters.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Joins the names, up to a limit.
fn join<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    const MAX_NAMES: usize = 64;
    let mut names: Vec<String> = names.by_ref().take(MAX_NAMES + 1).map(cell).collect();
    if let Some(more) = names.get_mut(MAX_NAMES) {
        "…".clone_into(more);
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
