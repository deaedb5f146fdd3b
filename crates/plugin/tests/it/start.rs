//! Tests of starting and stopping a driver: checks, order, and the services and pages that it has while it runs.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drakkar_kubelet_api::dra_v1 as v1;
use drakkar_kubelet_api::dra_v1::dra_plugin_client::DraPluginClient;
use drakkar_kubelet_api::health_v1 as health;
use drakkar_kubelet_api::health_v1::dra_resource_health_client::DraResourceHealthClient as HealthV1Client;
use drakkar_kubelet_api::health_v1alpha1 as health_alpha;
use drakkar_kubelet_api::health_v1alpha1::dra_resource_health_client::DraResourceHealthClient as HealthV1alpha1Client;
use drakkar_metadata::Version;
use drakkar_plugin::{
    BoxError, Claim, ClaimRef, Device, DeviceHealth, DraPlugin, HealthMonitor, PluginBuilder, RegistrationStatus,
    Services, StartError,
};
use rstest::rstest;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use tonic::{Code, Status};

use crate::support::{
    ANY_PORT, DRIVER, Kubelet, Node, SlowDriver, TestClaim, TestDriver, channel, eventually, http_get, in_time, info,
    notify,
};

/// A driver with a health monitor, which reports one healthy and one unhealthy device.
struct HealthDriver;

impl DraPlugin for HealthDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        Ok(claim.results().map(Device::from).collect())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }

    fn health_monitor(&self) -> Option<HealthMonitor<Self>> {
        Some(HealthMonitor::new(|_, reports| async move {
            let healthy = DeviceHealth::healthy("node-1", "gpu-0");
            let unhealthy = DeviceHealth::unhealthy("node-1", "gpu-1", "fell off the bus");
            reports.report([healthy, unhealthy.with_lease(Duration::from_secs(60))]).await;
            std::future::pending().await
        }))
    }
}

/// Watches for files that are created in or moved into a directory, as the kubelet's plugin watcher does.
struct DirectoryWatcher(OwnedFd);

impl DirectoryWatcher {
    fn new(directory: &Path) -> Self {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, directory, WatchFlags::CREATE | WatchFlags::MOVED_TO).unwrap();
        Self(watch)
    }

    /// Returns the names of new files, without those that start with a dot, which the kubelet ignores.
    fn take_names(&self) -> Vec<String> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut names = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().unwrap().to_str().unwrap();
            names.extend((!name.starts_with('.')).then(|| name.to_owned()));
        }
        names
    }
}

/// Starts a driver that must not start, and returns the error.
async fn start_error(builder: PluginBuilder) -> StartError {
    builder.start(TestDriver::default()).await.expect_err("the driver started")
}

