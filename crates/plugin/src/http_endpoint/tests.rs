//! Tests of the endpoint over loopback sockets, with raw requests.

use std::collections::BTreeMap;
use std::future::Future;

use drakkar_metadata::name::DriverName;
use drakkar_slices::Overview;
use rstest::rstest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::ledger::DeviceLedger;
use crate::metrics::Metrics;
use crate::recent_errors::RecentErrors;
use crate::registration::RegistrationStatus;
use crate::store::{Settings, Store, SystemFiles};

/// The limit for anything in these tests, which take far less.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The warning that Kubernetes' own z-pages begin with.
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees \
                       and is for debugging purposes only.";
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn store_in(directory: &std::path::Path) -> Store<SystemFiles> {
    let settings = Settings {
        driver: "gpu.example.com".parse().unwrap(),
        plugin_directory: directory.to_owned(),
        cdi_directory: directory.join("cdi"),
        versions: drakkar_metadata::Versions::default(),
        layouts: vec![drakkar_metadata::path::Layout::Kep],
        boot: "boot".into(),
        exclusive: true,
    };
    std::fs::create_dir(&settings.cdi_directory).unwrap();
    Store::open(SystemFiles, settings).unwrap()
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, future).await.expect("it hangs")
}

/// An endpoint and the sources of its pages.
struct Driver {
    endpoint: HttpEndpoint,
    registration: watch::Sender<RegistrationStatus>,
    fatal: watch::Sender<Option<String>>,
    not_ready: watch::Sender<Option<String>>,
    metrics: Metrics,
    _directory: tempfile::TempDir,
}

impl Driver {
    fn start() -> Self {
        Self::start_with(Limits::default())
    }

    fn start_with(limits: Limits) -> Self {
        Self::start_on(RuntimeProbe::new(Handle::current()), limits)
    }

