//! The kubelet's two versions of the DRA service: thin adapters over the core.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{AnsweredDevice, NamedClaim, Service};
use crate::driver::DraPlugin;
use drakkar_kubelet_api::{dra_v1 as v1, dra_v1beta1 as v1beta1};

/// A version of the service.
macro_rules! adapter {
    ($name:ident, $version:ident, |$device:ident| $to_wire:expr) => {
        #[doc = concat!("The DRA service in version ", stringify!($version), ".")]
        #[derive(Debug)]
        pub(crate) struct $name<P>(pub(crate) Arc<Service<P>>);

        #[tonic::async_trait]
        impl<P: DraPlugin> $version::dra_plugin_server::DraPlugin for $name<P> {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let to_wire = |$device: AnsweredDevice| $to_wire;
                let answers = self.0.prepare(named(request.into_inner().claims)).await;
                let claims = answers.into_iter().map(|(uid, answer)| {
                    let (devices, error) = match answer {
                        Ok(devices) => (devices.into_iter().map(to_wire).collect(), String::new()),
                        Err(error) => (Vec::new(), told(&error)),
                    };
                    (uid, $version::NodePrepareResourceResponse { devices, error })
                });
                Ok(Response::new($version::NodePrepareResourcesResponse { claims: claims.collect() }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let answers = self.0.unprepare(named(request.into_inner().claims)).await;
                let claims = answers.into_iter().map(|(uid, answer)| {
                    let error = answer.err().map(|error| told(&error)).unwrap_or_default();
                    (uid, $version::NodeUnprepareResourceResponse { error })
                });
                Ok(Response::new($version::NodeUnprepareResourcesResponse { claims: claims.collect() }))
            }
        }

        impl From<$version::Claim> for NamedClaim {
            fn from(claim: $version::Claim) -> Self {
                Self { namespace: claim.namespace, name: claim.name, uid: claim.uid }
            }
        }
    };
}

adapter!(DraV1, v1, |device| v1::Device {
    request_names: device.request_names,
    pool_name: device.pool_name,
    device_name: device.device_name,
    cdi_device_ids: device.cdi_device_ids,
    share_id: device.share_id,
});

// This version has no share ids.
adapter!(DraV1beta1, v1beta1, |device| v1beta1::Device {
    request_names: device.request_names,
    pool_name: device.pool_name,
    device_name: device.device_name,
    cdi_device_ids: device.cdi_device_ids,
});

fn named<C: Into<NamedClaim>>(claims: Vec<C>) -> Vec<NamedClaim> {
    claims.into_iter().map(Into::into).collect()
}

/// An error's text, which must not be empty: an empty one means success.
fn told(error: &super::ClaimError) -> String {
    let text = error.to_string();
    if text.is_empty() { "the driver failed without saying why".to_owned() } else { text }
}
