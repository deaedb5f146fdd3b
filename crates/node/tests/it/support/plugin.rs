//! A plugin, written by hand: frames, messages and nothing else, so that it has no mistake in common with the node.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use drakkar_node::nri::api::ttrpc::{Request, Response, Status};
use drakkar_node::nri::api::v1alpha1::{
    ConfigureResponse, Container, CreateContainerRequest, PodSandbox, RegisterPluginRequest, StateChangeEvent,
    SynchronizeRequest, SynchronizeResponse, UpdateContainersRequest, UpdateContainersResponse,
};
use drakkar_node::nri::api::{PLUGIN_SERVICE, RUNTIME_SERVICE};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A call of the runtime.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) timeout: i64,
}

impl Call {
    /// Returns the pod of an event. All requests but `StateChange` have it in the first field.
    pub(crate) fn pod(&self) -> PodSandbox {
        match self.method.as_str() {
            "StateChange" => StateChangeEvent::decode(&self.payload[..]).unwrap().pod.unwrap(),
            _ => CreateContainerRequest::decode(&self.payload[..]).unwrap().pod.unwrap(),
        }
    }

    pub(crate) fn container(&self) -> Container {
        CreateContainerRequest::decode(&self.payload[..]).unwrap().container.unwrap()
    }

    /// Returns the path of the pod's network namespace.
    pub(crate) fn network(&self) -> Option<String> {
        network(&self.pod())
    }
}

