//! A runtime: its bytes are written as Go's ttrpc and mux write them, and read with the limits of Go's readers.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use drakkar_nri::api::{
    ConfigureRequest, ConfigureResponse, Container, Event as ApiEvent, PodSandbox, RegisterPluginRequest,
    RunPodSandboxRequest, StateChangeEvent, SynchronizeRequest, SynchronizeResponse,
};
use drakkar_nri_api::ttrpc::{Request, Response, Status};
use drakkar_nri_api::{PLUGIN_SERVICE, RUNTIME_SERVICE};
use prost::Message;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// Go's buffered readers and writers.
const GO_BUFFER: usize = 4096;
/// A test that waits longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// A runtime's socket.
pub struct Runtime {
    pub directory: TempDir,
    listener: Option<UnixListener>,
}

impl Runtime {
    pub fn new() -> Self {
        let mut runtime = Self { directory: tempfile::tempdir().unwrap(), listener: None };
        runtime.listen();
        runtime
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("nri.sock")
    }

    /// Starts listening, on a new socket.
    pub fn listen(&mut self) {
        self.shut();
        self.listener = Some(UnixListener::bind(self.path()).unwrap());
    }

    /// Stops listening, and removes the socket.
    pub fn shut(&mut self) {
        self.listener = None;
        let _ = std::fs::remove_file(self.path());
    }

    pub async fn accept(&self) -> Peer {
        let (stream, _) = patiently(self.listener.as_ref().unwrap().accept()).await.unwrap();
        Peer::new(stream)
    }

    /// Accepts a plugin and goes through the handshake, without pods.
    pub async fn accept_and_synchronize(&self) -> Peer {
        let mut peer = self.accept().await;
        peer.handshake(&configure()).await;
        peer
    }
}

/// A `Configure` of the newest runtime, with more time than a busy machine needs.
pub fn configure() -> ConfigureRequest {
    ConfigureRequest {
        runtime_name: "containerd".to_owned(),
        runtime_version: "v2.3.4".to_owned(),
        registration_timeout: 5000,
        request_timeout: 120_000,
        nri_version: "0.12.2".to_owned(),
        ..ConfigureRequest::default()
    }
}

pub fn pod(name: &str) -> PodSandbox {
    PodSandbox {
        id: format!("sandbox-{name}"),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        namespace: "default".to_owned(),
        ..PodSandbox::default()
    }
}

pub fn container(name: &str) -> Container {
    Container { id: format!("container-{name}"), name: name.to_owned(), ..Container::default() }
}

/// A connection to a plugin.
pub struct Peer {
    stream: UnixStream,
    readers: HashMap<u32, GoReader>,
    next_stream: u32,
    /// Answers that nobody asked for yet.
    answers: HashMap<u32, Response>,
    /// The calls of the plugin.
    calls: VecDeque<(u32, Request)>,
}

