//! The registration service over a socket, called by a gRPC client and with the raw frames that a kubelet sends.

mod kubelet_frames;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::server::Routes;
use drakkar_kubelet_api::registration::registration_client::RegistrationClient;
use drakkar_metadata::name::DriverName;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use self::kubelet_frames::{Answer, call_get_info};
use super::*;
use crate::server::{CallHooks, Interceptor, Server};
use crate::socket::{PodUid, dra_socket, listen, registration_socket};

fn all() -> Services {
    Services::default()
}
const DRA_SOCKET: &str = "/var/lib/kubelet/plugins/gpu.example.com/dra@kubelet.sock";

fn driver() -> DriverName {
    DriverName::new("gpu.example.com").unwrap()
}

fn registration() -> Registration {
    Registration::new(&driver(), Path::new(DRA_SOCKET), &SupportedServices::new(all()).unwrap())
}

fn serve(path: &Path, registration: Registration) -> Server {
    serve_with(path, registration, CallHooks::default())
}

fn serve_with(path: &Path, registration: Registration, hooks: CallHooks) -> Server {
    let (listener, file) = listen(path, &driver()).unwrap();
    Server::start(listener, file, Routes::default().with_unary(Arc::new(registration)), hooks).unwrap()
}

async fn client(path: &Path) -> RegistrationClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    RegistrationClient::new(endpoint.connect().await.unwrap())
}

fn notification(plugin_registered: bool, error: &str) -> proto::RegistrationStatus {
    proto::RegistrationStatus { plugin_registered, error: error.to_owned() }
}

#[test]
fn services_are_listed_in_the_order_in_which_kubelets_should_prefer_them() {
    let names = |v1, v1beta1, health_v1, health_v1alpha1| {
        SupportedServices::new(Services { dra_v1: v1, dra_v1beta1: v1beta1, health_v1, health_v1alpha1, ..all() })
            .map(|services| services.0)
    };
    let v1 = "v1.DRAPlugin";
    let v1beta1 = "v1beta1.DRAPlugin";
    let health_v1 = "v1.DRAResourceHealth";
    let health_v1alpha1 = "v1alpha1.DRAResourceHealth";
    assert_eq!(names(true, true, true, true), Ok(vec![v1, v1beta1, health_v1, health_v1alpha1]));
    assert_eq!(names(true, true, false, false), Ok(vec![v1, v1beta1]));
    assert_eq!(names(false, true, false, true), Ok(vec![v1beta1, health_v1alpha1]));
    assert_eq!(names(true, false, true, false), Ok(vec![v1, health_v1]));
    // A.6: disabling both versions is an error.
    assert_eq!(names(false, false, true, true), Err(NoDraService));
}

/// G1: the status is shared without a race, and each change can be awaited.
#[tokio::test]
async fn the_kubelet_gets_the_plugin_info_and_the_driver_the_registration_status() {
    let directory = tempfile::tempdir().unwrap();
    let path = registration_socket(directory.path(), &driver(), None).unwrap();
    let registration = registration();
    let mut status = registration.registration_status();
    let server = serve(&path, registration);
    let mut kubelet = client(&path).await;

    let info = kubelet.get_info(proto::InfoRequest {}).await.unwrap().into_inner();
    assert_eq!(
        info,
        proto::PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: "gpu.example.com".to_owned(),
            endpoint: DRA_SOCKET.to_owned(),
            supported_versions: [
                "v1.DRAPlugin",
                "v1beta1.DRAPlugin",
                "v1.DRAResourceHealth",
                "v1alpha1.DRAResourceHealth"
            ]
            .map(str::to_owned)
            .to_vec(),
        }
    );
    assert_eq!(*status.borrow_and_update(), RegistrationStatus::Waiting);

    kubelet.notify_registration_status(notification(false, "no such version")).await.unwrap();
    let failed = RegistrationStatus::Failed { error: "no such version".to_owned() };
    assert_eq!(*status.wait_for(|status| *status != RegistrationStatus::Waiting).await.unwrap(), failed);

    kubelet.notify_registration_status(notification(true, "")).await.unwrap();
    assert_eq!(*status.borrow_and_update(), RegistrationStatus::Registered);
    drop(kubelet);
    assert!(server.stop(Instant::now() + kubelet_frames::TIMEOUT).await.is_empty());
}

