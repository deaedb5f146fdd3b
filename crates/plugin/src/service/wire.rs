//! Adapters for the two versions of the kubelet's DRA service.

use std::sync::Arc;

use drakkar_kubelet_api::{dra_v1 as v1, dra_v1beta1 as v1beta1};
use tonic::{Request, Response, Status};

use super::{ClaimError, NamedClaim, PreparedDevice, Service};
use crate::driver::DraPlugin;

/// Implements one version of the DRA service.
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
                let to_wire = |$device: PreparedDevice| $to_wire;
                let responses = self.0.prepare(named(request.into_inner().claims)).await;
                let claims = responses.into_iter().map(|(uid, response)| {
                    let (devices, error) = match response {
                        Ok(devices) => (devices.into_iter().map(to_wire).collect(), String::new()),
                        Err(error) => (Vec::new(), error_text(&error)),
                    };
                    (uid, $version::NodePrepareResourceResponse { devices, error })
                });
                Ok(Response::new($version::NodePrepareResourcesResponse { claims: claims.collect() }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let responses = self.0.unprepare(named(request.into_inner().claims)).await;
                let claims = responses.into_iter().map(|(uid, response)| {
                    let error = response.err().map(|error| error_text(&error)).unwrap_or_default();
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

// v1beta1 has no share IDs.
adapter!(DraV1beta1, v1beta1, |device| v1beta1::Device {
    request_names: device.request_names,
    pool_name: device.pool_name,
    device_name: device.device_name,
    cdi_device_ids: device.cdi_device_ids,
});

fn named<C: Into<NamedClaim>>(claims: Vec<C>) -> Vec<NamedClaim> {
    claims.into_iter().map(Into::into).collect()
}

/// Returns the text of an error, which is never empty: the kubelet takes an empty one for success.
fn error_text(error: &ClaimError) -> String {
    let text = error.to_string();
    if text.is_empty() { "the driver failed without an error message".to_owned() } else { text }
}
