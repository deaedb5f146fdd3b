//! The start of a session with a plugin: registration, configuration and synchronization. Plugins connect one after the
//! other: one that does not register blocks the next until its timeout, as in containerd.

use std::sync::{Arc, Mutex, PoisonError};

use drakkar_nri_api::v1alpha1::{
    ConfigureRequest, ConfigureResponse, Container, ContainerState, Empty, PodSandbox, RegisterPluginRequest,
    SynchronizeRequest, SynchronizeResponse, UpdateContainersRequest, UpdateContainersResponse,
};
use prost::Message as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, Incoming, UNIMPLEMENTED, UNKNOWN};
use super::faults::Call;
use super::plugin::{Plugin, Subject};
use super::service::{Announced, FanOut, Service};
use super::version::Version;

/// Accepts plugins until the token is cancelled.
pub(super) async fn accept(service: Arc<Service>, listener: UnixListener, token: CancellationToken) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::error!(%error, "nri: accepting connections failed");
                return;
            }
        };
        if let Err(reason) = connect(&service, stream, &token).await {
            tracing::warn!(reason, "nri: plugin was not started");
        }
    }
}

async fn connect(service: &Arc<Service>, stream: UnixStream, token: &CancellationToken) -> Result<(), String> {
    let (connection, reader, requests) = Connection::new(stream).map_err(|error| error.to_string())?;
    let config = &service.config;
    let plugin = Arc::new(Plugin::new(
        connection,
        config.request_timeout,
        service.log.clone(),
        service.faults.clone(),
        !config.version.has_own_calls(),
    ));
    service.add_connection(plugin.clone());
    let (sender, registered) = oneshot::channel();
    let server = serve(service.clone(), plugin.clone(), requests, sender);
    service.tasks.spawn({
        let (service, plugin) = (service.clone(), plugin.clone());
        // Both end when the connection is closed, which the end of the runtime does.
        async move {
            tokio::join!(reader, server);
            plugin.log_end(plugin.connection.closed().await);
            service.remove_connection(&plugin);
        }
    });
    let started = start(service, &plugin, registered).await;
    if let Err(reason) = &started {
        plugin.close(reason);
    }
    if token.is_cancelled() {
        plugin.close("the runtime was stopped");
    }
    started
}

/// Waits for the registration, then configures and synchronizes the plugin.
async fn start(
    service: &Service,
    plugin: &Arc<Plugin>,
    registered: oneshot::Receiver<Result<(), String>>,
) -> Result<(), String> {
    let registration = async {
        tokio::select! {
            registered = registered => registered.unwrap_or_else(|_closed| Err("the plugin hung up".to_owned())),
            reason = plugin.connection.closed() => Err(reason),
        }
    };
    match tokio::time::timeout(service.config.registration_timeout, registration).await {
        Ok(registered) => registered?,
        Err(_elapsed) => return Err("the plugin did not register in time".to_owned()),
    }
    configure(service, plugin).await?;
    let version = service.config.version;
    let _quiet = if version.is_at_least_0_7() { Some(service.operations.write().await) } else { None };
    let mut fan_out = service.fan_out.lock().await;
    let synchronized = synchronize(service, plugin, &mut fan_out).await;
    if let Err(error) = synchronized {
        if version.is_at_least_0_7() {
            return Err(error);
        }
        // Older runtimes leave the connection open; the plugin never gets an event.
        tracing::warn!(plugin = plugin.name(), error, "nri: plugin did not synchronize, it gets no events");
        return Ok(());
    }
    if plugin.connection.is_closed() {
        return Err(plugin.connection.closed().await);
    }
    fan_out.plugins.push(plugin.clone());
    fan_out.plugins.sort_by(|a, b| a.name().get(..2).cmp(&b.name().get(..2)));
    plugin.activate();
    tracing::info!(plugin = plugin.name(), "nri: plugin connected and synchronized");
    Ok(())
}

async fn configure(service: &Service, plugin: &Plugin) -> Result<(), String> {
    let config = &service.config;
    let version = config.version;
    let (runtime_name, runtime_version) = version.runtime();
    let millis = |duration: std::time::Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let timeout = |duration| if version.is_at_least_0_7() { millis(duration) } else { 0 };
    let request = ConfigureRequest {
        config: String::new(),
        runtime_name: runtime_name.to_owned(),
        runtime_version: runtime_version.to_owned(),
        registration_timeout: timeout(config.registration_timeout),
        request_timeout: timeout(config.request_timeout),
        nri_version: version.nri().to_owned(),
    };
    let answer = plugin.call(Call::Configure, &request, Subject::default(), plugin.deadline()).await;
    let ConfigureResponse { events } = answer.map_err(|error| format!("Configure: {error}"))?.unwrap_or_default();
    let valid = version.valid_events();
    if events & !valid != 0 {
        return Err(format!("the plugin subscribed to events that do not exist: 0x{:x}", events & !valid));
    }
    plugin.subscribe(if events == 0 { valid } else { events });
    Ok(())
}

async fn synchronize(service: &Service, plugin: &Plugin, fan_out: &mut FanOut) -> Result<(), String> {
    let version = service.config.version;
    let pods: Vec<PodSandbox> = service.inventory.pods().into_iter().map(|pod| visible(version, pod)).collect();
    let containers = service.inventory.containers();
    for container in &containers {
        let announced = match container.state() {
            ContainerState::ContainerCreated => Announced::Created,
            ContainerState::ContainerStopped => Announced::Stopped,
            _ => Announced::Running,
        };
        fan_out.announced.insert(container.id.clone(), announced);
    }
    let limit = if version.is_at_least_0_7() { service.config.max_synchronize } else { usize::MAX };
    // For all parts together.
    let deadline = plugin.deadline();
    for request in parts(&pods, &containers, limit) {
        let answer = plugin.call(Call::Synchronize, &request, Subject::default(), deadline).await;
        let answer: SynchronizeResponse = answer.map_err(|error| format!("Synchronize: {error}"))?.unwrap_or_default();
        if request.more && (!answer.more || !answer.update.is_empty()) {
            return Err("the plugin does not handle Synchronize in parts".to_owned());
        }
        let updates = UpdateContainersRequest { update: answer.update, evict: Vec::new() };
        service.record_updates(plugin, Some(Call::Synchronize), updates);
    }
    Ok(())
}

