//! The certificate of the server, and reading it again when its files are replaced.
//!
//! A pair that cannot be used, such as a certificate whose key is not written yet, leaves the current one in place; the
//! next change of the files tries again. Only regular files of a bounded size are read, and never on the runtime's thread:
//! a FIFO in their place is an error.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use drakkar_metadata::Reader;
use drakkar_metadata::read::ReadError;
use thiserror::Error;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

/// Why a certificate and its key cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A file cannot be read: it is missing, not a regular file, or too large.
    #[error("webhook's {what}: {source}")]
    Unreadable {
        /// `certificate` or `key`.
        what: &'static str,
        /// Which file, and why.
        source: ReadError,
    },
    /// A file is not PEM.
    #[error("webhook's {what} {}: {source}", path.display())]
    File {
        /// `certificate` or `key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// The certificate file has no certificate.
    #[error("webhook's certificate {}: the file has no certificate in PEM", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The key is not the certificate's, or of a kind that is not supported.
    #[error("webhook's certificate {} and key {}: {source}", certificate.display(), key.display())]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        source: tokio_rustls::rustls::Error,
    },
}

/// The certificate in use.
#[derive(Debug)]
pub(super) struct Current {
    certificate: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    pair: RwLock<Arc<CertifiedKey>>,
}

impl Current {
    /// Reads the files. Blocks.
    pub(super) fn load(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        let provider = Arc::new(ring::default_provider());
        let pair = RwLock::new(read(certificate, key, &provider)?);
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), provider, pair })
    }

    /// The files to follow.
    pub(super) fn files(&self) -> [PathBuf; 2] {
        [self.certificate.clone(), self.key.clone()]
    }

    /// Reads the files again. Blocks.
    pub(super) fn reload(&self) {
        match read(&self.certificate, &self.key, &self.provider) {
            Ok(pair) => {
                let mut current = self.pair.write().unwrap_or_else(PoisonError::into_inner);
                if current.cert != pair.cert {
                    *current = pair;
                    tracing::info!(certificate = %self.certificate.display(), "certificate replaced");
                }
            }
            Err(error) => tracing::warn!(%error, "certificate not replaced, the current one stays"),
        }
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.pair.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn read(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, CertificateError> {
    let file = |what, path: &Path| {
        let path = path.to_owned();
        move |source| CertificateError::File { what, path, source }
    };
    let bytes = |what, path: &Path| {
        Reader::new().read_bytes(path).map_err(|source| CertificateError::Unreadable { what, source })
    };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes("certificate", certificate)?)
        .collect::<Result<_, _>>()
        .map_err(file("certificate", certificate))?;
    if chain.is_empty() {
        return Err(CertificateError::Empty { path: certificate.to_owned() });
    }
    let private = PrivateKeyDer::from_pem_slice(&bytes("key", key)?).map_err(file("key", key))?;
    let pair = CertifiedKey::from_der(chain, private, provider).map_err(|source| CertificateError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })?;
    Ok(Arc::new(pair))
}

/// TLS with the certificate in use at the time of each handshake.
pub(super) fn server_config(current: Arc<Current>) -> Result<ServerConfig, tokio_rustls::rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(current.provider.clone())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(current);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
