//! The certificates of servers that are trusted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::{TlsError, provider};
use crate::connection::config::Config;
use crate::connection::reloaded::Reloaded;

const FIELD: &str = "certificate-authority";

/// Returns what a configuration trusts: everything, a file that may change, its certificates, or those of the system.
pub(super) fn verifier(config: &Config) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    if config.accept_invalid_certs {
        tracing::warn!(server = %config.server, "insecure-skip-tls-verify: any server is trusted");
        return Ok(Arc::new(AcceptAny));
    }
    if let Some(path) = &config.root_cert_file {
        return Ok(Arc::new(ReloadedRoots::of(path.clone())?));
    }
    Ok(match &config.root_cert {
        Some(roots) => webpki(FIELD, roots.iter().map(|root| CertificateDer::from(root.as_slice())))?,
        None => Arc::new(
            rustls_platform_verifier::Verifier::new(provider())
                .map_err(|error| TlsError::rejected("certificates of the system", error))?,
        ),
    })
}

/// Trusts the certificates that the given ones have signed. One that cannot be used is left out, unless there is no other: a bundle
/// may have some that the TLS library cannot read.
fn webpki<'a>(
    field: &str,
    certificates: impl Iterator<Item = CertificateDer<'a>>,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    let mut rejected = None;
    for certificate in certificates {
        if let Err(error) = roots.add(certificate.into_owned()) {
            tracing::warn!(field, %error, "certificate of an authority cannot be used, leaving it out");
            rejected.get_or_insert(error);
        }
    }
    if let Some(error) = rejected.filter(|_| roots.is_empty()) {
        return Err(TlsError::rejected(field, error));
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    verifier.ok().ok_or_else(|| TlsError::content(field, "has no certificates"))
}

/// Trusts the certificates that those of a file have signed.
fn load(path: &Path) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let pem = fs::read(path).map_err(|source| TlsError::Read { field: FIELD, path: path.to_owned(), source })?;
    let field = path.display().to_string();
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    webpki(&field, certificates.ok().ok_or_else(|| TlsError::content(&field, "is not PEM"))?.into_iter())
}

/// Trusts the certificates of a file, which is read again when it may have changed.
#[derive(Debug)]
pub(super) struct ReloadedRoots(pub(super) Reloaded<Arc<WebPkiServerVerifier>, TlsError>);

impl ReloadedRoots {
    pub(super) fn of(path: PathBuf) -> Result<Self, TlsError> {
        Ok(Self(Reloaded::new(move |_| load(&path))?))
    }
}

impl ServerCertVerifier for ReloadedRoots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.get().verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.get().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.get().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.get().supported_verify_schemes()
    }
}

/// Trusts any server.
#[derive(Debug)]
struct AcceptAny;

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        use SignatureScheme::*;
        vec![
            ECDSA_NISTP256_SHA256,
            ECDSA_NISTP384_SHA384,
            ECDSA_NISTP521_SHA512,
            ECDSA_SHA1_Legacy,
            ED25519,
            ED448,
            RSA_PKCS1_SHA1,
            RSA_PKCS1_SHA256,
            RSA_PKCS1_SHA384,
            RSA_PKCS1_SHA512,
            RSA_PSS_SHA256,
            RSA_PSS_SHA384,
            RSA_PSS_SHA512,
        ]
    }
}
