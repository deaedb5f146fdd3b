//! A plugin that records its calls, and does what a test asks of it.

use std::sync::{Arc, Mutex};

use drakkar_nri::{
    Abandoned, Adjustments, BoxError, Call, Configuration, Container, ContainerUpdate, Events, Handle, LinuxResources,
    NriPlugin, Plugin, PodSandbox, State, Updates, ValidateContainerAdjustmentRequest, Verdict,
};
use tokio::sync::{Notify, mpsc};

use crate::runtime::{Runtime, patiently};

/// What a handler does.
#[derive(Debug, Clone, Default)]
pub enum Behaviour {
    #[default]
    Succeed,
    Fail,
    Panic,
    /// Waits until the gate opens.
    Wait,
    /// Waits until the call is abandoned.
    RollBack,
    /// Blocks its thread until the gate opens.
    Block(Arc<std::sync::Barrier>),
    /// Tries to update containers in the handler.
    Update,
}

/// A plugin that records its calls.
pub struct Recorder {
    pub behaviour: Mutex<Behaviour>,
    pub synchronizing: Mutex<Behaviour>,
    pub adjustments: Mutex<Adjustments>,
    pub gate: Notify,
    log: mpsc::UnboundedSender<String>,
}

pub type Log = mpsc::UnboundedReceiver<String>;

impl Recorder {
    pub fn new() -> (Arc<Self>, Log) {
        let (log, receiver) = mpsc::unbounded_channel();
        let recorder = Self {
            behaviour: Mutex::default(),
            synchronizing: Mutex::default(),
            adjustments: Mutex::default(),
            gate: Notify::new(),
            log,
        };
        (Arc::new(recorder), receiver)
    }

    pub fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    fn record(&self, text: impl Into<String>) {
        let _ = self.log.send(text.into());
    }

    async fn act(&self, call: &Call, behaviour: Behaviour) -> Result<(), BoxError> {
        match behaviour {
            Behaviour::Succeed => {}
            Behaviour::Fail => return Err("no interface".into()),
            Behaviour::Panic => panic!("a bug"),
            Behaviour::Wait => {
                self.gate.notified().await;
                self.record(format!("finished, abandoned: {:?}", call.abandonment()));
            }
            Behaviour::RollBack => {
                let reason: Abandoned = call.abandoned().await;
                self.record(format!("rolled back: {reason:?}"));
            }
            Behaviour::Block(barrier) => {
                barrier.wait();
            }
            Behaviour::Update => {
                let error = call.updater().update_containers(Updates::default()).await.unwrap_err();
                self.record(error.to_string());
            }
        }
        Ok(())
    }

    async fn event(&self, call: &Call, text: String) -> Result<(), BoxError> {
        self.record(text);
        let behaviour = self.behaviour.lock().unwrap().clone();
        self.act(call, behaviour).await
    }

    async fn of_container(
        &self,
        call: &Call,
        name: &str,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<(), BoxError> {
        self.event(call, format!("{name} {} {}", pod.name, container.name)).await
    }
}

impl NriPlugin for Recorder {
    async fn configure(&self, _: &Call, configuration: &Configuration) -> Result<Events, BoxError> {
        let Configuration { runtime, text, events, .. } = configuration;
        self.record(format!("configure {} {} {text:?} {:#06x}", runtime.name, runtime.version, events.mask()));
        Ok(*events)
    }

