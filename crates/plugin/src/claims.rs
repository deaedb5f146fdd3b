//! Fetching claims from the API server: one GET for each, all of a batch at once, each with an outcome of its own.
//!
//! The API of claims is `resource.k8s.io`, in the newest version that the server has: v1 is tried first, and only where
//! the server answers that it does not know that version is it asked for those that it does. A claim that does not
//! exist costs one request, not one for each version. A transient failure (connection, 401, 429, 5xx) is retried a few
//! times, because a kubelet that gets an error comes back after a minute at the earliest; not before the server wants it, if
//! it says when. An API server that is only slow is waited for ([`send`]) as long as the kubelet's deadline allows.

mod decode;
mod send;
mod status;
mod timers;

use std::sync::Arc;
use std::time::Duration;

use drakkar_client::backoff::jittered;
use drakkar_client::{ApiError, DraClient, DraVersion};
use drakkar_metadata::name::DriverName;
use http::StatusCode;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

pub(crate) use self::status::Applied;
use self::timers::EarlyTimer;
use crate::claim::Claim;
use crate::metrics::Metrics;
use drakkar_client::ClaimRef;

/// How many requests may be on their way at once.
const CONCURRENCY: usize = 64;
/// The time limit for getting a claim, with all tries. A kubelet gives a call 45 s: the rest is for the driver and its files,
/// and the claims that were fetched must not fail with the one that was not.
const FETCH_TIMEOUT: Duration = Duration::from_secs(40);
/// The pauses between tries, each lengthened by up to as much again.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(500), Duration::from_millis(1000)];
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
        let version = self.client.version();
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
        mut first: Option<(DraVersion, Result<Found, ApiError>)>,
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
            let Some(pause) = pauses.next().filter(|_| error.is_transient()) else { return Err(error) };
            let next = Instant::now() + error.retry_delay(jittered(*pause, 1.0..=2.0));
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
        first: Option<(DraVersion, Result<Found, ApiError>)>,
        deadline: Instant,
    ) -> Result<Option<ResourceClaim>, ApiError> {
        let (version, found) = match first {
            Some(first) => first,
            None => {
                let version = self.client.version();
                (version, self.get_once(claim, version, deadline).await)
            }
        };
        match found? {
            Found::Claim(object) => return Ok(Some(*object)),
            Found::NoClaim => return Ok(None),
            Found::NoVersion => {}
        }
        let version = self.client.rediscover(version).await?;
        match self.get_once(claim, version, deadline).await? {
            Found::Claim(object) => Ok(Some(*object)),
            Found::NoClaim => Ok(None),
            Found::NoVersion => Err(ApiError::NoVersion),
        }
    }

    async fn get_once(&self, claim: &ClaimRef, version: DraVersion, deadline: Instant) -> Result<Found, ApiError> {
        let (status, body) = self.get_hedged(&path(claim, version), deadline).await?;
        match status {
            StatusCode::OK => Ok(Found::Claim(Box::new(decode::claim(&body, version).map_err(ApiError::Decode)?))),
            StatusCode::NOT_FOUND => Ok(if is_about(claim, &body) { Found::NoClaim } else { Found::NoVersion }),
            status => Err(ApiError::from_answer(status, &body)),
        }
    }
}

fn path(claim: &ClaimRef, version: DraVersion) -> String {
    let ClaimRef { namespace, name, .. } = claim;
    format!("/apis/{}/namespaces/{namespace}/resourceclaims/{name}", version.api_version())
}

/// Whether an answer that something was not found is about the claim: a server that has the resource names it.
fn is_about(claim: &ClaimRef, body: &[u8]) -> bool {
    let details = serde_json::from_slice::<Status>(body).ok().and_then(|status| status.details);
    details.is_some_and(|details| details.name.as_deref() == Some(claim.name.as_str()))
}
