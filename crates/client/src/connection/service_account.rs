//! The service account of the pod.

use std::env;
use std::net::IpAddr;
use std::path::PathBuf;

use http::Uri;

use super::config::Config;

/// Where the kubelet puts the token of the pod's service account, and what the server's certificate is signed by.
const DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Why there is no service account.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceAccountError {
    /// This is no pod.
    #[error("{variable} is not set")]
    NoServer {
        /// The variable of the environment.
        variable: &'static str,
    },
    /// The variables are not those that the kubelet sets.
    #[error("KUBERNETES_SERVICE_HOST {host:?} and KUBERNETES_SERVICE_PORT {port:?} are not a host and a port")]
    Server {
        /// The first variable.
        host: String,
        /// The second one.
        port: String,
    },
}

/// Returns the configuration of a pod.
pub(super) fn config() -> Result<Config, ServiceAccountError> {
    let variable = |variable| {
        let value = env::var(variable).ok().filter(|value| !value.is_empty());
        value.ok_or(ServiceAccountError::NoServer { variable })
    };
    let mut config = Config::new(url(&variable("KUBERNETES_SERVICE_HOST")?, &variable("KUBERNETES_SERVICE_PORT")?)?);
    config.root_cert_file = Some(PathBuf::from(DIRECTORY).join("ca.crt"));
    config.user.token_file = Some(format!("{DIRECTORY}/token"));
    Ok(config)
}

fn url(host: &str, port: &str) -> Result<Uri, ServiceAccountError> {
    let error = || ServiceAccountError::Server { host: host.to_owned(), port: port.to_owned() };
    let number: u16 = port.parse().ok().ok_or_else(error)?;
    let host = if matches!(host.parse(), Ok(IpAddr::V6(_))) { format!("[{host}]") } else { host.to_owned() };
    let url: Uri = format!("https://{host}:{number}").parse().ok().ok_or_else(error)?;
    if url.host() == Some(&host) { Ok(url) } else { Err(error()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_named_by_variables() {
        for (host, port, expected) in [
            ("10.96.0.1", "443", "https://10.96.0.1:443/"),
            ("fd00::1", "6443", "https://[fd00::1]:6443/"),
            ("api.test", "443", "https://api.test:443/"),
        ] {
            assert_eq!(url(host, port).unwrap().to_string(), expected);
        }
        for (host, port) in [("a b", "443"), ("a", "https"), ("a", "70000"), ("a/b", "443"), ("u@a", "443")] {
            let error = url(host, port).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "KUBERNETES_SERVICE_HOST {host:?} and KUBERNETES_SERVICE_PORT {port:?} are not a host and a port"
                )
            );
        }
    }
}
