//! Test doubles: a driver with scripted handlers, and the kubelet's clients.

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::server::Routes;
use drakkar_kubelet_api::dra_v1::dra_plugin_client::DraPluginClient;
use drakkar_kubelet_api::dra_v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use drakkar_kubelet_api::dra_v1::{
    Claim, NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use drakkar_kubelet_api::health_v1::dra_resource_health_client::DraResourceHealthClient;
use drakkar_kubelet_api::health_v1::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use drakkar_kubelet_api::health_v1::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use futures::Stream;
use futures::stream;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// The limit for anything in these tests, which take far less.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);

/// A driver whose handlers are scripted by the name of the first claim: `panic`, `wait`, or anything else to succeed.
#[derive(Debug, Clone, Default)]
pub(super) struct Driver {
    /// Notified when a call waits.
    pub(super) entered: Arc<Notify>,
    /// Lets a waiting call continue.
    pub(super) release: Arc<Notify>,
    /// Whether a waiting call continued.
    pub(super) finished: Arc<AtomicBool>,
    /// Whether a waiting call continued or was dropped.
    pub(super) dropped: Arc<AtomicBool>,
}

impl Driver {
    pub(super) fn routes(&self) -> Routes {
        Routes::default().with(DraPluginServer::new(self.clone())).with(DraResourceHealthServer::new(self.clone()))
    }
}

/// Sets a flag when it is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        match request.into_inner().claims.first().map(|claim| claim.name.as_str()) {
            Some("panic") => panic!("device {} is on fire", 7),
            Some("wait") => {
                let _dropped = OnDrop(self.dropped.clone());
                self.entered.notify_one();
                self.release.notified().await;
                self.finished.store(true, Ordering::SeqCst);
            }
            _ => {}
        }
        Ok(Response::new(NodePrepareResourcesResponse { claims: HashMap::new() }))
    }

    async fn node_unprepare_resources(
        &self,
        _: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        std::panic::panic_any(7)
    }
}

/// Reports once, then waits, and panics when released.
#[tonic::async_trait]
impl DraResourceHealth for Driver {
    type NodeWatchResourcesStream = Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let release = self.release.clone();
        Ok(Response::new(Box::pin(stream::unfold(true, move |first| {
            let release = release.clone();
            async move {
                if first {
                    return Some((Ok(NodeWatchResourcesResponse::default()), false));
                }
                release.notified().await;
                panic!("the monitor is on fire")
            }
        }))))
    }
}

/// Returns a listener that fails permanently, with "invalid argument", once something is written to the stream.
pub(super) fn failing_listener() -> (UnixListener, UnixStream) {
    // A connected socket becomes readable, and then cannot accept.
    let (socket, trigger) = UnixStream::pair().unwrap();
    (OwnedFd::from(socket).into(), trigger)
}

pub(super) async fn connect(path: &Path) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("unix:{}", path.display())).unwrap().connect().await
}

/// Prepares one claim with this name.
pub(super) async fn prepare(channel: &Channel, name: &str) -> Result<NodePrepareResourcesResponse, Status> {
    let claim = Claim { namespace: "default".to_owned(), uid: "uid".to_owned(), name: name.to_owned() };
    let request = NodePrepareResourcesRequest { claims: vec![claim] };
    Ok(DraPluginClient::new(channel.clone()).node_prepare_resources(request).await?.into_inner())
}

pub(super) async fn unprepare(channel: &Channel) -> Result<NodeUnprepareResourcesResponse, Status> {
    let request = NodeUnprepareResourcesRequest::default();
    Ok(DraPluginClient::new(channel.clone()).node_unprepare_resources(request).await?.into_inner())
}

/// Opens a health stream and waits for its first report.
pub(super) async fn watch(channel: &Channel) -> tonic::Streaming<NodeWatchResourcesResponse> {
    let mut client = DraResourceHealthClient::new(channel.clone());
    let mut reports = client.node_watch_resources(NodeWatchResourcesRequest {}).await.unwrap().into_inner();
    assert!(reports.message().await.unwrap().is_some());
    reports
}

/// Fails a test instead of letting it hang.
pub(super) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.expect("it took too long")
}

/// Polls a condition until it holds.
pub(super) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
