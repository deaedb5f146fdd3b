//! Tests of both versions of the service over a unix socket, with a kubelet's client.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::server::Routes;
use drakkar_metadata::name::DriverName;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::double::*;
use crate::health::*;
use crate::server::Server;
use crate::socket::listen;

fn serve(path: &Path, routes: Routes) -> Server {
    let (listener, file) = listen(path, &DriverName::new("gpu.example.com").unwrap()).unwrap();
    Server::start(listener, file, routes, crate::server::CallHooks::default()).unwrap()
}

fn routes(hub: &Arc<HealthHub>) -> Routes {
    use drakkar_kubelet_api::{health_v1, health_v1alpha1};
    Routes::default()
        .with(health_v1::dra_resource_health_server::DraResourceHealthServer::new(HealthV1(hub.clone())))
        .with(health_v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(HealthV1alpha1(hub.clone())))
}

async fn connect(path: &Path) -> Channel {
    Endpoint::from_shared(format!("unix:{}", path.display())).unwrap().connect().await.unwrap()
}

macro_rules! tests_of {
    ($version:ident) => {
        mod $version {
            use super::*;
            use drakkar_kubelet_api::$version::dra_resource_health_client::DraResourceHealthClient;
            use drakkar_kubelet_api::$version::{DeviceHealth as Health, NodeWatchResourcesResponse};
            use drakkar_kubelet_api::$version::{DeviceIdentifier, HealthStatus as Wire, NodeWatchResourcesRequest};

            async fn watch(channel: &Channel) -> Result<tonic::Streaming<NodeWatchResourcesResponse>, tonic::Status> {
                let call = async {
                    DraResourceHealthClient::new(channel.clone())
                        .node_watch_resources(NodeWatchResourcesRequest {})
                        .await
                };
                Ok(in_time(call).await?.into_inner())
            }

            /// A.6: a report arrives in one message with all fields, and the stream ends without an error.
            #[tokio::test]
            async fn a_report_arrives_completely_and_the_stream_ends_without_an_error() {
                let directory = tempfile::tempdir().unwrap();
                let mut double = Double::new();
                let server = serve(&directory.path().join("dra.sock"), routes(&double.hub));
                let mut stream = watch(&connect(server.path()).await).await.unwrap();
                let monitor = double.monitor().await;
                let time = Some(std::time::SystemTime::UNIX_EPOCH + seconds(7));
                let healthy = DeviceHealth { last_updated: time, ..DeviceHealth::healthy("node-1", "gpu-0") };
                let unhealthy =
                    DeviceHealth { last_updated: time, ..DeviceHealth::unhealthy("node-1", "gpu-1", "hot") };
                let unknown = DeviceHealth { last_updated: time, ..DeviceHealth::unknown("node-2", "gpu-0", "?") };
                monitor.reporter.report([healthy, unhealthy.with_lease(Duration::from_millis(4100)), unknown]).await;
                let device = |pool: &str, device: &str, health: Wire, timeout, message: &str| Health {
                    device: Some(DeviceIdentifier { pool_name: pool.to_owned(), device_name: device.to_owned() }),
                    health: health.into(),
                    last_updated_time: 7,
                    health_check_timeout_seconds: timeout,
                    message: message.to_owned(),
                };
                let expected = NodeWatchResourcesResponse {
                    devices: vec![
                        device("node-1", "gpu-0", Wire::Healthy, 30, ""),
                        device("node-1", "gpu-1", Wire::Unhealthy, 5, "hot"),
                        device("node-2", "gpu-0", Wire::Unknown, 30, "?"),
                    ],
                };
                assert_eq!(in_time(stream.message()).await.unwrap(), Some(expected));
                monitor.end(Exit::Return);
                assert_eq!(in_time(stream.message()).await.unwrap(), None);
            }

            /// A.6: Go calls the driver; here a driver without health does not have the service.
            #[tokio::test]
            async fn a_driver_without_health_answers_unimplemented() {
                let directory = tempfile::tempdir().unwrap();
                let server = serve(&directory.path().join("dra.sock"), Routes::default());
                let error = watch(&connect(server.path()).await).await.unwrap_err();
                assert_eq!(error.code(), Code::Unimplemented);
            }

            /// G43: a disconnected kubelet leaves nothing behind.
            #[tokio::test]
            async fn a_disconnected_client_is_unsubscribed() {
                let directory = tempfile::tempdir().unwrap();
                let mut double = Double::new();
                let server = serve(&directory.path().join("dra.sock"), routes(&double.hub));
                let channel = connect(server.path()).await;
                let one = watch(&channel).await.unwrap();
                let other = watch(&connect(server.path()).await).await.unwrap();
                let monitor = double.monitor().await;
                assert_eq!(double.hub.summary().streams, 2);
                drop(one);
                eventually("the stream is closed", || double.hub.summary().streams == 1).await;
                drop(other);
                eventually("the connection is closed", || double.hub.summary().streams == 0).await;
                assert!(!monitor.reporter.is_closed());
            }

            #[tokio::test]
            async fn streams_end_with_the_hub() {
                let directory = tempfile::tempdir().unwrap();
                let double = Double::new();
                let server = serve(&directory.path().join("dra.sock"), routes(&double.hub));
                let channel = connect(server.path()).await;
                let mut stream = watch(&channel).await.unwrap();
                double.hub.stop(Instant::now() + seconds(60)).await.unwrap();
                let expected = (Code::Unavailable, "the driver is shutting down");
                let error = in_time(stream.message()).await.unwrap_err();
                assert_eq!((error.code(), error.message()), expected);
                let error = watch(&channel).await.unwrap_err();
                assert_eq!((error.code(), error.message()), expected);
            }

            /// A client accepts messages of at most 4 MiB. A client that does not read blocks nobody.
            #[tokio::test]
            async fn the_largest_report_arrives_at_a_slow_reader_too() {
                let directory = tempfile::tempdir().unwrap();
                let mut double = Double::new();
                let server = serve(&directory.path().join("dra.sock"), routes(&double.hub));
                let mut stream = watch(&connect(server.path()).await).await.unwrap();
                let monitor = double.monitor().await;
                for round in 0..3 {
                    let message = format!("{round}{}", "x".repeat(1000));
                    let gpu = |number| DeviceHealth::unhealthy("node-1", format!("gpu-{number}"), &message);
                    monitor.reporter.report((0..16384).map(gpu)).await;
                    tokio::task::yield_now().await;
                }
                let mut kubelet = HashMap::<String, String>::new();
                while kubelet.len() < 16384 || kubelet.values().any(|message| !message.starts_with('2')) {
                    let report = in_time(stream.message()).await.unwrap().unwrap();
                    kubelet.extend(
                        report.devices.into_iter().map(|device| (device.device.unwrap().device_name, device.message)),
                    );
                }
            }
        }
    };
}

tests_of!(health_v1);
tests_of!(health_v1alpha1);

#[tokio::test]
async fn both_versions_share_one_monitor() {
    use drakkar_kubelet_api::{health_v1, health_v1alpha1};
    let directory = tempfile::tempdir().unwrap();
    let mut double = Double::new();
    let server = serve(&directory.path().join("dra.sock"), routes(&double.hub));
    let channel = connect(server.path()).await;
    let mut v1 = health_v1::dra_resource_health_client::DraResourceHealthClient::new(channel.clone());
    let mut v1alpha1 = health_v1alpha1::dra_resource_health_client::DraResourceHealthClient::new(channel);
    let request = health_v1::NodeWatchResourcesRequest {};
    let mut v1 = in_time(v1.node_watch_resources(request)).await.unwrap().into_inner();
    let request = health_v1alpha1::NodeWatchResourcesRequest {};
    let mut v1alpha1 = in_time(v1alpha1.node_watch_resources(request)).await.unwrap().into_inner();
    let monitor = double.monitor().await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    assert_eq!(in_time(v1.message()).await.unwrap().unwrap().devices.len(), 1);
    assert_eq!(in_time(v1alpha1.message()).await.unwrap().unwrap().devices.len(), 1);
    assert!(!double.has_started());
}
