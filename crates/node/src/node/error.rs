//! Errors of the node.

use std::io;
use std::time::Duration;

use crate::{api, kubelet, runner};

/// An error of the node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The node's directory, or a file in it, cannot be used.
    #[error("the node's directory: {0}; TMPDIR says where it is made")]
    Directory(#[source] io::Error),
    /// The API server did not start, or cannot make a client for an identity.
    #[error("{}", with_sources(.0))]
    Api(#[from] api::Error),
    /// The kubelet did not start.
    #[error("kubelet: {0}")]
    Kubelet(#[from] kubelet::Error),
    /// The container runner failed.
    #[error("container runner: {0}")]
    Runner(#[from] runner::Error),
    /// The socket of NRI cannot be used.
    #[error("NRI: {0}")]
    Nri(#[source] io::Error),
    /// The node has no NRI.
    #[error("the node has no NRI: start it with `Node::builder().nri(…)`")]
    NoNri,
    /// A request to the API server failed.
    #[error("{what}: {source}")]
    Request {
        /// The request, for example `get pod trainer`.
        what: String,
        /// The cause.
        source: Box<kube::Error>,
    },
    /// A text is not valid YAML, or an object in it is invalid.
    #[error("YAML, document {document}: {message}")]
    Yaml {
        /// The position of the document in the text, from 1.
        document: usize,
        /// The cause.
        message: String,
    },
    /// A driver's process did not start.
    #[error("start driver {command}: {source}")]
    Driver {
        /// The program.
        command: String,
        /// The cause.
        source: io::Error,
    },
    /// The kubelet has not registered a driver in time.
    #[error(
        "driver {driver} is not registered with the kubelet after {waited:?}: does it run, with the node's directories?"
    )]
    NotRegistered {
        /// The driver's name.
        driver: String,
        /// The time waited.
        waited: Duration,
    },
    /// A driver's name is invalid.
    #[error(transparent)]
    Name(#[from] drakkar_metadata::name::NameError),
    /// A CDI device is invalid.
    #[error("CDI device {device}: {message}")]
    CdiDevice {
        /// The device's qualified name.
        device: String,
        /// The cause.
        message: String,
    },
    /// A driver has not published a device in time.
    #[error("driver {driver} has published no device after {waited:?}: may it write resourceslices?")]
    NotPublished {
        /// The driver's name.
        driver: String,
        /// The time waited.
        waited: Duration,
    },
    /// No driver has reported the devices of a claim in time.
    #[error("claim {claim} has nothing in status.devices after {waited:?}")]
    NoStatus {
        /// The claim's name.
        claim: String,
        /// The time waited.
        waited: Duration,
    },
    /// A pod has not reached a state in time.
    #[error("pod {pod} is not {expected} after {waited:?}: {state}")]
    Pod {
        /// Namespace and name.
        pod: String,
        /// The state that was waited for.
        expected: &'static str,
        /// The time waited.
        waited: Duration,
        /// The pod's state: phase, conditions, containers and events.
        state: String,
    },
    /// A pod has no such container, or it is not running.
    #[error("pod {pod} has no container {container} that runs")]
    NoContainer {
        /// Namespace and name.
        pod: String,
        /// The container's name.
        container: String,
    },
}

/// Formats an error with all its sources.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

impl NodeError {
    pub(super) fn request(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        |source| Self::Request { what, source: Box::new(source) }
    }
}
