//! `drakkar kubevirt webhook` and `drakkar kubevirt hook`: the services, which run until a signal stops them.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drakkar_kubevirt::Gate;
use drakkar_kubevirt::hook::{Hook, HookServer, sidecar_socket};
use drakkar_kubevirt::placement::HostTopology;
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::webhook::{Options, Policy, Webhook, follow_files};
use drakkar_plugin::logging::LogFlags;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cluster::ClusterConfig;
use crate::args::kubevirt::{ClusterOptions, HookOptions, WebhookOptions};
use crate::commands::input::Input;
use crate::exit::{Code, Failure};

/// The time at the end for file work that hangs, such as on a network file system.
const FILE_WORK_GRACE: Duration = Duration::from_secs(1);

/// Serves the admission webhook until SIGTERM or SIGINT.
pub(crate) fn webhook(input: &Input, options: &WebhookOptions) -> Result<(), Failure> {
    let policy = policy(input, &options.cluster)?;
    let listen = Options::new(options.listen, &options.tls_cert, &options.tls_key);
    let cluster = options.cluster.clone();
    until_stopped(async |stop| {
        if policy.gates.is_some() {
            tracing::info!(gates = names(&policy), "feature gates known");
        } else {
            tracing::warn!("feature gates unknown, rules about them give warnings: set --kubevirt or --feature-gate");
        }
        let webhook = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            webhook = Webhook::bind(listen, policy) => webhook?,
        };
        let follow = follow_kubevirt(cluster, webhook.policy(), stop.clone());
        let follow = async {
            follow.await;
            // Open requests are finished after the stop.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            served = webhook.serve(stop) => Ok(served?),
            () = follow => Ok(()),
        }
    })
}

/// What the webhook decides by, as the options and the KubeVirt object say.
fn policy(input: &Input, options: &ClusterOptions) -> Result<Policy, Failure> {
    let cluster = ClusterConfig::read(input, options)?;
    let is_configured =
        options.gates.kubevirt.is_some() || !options.gates.enabled.is_empty() || !options.gates.disabled.is_empty();
    Ok(Policy { gates: is_configured.then_some(cluster.gates), behaviour: cluster.behaviour })
}

/// The names of the gates that are on.
fn names(policy: &Policy) -> String {
    let is_on = |gate: &Gate| policy.gates.is_some_and(|gates| gates.is_enabled(*gate));
    Gate::ALL.into_iter().filter(is_on).map(Gate::name).collect::<Vec<_>>().join(",")
}

/// Changes the policy when the file with the KubeVirt object changes. A file that cannot be used changes nothing.
async fn follow_kubevirt(options: ClusterOptions, current: watch::Sender<Policy>, stop: CancellationToken) {
    let Some(file) = options.gates.kubevirt.clone().filter(|file| file != Path::new("-")) else { return };
    let reread = move || match Input::below(Path::new("/")).and_then(|input| policy(&input, &options)) {
        Ok(policy) => {
            let is_new = current.send_if_modified(|current| std::mem::replace(current, policy) != policy);
            if is_new {
                tracing::info!(gates = names(&policy), "KubeVirt object replaced");
            }
        }
        Err(failure) => {
            tracing::warn!(error = failure.to_string(), "KubeVirt object not replaced, the current one stays");
        }
    };
    follow_files(&[file], reread, stop).await;
}

/// Serves the hook until virt-launcher says that the virtual machine has ended, or until SIGTERM or SIGINT.
pub(crate) fn hook(resolver: Resolver, options: &HookOptions) -> Result<(), Failure> {
    let sockets = if options.socket.is_empty() {
        vec![sidecar_socket(std::env::var("CONTAINER_NAME").ok().as_deref())]
    } else {
        options.socket.clone()
    };
    let mut hook = drakkar_kubevirt::hook::HookOptions::default();
    if let Some(sysfs) = &options.sysfs {
        hook.host = HostTopology::new(sysfs);
    }
    let mutator = Arc::new(Hook::new(resolver, hook));
    until_stopped(async |stop| Ok(HookServer::listen(&sockets, mutator)?.serve(stop).await?))
}

/// An error of a service.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Runs a service; a signal cancels its token.
fn until_stopped<F>(serve: impl FnOnce(CancellationToken) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), BoxError>>,
{
    LogFlags::default().init();
    // One thread is enough: the work is a fraction of a millisecond, and file work has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let signalled = stop.clone();
        let signals = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            signalled.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            served = serve(stop) => served.map_err(|error| Failure::new(Code::System, error.to_string())),
            () = signals => Ok(()),
        }
    });
    runtime.shutdown_timeout(FILE_WORK_GRACE);
    served
}