/// Removes what a runtime with this NRI does not tell about a pod.
pub(super) fn visible(version: Version, mut pod: PodSandbox) -> PodSandbox {
    if !version.has_all_of_pods() {
        pod.ips.clear();
    }
    pod
}

/// Distributes pods and containers to as few messages as their limit allows, at least one of each to each message.
fn parts(pods: &[PodSandbox], containers: &[Container], limit: usize) -> Vec<SynchronizeRequest> {
    let longest = pods.len().max(containers.len()).max(1);
    let split = |count: usize| -> Vec<SynchronizeRequest> {
        let part = |at: usize| SynchronizeRequest {
            pods: share(pods, at, count).to_vec(),
            containers: share(containers, at, count).to_vec(),
            more: at + 1 < count,
        };
        (0..count).map(part).collect()
    };
    let fits = |parts: &Vec<SynchronizeRequest>| parts.iter().all(|part| part.encoded_len() <= limit);
    (1..longest).map(split).find(fits).unwrap_or_else(|| split(longest))
}

/// Returns the share of a part.
fn share<T>(all: &[T], at: usize, count: usize) -> &[T] {
    let bound = |at: usize| all.len() * at / count;
    all.get(bound(at)..bound(at + 1)).unwrap_or_default()
}

/// Answers the requests of a plugin until its connection is closed.
async fn serve(
    service: Arc<Service>,
    plugin: Arc<Plugin>,
    mut requests: mpsc::UnboundedReceiver<Incoming>,
    registered: oneshot::Sender<Result<(), String>>,
) {
    let registered = Mutex::new(Some(registered));
    while let Some(Incoming { call, request }) = requests.recv().await {
        match request.method.as_str() {
            "RegisterPlugin" => {
                let outcome = RegisterPluginRequest::decode(request.payload)
                    .map_err(|error| error.to_string())
                    .and_then(|request| register(&plugin, &request));
                let answer = outcome.clone().map(|()| Empty {}.encode_to_vec()).map_err(|message| (UNKNOWN, message));
                if let Some(waiting) = registered.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    // If it has timed out, nobody waits.
                    let _ = waiting.send(outcome);
                }
                plugin.connection.answer(call, answer).await;
            }
            "UpdateContainers" => {
                let (owner, plugin) = (service.clone(), plugin.clone());
                // In a task of its own: it waits for the event that is being processed, whose answer must be read meanwhile.
                service.tasks.spawn(async move { update_containers(&owner, &plugin, call, &request.payload).await });
            }
            other => plugin.connection.answer(call, Err((UNIMPLEMENTED, format!("method {other}")))).await,
        }
    }
}

fn register(plugin: &Plugin, request: &RegisterPluginRequest) -> Result<(), String> {
    let RegisterPluginRequest { plugin_name: name, plugin_idx: index, .. } = request;
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
    if name.is_empty() || !name.bytes().all(valid) {
        return Err(format!("invalid plugin name: {name:?}"));
    }
    if index.len() != 2 || !index.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("invalid plugin index: {index:?}"));
    }
    if plugin.register(index, name) { Ok(()) } else { Err("the plugin has registered before".to_owned()) }
}

async fn update_containers(service: &Service, plugin: &Plugin, call: u32, payload: &[u8]) {
    let answer = match UpdateContainersRequest::decode(payload) {
        Ok(request) => {
            // As containerd: not while an event is processed, the plugin's own included.
            let _fan_out = tokio::select! {
                fan_out = service.fan_out.lock() => fan_out,
                _ = plugin.connection.closed() => return,
            };
            let failed = service.record_updates(plugin, None, request);
            Ok(UpdateContainersResponse { failed }.encode_to_vec())
        }
        Err(error) => Err((UNKNOWN, error.to_string())),
    };
    plugin.connection.answer(call, answer).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_synchronization_have_everything_once_and_respect_the_limit() {
        let pod = |at| PodSandbox { id: format!("pod-{at:02}"), ..PodSandbox::default() };
        let container = |at| Container { id: format!("container-{at:02}"), ..Container::default() };
        let pods: Vec<PodSandbox> = (0..10).map(pod).collect();
        let containers: Vec<Container> = (0..25).map(container).collect();
        for limit in [0, 1, 40, 100, 1000] {
            let parts = parts(&pods, &containers, limit);
            assert_eq!(parts.iter().flat_map(|part| part.pods.clone()).collect::<Vec<_>>(), pods);
            assert_eq!(parts.iter().flat_map(|part| part.containers.clone()).collect::<Vec<_>>(), containers);
            let more: Vec<bool> = parts.iter().map(|part| part.more).collect();
            assert_eq!(more.iter().filter(|more| !**more).count(), 1);
            assert_eq!(more.last(), Some(&false));
            let longest = parts.iter().map(SynchronizeRequest::encoded_len).max().unwrap();
            assert!(longest <= limit || parts.len() == 25, "{longest} of {limit}");
        }
        assert_eq!(parts(&pods, &containers, usize::MAX).len(), 1);
        assert_eq!(parts(&[], &[], 0), [SynchronizeRequest::default()]);
    }
}
