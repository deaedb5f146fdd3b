//! Unary calls answer as tonic does, whatever a client sends, except for a second message.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use drakkar_kubelet_api::dra_v1::dra_plugin_server::{self, DraPlugin, DraPluginServer};
use drakkar_kubelet_api::dra_v1::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use futures::stream::{BoxStream, StreamExt as _};
use http_body_util::StreamBody;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tempfile::TempDir;
use tokio::net::UnixStream;

use super::*;
use crate::server::{CallHooks, Routes, Server};
use crate::socket::listen;

/// Answers each claim with an error that repeats its name.
struct Echo;

impl Echo {
    fn prepare(request: NodePrepareResourcesRequest) -> NodePrepareResourcesResponse {
        let answer = |claim: Claim| (claim.uid, NodePrepareResourceResponse { devices: Vec::new(), error: claim.name });
        NodePrepareResourcesResponse { claims: request.claims.into_iter().map(answer).collect() }
    }
}

impl UnaryService for Echo {
    const NAME: &'static str = dra_plugin_server::SERVICE_NAME;
    const METHODS: &'static [&'static str] = &["NodePrepareResources"];

    async fn call(&self, method: &str, message: Message) -> Result<Reply, Status> {
        match method {
            "NodePrepareResources" => Reply::encode(&Self::prepare(message.decode()?)),
            method => Err(unknown_method(method)),
        }
    }
}

#[tonic::async_trait]
impl DraPlugin for Echo {
    async fn node_prepare_resources(
        &self,
        request: tonic::Request<NodePrepareResourcesRequest>,
    ) -> Result<tonic::Response<NodePrepareResourcesResponse>, Status> {
        Ok(tonic::Response::new(Self::prepare(request.into_inner())))
    }

    async fn node_unprepare_resources(
        &self,
        _: tonic::Request<NodeUnprepareResourcesRequest>,
    ) -> Result<tonic::Response<NodeUnprepareResourcesResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

type Frames = Vec<Vec<u8>>;
type Sender = SendRequest<StreamBody<BoxStream<'static, Result<Frame<Bytes>, Status>>>>;

/// The prefix of a method whose client does not say that it has sent everything.
const ENDLESS: &str = "Watch";

/// A server, and a connection to it.
struct Peer {
    sender: Sender,
    _server: Server,
    _directory: TempDir,
}

impl Peer {
    async fn of(routes: Routes) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        let (listener, file) = listen(&path, &"gpu.example.com".parse().unwrap()).unwrap();
        let server = Server::start(listener, file, routes, CallHooks::default()).unwrap();
        let stream = TokioIo::new(UnixStream::connect(&path).await.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        Self { sender, _server: server, _directory: directory }
    }

