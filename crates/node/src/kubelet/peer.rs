//! A scripted kubelet for tests of plugins: single calls, without anything that a kubelet does by itself.

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

/// A connection to a plugin failed.
#[derive(Debug, thiserror::Error)]
#[error("connect to {}: {source}", .socket.display())]
pub struct PeerError {
    socket: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// A plugin's answer to `GetInfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// The type of the plugin, `DRAPlugin`.
    pub kind: String,
    /// The name of the driver.
    pub name: String,
    /// The socket of the DRA service.
    pub endpoint: String,
    /// The services that the plugin advertises, in its order.
    pub supported_versions: Vec<String>,
}

impl From<PluginInfo> for PeerInfo {
    fn from(info: PluginInfo) -> Self {
        let PluginInfo { r#type: kind, name, endpoint, supported_versions } = info;
        Self { kind, name, endpoint, supported_versions }
    }
}

/// A client of a plugin's DRA socket.
#[derive(Debug, Clone)]
pub struct Peer {
    channel: Channel,
    version: DraService,
}

impl Peer {
    /// Connects to a plugin's DRA socket. Calls use v1.
    pub async fn connect(socket: &Path) -> Result<Self, PeerError> {
        let stream = tokio::net::UnixStream::connect(socket).await;
        let failed = |source| PeerError { socket: socket.to_owned(), source };
        let stream = stream.map_err(|error| failed(error.into()))?;
        let mut once = Some(hyper_util::rt::TokioIo::new(stream));
        // No reconnect: a test of a lost connection must see the loss.
        let connector = tower::service_fn(move |_: http::Uri| {
            std::future::ready(once.take().ok_or_else(|| std::io::Error::other("the connection was lost")))
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
        Ok(Self { channel: channel.map_err(|error| failed(error.into()))?, version: DraService::V1 })
    }

    /// Returns a client on the same connection that uses another version of the service.
    pub fn with_service(&self, version: DraService) -> Self {
        Self { channel: self.channel.clone(), version }
    }

    /// Returns the connection, for other calls.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Prepares claims; returns the devices or the error of each, by UID.
    pub async fn prepare(
        &self,
        claims: impl IntoIterator<Item = impl Into<ClaimId>>,
    ) -> Result<BTreeMap<String, Result<Vec<Device>, String>>, Status> {
        service::prepare(self.version, self.channel.clone(), list(claims), None).await
    }

    /// Prepares claims with a timeout, which is sent to the plugin.
    pub async fn prepare_with_timeout(
        &self,
        timeout: Duration,
        claims: impl IntoIterator<Item = impl Into<ClaimId>>,
    ) -> Result<BTreeMap<String, Result<Vec<Device>, String>>, Status> {
        service::prepare(self.version, self.channel.clone(), list(claims), Some(timeout)).await
    }

    /// Unprepares claims; returns success or the error of each, by UID.
    pub async fn unprepare(
        &self,
        claims: impl IntoIterator<Item = impl Into<ClaimId>>,
    ) -> Result<BTreeMap<String, Result<(), String>>, Status> {
        service::unprepare(self.version, self.channel.clone(), list(claims), None).await
    }

    /// Unprepares claims with a timeout, which is sent to the plugin.
    pub async fn unprepare_with_timeout(
        &self,
        timeout: Duration,
        claims: impl IntoIterator<Item = impl Into<ClaimId>>,
    ) -> Result<BTreeMap<String, Result<(), String>>, Status> {
        service::unprepare(self.version, self.channel.clone(), list(claims), Some(timeout)).await
    }

    /// Calls `GetInfo` on a registration socket, on a new connection and with the `:authority` that a kubelet sends.
    pub async fn get_info(socket: &Path) -> Result<PeerInfo, Status> {
        let (mut connection, timing) = dial(socket).await?;
        registration::get_info(&mut connection, timing.get_info_timeout).await.map(Into::into)
    }

    /// Calls `NotifyRegistrationStatus` on a registration socket; `None` means that the plugin is registered.
    pub async fn notify(socket: &Path, error: Option<&str>) -> Result<(), Status> {
        let (mut connection, timing) = dial(socket).await?;
        let outcome = error.map_or(Ok(()), |error| Err(error.to_owned()));
        registration::notify(&mut connection, outcome, timing.notify_timeout).await
    }
}

async fn dial(socket: &Path) -> Result<(Connection, Timing), Status> {
    let timing = Timing::default();
    let connection = Connection::dial(socket, timing.dial_timeout, timing.connect_backoff).await?;
    Ok((connection, timing))
}

fn list(claims: impl IntoIterator<Item = impl Into<ClaimId>>) -> Vec<ClaimId> {
    claims.into_iter().map(Into::into).collect()
}
