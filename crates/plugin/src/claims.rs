//! Fetching claims from the API server: one GET for each, all of a batch at once, each with an outcome of its own.
//!
//! The API of claims is `resource.k8s.io`, in the newest version that the server has: v1 is tried first, and only where
//! the server answers that it does not know that version is it asked for those that it does. A claim that does not
//! exist costs one request, not one for each version. A transient failure (connection, 401, 429, 5xx) is retried a few
//! times, because a kubelet that gets an error comes back after a minute at the earliest; not before the server wants it, if
//! it says when. An API server that is only slow is waited for ([`send`]) as long as the kubelet's deadline allows.

mod busy;
mod decode;
mod send;
mod status;
mod timers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use drakkar_metadata::name::DriverName;
use drakkar_metadata::show::Printable;
use http::StatusCode;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, Status};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

pub(crate) use self::busy::{SPREAD, busy, random};
pub(crate) use self::status::Applied;
use self::timers::EarlyTimer;
use crate::claim::{Claim, ClaimRef};
use crate::metrics::Metrics;

/// How many requests may be on their way at once.
const CONCURRENCY: usize = 64;
/// The time limit for getting a claim, with all tries. A kubelet gives a call 45 s: the rest is for the driver and its files,
/// and the claims that were fetched must not fail with the one that was not.
const FETCH_TIMEOUT: Duration = Duration::from_secs(40);
/// The pauses between tries, each lengthened by up to as much again.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(500), Duration::from_millis(1000)];
/// The versions of the API that are understood, the best first.
pub(crate) const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];
/// The index in [`VERSIONS`] of the one with another form of requests.
pub(crate) const V1BETA1: u8 = 2;

/// Why a claim could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("get resourceclaim {claim}: it does not exist")]
    NotFound { claim: Box<ClaimRef> },
    #[error("get resourceclaim {claim}: the claim of that name is now another, with uid {found}")]
    WrongUid { claim: Box<ClaimRef>, found: String },
    #[error("resourceclaim {claim} is not allocated")]
    NotAllocated { claim: Box<ClaimRef> },
    #[error("resourceclaim {claim} is allocated, but no device of it is from driver {driver}")]
    NothingForDriver { claim: Box<ClaimRef>, driver: DriverName },
    #[error("get resourceclaim {claim}: {source}")]
    Api { claim: Box<ClaimRef>, source: ApiError },
}

/// Why the API server gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("no answer from the API server: {0}")]
    Send(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("no answer from the API server within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the API server answered {status}: {}", Printable::whole(message))]
    Status { status: StatusCode, message: String },
    #[error("{error}; it wants to be asked again after {} s", .after.as_secs())]
    Busy { error: Box<ApiError>, after: Duration },
    #[error("the API server serves none of {}", VERSIONS.map(|version| format!("resource.k8s.io/{version}")).join(", "))]
    NoVersion,
    #[error("the API server's answer is not what was asked for: {0}")]
    Decode(#[source] serde_json::Error),
}

impl ApiError {
    /// Whether it may go better the next time.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Send(_) | Self::Timeout(_) | Self::Busy { .. } => true,
            Self::Status { status, .. } => is_transient(*status),
            Self::NoVersion | Self::Decode(_) => false,
        }
    }
}

/// Whether a server that answers with this status may answer otherwise the next time.
fn is_transient(status: StatusCode) -> bool {
    // 401: the token is being rotated, and is read again before long.
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::UNAUTHORIZED)
        || (status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED)
}

/// What a GET of a claim found.
enum Found {
    Claim(Box<ResourceClaim>),
    /// There is no such claim.
    NoClaim,
    /// There is no such version of the API.
    NoVersion,
}

/// Where claims are fetched from.
#[derive(Clone)]
pub(crate) struct ClaimSource {
    client: kube::Client,
    driver: DriverName,
    version: Arc<AtomicU8>,
    discovery: Arc<tokio::sync::Mutex<()>>,
    slots: Arc<Semaphore>,
    timer: EarlyTimer,
    metrics: Metrics,
}

impl std::fmt::Debug for ClaimSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimSource").field("driver", &self.driver).finish_non_exhaustive()
    }
}

impl ClaimSource {
    pub(crate) fn new(client: kube::Client, driver: DriverName, metrics: Metrics) -> Self {
        Self {
            client,
            driver,
            version: Arc::default(),
            discovery: Arc::default(),
            slots: Arc::new(Semaphore::new(CONCURRENCY)),
            timer: EarlyTimer::default(),
            metrics,
        }
    }

    /// The claim, if it is the one that is meant, is allocated, and has devices of the driver.
    pub(crate) async fn fetch(&self, reference: &ClaimRef) -> Result<Claim, FetchError> {
        let claim = || Box::new(reference.clone());
        let object = match self.get(reference).await {
            Ok(Some(object)) => object,
            Ok(None) => return Err(FetchError::NotFound { claim: claim() }),
            Err(source) => return Err(FetchError::Api { claim: claim(), source }),
        };
        let found = object.metadata.uid.as_deref().unwrap_or_default();
        if found != reference.uid.as_str() {
            return Err(FetchError::WrongUid { claim: claim(), found: found.to_owned() });
        }
        if object.status.as_ref().is_none_or(|status| status.allocation.is_none()) {
            return Err(FetchError::NotAllocated { claim: claim() });
        }
        let fetched = Claim::new(reference.clone(), self.driver.clone(), object);
        if fetched.results().next().is_none() {
            return Err(FetchError::NothingForDriver { claim: claim(), driver: self.driver.clone() });
        }
        Ok(fetched)
    }

