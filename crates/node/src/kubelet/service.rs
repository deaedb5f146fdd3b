//! The calls of the DRA service in either version.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use drakkar_kubelet_api::{dra_v1, dra_v1beta1};
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::claim::{ClaimId, Device};

/// A version of the kubelet's DRA gRPC service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DraService {
    /// `v1.DRAPlugin`, since Kubernetes 1.34.
    V1,
    /// `v1beta1.DRAPlugin`, since Kubernetes 1.32.
    V1beta1,
}

impl DraService {
    /// Returns the name by which a plugin advertises the service.
    pub fn advertised(self) -> &'static str {
        match self {
            Self::V1 => "v1.DRAPlugin",
            Self::V1beta1 => "v1beta1.DRAPlugin",
        }
    }
}

impl fmt::Display for DraService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.advertised())
    }
}

/// A plugin's result for each claim, by UID.
pub(super) type ClaimResults<T> = BTreeMap<String, Result<T, String>>;

/// Calls a method; both versions have the same methods, with messages of the same form.
macro_rules! call {
    ($proto:ident, $channel:expr, $claims:expr, $timeout:expr, $method:ident, $request:ident, $value:expr) => {{
        let claim = |claim: ClaimId| $proto::Claim { namespace: claim.namespace, uid: claim.uid, name: claim.name };
        let mut request = Request::new($proto::$request { claims: $claims.into_iter().map(claim).collect() });
        if let Some(timeout) = $timeout {
            request.set_timeout(timeout);
        }
        let response = $proto::dra_plugin_client::DraPluginClient::new($channel).$method(request).await?;
        let results = response.into_inner().claims.into_iter().map(|(uid, answer)| {
            let result = if answer.error.is_empty() { Ok($value(answer)) } else { Err(answer.error) };
            (uid, result)
        });
        Ok(results.collect())
    }};
}

pub(super) async fn prepare(
    version: DraService,
    channel: Channel,
    claims: Vec<ClaimId>,
    timeout: Option<Duration>,
) -> Result<ClaimResults<Vec<Device>>, Status> {
    fn devices<T: Into<Device>>(devices: Vec<T>) -> Vec<Device> {
        devices.into_iter().map(Into::into).collect()
    }
    match version {
        DraService::V1 => {
            let value = |answer: dra_v1::NodePrepareResourceResponse| devices(answer.devices);
            call!(dra_v1, channel, claims, timeout, node_prepare_resources, NodePrepareResourcesRequest, value)
        }
        DraService::V1beta1 => {
            let value = |answer: dra_v1beta1::NodePrepareResourceResponse| devices(answer.devices);
            call!(dra_v1beta1, channel, claims, timeout, node_prepare_resources, NodePrepareResourcesRequest, value)
        }
    }
}

pub(super) async fn unprepare(
    version: DraService,
    channel: Channel,
    claims: Vec<ClaimId>,
    timeout: Option<Duration>,
) -> Result<ClaimResults<()>, Status> {
    match version {
        DraService::V1 => {
            let value = |_: dra_v1::NodeUnprepareResourceResponse| ();
            call!(dra_v1, channel, claims, timeout, node_unprepare_resources, NodeUnprepareResourcesRequest, value)
        }
        DraService::V1beta1 => {
            let value = |_: dra_v1beta1::NodeUnprepareResourceResponse| ();
            call!(dra_v1beta1, channel, claims, timeout, node_unprepare_resources, NodeUnprepareResourcesRequest, value)
        }
    }
}