    async fn synchronize(
        &self,
        call: &Call,
        pods: &[PodSandbox],
        containers: &[Container],
    ) -> Result<Vec<ContainerUpdate>, BoxError> {
        self.record(format!("synchronize {} {}", pods.len(), containers.len()));
        let behaviour = self.synchronizing.lock().unwrap().clone();
        self.act(call, behaviour).await?;
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(&self, call: &Call, pod: &PodSandbox) -> Result<(), BoxError> {
        self.event(call, format!("run {}", pod.name)).await
    }

    async fn stop_pod_sandbox(&self, call: &Call, pod: &PodSandbox) {
        let _ = self.event(call, format!("stop {}", pod.name)).await;
    }

    async fn remove_pod_sandbox(&self, call: &Call, pod: &PodSandbox) {
        let _ = self.event(call, format!("remove {}", pod.name)).await;
    }

    async fn update_pod_sandbox(
        &self,
        call: &Call,
        pod: &PodSandbox,
        _: &LinuxResources,
        resources: &LinuxResources,
    ) -> Result<(), BoxError> {
        self.event(call, format!("update {} {:?}", pod.name, resources.pids)).await
    }

    async fn post_update_pod_sandbox(&self, call: &Call, pod: &PodSandbox) -> Result<(), BoxError> {
        self.event(call, format!("post-update {}", pod.name)).await
    }

    async fn create_container(
        &self,
        call: &Call,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<Adjustments, BoxError> {
        self.of_container(call, "create", pod, container).await?;
        Ok(self.adjustments.lock().unwrap().clone())
    }

    async fn post_create_container(&self, call: &Call, pod: &PodSandbox, c: &Container) -> Result<(), BoxError> {
        self.of_container(call, "post-create", pod, c).await
    }

    async fn start_container(&self, call: &Call, pod: &PodSandbox, c: &Container) -> Result<(), BoxError> {
        self.of_container(call, "start", pod, c).await
    }

    async fn post_start_container(&self, call: &Call, pod: &PodSandbox, c: &Container) -> Result<(), BoxError> {
        self.of_container(call, "post-start", pod, c).await
    }

    async fn update_container(
        &self,
        call: &Call,
        pod: &PodSandbox,
        c: &Container,
        _: &LinuxResources,
    ) -> Result<Updates, BoxError> {
        self.of_container(call, "update", pod, c).await?;
        Ok(self.adjustments.lock().unwrap().others.clone())
    }

    async fn post_update_container(&self, call: &Call, pod: &PodSandbox, c: &Container) -> Result<(), BoxError> {
        self.of_container(call, "post-update", pod, c).await
    }

    async fn stop_container(
        &self,
        call: &Call,
        pod: &PodSandbox,
        c: &Container,
    ) -> Result<Vec<ContainerUpdate>, BoxError> {
        self.of_container(call, "stop", pod, c).await?;
        Ok(self.adjustments.lock().unwrap().others.updates.clone())
    }

    async fn remove_container(&self, call: &Call, pod: &PodSandbox, c: &Container) {
        let _ = self.of_container(call, "remove", pod, c).await;
    }

    async fn validate_container_adjustment(
        &self,
        call: &Call,
        request: &ValidateContainerAdjustmentRequest,
    ) -> Result<Verdict, BoxError> {
        self.event(call, format!("validate {} plugins", request.plugins.len())).await?;
        Ok(Verdict::Reject("not today".to_owned()))
    }
}

/// Starts a plugin that is subscribed to all events.
pub fn start(runtime: &Runtime) -> (Handle, Arc<Recorder>, Log) {
    start_with(runtime, Events::ALL)
}

pub fn start_with(runtime: &Runtime, events: impl Into<Events>) -> (Handle, Arc<Recorder>, Log) {
    let (recorder, log) = Recorder::new();
    let handle = Plugin::new("demo", 10).events(events).socket(runtime.path()).start(recorder.clone()).unwrap();
    (handle, recorder, log)
}

/// Waits for the next line of the log that starts with a text.
pub async fn logged(log: &mut Log, start: &str) -> String {
    loop {
        let line = patiently(log.recv()).await.unwrap();
        if line.starts_with(start) {
            return line;
        }
    }
}

pub async fn wait_for(handle: &Handle, condition: impl FnMut(&State) -> bool) -> State {
    patiently(handle.state().wait_for(condition)).await.unwrap().clone()
}