    /// Calls a method with a body in these frames. Returns the status, its message, and the answer with its prefix.
    async fn call(&mut self, method: &str, encoding: Option<&str>, frames: &[Vec<u8>]) -> (String, String, Vec<u8>) {
        let uri = format!("http://node/{}/{method}", dra_plugin_server::SERVICE_NAME);
        let mut request =
            Request::post(uri).header(header::CONTENT_TYPE, "application/grpc").header(header::TE, "trailers");
        if let Some(encoding) = encoding {
            request = request.header(ENCODING, encoding);
        }
        let frames: Vec<_> = frames.iter().map(|frame| Ok(Frame::data(frame.clone().into()))).collect();
        let frames = futures::stream::iter(frames);
        let request = request.body(StreamBody::new(if method.starts_with(ENDLESS) {
            frames.chain(futures::stream::pending()).boxed()
        } else {
            frames.boxed()
        }));
        let request = request.unwrap();
        let (head, body) = self.sender.send_request(request).await.unwrap().into_parts();
        assert_eq!(head.status, 200);
        assert_eq!(head.headers[header::CONTENT_TYPE], "application/grpc");
        assert!(!head.headers.contains_key(header::CONTENT_LENGTH), "clients may take it for the size of the message");
        let collected = body.collect().await.unwrap();
        let status = collected.trailers().unwrap_or(&head.headers).clone();
        let text = |name: &str| status.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        (text("grpc-status"), text("grpc-message"), collected.to_bytes().into())
    }
}

fn framed(flag: u8, length: usize, message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![flag];
    bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
    bytes.extend(message);
    bytes
}

fn request(name: &str) -> Vec<u8> {
    let claim = Claim { namespace: "default".into(), uid: "u-1".into(), name: name.into() };
    NodePrepareResourcesRequest { claims: vec![claim] }.encode_to_vec()
}

#[tokio::test]
async fn calls_are_answered_as_by_tonic() {
    let mut ours = Peer::of(Routes::default().with_unary(Arc::new(Echo))).await;
    let mut tonics = Peer::of(Routes::default().with(DraPluginServer::new(Echo))).await;
    let small = request("gpus");
    let whole = framed(0, small.len(), &small);
    let long = request(&"n".repeat(100_000));
    // The status, the encoding that the client names, and the frames that it sends.
    let cases: [(&str, Option<&str>, Frames); 14] = [
        ("0", None, vec![whole.clone()]),
        ("0", Some("identity"), vec![whole.clone()]),
        ("0", None, vec![framed(0, 0, b"")]),
        ("0", None, whole.iter().map(|byte| vec![*byte]).collect()),
        ("0", None, framed(0, long.len(), &long).chunks(10_000).map(<[u8]>::to_vec).collect()),
        ("12", Some("gzip"), vec![whole.clone()]),
        ("13", None, vec![framed(1, small.len(), &small)]),
        ("13", None, vec![framed(7, small.len(), &small)]),
        ("13", None, vec![]),
        ("13", None, vec![whole[..3].to_vec()]),
        ("13", None, vec![whole[..whole.len() - 1].to_vec()]),
        ("13", None, vec![framed(0, small.len() - 1, &small[..small.len() - 1])]),
        ("11", None, vec![framed(0, MAX_MESSAGE + 1, b"")]),
        ("11", None, vec![framed(0, MAX_MESSAGE + 1, &[0; 20_000])]),
    ];
    for (status, encoding, frames) in cases {
        let answer = ours.call("NodePrepareResources", encoding, &frames).await;
        assert_eq!(answer.0, status, "{answer:?}");
        assert_eq!(answer, tonics.call("NodePrepareResources", encoding, &frames).await);
    }
}

/// Also before a message has been read, or when none ever comes.
#[tokio::test]
async fn a_method_that_does_not_exist_is_refused_at_once() {
    let mut ours = Peer::of(Routes::default().with_unary(Arc::new(Echo))).await;
    let mut tonics = Peer::of(Routes::default().with(DraPluginServer::new(Echo))).await;
    let message = request("gpus");
    let one = framed(0, message.len(), &message);
    for method in
        ["Watch", "WatchResources", "Foo/NodePrepareResources", "/NodePrepareResources", "NodePrepareResources/"]
    {
        for frames in [vec![], vec![one.clone()], vec![one.clone(), one.clone()], vec![framed(0, MAX_MESSAGE + 1, b"")]]
        {
            let (status, text, _) = ours.call(method, None, &frames).await;
            assert_eq!((status.as_str(), text.as_str()), ("12", format!("unknown%20method%20{method}").as_str()));
            assert_eq!(tonics.call(method, None, &frames).await.0, status, "{method}");
        }
    }
    let (status, _, answer) = ours.call("NodePrepareResources", None, &[one]).await;
    assert_eq!((status.as_str(), answer.is_empty()), ("0", false));
}

#[tokio::test]
async fn an_answer_has_what_the_service_said() {
    let mut ours = Peer::of(Routes::default().with_unary(Arc::new(Echo))).await;
    let message = request("gpus");
    let (status, text, answer) = ours.call("NodePrepareResources", None, &[framed(0, message.len(), &message)]).await;
    assert_eq!((status.as_str(), text.as_str()), ("0", ""));
    let decoded = NodePrepareResourcesResponse::decode(&answer[PREFIX..]).unwrap();
    let expected = NodePrepareResourceResponse { devices: Vec::new(), error: "gpus".into() };
    assert_eq!(decoded.claims, HashMap::from([("u-1".to_owned(), expected)]));
}

/// tonic ignores what follows the first message. A client that sends two has another method in mind.
#[tokio::test]
async fn a_second_message_is_refused() {
    let mut ours = Peer::of(Routes::default().with_unary(Arc::new(Echo))).await;
    let message = request("gpus");
    let one = framed(0, message.len(), &message);
    for frames in [vec![one.clone(), one.clone()], vec![[one.clone(), one].concat()]] {
        let (status, text, _) = ours.call("NodePrepareResources", None, &frames).await;
        assert_eq!((status.as_str(), text.as_str()), ("13", "a%20request%20of%20this%20method%20has%20one%20message"));
    }
}
