//! Fetches claims from the API server: one GET for each, all claims of a batch concurrently, each with its own outcome.
//!
//! The API group is `resource.k8s.io`, in the newest version that the server has: v1 is tried first, and discovery is used only
//! if the server does not know that version. A claim that does not exist costs one request, not one for each version. A
//! transient failure (connection, 401, 429, 5xx) is retried a few times, because the kubelet retries after a minute at the
//! earliest; `Retry-After` is honoured. A slow API server ([`send`]) gets as much time as the kubelet's deadline allows.

mod decode;
mod send;
mod status;
mod timers;

use std::sync::Arc;
use std::time::Duration;

use drakkar_client::backoff::jittered;
use drakkar_client::{ApiError, Bytes, ClaimRef, DraClient, DraVersion};
use drakkar_metadata::name::DriverName;
use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

pub(crate) use self::status::Applied;
use self::timers::EarlyTimer;
use crate::claim::{Claim, Summary};
use crate::metrics::Metrics;

/// The maximum number of concurrent requests.
const CONCURRENCY: usize = 64;
/// The time limit for fetching a claim, with all retries. The kubelet gives a call 45 s: the rest is for the driver and the
/// files, so that one claim that cannot be fetched does not fail the others.
const FETCH_TIMEOUT: Duration = Duration::from_secs(40);
/// The delays between retries, before jitter, which at most doubles them.
const RETRY_DELAYS: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(500), Duration::from_millis(1000)];

/// Why a claim could not be fetched or cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("get resourceclaim {claim}: it does not exist")]
    NotFound { claim: Box<ClaimRef> },
    #[error("get resourceclaim {claim}: another claim has that name now, with uid {found}")]
    WrongUid { claim: Box<ClaimRef>, found: String },
    #[error("resourceclaim {claim} is not allocated")]
    NotAllocated { claim: Box<ClaimRef> },
    #[error("resourceclaim {claim} is allocated, but has no device of driver {driver}")]
    NothingForDriver { claim: Box<ClaimRef>, driver: DriverName },
    #[error("get resourceclaim {claim}: {source}")]
    Api { claim: Box<ClaimRef>, source: ApiError },
}

/// A claim that exists: what every prepare needs, and all of it in JSON.
type FoundClaim = (Summary, Bytes);

/// The result of a GET of a claim.
#[allow(clippy::large_enum_variant, reason = "nearly every result is a claim, and a box would be one more allocation")]
enum Found {
    Claim(FoundClaim),
    /// The claim does not exist.
    NoClaim,
    /// The server does not have this version of the API.
    NoVersion,
}

/// Fetches claims from the API server.
#[derive(Clone)]
pub(crate) struct ClaimSource {
    client: DraClient,
    driver: DriverName,
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
    pub(crate) fn new(client: DraClient, driver: DriverName, metrics: Metrics) -> Self {
        Self { client, driver, slots: Arc::new(Semaphore::new(CONCURRENCY)), timer: EarlyTimer::default(), metrics }
    }

    /// Fetches a claim, and checks that it has the expected UID, is allocated, and has devices of the driver.
    pub(crate) async fn fetch(&self, reference: &ClaimRef) -> Result<Claim, FetchError> {
        let claim = || Box::new(reference.clone());
        let (summary, body) = match self.get(reference).await {
            Ok(Some(found)) => found,
            Ok(None) => return Err(FetchError::NotFound { claim: claim() }),
            Err(source) => return Err(FetchError::Api { claim: claim(), source }),
        };
        if summary.uid != reference.uid.as_str() {
            return Err(FetchError::WrongUid { claim: claim(), found: summary.uid });
        }
        if !summary.is_allocated {
            return Err(FetchError::NotAllocated { claim: claim() });
        }
        let fetched = Claim::new(reference.clone(), self.driver.clone(), summary, body);
        if fetched.results().next().is_none() {
            return Err(FetchError::NothingForDriver { claim: claim(), driver: self.driver.clone() });
        }
        Ok(fetched)
    }

