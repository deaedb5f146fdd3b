//! The health service as a kubelet knows it: two versions, thin adapters over one [`Subscription`].
//!
//! A driver that does not watch health has neither in its routes, and a kubelet that asks all the same is answered with
//! `UNIMPLEMENTED`, after which it does not ask again.

use std::sync::Arc;

use futures::stream::{self, BoxStream, Stream, StreamExt as _, TryStreamExt as _};
use tonic::{Request, Response, Status};

use super::table::Told;
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
                let device = |told: Told| DeviceHealth {
                    device: Some(DeviceIdentifier { pool_name: told.pool_name, device_name: told.device_name }),
                    health: i32::from(match told.health {
                        HealthStatus::Unknown => Wire::Unknown,
                        HealthStatus::Healthy => Wire::Healthy,
                        HealthStatus::Unhealthy => Wire::Unhealthy,
                    }),
                    last_updated_time: told.last_updated,
                    health_check_timeout_seconds: told.lease_seconds,
                    message: told.message,
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
    /// For kubelets from 1.37 on.
    HealthV1,
    health_v1
);
service!(
    /// For kubelets up to 1.36.
    HealthV1alpha1,
    health_v1alpha1
);

fn reports(subscription: Subscription) -> impl Stream<Item = Result<Vec<Told>, Status>> + Send {
    stream::try_unfold(subscription, |mut subscription| async {
        Ok(subscription.next().await?.map(|told| (told, subscription)))
    })
}

impl From<Stopped> for Status {
    /// As a server says it that ends while a stream is open.
    fn from(stopped: Stopped) -> Self {
        Self::unavailable(stopped.to_string())
    }
}
