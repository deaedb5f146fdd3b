//! The errors of a plugin and of its connection.

use std::path::PathBuf;
use std::time::Duration;

use crate::event::Events;
use crate::status::Status;
use crate::wire::FrameTooLong;

/// Any error of a plugin. `?` converts every error into it, `anyhow`'s included, and `.into()` a text.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a plugin cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name has other characters.
    #[error("plugin name {0:?}: use letters, digits and _ . + -")]
    Name(String),
    /// The index has more than two digits.
    #[error("plugin index {0:?}: use 0 to 99")]
    Index(String),
    /// No events.
    #[error("no events: subscribe to at least one with `Plugin::events`, since an empty mask means all events")]
    NoEvents,
    /// There is no tokio runtime.
    #[error("start a plugin inside a tokio runtime")]
    NoTokioRuntime(#[source] tokio::runtime::TryCurrentError),
    /// The runtime that launched this process named a descriptor that is no socket.
    #[error("the connection in {variable}={value:?}: {source}", variable = crate::connect::DESCRIPTOR_VARIABLE)]
    Descriptor {
        /// The value of the variable.
        value: String,
        /// Why it cannot be used.
        #[source]
        source: std::io::Error,
    },
}

/// Why a connection ended, or was never made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The socket could not be reached.
    #[error("connect to {}: {source}", path.display())]
    Connect {
        /// The path of the socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The runtime closed the connection, as it does when it ends and when a plugin takes too long.
    #[error("the runtime closed the connection")]
    Closed,
    /// The runtime closed the connection as an answer to the subscription, or to what came before it.
    #[error("the runtime closed the connection right after the plugin subscribed to {events} ({:#06x})", events.mask())]
    ClosedAfterConfigure {
        /// What the plugin subscribed to.
        events: Events,
    },
    /// Reading or writing failed.
    #[error("connection to the runtime: {0}")]
    Io(#[source] std::io::Error),
    /// The runtime sent what is no frame.
    #[error("the runtime sent {0}")]
    Frame(#[source] FrameTooLong),
    /// The runtime does not read what it is sent.
    #[error("the runtime does not read its answers")]
    Backlog,
    /// The runtime did not accept the plugin.
    #[error("the runtime refused to register the plugin: {0}")]
    Register(#[source] Status),
    /// The runtime did not answer.
    #[error("the runtime did not answer the registration for {0:?}")]
    RegisterTimeout(Duration),
    /// The plugin failed to take over the runtime's pods.
    #[error("the plugin failed to synchronize: {0}")]
    Synchronize(String),
    /// The plugin was stopped.
    #[error("the plugin was stopped")]
    Stopped,
}

/// Why containers were not updated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// Called by a handler: the runtime waits for that handler, holds its lock, and would drop the plugin.
    #[error("containers cannot be updated by a handler: answer with the updates, or update from another task")]
    InHandler,
    /// There is no connection, or the runtime has not synchronized it yet.
    #[error("not connected to the runtime")]
    NotConnected,
    /// Too many calls are waiting already, or the request is too large.
    #[error("too much at once: {0}")]
    Limit(String),
    /// The runtime did not answer.
    #[error("the runtime did not answer for {0:?}")]
    Timeout(Duration),
    /// The runtime refused.
    #[error("the runtime refused to update containers: {0}")]
    Refused(#[source] Status),
}
