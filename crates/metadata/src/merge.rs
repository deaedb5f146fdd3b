//! Merges the files of several drivers about one request.

use std::collections::HashMap;

use crate::types::Metadata;

/// Merges the metadata of several drivers about one request, in the given order, as the Go reader does.
///
/// The result has the first pod claim name, and the devices of requests with the same name one after the other. It has
/// no object metadata, because it is not one object.
pub fn merge<'a>(files: impl IntoIterator<Item = &'a Metadata>) -> Metadata {
    let mut merged = Metadata::default();
    let mut positions = HashMap::new();
    for file in files {
        if merged.pod_claim_name.is_none() {
            merged.pod_claim_name.clone_from(&file.pod_claim_name);
        }
        for request in &file.requests {
            let position = *positions.entry(request.name.as_str()).or_insert(merged.requests.len());
            match merged.requests.get_mut(position) {
                Some(known) => known.devices.extend_from_slice(&request.devices),
                None => merged.requests.push(request.clone()),
            }
        }
    }
    merged
}
