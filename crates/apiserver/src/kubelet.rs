//! What the server asks of kubelets: the logs of containers, and programs in them.
//!
//! A real server connects to the kubelet's port. Here a kubelet [registers](crate::ApiServer::register_kubelet) what answers
//! for it, so that this crate does not depend on one.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

/// The kubelet of a node, as the server reaches it for `kubectl logs` and `kubectl exec`.
pub trait Kubelet: Send + Sync + 'static {
    /// Returns the output of a container.
    fn logs(&self, container: ContainerRef, options: LogOptions) -> BoxFuture<'_, Result<LogStream, KubeletError>>;
    /// Starts a program in a running container.
    fn exec(&self, container: ContainerRef, options: ExecOptions) -> BoxFuture<'_, Result<ExecSession, KubeletError>>;
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRef {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The UID of the pod.
    pub pod_uid: String,
    /// The name of the container.
    pub container: String,
}

/// What to return of a container's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Whether to go on with new output until the container exits.
    pub follow: bool,
    /// Whether to return the output of the run before the last restart.
    pub previous: bool,
    /// The number of lines at the end to return; all if it is not set.
    pub tail_lines: Option<u64>,
    /// The number of bytes after which to end.
    pub limit_bytes: Option<u64>,
}

/// The output of a container, in pieces.
pub type LogStream = BoxStream<'static, io::Result<Bytes>>;

/// A program to run in a container, and what to connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether it gets input.
    pub stdin: bool,
    /// Whether its output is returned.
    pub stdout: bool,
    /// Whether its error output is returned; never with a terminal.
    pub stderr: bool,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// A program that runs in a container. Dropping it kills the program.
pub struct ExecSession {
    /// Its input. Dropping this ends the input.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// Its output.
    pub stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Its error output.
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Changes the size of its terminal: columns and rows.
    pub resize: Option<Box<dyn Fn(u16, u16) + Send + Sync>>,
    /// Resolves to its exit code.
    pub exit: BoxFuture<'static, io::Result<i32>>,
}

impl fmt::Debug for ExecSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSession").field("is_terminal", &self.resize.is_some()).finish_non_exhaustive()
    }
}

/// Why a kubelet does not do what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KubeletError {
    /// The request cannot be fulfilled in the state of the pod; the client gets 400.
    #[error("{0}")]
    BadRequest(String),
    /// There is no such container; the client gets 404.
    #[error("{0}")]
    NotFound(String),
    /// Something failed; the client gets 500.
    #[error("{0}")]
    Internal(String),
}

/// The kubelets that have registered, by the names of their nodes.
#[derive(Default)]
pub(crate) struct Kubelets {
    nodes: Mutex<HashMap<String, Weak<dyn Kubelet>>>,
}

impl fmt::Debug for Kubelets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubelets").finish_non_exhaustive()
    }
}

impl Kubelets {
    pub(crate) fn register(&self, node: &str, kubelet: Weak<dyn Kubelet>) {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_owned(), kubelet);
    }

    /// Returns the kubelet of a node, unless none has registered or it has ended.
    pub(crate) fn get(&self, node: &str) -> Option<Arc<dyn Kubelet>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).get(node)?.upgrade()
    }
}
