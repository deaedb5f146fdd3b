//! TLS to the API server: which certificates of the server are trusted, and the client's own.

mod identity;
#[cfg(test)]
mod tests;
mod trust;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::uri::Scheme;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};

pub(super) use self::identity::{Identity, certified_key};
use super::config::Config;
use super::credentials::Credentials;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file with a certificate or a key cannot be read.
    #[error("{field} {}: {source}", .path.display())]
    Read {
        /// The field of the kubeconfig.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A field or a file has other content than it should have.
    #[error("{field}: {problem}")]
    Content {
        /// The field of the kubeconfig, or the file.
        field: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A certificate or key cannot be used.
    #[error("{field}: {source}")]
    Rejected {
        /// The field of the kubeconfig, or the file.
        field: String,
        /// The error of the TLS library.
        source: rustls::Error,
    },
}

impl TlsError {
    fn content(field: impl Into<String>, problem: &'static str) -> Self {
        Self::Content { field: field.into(), problem }
    }

    fn rejected(field: impl Into<String>, source: rustls::Error) -> Self {
        Self::Rejected { field: field.into(), source }
    }
}

/// Returns the client certificate of a configuration, unless the server's URL is one of plain HTTP.
pub(super) fn identity(config: &Config, credentials: &Credentials) -> Result<Option<Arc<Identity>>, TlsError> {
    match (has_tls(config), credentials.identity()) {
        (false, _) => Ok(None),
        (true, Some(of_plugin)) => Ok(Some(of_plugin)),
        (true, None) => Ok(Identity::of(&config.user)?.map(Arc::new)),
    }
}

/// Puts TLS around the connections that `connector` makes, unless the server's URL is one of plain HTTP.
pub(super) fn connector<C>(
    config: &Config,
    identity: Option<Arc<Identity>>,
    connector: C,
) -> Result<HttpsConnector<C>, TlsError> {
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(client_config(config, identity)?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone());
        let name =
            name.ok().ok_or_else(|| TlsError::content("tls-server-name", "is neither a DNS name nor an IP address"))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_http1().wrap_connector(connector))
}

fn client_config(config: &Config, identity: Option<Arc<Identity>>) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| TlsError::rejected("cipher suites", error))?;
    if !has_tls(config) {
        return Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    }
    let builder = builder.dangerous().with_custom_certificate_verifier(trust::verifier(config)?);
    let Some(identity) = identity else { return Ok(builder.with_no_client_auth()) };
    let may_change = identity.may_change();
    let mut config = builder.with_client_cert_resolver(identity);
    if may_change {
        // A resumed session would have the certificate of the first one.
        config.resumption = Resumption::disabled();
    }
    Ok(config)
}

fn has_tls(config: &Config) -> bool {
    config.server.scheme() == Some(&Scheme::HTTPS)
}

/// Returns the cryptography of the process, or that of `ring`.
fn provider() -> Arc<CryptoProvider> {
    let of_process = CryptoProvider::get_default().cloned();
    of_process.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()))
}
