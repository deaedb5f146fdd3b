//! Tests of both servers of an instance.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::Ordering;

use drakkar_kubelet_api::registration::InfoRequest;
use drakkar_kubelet_api::registration::registration_client::RegistrationClient;
use drakkar_metadata::name::DriverName;
use rstest::rstest;

use super::double::{Driver, TIMEOUT, connect, eventually, failing_listener, in_time, prepare};
use crate::registration::{RegistrationStatus, Services, SupportedServices};
use crate::server::*;
use crate::socket::PodUid;
use crate::socket::watch::DirectoryWatch;

/// The two directories of a node.
struct Node {
    _root: tempfile::TempDir,
    registry: PathBuf,
    plugin: PathBuf,
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let registry = root.path().join("registry");
        let plugin = root.path().join("plugin");
        fs::create_dir(&registry).unwrap();
        fs::create_dir(&plugin).unwrap();
        Self { _root: root, registry, plugin }
    }

    fn settings(&self, pod: Option<&str>) -> EndpointSettings {
        let services = Services {
            dra_v1: true,
            dra_v1beta1: true,
            health_v1: false,
            health_v1alpha1: false,
            ..Services::default()
        };
        EndpointSettings {
            driver: DriverName::new("gpu.example.com").unwrap(),
            pod_uid: pod.map(|uid| PodUid::new(uid).unwrap()),
            registry_directory: self.registry.clone(),
            plugin_directory: self.plugin.clone(),
            services: SupportedServices::new(services).unwrap(),
            serve_dra: true,
            register: true,
            dra_hooks: CallHooks::default(),
            registration_hooks: CallHooks::default(),
        }
    }

    async fn start(&self, pod: Option<&str>) -> Endpoints {
        Endpoints::start(self.settings(pod), Driver::default().routes()).await.unwrap()
    }

    fn is_empty(&self) -> bool {
        [&self.registry, &self.plugin].into_iter().all(|directory| fs::read_dir(directory).unwrap().next().is_none())
    }
}

/// Acts as a kubelet: gets the DRA socket from the registration socket, registers the driver and prepares a claim.
async fn register_and_prepare(registration: &Path) -> PathBuf {
    let mut kubelet = RegistrationClient::new(connect(registration).await.unwrap());
    let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);
    let status =
        drakkar_kubelet_api::registration::RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet.notify_registration_status(status).await.unwrap();
    let endpoint = PathBuf::from(info.endpoint);
    prepare(&connect(&endpoint).await.unwrap(), "fine").await.unwrap();
    endpoint
}

#[tokio::test]
async fn an_instance_registers_serves_and_leaves_no_files() {
    let node = Node::new();
    let endpoints = node.start(None).await;
    assert_eq!(endpoints.registration_socket(), Some(&*node.registry.join("gpu.example.com@reg.sock")));
    assert_eq!(endpoints.dra_socket(), Some(&*node.plugin.join("dra@kubelet.sock")));
    let status = endpoints.registration_status();
    assert_eq!(*status.borrow(), RegistrationStatus::Waiting);
    assert_eq!(
        register_and_prepare(&node.registry.join("gpu.example.com@reg.sock")).await,
        node.plugin.join("dra@kubelet.sock")
    );
    assert_eq!(*status.borrow(), RegistrationStatus::Registered);
    in_time(endpoints.stop(TIMEOUT)).await.unwrap();
    assert!(node.is_empty());
}

/// Rolling update: the new instance starts before the old one stops, and each has its own sockets.
#[tokio::test]
async fn two_instances_run_side_by_side() {
    let node = Node::new();
    let old_uid = "ad4af911-5bcd-47c5-a554-f35cea869472";
    let new_uid = "bd4af911-5bcd-47c5-a554-f35cea869472";
    let old = node.start(Some(old_uid)).await;
    let new = node.start(Some(new_uid)).await;
    register_and_prepare(old.registration_socket().unwrap()).await;
    in_time(old.stop(TIMEOUT)).await.unwrap();
    let endpoint = register_and_prepare(new.registration_socket().unwrap()).await;
    assert_eq!(endpoint, node.plugin.join(format!("dra@{new_uid}.sock")));
    in_time(new.stop(TIMEOUT)).await.unwrap();
    assert!(node.is_empty());
}

/// G4: stale sockets are removed, our own and those of a Go build of the same driver.
#[tokio::test]
async fn the_next_start_removes_sockets_of_killed_instances() {
    let node = Node::new();
    let uid = "ad4af911-5bcd-47c5-a554-f35cea869472";
    for dead in [
        node.registry.join("gpu.example.com-reg.sock"),
        node.registry.join(format!("gpu.example.com-{uid}@reg.sock")),
        node.plugin.join("dra@kubelet.sock"),
        node.plugin.join(format!("dra@{uid}.sock")),
    ] {
        drop(UnixListener::bind(dead).unwrap());
    }
    let endpoints = node.start(None).await;
    in_time(endpoints.stop(TIMEOUT)).await.unwrap();
    assert!(node.is_empty());
}

