//! The client certificate and its key.

use std::fs;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::AuthInfo;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use secrecy::{ExposeSecret as _, SecretString};

use super::{TlsError, provider};
use crate::connection::lock;

/// The client certificate of new connections, which can be replaced.
#[derive(Debug)]
pub(in crate::connection) struct Identity(Mutex<Arc<CertifiedKey>>);

impl Identity {
    /// Reads the certificate of a kubeconfig's user, if it has one.
    pub(super) fn of(user: &AuthInfo) -> Result<Option<Self>, TlsError> {
        let data = user.client_certificate_data.as_deref();
        let certificate = load("client-certificate", data, user.client_certificate.as_deref())?;
        let data = user.client_key_data.as_ref().map(SecretString::expose_secret);
        let key = load("client-key", data, user.client_key.as_deref())?;
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Self::from_pem(&certificate, &key).map(Some),
            (Some(_), None) => Err(TlsError::content("client-certificate", "there is no client-key for it")),
            (None, Some(_)) => Err(TlsError::content("client-key", "there is no client-certificate for it")),
        }
    }

    /// Parses a certificate with its chain, and a key.
    pub(in crate::connection) fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let invalid = || TlsError::content("client-certificate", "is not a certificate in PEM");
        let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(invalid)?;
        // The parser's error may have a line of the key.
        let key = PrivateKeyDer::from_pem_slice(key)
            .ok()
            .ok_or_else(|| TlsError::content("client-key", "is not an unencrypted private key in PEM"))?;
        let key = CertifiedKey::from_der(chain, key, &provider());
        Ok(Self(Mutex::new(Arc::new(key.map_err(|error| TlsError::rejected("client-key", error))?))))
    }

    /// Uses another certificate for new connections.
    pub(in crate::connection) fn replace(&self, other: &Self) {
        let other = lock(&other.0).clone();
        *lock(&self.0) = other;
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(lock(&self.0).clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Decodes the data of a field or, without data, reads its file.
fn load(field: &'static str, data: Option<&str>, file: Option<&str>) -> Result<Option<Vec<u8>>, TlsError> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        // The decoder's error has a character of the data.
        let decoded = STANDARD.decode(data).ok();
        return decoded.map(Some).ok_or_else(|| TlsError::content(format!("{field}-data"), "is not base64"));
    }
    let file = file.filter(|file| !file.is_empty());
    let read = file.map(|file| fs::read(file).map_err(|source| TlsError::Read { field, path: file.into(), source }));
    read.transpose()
}
