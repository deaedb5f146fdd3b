//! Preparing the claims of pods, and unpreparing them when no pod uses them.
//!
//! Order of a prepare: fetch and check all claims; find the plugin of every driver; record the pod with each claim, in
//! memory and in the file; call the plugins one after the other, each with all claims of this pod that it has devices for
//! and that are not prepared; record the devices; when all have succeeded, mark the claims as prepared. The first failure
//! ends it. Claims are unprepared with their last pod, and forgotten when all plugins have succeeded.

mod cache;
mod devices;
mod resolve;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use tonic::Status;

pub use self::cache::CachedClaim;
use self::cache::{Cache, Key, key};
use self::resolve::{UsableClaim, usable_claims};
use super::checkpoint::{CheckpointError, StateFile};
use super::claim::{ClaimId, Device};
use super::health::{Change, Health};
use super::plugins::Plugins;
use super::rpc_error::RpcError;
use super::service::ClaimResults;
use super::timing::Timing;

/// Why the claims of a pod could not be prepared.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error("pod claim {entry}: its resource claim has not been created yet")]
    NotCreated { entry: String },
    #[error("get resource claim {claim}: {source}")]
    Fetch { claim: String, source: Box<kube::Error> },
    #[error("resource claim {claim} was not created for this pod: the pod is not its owner")]
    NotOwned { claim: Box<ClaimId> },
    #[error("resource claim {claim} is not reserved for this pod")]
    NotReserved { claim: Box<ClaimId> },
    #[error("resource claim {claim} is not allocated")]
    NotAllocated { claim: Box<ClaimId> },
    #[error("resource claim {claim}: DRA driver {driver} is not registered")]
    NotRegistered { claim: Box<ClaimId>, driver: String },
    #[error("resource claim {claim}: the node still has an older claim of that name, with uid {found}")]
    OtherUid { claim: Box<ClaimId>, found: String },
    #[error("resource claim {claim} is being unprepared")]
    BeingUnprepared { claim: Box<ClaimId> },
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
}

/// Why the claims of a pod could not be unprepared.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnprepareError {
    #[error("resource claim {claim} is being unprepared already")]
    InProgress { claim: Box<ClaimId> },
    #[error("DRA driver {driver} is not registered")]
    NotRegistered { driver: String },
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
}

