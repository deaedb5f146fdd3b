//! The answer to a watch: one JSON object in each line, for as long as it lasts.

use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::stored::Stored;
use drakkar_client::{ApiError, DraVersion};

/// More than any object that an API server stores.
const MAX_LINE: usize = 16 * 1024 * 1024;

/// What happened to a slice.
#[derive(Debug)]
pub(in super::super) enum Event {
    /// It is like this now.
    Put(Box<Stored>),
    /// It is gone; it was like this.
    Gone(Box<Stored>),
    /// Nothing, up to this state.
    Bookmark(String),
    /// The server does not go on.
    Failed { code: u16, message: String },
}

/// The lines of a watch.
pub(in super::super) struct Lines {
    body: Body,
    version: DraVersion,
    buffer: Vec<u8>,
    /// How much of the buffer has no end of a line in it.
    searched: usize,
}

#[derive(Deserialize)]
struct Line<'a> {
    r#type: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Marked {
    metadata: MarkedMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MarkedMetadata {
    resource_version: String,
}

#[derive(Deserialize)]
struct Failed {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

impl Lines {
    pub(super) fn new(body: Body, version: DraVersion) -> Self {
        Self { body, version, buffer: Vec::new(), searched: 0 }
    }

    /// The next event, or none at the end.
    pub(in super::super) async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                let event = read(&self.buffer[..end], self.version).map_err(ApiError::Decode);
                self.buffer.drain(..=end);
                self.searched = 0;
                return event.map(Some);
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE {
                return Err(ApiError::Send("an event is too large".into()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(ApiError::Send(error.into())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

fn read(line: &[u8], version: DraVersion) -> Result<Event, serde_json::Error> {
    let Line { r#type, object } = serde_json::from_slice(line)?;
    let object = object.get().as_bytes();
    Ok(match r#type.as_str() {
        "ADDED" | "MODIFIED" => Event::Put(Box::new(Stored::read(object, version)?)),
        "DELETED" => Event::Gone(Box::new(Stored::read(object, version)?)),
        "BOOKMARK" => Event::Bookmark(serde_json::from_slice::<Marked>(object)?.metadata.resource_version),
        _ => {
            let Failed { code, message } = serde_json::from_slice(object)?;
            Event::Failed { code, message }
        }
    })
}
