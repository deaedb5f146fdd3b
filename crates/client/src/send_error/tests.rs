//! Real failures of real connections: what is printed is what an operator reads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use rstest::rstest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::ring};

use super::*;
use crate::{ApiError, DraClient};

/// Returns a client for a server, as a kubeconfig with a token makes it, and the directory with the kubeconfig.
async fn client(server: &str, authority: &str) -> (DraClient, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {{server: '{server}'{authority}}}}}]\nusers: [{{name: a, user: {{token: wrong}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    (DraClient::connect(Some(&kubeconfig)).await.unwrap(), directory)
}

async fn error_of(client: &DraClient) -> ApiError {
    let request = client.request(Method::GET, "/apis/resource.k8s.io", "", Vec::new()).unwrap();
    client.exchange(request, 1024).await.unwrap_err()
}

/// Returns an address at which nothing listens.
async fn unused() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn a_refused_connection_names_the_server_and_what_to_check() {
    let address = unused().await;
    let (client, _directory) = client(&format!("https://{address}"), "").await;
    let error = error_of(&client).await;
    assert!(error.is_transient());
    assert_eq!(
        error.to_string(),
        format!(
            "no answer from the API server https://{address}: connection refused; check that the server runs, and its \
             address in the kubeconfig, or in a pod KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT"
        )
    );
}

/// The name ends in `.invalid`, which no DNS server may resolve (RFC 6761).
#[tokio::test]
async fn a_name_without_an_address_is_named() {
    let (client, _directory) = client("https://kube.drakkar.invalid:6443", "").await;
    let error = error_of(&client).await.to_string();
    let expected =
        "no answer from the API server https://kube.drakkar.invalid:6443: look up kube.drakkar.invalid: no such host (";
    assert!(error.starts_with(expected), "{error}");
    assert!(
        error.ends_with("); check the server's name in the kubeconfig, and the DNS of this node or pod"),
        "{error}"
    );
}

/// A TLS server with a certificate for these names that it has signed itself, which answers every request with 401.
async fn tls_server(names: &[&str], is_expired: bool) -> (SocketAddr, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = rcgen::CertificateParams::new(names).unwrap();
    if is_expired {
        parameters.not_after = rcgen::date_time_ymd(2001, 1, 1);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not like the certificate hangs up.
                let Ok(mut stream) = acceptor.accept(connection).await else { return };
                let _ = stream.read(&mut [0; 4096]).await;
                let body = r#"{"kind":"Status","message":"Unauthorized"}"#;
                let answer = format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    use base64::Engine as _;
    (address, base64::prelude::BASE64_STANDARD.encode(certificate.pem()))
}

/// Both certificates are issued under the same name, as those of two clusters are.
#[tokio::test]
async fn an_unknown_authority_is_told_in_the_words_of_kubectl() {
    let (address, _) = tls_server(&["127.0.0.1"], false).await;
    let (_, other) = tls_server(&["127.0.0.1"], false).await;
    let authority = format!(", certificate-authority-data: {other}");
    let (client, _directory) = client(&format!("https://{address}"), &authority).await;
    assert_eq!(
        error_of(&client).await.to_string(),
        format!(
            "no answer from the API server https://{address}: certificate signed by unknown authority; check \
             certificate-authority in the kubeconfig, or in a pod ca.crt of its service account"
        )
    );
}

#[rstest]
#[case::name(&["other.example.com"], false, "; use a name of the certificate as the server in the kubeconfig")]
#[case::time(&["127.0.0.1"], true, "; renew the server's certificate, or set the clock of this node")]
#[tokio::test]
async fn a_certificate_that_is_not_valid_here_and_now_says_why(
    #[case] names: &[&str],
    #[case] is_expired: bool,
    #[case] remedy: &str,
) {
    let (address, own) = tls_server(names, is_expired).await;
    let authority = format!(", certificate-authority-data: {own}");
    let (client, _directory) = client(&format!("https://{address}"), &authority).await;
    let error = error_of(&client).await.to_string();
    let expected = format!("no answer from the API server https://{address}: certificate ");
    assert!(error.starts_with(&expected) && error.contains(remedy), "{error}");
}

#[tokio::test]
async fn a_wrong_token_names_the_server_and_the_credentials() {
    let (address, own) = tls_server(&["127.0.0.1"], false).await;
    let authority = format!(", certificate-authority-data: {own}");
    let (client, _directory) = client(&format!("https://{address}"), &authority).await;
    let error = error_of(&client).await;
    assert_eq!(error.status(), Some(http::StatusCode::UNAUTHORIZED));
    assert_eq!(
        error.to_string(),
        format!(
            "the API server https://{address} answered 401 Unauthorized: Unauthorized; it does not accept the \
             credentials: check the user's token or certificate in the kubeconfig, or in a pod its service account"
        )
    );
}

#[test]
fn a_timeout_names_the_server_and_the_limit() {
    let server = Server::from(&http::Uri::from_static("https://10.0.0.1:6443"));
    let error = ApiError::Timeout { server: server.clone(), after: Duration::from_secs(30) };
    assert!(
        error.to_string().starts_with("no answer from the API server https://10.0.0.1:6443 within 30 s; "),
        "{error}"
    );
    let error = ApiError::send(&server, io::Error::from(io::ErrorKind::TimedOut)).to_string();
    assert!(error.contains("https://10.0.0.1:6443: timed out; check the network, firewalls"), "{error}");
}

/// A server that speaks HTTP at the address of an HTTPS URL.
#[tokio::test]
async fn a_server_without_tls_is_told_from_one_that_is_away() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let _ = connection.shutdown().await;
        let _ = connection.read(&mut [0; 4096]).await;
    });
    let (client, _directory) = client(&format!("https://{address}"), "").await;
    let error = error_of(&client).await.to_string();
    assert!(error.contains(": TLS: ") && error.contains("; check that the server speaks HTTPS"), "{error}");
}

#[test]
fn an_error_of_another_kind_has_all_messages_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("client error (SendRequest)")]
    struct Outer(#[source] io::Error);
    let inner = io::Error::other(io::Error::other("connection closed before message completed"));
    let error = ApiError::send(&Server::default(), Outer(inner)).to_string();
    assert_eq!(
        error,
        "no answer from the API server: client error (SendRequest): connection closed before message completed"
    );
}
