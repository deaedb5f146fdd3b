//! The connection of a driver to its API server.
//!
//! Requests are sent over [`kept`] connections instead of by the client of `kube`, with a [`config`], [`credentials`] and [`tls`]
//! of our own: with those of `kube`, every driver would have parsers of YAML, `JSONPath` and regular expressions. Other
//! differences:
//! - There are no proxies. A driver that needs one creates its own client.
//! - Nothing is retried here. `kube` would retry after milliseconds, or exactly when the server says, as all other nodes do.
//! - Idle connections are probed. Otherwise a watch would never notice that the other end of its connection is gone.

mod config;
mod credentials;
pub(crate) mod kept;
mod kubeconfig;
mod proxy;
mod reloaded;
mod resolver;
mod service_account;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use rustls::sign::CertifiedKey;

use self::config::Config;
use self::credentials::Credentials;
pub use self::credentials::CredentialsError;
use self::kept::{CONNECT_TIMEOUT, KeptConnections};
pub use self::kubeconfig::KubeconfigError;
use self::resolver::NamingResolver;
pub use self::service_account::ServiceAccountError;
pub use self::tls::TlsError;
use crate::{DraClient, Server};

/// The time without traffic after which a connection is probed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// The interval of probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The number of unanswered probes after which a connection is closed.
const KEEPALIVE_RETRIES: u32 = 3;
/// The time after which a connection with unacknowledged data is closed: the same as for one that is idle.
const USER_TIMEOUT: Duration = Duration::from_secs(25);

/// Why there is no client for the API server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is neither a kubeconfig nor a service account.
    #[error(
        "{kubeconfig}; service account: {service_account}; in a pod a service account is needed, elsewhere a kubeconfig: \
         --kubeconfig or KUBECONFIG"
    )]
    NoConfig {
        /// Why there is no kubeconfig.
        #[source]
        kubeconfig: Box<ConnectError>,
        /// Why there is no service account.
        service_account: ServiceAccountError,
    },
    /// A kubeconfig cannot be used.
    #[error("kubeconfig {}: {source}", .path.display())]
    Kubeconfig {
        /// The file, or the list of files as in the variable `KUBECONFIG`.
        path: PathBuf,
        /// What is wrong with it.
        source: KubeconfigError,
    },
    /// The configuration has a proxy, which this client does not support.
    #[error(
        "the proxy {0:?} of the configuration or of HTTPS_PROXY is not supported; name the server in NO_PROXY if it can be reached \
         without, or let the driver make a client itself: PluginBuilder::client"
    )]
    Proxy(String),
    /// There are no credentials.
    #[error("credentials: {0}")]
    Credentials(#[source] CredentialsError),
    /// There is no TLS.
    #[error("TLS: {0}")]
    Tls(#[source] TlsError),
}

impl DraClient {
    /// Makes a client for the API server of a kubeconfig: a file, or a list of files as in the variable `KUBECONFIG`. Without
    /// one it is that of the environment: the user's kubeconfig, or else the pod's service account.
    ///
    /// Nothing is sent yet, so a server that cannot be reached is no error here.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        let config = match kubeconfig {
            Some(list) => load(list.to_owned())?,
            None => infer()?,
        };
        let server = Server::from(&config.server);
        let kept = with_config(config).await?;
        Ok(Self::on(kept).with_server(server))
    }
}

/// Returns the configuration of the environment: the user's kubeconfig, or else the pod's service account.
fn infer() -> Result<Config, ConnectError> {
    let mut config = match load(kubeconfig::default_list()) {
        Ok(config) => config,
        Err(error) => service_account::config()
            .map_err(|service_account| ConnectError::NoConfig { kubeconfig: Box::new(error), service_account })?,
    };
    config.apply_debug_overrides();
    Ok(config)
}

fn load(list: PathBuf) -> Result<Config, ConnectError> {
    kubeconfig::load(&list).map_err(|source| ConnectError::Kubeconfig { path: list, source })
}

async fn with_config(config: Config) -> Result<KeptConnections, ConnectError> {
    if let Some(proxy) = &config.proxy_url {
        // The connectors of `kube` for proxies would be linked into all drivers, and few need them. The URL may have a password.
        return Err(ConnectError::Proxy(proxy.host().unwrap_or_default().to_owned()));
    }
    let mut tcp = HttpConnector::new_with_resolver(NamingResolver::new());
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    tcp.set_nodelay(true);
    let credentials = Credentials::new(&config).await.map_err(ConnectError::Credentials)?;
    let identity = tls::identity(&config, &credentials).map_err(ConnectError::Tls)?;
    let connector = tls::connector(&config, identity.clone(), tcp).map_err(ConnectError::Tls)?;
    Ok(KeptConnections::new(config.server, credentials, identity, connector))
}

