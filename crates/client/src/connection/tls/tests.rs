use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::*;
use crate::connection::config::Exec;
use crate::connection::{lock, with_config};
use crate::{ApiError, DraClient};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

/// Returns a certificate and its key in PEM.
fn issue(authority: &Authority, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (parameters.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// A server with a certificate of an authority, whose clients may have certificates of the same authority.
struct Server {
    address: SocketAddr,
    /// The certificate of the client of each connection.
    clients: Arc<Mutex<Vec<Option<CertificateDer<'static>>>>>,
    /// Whether the next request is answered by the end of its connection.
    closes_next: Arc<AtomicBool>,
}

impl Server {
    async fn start(authority: &Authority, name: &str) -> Self {
        let (certificate, key) = issue(authority, name);
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).allow_unauthenticated();
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(vec![der(&certificate)], PemObject::from_pem_slice(key.as_bytes()).unwrap())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clients = Arc::new(Mutex::default());
        let closes_next = Arc::new(AtomicBool::new(false));
        let server = Self { address, clients: clients.clone(), closes_next: closes_next.clone() };
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(acceptor.clone(), connection, clients.clone(), closes_next.clone()));
            }
        });
        server
    }

    fn config(&self) -> Config {
        Config::new(format!("https://{}", self.address).parse().unwrap())
    }

    fn clients(&self) -> Vec<Option<CertificateDer<'static>>> {
        lock(&self.clients).clone()
    }
}

