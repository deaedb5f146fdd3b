//! The events of a watch: one JSON object per line.

use std::sync::Arc;

use drakkar_client::{AnswerBody, ApiError, DraVersion, Server};
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::stored::StoredSlice;
use super::echoes::Echoes;

/// The longest line: larger than any object that an API server stores.
const MAX_LINE: usize = 16 * 1024 * 1024;

/// An event of a watch.
#[derive(Debug)]
pub(in super::super) enum Event {
    /// A slice was created or changed.
    Applied(Box<StoredSlice>),
    /// A slice was deleted; this is its last state.
    Deleted(Box<StoredSlice>),
    /// There were no other events up to this resource version.
    Bookmark(String),
    /// A slice was written by this process, with this resource version. Its state is that of the answer to the write.
    Echo(String),
    /// The server ends the watch.
    Error { code: u16, message: String },
}

/// The stream of a watch's events.
pub(in super::super) struct WatchStream {
    body: AnswerBody,
    version: DraVersion,
    server: Server,
    echoes: Arc<Echoes>,
    buffer: Vec<u8>,
    /// The length of the part of the buffer that is known to have no line break.
    searched: usize,
}

#[derive(Deserialize)]
struct Line<'a> {
    r#type: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct BookmarkObject {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    resource_version: String,
}

/// The metadata of a slice, by which an echo is recognized without a look at its devices.
#[derive(Deserialize)]
struct Written {
    metadata: WrittenMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenMetadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
}

#[derive(Deserialize)]
struct ErrorObject {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

impl WatchStream {
    pub(super) fn new(body: AnswerBody, version: DraVersion, server: Server, echoes: Arc<Echoes>) -> Self {
        Self { body, version, server, echoes, buffer: Vec::new(), searched: 0 }
    }

    /// Returns the next event, or `None` at the end of the watch.
    pub(in super::super) async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                let event = read(&self.buffer[..end], self.version, &self.echoes).map_err(ApiError::Decode);
                self.buffer.drain(..=end);
                self.searched = 0;
                return event.map(Some);
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE {
                return Err(ApiError::send(&self.server, "a watch event is too large"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(ApiError::send(&self.server, error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

fn read(line: &[u8], version: DraVersion, echoes: &Echoes) -> Result<Event, serde_json::Error> {
    let Line { r#type, object } = serde_json::from_slice(line)?;
    let object = object.get().as_bytes();
    Ok(match r#type.as_str() {
        "ADDED" | "MODIFIED" => {
            let Written { metadata } = serde_json::from_slice(object)?;
            if echoes.take(&metadata.uid, &metadata.resource_version) {
                return Ok(Event::Echo(metadata.resource_version));
            }
            Event::Applied(Box::new(StoredSlice::read(object, version)?))
        }
        "DELETED" => {
            let slice = StoredSlice::read(object, version)?;
            echoes.forget(&slice.uid);
            Event::Deleted(Box::new(slice))
        }
        "BOOKMARK" => Event::Bookmark(serde_json::from_slice::<BookmarkObject>(object)?.metadata.resource_version),
        _ => {
            let ErrorObject { code, message } = serde_json::from_slice(object)?;
            Event::Error { code, message }
        }
    })
}
