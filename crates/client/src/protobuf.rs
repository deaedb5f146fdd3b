//! The protobuf encoding of Kubernetes objects, from and to JSON.
//!
//! API servers speak it beside JSON, and Kubernetes' Go clients use it by default. JSON is half as large again and more work
//! for the server. The codec is driven by the tables of [`crate::schema`] and needs no generated types: an object is JSON,
//! or anything that can be deserialized from JSON, such as the types of `k8s-openapi`.
//!
//! ```
//! use drakkar_client::protobuf;
//!
//! let json = br#"{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"generateName":"node-1-"},
//!     "spec":{"driver":"gpu.example.com","pool":{"name":"node-1","generation":1,"resourceSliceCount":1}}}"#;
//! let body = protobuf::from_json(json)?; // a body of protobuf::MEDIA_TYPE
//! assert!(body.len() < json.len());
//!
//! #[derive(serde::Deserialize)]
//! struct Slice {
//!     spec: Spec,
//! }
//! #[derive(serde::Deserialize)]
//! struct Spec {
//!     driver: String,
//! }
//! let slice: Slice = protobuf::from_slice(&body)?;
//! assert_eq!(slice.spec.driver, "gpu.example.com");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The known kinds are those of [`crate::schema::of`]. Encoding loses nothing silently: an object with a field that the
//! schema does not have is an error, and can be sent as JSON. A `null` is an absent field, and an absent item in a list.
//! Decoding ignores unknown fields, as decoding JSON does.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{DecodeError, from_slice, to_json, to_value};
pub use encode::{EncodeError, from_json, watch_event};

use crate::schema;

/// An object is of a kind without a protobuf encoding in this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kind {kind:?} of {api_version:?} has no known protobuf encoding")]
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

/// Returns whether objects of this kind can be encoded and decoded.
pub fn knows(api_version: &str, kind: &str) -> bool {
    schema::of(api_version, kind).is_some()
}

/// The first bytes of every body.
const MAGIC: &[u8] = b"k8s\0";
