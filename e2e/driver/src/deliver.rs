//! Metadata that comes later, and metadata that changes.

use std::sync::Arc;

use drakkar_plugin::{BoxError, ClaimRef, Device, MetadataUpdater};
use tokio::sync::mpsc;

use crate::control::{Control, PERIOD};
use crate::devices::Facts;
use crate::driver::{Prepared, Requests};

/// What tells pods, and the API server too if that is asked for.
pub(crate) struct Telling {
    pub(crate) updater: Arc<dyn MetadataUpdater>,
    pub(crate) status: bool,
}

/// Has the metadata of all prepared claims delivered again whenever the revision changes. Does not end by itself.
pub(crate) async fn follow_revisions(
    control: Arc<Control>,
    prepared: Prepared,
    deliveries: mpsc::UnboundedSender<(ClaimRef, Requests)>,
) {
    let mut last = control.revision();
    let mut ticks = tokio::time::interval(PERIOD);
    loop {
        ticks.tick().await;
        let revision = control.revision();
        if revision == last {
            continue;
        }
        last = revision;
        for claim in prepared.claims() {
            if deliveries.send(claim).is_err() {
                return;
            }
        }
    }
}

/// Does what a hook of the container runtime does in a network driver.
pub(crate) async fn deliver(
    mut queue: mpsc::UnboundedReceiver<(ClaimRef, Requests)>,
    on_request: bool,
    telling: Telling,
    control: Arc<Control>,
) {
    let telling = Arc::new(telling);
    while let Some((claim, requests)) = queue.recv().await {
        let (telling, control) = (telling.clone(), control.clone());
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            while on_request && !control.may_deliver() {
                ticks.tick().await;
            }
            for (request, devices) in requests {
                let told = devices.into_iter().map(|device| {
                    let facts = Facts::of(&device.device_name)?;
                    Ok(Device { metadata: Some(facts.metadata(control.revision())), ..device })
                });
                let told = match told.collect::<Result<Vec<_>, BoxError>>() {
                    Ok(told) => told,
                    Err(error) => return tracing::error!(%claim, error, "not delivered"),
                };
                let update = telling.updater.update_request_metadata(&claim, &request, told);
                let done = if telling.status { update.and_report().await } else { update.await };
                match done {
                    Ok(generation) => tracing::info!(%claim, request, %generation, "delivered"),
                    Err(error) if error.is_not_prepared() => tracing::info!(%claim, request, "unprepared meanwhile"),
                    Err(error) => tracing::error!(%claim, request, %error, "not delivered"),
                }
            }
        });
    }
}
