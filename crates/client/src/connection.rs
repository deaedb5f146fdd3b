//! The connection of a driver to its API server.
//!
//! The client is the default one of `kube`, with three differences:
//! - It supports no proxies. A driver that needs one creates its own client.
//! - It does not retry. `kube` would retry after milliseconds, or exactly when the server says, as all other nodes do.
//! - It probes idle connections. Otherwise a watch would never notice that the other end of its connection is gone.

mod resolver;

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::{BoxError, ServiceBuilder};

use self::resolver::NamingResolver;
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
    #[error("{0}; in a pod a service account is needed, elsewhere a kubeconfig: --kubeconfig or KUBECONFIG")]
    NoConfig(#[source] Box<InferConfigError>),
    /// A kubeconfig cannot be used.
    #[error("kubeconfig {}: {source}", .path.display())]
    Kubeconfig {
        /// The file, or the list of files as in the variable `KUBECONFIG`.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// The configuration cannot be used, or has a proxy, which this client does not support.
    #[error("{0}")]
    Client(#[source] Box<kube::Error>),
}

impl DraClient {
    /// Makes a client for the API server of a kubeconfig: a file, or a list of files as in the variable `KUBECONFIG`. Without
    /// one it is that of the environment: the user's kubeconfig, or else the pod's service account.
    ///
    /// Nothing is sent yet, so a server that cannot be reached is no error here.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        let config = match kubeconfig {
            Some(path) => {
                let invalid = |error| ConnectError::Kubeconfig { path: path.to_owned(), source: Box::new(error) };
                let kubeconfig = read(path).map_err(invalid)?;
                let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
                config.map_err(invalid)?
            }
            None => kube::Config::infer().await.map_err(|error| ConnectError::NoConfig(Box::new(error)))?,
        };
        let server = Server::from(&config.cluster_url);
        let client = with_config(config).map_err(|error| ConnectError::Client(Box::new(error)))?;
        Ok(Self::new(client).with_server(server))
    }
}

/// Reads a list of files, as `kubectl` does.
fn read(list: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let paths = std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty());
    let read = paths.map(Kubeconfig::read_from);
    read.reduce(|first, next| first?.merge(next?)).unwrap_or(Err(KubeconfigError::FindPath))
}

fn with_config(mut config: kube::Config) -> Result<kube::Client, kube::Error> {
    if let Some(proxy_url) = config.proxy_url.take().map(Box::new) {
        // The connectors of `kube` for proxies would be linked into all drivers, and few need them.
        let protocol_feature = "of kube for it, and a client that the driver makes itself: PluginBuilder::client";
        return Err(kube::Error::ProxyProtocolDisabled { proxy_url, protocol_feature });
    }
    let mut tcp = HttpConnector::new_with_resolver(NamingResolver::new());
    tcp.enforce_http(false);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_request(|request: Request<Body>| request)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

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
        let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
        config.root_cert = Some(Vec::new());
        let client = with_config(config).unwrap();
        let request = tokio::spawn(async move { client.send(Request::new(Body::empty())).await.is_ok() });
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
