//! Adapters for the two versions of the kubelet's DRA service.

use std::sync::Arc;

use drakkar_kubelet_api::{dra_v1 as v1, dra_v1beta1 as v1beta1};
use tonic::Status;

use super::{ClaimError, NamedClaim, PreparedDevice, Service};
use crate::driver::DraPlugin;
use crate::server::{Message, Reply, UnaryService, unknown_method};

/// Implements one version of the DRA service.
macro_rules! adapter {
    ($name:ident, $version:ident, |$device:ident| $to_wire:expr) => {
        #[doc = concat!("The DRA service in version ", stringify!($version), ".")]
        #[derive(Debug)]
        pub(crate) struct $name<P>(pub(crate) Arc<Service<P>>);

        impl<P: DraPlugin> UnaryService for $name<P> {
            const NAME: &'static str = $version::dra_plugin_server::SERVICE_NAME;
            const METHODS: &'static [&'static str] = &["NodePrepareResources", "NodeUnprepareResources"];

            async fn call(&self, method: &str, message: Message) -> Result<Reply, Status> {
                match method {
                    "NodePrepareResources" => Reply::encode(&self.prepare(message.decode()?).await),
                    "NodeUnprepareResources" => Reply::encode(&self.unprepare(message.decode()?).await),
                    method => Err(unknown_method(method)),
                }
            }
        }

        impl<P: DraPlugin> $name<P> {
            async fn prepare(
                &self,
                request: $version::NodePrepareResourcesRequest,
            ) -> $version::NodePrepareResourcesResponse {
                let to_wire = |$device: PreparedDevice| $to_wire;
                let responses = self.0.prepare(named(request.claims)).await;
                let claims = responses.into_iter().map(|(uid, response)| {
                    let (devices, error) = match response {
                        Ok(devices) => (devices.into_iter().map(to_wire).collect(), String::new()),
                        Err(error) => (Vec::new(), error_text(&error)),
                    };
                    (uid, $version::NodePrepareResourceResponse { devices, error })
                });
                $version::NodePrepareResourcesResponse { claims: claims.collect() }
            }

            async fn unprepare(
                &self,
                request: $version::NodeUnprepareResourcesRequest,
            ) -> $version::NodeUnprepareResourcesResponse {
                let responses = self.0.unprepare(named(request.claims)).await;
                let claims = responses.into_iter().map(|(uid, response)| {
                    let error = response.err().map(|error| error_text(&error)).unwrap_or_default();
                    (uid, $version::NodeUnprepareResourceResponse { error })
                });
                $version::NodeUnprepareResourcesResponse { claims: claims.collect() }
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