    /// Returns the claim with that name, if it exists.
    async fn get(&self, claim: &ClaimRef) -> Result<Option<FoundClaim>, ApiError> {
        let deadline = Instant::now() + FETCH_TIMEOUT;
        let with_retries = |slot, first| {
            let getting = timeout_at(deadline, self.get_with_retries(claim, slot, first, deadline));
            // Boxed because it is rare and large: the usual future stays small.
            Box::pin(async { getting.await.unwrap_or_else(|_elapsed| Err(self.client.timeout(FETCH_TIMEOUT))) })
        };
        // Nearly always one attempt is enough. It has a time limit of its own; another one, which costs two system calls, is
        // only set for retries.
        let Ok(slot) = self.slots.try_acquire() else { return with_retries(None, None).await };
        let version = self.client.version();
        match self.get_once(claim, version, deadline).await {
            Ok(Found::Claim(object)) => Ok(Some(object)),
            Ok(Found::NoClaim) => Ok(None),
            other => with_retries(Some(slot), Some((version, other))).await,
        }
    }

    /// Retries transient failures. `first` is the version and the result of the first GET, if there has been one.
    async fn get_with_retries(
        &self,
        claim: &ClaimRef,
        slot: Option<SemaphorePermit<'_>>,
        mut first: Option<(DraVersion, Result<Found, ApiError>)>,
        deadline: Instant,
    ) -> Result<Option<FoundClaim>, ApiError> {
        let _slot = match slot {
            Some(slot) => Some(slot),
            // The semaphore is never closed.
            None => self.slots.acquire().await.ok(),
        };
        let mut delays = RETRY_DELAYS.iter();
        loop {
            let error = match self.get_in_version(claim, first.take(), deadline).await {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            let Some(delay) = delays.next().filter(|_| error.is_transient()) else { return Err(error) };
            let next = Instant::now() + error.retry_delay(jittered(*delay, 1.0..=2.0));
            // The server asks for a longer delay than there is time for. The kubelet retries later.
            if next >= deadline {
                return Err(error);
            }
            tracing::debug!(%claim, %error, "fetching the claim failed, retrying");
            tokio::time::sleep_until(next).await;
        }
    }

    async fn get_in_version(
        &self,
        claim: &ClaimRef,
        first: Option<(DraVersion, Result<Found, ApiError>)>,
        deadline: Instant,
    ) -> Result<Option<FoundClaim>, ApiError> {
        let (version, found) = match first {
            Some(first) => first,
            None => {
                let version = self.client.version();
                (version, self.get_once(claim, version, deadline).await)
            }
        };
        match found? {
            Found::Claim(object) => return Ok(Some(object)),
            Found::NoClaim => return Ok(None),
            Found::NoVersion => {}
        }
        let version = self.client.rediscover(version).await?;
        match self.get_once(claim, version, deadline).await? {
            Found::Claim(object) => Ok(Some(object)),
            Found::NoClaim => Ok(None),
            Found::NoVersion => Err(ApiError::NoVersion),
        }
    }

    async fn get_once(&self, claim: &ClaimRef, version: DraVersion, deadline: Instant) -> Result<Found, ApiError> {
        let (status, body) = self.get_hedged(|| path(claim, version), deadline).await?;
        match status {
            StatusCode::OK => Ok(Found::Claim(decode::claim(body, version).map_err(ApiError::Decode)?)),
            StatusCode::NOT_FOUND => Ok(if is_about(claim, &body) { Found::NoClaim } else { Found::NoVersion }),
            status => Err(ApiError::from_answer(status, &body)),
        }
    }
}

fn path(claim: &ClaimRef, version: DraVersion) -> String {
    let ClaimRef { namespace, name, .. } = claim;
    let version = version.api_version();
    ["/apis/", version, "/namespaces/", namespace.as_str(), "/resourceclaims/", name.as_str()].concat()
}

/// Whether a 404 response is about the claim and not about the API version: a server that has the resource names the claim.
fn is_about(claim: &ClaimRef, body: &[u8]) -> bool {
    let details = serde_json::from_slice::<Status>(body).ok().and_then(|status| status.details);
    details.is_some_and(|details| details.name.as_deref() == Some(claim.name.as_str()))
}
