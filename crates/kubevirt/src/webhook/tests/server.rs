//! The webhook over TLS: paths, limits, certificates, the end.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame};
use rstest::rstest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::support::{Client, LIMIT, Pair, Serving, connect, options};
use super::*;

#[tokio::test]
async fn reviews_are_answered_over_a_connection_that_stays() {
    let webhook = Serving::start(|_| {}).await;
    let mut client = webhook.client().await;
    assert_eq!(client.review(&review_of("CREATE", &vmi("gpu"))).await["response"]["allowed"], true);
    assert_eq!(client.review(&review_of("CREATE", &vmi("other"))).await["response"]["allowed"], false);
}

#[tokio::test]
async fn a_changed_policy_holds_for_the_next_review() {
    let webhook = Serving::start(|_| {}).await;
    let mut client = webhook.client().await;
    let review = review_of("CREATE", &vmi("gpu"));
    assert_eq!(client.review(&review).await["response"]["allowed"], true);
    webhook.policy.send_modify(|policy| policy.gates = Some(FeatureGates::default().with(Gate::GpusWithDra, false)));
    assert_eq!(client.review(&review).await["response"]["allowed"], false);
}

#[rstest]
#[case::health("GET", "/healthz", "", "", 200, "ok")]
#[case::live("GET", "/livez", "", "", 200, "ok")]
#[case::ready("GET", "/readyz", "", "", 200, "ok")]
#[case::ready_by_post("POST", "/readyz", "", "", 405, "allowed: GET, HEAD")]
#[case::unknown_path("POST", "/", "application/json", "{}", 404, "no such path \"/\": reviews go to /validate")]
#[case::method("GET", "/validate", "application/json", "", 405, "allowed: POST")]
#[case::media_type(
    "POST",
    "/validate",
    "application/yaml",
    "{}",
    415,
    "expected an AdmissionReview as application/json"
)]
#[case::no_media_type("POST", "/validate", "", "{}", 415, "expected an AdmissionReview as application/json")]
#[case::malformed(
    "POST",
    "/validate",
    "application/json",
    "{}",
    400,
    r#"expected an AdmissionReview of admission.k8s.io/v1, found kind "" of apiVersion """#
)]
#[case::parameters(
    "POST",
    "/validate",
    "application/json; charset=utf-8",
    "[",
    400,
    "the request is not an AdmissionReview: EOF while parsing a list at line 1 column 1"
)]
#[tokio::test]
async fn paths_methods_and_media_types(
    #[case] method: &str,
    #[case] path: &str,
    #[case] kind: &str,
    #[case] body: &str,
    #[case] status: u16,
    #[case] text: &str,
) {
    let webhook = Serving::start(|_| {}).await;
    let answer = webhook.client().await.send(method, path, kind, body.into()).await;
    assert_eq!((answer.0.as_u16(), &*answer.1), (status, text));
}