pub(crate) fn network(pod: &PodSandbox) -> Option<String> {
    let namespaces = pod.linux.iter().flat_map(|linux| &linux.namespaces);
    namespaces.filter(|namespace| namespace.r#type == "network").map(|namespace| namespace.path.clone()).next()
}

/// What the plugin does with a call.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Success(Vec<u8>),
    Error(i32, &'static str),
    /// No answer.
    Never,
}

impl Reply {
    pub(crate) fn empty() -> Self {
        Self::Success(Vec::new())
    }

    pub(crate) fn message(message: &impl prost::Message) -> Self {
        Self::Success(message.encode_to_vec())
    }
}

type Handler = Arc<dyn Fn(&Call) -> Reply + Send + Sync>;

/// A plugin to connect.
#[derive(Clone)]
pub(crate) struct Plugin {
    index: &'static str,
    name: &'static str,
    events: i32,
    handler: Handler,
}

impl Plugin {
    /// Creates a plugin that subscribes to everything and agrees to everything.
    pub(crate) fn new(index: &'static str, name: &'static str) -> Self {
        Self { index, name, events: 0, handler: Arc::new(|_| Reply::empty()) }
    }

    pub(crate) fn events(mut self, events: i32) -> Self {
        self.events = events;
        self
    }

    /// Answers all calls but `Configure`, and `Synchronize` unless it returns something.
    pub(crate) fn answers(mut self, handler: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Self {
        self.handler = Arc::new(handler);
        self
    }

    /// Connects and registers.
    pub(crate) async fn connect(self, socket: &Path) -> Connected {
        let stream = UnixStream::connect(socket).await.unwrap();
        let (reader, writer) = stream.into_split();
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let pending: Pending = Arc::default();
        let events = self.events;
        let task = tokio::spawn(serve(reader, writer.clone(), events, self.handler, calls.clone(), pending.clone()));
        let connected = Connected { calls, writer, pending, next: Mutex::new(1), task };
        let request = RegisterPluginRequest {
            plugin_name: self.name.to_owned(),
            plugin_idx: self.index.to_owned(),
            nri_version: String::new(),
        };
        connected.send("RegisterPlugin", &request).await;
        connected
    }
}

type Pending = Arc<Mutex<HashMap<u32, oneshot::Sender<Response>>>>;

/// A plugin that is connected. Dropping it hangs up.
pub(crate) struct Connected {
    calls: Arc<Mutex<Vec<Call>>>,
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    pending: Pending,
    next: Mutex<u32>,
    task: JoinHandle<()>,
}

impl Connected {
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Returns the methods that were called, in their order.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.calls().into_iter().map(|call| call.method).collect()
    }

    /// Returns the calls of a method.
    pub(crate) fn of(&self, method: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.method == method).collect()
    }

    /// Reports whether the runtime has hung up.
    pub(crate) fn is_closed(&self) -> bool {
        self.task.is_finished()
    }

    pub(crate) async fn update_containers(&self, request: &UpdateContainersRequest) -> UpdateContainersResponse {
        let answer = self.send("UpdateContainers", request).await.await.unwrap();
        assert_eq!(answer.status, None);
        UpdateContainersResponse::decode(answer.payload).unwrap()
    }

    /// Calls the runtime.
    async fn send(&self, method: &str, message: &impl prost::Message) -> oneshot::Receiver<Response> {
        let call = {
            let mut next = self.next.lock().unwrap();
            *next += 2;
            *next - 2
        };
        let (sender, answer) = oneshot::channel();
        self.pending.lock().unwrap().insert(call, sender);
        let request = Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec().into(),
            ..Request::default()
        };
        write(&self.writer, 2, call, 1, &request.encode_to_vec()).await;
        answer
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes the header and the body of a message, each in a frame of its own.
async fn write(writer: &tokio::sync::Mutex<OwnedWriteHalf>, stream: u32, call: u32, kind: u8, body: &[u8]) {
    let mut bytes = Vec::new();
    bytes.extend(stream.to_be_bytes());
    bytes.extend(10_u32.to_be_bytes());
    bytes.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    bytes.extend(call.to_be_bytes());
    bytes.extend([kind, 0]);
    if !body.is_empty() {
        bytes.extend(stream.to_be_bytes());
        bytes.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
    }
    // The runtime may have hung up.
    let _ = writer.lock().await.write_all(&bytes).await;
}

/// Serves until the runtime hangs up.
async fn serve(
    mut reader: OwnedReadHalf,
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    events: i32,
    handler: Handler,
    calls: Arc<Mutex<Vec<Call>>>,
    pending: Pending,
) {
    let mut streams: HashMap<u32, Vec<u8>> = HashMap::new();
    loop {
        let mut header = [0; 8];
        if reader.read_exact(&mut header).await.is_err() {
            return;
        }
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let stream = number(&header[..4]);
        let mut payload = vec![0; number(&header[4..]) as usize];
        if reader.read_exact(&mut payload).await.is_err() {
            return;
        }
        let bytes = streams.entry(stream).or_default();
        bytes.extend(payload);
        while bytes.len() >= 10 && bytes.len() >= 10 + number(&bytes[..4]) as usize {
            let length = number(&bytes[..4]) as usize;
            let call = number(&bytes[4..8]);
            let rest = bytes.split_off(10 + length);
            let body = bytes.split_off(10);
            *bytes = rest;
            if stream == 2 {
                if let Some(waiting) = pending.lock().unwrap().remove(&call) {
                    let _ = waiting.send(Response::decode(&body[..]).unwrap());
                }
                continue;
            }
            let request = Request::decode(&body[..]).unwrap();
            assert_eq!(request.service, PLUGIN_SERVICE);
            let received =
                Call { method: request.method, payload: request.payload.to_vec(), timeout: request.timeout_nano };
            calls.lock().unwrap().push(received.clone());
            let response = match reply(&received, events, &handler) {
                Reply::Success(payload) => Response { status: None, payload: payload.into() },
                Reply::Error(code, message) => {
                    let status = Status { code, message: message.to_owned() };
                    Response { status: Some(status), ..Response::default() }
                }
                Reply::Never => continue,
            };
            write(&writer, 1, call, 2, &response.encode_to_vec()).await;
        }
    }
}

fn reply(call: &Call, events: i32, handler: &Handler) -> Reply {
    match call.method.as_str() {
        "Configure" => Reply::message(&ConfigureResponse { events }),
        "Synchronize" => match handler(call) {
            Reply::Success(payload) if payload.is_empty() => {
                let more = SynchronizeRequest::decode(&call.payload[..]).unwrap().more;
                Reply::message(&SynchronizeResponse { update: Vec::new(), more })
            }
            reply => reply,
        },
        _ => handler(call),
    }
}
