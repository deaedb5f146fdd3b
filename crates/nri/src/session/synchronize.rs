//! The parts of `Synchronize`, put together within limits.

use drakkar_nri_api::v1alpha1::{Container, PodSandbox, SynchronizeRequest};
use prost::bytes::{Buf as _, Bytes};
use prost::encoding::{DecodeContext, decode_key, skip_field};

use crate::request::message;
use crate::status::{Code, Status};

/// All parts together: far more than the pods of a node need.
const MAX_BYTES: usize = 64 << 20;
/// All parts together. An empty pod takes two bytes of a message and hundreds in memory.
const MAX_OBJECTS: usize = 64 << 10;

/// All pods and containers.
pub(super) type Whole = (Vec<PodSandbox>, Vec<Container>);

/// The pods and containers that have arrived.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pods: Vec<PodSandbox>,
    containers: Vec<Container>,
    bytes: usize,
}

impl Parts {
    /// Adds a part. Returns everything if it was the last one.
    pub(super) fn add(&mut self, payload: Bytes) -> Result<Option<Whole>, Status> {
        let result = self.try_add(payload);
        if result.is_err() {
            *self = Self::default();
        }
        result
    }

    fn try_add(&mut self, payload: Bytes) -> Result<Option<Whole>, Status> {
        self.bytes += payload.len();
        let objects = self.pods.len() + self.containers.len();
        if self.bytes > MAX_BYTES || objects + count_fields(payload.clone(), MAX_OBJECTS) > MAX_OBJECTS {
            let text = format!("Synchronize with more than {MAX_OBJECTS} pods and containers or {MAX_BYTES} bytes");
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        let SynchronizeRequest { pods, containers, more } = message("Synchronize", payload)?;
        self.pods.extend(pods);
        self.containers.extend(containers);
        if more {
            return Ok(None);
        }
        let Self { pods, containers, .. } = std::mem::take(self);
        Ok(Some((pods, containers)))
    }
}

/// Counts the fields of a message, up to a limit, without decoding them. What cannot be decoded ends the count.
fn count_fields(mut payload: Bytes, limit: usize) -> usize {
    let mut count = 0;
    while payload.has_remaining() && count <= limit {
        let Ok((tag, wire_type)) = decode_key(&mut payload) else { break };
        if skip_field(wire_type, tag, &mut payload, DecodeContext::default()).is_err() {
            break;
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn part(pods: usize, more: bool) -> Bytes {
        let pods = vec![PodSandbox::default(); pods];
        SynchronizeRequest { pods, more, ..SynchronizeRequest::default() }.encode_to_vec().into()
    }

    #[test]
    fn parts_are_put_together() {
        let mut parts = Parts::default();
        assert!(parts.add(part(2, true)).unwrap().is_none());
        assert_eq!(parts.add(part(1, false)).unwrap().unwrap().0.len(), 3);
        assert_eq!(parts.add(part(1, false)).unwrap().unwrap().0.len(), 1);
    }

    #[test]
    fn too_many_objects_are_refused_before_they_are_decoded() {
        let mut parts = Parts::default();
        let error = parts.add(part(MAX_OBJECTS + 1, false)).unwrap_err();
        assert_eq!(error.code, Code::RESOURCE_EXHAUSTED);
        assert!(parts.add(part(MAX_OBJECTS - 1, true)).unwrap().is_none());
        assert_eq!(parts.add(part(8, true)).unwrap_err().code, Code::RESOURCE_EXHAUSTED);
        assert_eq!(parts.add(part(1, false)).unwrap().unwrap().0.len(), 1, "it starts again");
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        let error = Parts::default().add(Bytes::from_static(b"\x0a\xff\xff")).unwrap_err();
        assert_eq!(error.code, Code::INVALID_ARGUMENT);
    }
}