#[tokio::test]
async fn launcher_pods_are_changed_at_a_path_of_their_own() {
    let webhook = Serving::start(|_| {}).await;
    let review = serde_json::json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "object": {
            "metadata": {"labels": {"kubevirt.io": "virt-launcher"}, "annotations": {"drakkar.dev/gpus": "g=c/r"}},
            "spec": {
                "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
                "containers": [{"name": "compute"}, {"name": "hook-sidecar-0", "args": ["kubevirt", "hook"]}],
            },
        },
    }});
    let body = review.to_string().into_bytes();
    let (status, text) = webhook.client().await.send("POST", "/mutate-pods", "application/json", body).await;
    assert_eq!(status, 200);
    assert!(text.contains(r#""allowed":true,"patchType":"JSONPatch""#), "{text}");
    assert_eq!(webhook.client().await.send("GET", "/mutate-pods", "", vec![]).await.0, 405);
}

#[tokio::test]
async fn a_request_beyond_the_limit_is_refused() {
    let webhook = Serving::start(|options| options.max_body = 1000).await;
    let (status, text) = webhook.client().await.send("POST", "/validate", "application/json", vec![b' '; 1001]).await;
    assert_eq!((status.as_u16(), &*text), (413, "an AdmissionReview has at most 1000 bytes"));
    let (status, _) = webhook.client().await.send("POST", "/validate", "application/json", vec![b' '; 1000]).await;
    assert_eq!(status, 400);
}

/// A body without a length is counted while it is read.
#[tokio::test]
async fn a_chunked_request_beyond_the_limit_is_refused() {
    let webhook = Serving::start(|options| options.max_body = 1000).await;
    let mut stream = webhook.connect().await;
    let head =
        "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 600, " ".repeat(600));
    stream.write_all(format!("{chunk}{chunk}").as_bytes()).await.unwrap();
    assert!(until_close(stream).await.starts_with("HTTP/1.1 413 "));
}

/// The head of a review, without its body.
fn head(length: usize) -> String {
    format!("POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n")
}

/// What the server sends until it closes the connection.
async fn until_close(mut stream: support::Stream) -> String {
    let mut text = Vec::new();
    // The end may come without TLS's own.
    timeout(LIMIT, stream.read_to_end(&mut text)).await.unwrap().ok();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_slow_request_times_out() {
    let webhook = Serving::start(|options| options.request_timeout = Duration::from_millis(50)).await;
    let mut stream = webhook.connect().await;
    stream.write_all(head(100).as_bytes()).await.unwrap();
    let answer = until_close(stream).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.ends_with("the request took more than 0.05 s to arrive"), "{answer}");
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let webhook = Serving::start(|options| options.idle_timeout = Duration::from_millis(50)).await;
    webhook.client().await.closed().await;
}

#[tokio::test]
async fn a_handshake_that_does_not_come_times_out() {
    let webhook = Serving::start(|options| options.handshake_timeout = Duration::from_millis(50)).await;
    let mut stream = tokio::net::TcpStream::connect(webhook.address).await.unwrap();
    let read = timeout(LIMIT, stream.read_u8()).await.unwrap();
    assert!(read.is_err(), "the server closes the connection");
}

#[tokio::test]
async fn plain_text_and_garbage_do_not_harm() {
    let webhook = Serving::start(|_| {}).await;
    let mut stream = tokio::net::TcpStream::connect(webhook.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut rest)).await.unwrap().ok();
    let mut client = webhook.client().await;
    assert_eq!(client.send("GET", "/healthz", "", Vec::new()).await.0, 200);
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_soon() {
    let webhook = Serving::start(|options| options.header_timeout = Duration::from_millis(50)).await;
    let silent = webhook.client().await;
    let mut half = webhook.connect().await;
    half.write_all(b"GET /readyz HTTP/1.1\r\n").await.unwrap();
    silent.closed().await;
    assert_eq!(until_close(half).await, "");
}

/// The limit is for the first request: the API server keeps connections for the next one.
#[tokio::test]
async fn a_connection_that_had_a_request_stays() {
    let header_timeout = Duration::from_millis(20);
    let webhook = Serving::start(|options| options.header_timeout = header_timeout).await;
    // A slow machine may not send its first request in time.
    let first_answer = async {
        loop {
            let mut stream = webhook.connect().await;
            let request = b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n";
            let mut start = [0; "HTTP/1.1 200".len()];
            if stream.write_all(request).await.is_ok() && stream.read_exact(&mut start).await.is_ok() {
                break stream;
            }
        }
    };
    let mut client = timeout(LIMIT, first_answer).await.unwrap();
    tokio::time::sleep(header_timeout * 3).await;
    client.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(until_close(client).await.contains("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn idle_connections_do_not_shut_out_others() {
    let webhook = Serving::start(|options| options.max_connections = 4).await;
    // The API server's: it has had a request.
    let mut used = webhook.client().await;
    assert_eq!(used.send("GET", "/readyz", "", Vec::new()).await.0, 200);
    let mut idle: Vec<Box<dyn Any>> = Vec::new();
    for turn in 0..12 {
        idle.push(match turn % 3 {
            // No handshake, no request, half a head.
            0 => Box::new(tokio::net::TcpStream::connect(webhook.address).await.unwrap()),
            1 => Box::new(webhook.connect().await),
            _ => {
                let mut stream = webhook.connect().await;
                stream.write_all(b"GET /readyz HTTP/1.1\r\n").await.unwrap();
                Box::new(stream)
            }
        });
    }
    let mut client = webhook.client().await;
    assert_eq!(client.send("GET", "/readyz", "", Vec::new()).await.0, 200);
    assert_eq!(used.send("GET", "/readyz", "", Vec::new()).await.0, 200, "a used connection is the last to go");
    drop(idle);
}

/// Connections with requests keep their places; another one waits for the first that is done.
#[tokio::test]
async fn connections_are_bounded() {
    let webhook = Serving::start(|options| options.max_connections = 1).await;
    let mut first = webhook.connect().await;
    ask_for_body(&mut first).await;
    let mut second = std::pin::pin!(webhook.connect());
    let early = timeout(Duration::from_millis(100), second.as_mut()).await;
    assert!(early.is_err(), "the handshake waits");
    first.write_all(b"{}").await.unwrap();
    let stream = timeout(LIMIT, second).await.unwrap();
    assert_eq!(Client::new(stream).await.send("GET", "/healthz", "", Vec::new()).await.0, 200);
}

/// Sends the head of a review with a body of two bytes, and waits until the server asks for the body.
async fn ask_for_body(stream: &mut support::Stream) {
    let head = head(2).replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut asked = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    timeout(LIMIT, stream.read_exact(&mut asked)).await.unwrap().unwrap();
}

/// A body of which a part comes, and then nothing.
struct Stalled(Option<Bytes>);

impl Body for Stalled {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
    }
}

fn request<B>(body: B) -> ::http::Request<B> {
    ::http::Request::post("/validate").header("content-type", "application/json").body(body).unwrap()
}

/// A review with spaces at its end.
fn review_of_size(size: usize) -> Full<Bytes> {
    let mut body = review_of("CREATE", &vmi("gpu")).to_string().into_bytes();
    body.resize(size, b' ');
    Full::new(body.into())
}

/// Large requests are bounded, since they need memory. Small ones do not wait for them, nor for each other.
#[tokio::test(start_paused = true)]
async fn large_requests_are_bounded_and_small_ones_are_not_held_up() {
    let policy = watch::Sender::new(Policy::default());
    let limits = Options { max_requests: 1, ..Options::new(([127, 0, 0, 1], 0).into(), "", "") };
    let service = http::Service::new(&limits, policy.subscribe());
    let mut small_and_slow: Vec<_> =
        (0..70).map(|_| Box::pin(service.respond(request(Stalled(Some(Bytes::from_static(b"{"))))))).collect();
    let mut stalled = Box::pin(service.respond(request(Stalled(Some(vec![b' '; 100 << 10].into())))));
    for slow in &mut small_and_slow {
        assert!(timeout(Duration::ZERO, slow.as_mut()).await.is_err());
    }
    assert!(timeout(Duration::ZERO, stalled.as_mut()).await.is_err());

    let small = timeout(Duration::ZERO, service.respond(request(review_of_size(60 << 10)))).await;
    assert_eq!(small.expect("a small review does not wait").unwrap().status(), 200);
    let start = tokio::time::Instant::now();
    let mut large = Box::pin(service.respond(request(review_of_size(100 << 10))));
    assert!(timeout(Duration::ZERO, large.as_mut()).await.is_err(), "a large one waits");
    let (large, stalled) = tokio::join!(large, stalled);
    assert_eq!(stalled.unwrap().status(), 408);
    assert_eq!(large.unwrap().status(), 200);
    assert!(start.elapsed() <= limits.body_timeout + Duration::from_millis(10), "{:?}", start.elapsed());
}

/// A byte now and then is no progress.
#[tokio::test]
async fn a_trickled_body_times_out() {
    let webhook = Serving::start(|options| options.body_timeout = Duration::from_millis(100)).await;
    let (mut answer, mut sender) = tokio::io::split(webhook.connect().await);
    sender.write_all(head(1 << 20).as_bytes()).await.unwrap();
    let trickle = async {
        // Ends when the server closes the connection.
        while sender.write_all(b" ").await.is_ok() && sender.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let mut text = Vec::new();
    let read = async {
        answer.read_to_end(&mut text).await.ok();
    };
    timeout(LIMIT, async { tokio::join!(read, trickle) }).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("HTTP/1.1 408 ") && text.contains("131072 bytes per 0.1 s"), "{text}");
}

#[tokio::test]
async fn a_stop_finishes_open_requests_and_closes_idle_connections() {
    let webhook = Serving::start(|_| {}).await;
    let idle = webhook.client().await;
    let mut open = webhook.connect().await;
    let body = review_of("CREATE", &vmi("gpu")).to_string();
    let (first, rest) = body.split_at(body.len() / 2);
    open.write_all(head(body.len()).as_bytes()).await.unwrap();
    open.write_all(first.as_bytes()).await.unwrap();
    // Its answer shows that the connection of the open request was accepted before.
    let mut last = webhook.client().await;
    assert_eq!(last.send("GET", "/readyz", "", Vec::new()).await.0, 200);

    webhook.stop.cancel();
    idle.closed().await;
    last.closed().await;
    open.write_all(rest.as_bytes()).await.unwrap();
    let answer = until_close(open).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"allowed\":true"), "{answer}");
    timeout(LIMIT, webhook.done).await.unwrap().unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(webhook.address).await.is_err());
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let webhook = Serving::start(|options| options.grace = Duration::from_millis(50)).await;
    let mut open = webhook.connect().await;
    open.write_all(head(100).as_bytes()).await.unwrap();
    webhook.stop.cancel();
    timeout(LIMIT, webhook.done).await.unwrap().unwrap().unwrap();
}

