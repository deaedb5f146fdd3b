//! The content of the pages: health checks like those of Kubernetes components, metrics, and a status page for humans.
//!
//! The pages describe the instance. They never name claims, pods or devices.

use std::fmt::Write as _;
use std::future::ready;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::RawQuery;
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use drakkar_metadata::Time;
use drakkar_metadata::name::DriverName;
use drakkar_metadata::show::Printable;
use drakkar_slices::Overview;
use tokio::sync::{Mutex, watch};

use super::RuntimeProbe;
use super::runtime_probe::RuntimeBlocked;
use crate::call_watch::CallWatch;
use crate::metrics::{self, Metrics};
use crate::registration::RegistrationStatus;

/// The list of pages.
const LIST: &str = "\
/healthz   whether the driver works (?verbose: check by check)
/livez     the same
/readyz    whether, in addition, the driver is registered, has published, and is ready
/metrics   OpenMetrics
/statusz   version, registration and settings, for humans
";

/// The sources of the pages' content.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    /// The name of the driver.
    pub(crate) driver: DriverName,
    /// The driver's own version.
    pub(crate) version: String,
    /// The registration status. The sender is dropped when the registration service ends.
    pub(crate) registration: watch::Receiver<RegistrationStatus>,
    /// The fatal error of the driver, if any. It is public, so it must not name claims.
    pub(crate) fatal: watch::Receiver<Option<String>>,
    /// Why the driver itself says that it is not ready, if it does.
    pub(crate) not_ready: watch::Receiver<Option<String>>,
    /// Checks whether the driver's runtime runs tasks.
    pub(crate) runtime: RuntimeProbe,
    /// The driver's calls.
    pub(crate) calls: Option<CallWatch>,
    /// The metrics of the instance.
    pub(crate) metrics: Metrics,
    /// The state of publishing.
    pub(crate) publishing: Overview,
    /// Additional lines of the status page that do not change: node, services, sockets and so on.
    pub(crate) status: Vec<(String, String)>,
}

/// A check of a health page.
#[derive(Debug, Clone, Copy)]
enum Check {
    Servers,
    Registration,
    /// What the driver has published.
    Publishing,
    /// What the driver says of itself.
    Driver,
}

/// The reason why a check fails. It is public, so it must not name claims.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    /// The driver has a fatal error.
    #[error("{}", Printable::cut(.0))]
    Fatal(String),
    /// The driver's runtime is blocked.
    #[error(transparent)]
    Runtime(#[from] RuntimeBlocked),
    /// The registration service has ended.
    #[error("the registration service has ended")]
    RegistrationEnded,
    /// The kubelet has not registered the driver yet.
    #[error("waiting for the kubelet to register the driver")]
    NotRegistered,
    /// The kubelet refused the driver.
    #[error("the kubelet refused the registration: {}", Printable::cut(.0))]
    RegistrationRefused(String),
    /// The driver has resources to publish, and none were ever published.
    #[error("{0}")]
    NotPublished(String),
    /// The driver says that it is not ready.
    #[error("{}", Printable::cut(.0))]
    Driver(String),
}

/// The health pages and their checks.
const HEALTH: [(&str, &[Check]); 3] = [
    ("healthz", &[Check::Servers]),
    ("livez", &[Check::Servers]),
    ("readyz", &[Check::Servers, Check::Registration, Check::Publishing, Check::Driver]),
];

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::Servers => "servers",
            Self::Registration => "registration",
            Self::Publishing => "publishing",
            Self::Driver => "driver",
        }
    }

    /// Runs the check.
    fn run(self, pages: &Pages) -> Result<(), CheckError> {
        match self {
            Self::Servers => match &*pages.fatal.borrow() {
                None => pages.runtime.check().map_err(|blocked| blocked.by(pages.calls.as_ref())).map_err(Into::into),
                Some(reason) => Err(CheckError::Fatal(reason.clone())),
            },
            Self::Registration if pages.registration.has_changed().is_err() => Err(CheckError::RegistrationEnded),
            Self::Registration => match &*pages.registration.borrow() {
                RegistrationStatus::Registered => Ok(()),
                RegistrationStatus::Waiting => Err(CheckError::NotRegistered),
                RegistrationStatus::Failed { error } => Err(CheckError::RegistrationRefused(error.clone())),
            },
            Self::Publishing => {
                pages.publishing.never_published().map_or(Ok(()), |why| Err(CheckError::NotPublished(why)))
            }
            Self::Driver => match &*pages.not_ready.borrow() {
                None => Ok(()),
                Some(reason) => Err(CheckError::Driver(reason.clone())),
            },
        }
    }
}

impl Pages {
    /// Builds the router of all pages.
    pub(super) fn router(self: &Arc<Self>) -> Router {
        let pages = Arc::clone(self);
        let mut router = Router::new()
            .route("/", get(|| ready(list(StatusCode::OK, ""))))
            .route("/metrics", metrics(pages.metrics.clone()))
            .route("/statusz", {
                let pages = Arc::clone(&pages);
                get(move || ready(pages.statusz(SystemTime::now())))
            });
        for (page, checks) in HEALTH {
            router = router.route(&format!("/{page}"), health(&pages, page, checks));
            for check in checks {
                let path = format!("/{page}/{}", check.name());
                router = router.route(&path, health(&pages, page, std::slice::from_ref(check)));
            }
        }
        router
            .fallback(|| ready(list(StatusCode::NOT_FOUND, "404: page not found\n\n")))
            .method_not_allowed_fallback(|| ready(not_allowed()))
            .layer(map_response(|response: Response| ready(with_security_headers(response))))
    }

