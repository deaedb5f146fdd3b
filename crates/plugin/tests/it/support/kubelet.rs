//! A kubelet: whoever calls the sockets of a driver.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Node, TestClaim};
use drakkar_node::kubelet::{ClaimId, Device, DraService, Peer, PeerInfo};
use drakkar_plugin::Helper;
use tonic::Status;
use tonic::transport::Channel;

/// What a kubelet is answered for each claim, by UID.
pub type Answers<T> = BTreeMap<String, Result<T, String>>;

/// A kubelet that calls one instance of a driver, one call at a time as it is told. Whole kubelets are in
/// [`drakkar_node::Node`].
pub struct Kubelet(pub Peer);

impl Kubelet {
    pub async fn of(helper: &Helper) -> Self {
        Self::at(helper.dra_socket().unwrap()).await
    }

    pub async fn at(socket: &Path) -> Self {
        Self(Peer::connect(socket).await.unwrap())
    }

    /// The same in v1beta1 of the service.
    pub fn older(&self) -> Self {
        Self(self.0.with_service(DraService::V1beta1))
    }

    /// Prepares claims, and gives devices or error of each, by UID.
    pub async fn prepare(&self, claims: &[&TestClaim]) -> Answers<Vec<Device>> {
        self.0.prepare(claims.iter().copied()).await.unwrap()
    }

    /// Prepares one claim.
    pub async fn prepare_one(&self, claim: &TestClaim) -> Result<Vec<Device>, String> {
        one(claim, self.prepare(&[claim]).await)
    }

    /// Prepares a claim, with a deadline as a kubelet has one.
    pub async fn prepare_within(&self, deadline: Duration, claim: &TestClaim) -> Result<Answers<Vec<Device>>, Status> {
        self.0.prepare_with_timeout(deadline, [claim]).await
    }

    /// Prepares nothing, which says whether calls arrive.
    pub async fn call(&self) -> Result<(), Status> {
        self.0.prepare(Vec::<ClaimId>::new()).await.map(drop)
    }

    /// Unprepares claims, and gives the error of each that failed, by UID.
    pub async fn unprepare(&self, claims: &[&TestClaim]) -> Answers<()> {
        self.0.unprepare(claims.iter().copied()).await.unwrap()
    }

    /// Unprepares one claim.
    pub async fn unprepare_one(&self, claim: &TestClaim) -> Result<(), String> {
        one(claim, self.unprepare(&[claim]).await)
    }
}

fn one<T: std::fmt::Debug>(claim: &TestClaim, mut answers: Answers<T>) -> Result<T, String> {
    assert_eq!(answers.len(), 1, "one claim, one answer: {answers:?}");
    answers.remove(claim.uid()).unwrap()
}

/// What a kubelet is told that finds a driver.
pub async fn info(helper: &Helper) -> Result<PeerInfo, Status> {
    Peer::get_info(helper.registration_socket().unwrap()).await
}

/// Tells a driver what became of its registration; without an error it is registered.
pub async fn notify(helper: &Helper, error: Option<&str>) -> Result<(), Status> {
    Peer::notify(helper.registration_socket().unwrap(), error).await
}

/// A connection to a driver, for services of which a kubelet's calls are not in [`Peer`].
pub async fn channel(helper: &Helper) -> Channel {
    Kubelet::of(helper).await.0.channel()
}

/// The CDI devices of all devices of an answer.
pub fn cdi_devices(devices: &[Device]) -> Vec<&str> {
    devices.iter().flat_map(|device| &device.cdi_device_ids).map(String::as_str).collect()
}

/// A line to a driver that can be muted: then the driver hears nothing any more, not even that the caller has given up.
pub struct Line {
    pub socket: PathBuf,
    muted: tokio_util::sync::CancellationToken,
    _task: tokio_util::task::AbortOnDropHandle<()>,
}

impl Line {
    /// A line to the driver's socket, for one connection.
    pub fn to(node: &Node, helper: &Helper) -> Self {
        let (socket, driver) = (node.root.path().join("line.sock"), helper.dra_socket().unwrap().to_owned());
        let muted = tokio_util::sync::CancellationToken::new();
        let (listener, silence) = (tokio::net::UnixListener::bind(&socket).unwrap(), muted.clone());
        let task = tokio::spawn(async move {
            let (caller, _) = listener.accept().await.unwrap();
            let driver = tokio::net::UnixStream::connect(driver).await.unwrap();
            let (mut from_caller, mut to_caller) = caller.into_split();
            let (mut from_driver, mut to_driver) = driver.into_split();
            let speak = async {
                tokio::select! {
                    _ = tokio::io::copy(&mut from_caller, &mut to_driver) => {}
                    () = silence.cancelled() => {}
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                _ = tokio::io::copy(&mut from_driver, &mut to_caller) => {}
                () = speak => {}
            }
        });
        Self { socket, muted, _task: tokio_util::task::AbortOnDropHandle::new(task) }
    }

    pub fn mute(&self) {
        self.muted.cancel();
    }
}
