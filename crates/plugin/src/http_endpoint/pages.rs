//! The routes, and health checks like those of Kubernetes components.
//!
//! Health pages and metrics describe the instance to everyone, and never name claims, pods or devices. The others do
//! ([`super::access`]).

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{from_fn, map_response};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use drakkar_metadata::name::DriverName;
use drakkar_metadata::show::Printable;
use drakkar_slices::Overview;
use tokio::sync::watch;

use super::access::{self, HttpDetails};
use super::blocking::BlockingWork;
use super::runtime_probe::RuntimeBlocked;
use super::{RuntimeProbe, scrape};
use crate::call_watch::CallWatch;
use crate::health::HealthHub;
use crate::ledger::DeviceLedger;
use crate::metrics::Metrics;
use crate::recent_errors::RecentErrors;
use crate::registration::RegistrationStatus;
use crate::store::{Store, SystemFiles};

/// The list of pages.
pub(super) const LIST: &str = "\
/          claims, devices, errors and settings, for people
/healthz   whether the driver works (?verbose: check by check)
/livez     the same
/readyz    whether, in addition, the driver is registered, has published, and is ready
/metrics   for Prometheus
/statusz   version, registration and settings, for people
/flagz     the flags of the driver
";

/// The paths of the pages.
pub(super) const PATHS: [&str; 7] = ["/", "/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz"];

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
    /// The node, if it is known.
    pub(crate) node: Option<String>,
    /// The claims that hold devices.
    pub(crate) ledger: Arc<DeviceLedger>,
    /// The metadata files of claims.
    pub(crate) store: Arc<Store<SystemFiles>>,
    /// The health of devices, if the driver monitors it.
    pub(crate) health: Option<Weak<HealthHub>>,
    /// The last errors.
    pub(crate) recent: RecentErrors,
    /// The flags of the driver with their values.
    pub(crate) flags: BTreeMap<String, String>,
    /// Who may see the pages that name claims, pods, devices and settings.
    pub(crate) details: HttpDetails,
}

/// A check of a health page.
#[derive(Debug, Clone, Copy)]
pub(super) enum Check {
    Servers,
    Registration,
    /// What the driver has published.
    Publishing,
    /// What the driver says of itself.
    Driver,
}

/// The reason why a check fails. It is public, so it must not name claims.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
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
const HEALTH: [(&str, &[Check]); 3] =
    [("healthz", &[Check::Servers]), ("livez", &[Check::Servers]), ("readyz", &Check::ALL)];

impl Check {
    /// All checks.
    pub(super) const ALL: [Self; 4] = [Self::Servers, Self::Registration, Self::Publishing, Self::Driver];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Servers => "servers",
            Self::Registration => "registration",
            Self::Publishing => "publishing",
            Self::Driver => "driver",
        }
    }

    /// Runs the check.
    pub(super) fn run(self, pages: &Pages) -> Result<(), CheckError> {
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
        let details = self.details;
        let mut router = self
            .detail_routes()
            .route_layer(from_fn(move |request, next| access::check(details, request, next)))
            .route("/metrics", {
                let metrics = self.metrics.clone();
                let work = BlockingWork::default();
                get(move |headers: HeaderMap| scrape::serve(metrics.clone(), work.clone(), headers))
            });
        for (page, checks) in HEALTH {
            router = router.route(&format!("/{page}"), health(self, page, checks));
            for check in checks {
                let path = format!("/{page}/{}", check.name());
                router = router.route(&path, health(self, page, std::slice::from_ref(check)));
            }
        }
        router
            .fallback(|| ready(list(StatusCode::NOT_FOUND, "404: page not found\n\n")))
            .method_not_allowed_fallback(|| ready(not_allowed()))
            .layer(map_response(|response: Response| ready(with_security_headers(response))))
    }

    /// Builds the router of the pages that not everyone may see.
    fn detail_routes(self: &Arc<Self>) -> Router {
        let overview = Arc::clone(self);
        let statusz = Arc::clone(self);
        let flagz = Arc::clone(self);
        let work = BlockingWork::default();
        Router::new()
            .route(
                "/",
                get(move || {
                    let pages = Arc::clone(&overview);
                    let work = work.clone();
                    async move { work.run("page", move || Ok(Html(pages.overview(SystemTime::now())))).await }
                }),
            )
            .route("/statusz", get(move || ready(statusz.statusz(SystemTime::now()))))
            .route("/flagz", get(move || ready(flagz.flagz())))
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
}

fn health(pages: &Arc<Pages>, page: &'static str, checks: &'static [Check]) -> MethodRouter {
    let pages = Arc::clone(pages);
    get(move |RawQuery(query): RawQuery| {
        let verbose = query.is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")));
        ready(pages.health(page, checks, verbose))
    })
}

fn list(code: StatusCode, before: &str) -> (StatusCode, String) {
    (code, format!("{before}{LIST}"))
}

fn not_allowed() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET,HEAD")], "405: only GET and HEAD\n").into_response()
}

/// Adds headers that forbid caching, content sniffing, scripts, frames, and telling other sites the address of a page.
fn with_security_headers(mut response: Response) -> Response {
    const POLICY: &str =
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    const HEADERS: [(HeaderName, HeaderValue); 4] = [
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    response.headers_mut().extend(HEADERS);
    response
}