    /// The object of that name, if there is one.
    async fn get(&self, claim: &ClaimRef) -> Result<Option<ResourceClaim>, ApiError> {
        let deadline = Instant::now() + FETCH_TIMEOUT;
        let patiently = |slot, first| {
            let getting = timeout_at(deadline, self.get_with_patience(claim, slot, first, deadline));
            // Rare, and large: whoever does not need it does not carry it around.
            Box::pin(async { getting.await.unwrap_or(Err(ApiError::Timeout(FETCH_TIMEOUT))) })
        };
        // Nearly always one try is enough. That has a time limit of its own, and another is only set where it is not: each is two
        // system calls more.
        let Ok(slot) = self.slots.try_acquire() else { return patiently(None, None).await };
        let version = self.version.load(Ordering::Relaxed);
        match self.get_once(claim, version, deadline).await {
            Ok(Found::Claim(object)) => Ok(Some(*object)),
            Ok(Found::NoClaim) => Ok(None),
            other => patiently(Some(slot), Some((version, other))).await,
        }
    }

    /// Goes on from what the first GET found, and in which version, if there has been one.
    async fn get_with_patience(
        &self,
        claim: &ClaimRef,
        slot: Option<SemaphorePermit<'_>>,
        mut first: Option<(u8, Result<Found, ApiError>)>,
        deadline: Instant,
    ) -> Result<Option<ResourceClaim>, ApiError> {
        let _slot = match slot {
            Some(slot) => Some(slot),
            // The semaphore is never closed.
            None => self.slots.acquire().await.ok(),
        };
        let mut pauses = PAUSES.iter();
        loop {
            let error = match self.get_in_version(claim, first.take(), deadline).await {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            let Some(pause) = pauses.next().filter(|_| error.passes()) else { return Err(error) };
            let next = Instant::now() + error.pause(pause.mul_f64(1.0 + random()));
            // A server that wants to be left alone for longer has said so, and the kubelet comes back.
            if next >= deadline {
                return Err(error);
            }
            tracing::debug!(%claim, %error, "getting the claim failed, and is tried again");
            tokio::time::sleep_until(next).await;
        }
    }

    async fn get_in_version(
        &self,
        claim: &ClaimRef,
        first: Option<(u8, Result<Found, ApiError>)>,
        deadline: Instant,
    ) -> Result<Option<ResourceClaim>, ApiError> {
        let (version, found) = match first {
            Some(first) => first,
            None => {
                let version = self.version.load(Ordering::Relaxed);
                (version, self.get_once(claim, version, deadline).await)
            }
        };
        match found? {
            Found::Claim(object) => return Ok(Some(*object)),
            Found::NoClaim => return Ok(None),
            Found::NoVersion => {}
        }
        let version = self.other_version(version).await?;
        match self.get_once(claim, version, deadline).await? {
            Found::Claim(object) => Ok(Some(*object)),
            Found::NoClaim => Ok(None),
            Found::NoVersion => Err(ApiError::NoVersion),
        }
    }

    /// The version to use where there is none of that one: at the first request of all, or when the API server is not the one
    /// of a minute ago.
    async fn other_version(&self, version: u8) -> Result<u8, ApiError> {
        // One asks for all: those who waited find what it found.
        let _turn = self.discovery.lock().await;
        match self.version.load(Ordering::Relaxed) {
            known if known != version => Ok(known),
            _ => {
                let discovered = self.discover().await?;
                self.version.store(discovered, Ordering::Relaxed);
                Ok(discovered)
            }
        }
    }

    async fn get_once(&self, claim: &ClaimRef, version: u8, deadline: Instant) -> Result<Found, ApiError> {
        let (status, body) = self.get_hedged(&path(claim, version), deadline).await?;
        match status {
            StatusCode::OK => {
                let decode = if version == V1BETA1 { decode::claim_of_v1beta1 } else { decode::claim };
                Ok(Found::Claim(Box::new(decode(&body).map_err(ApiError::Decode)?)))
            }
            StatusCode::NOT_FOUND => Ok(if is_about(claim, &body) { Found::NoClaim } else { Found::NoVersion }),
            status => Err(failure(status, &body)),
        }
    }

    /// The best version that the server has.
    async fn discover(&self) -> Result<u8, ApiError> {
        let group: APIGroup = match self.get_path("/apis/resource.k8s.io").await? {
            (StatusCode::OK, body) => serde_json::from_slice(&body).map_err(ApiError::Decode)?,
            (StatusCode::NOT_FOUND, _) => return Err(ApiError::NoVersion),
            (status, body) => return Err(failure(status, &body)),
        };
        let best = (0u8..).zip(VERSIONS).find(|(_, version)| group.versions.iter().any(|has| has.version == *version));
        let (index, version) = best.ok_or(ApiError::NoVersion)?;
        tracing::info!(version, "the API server's version of resource.k8s.io");
        Ok(index)
    }
}

fn version_name(version: u8) -> &'static str {
    VERSIONS[usize::from(version) % VERSIONS.len()]
}

fn path(claim: &ClaimRef, version: u8) -> String {
    let (version, ClaimRef { namespace, name, .. }) = (version_name(version), claim);
    format!("/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaims/{name}")
}

/// Whether an answer that something was not found is about the claim: a server that has the resource names it.
fn is_about(claim: &ClaimRef, body: &[u8]) -> bool {
    let details = serde_json::from_slice::<Status>(body).ok().and_then(|status| status.details);
    details.is_some_and(|details| details.name.as_deref() == Some(claim.name.as_str()))
}

/// An error with what the server says about it, if that is the API's kind of error.
pub(crate) fn failure(status: StatusCode, body: &[u8]) -> ApiError {
    let message = serde_json::from_slice::<Status>(body).ok().and_then(|status| status.message);
    let message = message.unwrap_or_else(|| String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned());
    ApiError::Status { status, message }
}