    fn start_on(runtime: RuntimeProbe, limits: Limits) -> Self {
        let registration = watch::Sender::default();
        let fatal = watch::Sender::default();
        let not_ready = watch::Sender::default();
        let driver = DriverName::new("gpu.example.com").unwrap();
        let metrics = Metrics::new(&driver);
        let directory = tempfile::tempdir().unwrap();
        let pages = Pages {
            driver,
            version: "1.2.3".to_owned(),
            registration: registration.subscribe(),
            fatal: fatal.subscribe(),
            not_ready: not_ready.subscribe(),
            runtime,
            calls: None,
            metrics: metrics.clone(),
            publishing: Overview::default(),
            status: vec![
                ("Node".to_owned(), "node-1".to_owned()),
                ("Metadata".to_owned(), "on, v1alpha1, layouts kep and kubernetes".to_owned()),
                ("DRA socket".to_owned(), "/var/lib/kubelet/plugins/gpu.example.com/dra\nforged: line".to_owned()),
            ],
            node: Some("node-1".to_owned()),
            ledger: Arc::new(DeviceLedger::default()),
            store: Arc::new(store_in(directory.path())),
            health: None,
            recent: RecentErrors::default(),
            flags: [("node-name", "node-1"), ("cdi-dir", "/var/run/cdi\nforged=1")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            details: HttpDetails::default(),
        };
        let endpoint = HttpListener::bind(ANY_PORT).unwrap().serve_with(pages, limits).unwrap();
        Self { endpoint, registration, fatal, not_ready, metrics, _directory: directory }
    }

    async fn connect(&self) -> TcpStream {
        in_time(TcpStream::connect(self.endpoint.local_address())).await.unwrap()
    }

    async fn get(&self, path: &str) -> Response {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await
    }

    async fn ask(&self, request: &str) -> Response {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        Response::read(&mut stream).await
    }

    /// Gets a text page and returns its status code and body.
    async fn status(&self, path: &str) -> (u16, String) {
        let response = self.get(path).await;
        assert_eq!(response.headers["content-type"], "text/plain; charset=utf-8");
        (response.code, response.body)
    }
}

#[derive(Debug, PartialEq)]
struct Response {
    code: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Response {
    /// Reads a response up to the end of the connection.
    async fn read(stream: &mut TcpStream) -> Self {
        let text = read_to_end(stream).await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
        let mut lines = head.lines();
        let code = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        Self { code, headers: lines.map(|line| header(line).unwrap()).collect(), body: body.to_owned() }
    }
}

/// Reads to the end of the connection. A reset is an end too: the endpoint had not read the whole request.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = vec![];
    in_time(stream.read_to_end(&mut bytes)).await.ok();
    String::from_utf8(bytes).unwrap()
}

#[rstest]
#[tokio::test]
async fn a_driver_is_alive_until_a_fatal_error(#[values("healthz", "livez")] page: &str) {
    let driver = Driver::start();
    assert_eq!(driver.status(&format!("/{page}")).await, (200, "ok".to_owned()));
    let verbose = format!("[+]servers ok\n{page} check passed\n");
    assert_eq!(driver.status(&format!("/{page}?verbose")).await, (200, verbose.clone()));
    assert_eq!(driver.status(&format!("/{page}?a=b&verbose=1")).await, (200, verbose));
    assert_eq!(driver.status(&format!("/{page}?verbosely")).await, (200, "ok".to_owned()));
    assert_eq!(driver.status(&format!("/{page}/servers")).await, (200, "ok".to_owned()));

    driver.fatal.send_replace(Some("server of /run/dra.sock: cannot accept\nconnections".to_owned()));
    let reason = "server of /run/dra.sock: cannot accept\\nconnections";
    assert_eq!(driver.status(&format!("/{page}")).await, (503, format!("{reason}\n")));
    let verbose = format!("[-]servers failed: {reason}\n{page} check failed\n");
    assert_eq!(driver.status(&format!("/{page}?verbose")).await, (503, verbose));
}

#[tokio::test]
async fn a_driver_is_ready_while_it_is_registered() {
    let driver = Driver::start();
    let waiting = "waiting for the kubelet to register the driver";
    assert_eq!(driver.status("/readyz").await, (503, format!("{waiting}\n")));
    let verbose = format!(
        "[+]servers ok\n[-]registration failed: {waiting}\n[+]publishing ok\n[+]driver ok\nreadyz check failed\n"
    );
    assert_eq!(driver.status("/readyz?verbose").await, (503, verbose));
    assert_eq!(driver.status("/readyz/registration").await, (503, format!("{waiting}\n")));
    assert_eq!(driver.status("/readyz/servers").await, (200, "ok".to_owned()));
    // A driver that waits for the kubelet must not be restarted.
    assert_eq!(driver.status("/livez").await, (200, "ok".to_owned()));

    driver.registration.send_replace(RegistrationStatus::Failed { error: "no such\r\nversion".to_owned() });
    let refused = "the kubelet refused the registration: no such\\r\\nversion";
    assert_eq!(driver.status("/readyz").await, (503, format!("{refused}\n")));

    driver.registration.send_replace(RegistrationStatus::Registered);
    assert_eq!(driver.status("/readyz").await, (200, "ok".to_owned()));
    let verbose = "[+]servers ok\n[+]registration ok\n[+]publishing ok\n[+]driver ok\nreadyz check passed\n";
    assert_eq!(driver.status("/readyz?verbose").await, (200, verbose.to_owned()));

    driver.not_ready.send_replace(Some("no runtime".to_owned()));
    assert_eq!(driver.status("/readyz").await, (503, "no runtime\n".to_owned()));
    assert_eq!(driver.status("/livez").await, (200, "ok".to_owned()));
    driver.not_ready.send_replace(None);

    driver.fatal.send_replace(Some("out of luck".to_owned()));
    assert_eq!(driver.status("/readyz").await, (503, "out of luck\n".to_owned()));
    let verbose =
        "[-]servers failed: out of luck\n[+]registration ok\n[+]publishing ok\n[+]driver ok\nreadyz check failed\n";
    assert_eq!(driver.status("/readyz?verbose").await, (503, verbose.to_owned()));
}

#[tokio::test]
async fn a_driver_whose_registration_service_has_ended_is_not_ready() {
    let mut driver = Driver::start();
    driver.registration.send_replace(RegistrationStatus::Registered);
    assert_eq!(driver.status("/readyz").await.0, 200);
    driver.registration = watch::Sender::default();
    assert_eq!(driver.status("/readyz").await, (503, "the registration service has ended\n".to_owned()));
    assert_eq!(driver.status("/livez").await.0, 200);
}

#[tokio::test]
async fn metrics_are_current_and_in_the_format_that_the_client_asks_for() {
    let driver = Driver::start();
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let response = driver.ask(&format!("GET /metrics HTTP/1.1\r\nHost: node-1\r\n{accept}\r\n\r\n")).await;
    assert_eq!(response.code, 200);
    assert_eq!(response.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(response.body.ends_with("# EOF\n"));
    assert!(response.body.contains("\ndrakkar_plugin_prepared_claims 0\n"));

    let response = driver.get("/metrics").await;
    assert_eq!(response.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(response.body.contains("\n# TYPE drakkar_plugin_orphans_removed_total counter\n"), "{}", response.body);
    assert!(!response.body.contains("# EOF") && !response.body.contains("# UNIT"));
    assert!(response.body.contains("\ndrakkar_plugin_prepared_claims 0\n"));
    driver.metrics.set_claims_source(|| crate::ledger::ClaimCounts { prepared: 3, held: 3 });
    assert!(driver.get("/metrics").await.body.contains("\ndrakkar_plugin_prepared_claims 3\n"));
}

#[tokio::test]
async fn concurrent_scrapes_are_all_answered() {
    let driver = Driver::start();
    let responses = futures::future::join_all((0..32).map(|_| driver.get("/metrics"))).await;
    assert!(
        responses.iter().all(|response| response.code == 200 && response.body.contains("drakkar_plugin_registered 0"))
    );
}

/// A driver's collector can fail. That fails the scrape and nothing else.
#[tokio::test]
async fn a_panic_in_a_drivers_collector_fails_the_scrape_and_nothing_else() {
    #[derive(Debug)]
    struct Broken;
    impl prometheus_client::collector::Collector for Broken {
        fn encode(&self, _: prometheus_client::encoding::DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            panic!("injected")
        }
    }
    let driver = Driver::start();
    driver.metrics.with_registry(|registry| registry.register_collector(Box::new(Broken)));
    for _ in 0..2 {
        let response = driver.get("/metrics").await;
        assert_eq!((response.code, response.body.as_str()), (500, "metrics failed: see the log\n"));
    }
    assert_eq!(driver.status("/livez").await.0, 200);
}

#[tokio::test]
async fn the_status_page_describes_the_instance() {
    let driver = Driver::start();
    driver.registration.send_replace(RegistrationStatus::Registered);
    driver.metrics.set_claims_source(|| crate::ledger::ClaimCounts { prepared: 12, held: 12 });
    let (code, text) = driver.status("/statusz").await;
    assert_eq!(code, 200);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(""));
    assert_eq!(lines.next(), Some("gpu.example.com statusz"));
    assert_eq!(lines.next(), Some(WARNING));
    assert_eq!(lines.next(), Some(""));
    let started = lines.next().unwrap();
    assert!(started.starts_with("Started: ") && started.contains(" UTC 20"), "{started}");
    let up = lines.next().unwrap();
    assert!(up.starts_with("Up: ") && up.ends_with(" sec"), "{up}");
    let rest: Vec<&str> = lines.collect();
    let framework = format!("Framework: drakkar-plugin {}", env!("CARGO_PKG_VERSION"));
    let expected = [
        "Binary version: 1.2.3",
        "Paths: / /flagz /healthz /livez /metrics /readyz /statusz",
        &framework,
        "Registration: registered",
        "Servers: alive",
        "Prepared claims: 12",
        "Published resources: nothing yet",
        "Node: node-1",
        "Metadata: on, v1alpha1, layouts kep and kubernetes",
        "DRA socket: /var/lib/kubelet/plugins/gpu.example.com/dra\\nforged: line",
    ];
    assert_eq!(rest, expected);
}

#[tokio::test]
async fn the_flags_are_listed_in_the_format_of_kubernetes() {
    let driver = Driver::start();
    let expected = format!("\ngpu.example.com flagz\n{WARNING}\ncdi-dir=/var/run/cdi\\nforged=1\nnode-name=node-1\n");
    assert_eq!(driver.status("/flagz").await, (200, expected));
}

/// `:PORT` means all addresses, on a machine without IPv6 too.
#[tokio::test]
async fn all_addresses_include_those_of_ipv4() {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let listener = HttpListener::bind(any).unwrap();
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.address.port()));
    in_time(TcpStream::connect(local)).await.unwrap();
}

