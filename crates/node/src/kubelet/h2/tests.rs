//! Tests of the client against frames that a server could send.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio_util::task::AbortOnDropHandle;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(180);

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(5), Duration::from_millis(5)).with_jitter(1.0, 1.0)
}

/// Starts a server that sends these frames once it has the request, and returns what it received.
fn server(path: &Path, frames: Vec<u8>) -> AbortOnDropHandle<Vec<u8>> {
    let listener = UnixListener::bind(path).unwrap();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut settings = Vec::new();
        frame::append(&mut settings, Kind::Settings, 0, 0, &[]);
        stream.write_all(&settings).await.unwrap();
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        // The request ends with an empty message with the END_STREAM flag.
        while !received.ends_with(&[0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]) {
            let length = stream.read(&mut buffer).await.unwrap();
            received.extend(&buffer[..length]);
        }
        stream.write_all(&frames).await.unwrap();
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            received.extend(&buffer[..length]);
        }
        received
    }))
}

/// Encodes headers without compression.
fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        let header = (name.as_bytes().to_vec(), value.as_bytes().to_vec(), 0);
        Encoder::default().encode(header, &mut block).unwrap();
    }
    block
}

fn frames(list: &[(Kind, u8, u32, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, flags, stream, payload) in list {
        frame::append(&mut bytes, *kind, *flags, *stream, payload);
    }
    bytes
}

async fn call(frames: Vec<u8>) -> (Result<Vec<u8>, Status>, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a@b.sock");
    let server = server(&path, frames);
    let mut connection = Connection::dial(&path, TIMEOUT, backoff()).await.unwrap();
    let response = connection.call("/p.S/M", &[], TIMEOUT).await;
    drop(connection);
    (response, server.await.unwrap())
}

const HEADERS: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];

#[test]
fn the_authority_is_the_path_as_grpc_go_escapes_it() {
    let path = Path::new("/var/lib/kubelet/plugins_registry/gpu.example.com@reg.sock");
    assert_eq!(authority(path), "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu.example.com@reg.sock");
    assert_eq!(authority(Path::new("/a b:=&$+-_.~%ä")), "%2Fa%20b:=&$+-_.~%25%C3%A4");
}

#[tokio::test]
async fn a_response_in_pieces_among_pings_and_settings_is_read_and_those_are_answered() {
    let block = block(&HEADERS);
    let (first, second) = block.split_at(7);
    let list = [
        (Kind::Ping, 0, 0, vec![7; 8]),
        (Kind::Headers, 0, 1, first.to_vec()),
        (Kind::Continuation, flag::END_HEADERS, 1, second.to_vec()),
        (Kind::Settings, 0, 0, vec![]),
        (Kind::Data, flag::PADDED, 1, vec![2, 0, 0, 0, 0, 3, 1, 9, 9]),
        (Kind::Other, 0, 1, vec![1]),
        (Kind::Data, 0, 1, vec![2, 3]),
        (Kind::Headers, flag::END_HEADERS | flag::END_STREAM, 1, self::block(&[("grpc-status", "0")])),
    ];
    let (response, received) = call(frames(&list)).await;
    assert_eq!(response.unwrap(), [1, 2, 3]);
    let contains = |frame: &[(Kind, u8, u32, Vec<u8>)]| {
        let frame = frames(frame);
        received.windows(frame.len()).any(|window| window == frame)
    };
    assert!(contains(&[(Kind::Ping, flag::ACK, 0, vec![7; 8])]));
    assert!(contains(&[(Kind::Settings, flag::ACK, 0, vec![])]));
    assert!(contains(&[(Kind::WindowUpdate, 0, 0, vec![0, 0, 0, 9]), (Kind::WindowUpdate, 0, 1, vec![0, 0, 0, 9])]));
}

