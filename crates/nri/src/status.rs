//! The status of a failed call.

use std::fmt;

use drakkar_nri_api::ttrpc;

/// The longest text of a status.
const MAX_TEXT: usize = 16 << 10;

/// The status of a failed call: a code of gRPC and a text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The code.
    pub code: Code,
    /// The text.
    pub message: String,
}

/// A code of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub i32);

impl Code {
    /// An error of a handler.
    pub const UNKNOWN: Self = Self(2);
    /// A request that makes no sense.
    pub const INVALID_ARGUMENT: Self = Self(3);
    /// The deadline passed.
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    /// A message is too large, or there are too many of them.
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    /// Not possible with this peer.
    pub const FAILED_PRECONDITION: Self = Self(9);
    /// There is no such method. A runtime tries `StateChange` instead.
    pub const UNIMPLEMENTED: Self = Self(12);
    /// A handler panicked.
    pub const INTERNAL: Self = Self(13);
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_TEXT {
            message.truncate(message.floor_char_boundary(MAX_TEXT));
            message.push('…');
        }
        Self { code, message }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.message, self.code.0)
    }
}

impl std::error::Error for Status {}

impl From<Status> for ttrpc::Status {
    fn from(status: Status) -> Self {
        Self { code: status.code.0, message: status.message }
    }
}

impl From<ttrpc::Status> for Status {
    fn from(status: ttrpc::Status) -> Self {
        Self::new(Code(status.code), status.message)
    }
}

/// Returns an error with its causes, where their texts are not repeated already.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
