//! Tests of a single server.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;

use drakkar_metadata::name::DriverName;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use super::double::{Driver, TIMEOUT, connect, eventually, failing_listener, in_time, prepare, unprepare, watch};
use crate::server::*;
use crate::socket::listen;

fn serve(path: &Path, driver: &Driver) -> Server {
    let (listener, file) = listen(path, &DriverName::new("gpu.example.com").unwrap()).unwrap();
    Server::start(listener, file, driver.routes(), CallHooks::default()).unwrap()
}

/// Starts a server and a call that the driver does not finish before `release` is notified.
async fn serve_with_call_in_flight(path: &Path) -> (Server, Driver, JoinHandle<Result<(), Status>>) {
    let driver = Driver::default();
    let server = serve(path, &driver);
    let channel = connect(path).await.unwrap();
    let call = tokio::spawn(async move { prepare(&channel, "wait").await.map(drop) });
    in_time(driver.entered.notified()).await;
    (server, driver, call)
}

fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

/// G14: a panic with a message, one without, and one in a stream.
#[tokio::test]
async fn a_panic_in_a_handler_fails_that_call_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let driver = Driver::default();
    let server = serve(&directory.path().join("dra.sock"), &driver);
    let channel = connect(server.path()).await.unwrap();
    let mut reports = watch(&channel).await;

    let error = prepare(&channel, "panic").await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "the driver panicked: device 7 is on fire"));
    let error = unprepare(&channel).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "the driver panicked: no message"));
    driver.release.notify_one();
    let error = in_time(reports.message()).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "the driver panicked: the monitor is on fire"));

    prepare(&channel, "fine").await.unwrap();
    watch(&channel).await;
    assert!(server.stop(deadline()).await.is_empty());
}

/// G6: a call in flight may finish, while new connections are refused.
#[tokio::test]
async fn a_server_that_stops_lets_calls_finish() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dra.sock");
    let (server, driver, call) = serve_with_call_in_flight(&path).await;

    let stop = tokio::spawn(server.stop(deadline()));
    eventually("the socket is gone", || !path.exists()).await;
    assert!(connect(&path).await.is_err());
    assert!(!stop.is_finished() && !driver.finished.load(Ordering::SeqCst));

    driver.release.notify_one();
    in_time(call).await.unwrap().unwrap();
    let errors = in_time(stop).await.unwrap();
    assert!(errors.is_empty(), "{errors:?}");
    assert!(driver.finished.load(Ordering::SeqCst));
}

/// G6: a call that does not end in time is dropped.
#[tokio::test]
async fn a_call_that_does_not_finish_in_time_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let (server, driver, call) = serve_with_call_in_flight(&directory.path().join("dra.sock")).await;

    let errors = in_time(server.stop(Instant::now())).await;
    assert!(matches!(&errors[..], [ServerError::DrainTimeout { .. }]), "{errors:?}");
    assert!(in_time(call).await.unwrap().is_err());
    eventually("the handler is dropped", || driver.dropped.load(Ordering::SeqCst)).await;
    assert!(!driver.finished.load(Ordering::SeqCst));
}

/// G6: a health stream never ends by itself, so a stop does not wait for it.
#[tokio::test]
async fn a_stream_ends_when_its_server_stops() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(&directory.path().join("dra.sock"), &Driver::default());
    let channel = connect(server.path()).await.unwrap();
    let mut reports = watch(&channel).await;
    let errors = in_time(server.stop(deadline())).await;
    assert!(errors.is_empty(), "{errors:?}");
    let error = in_time(reports.message()).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "the driver is shutting down"));
}

/// A connection without any call does not block the stop either.
#[tokio::test]
async fn an_idle_connection_delays_a_stop_until_the_deadline_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(&directory.path().join("dra.sock"), &Driver::default());
    let idle = UnixStream::connect(server.path()).unwrap();
    prepare(&connect(server.path()).await.unwrap(), "fine").await.unwrap();
    in_time(server.stop(Instant::now())).await;
    drop(idle);
}

/// G15: the failure of a server is reported to its owner.
#[tokio::test]
async fn a_failed_server_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dra.sock");
    let (_, file) = listen(&path, &DriverName::new("gpu.example.com").unwrap()).unwrap();
    let (listener, mut trigger) = failing_listener();
    let mut server = Server::start(listener, file, Driver::default().routes(), CallHooks::default()).unwrap();
    tokio::select! {
        biased;
        error = server.died() => panic!("failed too early: {error}"),
        () = tokio::task::yield_now() => {}
    }

    trigger.write_all(b"!").unwrap();
    let error = in_time(server.died()).await;
    assert_eq!(
        error.to_string(),
        format!("server of {}: can no longer accept connections: Invalid argument (os error 22)", path.display())
    );
    tokio::select! {
        biased;
        error = server.died() => panic!("reported twice: {error}"),
        () = tokio::task::yield_now() => {}
    }
    let errors = in_time(server.stop(deadline())).await;
    assert!(errors.is_empty(), "{errors:?}");
    assert!(!path.exists());
}

/// G5: dropping a server cleans up.
#[tokio::test]
async fn a_dropped_server_removes_its_socket_and_closes_its_connections() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dra.sock");
    let (server, driver, call) = serve_with_call_in_flight(&path).await;
    drop(server);
    assert!(!path.exists());
    assert!(in_time(call).await.unwrap().is_err());
    eventually("the handler is dropped", || driver.dropped.load(Ordering::SeqCst)).await;
}

/// The kubelet sends its deadline with each call; a handler that exceeds it is dropped.
#[tokio::test]
async fn a_handler_is_dropped_at_the_callers_deadline() {
    use drakkar_kubelet_api::dra_v1::dra_plugin_client::DraPluginClient;
    use drakkar_kubelet_api::dra_v1::{Claim, NodePrepareResourcesRequest};
    let directory = tempfile::tempdir().unwrap();
    let driver = Driver::default();
    let server = serve(&directory.path().join("dra.sock"), &driver);
    let claim = Claim { name: "wait".to_owned(), ..Claim::default() };
    let mut request = tonic::Request::new(NodePrepareResourcesRequest { claims: vec![claim] });
    request.metadata_mut().insert("grpc-timeout", "10m".parse().unwrap());
    let mut client = DraPluginClient::new(connect(server.path()).await.unwrap());
    assert!(in_time(client.node_prepare_resources(request)).await.is_err());
    eventually("the handler is dropped", || driver.dropped.load(Ordering::SeqCst)).await;
}