#[tokio::test]
async fn the_call_is_sent_as_a_kubelet_sends_it() {
    let (_, received) = call(frames(&[(Kind::Reset, 0, 1, vec![0, 0, 0, 8])])).await;
    let rest = received.strip_prefix(PREFACE).unwrap();
    let at = rest.windows(4).position(|window| window[0] == 1 && window[1] == flag::END_HEADERS).unwrap();
    let length = usize::from(rest[at - 2]) << 8 | usize::from(rest[at - 1]);
    let mut block = rest[at + 6..at + 6 + length].to_vec();
    let mut fields = Vec::new();
    Decoder::default().decode(&mut block, &mut fields).unwrap();
    let fields: Vec<(String, String)> = fields
        .into_iter()
        .map(|(name, value, _)| (String::from_utf8(name).unwrap(), String::from_utf8(value).unwrap()))
        .collect();
    let value = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert_eq!((value(":method"), value(":path")), (Some("POST"), Some("/p.S/M")));
    assert!(value(":authority").unwrap().starts_with("%2F") && value(":authority").unwrap().ends_with("%2Fa@b.sock"));
    assert_eq!((value("te"), value("grpc-timeout")), (Some("trailers"), Some("180000m")));
}

#[tokio::test]
async fn every_way_in_which_a_call_can_end_is_reported() {
    let trailers = |headers: &[(&str, &str)]| {
        let all = [&HEADERS[..], headers].concat();
        frames(&[(Kind::Headers, flag::END_HEADERS | flag::END_STREAM, 1, block(&all))])
    };
    let cases = [
        (frames(&[(Kind::Reset, 0, 1, vec![0, 0, 0, 1])]), Code::Internal, "reset by the server: PROTOCOL_ERROR"),
        (
            frames(&[(Kind::GoAway, 0, 0, vec![0, 0, 0, 0, 0, 0, 0, 1])]),
            Code::Unavailable,
            "closed by the server: PROTOCOL",
        ),
        (trailers(&[("grpc-status", "14"), ("grpc-message", "not%20now%")]), Code::Unavailable, "not now%"),
        (trailers(&[("grpc-status", "0")]), Code::Internal, "not one message"),
        (trailers(&[]), Code::Unknown, "HTTP status 200 and no grpc-status"),
        (frames(&[(Kind::Data, flag::END_STREAM, 1, vec![0; 5])]), Code::Internal, "without trailers"),
        (
            frames(&[(Kind::Headers, flag::END_HEADERS | flag::PADDED, 1, vec![9, 1])]),
            Code::Unavailable,
            "shorter than it says",
        ),
    ];
    for (frames, code, message) in cases {
        let (response, _) = call(frames).await;
        let status = response.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(message), "{status}");
    }
}

#[tokio::test]
async fn a_call_without_response_ends_at_its_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sock");
    let _server = server(&path, vec![]);
    let mut connection = Connection::dial(&path, TIMEOUT, backoff()).await.unwrap();
    let status = connection.call("/p.S/M", &[], Duration::from_millis(30)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_dial_is_retried_until_a_server_accepts_or_the_timeout_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("late.sock");
    let status = Connection::dial(&path, Duration::from_millis(50), backoff()).await.unwrap_err();
    assert!(status.message().contains("late.sock: no connection within"), "{status}");
    // First no server accepts, and then one does.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let dialling = Connection::dial(&path, TIMEOUT, backoff());
    let later = async {
        tokio::task::yield_now().await;
        std::fs::remove_file(&path).unwrap();
        Some(server(&path, vec![]))
    };
    let (connection, _server) = tokio::join!(dialling, later);
    connection.unwrap();
}

/// Everything that another client writes passes byte for byte, except the authority.
#[tokio::test]
async fn only_the_authority_is_rewritten() {
    let fields = |authority: &str| block(&[(":method", "POST"), (":authority", authority), ("te", "trailers")]);
    let sent = |authority: &str| {
        let list = [
            (Kind::Settings, 0, 0, vec![0, 2, 0, 0, 0, 0]),
            (Kind::Headers, flag::END_HEADERS, 1, fields(authority)),
            (Kind::Data, flag::END_STREAM, 1, vec![7; 300]),
            (Kind::Ping, 0, 0, vec![1; 8]),
            (Kind::Headers, flag::END_HEADERS | flag::END_STREAM, 3, fields(authority)),
        ];
        [PREFACE.to_vec(), frames(&list)].concat()
    };
    // For every size of the client's writes.
    for size in [1, 7, 64, 10_000] {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let mut connection = WithAuthority::new(ours, "%2Fa%2Fb.sock".to_owned());
        for piece in sent("localhost").chunks(size) {
            connection.write_all(piece).await.unwrap();
        }
        connection.shutdown().await.unwrap();
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, sent("%2Fa%2Fb.sock"), "pieces of {size}");
    }
}
