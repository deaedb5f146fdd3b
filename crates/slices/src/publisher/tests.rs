//! The publisher's task, with a paused clock.

#![allow(clippy::unwrap_used)]

mod failures;
mod updates;

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::stream::{self, StreamExt as _};
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::advance;

use super::super::pending::PublishStatus;
use super::super::resources::{DriverResources, PublishedDevice};
use super::*;

/// An API server with slices. A watch sends the events before it began, and is silent then.
#[derive(Default)]
struct Server {
    state: Mutex<State>,
    drops_taints: bool,
    /// Whether all requests are answered with 401.
    refuses: AtomicBool,
}

#[derive(Default)]
struct State {
    version: u64,
    slices: Vec<Value>,
    /// The watch events, with their resource versions.
    events: Vec<(u64, Value)>,
    created: usize,
}

type Answer = UnsyncBoxBody<Bytes, Infallible>;

fn text(text: String) -> Answer {
    http_body_util::Full::new(Bytes::from(text)).boxed_unsync()
}

impl Server {
    fn client(self: &Arc<Self>) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Answer> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let uri = head.uri.to_string();
        let mut state = self.state.lock().unwrap();
        if self.refuses.load(Ordering::Relaxed) {
            let answer = Response::builder().status(401);
            return answer.body(text(json!({"kind": "Status", "message": "Unauthorized"}).to_string())).unwrap();
        }
        match head.method {
            Method::GET if uri.contains("/nodes/") => {
                Response::new(text(json!({"metadata": {"uid": "node"}}).to_string()))
            }
            Method::GET if uri.contains("watch=true") => {
                let (_, since) = uri.split_once("resourceVersion=").unwrap();
                let since: u64 = since.split('&').next().unwrap().parse().unwrap();
                let events = state.events.iter().filter(|(version, _)| *version > since);
                let lines: Vec<_> = events.map(|(_, event)| Ok(Frame::data(format!("{event}\n").into()))).collect();
                Response::new(StreamBody::new(stream::iter(lines).chain(stream::pending())).boxed_unsync())
            }
            Method::GET => {
                let list = json!({"metadata": {"resourceVersion": state.version.to_string()}, "items": state.slices});
                Response::new(text(list.to_string()))
            }
            Method::POST | Method::PUT => {
                let mut slice: Value =
                    serde_json::from_slice(&drakkar_client::protobuf::to_json(&body).unwrap()).unwrap();
                state.version += 1;
                let version = state.version;
                if head.method == Method::POST {
                    state.created += 1;
                    let name = format!("{}{version}", slice["metadata"]["generateName"].as_str().unwrap());
                    slice["metadata"] = json!({"name": name, "uid": format!("uid-{version}")});
                }
                slice["metadata"]["resourceVersion"] = version.to_string().into();
                if self.drops_taints {
                    let devices = slice["spec"]["devices"].as_array_mut().unwrap();
                    devices.iter_mut().for_each(|device| drop(device.as_object_mut().unwrap().remove("taints")));
                }
                let name = slice["metadata"]["name"].clone();
                state.slices.retain(|other| other["metadata"]["name"] != name);
                state.slices.push(slice.clone());
                state.events.push((version, json!({"type": "MODIFIED", "object": slice})));
                Response::new(text(slice.to_string()))
            }
            Method::DELETE => {
                let (_, name) = uri.rsplit_once('/').unwrap();
                state.version += 1;
                let version = state.version;
                let at = state.slices.iter().position(|slice| slice["metadata"]["name"] == name).unwrap();
                let mut slice = state.slices.remove(at);
                slice["metadata"]["resourceVersion"] = version.to_string().into();
                state.events.push((version, json!({"type": "DELETED", "object": slice})));
                Response::new(text(json!({"kind": "Status"}).to_string()))
            }
            method => panic!("{method} {uri}"),
        }
    }

    /// Deletes all slices, as a kubelet does when it starts.
    fn wipe(&self) {
        let mut state = self.state.lock().unwrap();
        for mut slice in std::mem::take(&mut state.slices) {
            state.version += 1;
            let version = state.version;
            slice["metadata"]["resourceVersion"] = version.to_string().into();
            state.events.push((version, json!({"type": "DELETED", "object": slice})));
        }
    }

    fn created(&self) -> usize {
        self.state.lock().unwrap().created
    }
}

/// A running task.
struct Running {
    handle: ResourcePublisher,
    overview: Overview,
    /// The number of times that the task was polled.
    polls: Arc<AtomicUsize>,
    directory: tempfile::TempDir,
    _task: AbortOnDropHandle<()>,
}

impl Running {
    fn start(server: &Arc<Server>) -> Self {
        Self::start_with(server, Arc::new(()))
    }

