//! A scripted peer for tests of plugins: the calls of a kubelet, one by one, without anything that a kubelet does of itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drakkar_kubelet_api::registration::PluginInfo;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::claim::{ClaimId, Device};
use super::h2::Connection;
use super::registration;
use super::service::{self, DraService};
use super::timing::Timing;

/// Why a peer has no connection.
#[derive(Debug, thiserror::Error)]
#[error("connect to {}: {source}", .socket.display())]
pub struct PeerError {
    socket: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// What a plugin is and offers, as it tells the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// `DRAPlugin`.
    pub kind: String,
    /// The name of the driver.
    pub name: String,
    /// The socket of its DRA service.
    pub endpoint: String,
    /// The services that it has, in its order.
    pub supported_versions: Vec<String>,
}

impl From<PluginInfo> for PeerInfo {
    fn from(info: PluginInfo) -> Self {
        let PluginInfo { r#type: kind, name, endpoint, supported_versions } = info;
        Self { kind, name, endpoint, supported_versions }
    }
}

/// Whoever calls the DRA socket of a plugin.
#[derive(Debug, Clone)]
pub struct Peer {
    channel: Channel,
    version: DraService,
}

impl Peer {
    /// Connects to the DRA socket of a plugin, to speak v1.
    pub async fn connect(socket: &Path) -> Result<Self, PeerError> {
        let stream = tokio::net::UnixStream::connect(socket).await;
        let failed = |source| PeerError { socket: socket.to_owned(), source };
        let stream = stream.map_err(|error| failed(error.into()))?;
        let mut once = Some(hyper_util::rt::TokioIo::new(stream));
        // One connection: a test of a lost one shall see the loss.
        let connector = tower::service_fn(move |_: http::Uri| {
            std::future::ready(once.take().ok_or_else(|| std::io::Error::other("the connection was lost")))
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
        Ok(Self { channel: channel.map_err(|error| failed(error.into()))?, version: DraService::V1 })
    }

    /// The same connection in another version of the service.
    pub fn speaking(&self, version: DraService) -> Self {
        Self { channel: self.channel.clone(), version }
    }

    /// The connection, for calls that are not here.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Prepares claims: devices or error of each, by UID.
    pub async fn prepare(
        &self,
        claims: impl IntoIterator<Item = impl Into<ClaimId>>,
    ) -> Result<BTreeMap<String, Result<Vec<Device>, String>>, Status> {
        service::prepare(self.version, self.channel.clone(), list(claims), None).await
    }

    /// Prepares claims with a deadline, of which the plugin is told.
    pub async fn prepare_within(
        &self,
        deadline: Duration,
        claims: impl IntoIterator<Item = impl Into<ClaimId>>,
    ) -> Result<BTreeMap<String, Result<Vec<Device>, String>>, Status> {
        service::prepare(self.version, self.channel.clone(), list(claims), Some(deadline)).await
    }

    /// Unprepares claims: the error of each that failed, by UID.
    pub async fn unprepare(
        &self,
        claims: impl IntoIterator<Item = impl Into<ClaimId>>,
    ) -> Result<BTreeMap<String, Result<(), String>>, Status> {
        service::unprepare(self.version, self.channel.clone(), list(claims), None).await
    }

    /// Unprepares claims with a deadline, of which the plugin is told.
    pub async fn unprepare_within(
        &self,
        deadline: Duration,
        claims: impl IntoIterator<Item = impl Into<ClaimId>>,
    ) -> Result<BTreeMap<String, Result<(), String>>, Status> {
        service::unprepare(self.version, self.channel.clone(), list(claims), Some(deadline)).await
    }

    /// Asks whoever listens on a registration socket who it is: on a fresh connection, with the authority that a kubelet
    /// sends.
    pub async fn get_info(socket: &Path) -> Result<PeerInfo, Status> {
        let (mut connection, timing) = dial(socket).await?;
        registration::get_info(&mut connection, timing.get_info_deadline).await.map(Into::into)
    }

    /// Tells whoever listens on a registration socket what became of its registration; no error means that it is
    /// registered.
    pub async fn notify(socket: &Path, error: Option<&str>) -> Result<(), Status> {
        let (mut connection, timing) = dial(socket).await?;
        let outcome = error.map_or(Ok(()), |error| Err(error.to_owned()));
        registration::notify(&mut connection, outcome, timing.notify_deadline).await
    }
}

async fn dial(socket: &Path) -> Result<(Connection, Timing), Status> {
    let timing = Timing::default();
    let connection = Connection::dial(socket, timing.dial_deadline, timing.connect_backoff).await?;
    Ok((connection, timing))
}

fn list(claims: impl IntoIterator<Item = impl Into<ClaimId>>) -> Vec<ClaimId> {
    claims.into_iter().map(Into::into).collect()
}