/// The head of a request that does not go on is no open request.
#[tokio::test]
async fn a_stop_does_not_wait_for_half_a_head() {
    let webhook = Serving::start(|options| options.grace = LIMIT * 10).await;
    let mut half = webhook.connect().await;
    half.write_all(b"GET /readyz HTTP/1.1\r\n").await.unwrap();
    let mut client = webhook.client().await;
    assert_eq!(client.send("GET", "/readyz", "", Vec::new()).await.0, 200);
    webhook.stop.cancel();
    timeout(LIMIT, webhook.done).await.unwrap().unwrap().unwrap();
    drop(half);
}

/// As Kubernetes mounts a secret: `tls.crt -> ..data/tls.crt`, `..data -> ..1`, and a rename over `..data`.
#[tokio::test]
async fn a_certificate_replaced_by_symbolic_link_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (old, new) = (Pair::new(), Pair::new());
    old.write(&path.join("..1"));
    std::os::unix::fs::symlink("..1", path.join("..data")).unwrap();
    for file in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(format!("..data/{file}"), path.join(file)).unwrap();
    }
    let webhook = Webhook::bind(options(path), Policy::default()).await.unwrap();
    let (address, stop) = (webhook.address(), CancellationToken::new());
    let done = tokio::spawn(webhook.serve(stop.clone()));
    let mut before = Client::new(connect(address, &[&old]).await.unwrap()).await;

    // Half a replacement leaves the pair in use.
    std::fs::write(path.join("..1").join("tls.key"), "no key").unwrap();
    std::fs::write(path.join("other"), "wakes the watch").unwrap();
    connect(address, &[&old]).await.unwrap();

    new.write(&path.join("..2"));
    std::os::unix::fs::symlink("..2", path.join("..data_tmp")).unwrap();
    std::fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    let replaced = async { while connect(address, &[&new]).await.is_err() {} };
    timeout(LIMIT, replaced).await.expect("the new certificate is not used");
    assert!(connect(address, &[&old]).await.is_err());
    assert_eq!(before.send("GET", "/healthz", "", Vec::new()).await.0, 200, "open connections stay");
    stop.cancel();
    timeout(LIMIT, done).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_an_error_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let bind = || Webhook::bind(options(directory.path()), Policy::default());
    let path = |file: &str| directory.path().join(file);
    let error = bind().await.unwrap_err().to_string();
    assert!(error.contains(path("tls.crt").to_str().unwrap()) && error.contains("No such file"), "{error}");

    Pair::new().write(directory.path());
    std::fs::write(path("tls.crt"), "").unwrap();
    assert!(bind().await.unwrap_err().to_string().ends_with("the file has no certificate in PEM"));

    Pair::new().write(directory.path());
    std::fs::remove_file(path("tls.key")).unwrap();
    let error = bind().await.unwrap_err().to_string();
    assert!(error.contains(path("tls.key").to_str().unwrap()), "{error}");

    let (one, other) = (Pair::new(), Pair::new());
    one.write(directory.path());
    std::fs::copy(path("tls.crt"), path("one.crt")).unwrap();
    other.write(directory.path());
    std::fs::rename(path("one.crt"), path("tls.crt")).unwrap();
    let error = bind().await.unwrap_err();
    assert!(matches!(error, WebhookError::Certificate(CertificateError::Pair { .. })), "{error}");
}

