//! The connection of a driver to its API server.
//!
//! The configuration, credentials and TLS are those of `kube`; requests are sent over [`kept`] connections instead of by its client.
//! Other differences:
//! - There are no proxies. A driver that needs one creates its own client.
//! - Nothing is retried here. `kube` would retry after milliseconds, or exactly when the server says, as all other nodes do.
//! - Idle connections are probed. Otherwise a watch would never notice that the other end of its connection is gone.

pub(crate) mod kept;
mod resolver;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use kube::client::ConfigExt as _;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use self::kept::KeptConnections;
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
    #[error("kubeconfig {}: {}", .path.display(), explain(.path, .source))]
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
        let kept = with_config(config).map_err(|error| ConnectError::Client(Box::new(error)))?;
        Ok(Self::on(kept).with_server(server))
    }
}

/// Reads a list of files, as `kubectl` does.
fn read(list: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let paths = std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty());
    let read = paths.map(Kubeconfig::read_from);
    read.reduce(|first, next| first?.merge(next?)).unwrap_or(Err(KubeconfigError::FindPath))
}

/// Says in one line what is wrong with a kubeconfig, whose path the reader knows already.
fn explain(path: &Path, error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, file) if file == path => error.to_string(),
        KubeconfigError::ReadConfig(error, file) => format!("{}: {error}", file.display()),
        KubeconfigError::CurrentContextNotSet => {
            "has no current-context; `kubectl config use-context` sets it".to_owned()
        }
        KubeconfigError::LoadContext(name) => format!("its current-context {name:?} is not among its contexts"),
        KubeconfigError::LoadClusterOfContext(name) => {
            format!("the context's cluster {name:?} is not among its clusters")
        }
        KubeconfigError::MissingClusterUrl => "the context's cluster has no server".to_owned(),
        KubeconfigError::ParseClusterUrl(error) => format!("the cluster's server is not a URL: {error}"),
        // The lines after the first show the place in the file.
        KubeconfigError::Parse(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            format!("is not YAML of a kubeconfig: {}", first.strip_prefix("error: ").unwrap_or(first))
        }
        error => error.to_string(),
    }
}

fn with_config(mut config: kube::Config) -> Result<KeptConnections, kube::Error> {
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
    tcp.set_nodelay(true);
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    KeptConnections::new(&config, connector)
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
                &format!("{context}clusters: [{{name: c, cluster: {{server: 'htps:/x'}}}}]"),
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
        let kept = with_config(config).unwrap();
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
