//! An admission webhook: KubeVirt's rules about claims, and warnings, before a virtual machine is stored; and the claims of
//! the [hook](crate::hook) for launcher pods.
//!
//! It stands beside KubeVirt's own webhook. It says which claim is missing, and warns about what KubeVirt admits and
//! what fails later. [`review`] is the answer to one request; [`Webhook`] serves it over TLS.
//!
//! | path | answer |
//! |---|---|
//! | `POST /validate` | an `AdmissionReview` of `admission.k8s.io/v1` for `VirtualMachineInstance` and `VirtualMachine` |
//! | `POST /mutate-pods` | the same for launcher pods, which get the claims of the [hook](crate::hook) |
//! | `GET /healthz`, `/livez`, `/readyz` | 200 while the webhook serves; when it stops it closes its port |
//!
//! HTTP/1.1 only: the API server keeps connections open and opens more when it needs them, and one that floods a
//! connection with streams is then no concern. Every resource is bounded: connections, requests at a time, the size of a
//! request, and the time for a handshake, the head and the body of a request, and the end. A client that does nothing
//! cannot shut out others: a new connection takes the place of the one that has been without a request for the longest.

mod certificate;
mod connections;
mod follow;
mod http;
mod places;
mod review;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::behaviour::Behaviour;
use crate::gates::FeatureGates;

pub use certificate::CertificateError;
pub use follow::follow_files;
pub use review::{BadReview, MAX_CAUSES, review};

/// The bytes of a body that must arrive in every [`Options::body_timeout`] on average.
pub const BODY_RATE: usize = 128 << 10;

/// How a [`Webhook`] serves.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The file with the certificate chain in PEM, the server's own first. Replaced files are read again.
    pub certificate: PathBuf,
    /// The file with the private key in PEM.
    pub key: PathBuf,
    /// The most connections at a time. Another one takes the place of one without a request, or waits if there is none.
    pub max_connections: usize,
    /// The most requests of more than 64 KiB at a time, which bounds the memory for their bodies; others wait.
    pub max_requests: usize,
    /// The largest request in bytes.
    pub max_body: usize,
    /// The time for one request, from its head to its answer.
    pub request_timeout: Duration,
    /// The time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// The time from the handshake to the head of the first request.
    pub header_timeout: Duration,
    /// The time for the first [`BODY_RATE`] bytes of a body, and for each as many after them.
    pub body_timeout: Duration,
    /// The time without a request after which a connection is closed. The API server's client closes its own earlier.
    pub idle_timeout: Duration,
    /// The time for open requests at the end.
    pub grace: Duration,
}

impl Options {
    /// The defaults: 256 connections, 64 large requests at a time, of at most 3 MiB, and 10 seconds for each.
    #[must_use]
    pub fn new(address: SocketAddr, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            address,
            certificate: certificate.into(),
            key: key.into(),
            max_connections: 256,
            max_requests: 64,
            max_body: 3 << 20,
            request_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(5),
            body_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(180),
            grace: Duration::from_secs(10),
        }
    }
}

/// What the webhook decides by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// The feature gates of the cluster. Where they are not known, what depends on one is warned about and not refused.
    pub gates: Option<FeatureGates>,
    /// Whether the answer is exactly KubeVirt's.
    pub behaviour: Behaviour,
}

/// Why a [`Webhook`] cannot serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// The certificate or the key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The address is taken, not allowed, or not of this host.
    #[error("webhook cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Reading the certificate was given up, because the program ends.
    #[error("webhook cannot read its certificate: {0}")]
    Load(#[source] tokio::task::JoinError),
    /// TLS cannot be set up.
    #[error("webhook cannot set up TLS: {0}")]
    Tls(#[from] tokio_rustls::rustls::Error),
}

/// A webhook that is bound to its port and not serving yet.
///
/// ```no_run
/// use drakkar_kubevirt::webhook::{Options, Policy, Webhook};
/// use tokio_util::sync::CancellationToken;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let options = Options::new("[::]:9443".parse()?, "/certs/tls.crt", "/certs/tls.key");
/// let webhook = Webhook::bind(options, Policy::default()).await?;
/// let stop = CancellationToken::new();
/// webhook.serve(stop).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Webhook {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
    certificate: Arc<certificate::Current>,
    policy: watch::Sender<Policy>,
}

impl Webhook {
    /// Reads the certificate and binds the port.
    ///
    /// # Errors
    ///
    /// The certificate or the key cannot be used, or the address cannot be listened on.
    pub async fn bind(options: Options, policy: Policy) -> Result<Self, WebhookError> {
        let (certificate, key) = (options.certificate.clone(), options.key.clone());
        let load = tokio::task::spawn_blocking(move || certificate::Current::load(&certificate, &key));
        let certificate = Arc::new(load.await.map_err(WebhookError::Load)??);
        let listen = async {
            let listener = TcpListener::bind(options.address).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) =
            listen.await.map_err(|source| WebhookError::Listen { address: options.address, source })?;
        Ok(Self { listener, address, options, certificate, policy: watch::Sender::new(policy) })
    }

    /// The address, with the port that the kernel chose if it was 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle to change the policy while the webhook serves, as when the KubeVirt object changes.
    #[must_use]
    pub fn policy(&self) -> watch::Sender<Policy> {
        self.policy.clone()
    }

    /// Serves until the token is cancelled, then finishes open requests within the grace period.
    ///
    /// # Errors
    ///
    /// TLS cannot be set up.
    pub async fn serve(self, stop: CancellationToken) -> Result<(), WebhookError> {
        let tls = TlsAcceptor::from(Arc::new(certificate::server_config(self.certificate.clone())?));
        let files = self.certificate.files();
        let watch = follow_files(&files, move || self.certificate.reload(), stop.clone());
        let service = http::Service::new(&self.options, self.policy.subscribe());
        tracing::info!(address = %self.address, "webhook serving");
        let serve = connections::serve(self.listener, tls, service, &self.options, stop);
        tokio::join!(serve, watch);
        tracing::info!("webhook stopped");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