/// Answers the requests of a connection, those for the path `/refused` with 401.
async fn serve(
    acceptor: TlsAcceptor,
    connection: TcpStream,
    clients: Arc<Mutex<Vec<Option<CertificateDer<'static>>>>>,
    closes_next: Arc<AtomicBool>,
) {
    // A client that does not trust the server hangs up.
    let Ok(mut stream) = acceptor.accept(connection).await else { return };
    let client = stream.get_ref().1.peer_certificates().map(|chain| chain[0].clone().into_owned());
    lock(&clients).push(client);
    let mut request = [0; 4096];
    while let Ok(1..) = stream.read(&mut request).await {
        if closes_next.swap(false, Ordering::SeqCst) {
            return;
        }
        let status = if request.starts_with(b"GET /refused ") { "401 Unauthorized" } else { "200 OK" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

async fn get(client: &DraClient, path: &str) -> Result<StatusCode, ApiError> {
    let request = client.request(Method::GET, path, "application/json", Vec::new())?;
    Ok(client.exchange(request, 10).await?.0)
}

/// Sends a request with a configuration, and returns the error.
async fn problem(config: Config) -> Option<String> {
    match with_config(config).await {
        Ok(kept) => get(&DraClient::on(kept), "/").await.err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_and_its_name() {
    let authority = authority();
    let server = Server::start(&authority, "127.0.0.1").await;
    let mut config = server.config();
    config.root_cert = Some(vec![authority.der().to_vec()]);
    assert_eq!(problem(config.clone()).await, None);
    config.tls_server_name = Some("api.test".to_owned());
    assert!(problem(config.clone()).await.unwrap().contains("not valid for name"));
    config.tls_server_name = Some("-".to_owned());
    assert_eq!(problem(config.clone()).await.unwrap(), "TLS: tls-server-name: is neither a DNS name nor an IP address");

    let named = Server::start(&authority, "api.test").await;
    config.server = named.config().server;
    config.tls_server_name = Some("api.test".to_owned());
    assert_eq!(problem(config.clone()).await, None);
    config.tls_server_name = None;
    assert!(problem(config.clone()).await.unwrap().contains("not valid for name"));

    config.root_cert = Some(vec![self::authority().der().to_vec()]);
    assert!(problem(config.clone()).await.unwrap().contains("certificate signed by unknown authority"));
    config.accept_invalid_certs = true;
    assert_eq!(problem(config).await, None);
}

#[tokio::test]
async fn without_an_authority_those_of_the_system_are_trusted() {
    let server = Server::start(&authority(), "127.0.0.1").await;
    let problem = problem(server.config()).await.unwrap();
    // A machine may have none.
    let expected = ["certificate signed by unknown authority", "TLS: certificates of the system: "];
    assert!(expected.iter().any(|expected| problem.contains(expected)), "{problem}");
}

#[tokio::test]
async fn the_certificates_of_a_server_without_tls_are_not_read() {
    let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
    config.root_cert_file = Some("/nonexistent/ca.crt".into());
    config.user.client_certificate = Some("/nonexistent/tls.crt".to_owned());
    assert!(problem(config.clone()).await.unwrap().contains("connection refused"));
    config.server = "https://127.0.0.1:1".parse().unwrap();
    assert_eq!(
        problem(config.clone()).await.unwrap(),
        "TLS: client-certificate /nonexistent/tls.crt: No such file or directory (os error 2)"
    );
    config.user.client_certificate = None;
    assert_eq!(
        problem(config).await.unwrap(),
        "TLS: certificate-authority /nonexistent/ca.crt: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn a_file_of_authorities_is_read_again() {
    let (old, new) = (authority(), authority());
    let server = Server::start(&new, "127.0.0.1").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let trusts = |roots: &trust::ReloadedRoots| {
        use rustls::client::danger::ServerCertVerifier as _;
        let (certificate, _) = issue(&new, "127.0.0.1");
        let name = ServerName::try_from("127.0.0.1").unwrap();
        roots.verify_server_cert(&der(&certificate), &[], &name, &[], rustls::pki_types::UnixTime::now()).is_ok()
    };
    fs::write(file.path(), old.pem()).unwrap();
    let mut config = server.config();
    config.root_cert_file = Some(file.path().to_owned());
    assert!(problem(config.clone()).await.unwrap().contains("certificate signed by unknown authority"));
    let roots = trust::ReloadedRoots::of(file.path().to_owned()).unwrap();
    fs::write(file.path(), old.pem() + &new.pem()).unwrap();
    assert!(!trusts(&roots), "a minute has not passed");
    roots.0.expire();
    assert!(trusts(&roots));
    assert_eq!(problem(config.clone()).await, None);
    for (content, expected) in [
        ("", "has no certificates"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n", "is not PEM"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "invalid peer certificate: BadEncoding"),
    ] {
        fs::write(file.path(), content).unwrap();
        roots.0.expire();
        assert!(trusts(&roots), "the last ones stay");
        let expected = format!("TLS: {}: {expected}", file.path().display());
        assert_eq!(problem(config.clone()).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn an_authority_that_cannot_be_read_does_not_hide_the_others() {
    let authority = authority();
    let server = Server::start(&authority, "127.0.0.1").await;
    let mut config = server.config();
    config.root_cert = Some(vec![vec![0; 3], authority.der().to_vec()]);
    assert_eq!(problem(config.clone()).await, None);
    let file = tempfile::NamedTempFile::new().unwrap();
    let unreadable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(file.path(), unreadable.to_owned() + &authority.pem() + unreadable).unwrap();
    config.root_cert_file = Some(file.path().to_owned());
    assert_eq!(problem(config.clone()).await, None);
    fs::write(file.path(), unreadable).unwrap();
    let expected = format!("TLS: {}: invalid peer certificate: BadEncoding", file.path().display());
    assert_eq!(problem(config).await.unwrap(), expected);
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_the_server() {
    let authority = authority();
    let server = Server::start(&authority, "127.0.0.1").await;
    let (certificate, key) = issue(&authority, "client");
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut config = server.config();
    config.root_cert = Some(vec![authority.der().to_vec()]);
    assert_eq!(problem(config.clone()).await, None);
    config.user.client_certificate = Some(write("tls.crt", &certificate));
    assert_eq!(problem(config.clone()).await.unwrap(), "TLS: client-certificate: there is no client-key for it");
    config.user.client_key = Some(write("tls.key", &key));
    assert_eq!(problem(config.clone()).await, None);
    config.user.client_certificate = Some("/nonexistent/tls.crt".to_owned());
    config.user.client_key = None;
    config.user.client_certificate_data = Some(STANDARD.encode(&certificate));
    config.user.client_key_data = Some(STANDARD.encode(&key).into());
    assert_eq!(problem(config.clone()).await, None);
    assert_eq!(server.clients(), [None, Some(der(&certificate)), Some(der(&certificate))]);

    let other = STANDARD.encode(KeyPair::generate().unwrap().serialize_pem());
    for (key, expected) in [
        (other, "client-key: keys may not be consistent: KeyMismatch"),
        ("secret".to_owned(), "client-key-data: is not base64"),
        (STANDARD.encode("secret"), "client-key: is not an unencrypted private key in PEM"),
    ] {
        config.user.client_key_data = Some(key.into());
        let problem = problem(config.clone()).await.unwrap();
        assert_eq!(problem, format!("TLS: {expected}"));
    }
}

/// As `kubelet-client-current.pem` is renewed: connections with the old certificate are not used any more.
#[tokio::test]
async fn files_with_a_client_certificate_are_read_again() {
    let authority = authority();
    let server = Server::start(&authority, "127.0.0.1").await;
    let directory = tempfile::tempdir().unwrap();
    let files = ["tls.crt", "tls.key"].map(|name| directory.path().join(name));
    let write = |certificate: &str, key: &str| {
        fs::write(&files[0], certificate).unwrap();
        fs::write(&files[1], key).unwrap();
    };
    let issued = ["1", "2"].map(|name| issue(&authority, name));
    write(&issued[0].0, &issued[0].1);
    let mut config = server.config();
    config.root_cert = Some(vec![authority.der().to_vec()]);
    config.user.client_certificate = files[0].to_str().map(str::to_owned);
    config.user.client_key = files[1].to_str().map(str::to_owned);
    let client = DraClient::on(with_config(config).await.unwrap());
    assert_eq!(get(&client, "/").await.unwrap(), StatusCode::OK);
    let first = Some(der(&issued[0].0));
    let second = Some(der(&issued[1].0));
    // Half of the pair: the last one stays in use, and so does its connection.
    write(&issued[1].0, &issued[0].1);
    assert!(matches!(get(&client, "/refused").await.unwrap_err(), ApiError::Unauthorized { .. }));
    assert_eq!(get(&client, "/").await.unwrap(), StatusCode::OK);
    assert_eq!(server.clients(), std::slice::from_ref(&first));
    write(&issued[1].0, &issued[1].1);
    assert_eq!(get(&client, "/").await.unwrap(), StatusCode::OK);
    assert_eq!(server.clients(), std::slice::from_ref(&first), "a minute has not passed, and nothing was refused");
    assert!(matches!(get(&client, "/refused").await.unwrap_err(), ApiError::Unauthorized { .. }));
    assert_eq!(get(&client, "/").await.unwrap(), StatusCode::OK);
    assert_eq!(server.clients(), [first, second]);
}

/// Servers and balancers that end a TLS connection without a word.
#[tokio::test]
async fn a_get_is_sent_again_when_a_tls_connection_just_ends() {
    let authority = authority();
    let server = Server::start(&authority, "127.0.0.1").await;
    let mut config = server.config();
    config.root_cert = Some(vec![authority.der().to_vec()]);
    let client = DraClient::on(with_config(config).await.unwrap());
    assert_eq!(get(&client, "/").await.unwrap(), StatusCode::OK);
    server.closes_next.store(true, Ordering::SeqCst);
    assert_eq!(get(&client, "/").await.unwrap(), StatusCode::OK);
    assert_eq!(server.clients().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_a_handshake_is_given_up() {
    // Its kernel accepts the connection, and nothing is sent over it.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = Config::new(format!("https://{}", listener.local_addr().unwrap()).parse().unwrap());
    config.root_cert = Some(vec![authority().der().to_vec()]);
    let problem = tokio::time::timeout(Duration::from_secs(60), problem(config)).await.unwrap().unwrap();
    assert!(problem.contains(": timed out; check the network"), "{problem}");
}

/// A plugin prints another certificate at each run: the server gets the second one after it has refused the first.
#[tokio::test]
async fn a_plugin_renews_the_client_certificate_that_the_server_refuses() {
    let authority = authority();
    let server = Server::start(&authority, "127.0.0.1").await;
    let directory = tempfile::tempdir().unwrap();
    let certificates = ["1", "2"].map(|run| {
        let (certificate, key) = issue(&authority, run);
        let status = serde_json::json!({ "clientCertificateData": certificate, "clientKeyData": key });
        fs::write(directory.path().join(run), serde_json::json!({ "status": status }).to_string()).unwrap();
        der(&certificate)
    });
    let mut config = server.config();
    config.root_cert = Some(vec![authority.der().to_vec()]);
    config.user.exec = Some(plugin(directory.path()));
    let client = DraClient::on(with_config(config).await.unwrap());
    assert_eq!(get(&client, "/").await.unwrap(), StatusCode::OK);
    assert!(matches!(get(&client, "/refused").await.unwrap_err(), ApiError::Unauthorized { .. }));
    assert_eq!(server.clients(), [Some(certificates[0].clone())], "the requests share a connection");
    assert_eq!(get(&client, "/").await.unwrap(), StatusCode::OK);
    assert_eq!(server.clients(), certificates.map(Some));
}

#[tokio::test]
async fn connections_stay_if_a_plugin_prints_the_same_certificate_again() {
    let authority = authority();
    let server = Server::start(&authority, "127.0.0.1").await;
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = issue(&authority, "client");
    for run in ["1", "2"] {
        let status = serde_json::json!({ "token": run, "clientCertificateData": certificate, "clientKeyData": key });
        fs::write(directory.path().join(run), serde_json::json!({ "status": status }).to_string()).unwrap();
    }
    let mut config = server.config();
    config.root_cert = Some(vec![authority.der().to_vec()]);
    config.user.exec = Some(plugin(directory.path()));
    let client = DraClient::on(with_config(config).await.unwrap());
    assert!(matches!(get(&client, "/refused").await.unwrap_err(), ApiError::Unauthorized { .. }));
    assert_eq!(get(&client, "/").await.unwrap(), StatusCode::OK);
    assert_eq!(fs::read_to_string(directory.path().join("runs")).unwrap().lines().count(), 2);
    assert_eq!(server.clients(), [Some(der(&certificate))]);
}

/// A plugin that prints the file `1` when it runs first, and then `2`.
fn plugin(directory: &Path) -> Exec {
    let script = "cd \"$0\"; echo >> runs; cat $(wc -l < runs)";
    let args = ["-c", script, directory.to_str().unwrap()].map(str::to_owned).to_vec();
    Exec { command: Some("sh".to_owned()), args, ..Default::default() }
}
