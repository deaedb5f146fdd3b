#![doc = include_str!("../README.md")]

mod decode;
mod encode;
mod messages;
#[cfg(test)]
mod tests;

pub use decode::{DecodeError, from_slice, to_json};
pub use encode::{EncodeError, from_json, watch_event};

/// There is no message of objects of this kind here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no protobuf of kind {kind:?} of {api_version:?} here")]
pub struct UnknownKind {
    /// The object's `apiVersion`.
    pub api_version: String,
    /// The object's `kind`.
    pub kind: String,
}

impl UnknownKind {
    fn new(api_version: &str, kind: &str) -> Self {
        Self { api_version: api_version.to_owned(), kind: kind.to_owned() }
    }
}

/// The media type of a body in protobuf.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The media type of a watch in protobuf.
pub const WATCH_MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// Whether there is a message of objects of this kind.
pub fn knows(api_version: &str, kind: &str) -> bool {
    messages::of(api_version, kind).is_some()
}

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";