    /// Returns the complete response to a probe's request: GET of a health page without a query or body.
    pub(super) fn probe_response(&self, request: &[u8]) -> Option<String> {
        let (line, _headers) = str::from_utf8(request).ok()?.strip_suffix("\r\n\r\n")?.split_once("\r\n")?;
        let path = line.strip_prefix("GET /")?.strip_suffix(" HTTP/1.1")?;
        let (page, checks) = HEALTH.iter().find(|(page, _)| *page == path)?;
        let (code, text) = self.health(page, checks, false);
        let reason = code.canonical_reason().unwrap_or_default();
        Some(format!(
            "HTTP/1.1 {} {reason}\r\ncontent-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\n\
             cache-control: no-store\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
            code.as_u16(),
            text.len(),
        ))
    }

    /// Runs checks. The text is `ok` or the reasons of the failures; with `?verbose` it has a line per check.
    fn health(&self, page: &str, checks: &[Check], verbose: bool) -> (StatusCode, String) {
        let results: Vec<_> = checks.iter().map(|check| (check.name(), check.run(self))).collect();
        let passed = results.iter().all(|(_, result)| result.is_ok());
        let code = if passed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let lines = results.into_iter().filter_map(|(name, result)| match result {
            Ok(()) => verbose.then(|| format!("[+]{name} ok\n")),
            Err(error) if verbose => Some(format!("[-]{name} failed: {error}\n")),
            Err(error) => Some(format!("{error}\n")),
        });
        let text: String = match (passed, verbose) {
            (true, false) => "ok".to_owned(),
            (_, false) => lines.collect(),
            (true, true) => lines.chain([format!("{page} check passed\n")]).collect(),
            (false, true) => lines.chain([format!("{page} check failed\n")]).collect(),
        };
        (code, text)
    }

    fn statusz(&self, now: SystemTime) -> String {
        let started = self.metrics.started();
        let up = now.duration_since(started).unwrap_or_default().as_secs();
        let result = |check: Check, success: &str| {
            check.run(self).map_or_else(|error| error.to_string(), |()| success.to_owned())
        };
        let registration = result(Check::Registration, "registered");
        let servers = result(Check::Servers, "alive");
        let lines = [
            ("Started", date(started)),
            ("Up", format!("{} hr {:02} min {:02} sec", up / 3600, up / 60 % 60, up % 60)),
            ("Version", format!("{} (drakkar-plugin {})", self.version, env!("CARGO_PKG_VERSION"))),
            ("Driver", self.driver.to_string()),
            ("Registration", registration),
            ("Servers", servers),
            ("Prepared claims", self.metrics.prepared_claims().to_string()),
            ("Published resources", self.publishing.line()),
        ];
        let additional = self.status.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let mut text = format!(
            "{} statusz\nWarning: this page is for humans. Its format changes without notice: do not parse it.\n\n",
            self.driver
        );
        for (name, value) in lines.into_iter().chain(additional) {
            // Writing to a string cannot fail.
            writeln!(text, "{}: {}", Printable::whole(name), Printable::whole(value)).ok();
        }
        text
    }
}

fn health(pages: &Arc<Pages>, page: &'static str, checks: &'static [Check]) -> MethodRouter {
    let pages = Arc::clone(pages);
    get(move |RawQuery(query): RawQuery| {
        let verbose = query.is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")));
        ready(pages.health(page, checks, verbose))
    })
}

/// Serves the metrics. Encoding them reads `/proc`, so it runs on the blocking thread, of which there is one.
fn metrics(metrics: Metrics) -> MethodRouter {
    let encoding = Arc::new(Mutex::new(()));
    get(move || {
        let metrics = metrics.clone();
        let encoding = Arc::clone(&encoding);
        async move {
            let guard = encoding.lock_owned().await;
            let encode = move || {
                let text = metrics.encode();
                // The lock is held until the work is done, also if the client has disconnected.
                drop(guard);
                text
            };
            match tokio::task::spawn_blocking(encode).await {
                Ok(Ok(text)) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
                Ok(Err(error)) => encoding_failed(&error),
                Err(error) => encoding_failed(&error),
            }
        }
    })
}

/// Logs that encoding failed. Our own metrics cannot fail, but those that a driver has added can.
fn encoding_failed(error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "http endpoint: encoding metrics failed");
    (StatusCode::INTERNAL_SERVER_ERROR, "metrics failed: see the log\n").into_response()
}

fn list(code: StatusCode, before: &str) -> (StatusCode, String) {
    (code, format!("{before}{LIST}"))
}

fn not_allowed() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET,HEAD")], "405: only GET and HEAD\n").into_response()
}

/// Adds headers that forbid caching and content sniffing.
fn with_security_headers(mut response: Response) -> Response {
    const HEADERS: [(HeaderName, HeaderValue); 2] = [
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    response.headers_mut().extend(HEADERS);
    response
}

fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = i64::try_from(seconds).ok().and_then(|seconds| Time::from_unix_seconds(seconds).ok());
    time.map_or_else(|| "unknown".to_owned(), |time| time.to_string())
}