impl Peer {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, readers: HashMap::new(), next_stream: 1, answers: HashMap::new(), calls: VecDeque::new() }
    }

    /// Goes through the handshake, and returns the mask.
    pub async fn handshake(&mut self, configure: &ConfigureRequest) -> i32 {
        self.register().await;
        let mask = self.configure(configure).await;
        self.synchronize(Vec::new()).await;
        mask
    }

    /// Waits for the registration and accepts it.
    pub async fn register(&mut self) -> RegisterPluginRequest {
        let (stream, request) = self.plugins_call().await;
        assert_eq!((&*request.service, &*request.method), (RUNTIME_SERVICE, "RegisterPlugin"));
        self.answer(stream, &()).await;
        RegisterPluginRequest::decode(request.payload).unwrap()
    }

    pub async fn configure(&mut self, request: &ConfigureRequest) -> i32 {
        self.call::<ConfigureResponse>("Configure", request).await.unwrap().events
    }

    pub async fn synchronize(&mut self, pods: Vec<PodSandbox>) -> SynchronizeResponse {
        let request = SynchronizeRequest { pods, ..SynchronizeRequest::default() };
        self.call("Synchronize", &request).await.unwrap()
    }

    pub async fn run(&mut self, name: &str) -> Result<(), Status> {
        self.pod_event("RunPodSandbox", name).await
    }

    pub async fn pod_event(&mut self, method: &str, name: &str) -> Result<(), Status> {
        self.call(method, &RunPodSandboxRequest { pod: Some(pod(name)) }).await
    }

    pub async fn state_change(&mut self, event: ApiEvent, with_container: bool) -> Result<(), Status> {
        let request = StateChangeEvent {
            event: event.into(),
            pod: Some(pod("train")),
            container: with_container.then(|| container("main")),
        };
        self.call("StateChange", &request).await
    }

    /// Calls a method of the plugin.
    pub async fn call<R: Message + Default>(&mut self, method: &str, request: &impl Message) -> Result<R, Status> {
        let stream = self.send(PLUGIN_SERVICE, method, request, 0).await;
        self.result(stream).await
    }

    /// Calls a method without waiting for the answer.
    pub async fn send(&mut self, service: &str, method: &str, request: &impl Message, timeout_nano: i64) -> u32 {
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: request.encode_to_vec().into(),
            timeout_nano,
            metadata: Vec::new(),
        };
        let stream = self.next_stream;
        self.next_stream += 2;
        self.write(1, stream, 1, &request.encode_to_vec()).await;
        stream
    }

    /// Waits for the answer to a call.
    pub async fn result<R: Message + Default>(&mut self, stream: u32) -> Result<R, Status> {
        let response = self.response(stream).await;
        match response.status {
            Some(status) if status.code != 0 => Err(status),
            _ => Ok(R::decode(response.payload).unwrap()),
        }
    }

    pub async fn response(&mut self, stream: u32) -> Response {
        while !self.answers.contains_key(&stream) {
            assert!(self.receive().await, "closed before the answer");
        }
        self.answers.remove(&stream).unwrap()
    }

    /// Waits for a call of the plugin.
    pub async fn plugins_call(&mut self) -> (u32, Request) {
        while self.calls.is_empty() {
            assert!(self.receive().await, "closed before the call");
        }
        self.calls.pop_front().unwrap()
    }

    /// Answers a call of the plugin.
    pub async fn answer(&mut self, stream: u32, message: &impl Message) {
        let response = Response { status: None, payload: message.encode_to_vec().into() };
        self.write(2, stream, 2, &response.encode_to_vec()).await;
    }

    pub async fn refuse(&mut self, stream: u32, code: i32, message: &str) {
        let status = Some(Status { code, message: message.to_owned() });
        let response = Response { status, ..Response::default() };
        self.write(2, stream, 2, &response.encode_to_vec()).await;
    }

    /// Waits until the plugin has closed the connection.
    pub async fn closed(&mut self) {
        while self.receive().await {}
    }

    /// Writes a ttrpc message as Go does: through a buffer of 4096 bytes, each write of which is a frame.
    pub async fn write(&mut self, connection: u32, stream: u32, kind: u8, body: &[u8]) {
        let mut message = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
        message.extend(stream.to_be_bytes());
        message.extend([kind, 0]);
        message.extend(body);
        let (first, rest) = message.split_at(message.len().min(GO_BUFFER));
        let mut bytes = frame(connection, first);
        if !rest.is_empty() {
            bytes.extend(frame(connection, rest));
        }
        self.write_bytes(&bytes).await;
    }

    pub async fn write_bytes(&mut self, bytes: &[u8]) {
        // The plugin may have hung up, which the test sees when it reads.
        let _ = patiently(self.stream.write_all(bytes)).await;
    }

    /// Reads a frame and what it completes. `false` at the end of the stream.
    async fn receive(&mut self) -> bool {
        let Some((connection, payload)) = self.frame().await else { return false };
        let reader = self.readers.entry(connection).or_default();
        for (stream, kind, body) in reader.read(payload) {
            match (connection, kind) {
                (1, 2) => {
                    let response = Response::decode(&*body).unwrap();
                    assert!(self.answers.insert(stream, response).is_none(), "stream {stream} is answered twice");
                }
                (2, 1) => self.calls.push_back((stream, Request::decode(&*body).unwrap())),
                other => panic!("a plugin sends no {other:?}"),
            }
        }
        true
    }

    pub async fn frame(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut header = [0; 8];
        if patiently(self.stream.read_exact(&mut header)).await.is_err() {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; word(4) as usize];
        patiently(self.stream.read_exact(&mut payload)).await.ok()?;
        Some((word(0), payload))
    }
}

pub fn frame(connection: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&connection.to_be_bytes(), &length.to_be_bytes(), payload].concat()
}

/// Go's ttrpc on Go's mux: a frame is one read, and a frame that does not fit into the caller's buffer kills the connection.
#[derive(Default)]
pub struct GoReader {
    /// The buffered reader. Filled only when it is empty.
    buffered: Vec<u8>,
    header: Vec<u8>,
    body: Option<(usize, Vec<u8>)>,
}

impl GoReader {
    /// Reads a frame, and returns the messages that end with it: stream, kind and body.
    pub fn read(&mut self, mut frame: Vec<u8>) -> Vec<(u32, u8, Vec<u8>)> {
        let mut messages = Vec::new();
        assert!(self.buffered.is_empty());
        // A large read goes past the buffer, into the caller's own.
        match &mut self.body {
            Some((length, body)) if *length - body.len() >= GO_BUFFER => {
                assert!(frame.len() <= *length - body.len(), "ENOMEM: a frame that is longer than the rest of a body");
                body.append(&mut frame);
            }
            _ => {
                assert!(
                    frame.len() <= GO_BUFFER,
                    "ENOMEM: a frame of {} bytes for a buffer of {GO_BUFFER}",
                    frame.len()
                );
                self.buffered = frame;
            }
        }
        loop {
            if self.body.is_none() {
                let taken = self.buffered.len().min(10 - self.header.len());
                self.header.extend(self.buffered.drain(..taken));
                if self.header.len() < 10 {
                    return messages;
                }
                let length = u32::from_be_bytes(self.header[..4].try_into().unwrap()) as usize;
                assert!(length <= 4 << 20, "a message of {length} bytes");
                self.body = Some((length, Vec::new()));
            }
            let Some((length, body)) = &mut self.body else { return messages };
            let taken = self.buffered.len().min(*length - body.len());
            body.extend(self.buffered.drain(..taken));
            if body.len() < *length {
                return messages;
            }
            let body = std::mem::take(body);
            let stream = u32::from_be_bytes(self.header[4..8].try_into().unwrap());
            messages.push((stream, self.header[8], body));
            self.header.clear();
            self.body = None;
        }
    }
}
