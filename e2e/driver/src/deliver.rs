//! Delivery of deferred metadata, and updates of delivered metadata.

use std::sync::Arc;

use drakkar_plugin::{BoxError, ClaimRef, Device, MetadataUpdater};
use tokio::sync::mpsc;

use crate::control::{Control, PERIOD};
use crate::devices::SimulatedDevice;
use crate::driver::{Prepared, Requests};

/// How metadata is delivered: to the pods, and optionally to the status of claims.
pub(crate) struct Delivery {
    pub(crate) updater: Arc<dyn MetadataUpdater>,
    pub(crate) status: bool,
}

/// Queues the metadata of all prepared claims again whenever the revision changes. Runs until it is aborted.
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

/// Delivers queued metadata, as a container runtime's hook does in a network driver.
pub(crate) async fn deliver(
    mut queue: mpsc::UnboundedReceiver<(ClaimRef, Requests)>,
    on_request: bool,
    delivery: Delivery,
    control: Arc<Control>,
) {
    let delivery = Arc::new(delivery);
    while let Some((claim, requests)) = queue.recv().await {
        let delivery = delivery.clone();
        let control = control.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            while on_request && !control.may_deliver() {
                ticks.tick().await;
            }
            for (request, devices) in requests {
                let devices = devices.into_iter().map(|device| {
                    let simulated = SimulatedDevice::named(&device.device_name)?;
                    Ok(Device { metadata: Some(simulated.metadata(control.revision())), ..device })
                });
                let devices = match devices.collect::<Result<Vec<_>, BoxError>>() {
                    Ok(devices) => devices,
                    Err(error) => return tracing::error!(%claim, error, "delivering metadata failed"),
                };
                let update = delivery.updater.update_request_metadata(&claim, &request, devices);
                let result = if delivery.status { update.and_report().await } else { update.await };
                match result {
                    Ok(generation) => tracing::info!(%claim, request, %generation, "metadata delivered"),
                    Err(error) if error.is_not_prepared() => tracing::info!(%claim, request, "claim was unprepared"),
                    Err(error) => tracing::error!(%claim, request, %error, "delivering metadata failed"),
                }
            }
        });
    }
}
