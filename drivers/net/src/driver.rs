//! The driver as the kubelet sees it: claims are prepared and unprepared.
//!
//! A prepare checks, reserves and records; interfaces are attached later, by the [hooks](crate::hooks) of the runtime. So it returns no
//! metadata for requests with interfaces: the framework withholds their CDI specs until the metadata is there, and no container starts
//! before. Nor does it return their devices, except for the [device nodes](crate::rdma_nodes) of RDMA devices. A device for programs in
//! user space has no interface, and is complete at the prepare.
//!
//! What blocks runs on threads of its own and is not interrupted when the kubelet gives up. [`Claims`] keeps calls for the same claim
//! apart.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use drakkar_plugin::k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceStatus, DraPlugin, HealthMonitor};
use serde_json::json;

use crate::attacher::Attacher;
use crate::claim_config::ClaimConfig;
use crate::claims::{Claims, Prepared, Wanted};
use crate::health::{self, Subjects};
use crate::hooks::Hooks;
use crate::journal::{DeviceKind, DeviceRecord, Phase};
use crate::metadata::{self, reason};
use crate::metrics::Metrics;
use crate::published::{Found, Published};
use crate::rdma_nodes::RdmaNodes;
use crate::reports::Reports;

/// What a driver works with.
#[derive(Debug)]
pub(crate) struct NetDriver {
    pub(crate) claims: Arc<Claims>,
    pub(crate) attacher: Arc<dyn Attacher>,
    pub(crate) published: Arc<dyn Published>,
    pub(crate) reports: Arc<dyn Reports>,
    pub(crate) hooks: Hooks,
    pub(crate) rdma_nodes: Arc<RdmaNodes>,
    pub(crate) metrics: Metrics,
    /// What the health of is reported. Tests have none.
    pub(crate) health: Option<Subjects>,
}

/// Why a claim is refused before anything is reserved.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("request {request}: admin access is not supported by this driver: an interface can be in one place only")]
    AdminAccess { request: String },
    #[error("request {request}: device {device}: {problem}")]
    Parameters { request: String, device: String, problem: String },
    #[error("the claim is reserved for {consumer}, which is not a pod: this driver gives interfaces to pods")]
    NotAPod { consumer: String },
}

impl DraPlugin for NetDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let claims = self.claims.clone();
        let published = self.published.clone();
        let claim = claim.clone();
        let reference = claim.reference().clone();
        let is_known = claims.find(&reference.uid).is_some();
        let attacher = self.attacher.clone();
        let rdma_nodes = self.rdma_nodes.clone();
        let metrics = self.metrics.clone();
        let work = tokio::task::spawn_blocking(move || {
            let outcome = prepare(&claims, &*published, &*attacher, &rdma_nodes, &claim);
            metrics.held(claims.count());
            published.claims_changed(claim.results().map(|result| result.device.clone()).collect());
            outcome
        });
        let outcome = work.await?;
        // Also after an error: the interfaces of an earlier pod may have left it.
        if is_known {
            self.hooks.close_gate_after_prepare(&reference);
        }
        let Answer { devices, statuses } = outcome?;
        if !statuses.is_empty() {
            self.reports.report(&reference, statuses);
        }
        Ok(devices)
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        let claims = self.claims.clone();
        let published = self.published.clone();
        let rdma_nodes = self.rdma_nodes.clone();
        let metrics = self.metrics.clone();
        let claim = claim.clone();
        let work = tokio::task::spawn_blocking(move || {
            let devices = claims.find(&claim.uid).map(|record| record.devices).unwrap_or_default();
            let outcome = unprepare(&claims, &rdma_nodes, &claim);
            metrics.held(claims.count());
            published.claims_changed(devices.into_iter().map(|device| device.device).collect());
            outcome
        });
        work.await?
    }

    fn health_monitor(&self) -> Option<HealthMonitor<Self>> {
        self.health.as_ref()?;
        Some(HealthMonitor::new(async |driver: Arc<Self>, reports| match driver.health.clone() {
            Some(subjects) => health::monitor(subjects, reports).await,
            None => Ok(()),
        }))
    }
}

/// The answer to a prepare.
#[derive(Debug)]
struct Answer {
    /// The devices for user space, and those with device nodes.
    devices: Vec<Device>,
    statuses: Vec<DeviceStatus>,
}

/// Prepares a claim. Blocks.
fn prepare(
    claims: &Claims,
    published: &dyn Published,
    attacher: &dyn Attacher,
    rdma_nodes: &RdmaNodes,
    claim: &Claim,
) -> Result<Answer, BoxError> {
    let pods = consumers(claim)?;
    // The kubelet asks again for a claim that is prepared, whose interfaces may be in a pod: what counts is the record.
    let known = claims.find(&claim.reference().uid);
    let mut wanted = Vec::new();
    for result in claim.results() {
        let is_device = |device: &&DeviceRecord| device.device == result.device && device.pool == result.pool;
        wanted.push(match known.as_ref().and_then(|record| record.devices.iter().find(is_device)) {
            Some(device) => {
                Wanted { request: result.request.clone(), share_id: result.share_id.clone(), ..again(device) }
            }
            None => want(claim, result, &published.require(&result.device)?, attacher)?,
        });
    }
    let prepared = claims.prepare(claim.reference(), &pods, &wanted)?;
    let mut answer = answer(&prepared);
    let with_nodes = rdma_nodes.prepare(&prepared.record);
    answer.devices.extend(with_nodes.map_err(|error| format!("claim {}: {error}", claim.reference()))?);
    Ok(answer)
}

