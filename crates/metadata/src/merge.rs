//! Several files about one request, one per driver, as one.

use std::collections::HashMap;

use crate::types::DeviceMetadata;

/// Merges what several drivers say about one request, in the order given, as the Go reader does: the first pod claim
/// name counts, requests of the same name are joined with their devices one after the other, other requests follow
/// in order of appearance. The result has no object metadata, because it is no one object.
pub fn merge<'a>(files: impl IntoIterator<Item = &'a DeviceMetadata>) -> DeviceMetadata {
    let mut merged = DeviceMetadata::default();
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