/// A plugin failed a call, or answered it wrongly.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("{method} of {driver}: {}", RpcError(source))]
    Failed { method: &'static str, driver: String, source: Box<Status> },
    #[error("{method} of {driver}: answered for claim uid {uid}, which was not asked for")]
    UnknownUid { method: &'static str, driver: String, uid: String },
    #[error("{method} of {driver}: resource claim {claim}: {error}")]
    Claim { method: &'static str, driver: String, claim: Box<ClaimId>, error: String },
    #[error("{method} of {driver}: skipped {count} claims")]
    Skipped { method: &'static str, driver: String, count: usize },
}

/// The devices of a container are not known.
#[derive(Debug, thiserror::Error)]
#[error("container {container}: resource claim {namespace}/{name} is not prepared")]
pub(super) struct SelectError {
    namespace: String,
    name: String,
    container: String,
}

const PREPARE: &str = "NodePrepareResources";
const UNPREPARE: &str = "NodeUnprepareResources";

/// Prepares and unprepares the claims of a node's pods.
pub(super) struct Manager {
    client: Client,
    plugins: Plugins,
    health: Health,
    cache: Cache,
    timing: Timing,
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl Manager {
    /// Restores the claims that the last kubelet knew, none of them prepared.
    pub(super) fn restore(
        client: Client,
        plugins: Plugins,
        health: Health,
        file: StateFile,
        timing: Timing,
    ) -> Result<Self, CheckpointError> {
        Ok(Self { client, plugins, health, cache: Cache::restore(file)?, timing })
    }

    /// Prepares all claims of a pod.
    pub(super) async fn prepare(&self, pod: &Pod) -> Result<(), PrepareError> {
        let usable = usable_claims(&self.client, pod).await?;
        if usable.is_empty() {
            return Ok(());
        }
        for usable in &usable {
            if let Some(driver) = usable.drivers.iter().find(|driver| self.plugins.get(driver).is_none()) {
                let claim = Box::new(usable.claim.clone());
                return Err(PrepareError::NotRegistered { claim, driver: driver.clone() });
            }
        }
        let batches = self.record(pod.metadata.uid.as_deref().unwrap_or_default(), &usable)?;
        // The drivers one after the other, in no particular order, as in a real kubelet.
        for (driver, claims) in &batches {
            let Some(plugin) = self.plugins.get(driver) else {
                let Some(claim) = claims.first() else { continue };
                return Err(PrepareError::NotRegistered { claim: Box::new(claim.clone()), driver: driver.clone() });
            };
            let results = plugin.prepare(claims.clone(), self.timing.call_timeout).await;
            check_results(PREPARE, driver, claims, results, |claim, devices| {
                self.record_devices(claim, driver, devices);
            })?;
        }
        let mut cache = self.cache.lock();
        for usable in &usable {
            if let Some(entry) = cache.claims.get_mut(&key(&usable.claim)).filter(|entry| entry.claim == usable.claim) {
                entry.prepared = true;
            }
        }
        Ok(cache.save()?)
    }

    /// Records that a pod uses claims, and returns those that are not prepared, by driver.
    fn record(&self, pod: &str, usable: &[UsableClaim]) -> Result<HashMap<String, Vec<ClaimId>>, PrepareError> {
        let mut cache = self.cache.lock();
        for UsableClaim { claim, .. } in usable {
            match cache.claims.get(&key(claim)) {
                Some(entry) if entry.claim.uid != claim.uid => {
                    return Err(PrepareError::OtherUid {
                        claim: Box::new(claim.clone()),
                        found: entry.claim.uid.clone(),
                    });
                }
                Some(entry) if entry.unpreparing => {
                    return Err(PrepareError::BeingUnprepared { claim: Box::new(claim.clone()) });
                }
                _ => {}
            }
        }
        let mut batches: HashMap<String, Vec<ClaimId>> = HashMap::new();
        for UsableClaim { claim, drivers } in usable {
            let entry = cache.claims.entry(key(claim)).or_insert_with(|| CachedClaim {
                claim: claim.clone(),
                pods: BTreeSet::new(),
                drivers: drivers.iter().map(|driver| (driver.clone(), Vec::new())).collect(),
                prepared: false,
                unpreparing: false,
            });
            entry.pods.insert(pod.to_owned());
            if !entry.prepared {
                for driver in drivers {
                    batches.entry(driver.clone()).or_default().push(claim.clone());
                }
            }
        }
        cache.save()?;
        Ok(batches)
    }

    fn record_devices(&self, claim: &ClaimId, driver: &str, devices: Vec<Device>) {
        let mut cache = self.cache.lock();
        if let Some(entry) = cache.claims.get_mut(&key(claim)).filter(|entry| entry.claim == *claim) {
            entry.drivers.insert(driver.to_owned(), devices);
        }
    }

    /// Unprepares the claims of a pod that no other pod uses.
    pub(super) async fn unprepare(&self, pod: &str) -> Result<(), UnprepareError> {
        let unused = self.release(pod)?;
        // The guard clears the claims' `unpreparing` flag on every way out, cancellation included.
        let unpreparing = Unpreparing { cache: &self.cache, claims: unused };
        let mut batches: HashMap<&str, Vec<ClaimId>> = HashMap::new();
        for entry in &unpreparing.claims {
            for driver in entry.drivers.keys() {
                batches.entry(driver).or_default().push(entry.claim.clone());
            }
        }
        for (driver, claims) in batches {
            let Some(plugin) = self.plugins.get(driver) else {
                return Err(UnprepareError::NotRegistered { driver: driver.to_owned() });
            };
            let results = plugin.unprepare(claims.clone(), self.timing.call_timeout).await;
            check_results(UNPREPARE, driver, &claims, results, |_, ()| {})?;
        }
        if !unpreparing.claims.is_empty() {
            let mut cache = self.cache.lock();
            for entry in &unpreparing.claims {
                cache.claims.remove(&key(&entry.claim));
            }
            cache.save()?;
        }
        Ok(())
    }

    /// Removes a pod from the claims that others use too, and marks and returns those that only it uses.
    fn release(&self, pod: &str) -> Result<Vec<CachedClaim>, UnprepareError> {
        let mut cache = self.cache.lock();
        let in_progress = cache.claims.values().find(|entry| entry.unpreparing && entry.pods.contains(pod));
        if let Some(entry) = in_progress {
            return Err(UnprepareError::InProgress { claim: Box::new(entry.claim.clone()) });
        }
        let mut unused = Vec::new();
        let mut changed = false;
        for entry in cache.claims.values_mut().filter(|entry| entry.pods.contains(pod)) {
            if entry.pods.len() > 1 {
                entry.pods.remove(pod);
                changed = true;
            } else {
                entry.unpreparing = true;
                unused.push(entry.clone());
            }
        }
        if changed && let Err(error) = cache.save() {
            drop(cache);
            drop(Unpreparing { cache: &self.cache, claims: unused });
            return Err(error.into());
        }
        Ok(unused)
    }

    /// Unprepares the claims of pods that are gone from this node.
    pub(super) async fn unprepare_orphans(&self, is_active: impl Fn(&str) -> bool) {
        let gone: HashSet<String> = self.pods().into_iter().filter(|pod| !is_active(pod)).collect();
        for pod in gone {
            if let Err(error) = self.unprepare(&pod).await {
                tracing::warn!(pod, %error, "kubelet: unpreparing the claims of a deleted pod failed");
            }
        }
    }

    /// Returns the pods that use claims.
    pub(super) fn pods(&self) -> BTreeSet<String> {
        self.cache.lock().claims.values().flat_map(|entry| entry.pods.iter().cloned()).collect()
    }

    /// Returns the pods that use one of the changed devices.
    pub(super) fn pods_using(&self, change: &Change) -> BTreeSet<String> {
        let is_changed = |device: &Device| {
            change.devices.iter().any(|(pool, name)| *pool == device.pool_name && *name == device.device_name)
        };
        let uses = |entry: &&CachedClaim| {
            entry.drivers.get(&change.driver).is_some_and(|devices| devices.iter().any(is_changed))
        };
        self.cache.lock().claims.values().filter(uses).flat_map(|entry| entry.pods.iter().cloned()).collect()
    }

    pub(super) fn claims(&self) -> Vec<CachedClaim> {
        let mut claims: Vec<CachedClaim> = self.cache.lock().claims.values().cloned().collect();
        claims.sort_by(|a, b| a.claim.cmp(&b.claim));
        claims
    }
}

/// Marks claims as being unprepared until it is dropped.
struct Unpreparing<'a> {
    cache: &'a Cache,
    claims: Vec<CachedClaim>,
}

impl Drop for Unpreparing<'_> {
    fn drop(&mut self) {
        let mut cache = self.cache.lock();
        for entry in &self.claims {
            let key: Key = key(&entry.claim);
            if let Some(entry) = cache.claims.get_mut(&key) {
                entry.unpreparing = false;
            }
        }
    }
}

/// Checks a plugin's response, and passes the value of each claim to `accept` until one has failed.
fn check_results<T>(
    method: &'static str,
    driver: &str,
    claims: &[ClaimId],
    results: Result<ClaimResults<T>, Status>,
    mut accept: impl FnMut(&ClaimId, T),
) -> Result<(), CallError> {
    let driver = driver.to_owned();
    let results = match results {
        Ok(results) => results,
        Err(status) => return Err(CallError::Failed { method, driver, source: Box::new(status) }),
    };
    let skipped = claims.len().saturating_sub(results.len());
    for (uid, result) in results {
        let Some(claim) = claims.iter().find(|claim| claim.uid == uid) else {
            return Err(CallError::UnknownUid { method, driver, uid });
        };
        match result {
            Ok(value) => accept(claim, value),
            Err(error) => return Err(CallError::Claim { method, driver, claim: Box::new(claim.clone()), error }),
        }
    }
    if skipped > 0 {
        return Err(CallError::Skipped { method, driver, count: skipped });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