/// What is no regular file, or has no end, would hold up the only thread.
#[tokio::test]
async fn a_certificate_that_is_a_fifo_or_a_device_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    Pair::new().write(directory.path());
    let fifo = directory.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    for file in [fifo, "/dev/zero".into()] {
        for options in [
            Options { certificate: file.clone(), ..options(directory.path()) },
            Options { key: file.clone(), ..options(directory.path()) },
        ] {
            let bound = timeout(LIMIT, Webhook::bind(options, Policy::default())).await.unwrap();
            let error = bound.unwrap_err().to_string();
            assert!(error.contains(file.to_str().unwrap()) && error.ends_with("not a file"), "{error}");
        }
    }
}

/// A certificate replaced by a FIFO leaves the current one, and the webhook serving and stopping.
#[tokio::test]
async fn a_certificate_that_becomes_a_fifo_leaves_the_current_one() {
    let directory = tempfile::tempdir().unwrap();
    let old = Pair::new();
    old.write(directory.path());
    let webhook = Webhook::bind(options(directory.path()), Policy::default()).await.unwrap();
    let (address, stop) = (webhook.address(), CancellationToken::new());
    let done = tokio::spawn(webhook.serve(stop.clone()));
    let file = directory.path().join("tls.crt");
    std::fs::remove_file(&file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RUSR).unwrap();
    connect(address, &[&old]).await.unwrap();

    // A later certificate is still noticed.
    let new = Pair::new();
    new.write(&directory.path().join("new"));
    for file in ["tls.key", "tls.crt"] {
        std::fs::rename(directory.path().join("new").join(file), directory.path().join(file)).unwrap();
    }
    let replaced = async { while connect(address, &[&new]).await.is_err() {} };
    timeout(LIMIT, replaced).await.expect("the new certificate is not used");
    stop.cancel();
    timeout(LIMIT, done).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_an_error_with_its_address() {
    let webhook = Serving::start(|_| {}).await;
    let directory = tempfile::tempdir().unwrap();
    Pair::new().write(directory.path());
    let taken = Options { address: webhook.address, ..options(directory.path()) };
    let error = Webhook::bind(taken, Policy::default()).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("webhook cannot listen on {}: Address already in use", webhook.address)),
        "{error}"
    );
}
