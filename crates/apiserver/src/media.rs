//! In which form objects come and go: JSON, or protobuf, which clients in Go send and ask for unless they are told otherwise.
//!
//! Protobuf is spoken of what drivers read and write, slices and claims. Of other objects a server without protobuf of them is
//! played: they are refused with 415, and answered in JSON, which those clients take as well.

use http::StatusCode;
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::serve::{Answer, answer, full};
use super::status::Failure;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Protobuf,
}

impl Media {
    /// What a client wants most, of what there is for objects of this kind.
    pub(super) fn accepted(accept: &str, api_version: &str, kind: &str) -> Result<Self, Failure> {
        let has_protobuf = drakkar_client::protobuf::knows(api_version, kind);
        accept
            .split(',')
            .find_map(|form| match form {
                form if form.contains("protobuf") => has_protobuf.then_some(Self::Protobuf),
                form => ["json", "*/*", "yaml", "application/*"]
                    .iter()
                    .any(|known| form.contains(known))
                    .then_some(Self::Json),
            })
            .ok_or_else(Failure::not_acceptable)
    }

    /// An answer whose JSON is this.
    pub(super) fn answer(self, status: StatusCode, json: Vec<u8>) -> Answer {
        if self == Self::Protobuf {
            match drakkar_client::protobuf::from_json(&json) {
                Ok(body) => return answer(status, drakkar_client::protobuf::MEDIA_TYPE, full(body)),
                // The answer says what it is.
                Err(error) => tracing::debug!(%error, "API server: answers in JSON instead of protobuf"),
            }
        }
        answer(status, "application/json", full(json))
    }

    /// The media type of a watch.
    pub(super) fn of_watch(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => drakkar_client::protobuf::WATCH_MEDIA_TYPE,
        }
    }

    /// Some lines of a watch.
    pub(super) fn lines(self, lines: Bytes) -> std::io::Result<Bytes> {
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

/// A body as JSON.
pub(super) fn to_json(body: &[u8]) -> Result<Vec<u8>, Failure> {
    drakkar_client::protobuf::to_json(body).map_err(|error| match error {
        drakkar_client::protobuf::DecodeError::Unknown(_) => Failure::media_type(),
        error => Failure::bad_request(error.to_string()),
    })
}

/// Whether a body of this type is protobuf.
pub(super) fn is_protobuf(content_type: &str) -> bool {
    content_type.contains(drakkar_client::protobuf::MEDIA_TYPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_there_is() {
        let go = "application/vnd.kubernetes.protobuf,application/json";
        let slices = |accept| Media::accepted(accept, "resource.k8s.io/v1", "ResourceSlice").ok();
        assert_eq!(slices(go), Some(Media::Protobuf));
        assert_eq!(slices("application/json, application/vnd.kubernetes.protobuf"), Some(Media::Json));
        assert_eq!(slices("*/*"), Some(Media::Json));
        assert_eq!(slices("application/cbor"), None);
        let pods = |accept| Media::accepted(accept, "v1", "Pod").ok();
        assert_eq!(pods(go), Some(Media::Json));
        assert_eq!(pods("application/vnd.kubernetes.protobuf"), None);
    }

    #[test]
    fn an_object_that_has_no_protobuf_is_answered_in_json() {
        let of = |json: &str| Media::Protobuf.answer(StatusCode::OK, json.into()).headers()["content-type"].clone();
        let slice = r#"{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1","metadata":{}}"#;
        assert_eq!(of(slice), drakkar_client::protobuf::MEDIA_TYPE);
        assert_eq!(of(r#"{"kind":"Pod","apiVersion":"v1"}"#), "application/json");
    }

    #[test]
    fn a_watch_has_an_event_for_each_line() {
        let line = r#"{"type":"ADDED","object":{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1"}}"#;
        let one = Media::Protobuf.lines(format!("{line}\n").into()).unwrap();
        let two = Media::Protobuf.lines(format!("{line}\n{line}\n").into()).unwrap();
        assert_eq!(two, [&one[..], &one[..]].concat());
        assert_eq!(usize::from(one[3]), one.len() - 4);
    }
}
