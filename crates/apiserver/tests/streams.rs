//! `pods/log` and `pods/exec`, with a kubelet that the test plays.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use drakkar_apiserver::{
    ApiServer, Config, ContainerRef, ExecOptions, ExecSession, Identity, Kubelet, KubeletError, LogOptions, LogStream,
};
use futures::future::BoxFuture;
use futures::stream;
use futures::{SinkExt as _, StreamExt as _};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A kubelet whose containers log what was asked, and whose programs are one: it returns its input in capital letters.
#[derive(Default)]
struct Played {
    sizes: Arc<std::sync::Mutex<Vec<(u16, u16)>>>,
    commands: Mutex<Vec<ExecOptions>>,
}

impl Kubelet for Played {
    fn logs(&self, container: ContainerRef, options: LogOptions) -> BoxFuture<'_, Result<LogStream, KubeletError>> {
        Box::pin(async move {
            if options.previous {
                return Err(KubeletError::BadRequest("previous terminated container not found".to_owned()));
            }
            let ContainerRef { namespace, pod, container, .. } = container;
            let tail = options.tail_lines;
            let lines = [format!("{namespace}/{pod}/{container} {tail:?}\n"), format!("{}\n", options.follow)];
            Ok(stream::iter(lines.map(|line| Ok(line.into()))).boxed())
        })
    }

    fn exec(&self, _: ContainerRef, options: ExecOptions) -> BoxFuture<'_, Result<ExecSession, KubeletError>> {
        Box::pin(async move {
            if options.command[0] == "missing" {
                return Err(KubeletError::Internal("no such program".to_owned()));
            }
            let code = options.command.get(1).map_or(0, |code| code.parse().unwrap());
            let has_input = options.stdin;
            self.commands.lock().await.push(options);
            let (input, mut program_input) = tokio::io::duplex(64);
            let (mut program_output, output) = tokio::io::duplex(64);
            let (mut program_errors, errors) = tokio::io::duplex(64);
            let program = tokio::spawn(async move {
                let mut text = String::new();
                if has_input {
                    program_input.read_to_string(&mut text).await.unwrap();
                }
                program_output.write_all(text.to_uppercase().as_bytes()).await.unwrap();
                program_errors.write_all(b"done").await.unwrap();
            });
            let sizes = Arc::clone(&self.sizes);
            Ok(ExecSession {
                stdin: has_input.then(|| Box::new(input) as _),
                stdout: Some(Box::new(output)),
                stderr: Some(Box::new(errors)),
                resize: Some(Box::new(move |columns, rows| sizes.lock().unwrap().push((columns, rows)))),
                exit: Box::pin(async move {
                    program.await.unwrap();
                    Ok(code)
                }),
            })
        })
    }
}

struct Bench {
    server: ApiServer,
    kubelet: Arc<Played>,
    _registered: Arc<dyn Kubelet>,
}