    fn start_with(server: &Arc<Server>, observer: Arc<dyn Observer>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = PublisherConfig::new("gpu.example.com")
            .node("node-1")
            .node_uid("node")
            .election_file(directory.path().join(crate::ELECTION_FILE))
            .generations_file(directory.path().join(crate::GENERATIONS_FILE));
        let pending = Arc::new(PendingPublish::default());
        let handle = ResourcePublisher::new(pending.clone(), None);
        let (index, published) = watch::channel(None);
        let overview = Overview::new(pending.clone(), published);
        let mut task = Box::pin(run(DraClient::new(server.client()), config, observer, pending, index));
        let polls = Arc::new(AtomicUsize::new(0));
        let counter = polls.clone();
        let counted = poll_fn(move |context| {
            counter.fetch_add(1, Ordering::Relaxed);
            task.as_mut().poll(context)
        });
        let task = AbortOnDropHandle::new(tokio::spawn(counted));
        Self { handle, overview, polls, directory, _task: task }
    }

    async fn publish(&self, pool: Pool) {
        self.handle.publish(DriverResources::default().pool("pool", pool)).unwrap();
        self.until(PublishStatus::Published).await;
    }

    async fn until(&self, expected: PublishStatus) {
        self.handle.status().wait_for(|status| *status == expected).await.unwrap();
    }

    /// Counts how often the task is polled while no time passes.
    async fn wakeups(&self) -> usize {
        let before = self.polls.load(Ordering::Relaxed);
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
        }
        self.polls.load(Ordering::Relaxed) - before
    }
}

fn tainted() -> Pool {
    Pool::default().device(PublishedDevice::new("gpu-0").taint("k", "", "None"))
}

/// The older instance in a rolling update has nothing to do, whatever was due.
#[tokio::test(start_paused = true)]
async fn an_instance_on_standby_sleeps_though_dropped_fields_are_due() {
    let server = Arc::new(Server { drops_taints: true, ..Server::default() });
    let publisher = Running::start(&server);
    publisher.publish(tainted()).await;
    let newer = PublisherElection::join(&publisher.directory.path().join(crate::ELECTION_FILE)).unwrap();
    // Dropped fields are due by then.
    advance(Duration::from_secs(900)).await;
    assert!(publisher.wakeups().await < 100, "it spins");
    publisher.until(PublishStatus::Standby).await;
    drop(newer);
    publisher.until(PublishStatus::Published).await;
}

/// A dead connection looks like one without events.
#[tokio::test(start_paused = true)]
async fn slices_that_are_wiped_while_the_watch_is_silent_are_back_within_two_minutes() {
    let server = Arc::new(Server::default());
    let publisher = Running::start(&server);
    publisher.publish(Pool::default().device(PublishedDevice::new("gpu-0"))).await;
    // The watch has started.
    sleep(Duration::from_secs(1)).await;
    server.wipe();
    let wiped = Instant::now();
    while server.created() < 2 {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(wiped.elapsed() <= Duration::from_secs(120), "{:?}", wiped.elapsed());
}

/// Some drivers have pools that come and go: the file must not grow without limit.
#[tokio::test(start_paused = true)]
async fn pools_that_are_long_gone_are_removed_from_the_generations_file() {
    let server = Arc::new(Server::default());
    let publisher = Running::start(&server);
    let one = || Pool::default().device(PublishedDevice::new("gpu-0"));
    let remembered = || {
        let file = std::fs::read(publisher.directory.path().join(crate::GENERATIONS_FILE)).unwrap();
        serde_json::from_slice::<Value>(&file).unwrap()
    };
    publisher.handle.publish(DriverResources::default().pool("pool", one()).pool("other", one())).unwrap();
    publisher.until(PublishStatus::Published).await;
    assert_eq!(remembered(), json!({"pool": 1, "other": 1}));
    publisher.publish(one()).await;
    while remembered() != json!({"pool": 1}) {
        sleep(Duration::from_secs(60)).await;
    }
}

/// A task that lives on after the publisher must not believe that its resources are published.
#[tokio::test(start_paused = true)]
async fn handles_of_a_dropped_publisher_refuse_resources_and_slices_stay() {
    let server = Arc::new(Server::default());
    let publisher =
        Publisher::start(DraClient::new(server.client()), PublisherConfig::new("gpu.example.com"), Arc::new(()));
    let handle = publisher.handle();
    let resources = || {
        let pool = Pool::default().nodes(crate::NodeSelection::AllNodes).device(PublishedDevice::new("gpu-0"));
        DriverResources::default().pool("pool", pool)
    };
    handle.publish(resources()).unwrap();
    let mut status = handle.status();
    status.wait_for(|status| *status == PublishStatus::Published).await.unwrap();
    drop(publisher);
    assert_eq!(*status.borrow(), PublishStatus::Stopped);
    assert!(matches!(handle.publish(resources()), Err(PublishError::Stopped)));
    assert_eq!(*handle.status().borrow(), PublishStatus::Stopped);
    assert_eq!(server.state.lock().unwrap().slices.len(), 1);
}
