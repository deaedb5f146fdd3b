//! What can go wrong on a node.

use std::io;
use std::time::Duration;

use crate::{api, kubelet, runner};

/// What went wrong on a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The node's directory or a file in it.
    #[error("the node's directory: {0}; TMPDIR says where it is made")]
    Directory(#[source] io::Error),
    /// The API server does not start, or has no such client.
    #[error("{}", with_sources(.0))]
    Api(#[from] api::Error),
    /// The kubelet does not start.
    #[error("kubelet: {0}")]
    Kubelet(#[from] kubelet::Error),
    /// The container runner refused.
    #[error("container runner: {0}")]
    Runner(#[from] runner::Error),
    /// The API server refused a request.
    #[error("{what}: {source}")]
    Request {
        /// What was asked for.
        what: String,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// Text is not YAML, or not of an object.
    #[error("YAML, document {document}: {message}")]
    Yaml {
        /// Which, from 1.
        document: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A driver's process cannot be started.
    #[error("start driver {command}: {source}")]
    Driver {
        /// The program.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// The kubelet has not registered a driver.
    #[error(
        "driver {driver} is not registered with the kubelet after {waited:?}: does it run, with the node's directories?"
    )]
    NotRegistered {
        /// Which.
        driver: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A driver's name is none.
    #[error(transparent)]
    Name(#[from] drakkar_metadata::name::NameError),
    /// A CDI device cannot be made.
    #[error("CDI device {device}: {message}")]
    CdiDevice {
        /// Which.
        device: String,
        /// Why.
        message: String,
    },
    /// A driver has not published a device.
    #[error("driver {driver} has published no device after {waited:?}: may it write resourceslices?")]
    NotPublished {
        /// Which.
        driver: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Nothing was told of the devices of a claim.
    #[error("claim {claim} has nothing in status.devices after {waited:?}")]
    NoStatus {
        /// Which.
        claim: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A pod has not become what it was waited for.
    #[error("pod {pod} is not {wanted} after {waited:?}: {state}")]
    Pod {
        /// Namespace and name.
        pod: String,
        /// What it was to be.
        wanted: &'static str,
        /// How long it was waited for.
        waited: Duration,
        /// How it is, and what was said about it.
        state: String,
    },
    /// A pod has no such container.
    #[error("pod {pod} has no container {container} that runs")]
    NoContainer {
        /// Namespace and name.
        pod: String,
        /// Which.
        container: String,
    },
}

/// An error and what caused it.
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