/// Starts a server with a pod `one` of one container and a pod `two` of two, on a node with a kubelet, and a pod `unbound`.
async fn bench() -> Bench {
    let server = ApiServer::start(Config::default()).await.unwrap();
    let kubelet = Arc::new(Played::default());
    let registered: Arc<dyn Kubelet> = kubelet.clone();
    server.register_kubelet("node", &registered);
    for (name, containers, node) in
        [("one", &["main"][..], Some("node")), ("two", &["a", "b"], Some("node")), ("unbound", &["main"], None)]
    {
        let containers: Vec<Value> = containers.iter().map(|name| json!({ "name": name, "image": "i" })).collect();
        let pod = json!({ "metadata": { "name": name }, "spec": { "nodeName": node, "containers": containers } });
        let pods: Api<Pod> = Api::namespaced(server.admin(), "default");
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    Bench { server, kubelet, _registered: registered }
}

impl Bench {
    async fn get(&self, path: &str) -> (u16, String) {
        let request = Request::get(format!("{PODS}/{path}")).body(Body::empty()).unwrap();
        let answer = self.server.admin().send(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Returns code and message of a failure.
    async fn refused(&self, path: &str) -> (u16, String) {
        let (code, body) = self.get(path).await;
        let status: Value = serde_json::from_str(&body).unwrap();
        (code, status["message"].as_str().unwrap().to_owned())
    }

    /// Opens a WebSocket with a protocol.
    async fn socket(&self, path: &str, protocol: &str) -> WebSocketStream<TcpStream> {
        let url = self.server.url();
        let mut request = format!("{}{PODS}/{path}", url.replace("http://", "ws://")).into_client_request().unwrap();
        let kubeconfig = self.server.kubeconfig(&Identity::Admin).unwrap();
        let kubeconfig = kube::config::Kubeconfig::from_yaml(&kubeconfig).unwrap();
        let token: Value = serde_json::to_value(&kubeconfig.auth_infos[0].auth_info).unwrap();
        let token = format!("Bearer {}", token["token"].as_str().unwrap());
        request.headers_mut().insert("authorization", token.parse().unwrap());
        request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
        let (socket, answer) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        assert_eq!(answer.headers()["sec-websocket-protocol"], protocol);
        socket
    }
}

fn binary(channel: u8, content: &[u8]) -> Message {
    Message::Binary([&[channel], content].concat().into())
}

/// Reads to the end: output, error output, and the status.
async fn finish(mut socket: WebSocketStream<TcpStream>) -> (String, String, Value) {
    let mut channels = [(); 4].map(|()| Vec::new());
    while let Some(message) = socket.next().await {
        match message.unwrap() {
            Message::Binary(content) => {
                let (channel, content) = content.split_first().unwrap();
                channels[usize::from(*channel)].extend_from_slice(content);
            }
            Message::Close(frame) => {
                assert_eq!(u16::from(frame.unwrap().code), 1000);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let [_, output, errors, status] = channels;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output), text(errors), serde_json::from_slice(&status).unwrap())
}

#[tokio::test]
async fn logs_are_those_of_the_kubelet() {
    let bench = bench().await;
    assert_eq!(bench.get("one/log").await, (200, "default/one/main None\nfalse\n".to_owned()));
    let (_, text) = bench.get("two/log?container=b&tailLines=3&follow=true").await;
    assert_eq!(text, "default/two/b Some(3)\ntrue\n");
    assert_eq!(bench.get("unbound/log").await, (200, String::new()));
    let (code, message) = bench.refused("one/log?previous=true").await;
    assert_eq!((code, message.as_str()), (400, "previous terminated container not found"));
}

#[tokio::test]
async fn requests_that_cannot_be_fulfilled_are_refused_with_the_reason() {
    let bench = bench().await;
    let (code, message) = bench.refused("two/log").await;
    assert_eq!(code, 400);
    assert_eq!(message, "a container name must be specified for pod two, choose one of: [a b]");
    assert_eq!(bench.refused("two/log?container=c").await, (400, "container c is not valid for pod two".to_owned()));
    assert_eq!(bench.refused("none/log").await, (404, "pods \"none\" not found".to_owned()));
    let (code, message) = bench.refused("one/log?timestamps=true").await;
    assert!(code == 400 && message.starts_with("timestamps is not supported"), "{code} {message}");
    assert_eq!(bench.refused("one/exec?stdout=true").await.0, 400);
    assert_eq!(bench.refused("one/exec?command=ls").await.1, "you must specify at least 1 of stdin, stdout, stderr");
    let unbound = bench.refused("unbound/exec?command=ls&stdout=true").await;
    assert_eq!(unbound, (400, "pod unbound does not have a host assigned".to_owned()));
    let (code, message) = bench.refused("one/exec?command=ls&stdout=true").await;
    assert!(code == 400 && message.starts_with("Upgrade request required"), "{code} {message}");
    assert_eq!(bench.refused("one/attach").await.0, 404);
}

#[tokio::test]
async fn a_kubelet_that_has_ended_refuses_connections() {
    let Bench { server, kubelet, _registered } = bench().await;
    drop((kubelet, _registered));
    let bench = Bench { server, kubelet: Arc::default(), _registered: Arc::new(Played::default()) };
    let (code, message) = bench.refused("one/log").await;
    assert_eq!(code, 500);
    assert_eq!(message, "Internal error occurred: connect to the kubelet of node node: connection refused");
}

#[tokio::test]
async fn a_program_gets_input_until_it_is_closed_and_returns_output_and_exit_code() {
    let bench = bench().await;
    let mut socket =
        bench.socket("one/exec?command=upper&command=3&stdin=true&stdout=true&stderr=true", "v5.channel.k8s.io").await;
    socket.send(binary(0, b"some ")).await.unwrap();
    socket.send(binary(4, br#"{"Width":80,"Height":24}"#)).await.unwrap();
    // More than any buffer between the client and the program.
    let long = "word ".repeat(40_000);
    socket.send(binary(0, long.as_bytes())).await.unwrap();
    socket.send(binary(255, &[0])).await.unwrap();
    let (output, errors, status) = finish(socket).await;
    assert_eq!((output, errors.as_str()), (format!("SOME {}", long.to_uppercase()), "done"));
    assert_eq!((&status["status"], &status["reason"]), (&json!("Failure"), &json!("NonZeroExitCode")));
    assert_eq!(status["details"]["causes"], json!([{ "reason": "ExitCode", "message": "3" }]));
    assert_eq!(*bench.kubelet.sizes.lock().unwrap(), [(80, 24)]);
    let commands = bench.kubelet.commands.lock().await;
    let wanted = ExecOptions {
        command: vec!["upper".to_owned(), "3".to_owned()],
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    };
    assert_eq!(*commands, [wanted]);
}

#[tokio::test]
async fn a_program_without_input_succeeds_with_either_protocol() {
    let bench = bench().await;
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        let socket = bench.socket("one/exec?command=upper&stdout=true&stderr=true", protocol).await;
        let (output, errors, status) = finish(socket).await;
        assert_eq!((output.as_str(), errors.as_str(), &status["status"]), ("", "done", &json!("Success")));
    }
}

#[tokio::test]
async fn why_a_program_does_not_start_is_told_on_the_error_channel() {
    let bench = bench().await;
    let socket = bench.socket("one/exec?command=missing&stdout=true", "v5.channel.k8s.io").await;
    let (_, _, status) = finish(socket).await;
    assert_eq!((&status["status"], &status["reason"]), (&json!("Failure"), &json!("InternalError")));
    let message = status["message"].as_str().unwrap();
    assert_eq!(message, "Internal error occurred: error executing command in container: no such program");
}

#[tokio::test]
async fn a_stopped_server_ends_programs() {
    let bench = bench().await;
    let mut socket = bench.socket("one/exec?command=upper&stdin=true&stdout=true", "v5.channel.k8s.io").await;
    bench.server.stop().await;
    let end = socket.next().await;
    assert!(!matches!(end, Some(Ok(Message::Binary(_)))), "{end:?}");
}