#[tokio::test]
async fn unknown_paths_list_the_pages() {
    let driver = Driver::start();
    let (code, text) = driver.status("/unknown").await;
    assert_eq!(code, 404);
    let pages = text.strip_prefix("404: page not found\n\n").unwrap();
    for page in pages::PATHS {
        assert!(pages.lines().any(|line| line.split(' ').next() == Some(page)), "{page} is not in {pages}");
        assert_ne!(driver.get(page).await.code, 404, "{page}");
    }
    for path in
        ["/nonsense", "/readyz/nonsense", "/livez/registration", "/metrics/", "//", "/%2e%2e/etc/passwd", "/%ff"]
    {
        let expected = format!("404: page not found\n\n{pages}");
        assert_eq!(driver.status(path).await, (404, expected), "{path}");
    }
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let driver = Driver::start();
    for page in ["/", "/healthz", "/livez", "/readyz", "/metrics", "/statusz", "/flagz", "/nonsense"] {
        let get = driver.get(page).await;
        let head = driver.ask(&format!("HEAD {page} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        assert_eq!((head.code, head.body.as_str()), (get.code, ""), "{page}");
        assert_eq!(head.headers["content-type"], get.headers["content-type"], "{page}");
    }
}

#[rstest]
#[tokio::test]
async fn other_methods_are_refused(
    #[values("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")] method: &str,
) {
    let driver = Driver::start();
    for page in ["/", "/healthz", "/readyz/registration", "/metrics", "/statusz"] {
        let response = driver.ask(&format!("{method} {page} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")).await;
        assert_eq!((response.code, response.body.as_str()), (405, "405: only GET and HEAD\n"), "{method} {page}");
        assert_eq!(response.headers["allow"], "GET,HEAD", "{method} {page}");
    }
}

#[tokio::test]
async fn responses_forbid_caching_and_content_sniffing() {
    let driver = Driver::start();
    let mut responses = vec![driver.ask("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await];
    for page in ["/", "/healthz", "/readyz", "/metrics", "/statusz", "/nonsense"] {
        responses.push(driver.get(page).await);
    }
    for response in responses {
        assert_eq!(response.headers["x-content-type-options"], "nosniff", "{response:?}");
        assert_eq!(response.headers["cache-control"], "no-store", "{response:?}");
    }
    let policy = &driver.get("/").await.headers["content-security-policy"];
    assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("script"), "{policy}");
}

#[tokio::test]
async fn malformed_requests_do_no_harm() {
    let driver = Driver::start();
    let long = "x".repeat(1024 * 1024);
    let requests = [
        "GET /livez HTTP/1.0\r\n\r\n".to_owned(),
        "GET http://elsewhere/livez HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "CONNECT node-1:80 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "GET /livez HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n".to_owned(),
        "GET /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_owned(),
        "GET /livez HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n".to_owned(),
        "GET /livez?%%%&&==&verbose&\u{1f980} HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "GET\r\n\r\n".to_owned(),
        "\0\0\0\0\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\r\n\r\n".to_owned(),
        format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"),
        format!("GET /livez HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"),
        format!("GET /livez HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(1000)),
        format!("POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{long}", long.len()),
    ];
    for request in requests {
        let mut stream = driver.connect().await;
        // The endpoint may refuse the request before it is sent completely.
        in_time(stream.write_all(request.as_bytes())).await.ok();
        let response = read_to_end(&mut stream).await;
        let start = request.chars().take(60).collect::<String>();
        assert!(response.is_empty() || response.starts_with("HTTP/1."), "{start:?}: {response:?}");
        assert!(!response.contains(" 500 "), "{start:?}: {response:?}");
    }
    assert_eq!(driver.status("/livez").await, (200, "ok".to_owned()));
}

#[tokio::test]
async fn a_client_that_does_not_send_a_request_is_disconnected() {
    let limits = Limits { header: Duration::from_millis(50), connection: TIMEOUT * 2, ..Limits::default() };
    let driver = Driver::start_with(limits);
    let mut silent = driver.connect().await;
    let mut slow = driver.connect().await;
    slow.write_all(b"GET /livez HTTP/1.1\r\nHost:").await.unwrap();
    for stream in [&mut silent, &mut slow] {
        let response = read_to_end(stream).await;
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 408"), "{response:?}");
    }
}

#[tokio::test]
async fn a_connection_is_closed_at_its_timeout() {
    let limits = Limits { header: TIMEOUT * 2, connection: Duration::from_millis(50), ..Limits::default() };
    let driver = Driver::start_with(limits);
    assert_eq!(read_to_end(&mut driver.connect().await).await, "");
}

#[tokio::test]
async fn a_probe_is_answered_even_if_idle_clients_use_all_connections() {
    let limits = Limits { header: TIMEOUT * 2, connection: TIMEOUT * 2, idle: 4, ..Limits::default() };
    let driver = Driver::start_with(limits);
    let mut idle = vec![];
    for _ in 0..8 {
        idle.push(driver.connect().await);
        assert_eq!(driver.status("/livez").await, (200, "ok".to_owned()));
    }
    // The oldest were dropped. A probe whose request comes late replaces one too, so the fifth may be gone.
    for stream in &mut idle[..4] {
        assert_eq!(read_to_end(stream).await, "");
    }
    for mut stream in idle.drain(5..) {
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        assert_eq!(Response::read(&mut stream).await.code, 200);
    }
}

#[tokio::test]
async fn a_port_in_use_is_an_error_with_the_address_and_a_remedy() {
    let driver = Driver::start();
    let address = driver.endpoint.local_address();
    let error = HttpListener::bind(address).unwrap_err().to_string();
    assert!(error.starts_with(&format!("http endpoint {address}: ")), "{error}");
    assert!(error.contains("in use") && error.contains("choose another port with --http-endpoint"), "{error}");

    // An address that is reserved for documentation.
    let error = HttpListener::bind("192.0.2.1:0".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1:0") && error.contains("does not have that address"), "{error}");
}

#[tokio::test]
async fn a_stop_ends_connections_without_a_request_and_frees_the_port() {
    let driver = Driver::start_with(Limits { header: TIMEOUT * 2, connection: TIMEOUT * 2, ..Limits::default() });
    let address = driver.endpoint.local_address();
    let mut idle = driver.connect().await;
    // Connections are accepted in order: the idle one was accepted before this one.
    assert_eq!(driver.status("/livez").await.0, 200);
    in_time(driver.endpoint.stop(Instant::now() + TIMEOUT)).await.unwrap();
    assert_eq!(read_to_end(&mut idle).await, "");
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_stop_does_not_wait_beyond_its_deadline() {
    let driver = Driver::start_with(Limits { header: TIMEOUT * 2, connection: TIMEOUT * 2, ..Limits::default() });
    let mut slow = driver.connect().await;
    slow.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
    // The endpoint learns of all of them in order: after some more requests, it has read the part of this one. Each takes a turn
    // of its loop, and reading takes several, more on a busy machine, where it learns of many things at once.
    for _ in 0..100 {
        assert_eq!(driver.status("/livez").await.0, 200);
    }
    let address = driver.endpoint.local_address();
    let error = in_time(driver.endpoint.stop(Instant::now())).await.unwrap_err().to_string();
    assert_eq!(error, format!("http endpoint {address}: connections did not end in time and were closed"));
    assert_eq!(read_to_end(&mut slow).await, "");
}

#[tokio::test]
async fn dropping_an_endpoint_closes_its_connections() {
    let driver = Driver::start_with(Limits { header: TIMEOUT * 2, connection: TIMEOUT * 2, ..Limits::default() });
    let mut idle = driver.connect().await;
    assert_eq!(driver.status("/livez").await.0, 200);
    drop(driver);
    assert_eq!(read_to_end(&mut idle).await, "");
}

/// Sends a request without the test's runtime, which is blocked meanwhile.
fn ask_blocking(address: SocketAddr, path: &str) -> io::Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

#[tokio::test]
async fn a_probe_is_answered_while_the_drivers_only_thread_is_busy() {
    let driver = Driver::start();
    for page in ["/healthz", "/livez", "/metrics"] {
        let response = ask_blocking(driver.endpoint.local_address(), page);
        assert!(
            response.as_ref().is_ok_and(|response| response.starts_with("HTTP/1.1 200 OK")),
            "{page}: {response:?}"
        );
    }
}

/// A client may be descheduled between connecting and sending its request, while others open connections.
#[tokio::test]
async fn a_probe_that_sends_late_is_answered_although_hundreds_have_connected_since() {
    let driver = Driver::start_with(Limits { header: TIMEOUT * 2, connection: TIMEOUT * 2, ..Limits::default() });
    let mut probe = driver.connect().await;
    let mut idle = vec![];
    for _ in 0..200 {
        idle.push(driver.connect().await);
    }
    // Connections are accepted in order: all others were accepted before this one.
    assert_eq!(driver.status("/livez").await.0, 200);
    probe.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_eq!(Response::read(&mut probe).await.code, 200);
}

/// The endpoint's own thread responses and reports that the driver's does not.
#[tokio::test]
async fn a_driver_whose_runtime_is_blocked_is_not_alive() {
    let runtime = RuntimeProbe::with_timeout(Handle::current(), Duration::ZERO, Duration::from_millis(50));
    let driver = Driver::start_on(runtime, Limits::default());
    let address = driver.endpoint.local_address();
    let begun = std::time::Instant::now();
    let reason = loop {
        let response = ask_blocking(address, "/livez").unwrap();
        if response.starts_with("HTTP/1.1 503") {
            break response;
        }
        assert!(begun.elapsed() < TIMEOUT, "{response}");
    };
    assert!(reason.contains("the driver's runtime has run no task for"), "{reason}");

    // The runtime runs again, and with it the task of the probe.
    while driver.status("/livez").await.0 != 200 {
        assert!(begun.elapsed() < TIMEOUT);
    }
}

/// A client with many connections displaces connections of its own address only.
#[tokio::test]
async fn an_address_with_many_connections_does_not_displace_another() {
    let limits = Limits { header: TIMEOUT * 2, connection: TIMEOUT * 2, idle: 8, ..Limits::default() };
    let driver = Driver::start_with(limits);
    let port = driver.endpoint.local_address().port();
    // All addresses of 127.0.0.0/8 are local.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut probe = in_time(socket.connect(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))).await.unwrap();
    let mut idle = vec![];
    for _ in 0..40 {
        idle.push(driver.connect().await);
    }
    assert_eq!(driver.status("/livez").await.0, 200);
    probe.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_eq!(Response::read(&mut probe).await.code, 200);
}

/// Partial requests and unread responses displace only each other.
#[tokio::test]
async fn partial_requests_and_slow_readers_do_not_fail_a_probe() {
    let limits =
        Limits { header: TIMEOUT * 2, connection: TIMEOUT * 2, partial: 4, responding: 4, ..Limits::default() };
    let driver = Driver::start_with(limits);
    let mut others = vec![];
    for number in 0..40 {
        let mut stream = driver.connect().await;
        let request: &[u8] =
            if number % 2 == 0 { b"GET /livez HTT" } else { b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" };
        stream.write_all(request).await.unwrap();
        others.push(stream);
        assert_eq!(driver.status("/livez").await, (200, "ok".to_owned()));
    }
    // The first partial request was dropped, the last is still open.
    assert_eq!(read_to_end(&mut others[0]).await, "");
    others[38].write_all(b"P/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_eq!(Response::read(&mut others[38]).await.code, 200);
}

/// A page that names claims is not for everyone who reaches the port.
#[tokio::test]
async fn details_are_refused_to_a_browser_with_a_foreign_host_name() {
    let driver = Driver::start();
    for page in ["/", "/statusz", "/flagz"] {
        assert_eq!(driver.get(page).await.code, 200, "{page}");
        let foreign = driver.ask(&format!("GET {page} HTTP/1.1\r\nHost: evil.example.com:9464\r\n\r\n")).await;
        assert_eq!(foreign.code, 403, "{page}");
        assert!(foreign.body.starts_with("403: ") && !foreign.body.contains("node-1"), "{}", foreign.body);
        assert!(foreign.body.contains("/readyz"), "the list of pages: {}", foreign.body);
    }
    for page in ["/livez", "/metrics", "/healthz?verbose"] {
        let foreign = driver.ask(&format!("GET {page} HTTP/1.1\r\nHost: node-1.example.com\r\n\r\n")).await;
        assert_eq!(foreign.code, 200, "{page}");
    }
}
