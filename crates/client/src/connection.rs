//! The client with which a driver talks to its API server, as the environment describes it.
//!
//! It is what `kube` makes by default, with three differences. It knows no proxies: a driver that needs one gives a client of
//! its own. It does not try again by itself: it would do so after
//! milliseconds, or exactly when the server says, which is when all nodes do. And its connections are probed while nothing
//! is said on them: a watch on a connection whose other end is gone would otherwise not be seen to be dead.

use std::time::Duration;

use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tower::{BoxError, ServiceBuilder};

/// How long nothing is said on a connection before it is probed.
const IDLE: Duration = Duration::from_secs(10);
/// How long the other end has for a probe, and how many in a row it may leave unanswered.
const PROBE: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// How long data that was sent may stay unacknowledged: as long as that.
const UNACKNOWLEDGED: Duration = Duration::from_secs(25);

/// Returns a client for the API server that the environment describes: the pod's service account, or the user's kubeconfig.
pub async fn connect() -> Result<kube::Client, kube::Error> {
    with_config(kube::Config::infer().await.map_err(kube::Error::InferConfig)?)
}

fn with_config(mut config: kube::Config) -> Result<kube::Client, kube::Error> {
    if let Some(proxy_url) = config.proxy_url.take().map(Box::new) {
        // `kube` has connectors for proxies, which few drivers need and all would carry around.
        let protocol_feature = "of kube for it, and a client that the driver makes itself: PluginBuilder::client";
        return Err(kube::Error::ProxyProtocolDisabled { proxy_url, protocol_feature });
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(IDLE));
    tcp.set_keepalive_interval(Some(PROBE));
    tcp.set_keepalive_retries(Some(PROBES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
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

    /// In how many hundredths of a second the kernel probes a connection, if it does.
    fn next_probe(from: SocketAddr, to: SocketAddr) -> Option<u32> {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let ends = [from, to].map(|address| format!(":{:04X}", address.port()));
        let mut connections = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let connection = connections.find(|fields| fields[1].ends_with(&ends[0]) && fields[2].ends_with(&ends[1]))?;
        // Timer 2 is that of keep-alive probes.
        u32::from_str_radix(connection[5].strip_prefix("02:")?, 16).ok()
    }

    #[tokio::test]
    async fn connections_on_which_nothing_is_said_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
        config.root_cert = Some(Vec::new());
        let client = with_config(config).unwrap();
        let asking = tokio::spawn(async move { client.send(Request::new(Body::empty())).await.is_ok() });
        let (mut connection, from) = listener.accept().await.unwrap();
        assert!(connection.read(&mut [0; 1024]).await.unwrap() > 0);
        // Once the request is acknowledged, nothing is left to wait for but probes.
        let wait = loop {
            if let Some(wait) = next_probe(from, address) {
                break wait;
            }
            tokio::task::yield_now().await;
        };
        assert!(wait <= 1000, "{wait} hundredths of a second");
        asking.abort();
    }
}
