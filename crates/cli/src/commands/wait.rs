//! `drakkar wait`: until the drivers have delivered.

use std::time::Duration;

use drakkar_metadata::read::{ReadError, RequestMetadata};
use drakkar_metadata::{Query, Reader};

use crate::exit::{Code, Failure};

pub(crate) fn run(reader: &Reader, query: &Query, attributes: &[String], timeout: Duration) -> Result<(), Failure> {
    let mut missing = Vec::new();
    let outcome = reader.wait(query, timeout, |request| {
        missing = missing_attributes(request, attributes);
        missing.is_empty()
    });
    match outcome {
        Ok(_) => Ok(()),
        Err(ReadError::TimedOut { waited, last }) if matches!(*last, ReadError::NotReady { .. }) => {
            let message = format!("gave up after {:.1} s: {query}: {}", waited.as_secs_f64(), missing.join("; "));
            Err(Failure::new(Code::NotWritten, message))
        }
        Err(error) => Err(error.into()),
    }
}

fn missing_attributes(request: &RequestMetadata, attributes: &[String]) -> Vec<String> {
    if attributes.is_empty() {
        return Vec::new();
    }
    if request.devices().next().is_none() {
        return vec!["there is no device yet".to_owned()];
    }
    let mut missing = Vec::new();
    for device in request.devices() {
        for attribute in attributes.iter().filter(|attribute| device.lookup(attribute).is_none()) {
            missing.push(format!("device {} has no {attribute}", device.name));
        }
    }
    missing
}