/// G9: the Go framework accepts these names, and fails later.
#[rstest]
#[case::nothing("", "must not be empty")]
#[case::slash("gpu/example.com", "must be letters, digits")]
#[case::dots("..", "must be letters, digits")]
#[case::dash("-gpu.example.com", "must be letters, digits")]
#[case::long(&"g".repeat(64), "must be no more than 63 bytes, has 64")]
#[tokio::test]
async fn an_invalid_driver_name_is_refused(#[case] name: &str, #[case] problem: &str) {
    let node = Node::default();
    let builder = PluginBuilder::new(name).client(node.api.client()).kubelet_root(node.root.path());
    let error = start_error(builder).await;
    assert!(matches!(error, StartError::DriverName(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(problem), "{text}");
    assert!(
        text.ends_with("; a driver's name is a domain name that its vendor owns, such as gpu.example.com"),
        "{text}"
    );
    assert!(!node.root.path().join("plugins").exists(), "a directory was created for a refused name");
}

/// G35: a valid driver name can be an invalid CDI vendor, which matters only with device metadata.
#[tokio::test]
async fn a_name_that_is_no_cdi_vendor_is_refused_only_with_metadata() {
    let node = Node::default();
    let builder = PluginBuilder::new("3d.example.com").client(node.api.client()).kubelet_root(node.root.path());
    let error = start_error(builder.clone().device_metadata(true)).await;
    assert_eq!(
        error.to_string(),
        "driver name 3d.example.com: device metadata needs a name that CDI can carry as a vendor: CDI vendor \
         \"3d.example.com\": must start with a letter: Kubernetes lets a driver name start with a digit, but no CDI vendor \
         or class may; choose a name that starts with a letter, or turn device metadata off",
    );
    builder.device_metadata(false).start(TestDriver::default()).await.unwrap().stop().await.unwrap();
}

#[rstest]
#[case::escapes("../../etc")]
#[case::nothing("")]
#[case::dot(".hidden")]
#[tokio::test]
async fn a_pod_uid_that_is_invalid_in_a_file_name_is_refused(#[case] uid: &str) {
    let node = Node::default();
    let error = start_error(node.builder().rolling_update(uid)).await;
    let text = error.to_string();
    assert!(text.starts_with(&format!("pod UID {uid:?}: must be 1 to 128 letters")), "{text}");
    assert!(text.ends_with("use the pod's metadata.uid"), "{text}");
    assert_eq!(node.sockets(), [""; 0]);
}

#[tokio::test]
async fn a_missing_registry_directory_is_an_error_with_the_remedy() {
    let node = Node::default();
    let missing = node.root.path().join("elsewhere");
    let error = start_error(node.builder().registry_directory(&missing)).await;
    assert_eq!(
        error.to_string(),
        format!(
            "the kubelet's registry directory {}: No such file or directory (os error 2); is --kubelet-root-dir the \
             kubelet's directory, and mounted into the driver's container under the same path?",
            missing.display(),
        ),
    );
    std::fs::write(&missing, "a file").unwrap();
    let text = start_error(node.builder().registry_directory(&missing)).await.to_string();
    assert!(text.contains("elsewhere: not a directory"), "{text}");
    // Without registration the directory is not checked.
    let builder = node.builder().registry_directory("/nonexistent").services(Services::default().registration(false));
    builder.start(TestDriver::default()).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn a_driver_directory_that_cannot_be_created_is_an_error_with_the_remedy() {
    let node = Node::default();
    let file = node.root.path().join("file");
    std::fs::write(&file, "").unwrap();
    let text = start_error(node.builder().plugin_directory(file.join("plugin"))).await.to_string();
    assert!(text.starts_with(&format!("the driver's directory {}/plugin: ", file.display())), "{text}");
    assert!(text.ends_with("; mount it into the driver's container under the path that it has on the host"), "{text}");
}

#[tokio::test]
async fn a_driver_without_any_version_of_the_dra_service_is_refused() {
    let node = Node::default();
    let error = start_error(node.builder().services(Services::default().dra_v1(false).dra_v1beta1(false))).await;
    assert_eq!(error.to_string(), "no version of the DRA service is enabled: enable v1, v1beta1 or both");
}

#[tokio::test]
async fn metadata_without_layout_or_version_is_refused() {
    let node = Node::default();
    let error = start_error(node.builder().metadata_layout([])).await;
    assert_eq!(error.to_string(), "metadata layout: there is none; use kep, kubernetes or both");
    let error = start_error(node.builder().metadata_versions([])).await;
    assert_eq!(
        error.to_string(),
        "metadata versions: no metadata version given: name at least one of v1beta1 and v1alpha1"
    );
    let error = start_error(node.builder().metadata_versions([Version::V1Alpha1, Version::V1Alpha1])).await;
    assert_eq!(error.to_string(), "metadata versions: metadata version v1alpha1 is named twice");
}

/// G5: the kubelet registers the drivers whose sockets it sees, so it must not see the socket of one that fails to start.
#[tokio::test]
async fn a_port_in_use_is_an_error_before_the_kubelet_sees_a_socket() {
    let node = Node::default();
    let listener = std::net::TcpListener::bind(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let watcher = DirectoryWatcher::new(&node.root.path().join("plugins_registry"));
    let error = start_error(node.builder().http_endpoint(address)).await;
    assert!(matches!(error, StartError::Http { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("http endpoint {address}: Address already in use")), "{text}");
    assert!(text.ends_with("choose another port with --http-endpoint"), "{text}");
    assert_eq!(watcher.take_names(), [""; 0], "the kubelet saw a socket");
    assert_eq!(node.sockets(), [""; 0]);
    // The watcher sees a start that succeeds.
    node.start(&TestDriver::default()).await.stop().await.unwrap();
    assert_eq!(watcher.take_names(), ["gpu.example.com@reg.sock"]);
}

/// G2, G3: the error says how long the directory can be.
#[rstest]
#[case::dra(true, "DRA socket: ")]
#[case::registration(false, "registration socket: ")]
#[tokio::test]
async fn a_directory_that_is_too_long_for_a_socket_is_refused(#[case] is_plugin: bool, #[case] which: &str) {
    let node = Node::default();
    let long = node.root.path().join("d".repeat(100));
    std::fs::create_dir(&long).unwrap();
    let builder = node.builder();
    let error =
        start_error(if is_plugin { builder.plugin_directory(&long) } else { builder.registry_directory(&long) }).await;
    let text = error.to_string();
    assert!(text.starts_with(&format!("{which}{}/", long.display())), "{text}");
    assert!(text.contains("bytes and a socket's path can have 107: use a directory of at most "), "{text}");
    assert_eq!(node.sockets(), [""; 0]);
}

#[tokio::test]
async fn a_relative_directory_is_refused() {
    let node = Node::default();
    let directory = tempfile::tempdir_in(".").unwrap();
    let relative = Path::new(".").join(directory.path().file_name().unwrap());
    let text = start_error(node.builder().registry_directory(&relative)).await.to_string();
    assert!(text.contains("must be an absolute path"), "{text}");
}

/// G5: the DRA server is already running when the registration server fails, and is stopped too.
#[tokio::test]
async fn a_start_that_fails_at_its_last_step_leaves_no_socket() {
    let node = Node::default();
    let registration = node.root.path().join("plugins_registry/gpu.example.com@reg.sock");
    std::fs::write(&registration, "not a socket").unwrap();
    let error = start_error(node.builder().http_endpoint(ANY_PORT)).await;
    assert!(matches!(error, StartError::Socket(_)), "{error:?}");
    assert_eq!(error.to_string(), format!("{}: is a regular file, not a socket: move it away", registration.display()));
    // The server's task removes its socket asynchronously.
    eventually("no sockets", || node.sockets().is_empty().then_some(())).await;
    assert_eq!(std::fs::read_to_string(&registration).unwrap(), "not a socket");
    std::fs::remove_file(&registration).unwrap();
    node.start(&TestDriver::default()).await.stop().await.unwrap();
}

#[tokio::test]
async fn a_lock_file_that_is_no_regular_file_is_refused() {
    let node = Node::default();
    std::fs::create_dir_all(node.plugin_directory().join("serialize.lock")).unwrap();
    let error = start_error(node.builder().rolling_update("pod-1")).await;
    assert!(matches!(error, StartError::Lock { .. }), "{error:?}");
    assert!(error.to_string().ends_with("serialize.lock: is a directory, not a regular file: move it away"), "{error}");
}

/// G8: a second instance does not steal the sockets of the first.
#[tokio::test]
async fn a_second_instance_without_a_pod_uid_is_refused_while_the_first_runs() {
    let node = Node::default();
    let first = node.start(&TestDriver::default()).await;
    let error = start_error(node.builder()).await;
    assert_eq!(
        error.to_string(),
        format!(
            "{}/dra@kubelet.sock: another process listens here: stop it first, or give each instance of the driver its pod UID \
             (rolling update)",
            node.plugin_directory().display(),
        ),
    );
    let claim = node.claim(TestClaim::new("train", "uid-1").device("gpu", "gpu-0"));
    Kubelet::of(&first).await.prepare_one(&claim).await.unwrap();
    assert_eq!(info(&first).await.unwrap().name, DRIVER);
    first.stop().await.unwrap();
    node.start(&TestDriver::default()).await.stop().await.unwrap();
}

/// G8: a killed process leaves its sockets, and the next one replaces them.
#[tokio::test]
async fn the_sockets_of_a_dead_instance_are_replaced() {
    let node = Node::default();
    std::fs::create_dir_all(node.plugin_directory()).unwrap();
    drop(UnixListener::bind(node.plugin_directory().join("dra@kubelet.sock")).unwrap());
    drop(UnixListener::bind(node.root.path().join("plugins_registry/gpu.example.com@reg.sock")).unwrap());
    // The name of the socket of the same driver built with the Go framework.
    drop(UnixListener::bind(node.root.path().join("plugins_registry/gpu.example.com-reg.sock")).unwrap());
    let helper = node.start(&TestDriver::default()).await;
    assert_eq!(node.sockets(), ["dra@kubelet.sock", "gpu.example.com@reg.sock"]);
    assert_eq!(info(&helper).await.unwrap().name, DRIVER);
    helper.stop().await.unwrap();
    assert_eq!(node.sockets(), [""; 0]);
}

/// Sections 1.1 and 1.2: the registration info, with the services in order of preference.
#[tokio::test]
async fn the_registration_info_has_name_endpoint_and_services() {
    let node = Node::default();
    let helper = node.start(&TestDriver::default()).await;
    let registered = info(&helper).await.unwrap();
    assert_eq!(registered.kind, "DRAPlugin");
    assert_eq!(registered.name, DRIVER);
    assert_eq!(registered.endpoint, node.plugin_directory().join("dra@kubelet.sock").to_str().unwrap());
    assert_eq!(registered.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);
    helper.stop().await.unwrap();

    let helper = node.builder().start(HealthDriver).await.unwrap();
    let services = info(&helper).await.unwrap().supported_versions;
    assert_eq!(services, ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]);
    helper.stop().await.unwrap();

    let helper =
        node.builder().services(Services::default().dra_v1(false).health_v1(false)).start(HealthDriver).await.unwrap();
    let services = info(&helper).await.unwrap().supported_versions;
    assert_eq!(services, ["v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]);
    let kubelet = Kubelet::of(&helper).await;
    assert_eq!(kubelet.call().await.unwrap_err().code(), Code::Unimplemented);
    kubelet.v1beta1().call().await.unwrap();
    helper.stop().await.unwrap();
}

/// G1: the driver can wait until the kubelet has registered it, or has refused to.
#[tokio::test]
async fn the_registration_status_can_be_waited_for() {
    let node = Node::default();
    let helper = node.start(&TestDriver::default()).await;
    let mut status = helper.registration_status();
    assert_eq!(*status.borrow(), RegistrationStatus::Waiting);
    notify(&helper, Some("no such version")).await.unwrap();
    let failed = in_time(status.wait_for(|status| *status != RegistrationStatus::Waiting)).await.unwrap().clone();
    assert_eq!(failed, RegistrationStatus::Failed { error: "no such version".into() });
    notify(&helper, None).await.unwrap();
    in_time(status.wait_for(|status| *status == RegistrationStatus::Registered)).await.unwrap();
    helper.stop().await.unwrap();
}

/// Error messages of the registration calls that fail, by method. Calls of other methods succeed.
type RegistrationFaults = Arc<Mutex<HashMap<&'static str, &'static str>>>;

const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
const NOTIFY_REGISTRATION_STATUS: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";

/// Makes the registration calls fail that `faults` names, for as long as it names them.
fn inject_registration_faults(builder: PluginBuilder, faults: &RegistrationFaults) -> PluginBuilder {
    let faults = faults.clone();
    builder.registration_interceptor(move |method, _| match faults.lock().unwrap().get(method) {
        None => Ok(()),
        Some(error) => Err(Status::internal(*error)),
    })
}

/// G10: a driver's tests can make registration calls fail, as with the Go framework.
#[tokio::test]
async fn registration_calls_fail_while_the_interceptor_refuses_them() {
    let node = Node::default();
    let faults = RegistrationFaults::default();
    let helper = inject_registration_faults(node.builder(), &faults).start(TestDriver::default()).await.unwrap();
    faults.lock().unwrap().extend([(GET_INFO, "broken info"), (NOTIFY_REGISTRATION_STATUS, "broken notify")]);
    let error = info(&helper).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "broken info"));
    let error = notify(&helper, None).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "broken notify"));
    assert_eq!(*helper.registration_status().borrow(), RegistrationStatus::Waiting);
    faults.lock().unwrap().clear();
    info(&helper).await.unwrap();
    notify(&helper, None).await.unwrap();
    assert_eq!(*helper.registration_status().borrow(), RegistrationStatus::Registered);
    helper.stop().await.unwrap();
}

/// G6: the kubelet sees that the driver is gone while a call is still in flight, and gets the response of that call.
#[tokio::test]
async fn a_stop_withdraws_the_registration_first_and_lets_calls_finish() {
    let node = Node::default();
    let driver = SlowDriver::default();
    let helper = node.builder().start(driver.clone()).await.unwrap();
    let claim = node.claim(TestClaim::new("slow", "uid-1").device("gpu", "gpu-0"));
    let dra = helper.dra_socket().unwrap().to_owned();
    let registration = helper.registration_socket().unwrap().to_owned();
    let kubelet = Kubelet::of(&helper).await;
    let in_flight = tokio::spawn(async move { (kubelet.prepare_one(&claim).await, claim) });
    driver.wait_for(1).await;

    let stop = tokio::spawn(helper.stop());
    eventually("registration withdrawn", || (!registration.exists()).then_some(())).await;
    eventually("no new callers", || (!dra.exists()).then_some(())).await;
    assert!(!in_flight.is_finished() && !stop.is_finished());
    assert_eq!(*driver.in_flight.borrow(), 1, "the call continues");

    driver.permits.add_permits(1);
    let (response, claim) = in_time(in_flight).await.unwrap();
    assert_eq!(response.unwrap().len(), 1);
    in_time(stop).await.unwrap().unwrap();
    assert!(node.is_prepared(&claim), "the call succeeded, and its files are missing");
    assert_eq!(node.sockets(), [""; 0]);
}

/// G6: calls that do not end before the drain timeout are cancelled, and the stop reports it.
#[tokio::test]
async fn a_stop_cancels_calls_at_the_drain_timeout() {
    let node = Node::default();
    let driver = SlowDriver::default();
    let helper = node.builder().drain_timeout(Duration::from_millis(50)).start(driver.clone()).await.unwrap();
    let claim = node.claim(TestClaim::new("slow", "uid-1").device("gpu", "gpu-0"));
    let kubelet = Kubelet::of(&helper).await;
    let named = claim.reference();
    let in_flight = tokio::spawn(async move { kubelet.0.prepare([&named]).await });
    driver.wait_for(1).await;
    let error = in_time(helper.stop()).await.unwrap_err().to_string();
    assert!(error.contains("dra@kubelet.sock: calls in flight did not end in time and were dropped"), "{error}");
    in_time(in_flight).await.unwrap().unwrap_err();
    driver.wait_for(0).await;
    assert!(!node.is_prepared(&claim));
    assert_eq!(node.sockets(), [""; 0]);
}

/// G5: a helper that is dropped without a stop removes its sockets too.
#[tokio::test]
async fn a_helper_that_is_dropped_leaves_no_sockets() {
    let node = Node::default();
    let helper = node.builder().http_endpoint(ANY_PORT).start(TestDriver::default()).await.unwrap();
    let address = helper.http_address().unwrap();
    assert_eq!(node.sockets().len(), 2);
    drop(helper);
    eventually("no sockets", || node.sockets().is_empty().then_some(())).await;
    eventually("a free port", || std::net::TcpListener::bind(address).ok()).await;
}

/// A.6: a helper without sockets can still update metadata.
#[tokio::test]
async fn a_driver_without_services_starts_and_stops() {
    let node = Node::default();
    let builder = node.builder().services(Services::default().dra_socket(false).registration(false));
    // Faults can be injected although there is no registration server (G10).
    let faults = RegistrationFaults::default();
    faults.lock().unwrap().insert(GET_INFO, "never called");
    let builder = inject_registration_faults(builder, &faults);
    let helper = builder.start(TestDriver::default()).await.unwrap();
    assert_eq!((helper.dra_socket(), helper.registration_socket()), (None, None));
    assert_eq!(node.sockets(), [""; 0]);
    let claim = TestClaim::new("train", "uid-1");
    let error = helper.handles().update_request_metadata(&claim.reference(), "gpu", vec![]).await.unwrap_err();
    assert!(error.is_not_prepared(), "{error}");
    helper.stop().await.unwrap();
}

/// A.6: in a split deployment, the process that registers reports the socket of the process that serves.
#[tokio::test]
async fn registration_and_dra_service_can_be_in_two_processes() {
    let node = Node::default();
    let service =
        node.builder().services(Services::default().registration(false)).start(TestDriver::default()).await.unwrap();
    let registrar =
        node.builder().services(Services::default().dra_socket(false)).start(TestDriver::default()).await.unwrap();
    assert_eq!((service.registration_socket(), registrar.dra_socket()), (None, None));
    let info = info(&registrar).await.unwrap();
    assert_eq!(Path::new(&info.endpoint), service.dra_socket().unwrap());
    registrar.stop().await.unwrap();
    assert_eq!(node.sockets(), ["dra@kubelet.sock"]);
    service.stop().await.unwrap();
}

#[cfg(feature = "clap")]
mod flags {
    use clap::{CommandFactory as _, Parser};
    use drakkar_metadata::path::Layout;
    use drakkar_plugin::Flags;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        plugin: Flags,
    }

    const ALL: [(&str, &str); 13] = [
        ("--enable-device-metadata", "ENABLE_DEVICE_METADATA"),
        ("--metadata-versions", "METADATA_VERSIONS"),
        ("--metadata-layout", "METADATA_LAYOUT"),
        ("--kubelet-root-dir", "KUBELET_ROOT_DIR"),
        ("--cdi-dir", "CDI_DIR"),
        ("--node-name", "NODE_NAME"),
        ("--node-uid", "NODE_UID"),
        ("--pod-uid", "POD_UID"),
        ("--http-endpoint", "HTTP_ENDPOINT"),
        ("--http-details", "HTTP_DETAILS"),
        ("--kubeconfig", "KUBECONFIG"),
        ("--verbose", "VERBOSE"),
        ("--log-format", "LOG_FORMAT"),
    ];

    fn parse(arguments: &[&str]) -> Result<Flags, clap::Error> {
        Arguments::try_parse_from([&["driver"], arguments].concat()).map(|arguments| arguments.plugin)
    }

    #[test]
    fn the_help_names_every_flag_with_its_variable() {
        let help = Arguments::command().render_long_help().to_string();
        for (flag, variable) in ALL {
            assert!(help.contains(flag), "{flag} in {help}");
            assert!(help.contains(&format!("[env: {variable}=")), "{variable} in {help}");
        }
        let flags = Arguments::command().get_arguments().filter(|argument| argument.get_long().is_some()).count();
        assert_eq!(flags, ALL.len(), "a flag is missing in ALL");
    }

    #[test]
    fn flags_have_the_defaults_of_the_design() {
        let flags = parse(&[]).unwrap();
        assert!(!flags.enable_device_metadata);
        assert_eq!(flags.metadata_versions, [Version::V1Alpha1]);
        assert_eq!(flags.metadata_layout, [Layout::Kep, Layout::Kubernetes]);
        assert_eq!(flags.kubelet_root_dir, Path::new("/var/lib/kubelet"));
        assert_eq!(flags.cdi_dir, Path::new("/var/run/cdi"));
        assert_eq!((flags.node_name, flags.node_uid), (None, None));
        assert_eq!((flags.pod_uid, flags.http_endpoint), (None, None));
    }

    #[test]
    fn every_flag_is_parsed() {
        let flags = parse(&[
            "--enable-device-metadata",
            "--metadata-versions=v1beta1,v1alpha1",
            "--metadata-layout=kubernetes",
            "--kubelet-root-dir=/kubelet",
            "--cdi-dir=/cdi",
            "--node-name=node-1",
            "--node-uid=uid-1",
            "--pod-uid=pod-1",
            "--http-endpoint=127.0.0.1:9090",
        ])
        .unwrap();
        assert!(flags.enable_device_metadata);
        assert_eq!(flags.metadata_versions, [Version::V1Beta1, Version::V1Alpha1]);
        assert_eq!(flags.metadata_layout, [Layout::Kubernetes]);
        assert_eq!((flags.kubelet_root_dir.to_str(), flags.cdi_dir.to_str()), (Some("/kubelet"), Some("/cdi")));
        assert_eq!((flags.node_name.as_deref(), flags.node_uid.as_deref()), (Some("node-1"), Some("uid-1")));
        assert_eq!(flags.pod_uid.as_deref(), Some("pod-1"));
        assert_eq!(flags.http_endpoint, Some("127.0.0.1:9090".parse().unwrap()));
        assert!(!parse(&["--enable-device-metadata=false"]).unwrap().enable_device_metadata);
    }

    #[rstest]
    #[case::version(&["--metadata-versions=v2"], "v2")]
    #[case::layout(&["--metadata-layout=mine"], "mine")]
    #[case::address(&["--http-endpoint=9090"], "9090")]
    #[case::truth(&["--enable-device-metadata=perhaps"], "perhaps")]
    fn an_invalid_value_is_an_error(#[case] arguments: &[&str], #[case] value: &str) {
        let error = parse(arguments).unwrap_err().to_string();
        assert!(error.contains(&format!("invalid value '{value}'")), "{error}");
    }

    /// Every setting of the flags that is visible from outside has its effect.
    #[tokio::test]
    async fn a_driver_starts_as_its_flags_say() {
        let node = Node::default();
        let root = node.root.path().to_str().unwrap();
        let flags = parse(&[
            "--enable-device-metadata",
            "--metadata-versions=v1beta1",
            "--metadata-layout=kubernetes",
            &format!("--kubelet-root-dir={root}"),
            &format!("--cdi-dir={root}/cdi"),
            "--node-name=node-7",
            "--pod-uid=pod-1",
            "--http-endpoint=127.0.0.1:0",
        ]);
        let builder = PluginBuilder::new(DRIVER).client(node.api.client()).flags(&flags.unwrap());
        let helper = builder.start(TestDriver::default()).await.unwrap();
        assert_eq!(node.sockets(), ["dra@pod-1.sock", "gpu.example.com-pod-1@reg.sock"]);
        let claim = node.claim(TestClaim::new("train", "uid-1").device("gpu", "gpu-0"));
        Kubelet::of(&helper).await.prepare_one(&claim).await.unwrap();
        assert_eq!(node.metadata(&claim, "gpu")["apiVersion"], "metadata.resource.k8s.io/v1beta1");
        let spec = std::fs::read_to_string(node.spec_file(&claim, "gpu")).unwrap();
        assert!(!spec.contains("\"/var/run/dra-device-attributes/"), "{spec}");
        let (_, status) = http_get(helper.http_address().unwrap(), "/statusz").await;
        for expected in ["node-7", "on (v1beta1; kubernetes)", "as pod pod-1", root] {
            assert!(status.contains(expected), "{expected} in {status}");
        }
        helper.stop().await.unwrap();
    }
}

/// A.6: both versions of the health service stream what the driver reports.
#[tokio::test]
async fn health_is_streamed_in_both_versions_of_the_service() {
    let node = Node::default();
    let helper = node.builder().start(HealthDriver).await.unwrap();
    let channel = channel(&helper).await;

    let mut client = HealthV1Client::new(channel.clone());
    let mut stream = client.node_watch_resources(health::NodeWatchResourcesRequest {}).await.unwrap().into_inner();
    let mut devices = Vec::new();
    while devices.len() < 2 {
        devices.extend(in_time(stream.message()).await.unwrap().unwrap().devices);
    }
    devices.sort_by_key(|health| health.device.clone().unwrap().device_name);
    assert_eq!(devices[0].device.as_ref().unwrap().pool_name, "node-1");
    assert_eq!(devices[0].health(), health::HealthStatus::Healthy);
    assert_eq!(devices[1].device.as_ref().unwrap().device_name, "gpu-1");
    assert_eq!(devices[1].health(), health::HealthStatus::Unhealthy);
    assert_eq!((devices[1].message.as_str(), devices[1].health_check_timeout_seconds), ("fell off the bus", 60));

    let mut client = HealthV1alpha1Client::new(channel);
    let request = health_alpha::NodeWatchResourcesRequest {};
    let mut alpha = client.node_watch_resources(request).await.unwrap().into_inner();
    let mut devices = Vec::new();
    while devices.len() < 2 {
        devices.extend(in_time(alpha.message()).await.unwrap().unwrap().devices);
    }
    devices.sort_by_key(|health| health.device.clone().unwrap().device_name);
    assert_eq!(devices[0].health(), health_alpha::HealthStatus::Healthy);
    assert_eq!(devices[1].health(), health_alpha::HealthStatus::Unhealthy);

    // A watch never ends by itself, so a stop does not wait for it.
    in_time(helper.stop()).await.unwrap();
    let ended = loop {
        match in_time(stream.message()).await {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
}

/// A.6: gRPC's status for a service that is not supported.
#[tokio::test]
async fn a_driver_without_a_health_monitor_has_no_health_service() {
    let node = Node::default();
    let helper = node.start(&TestDriver::default()).await;
    let channel = channel(&helper).await;
    let mut client = HealthV1Client::new(channel.clone());
    let refused = client.node_watch_resources(health::NodeWatchResourcesRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let mut client = HealthV1alpha1Client::new(channel);
    let refused = client.node_watch_resources(health_alpha::NodeWatchResourcesRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    helper.stop().await.unwrap();
}

/// Health, readiness, metrics and status pages, before and after registration and calls.
#[tokio::test]
async fn the_http_endpoint_has_health_metrics_and_status() {
    let node = Node::default();
    let helper = node.builder().node_name("node-7").http_endpoint(ANY_PORT).start(HealthDriver).await.unwrap();
    let address = helper.http_address().unwrap();
    assert_eq!(http_get(address, "/healthz").await, (200, "ok".into()));
    let (status, body) = http_get(address, "/readyz").await;
    assert_eq!((status, body.as_str()), (503, "waiting for the kubelet to register the driver\n"));

    notify(&helper, None).await.unwrap();
    assert_eq!(http_get(address, "/readyz").await, (200, "ok".into()));

    let claim = node.claim(TestClaim::new("train", "uid-1").device("gpu", "gpu-0"));
    let kubelet = Kubelet::of(&helper).await;
    kubelet.prepare_one(&claim).await.unwrap();
    kubelet.prepare_one(&TestClaim::new("unknown", "uid-2")).await.unwrap_err();
    helper.handles().register_metrics(|registry| {
        let temperature = prometheus_client::metrics::gauge::Gauge::<i64>::default();
        temperature.set(41);
        registry.register("temperature", "of the device", temperature);
    });
    let (_, metrics) = http_get(address, "/metrics").await;
    for line in [
        "drakkar_plugin_registered 1",
        "drakkar_plugin_prepared_claims 1",
        "drakkar_plugin_claim_operations_total{operation=\"prepare\",outcome=\"success\"} 1",
        "drakkar_plugin_claim_operations_total{operation=\"prepare\",outcome=\"not_found\"} 1",
        "drakkar_plugin_grpc_calls_total{method=\"prepare\",version=\"v1\",code=\"ok\"} 2",
        "drakkar_plugin_grpc_calls_in_flight{method=\"prepare\"} 0",
        "temperature 41",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    let (status, page) = http_get(address, "/statusz").await;
    assert_eq!(status, 200);
    for expected in [DRIVER, "node-7", "registered", "v1.DRAPlugin", "on (v1alpha1; kep,kubernetes)", "nothing yet"] {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    assert!(!page.contains("train"), "the page names a claim: {page}");
    let (status, page) = http_get(address, "/").await;
    assert_eq!(status, 200);
    for expected in [DRIVER, "node-7", "default/train", "gpu: generation 1", "default/unknown"] {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    let (status, flags) = http_get(address, "/flagz").await;
    assert_eq!(status, 200);
    assert!(flags.contains("\nenable-device-metadata=true\n") && flags.contains("\nnode-name=node-7\n"), "{flags}");
    helper.stop().await.unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the endpoint is still open");
}

/// G13: the DRA server and the registration server have separate interceptors.
#[tokio::test]
async fn an_interceptor_refuses_calls_on_its_own_socket_only() {
    let node = Node::default();
    let methods: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = methods.clone();
    let builder = node.builder().interceptor(move |method, headers| {
        seen.lock().unwrap().push(method.to_owned());
        match headers.get("let-me-in") {
            Some(_) => Ok(()),
            None => Err(Status::permission_denied("not without the password")),
        }
    });
    let helper = builder.start(TestDriver::default()).await.unwrap();
    let kubelet = Kubelet::of(&helper).await;
    let error = kubelet.call().await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::PermissionDenied, "not without the password"));
    let mut request = tonic::Request::new(v1::NodePrepareResourcesRequest::default());
    request.metadata_mut().insert("let-me-in", "yes".parse().unwrap());
    DraPluginClient::new(kubelet.0.channel()).node_prepare_resources(request).await.unwrap();
    info(&helper).await.unwrap();
    let method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
    assert_eq!(*methods.lock().unwrap(), [method, method], "registration calls are not intercepted");
    helper.stop().await.unwrap();

    let builder = node.builder().registration_interceptor(|_, _| Err(Status::unavailable("come back later")));
    let helper = builder.start(TestDriver::default()).await.unwrap();
    assert_eq!(info(&helper).await.unwrap_err().code(), Code::Unavailable);
    let kubelet = Kubelet::of(&helper).await;
    kubelet.call().await.unwrap();
    helper.stop().await.unwrap();
}
