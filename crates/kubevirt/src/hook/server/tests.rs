//! Each version's services, called over a unix socket as virt-launcher calls them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::Instant;

use tempfile::TempDir;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::super::api::hooks_info::InfoParams;
use super::super::api::hooks_info::info_client::InfoClient;
use super::super::api::plugins_v1alpha1::domain_hook_service_client::DomainHookServiceClient;
use super::super::api::plugins_v1alpha1::{MutateDomainRequest, SidecarContext};
use super::super::api::{hooks_v1alpha1 as v1alpha1, hooks_v1alpha2 as v1alpha2, hooks_v1alpha3 as v1alpha3};
use super::super::service::MutationError;
use super::*;

/// The limit for anything that a test waits for.
const LIMIT: Duration = Duration::from_secs(60);

/// Puts the VMI's bytes around the domain's. `panic`, `refuse` and `block` as domain do what they say.
struct Double {
    blocked: CancellationToken,
    unblock: std::sync::Mutex<mpsc::Receiver<()>>,
}

impl Double {
    fn new() -> (Self, CancellationToken, mpsc::Sender<()>) {
        let blocked = CancellationToken::new();
        let (sender, receiver) = mpsc::channel();
        (Self { blocked: blocked.clone(), unblock: receiver.into() }, blocked, sender)
    }
}

impl DomainMutator for Double {
    fn mutate(&self, vmi: &[u8], domain: &[u8]) -> Result<Vec<u8>, MutationError> {
        match domain {
            b"panic" => panic!("the test asked for it"),
            b"refuse" => Err(MutationError::unmet("request train/gpus: no metadata file")),
            b"block" => {
                self.blocked.cancel();
                self.unblock.lock().unwrap().recv().unwrap();
                Ok(b"unblocked".to_vec())
            }
            _ => Ok([vmi, b"(", domain, b")"].concat()),
        }
    }
}

struct Running {
    directory: TempDir,
    stop: CancellationToken,
    blocked: CancellationToken,
    unblock: mpsc::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), ServeError>>,
}

impl Running {
    fn start() -> Self {
        Self::start_in(TempDir::new().unwrap())
    }

    fn start_in(directory: TempDir) -> Self {
        let (double, blocked, unblock) = Double::new();
        let sockets = ["sidecar.sock", "plugin.sock"].map(|name| directory.path().join(name));
        let server = HookServer::listen(&sockets, Arc::new(double)).unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.serve(stop.clone()));
        Self { directory, stop, blocked, unblock, task }
    }

    async fn channel(&self, socket: &str) -> Channel {
        connect(&self.directory.path().join(socket)).await
    }

    async fn ended(self) -> TempDir {
        tokio::time::timeout(LIMIT, self.task).await.expect("the hook ends").unwrap().unwrap();
        self.directory
    }
}

