//! The kubelet's health service in two versions, as thin adapters over one [`Subscription`].
//!
//! A driver that does not watch health serves neither. A kubelet that calls anyway gets `UNIMPLEMENTED` and does not
//! retry.

use std::sync::Arc;

use futures::stream::{self, BoxStream, Stream, StreamExt as _, TryStreamExt as _};
use tonic::{Request, Response, Status};

use super::table::DeviceState;
use super::{HealthHub, HealthStatus, Stopped, Subscription};

macro_rules! service {
    ($(#[$doc:meta])* $service:ident, $version:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $service(pub(crate) Arc<HealthHub>);

        #[tonic::async_trait]
        impl drakkar_kubelet_api::$version::dra_resource_health_server::DraResourceHealth for $service {
            type NodeWatchResourcesStream =
                BoxStream<'static, Result<drakkar_kubelet_api::$version::NodeWatchResourcesResponse, Status>>;

            async fn node_watch_resources(
                &self,
                _: Request<drakkar_kubelet_api::$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                use drakkar_kubelet_api::$version::{DeviceHealth, DeviceIdentifier, HealthStatus as Wire, NodeWatchResourcesResponse};
                let device = |state: DeviceState| DeviceHealth {
                    device: Some(DeviceIdentifier { pool_name: state.pool_name, device_name: state.device_name }),
                    health: i32::from(match state.health {
                        HealthStatus::Unknown => Wire::Unknown,
                        HealthStatus::Healthy => Wire::Healthy,
                        HealthStatus::Unhealthy => Wire::Unhealthy,
                    }),
                    last_updated_time: state.last_updated,
                    health_check_timeout_seconds: state.lease_seconds,
                    message: state.message,
                };
                let reports = reports(self.0.subscribe()?).map_ok(move |devices| NodeWatchResourcesResponse {
                    devices: devices.into_iter().map(device).collect(),
                });
                Ok(Response::new(reports.boxed()))
            }
        }
    };
}

service!(
    /// The health service for kubelets since 1.37.
    HealthV1,
    health_v1
);
service!(
    /// The health service for kubelets up to 1.36.
    HealthV1alpha1,
    health_v1alpha1
);

fn reports(subscription: Subscription) -> impl Stream<Item = Result<Vec<DeviceState>, Status>> + Send {
    stream::try_unfold(subscription, |mut subscription| async {
        Ok(subscription.next().await?.map(|states| (states, subscription)))
    })
}

impl From<Stopped> for Status {
    /// Converts to the status that a draining server returns.
    fn from(stopped: Stopped) -> Self {
        Self::unavailable(stopped.to_string())
    }
}