/// G10: a test injects faults from outside of the service, so it needs no service to do so.
#[tokio::test]
async fn calls_fail_while_faults_are_injected() {
    let directory = tempfile::tempdir().unwrap();
    let path = registration_socket(directory.path(), &driver(), None).unwrap();
    let registration = registration();
    let status = registration.registration_status();
    let faults = Arc::new(Mutex::new(HashMap::new()));
    let injected = faults.clone();
    let interceptor: Interceptor = Arc::new(move |method, _| match injected.lock().unwrap().get(method) {
        None => Ok(()),
        Some(&error) => Err(Status::internal(error)),
    });
    let hooks = CallHooks { interceptor: Some(interceptor), ..CallHooks::default() };
    let _server = serve_with(&path, registration, hooks);
    let mut kubelet = client(&path).await;

    faults.lock().unwrap().extend([
        ("/pluginregistration.Registration/GetInfo", "not now"),
        ("/pluginregistration.Registration/NotifyRegistrationStatus", "not this either"),
    ]);
    let error = kubelet.get_info(proto::InfoRequest {}).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "not now"));
    let error = kubelet.notify_registration_status(notification(true, "")).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "not this either"));
    assert_eq!(*status.borrow(), RegistrationStatus::Waiting);

    faults.lock().unwrap().clear();
    kubelet.get_info(proto::InfoRequest {}).await.unwrap();
    kubelet.notify_registration_status(notification(true, "")).await.unwrap();
    assert_eq!(*status.borrow(), RegistrationStatus::Registered);
}

/// D14: the kubelet's `:authority` is the percent-encoded path of the socket. The call succeeds with each socket name.
#[tokio::test]
async fn a_kubelet_that_sends_the_registration_socket_path_as_authority_gets_an_answer() {
    let directory = tempfile::Builder::new().prefix("plugins registry:").tempdir().unwrap();
    let pod = PodUid::new("ad4af911-5bcd-47c5-a554-f35cea869472").unwrap();
    // In a directory of 71 bytes only the shortest name fits.
    let deep = directory.path().join("x".repeat(70 - directory.path().as_os_str().len()));
    std::fs::create_dir(&deep).unwrap();
    let names = [
        (directory.path(), None, "gpu.example.com@reg.sock"),
        (directory.path(), Some(&pod), "gpu.example.com-"),
        (deep.as_path(), Some(&pod), "dra-"),
    ];
    for (registry, pod, start) in names {
        let path = registration_socket(registry, &driver(), pod).unwrap();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with(start), "{}", path.display());
        let _server = serve(&path, registration());
        let answer = call_get_info(UnixStream::connect(&path).await.unwrap(), &path).await;
        let Answer::Info(info) = answer else { panic!("{}: {answer:?}", path.display()) };
        assert_eq!((info.name.as_str(), info.endpoint.as_str()), ("gpu.example.com", DRA_SOCKET));
    }
}

/// Older kubelets (1.33.13 for one) do the same on the DRA socket. The registration service stands in for the DRA service:
/// the authority is checked before the request is routed.
#[tokio::test]
async fn a_kubelet_that_sends_the_dra_socket_path_as_authority_gets_an_answer() {
    let directory = tempfile::Builder::new().prefix("plugins:").tempdir().unwrap();
    let pod = PodUid::new("Ad4af911_5bcd.47c5-a554-f35cea869472").unwrap();
    let length = |bytes: usize| directory.path().join("x".repeat(bytes - 1 - directory.path().as_os_str().len()));
    let hashed = length(80);
    let short = length(88);
    let names = [
        (directory.path(), None, "dra@kubelet.sock"),
        (directory.path(), Some(&pod), "dra@Ad4af911_5bcd.47c5-a554-f35cea869472.sock"),
        (hashed.as_path(), Some(&pod), "dra@"),
        (short.as_path(), Some(&pod), "d@"),
    ];
    for (directory, pod, start) in names {
        std::fs::create_dir_all(directory).unwrap();
        let path = dra_socket(directory, pod).unwrap();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with(start), "{}", path.display());
        let _server = serve(&path, registration());
        let answer = call_get_info(UnixStream::connect(&path).await.unwrap(), &path).await;
        assert!(matches!(answer, Answer::Info(_)), "{}: {answer:?}", path.display());
    }
}

/// Documents why the names have an `@`: with the Go framework's socket name the same call is refused before any handler
/// runs. When this test fails, Rust's HTTP stack accepts such an authority and the `@` is no longer needed.
#[tokio::test]
async fn without_the_at_sign_the_same_call_is_a_protocol_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gpu.example.com-reg.sock");
    let _server = serve(&path, registration());
    let answer = call_get_info(UnixStream::connect(&path).await.unwrap(), &path).await;
    assert_eq!(answer, Answer::Reset { error_code: 1 });
}
