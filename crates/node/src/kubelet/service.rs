//! The calls of the DRA service, in the version that was chosen, over one connection.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use drakkar_kubelet_api::{dra_v1, dra_v1beta1};
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::claim::{ClaimId, Device};

/// A version of the DRA service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DraService {
    /// `v1.DRAPlugin`, since Kubernetes 1.34.
    V1,
    /// `v1beta1.DRAPlugin`, since Kubernetes 1.32.
    V1beta1,
}

impl DraService {
    /// What a plugin calls it when it registers.
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

/// What a plugin answered for each claim, by UID.
pub(super) type Answers<T> = BTreeMap<String, Result<T, String>>;

/// The two versions have the same methods and messages of the same form.
macro_rules! call {
    ($proto:ident, $channel:expr, $claims:expr, $deadline:expr, $method:ident, $request:ident, $value:expr) => {{
        let claim = |claim: ClaimId| $proto::Claim { namespace: claim.namespace, uid: claim.uid, name: claim.name };
        let mut request = Request::new($proto::$request { claims: $claims.into_iter().map(claim).collect() });
        if let Some(deadline) = $deadline {
            request.set_timeout(deadline);
        }
        let response = $proto::dra_plugin_client::DraPluginClient::new($channel).$method(request).await?;
        let answers = response.into_inner().claims.into_iter().map(|(uid, answer)| {
            let outcome = if answer.error.is_empty() { Ok($value(answer)) } else { Err(answer.error) };
            (uid, outcome)
        });
        Ok(answers.collect())
    }};
}

pub(super) async fn prepare(
    version: DraService,
    channel: Channel,
    claims: Vec<ClaimId>,
    deadline: Option<Duration>,
) -> Result<Answers<Vec<Device>>, Status> {
    fn devices<T: Into<Device>>(devices: Vec<T>) -> Vec<Device> {
        devices.into_iter().map(Into::into).collect()
    }
    match version {
        DraService::V1 => {
            let value = |answer: dra_v1::NodePrepareResourceResponse| devices(answer.devices);
            call!(dra_v1, channel, claims, deadline, node_prepare_resources, NodePrepareResourcesRequest, value)
        }
        DraService::V1beta1 => {
            let value = |answer: dra_v1beta1::NodePrepareResourceResponse| devices(answer.devices);
            call!(dra_v1beta1, channel, claims, deadline, node_prepare_resources, NodePrepareResourcesRequest, value)
        }
    }
}

pub(super) async fn unprepare(
    version: DraService,
    channel: Channel,
    claims: Vec<ClaimId>,
    deadline: Option<Duration>,
) -> Result<Answers<()>, Status> {
    match version {
        DraService::V1 => {
            let value = |_: dra_v1::NodeUnprepareResourceResponse| ();
            call!(dra_v1, channel, claims, deadline, node_unprepare_resources, NodeUnprepareResourcesRequest, value)
        }
        DraService::V1beta1 => {
            let value = |_: dra_v1beta1::NodeUnprepareResourceResponse| ();
            call!(
                dra_v1beta1,
                channel,
                claims,
                deadline,
                node_unprepare_resources,
                NodeUnprepareResourcesRequest,
                value
            )
        }
    }
}