/// G5, G7, G8: a failed start undoes its own changes and nothing else.
#[tokio::test]
async fn a_failed_start_leaves_nothing_behind() {
    let node = Node::new();
    let taken = node.registry.join("gpu.example.com@reg.sock");
    let routes = || Driver::default().routes();

    let other = UnixListener::bind(&taken).unwrap();
    let error = Endpoints::start(node.settings(None), routes()).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("{}: another process listens here", taken.display())), "{error}");
    UnixStream::connect(&taken).unwrap();
    drop(other);
    fs::remove_file(&taken).unwrap();
    assert!(node.is_empty());

    fs::write(&taken, "precious").unwrap();
    let error = Endpoints::start(node.settings(None), routes()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{}: is a regular file, not a socket: move it away", taken.display()));
    assert_eq!(fs::read(&taken).unwrap(), b"precious");
    fs::remove_file(&taken).unwrap();
    assert!(node.is_empty());

    fs::remove_dir(&node.registry).unwrap();
    let error = Endpoints::start(node.settings(None), routes()).await.unwrap_err();
    assert!(error.to_string().contains("No such file or directory"), "{error}");
    assert!(fs::read_dir(&node.plugin).unwrap().next().is_none());
}

/// G6: the service is up before the kubelet can find it, and the kubelet sees the driver leave before the service is gone,
/// even while calls are in flight.
#[tokio::test]
async fn the_registration_starts_after_the_service_and_stops_before_it() {
    let node = Node::new();
    let driver = Driver::default();
    let watch = DirectoryWatch::new(&[&node.registry, &node.plugin]);
    let endpoints = Endpoints::start(node.settings(None), driver.routes()).await.unwrap();
    let appeared: Vec<_> = watch.events().into_iter().filter(|event| !event.ends_with(".staged")).collect();
    assert_eq!(appeared, ["move-to dra@kubelet.sock", "move-to gpu.example.com@reg.sock"]);

    let channel = connect(endpoints.dra_socket().unwrap()).await.unwrap();
    let call = tokio::spawn(async move { prepare(&channel, "wait").await });
    in_time(driver.entered.notified()).await;
    let stop = tokio::spawn(endpoints.stop(TIMEOUT));
    eventually("both sockets are gone", || node.is_empty()).await;
    assert_eq!(watch.events(), ["delete gpu.example.com@reg.sock", "delete dra@kubelet.sock"]);
    assert!(!stop.is_finished());
    driver.release.notify_one();
    in_time(call).await.unwrap().unwrap();
    in_time(stop).await.unwrap().unwrap();
}

/// G15: neither server keeps running without the other.
#[rstest]
#[case::of_the_dra_server(true)]
#[case::of_the_registration_server(false)]
#[tokio::test]
async fn the_failure_of_a_server_withdraws_the_registration(#[case] dra_fails: bool) {
    let node = Node::new();
    let mut endpoints = node.start(None).await;
    let mut trigger = endpoints.replace_with_failing(dra_fails, &node.plugin.join("failing.sock"));
    trigger.write_all(b"!").unwrap();
    let error = in_time(endpoints.died()).await;
    assert!(error.to_string().contains("failing.sock: can no longer accept connections"), "{error}");
    assert!(node.is_empty(), "both sockets are gone at once");
    in_time(endpoints.stop(TIMEOUT)).await.unwrap();
}

impl Endpoints {
    /// Replaces one of the two servers with one that fails when the returned stream is written to.
    fn replace_with_failing(&mut self, dra: bool, path: &Path) -> UnixStream {
        let (_, file) = crate::socket::listen(path, &DriverName::new("gpu.example.com").unwrap()).unwrap();
        let (listener, trigger) = failing_listener();
        let server = Server::start(listener, file, Driver::default().routes(), CallHooks::default()).unwrap();
        *if dra { self.dra_mut() } else { self.registration_mut() } = Some(server);
        trigger
    }
}

/// A.6: an instance without sockets starts and stops, and either server may run in another process.
#[rstest]
#[case(false, false)]
#[case(true, false)]
#[case(false, true)]
#[tokio::test]
async fn either_server_can_be_disabled(#[case] serve_dra: bool, #[case] register: bool) {
    let node = Node::new();
    let settings = EndpointSettings { serve_dra, register, ..node.settings(None) };
    let endpoints = Endpoints::start(settings, Driver::default().routes()).await.unwrap();
    assert_eq!(node.plugin.join("dra@kubelet.sock").exists(), serve_dra);
    assert_eq!(node.registry.join("gpu.example.com@reg.sock").exists(), register);
    in_time(endpoints.stop(TIMEOUT)).await.unwrap();
    assert!(node.is_empty());
}

/// A.6: a stop returns all of its errors.
#[tokio::test]
async fn a_stop_reports_every_error() {
    let node = Node::new();
    let driver = Driver::default();
    let endpoints = Endpoints::start(node.settings(None), driver.routes()).await.unwrap();
    let channel = connect(endpoints.dra_socket().unwrap()).await.unwrap();
    let call = tokio::spawn(async move { prepare(&channel, "wait").await });
    in_time(driver.entered.notified()).await;
    fs::remove_dir_all(&node.registry).unwrap();
    fs::write(&node.registry, "").unwrap();

    let error = in_time(endpoints.stop(Duration::ZERO)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("gpu.example.com@reg.sock: Not a directory"), "{text}");
    assert!(text.contains("dra@kubelet.sock: calls in flight did not end in time and were dropped"), "{text}");
    assert!(in_time(call).await.unwrap().is_err());
    assert!(!driver.finished.load(Ordering::SeqCst));
}