/// Whether two client certificates are the same one, or both are none.
fn is_same(one: Option<&Arc<CertifiedKey>>, other: Option<&Arc<CertifiedKey>>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::SocketAddr;

    use http::Request;
    use kube::client::Body;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_is_wrong_with_a_kubeconfig_is_said_in_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let context = "contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n";
        for (content, expected) in [
            ("clusters: [", "is not YAML of a kubeconfig: line 1 column 11: "),
            ("{}", "has no current-context; `kubectl config use-context` sets it"),
            ("current-context: y", "its current-context \"y\" is not among its contexts"),
            (context, "the context's cluster \"c\" is not among its clusters"),
            (&format!("{context}clusters: [{{name: c, cluster: {{}}}}]"), "the context's cluster has no server"),
            (
                &format!("{context}clusters: [{{name: c, cluster: {{server: 'https://a b'}}}}]"),
                "the cluster's server is not a URL: ",
            ),
        ] {
            let path = directory.path().join("config");
            std::fs::write(&path, content).unwrap();
            let error = DraClient::connect(Some(&path)).await.err().unwrap().to_string();
            let problem = error.strip_prefix(&format!("kubeconfig {}: ", path.display())).unwrap_or(&error);
            assert!(problem.starts_with(expected) && !problem.contains('\n'), "{content}: {error}");
        }
        let missing = DraClient::connect(Some(Path::new("/nonexistent/config"))).await.err().unwrap().to_string();
        assert_eq!(missing, "kubeconfig /nonexistent/config: No such file or directory (os error 2)");
        let missing = DraClient::connect(Some(Path::new("/nonexistent/a:/nonexistent/b"))).await.err().unwrap();
        let expected =
            "kubeconfig /nonexistent/a:/nonexistent/b: /nonexistent/a: No such file or directory (os error 2)";
        assert_eq!(missing.to_string(), expected);
    }

    #[tokio::test]
    async fn what_is_missing_is_said_with_what_to_do() {
        let kubeconfig = Box::new(load("/nonexistent/config".into()).err().unwrap());
        let service_account = ServiceAccountError::NoServer { variable: "KUBERNETES_SERVICE_HOST" };
        let error = ConnectError::NoConfig { kubeconfig, service_account };
        assert_eq!(
            error.to_string(),
            "kubeconfig /nonexistent/config: No such file or directory (os error 2); service account: KUBERNETES_SERVICE_HOST is \
             not set; in a pod a service account is needed, elsewhere a kubeconfig: --kubeconfig or KUBECONFIG"
        );
        let mut config = Config::new("https://localhost".parse().unwrap());
        config.proxy_url = Some("http://user:secret@proxy.test:3128".parse().unwrap());
        let error = with_config(config).await.err().unwrap();
        assert!(
            error.to_string().starts_with("the proxy \"proxy.test\" of the configuration or of HTTPS_PROXY "),
            "{error}"
        );
    }

    /// Returns the hundredths of a second until the kernel probes a connection; `None` if it does not.
    fn next_probe(from: SocketAddr, to: SocketAddr) -> Option<u32> {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let ends = [from, to].map(|address| format!(":{:04X}", address.port()));
        let mut connections = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let connection = connections.find(|fields| fields[1].ends_with(&ends[0]) && fields[2].ends_with(&ends[1]))?;
        // Timer 2 is the one of keepalive probes.
        u32::from_str_radix(connection[5].strip_prefix("02:")?, 16).ok()
    }

    #[tokio::test]
    async fn idle_connections_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let kept = with_config(config).await.unwrap();
        let request = tokio::spawn(async move { kept.open(Request::new(Body::empty())).await.is_ok() });
        let (mut connection, from) = listener.accept().await.unwrap();
        assert!(connection.read(&mut [0; 1024]).await.unwrap() > 0);
        // The timer is that of probes as soon as the request is acknowledged.
        let wait = loop {
            if let Some(wait) = next_probe(from, address) {
                break wait;
            }
            tokio::task::yield_now().await;
        };
        assert!(wait <= 1000, "{wait} hundredths of a second");
        request.abort();
    }
}
