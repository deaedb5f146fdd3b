//! Unpreparing claims that no kubelet will unprepare.
//!
//! A claim that an earlier process prepared may be gone from the API server by the time that the driver is back, and its kubelet
//! may have forgotten it too. Its files and devices would be lost forever.

use std::sync::Arc;
use std::time::Duration;

use drakkar_client::ClaimRef;
use drakkar_client::backoff::jittered;
use futures::stream::{self, StreamExt as _};
use tokio::time::sleep;

use crate::background::{Background, BackgroundError};
use crate::driver::DraPlugin;
use crate::metrics::Metrics;
use crate::service::Service;
use crate::store::RecoveredClaim;

/// The number of claims that are looked up at once. Nothing waits for it.
const CONCURRENCY: usize = 4;
/// The shortest interval between two rounds.
const INTERVAL: Duration = Duration::from_secs(60);

/// Unprepares orphans for as long as the driver runs: those of an earlier boot at once, since they have no containers, the
/// others when the kubelet has had `grace` to do it.
pub(crate) async fn collect<P: DraPlugin>(
    service: Arc<Service<P>>,
    recovered: Vec<RecoveredClaim>,
    grace: Duration,
    background: Background,
    metrics: Metrics,
) {
    let (of_earlier_boot, of_this_boot): (Vec<_>, Vec<_>) =
        recovered.into_iter().partition(|found| !found.is_of_this_boot);
    let claims = |found: Vec<RecoveredClaim>| found.into_iter().map(|found| found.claim).collect::<Vec<_>>();
    let mut orphans = collect_once(&service, claims(of_earlier_boot), &background, &metrics).await;
    // Jitter: a daemon set may have started all drivers of a cluster at once.
    sleep(jittered(grace, 1.0..=1.5)).await;
    orphans.extend(claims(of_this_boot));
    loop {
        orphans = collect_once(&service, orphans, &background, &metrics).await;
        sleep(jittered(grace.max(INTERVAL), 1.0..=1.5)).await;
        // Claims that no kubelet unprepares appear later too.
        let known = orphans.clone();
        orphans.extend(service.abandoned().into_iter().filter(|claim| !known.contains(claim)));
    }
}

/// Unprepares the claims that are gone from the API server or have other devices there, and returns those that could not be
/// looked up or unprepared.
async fn collect_once<P: DraPlugin>(
    service: &Service<P>,
    claims: Vec<ClaimRef>,
    background: &Background,
    metrics: &Metrics,
) -> Vec<ClaimRef> {
    let mut remaining = Vec::new();
    let lookups = claims.into_iter().map(|claim| async move {
        let outcome = service.collect(&claim).await;
        (claim, outcome)
    });
    let mut lookups = stream::iter(lookups.collect::<Vec<_>>()).buffer_unordered(CONCURRENCY);
    while let Some((claim, outcome)) = lookups.next().await {
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(%claim, "orphaned claim unprepared");
                metrics.recovered(0, 0, 1);
            }
            Err(error) => {
                remaining.push(claim);
                background(BackgroundError::recoverable("unprepare orphaned claims", error));
            }
        }
    }
    remaining
}
