use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::connection::config::Config;
use crate::{ApiError, DraClient};

use super::*;

/// What a server does with a request.
#[derive(Clone, Copy)]
enum Reaction {
    Answer(&'static str),
    /// Answers, and closes the connection without having said so.
    AnswerAndClose(&'static str),
    /// Closes the connection without an answer.
    Close,
    /// Does not answer.
    Silence,
}

use Reaction::{Answer, AnswerAndClose, Close, Silence};

/// A server that reacts to requests in turn.
struct Server {
    url: String,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
    /// The number of connections that the client has closed.
    ended: Arc<AtomicUsize>,
}

impl Server {
    async fn start(reactions: &'static [Reaction]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(Mutex::default());
        let ended = Arc::new(AtomicUsize::new(0));
        let server = Self { url, connections: connections.clone(), requests: requests.clone(), ended: ended.clone() };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let (requests, ended) = (requests.clone(), ended.clone());
                tokio::spawn(async move {
                    if serve(stream, reactions, requests).await.is_err() {
                        ended.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        server
    }

    async fn client(&self, path: &str) -> DraClient {
        let mut config = Config::new(format!("{}{path}", self.url).parse().unwrap());
        config.user.token = Some("secret".to_owned().into());
        DraClient::on(super::super::with_config(config).await.unwrap())
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// The client has closed the connection.
struct Ended;

async fn serve(mut stream: TcpStream, reactions: &[Reaction], requests: Arc<Mutex<Vec<String>>>) -> Result<(), Ended> {
    let mut bytes = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                break String::from_utf8(bytes.drain(..end + 4).collect()).unwrap();
            }
            // A client that closes a connection with unread bytes resets it.
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return Err(Ended);
            }
        };
        // A test sends at most a few bytes as body, in the same segment.
        bytes.clear();
        let reaction = {
            let mut requests = lock(&requests);
            requests.push(head);
            reactions[requests.len() - 1]
        };
        match reaction {
            Answer(answer) | AnswerAndClose(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
            Close | Silence => {}
        }
        if matches!(reaction, AnswerAndClose(_) | Close) {
            return Ok(());
        }
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
const ENDLESS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n";
const LARGE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n0123456789ab";

async fn send(client: &DraClient, method: Method) -> Result<String, ApiError> {
    let body = if method == Method::GET { Vec::new() } else { b"x".to_vec() };
    let request = client.request(method, "/apis/x?watch=0", "application/json", body)?;
    let (status, body) = client.exchange(request, 10).await?;
    assert_eq!(status, StatusCode::OK);
    Ok(String::from_utf8(body.into()).unwrap())
}

#[tokio::test]
async fn requests_share_a_connection_and_have_the_credentials_and_the_path_of_the_server() {
    let server = Server::start(&[Answer(OK), Answer(CHUNKED), Answer(OK)]).await;
    let client = server.client("/prefix/").await;
    for method in [Method::GET, Method::GET, Method::PATCH] {
        assert_eq!(send(&client, method).await.unwrap(), "{}");
    }
    assert_eq!(server.connections(), 1);
    let requests = lock(&server.requests).clone();
    for request in &requests {
        assert!(request.contains(" /prefix/apis/x?watch=0 HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("authorization: Bearer secret\r\n"), "{request}");
        assert!(request.contains("accept: application/json\r\n"), "{request}");
        assert!(request.contains(&format!("host: {}\r\n", &server.url["http://".len()..])), "{request}");
    }
    assert!(requests[2].contains("content-length: 1\r\n"), "{requests:?}");
}

/// As a watch does: the answer has no end until the reader goes away.
#[tokio::test]
async fn an_answer_that_is_read_as_it_arrives_has_a_connection_of_its_own() {
    let server = Server::start(&[Answer(OK), Answer(ENDLESS), Answer(OK)]).await;
    let client = server.client("/prefix").await;
    send(&client, Method::GET).await.unwrap();
    let request = client.request(Method::GET, "/apis/x?watch=1", "application/json", Vec::new()).unwrap();
    let (head, mut body) = client.send(request).await.unwrap().into_parts();
    assert_eq!(head.status, StatusCode::OK);
    let mut read = Vec::new();
    while read.len() < 2 {
        read.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    assert_eq!(read, b"{}");
    send(&client, Method::GET).await.unwrap();
    assert_eq!(server.connections(), 2, "the requests before and after it share one");
    assert!(
        tokio::select! { biased; _ = body.frame() => false, () = std::future::ready(()) => true },
        "there is no more yet"
    );
    assert!(lock(&server.requests)[1].contains(" /prefix/apis/x?watch=1 HTTP/1.1\r\n"));
    assert!(lock(&server.requests)[1].contains("authorization: Bearer secret\r\n"));
    assert_eq!(server.ended.load(Ordering::SeqCst), 0);
    drop(body);
    while server.ended.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_is_replaced() {
    let server = Server::start(&[AnswerAndClose(OK), Answer(OK), AnswerAndClose(OK), Answer(OK)]).await;
    let client = server.client("").await;
    for method in [Method::GET, Method::GET, Method::PATCH, Method::PATCH] {
        send(&client, method).await.unwrap();
        // Until the kernel has reported the end of the stream, which is later if another test forks at this moment.
        while client.kept_for_tests().take_idle().is_some_and(|mut kept| {
            let is_usable = kept.poll_is_usable();
            client.kept_for_tests().keep(kept);
            is_usable && lock(&server.requests).len() % 2 == 1
        }) {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(server.connections(), 3);
}

/// The end of a connection may be seen only after a request was given to it: by another thread of the runtime, or because a
/// credential took long.
#[tokio::test]
async fn a_request_on_a_connection_that_is_over_fails_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
    let kept = super::super::with_config(config).await.unwrap();
    let (connection, accepted) = tokio::join!(kept.connect(), listener.accept());
    let (mut connection, mut stream) = (connection.unwrap(), accepted.unwrap().0);
    let request = || Request::get("/").header(header::HOST, "x").body(Full::default()).unwrap();
    stream.write_all(OK.as_bytes()).await.unwrap();
    let answer = connection.send(request()).await.unwrap();
    connection.read(answer.into_body(), 10).await.unwrap();
    stream.shutdown().await.unwrap();
    // Most likely until the runtime knows of the end, which the connection does not. Without, the request fails as well.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(stream);
    let error = connection.send(request()).await.unwrap_err();
    assert!(is_without_answer(&error), "{error}");
}

/// A second request for the same object must not wait for the same dead peer.
#[tokio::test]
async fn a_request_may_ask_for_a_new_connection() {
    let server = Server::start(&[Answer(OK), Answer(OK)]).await;
    let client = server.client("").await;
    send(&client, Method::GET).await.unwrap();
    let request = client.request(Method::GET, "/", "application/json", Vec::new()).unwrap();
    assert_eq!(client.exchange_anew(request, 10).await.unwrap().0, StatusCode::OK);
    assert_eq!(server.connections(), 2);
    assert_eq!(lock(&client.kept_for_tests().pool).idle.len(), 2);
}

/// The server closes a connection at the same moment at which a request is sent.
#[tokio::test]
async fn a_get_without_an_answer_on_a_kept_connection_is_sent_again_and_a_patch_is_not() {
    let server = Server::start(&[Answer(OK), Close, Answer(OK), Close, Close]).await;
    let client = server.client("").await;
    send(&client, Method::GET).await.unwrap();
    send(&client, Method::GET).await.unwrap();
    assert_eq!((server.connections(), lock(&server.requests).len()), (2, 3));
    let error = send(&client, Method::PATCH).await.unwrap_err();
    assert!(matches!(error, ApiError::Send(_)) && error.is_transient(), "{error}");
    assert_eq!(lock(&server.requests).len(), 4);
    // On a new connection nothing is sent twice.
    send(&client, Method::GET).await.unwrap_err();
    assert_eq!(lock(&server.requests).len(), 5);
}

/// Creates a client with as many kept connections as the server answers requests first.
async fn client_with_kept(server: &Server, connections: usize) -> DraClient {
    let client = server.client("").await;
    for _ in 0..connections {
        let request = client.request(Method::GET, "/", "application/json", Vec::new()).unwrap();
        client.exchange_anew(request, 10).await.unwrap();
    }
    assert_eq!(number_of_kept(&client), connections);
    client
}

fn number_of_kept(client: &DraClient) -> usize {
    lock(&client.kept_for_tests().pool).idle.len()
}

/// Sends a request until the server has got as many of them. There is no answer meanwhile.
async fn send_until(mut answer: Pin<&mut impl Future>, server: &Server, requests: usize) {
    while lock(&server.requests).len() < requests {
        tokio::select! { biased; _ = &mut answer => panic!("there is no answer"), () = tokio::task::yield_now() => {} }
    }
}

/// A balancer that has forgotten its connections: without an error on any of them, each request would wait for its time limit.
#[tokio::test]
async fn the_other_kept_connections_are_not_used_after_a_request_on_one_got_no_answer() {
    let server = Server::start(&[Answer(OK), Answer(OK), Answer(OK), Close, Answer(OK)]).await;
    let client = client_with_kept(&server, 3).await;
    send(&client, Method::GET).await.unwrap();
    assert_eq!((number_of_kept(&client), server.connections()), (1, 4), "the new one is kept");

    let server = Server::start(&[Answer(OK), Answer(OK), Answer(OK), Silence, Answer(OK)]).await;
    let client = client_with_kept(&server, 3).await;
    let mut given_up = Box::pin(send(&client, Method::GET));
    send_until(given_up.as_mut(), &server, 4).await;
    drop(given_up);
    assert_eq!(number_of_kept(&client), 0);
    send(&client, Method::GET).await.unwrap();
    assert_eq!((number_of_kept(&client), server.connections()), (1, 4));
}

#[tokio::test]
async fn the_other_kept_connections_stay_after_an_answer_or_if_they_are_newer_than_the_request() {
    // Its head arrives, and its end does not.
    let server = Server::start(&[Answer(OK), Answer(OK), Answer(ENDLESS), Answer(OK)]).await;
    let client = client_with_kept(&server, 2).await;
    let too_large = client.request(Method::GET, "/", "application/json", Vec::new()).unwrap();
    client.exchange(too_large, 1).await.unwrap_err();
    assert_eq!(number_of_kept(&client), 1);

    let server = Server::start(&[Answer(OK), Silence, Answer(OK)]).await;
    let client = client_with_kept(&server, 1).await;
    let mut silent = Box::pin(send(&client, Method::GET));
    send_until(silent.as_mut(), &server, 2).await;
    send(&client, Method::GET).await.unwrap();
    drop(silent);
    assert_eq!((number_of_kept(&client), server.connections()), (1, 2));
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_an_error_and_ends_its_connection() {
    let server = Server::start(&[Answer(LARGE), Answer(OK)]).await;
    let client = server.client("").await;
    let error = send(&client, Method::GET).await.unwrap_err();
    assert!(error.to_string().contains("length limit exceeded"), "{error}");
    send(&client, Method::GET).await.unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test(start_paused = true)]
async fn connections_that_nobody_uses_are_closed() {
    let server = Server::start(&[Answer(OK)]).await;
    let client = server.client("").await;
    send(&client, Method::GET).await.unwrap();
    let kept = client.kept_for_tests();
    lock(&kept.pool).idle[0].since -= MAX_IDLE_TIME;
    while lock(&kept.pool).closing.is_some() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(lock(&kept.pool).idle.is_empty());
}
