//! The registration service over a socket, called by a client and by raw frames as a kubelet sends them.

mod kubelet_frames;

use std::path::Path;

use drakkar_metadata::name::DriverName;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};

use super::*;
use crate::server::{Server, Watch};
use crate::socket::{PodUid, dra_socket, listen, registration_socket};
use drakkar_kubelet_api::registration::registration_client::RegistrationClient;
use drakkar_kubelet_api::registration::registration_server::RegistrationServer;
use kubelet_frames::{Answer, call_get_info};

const ALL: Services = Services { v1: true, v1beta1: true, health_v1: true, health_v1alpha1: true };
const DRA_SOCKET: &str = "/var/lib/kubelet/plugins/gpu.example.com/dra@kubelet.sock";

fn driver() -> DriverName {
    DriverName::new("gpu.example.com").unwrap()
}

fn registration() -> Registration {
    Registration::new(&driver(), Path::new(DRA_SOCKET), &SupportedServices::new(ALL).unwrap())
}

fn serve(path: &Path, registration: Registration) -> Server {
    let (listener, file) = listen(path, &driver()).unwrap();
    Server::start(listener, file, Routes::new(RegistrationServer::new(registration)), Watch::default()).unwrap()
}

async fn client(path: &Path) -> RegistrationClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    RegistrationClient::new(endpoint.connect().await.unwrap())
}

fn notification(plugin_registered: bool, error: &str) -> proto::RegistrationStatus {
    proto::RegistrationStatus { plugin_registered, error: error.to_owned() }
}

#[test]
fn services_are_listed_in_the_order_in_which_a_kubelet_shall_prefer_them() {
    let names = |v1, v1beta1, health_v1, health_v1alpha1| {
        SupportedServices::new(Services { v1, v1beta1, health_v1, health_v1alpha1 }).map(|services| services.0)
    };
    let (v1, v1beta1) = ("v1.DRAPlugin", "v1beta1.DRAPlugin");
    let (health_v1, health_v1alpha1) = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth");
    assert_eq!(names(true, true, true, true), Ok(vec![v1, v1beta1, health_v1, health_v1alpha1]));
    assert_eq!(names(true, true, false, false), Ok(vec![v1, v1beta1]));
    assert_eq!(names(false, true, false, true), Ok(vec![v1beta1, health_v1alpha1]));
    assert_eq!(names(true, false, true, false), Ok(vec![v1, health_v1]));
    // A.6: both versions off is an error.
    assert_eq!(names(false, false, true, true), Err(NoDraService));
}

/// G1: the status is shared without a race, and each change can be waited for.
#[tokio::test]
async fn the_kubelet_learns_who_the_driver_is_and_the_driver_what_became_of_it() {
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
    assert!(server.stop(Instant::now() + kubelet_frames::PATIENCE).await.is_empty());
}

/// G10: faults belong to the service, so there is none without it.
#[tokio::test]
async fn calls_fail_as_told_and_heal() {
    let directory = tempfile::tempdir().unwrap();
    let path = registration_socket(directory.path(), &driver(), None).unwrap();
    let registration = registration();
    let (status, faults) = (registration.registration_status(), registration.faults());
    let _server = serve(&path, registration);
    let mut kubelet = client(&path).await;

    faults.fail_get_info(Some("not now"));
    faults.fail_notify(Some("not this either"));
    let error = kubelet.get_info(proto::InfoRequest {}).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "not now"));
    let error = kubelet.notify_registration_status(notification(true, "")).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "not this either"));
    assert_eq!(*status.borrow(), RegistrationStatus::Waiting);

    faults.fail_get_info(None);
    faults.fail_notify(None);
    kubelet.get_info(proto::InfoRequest {}).await.unwrap();
    kubelet.notify_registration_status(notification(true, "")).await.unwrap();
    assert_eq!(*status.borrow(), RegistrationStatus::Registered);
}

/// D14: the kubelet's `:authority` is the percent-encoded path of the socket. With each of our names the call arrives.
#[tokio::test]
async fn a_kubelet_that_sends_the_path_as_authority_gets_an_answer() {
    let directory = tempfile::Builder::new().prefix("plugins registry:").tempdir().unwrap();
    let pod = PodUid::new("ad4af911-5bcd-47c5-a554-f35cea869472").unwrap();
    // A directory of 71 bytes has room for the last of the names alone.
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

/// Older kubelets (1.33.13 for one) do the same to the DRA socket. What is served there does not matter: the authority is refused, or
/// not, before that is looked at.
#[tokio::test]
async fn a_kubelet_that_sends_the_path_of_the_dra_socket_as_authority_gets_an_answer() {
    let directory = tempfile::Builder::new().prefix("plugins:").tempdir().unwrap();
    let pod = PodUid::new("Ad4af911_5bcd.47c5-a554-f35cea869472").unwrap();
    let length = |bytes: usize| directory.path().join("x".repeat(bytes - 1 - directory.path().as_os_str().len()));
    let (hashed, short) = (length(80), length(88));
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

/// Why the names have an `@`: the same call to the Go framework's name is refused before any handler runs. When this
/// fails, Rust's HTTP stack has learned to accept it.
#[tokio::test]
async fn without_the_at_sign_the_same_call_is_a_protocol_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gpu.example.com-reg.sock");
    let _server = serve(&path, registration());
    let answer = call_get_info(UnixStream::connect(&path).await.unwrap(), &path).await;
    assert_eq!(answer, Answer::Reset { error_code: 1 });
}
