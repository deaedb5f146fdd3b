//! A fake kubelet that calls a driver's sockets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drakkar_node::kubelet::{ClaimId, Device, DraService, Peer, PeerInfo};
use drakkar_plugin::Helper;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::transport::Channel;

use super::{Node, TestClaim};

/// The response for each claim, by UID.
pub type Responses<T> = BTreeMap<String, Result<T, String>>;

/// A kubelet that makes single calls to one instance of a driver. A whole kubelet is in [`drakkar_node::Node`].
pub struct Kubelet(pub Peer);

impl Kubelet {
    /// Connects to the DRA socket of a driver.
    pub async fn of(helper: &Helper) -> Self {
        Self::at(helper.dra_socket().unwrap()).await
    }

    pub async fn at(socket: &Path) -> Self {
        Self(Peer::connect(socket).await.unwrap())
    }

    /// Returns the same kubelet, calling v1beta1 of the service.
    pub fn v1beta1(&self) -> Self {
        Self(self.0.with_service(DraService::V1beta1))
    }

    /// Prepares claims, and returns the devices or error of each, by UID.
    pub async fn prepare(&self, claims: &[&TestClaim]) -> Responses<Vec<Device>> {
        self.0.prepare(claims.iter().copied()).await.unwrap()
    }

    /// Prepares one claim.
    pub async fn prepare_one(&self, claim: &TestClaim) -> Result<Vec<Device>, String> {
        one(claim, self.prepare(&[claim]).await)
    }

    /// Prepares a claim with a deadline, as a real kubelet does.
    pub async fn prepare_within(
        &self,
        deadline: Duration,
        claim: &TestClaim,
    ) -> Result<Responses<Vec<Device>>, Status> {
        self.0.prepare_with_timeout(deadline, [claim]).await
    }

    /// Makes a call without claims, which shows whether calls reach the driver.
    pub async fn call(&self) -> Result<(), Status> {
        self.0.prepare(Vec::<ClaimId>::new()).await.map(drop)
    }

    /// Unprepares claims, and returns the outcome of each, by UID.
    pub async fn unprepare(&self, claims: &[&TestClaim]) -> Responses<()> {
        self.0.unprepare(claims.iter().copied()).await.unwrap()
    }

    /// Unprepares one claim.
    pub async fn unprepare_one(&self, claim: &TestClaim) -> Result<(), String> {
        one(claim, self.unprepare(&[claim]).await)
    }
}

fn one<T: std::fmt::Debug>(claim: &TestClaim, mut responses: Responses<T>) -> Result<T, String> {
    assert_eq!(responses.len(), 1, "one claim, one response: {responses:?}");
    responses.remove(claim.uid()).unwrap()
}

/// Returns what a driver reports to a kubelet that discovers it.
pub async fn info(helper: &Helper) -> Result<PeerInfo, Status> {
    Peer::get_info(helper.registration_socket().unwrap()).await
}

/// Notifies a driver of the result of its registration: registered, or an error.
pub async fn notify(helper: &Helper, error: Option<&str>) -> Result<(), Status> {
    Peer::notify(helper.registration_socket().unwrap(), error).await
}

/// Returns a connection to a driver, for services whose calls [`Peer`] does not have.
pub async fn channel(helper: &Helper) -> Channel {
    Kubelet::of(helper).await.0.channel()
}

/// Returns the CDI devices of all devices of a response.
pub fn cdi_devices(devices: &[Device]) -> Vec<&str> {
    devices.iter().flat_map(|device| &device.cdi_device_ids).map(String::as_str).collect()
}

/// A proxy to a driver's socket that can stop forwarding to the driver, so that it does not notice that a call was cancelled.
pub struct SocketProxy {
    pub socket: PathBuf,
    stopped: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

impl SocketProxy {
    /// Starts a proxy to the driver's socket, for one connection.
    pub fn to(node: &Node, helper: &Helper) -> Self {
        let socket = node.root.path().join("proxy.sock");
        let driver = helper.dra_socket().unwrap().to_owned();
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let stopped = CancellationToken::new();
        let stop = stopped.clone();
        let task = tokio::spawn(async move {
            let (caller, _) = listener.accept().await.unwrap();
            let driver = tokio::net::UnixStream::connect(driver).await.unwrap();
            let (mut from_caller, mut to_caller) = caller.into_split();
            let (mut from_driver, mut to_driver) = driver.into_split();
            let forward = async {
                tokio::select! {
                    _ = tokio::io::copy(&mut from_caller, &mut to_driver) => {}
                    () = stop.cancelled() => {}
                }
                // The connection to the driver stays open.
                std::future::pending::<()>().await;
            };
            tokio::select! {
                _ = tokio::io::copy(&mut from_driver, &mut to_caller) => {}
                () = forward => {}
            }
        });
        Self { socket, stopped, _task: AbortOnDropHandle::new(task) }
    }

    /// Stops forwarding from the kubelet to the driver. Both connections stay open.
    pub fn stop_forwarding(&self) {
        self.stopped.cancel();
    }
}
