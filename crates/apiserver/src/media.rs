//! Content negotiation: JSON, or protobuf, the default of Go clients.
//!
//! Protobuf is implemented for the objects of `resource.k8s.io`: slices, claims, claim templates and device classes. Of others,
//! [a few](super::core_protobuf) can be sent in protobuf, and the rest is refused with 415. They are returned in JSON, which Go
//! clients accept too.

use http::StatusCode;
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::core_protobuf;
use super::serve::{Answer, answer, full};
use super::status::Failure;

/// The encoding of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Protobuf,
}

impl Media {
    /// Returns the encoding that a part of an `Accept` header names, if it is available for objects of this kind.
    pub(super) fn named(form: &str, api_version: &str, kind: &str) -> Option<Self> {
        if form.contains("protobuf") {
            return drakkar_client::protobuf::knows(api_version, kind).then_some(Self::Protobuf);
        }
        let is_json = ["json", "*/*", "yaml", "application/*"].iter().any(|known| form.contains(known));
        is_json.then_some(Self::Json)
    }

    /// Returns a response with this object, given as JSON.
    pub(super) fn answer(self, status: StatusCode, json: Vec<u8>) -> Answer {
        if self == Self::Protobuf {
            match drakkar_client::protobuf::from_json(&json) {
                Ok(body) => return answer(status, drakkar_client::protobuf::MEDIA_TYPE, full(body)),
                // The content type of the response tells the client.
                Err(error) => tracing::debug!(%error, "encoding as protobuf failed, responding in JSON"),
            }
        }
        answer(status, "application/json", full(json))
    }

    /// Returns the media type of a watch.
    pub(super) fn watch_media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => drakkar_client::protobuf::WATCH_MEDIA_TYPE,
        }
    }

    /// Encodes lines of a watch, given as JSON.
    pub(super) fn encode_watch_lines(self, lines: Bytes) -> std::io::Result<Bytes> {
        #[derive(Deserialize)]
        struct Event<'a> {
            r#type: &'a str,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        if self == Self::Json {
            return Ok(lines);
        }
        let mut out = Vec::with_capacity(lines.len());
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let Event { r#type, object } = serde_json::from_slice(line)?;
            let event = drakkar_client::protobuf::watch_event(r#type, object.get().as_bytes());
            out.append(&mut event.map_err(std::io::Error::other)?);
        }
        Ok(out.into())
    }
}

/// Decodes a protobuf body.
pub(super) fn decode_protobuf(body: &[u8]) -> Result<Value, Failure> {
    if let Some(object) = core_protobuf::to_json(body) {
        return Ok(object);
    }
    drakkar_client::protobuf::to_value(body).map_err(|error| match error {
        drakkar_client::protobuf::DecodeError::Unknown(_) => Failure::media_type(),
        error => Failure::bad_request(error.to_string()),
    })
}

/// Whether a content type is protobuf.
pub(super) fn is_protobuf(content_type: &str) -> bool {
    content_type.contains(drakkar_client::protobuf::MEDIA_TYPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_is_available_for_kinds_that_have_it() {
        let slices = |form| Media::named(form, "resource.k8s.io/v1", "ResourceSlice");
        assert_eq!(slices("application/vnd.kubernetes.protobuf"), Some(Media::Protobuf));
        assert_eq!(slices("application/json"), Some(Media::Json));
        assert_eq!(slices("*/*"), Some(Media::Json));
        assert_eq!(slices("application/cbor"), None);
        assert_eq!(Media::named("application/vnd.kubernetes.protobuf", "v1", "Pod"), None);
    }

    #[test]
    fn an_object_without_protobuf_is_returned_as_json() {
        let of = |json: &str| Media::Protobuf.answer(StatusCode::OK, json.into()).headers()["content-type"].clone();
        let slice = r#"{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1","metadata":{}}"#;
        assert_eq!(of(slice), drakkar_client::protobuf::MEDIA_TYPE);
        assert_eq!(of(r#"{"kind":"Pod","apiVersion":"v1"}"#), "application/json");
    }

    #[test]
    fn a_watch_has_an_event_for_each_line() {
        let line = r#"{"type":"ADDED","object":{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1"}}"#;
        let one = Media::Protobuf.encode_watch_lines(format!("{line}\n").into()).unwrap();
        let two = Media::Protobuf.encode_watch_lines(format!("{line}\n{line}\n").into()).unwrap();
        assert_eq!(two, [&one[..], &one[..]].concat());
        assert_eq!(usize::from(one[3]), one.len() - 4);
    }
}
