//! The client certificate and its key.

use std::fs;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use secrecy::{ExposeSecret as _, SecretString};

use super::{TlsError, provider};
use crate::connection::config::User;
use crate::connection::lock;
use crate::connection::reloaded::Reloaded;

/// The client certificate of new connections.
#[derive(Debug)]
pub(in crate::connection) enum Identity {
    /// That of the kubeconfig itself.
    Fixed(Arc<CertifiedKey>),
    /// That of two files, which may change.
    Files(Reloaded<Arc<CertifiedKey>, TlsError>),
    /// That of an exec plugin, which is replaced when the plugin has run again.
    Plugin(Mutex<Arc<CertifiedKey>>),
}

impl Identity {
    /// Reads the certificate of a kubeconfig's user, if it has one.
    pub(super) fn of(user: &User) -> Result<Option<Self>, TlsError> {
        let has_data = user.client_certificate_data.is_some() || user.client_key_data.is_some();
        if !has_data && user.client_certificate.is_some() && user.client_key.is_some() {
            // Read together: one of them is new some time before the other is.
            let user = user.clone();
            let absent = || TlsError::content("client-certificate", "is not there");
            let load = move |last: Option<&_>| read(&user)?.map(|key| unless_same(last, key)).ok_or_else(absent);
            return Ok(Some(Self::Files(Reloaded::new(load)?)));
        }
        Ok(read(user)?.map(Self::Fixed))
    }

    /// Returns the certificate for a new connection.
    pub(in crate::connection) fn current(&self) -> Arc<CertifiedKey> {
        match self {
            Self::Fixed(key) => key.clone(),
            Self::Files(files) => files.get(),
            Self::Plugin(key) => lock(key).clone(),
        }
    }

    /// Whether the certificate may change.
    pub(super) fn may_change(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// Lets the files be read again: the server has refused their certificate.
    pub(in crate::connection) fn refuse(&self) {
        if let Self::Files(files) = self {
            files.expire();
        }
    }

    /// Uses the certificate that a plugin has printed for new connections.
    pub(in crate::connection) fn replace(&self, printed: Arc<CertifiedKey>) {
        if let Self::Plugin(key) = self {
            let mut key = lock(key);
            *key = unless_same(Some(&key), printed);
        }
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Returns the last key if the other one has the same certificates, and so is the same: connections that were made with it stay.
fn unless_same(last: Option<&Arc<CertifiedKey>>, other: Arc<CertifiedKey>) -> Arc<CertifiedKey> {
    last.filter(|last| last.cert == other.cert).cloned().unwrap_or(other)
}

fn read(user: &User) -> Result<Option<Arc<CertifiedKey>>, TlsError> {
    let data = user.client_certificate_data.as_deref();
    let certificate = load("client-certificate", data, user.client_certificate.as_deref())?;
    let data = user.client_key_data.as_ref().map(SecretString::expose_secret);
    let key = load("client-key", data, user.client_key.as_deref())?;
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => certified_key(&certificate, &key).map(Some),
        (Some(_), None) => Err(TlsError::content("client-certificate", "there is no client-key for it")),
        (None, Some(_)) => Err(TlsError::content("client-key", "there is no client-certificate for it")),
    }
}

/// Parses a certificate with its chain, and a key, in PEM.
pub(in crate::connection) fn certified_key(certificate: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, TlsError> {
    let invalid = || TlsError::content("client-certificate", "is not a certificate in PEM");
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(invalid)?;
    // The parser's error may have a line of the key.
    let key = PrivateKeyDer::from_pem_slice(key)
        .ok()
        .ok_or_else(|| TlsError::content("client-key", "is not an unencrypted private key in PEM"))?;
    let key = CertifiedKey::from_der(chain, key, &provider());
    key.map(Arc::new).map_err(|error| TlsError::rejected("client-key", error))
}

/// Decodes the data of a field or, without data, reads its file.
fn load(field: &'static str, data: Option<&str>, file: Option<&str>) -> Result<Option<Vec<u8>>, TlsError> {
    if let Some(data) = data {
        // The decoder's error has a character of the data.
        let decoded = STANDARD.decode(data).ok();
        return decoded.map(Some).ok_or_else(|| TlsError::content(format!("{field}-data"), "is not base64"));
    }
    let read = file.map(|file| fs::read(file).map_err(|source| TlsError::Read { field, path: file.into(), source }));
    read.transpose()
}
