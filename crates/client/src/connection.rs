//! The connection of a driver to its API server.
//!
//! The client is the default one of `kube`, with three differences:
//! - It supports no proxies. A driver that needs one creates its own client.
//! - It does not retry. `kube` would retry after milliseconds, or exactly when the server says, as all other nodes do.
//! - It probes idle connections. Otherwise a watch would never notice that the other end of its connection is gone.

use std::time::Duration;

use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tower::{BoxError, ServiceBuilder};

/// The time without traffic after which a connection is probed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// The interval of probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The number of unanswered probes after which a connection is closed.
const KEEPALIVE_RETRIES: u32 = 3;
/// The time after which a connection with unacknowledged data is closed: the same as for one that is idle.
const USER_TIMEOUT: Duration = Duration::from_secs(25);

/// Connects to the API server of the environment: by the user's kubeconfig, or else the pod's service account.
///
/// Returns an error if there is neither, or if the kubeconfig has a proxy, which this client does not support.
pub async fn connect() -> Result<kube::Client, kube::Error> {
    with_config(kube::Config::infer().await.map_err(kube::Error::InferConfig)?)
}

fn with_config(mut config: kube::Config) -> Result<kube::Client, kube::Error> {
    if let Some(proxy_url) = config.proxy_url.take().map(Box::new) {
        // The connectors of `kube` for proxies would be linked into all drivers, and few need them.
        let protocol_feature = "of kube for it, and a client that the driver makes itself: PluginBuilder::client";
        return Err(kube::Error::ProxyProtocolDisabled { proxy_url, protocol_feature });
    }
    let mut tcp = HttpConnector::new();
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