async fn connect(path: &Path) -> Channel {
    let stream = UnixStream::connect(path).await.unwrap();
    let mut once = Some(hyper_util::rt::TokioIo::new(stream));
    let connector = tower::service_fn(move |_: http::Uri| {
        std::future::ready(once.take().ok_or_else(|| io::Error::other("the connection was lost")))
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap()
}

#[tokio::test]
async fn info_names_the_versions_newest_first_and_the_callbacks() {
    let hook = Running::start();
    let info = InfoClient::new(hook.channel("sidecar.sock").await).info(InfoParams {}).await.unwrap().into_inner();
    assert_eq!(info.name, "drakkar");
    assert_eq!(info.versions, ["v1alpha3", "v1alpha2", "v1alpha1"]);
    let points: Vec<&str> = info.hook_points.iter().map(|point| point.name.as_str()).collect();
    assert_eq!(points, ["OnDefineDomain", "Shutdown"]);
}

#[tokio::test]
async fn every_version_changes_the_domain_and_leaves_cloud_init_alone() {
    let hook = Running::start();
    macro_rules! on_define_domain {
        ($version:ident) => {{
            let mut client = $version::callbacks_client::CallbacksClient::new(hook.channel("sidecar.sock").await);
            let params = $version::OnDefineDomainParams { domain_xml: b"<domain/>".into(), vmi: b"vmi".into() };
            let result = client.on_define_domain(params).await.unwrap().into_inner();
            assert_eq!(result.domain_xml, b"vmi(<domain/>)", stringify!($version));
            client
        }};
    }
    macro_rules! pre_cloud_init_iso {
        ($version:ident, $client:expr) => {{
            let params = $version::PreCloudInitIsoParams {
                cloud_init_no_cloud_source: b"source".into(),
                vmi: b"vmi".into(),
                cloud_init_data: b"data".into(),
            };
            let result = $client.pre_cloud_init_iso(params).await.unwrap().into_inner();
            assert_eq!((&*result.cloud_init_no_cloud_source, &*result.cloud_init_data), (&b"source"[..], &b"data"[..]));
        }};
    }
    on_define_domain!(v1alpha1);
    let mut second = on_define_domain!(v1alpha2);
    pre_cloud_init_iso!(v1alpha2, second);
    let mut third = on_define_domain!(v1alpha3);
    pre_cloud_init_iso!(v1alpha3, third);
}

#[tokio::test]
async fn a_plugin_changes_libvirt_domains_and_refuses_others() {
    let hook = Running::start();
    let mut client = DomainHookServiceClient::new(hook.channel("plugin.sock").await);
    let request = |domain_type: &str| MutateDomainRequest {
        domain_type: domain_type.into(),
        domain: b"<domain/>".into(),
        vmi: b"vmi".into(),
        sidecar_context: Some(SidecarContext { invocation_context: "Boot".into() }),
    };
    assert_eq!(client.mutate_domain(request("libvirt")).await.unwrap().into_inner().domain, b"vmi(<domain/>)");
    let refused = client.mutate_domain(request("xen")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("\"xen\""), "{refused}");
}

#[tokio::test]
async fn a_refusal_tells_why_and_a_panic_ends_only_its_call() {
    let hook = Running::start();
    let mut client = v1alpha3::callbacks_client::CallbacksClient::new(hook.channel("sidecar.sock").await);
    let params = |domain: &[u8]| v1alpha3::OnDefineDomainParams { domain_xml: domain.into(), vmi: vec![] };
    let refused = client.on_define_domain(params(b"refuse")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "drakkar hook: request train/gpus: no metadata file");
    assert_eq!(client.on_define_domain(params(b"panic")).await.unwrap_err().code(), Code::Internal);
    assert_eq!(client.on_define_domain(params(b"x")).await.unwrap().into_inner().domain_xml, b"(x)");
}

#[tokio::test]
async fn shutdown_is_answered_and_then_the_hook_ends_and_removes_its_sockets() {
    let hook = Running::start();
    let mut client = v1alpha3::callbacks_client::CallbacksClient::new(hook.channel("sidecar.sock").await);
    client.shutdown(v1alpha3::ShutdownParams {}).await.unwrap();
    let directory = hook.ended().await;
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn info_does_not_wait_for_a_slow_domain_and_a_stop_lets_it_finish() {
    let hook = Running::start();
    let mut slow = v1alpha3::callbacks_client::CallbacksClient::new(hook.channel("sidecar.sock").await);
    let call = tokio::spawn(async move {
        slow.on_define_domain(v1alpha3::OnDefineDomainParams { domain_xml: b"block".into(), vmi: vec![] }).await
    });
    tokio::time::timeout(LIMIT, hook.blocked.cancelled()).await.expect("the call arrives");
    InfoClient::new(hook.channel("sidecar.sock").await).info(InfoParams {}).await.unwrap();
    assert!(!call.is_finished());
    hook.stop.cancel();
    hook.unblock.send(()).unwrap();
    assert_eq!(call.await.unwrap().unwrap().into_inner().domain_xml, b"unblocked");
    hook.ended().await;
}

#[tokio::test]
async fn the_launcher_finds_nothing_but_sockets_that_any_user_can_connect_to() {
    let hook = Running::start();
    let mut files: Vec<_> = fs::read_dir(hook.directory.path()).unwrap().map(|entry| entry.unwrap()).collect();
    files.sort_by_key(fs::DirEntry::file_name);
    assert_eq!(files.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(), ["plugin.sock", "sidecar.sock"]);
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    }
}

#[tokio::test]
async fn a_socket_that_a_killed_hook_left_is_replaced_and_a_live_one_is_not() {
    let directory = TempDir::new().unwrap();
    // Closing a listener leaves its file, as a kill does.
    drop(std::os::unix::net::UnixListener::bind(directory.path().join("sidecar.sock")).unwrap());
    let hook = Running::start_in(directory);
    InfoClient::new(hook.channel("sidecar.sock").await).info(InfoParams {}).await.unwrap();

    let socket = hook.directory.path().join("sidecar.sock");
    let refused = HookServer::listen(&[socket], Arc::new(Double::new().0)).unwrap_err();
    assert!(refused.to_string().contains("another process listens here"), "{refused}");
    InfoClient::new(hook.channel("sidecar.sock").await).info(InfoParams {}).await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_no_socket_and_a_missing_directory_are_refused_by_name() {
    let directory = TempDir::new().unwrap();
    let listen = |path: PathBuf| HookServer::listen(&[path], Arc::new(Double::new().0)).unwrap_err().to_string();
    fs::write(directory.path().join("file.sock"), "precious").unwrap();
    let refused = listen(directory.path().join("file.sock"));
    assert!(refused.contains("file.sock: exists and is not a socket"), "{refused}");
    assert_eq!(fs::read(directory.path().join("file.sock")).unwrap(), b"precious");
    let refused = listen(directory.path().join("missing/hook.sock"));
    assert!(refused.contains("the directory does not exist"), "{refused}");
}

#[tokio::test]
async fn a_replaced_socket_file_is_left_alone_when_the_hook_ends() {
    let hook = Running::start();
    let socket = hook.directory.path().join("sidecar.sock");
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "of another").unwrap();
    hook.stop.cancel();
    let directory = hook.ended().await;
    assert_eq!(fs::read(directory.path().join("sidecar.sock")).unwrap(), b"of another");
}

#[tokio::test]
async fn info_is_answered_far_within_its_second() {
    let hook = Running::start();
    let start = Instant::now();
    InfoClient::new(hook.channel("sidecar.sock").await).info(InfoParams {}).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn the_default_socket_has_the_name_of_the_container() {
    assert_eq!(
        sidecar_socket(Some("hook-sidecar-1")),
        Path::new("/var/run/kubevirt-hooks/drakkar-hook-sidecar-1.sock")
    );
    assert_eq!(sidecar_socket(None), Path::new("/var/run/kubevirt-hooks/drakkar.sock"));
    assert_eq!(sidecar_socket(Some("../x")), Path::new("/var/run/kubevirt-hooks/drakkar.sock"));
}
