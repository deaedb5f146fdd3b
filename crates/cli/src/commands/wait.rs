//! `drakkar wait`: waits until the drivers have written the metadata.

use std::time::Duration;

use drakkar_metadata::read::{ReadError, RequestMetadata};
use drakkar_metadata::{Query, Reader};

use crate::exit::{Code, Failure};
use crate::output::cell;

/// The maximum number of missing attributes in the message.
const MAX_MISSING: usize = 5;

pub(crate) fn run(reader: &Reader, query: &Query, attributes: &[String], timeout: Duration) -> Result<(), Failure> {
    let mut missing = Vec::new();
    let outcome = reader.wait(query, timeout, |request| {
        missing = missing_attributes(request, attributes);
        missing.is_empty()
    });
    let Err(error) = outcome else { return Ok(()) };
    let is_written = matches!(&error, ReadError::TimedOut { last, .. } if matches!(**last, ReadError::NotReady { .. }));
    if is_written {
        // The library does not know which attributes are missing.
        let others = missing.len().saturating_sub(MAX_MISSING);
        missing.truncate(MAX_MISSING);
        let more = if others > 0 { format!("; and {others} more") } else { String::new() };
        return Err(Failure::new(Code::NotWritten, format!("{error}: {}{more}", missing.join("; "))));
    }
    Err(error.into())
}

fn missing_attributes(request: &RequestMetadata, attributes: &[String]) -> Vec<String> {
    if attributes.is_empty() {
        return Vec::new();
    }
    if request.devices().next().is_none() {
        return vec!["no device yet".to_owned()];
    }
    let mut missing = Vec::new();
    for device in request.devices() {
        for attribute in attributes.iter().filter(|attribute| device.lookup(attribute).is_none()) {
            missing.push(format!("device {} has no {attribute}", cell(&device.name)));
        }
    }
    missing
}
