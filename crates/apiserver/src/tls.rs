//! TLS: each server has a new certificate authority and server certificate.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

/// An error in the setup of TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Creating the certificates failed.
    #[error("creating a certificate for the API server failed")]
    Certificate(#[from] rcgen::Error),
    /// The certificate was not accepted.
    #[error("configuring TLS for the API server failed")]
    Setup(#[from] tokio_rustls::rustls::Error),
}

/// The TLS configuration of a server, and the certificate authority for its clients.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) ca_der: Vec<u8>,
    pub(crate) ca_pem: String,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Creates certificates for an address and `localhost`.
    pub(crate) fn new(address: IpAddr) -> Result<Self, TlsError> {
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
        ca.distinguished_name.push(DnType::CommonName, "kubernetes");
        let ca_key = KeyPair::generate()?;
        let ca_certificate = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);

        let mut server = CertificateParams::new(vec!["localhost".to_owned()])?;
        server.subject_alt_names.push(SanType::IpAddress(address));
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &issuer)?;

        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            ca_der: ca_certificate.der().to_vec(),
            ca_pem: ca_certificate.pem(),
        })
    }
}
