//! Why a request got no answer: one sentence with the server, the cause and what to check.
//!
//! HTTP libraries wrap the cause several times (`client error (Connect)`, `tcp connect error`). Here it is found by type in the
//! chain of sources, and put into the words that `kubectl` uses for it.

#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::io;

use rustls::CertificateError;

use crate::Server;

/// A host name that cannot be resolved.
#[derive(Debug, thiserror::Error)]
#[error("look up {name}: {source}")]
pub(crate) struct LookupError {
    pub(crate) name: String,
    pub(crate) source: io::Error,
}

/// A request that could not be sent, or whose answer could not be received.
#[derive(Debug)]
pub struct SendError {
    server: Server,
    cause: Cause,
    source: Box<dyn Error + Send + Sync>,
}

/// What went wrong, in the terms of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// The name has no address.
    NoSuchHost { name: String, detail: String },
    /// Nothing listens at the address.
    Refused,
    /// There is no way to the address, or nothing comes back.
    Unreachable(io::ErrorKind),
    /// The certificate is not signed by a known authority.
    UnknownAuthority,
    /// The certificate is expired, or not valid yet.
    CertificateTime(String),
    /// The certificate is for other names.
    CertificateName(String),
    /// The TLS handshake failed for another reason.
    Tls(String),
    /// Anything else: the messages of all errors in the chain.
    Other(String),
}

impl SendError {
    /// Returns the error of the HTTP client.
    pub fn get_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }

    pub(crate) fn new(server: &Server, source: Box<dyn Error + Send + Sync>) -> Self {
        let cause = Cause::of(&*source);
        Self { server: server.clone(), cause, source }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer from {}: {}", self.server, self.cause)?;
        let remedy = self.cause.remedy();
        if remedy.is_empty() { Ok(()) } else { write!(f, "; {remedy}") }
    }
}

// No `source`: the message has the cause, and whoever prints all sources would repeat it in the words of the libraries.
impl Error for SendError {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchHost { name, detail } => write!(f, "look up {name}: no such host ({detail})"),
            Self::Refused => f.write_str("connection refused"),
            Self::Unreachable(kind) => write!(f, "{kind}"),
            Self::UnknownAuthority => f.write_str("certificate signed by unknown authority"),
            Self::CertificateTime(error) | Self::CertificateName(error) => f.write_str(error),
            Self::Tls(error) => write!(f, "TLS: {error}"),
            Self::Other(messages) => f.write_str(messages),
        }
    }
}

impl Cause {
    /// Finds the cause in an error and its sources.
    fn of(error: &(dyn Error + 'static)) -> Self {
        for error in chain(error) {
            if let Some(LookupError { name, source }) = error.downcast_ref() {
                let detail = source.to_string();
                // The standard library's words for any failure of `getaddrinfo`.
                let detail = detail.strip_prefix("failed to lookup address information: ").unwrap_or(&detail);
                return Self::NoSuchHost { name: name.clone(), detail: detail.to_owned() };
            }
            if let Some(error) = error.downcast_ref::<rustls::Error>() {
                return Self::of_tls(error);
            }
        }
        match io_cause(error).map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => Self::Refused,
            Some(
                kind @ (io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable),
            ) => Self::Unreachable(kind),
            _ => Self::Other(messages(error)),
        }
    }

    fn of_tls(error: &rustls::Error) -> Self {
        let rustls::Error::InvalidCertificate(certificate) = error else { return Self::Tls(error.to_string()) };
        match certificate {
            // A bad signature: the authority of a cluster that was set up anew has the same name and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownAuthority,
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::CertificateTime(certificate.to_string()),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::CertificateName(certificate.to_string())
            }
            _ => Self::Tls(error.to_string()),
        }
    }

    /// Returns what to check.
    fn remedy(&self) -> &'static str {
        match self {
            Self::NoSuchHost { .. } => "check the server's name in the kubeconfig, and the DNS of this node or pod",
            Self::Refused => {
                "check that the server runs, and its address in the kubeconfig, or in a pod KUBERNETES_SERVICE_HOST and \
                 KUBERNETES_SERVICE_PORT"
            }
            Self::Unreachable(_) => {
                "check the network, firewalls and network policies between this node or pod and the server"
            }
            Self::UnknownAuthority => {
                "check certificate-authority in the kubeconfig, or in a pod ca.crt of its service account"
            }
            Self::CertificateTime(_) => "renew the server's certificate, or set the clock of this node",
            Self::CertificateName(_) => {
                "use a name of the certificate as the server in the kubeconfig, or as its tls-server-name"
            }
            Self::Tls(_) => {
                "check that the server speaks HTTPS at this address, and the client certificate in the kubeconfig"
            }
            Self::Other(_) => "",
        }
    }
}

/// Returns the I/O error that caused an error, if there is one: the innermost.
pub fn io_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    chain(error).filter_map(|error| error.downcast_ref()).last()
}

/// Iterates over an error and its sources.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    fn next<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            // The source of an I/O error is the source of the error in it, which would be skipped.
            Some(inner) => Some(inner),
            None => error.source(),
        }
    }
    std::iter::successors(Some(error), |error| next(*error))
}

/// Joins the messages of an error and its sources, without those that repeat the message before them.
fn messages(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for message in chain(error).skip(1).map(ToString::to_string) {
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
    }
    text
}
