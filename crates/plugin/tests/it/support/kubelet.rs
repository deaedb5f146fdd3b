//! A kubelet: whoever calls the sockets of a driver.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Node, TestClaim};
use drakkar_plugin::Helper;
use drakkar_plugin::proto::dra_v1::dra_plugin_client::DraPluginClient;
use drakkar_plugin::proto::dra_v1::{self as v1, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use drakkar_plugin::proto::registration::registration_client::RegistrationClient;
use drakkar_plugin::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus as WireStatus};
use tonic::transport::{Channel, Endpoint};

/// A kubelet that calls one instance of a driver.
pub struct Kubelet(pub DraPluginClient<Channel>);

impl Kubelet {
    pub async fn of(helper: &Helper) -> Self {
        Self(DraPluginClient::new(channel(helper.dra_socket().unwrap()).await))
    }

    /// Prepares claims, and gives devices or error of each, by UID.
    pub async fn prepare(&mut self, claims: &[&TestClaim]) -> BTreeMap<String, Result<Vec<v1::Device>, String>> {
        let request = NodePrepareResourcesRequest { claims: claims.iter().map(|claim| claim.wire()).collect() };
        let response = self.0.node_prepare_resources(request).await.unwrap().into_inner();
        let outcome = |response: v1::NodePrepareResourceResponse| match response.error.as_str() {
            "" => Ok(response.devices),
            _ => Err(response.error),
        };
        response.claims.into_iter().map(|(uid, response)| (uid, outcome(response))).collect()
    }

    /// Prepares one claim.
    pub async fn prepare_one(&mut self, claim: &TestClaim) -> Result<Vec<v1::Device>, String> {
        let mut answers = self.prepare(&[claim]).await;
        assert_eq!(answers.len(), 1, "one claim, one answer: {answers:?}");
        answers.remove(claim.uid()).unwrap()
    }

    /// Unprepares one claim.
    pub async fn unprepare_one(&mut self, claim: &TestClaim) -> Result<(), String> {
        let request = NodeUnprepareResourcesRequest { claims: vec![claim.wire()] };
        let mut response = self.0.node_unprepare_resources(request).await.unwrap().into_inner();
        let error = response.claims.remove(claim.uid()).unwrap().error;
        if error.is_empty() { Ok(()) } else { Err(error) }
    }
}

impl Kubelet {
    /// Prepares claims as they are named, and gives devices or error of each, by UID.
    pub async fn prepare_named(
        &mut self,
        claims: Vec<v1::Claim>,
    ) -> Result<BTreeMap<String, Result<Vec<v1::Device>, String>>, tonic::Status> {
        self.prepare_request(tonic::Request::new(NodePrepareResourcesRequest { claims })).await
    }

    /// Prepares a claim, with a deadline as a kubelet has one.
    pub async fn prepare_within(
        &mut self,
        deadline: Duration,
        claim: &TestClaim,
    ) -> Result<BTreeMap<String, Result<Vec<v1::Device>, String>>, tonic::Status> {
        let mut request = tonic::Request::new(NodePrepareResourcesRequest { claims: vec![claim.wire()] });
        request.set_timeout(deadline);
        self.prepare_request(request).await
    }

    async fn prepare_request(
        &mut self,
        request: tonic::Request<NodePrepareResourcesRequest>,
    ) -> Result<BTreeMap<String, Result<Vec<v1::Device>, String>>, tonic::Status> {
        let response = self.0.node_prepare_resources(request).await?.into_inner();
        let outcome = |response: v1::NodePrepareResourceResponse| match response.error.as_str() {
            "" => Ok(response.devices),
            _ => Err(response.error),
        };
        Ok(response.claims.into_iter().map(|(uid, response)| (uid, outcome(response))).collect())
    }

    /// Unprepares claims, and gives the error of each that failed, by UID.
    pub async fn unprepare(&mut self, claims: &[&TestClaim]) -> BTreeMap<String, Result<(), String>> {
        let request = NodeUnprepareResourcesRequest { claims: claims.iter().map(|claim| claim.wire()).collect() };
        let response = self.0.node_unprepare_resources(request).await.unwrap().into_inner();
        let outcome = |error: String| if error.is_empty() { Ok(()) } else { Err(error) };
        response.claims.into_iter().map(|(uid, response)| (uid, outcome(response.error))).collect()
    }
}

/// A kubelet at the socket by which it finds a driver.
pub struct Registrar(RegistrationClient<Channel>);

impl Registrar {
    pub async fn of(helper: &Helper) -> Self {
        Self::at(helper.registration_socket().unwrap()).await
    }

    pub async fn at(socket: &Path) -> Self {
        Self(RegistrationClient::new(channel(socket).await))
    }

    pub async fn info(&mut self) -> Result<PluginInfo, tonic::Status> {
        Ok(self.0.get_info(InfoRequest {}).await?.into_inner())
    }

    /// Tells the driver what became of its registration; without an error it is registered.
    pub async fn notify(&mut self, error: Option<&str>) -> Result<(), tonic::Status> {
        let status = WireStatus { plugin_registered: error.is_none(), error: error.unwrap_or_default().to_owned() };
        self.0.notify_registration_status(status).await.map(drop)
    }
}

/// A connection to a socket, as a kubelet makes it.
pub async fn channel(socket: &Path) -> Channel {
    Endpoint::try_from(format!("unix://{}", socket.display())).unwrap().connect().await.unwrap()
}

/// The CDI devices of all devices of an answer.
pub fn cdi_devices(devices: &[v1::Device]) -> Vec<&str> {
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