/// Takes a claim back. Blocks.
fn unprepare(claims: &Claims, rdma_nodes: &RdmaNodes, claim: &ClaimRef) -> Result<(), BoxError> {
    rdma_nodes.unprepare(&claim.uid).map_err(|error| format!("claim {claim}: {error}"))?;
    Ok(claims.unprepare(&claim.uid)?)
}

/// Returns what was wanted of a device that is prepared. Its parameters are in the record.
fn again(device: &DeviceRecord) -> Wanted {
    Wanted {
        request: device.request.clone(),
        pool: device.pool.clone(),
        device: device.device.clone(),
        share_id: device.share_id.clone(),
        config: ClaimConfig::default(),
        found: Found::default(),
        rdma: None,
    }
}

/// Returns the UIDs of the pods that a claim is reserved for.
fn consumers(claim: &Claim) -> Result<Vec<String>, Refusal> {
    let status = claim.object().status.as_ref();
    let consumers = status.and_then(|status| status.reserved_for.as_deref()).unwrap_or_default();
    let pods = consumers.iter().map(|consumer| {
        let is_pod = consumer.resource == "pods" && consumer.api_group.as_deref().unwrap_or_default().is_empty();
        let other = || Refusal::NotAPod { consumer: format!("{} {}", consumer.resource, consumer.name) };
        if is_pod { Ok(consumer.uid.clone()) } else { Err(other()) }
    });
    pods.collect()
}

/// Checks what a claim wants of a device.
fn want(
    claim: &Claim,
    result: &DeviceRequestAllocationResult,
    found: &Found,
    attacher: &dyn Attacher,
) -> Result<Wanted, BoxError> {
    let request = result.request.clone();
    let device = result.device.clone();
    if result.admin_access == Some(true) {
        return Err(Refusal::AdminAccess { request }.into());
    }
    let config = ClaimConfig::of(claim, result, &found.defaults)?;
    if let Some(problem) = problem(&config, found) {
        return Err(Refusal::Parameters { request, device, problem }.into());
    }
    let rdma = match found.rdma.as_deref().filter(|_| config.rdma_exclusive == Some(true)) {
        Some(name) => attacher.rdma(name)?,
        None => None,
    };
    Ok(Wanted {
        request,
        pool: result.pool.clone(),
        device,
        share_id: result.share_id.clone(),
        config,
        found: found.clone(),
        rdma,
    })
}

/// Returns what is wrong with parameters for a device.
fn problem(config: &ClaimConfig, found: &Found) -> Option<String> {
    if found.is_shared && !config.has_child() {
        return Some(
            "is shared by several claims, so a claim gets an interface on top of it: set macvlan, ipvlan or vlan"
                .to_owned(),
        );
    }
    if config.rdma_exclusive == Some(true) && found.rdma.is_none() {
        return Some("has no RDMA device: remove rdmaExclusive, or select a device with one".to_owned());
    }
    let (Some(mtu), Some(limits)) = (config.mtu, found.mtu) else { return None };
    let most = if config.has_child() { Some(limits.now) } else { limits.max };
    match (limits.min, most) {
        (_, Some(most)) if mtu > most && config.has_child() => {
            Some(format!("mtu: {mtu} is more than that of the device, {most}, on top of which the interface is"))
        }
        (_, Some(most)) if mtu > most => Some(format!("mtu: {mtu} is more than the device can have, {most}")),
        (Some(least), _) if mtu < least => Some(format!("mtu: {mtu} is less than the device can have, {least}")),
        _ => None,
    }
}

/// Returns the devices for user space, and the status of all.
fn answer(prepared: &Prepared) -> Answer {
    let mut answer = Answer { devices: Vec::new(), statuses: Vec::new() };
    for record in &prepared.record.devices {
        let status = metadata::status(record);
        match &record.kind {
            DeviceKind::Interface(interface) if interface.phase == Phase::Prepared => {
                answer.statuses.push(status.not_ready(reason::PENDING, "waits for the sandbox of the pod"));
            }
            // The hook has reported it.
            DeviceKind::Interface(_) => {}
            DeviceKind::Userspace { address } => {
                let Some(bound) = prepared.bound.iter().find(|bound| bound.address.to_string() == *address) else {
                    continue;
                };
                let metadata = metadata::of_userspace(record.attributes.clone(), bound);
                let cdi_device_ids = bound.cdi_id.iter().cloned().collect();
                answer.devices.push(Device { cdi_device_ids, ..metadata::device(record, Some(metadata)) });
                let driver = bound.driver.as_deref().unwrap_or("no driver");
                let data = json!({"pciBusID": address, "driver": driver});
                answer.statuses.push(status.ready(reason::BOUND, format!("bound to {driver}")).data(data));
            }
        }
    }
    answer
}
