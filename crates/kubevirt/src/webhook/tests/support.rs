//! A webhook on a port of the loopback, and clients for it.

use std::path::Path;
use std::sync::Arc;

use ::http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::*;

/// The longest that a test waits for what must happen.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) type Stream = TlsStream<TcpStream>;

/// A certificate for `localhost` with its key.
pub(super) struct Pair {
    pub(super) der: CertificateDer<'static>,
    certificate: String,
    key: String,
}

impl Pair {
    pub(super) fn new() -> Self {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Self { der: cert.der().clone(), certificate: cert.pem(), key: signing_key.serialize_pem() }
    }

    pub(super) fn write(&self, directory: &Path) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("tls.crt"), &self.certificate).unwrap();
        std::fs::write(directory.join("tls.key"), &self.key).unwrap();
    }
}

/// A webhook that serves.
pub(super) struct Serving {
    pub(super) address: SocketAddr,
    pub(super) pair: Pair,
    pub(super) policy: watch::Sender<Policy>,
    pub(super) stop: CancellationToken,
    pub(super) done: JoinHandle<Result<(), WebhookError>>,
    _directory: TempDir,
}

impl Serving {
    pub(super) async fn start(change: impl FnOnce(&mut Options)) -> Self {
        let directory = TempDir::new().unwrap();
        let pair = Pair::new();
        pair.write(directory.path());
        let mut options = options(directory.path());
        change(&mut options);
        let webhook = Webhook::bind(options, Policy::default()).await.unwrap();
        let stop = CancellationToken::new();
        Self {
            address: webhook.address(),
            pair,
            policy: webhook.policy(),
            stop: stop.clone(),
            done: tokio::spawn(webhook.serve(stop)),
            _directory: directory,
        }
    }

    pub(super) async fn connect(&self) -> Stream {
        connect(self.address, &[&self.pair]).await.unwrap()
    }

    pub(super) async fn client(&self) -> Client {
        Client::new(self.connect().await).await
    }
}

pub(super) fn options(directory: &Path) -> Options {
    let options = Options::new(([127, 0, 0, 1], 0).into(), directory.join("tls.crt"), directory.join("tls.key"));
    // A loaded machine may be slow: tests of these limits set them.
    Options { handshake_timeout: LIMIT, header_timeout: LIMIT, body_timeout: LIMIT, request_timeout: LIMIT, ..options }
}

/// A TLS connection to a server with one of some certificates.
pub(super) async fn connect(address: SocketAddr, trusted: &[&Pair]) -> io::Result<Stream> {
    let mut roots = RootCertStore::empty();
    for pair in trusted {
        roots.add(pair.der.clone()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
    };
    tokio::time::timeout(LIMIT, connect).await.expect("the handshake ends")
}

/// A client with one connection.
pub(super) struct Client {
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<()>,
}

impl Client {
    pub(super) async fn new(stream: Stream) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        Self { sender, connection }
    }

    pub(super) async fn send(&mut self, method: &str, path: &str, kind: &str, body: Vec<u8>) -> (StatusCode, String) {
        self.sender.ready().await.unwrap();
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("content-type", kind).body(Full::new(body.into())).unwrap();
        let answer = tokio::time::timeout(LIMIT, self.sender.send_request(request)).await;
        let answer = answer.expect("the request is answered").unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(super) async fn review(&mut self, review: &Value) -> Value {
        let body = review.to_string().into_bytes();
        let (status, answer) = self.send("POST", "/validate", "application/json", body).await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// Waits until the server closes the connection.
    pub(super) async fn closed(self) {
        tokio::time::timeout(LIMIT, self.connection).await.unwrap().unwrap();
    }
}
