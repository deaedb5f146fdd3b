//! The publisher: a task that owns the desired and the stored state of all pools, and writes the difference.

mod changes;
mod failures;
mod outcome;
#[cfg(test)]
mod tests;
mod validation;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use drakkar_client::{DraClient, random};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use self::failures::Failures;
use super::PublishError;
use super::api::{Api, Owner, Scope};
use super::desired::DesiredPool;
use super::generations::Generations;
use super::lookup::{Index, PublishedAttributes};
use super::observer::Observer;
use super::overview::{Counts, Overview};
use super::pending::{PendingPublish, Publication, ResourcePublisher};
use super::pool::PoolState;
use super::publisher_election::PublisherElection;
use super::reflector::{self, Change};
use super::resources::Pool;
use super::validate::ValidationContext;
use super::write::{Permission, Writer, explain};

/// The interval at which an instance on standby checks whether it is the newest.
const STANDBY_INTERVAL: Duration = Duration::from_secs(2);

/// The configuration of a [`Publisher`].
///
/// Only the driver's name is needed. A controller sets nothing else, or [`Self::only_pool`] where several controllers publish
/// for one driver. The node and the files are for publishers that run on a node.
///
/// ```
/// use drakkar_slices::PublisherConfig;
///
/// let config = PublisherConfig::new("fabric.example.com").only_pool("rack-7");
/// ```
#[derive(Debug, Clone)]
#[must_use = "a configuration does nothing by itself"]
pub struct PublisherConfig {
    driver: String,
    node: Option<String>,
    node_uid: Option<String>,
    only_pool: Option<String>,
    start_within: Duration,
    election_file: Option<PathBuf>,
    generations_file: Option<PathBuf>,
}

impl PublisherConfig {
    /// A publisher for the driver of this name, on no particular node: for network-attached devices.
    ///
    /// It owns all slices of the driver that name no node (`spec.nodeName`): those of pools that are not published are deleted.
    pub fn new(driver: impl Into<String>) -> Self {
        Self {
            driver: driver.into(),
            node: None,
            node_uid: None,
            only_pool: None,
            start_within: Duration::ZERO,
            election_file: None,
            generations_file: None,
        }
    }

    /// Publishes the devices of this node. Slices name the node and are owned by it, so Kubernetes deletes them with it. The
    /// publisher owns all slices of the driver that name the node.
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.node = Some(name.into());
        self
    }

    /// Sets the UID of the node. Otherwise it is looked up, which needs permission to get nodes.
    pub fn node_uid(mut self, uid: impl Into<String>) -> Self {
        self.node_uid = Some(uid.into());
        self
    }

    /// Limits the publisher to this pool. It does not touch slices of other pools, and its own do not name the node.
    pub fn only_pool(mut self, pool: impl Into<String>) -> Self {
        self.only_pool = Some(pool.into());
        self
    }

    /// Delays the first request to the API server by a random time up to this one, so that publishers on thousands of nodes
    /// do not start at the same moment.
    pub fn start_within(mut self, time: Duration) -> Self {
        self.start_within = time;
        self
    }

    /// Sets a lock file by which the instances on one node elect the newest as the one that publishes. The others stand by.
    pub fn election_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.election_file = Some(path.into());
        self
    }

    /// Sets the file that stores the highest generation of each pool, so that a generation never goes back after a restart,
    /// also if all slices of the pool are gone. Without it the generation of a new slice follows that of the stored ones.
    pub fn generations_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.generations_file = Some(path.into());
        self
    }
}

/// Publishes the resources of a driver as `ResourceSlice` objects, and keeps the slices as published until it is dropped.
///
/// Nothing is sent before the first [`ResourcePublisher::publish`]. From then on a watch follows the slices: what other
/// clients change or delete is repaired.
///
/// **Dropping** the publisher ends its task, at any point of a write, and leaves the slices as they are: the next publisher
/// of the driver finds them and continues. Handles return [`PublishError::Stopped`] from then on. To **remove** the slices,
/// publish [`DriverResources::default()`](crate::DriverResources), wait for
/// [`PublishStatus::Published`](crate::PublishStatus::Published), and then drop the publisher.
///
/// **Only one publisher** may run for the same driver and node, or driver and pool with
/// [`PublisherConfig::only_pool`]: two of them undo each other's changes, and report [`PublishError::Contested`]. Run a
/// controller with one replica and the update strategy `Recreate`, or start the publisher once the replica holds a leader
/// election lease, and drop it when the lease is lost. On a node, [`PublisherConfig::election_file`] does this.
#[derive(Debug)]
pub struct Publisher {
    handle: ResourcePublisher,
    attributes: PublishedAttributes,
    overview: Overview,
    pending: Arc<PendingPublish>,
    _task: AbortOnDropHandle<()>,
}

impl Publisher {
    /// Starts a publisher. `Arc::new(())` is an observer that logs errors.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn start(client: DraClient, config: PublisherConfig, observer: Arc<dyn Observer>) -> Self {
        Self::start_when(std::future::ready(()), client, config, observer)
    }

    /// Starts a publisher that does nothing before `ready` completes. Its handles take resources at once: a driver can publish
    /// while it starts, and nothing of it reaches the API server unless the start succeeds.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn start_when(
        ready: impl Future<Output = ()> + Send + 'static,
        client: DraClient,
        config: PublisherConfig,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let pending = Arc::new(PendingPublish::default());
        let (index, attributes) = watch::channel(None);
        let handle = ResourcePublisher::new(pending.clone(), config.only_pool.as_deref());
        let overview = Overview::new(pending.clone(), attributes.clone());
        let run = run(client, config, observer, pending.clone(), index);
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            ready.await;
            run.await;
        }));
        Self { handle, attributes: PublishedAttributes(attributes), overview, pending, _task: task }
    }

    /// Returns a handle to publish with.
    pub fn handle(&self) -> ResourcePublisher {
        self.handle.clone()
    }

    /// Returns a handle to describe the state of publishing with.
    pub fn overview(&self) -> Overview {
        self.overview.clone()
    }

    /// Returns a handle to look up published attributes with.
    pub fn attributes(&self) -> PublishedAttributes {
        self.attributes.clone()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.pending.stop();
    }
}

/// Stops the handles when the task ends, for whatever reason.
struct StopOnDrop(Arc<PendingPublish>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Waits for the first resources, and publishes from then on.
async fn run(
    client: DraClient,
    config: PublisherConfig,
    observer: Arc<dyn Observer>,
    pending: Arc<PendingPublish>,
    index: watch::Sender<Index>,
) {
    let _stop = StopOnDrop(pending.clone());
    let first = pending.next().await;
    // Slices of a single pool do not name the node.
    let node = config.node.clone().filter(|_| config.only_pool.is_none());
    let scope = Scope { driver: config.driver.clone(), node, pool: config.only_pool.clone() };
    let api = Arc::new(Api::new(client, scope));
    let relist = Arc::new(Notify::new());
    let (changes, reflector) = reflector::follow(api.clone(), relist.clone());
    // Only the list, the first request, is delayed: prepares may need published attributes at once.
    let delay = config.start_within.mul_f64(random());
    let reflector = AbortOnDropHandle::new(tokio::spawn(async move {
        sleep(delay).await;
        reflector.await;
    }));
    let task = PublisherTask {
        api,
        generations: Generations::load(config.generations_file.clone()).await,
        relist,
        owner_uid: config.node_uid.clone(),
        config,
        election: None,
        pools: BTreeMap::new(),
        rejected: BTreeMap::new(),
        listing: Listing::First { published: Vec::new() },
        publish_error: None,
        watch_error: None,
        last_error: None,
        failures: None,
        logged: None,
        is_on_standby: false,
        observer,
        pending,
        index,
    };
    task.run(first, changes).await;
    drop(reflector);
}

type ValidatedPools = Vec<(String, Result<Arc<DesiredPool>, PublishError>)>;

/// How the known slices relate to those that the API server stores.
enum Listing {
    /// The first list has not arrived. These resources are published when it has.
    First { published: ValidatedPools },
    /// A list has been applied, and the watch keeps it up to date.
    Done,
    /// Another list is requested or under way: nothing may be written until it is there, or has failed.
    Again,
}

struct PublisherTask {
    config: PublisherConfig,
    api: Arc<Api>,
    generations: Generations,
    /// The UID of the node, once it is known.
    owner_uid: Option<String>,
    /// The election among the instances on the node, once this one has joined it.
    election: Option<PublisherElection>,
    pools: BTreeMap<String, PoolState>,
    /// The pools whose last version is not valid: changes of single devices refer to it.
    rejected: BTreeMap<String, Pool>,
    listing: Listing,
    /// Requests a list.
    relist: Arc<Notify>,
    /// Why the resources that were published last are lost.
    publish_error: Option<PublishError>,
    /// Why changes of slices cannot be seen.
    watch_error: Option<PublishError>,
    /// The time and the kind of the last error.
    last_error: Option<(SystemTime, &'static str)>,
    /// The failures since the resources were last published.
    failures: Option<Failures>,
    /// What the log says is published.
    logged: Option<Counts>,
    is_on_standby: bool,
    observer: Arc<dyn Observer>,
    pending: Arc<PendingPublish>,
    index: watch::Sender<Index>,
}

impl PublisherTask {
    async fn run(mut self, first: Publication, mut changes: mpsc::Receiver<Change>) {
        self.publish(first).await;
        let pending = self.pending.clone();
        loop {
            self.report_status();
            let due = self.next_sync();
            tokio::select! {
                publication = pending.next() => self.publish(publication).await,
                change = changes.recv() => match change {
                    Some(change) => self.apply(change),
                    // The reflector ends only by a panic. Without it changes are missed, so this ends too.
                    None => return self.report(&PublishError::Stopped, true),
                },
                () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => self.sync().await,
            }
        }
    }

    /// Validates what the driver published and makes it the desired state.
    async fn publish(&mut self, publication: Publication) {
        let driver = self.config.driver.clone();
        let is_on_node = self.config.node.is_some();
        let is_single_pool = self.config.only_pool.is_some();
        let before = self.index.borrow().clone().unwrap_or_default();
        let rejected = std::mem::take(&mut self.rejected);
        let is_whole = publication.resources.is_some();
        // Validating thousands of devices would block the runtime for too long.
        let validated = tokio::task::spawn_blocking(move || {
            let context = ValidationContext { driver: &driver, is_on_node, is_single_pool };
            validation::validate(publication, context, &before, rejected)
        });
        let (validated, rejected) = match validated.await {
            Ok(validated) => validated,
            Err(error) => {
                let error = PublishError::Panicked(Arc::new(error));
                self.report(&error, true);
                self.publish_error = Some(error);
                return;
            }
        };
        self.publish_error = None;
        self.rejected = rejected;
        self.index.send_modify(|index| {
            let mut before = index.take().unwrap_or_default();
            let mut pools = if is_whole { BTreeMap::new() } else { before.clone() };
            for (name, validated) in &validated {
                match validated {
                    Ok(pool) => drop(pools.insert(name.clone(), pool.clone())),
                    Err(_) => pools.extend(before.remove_entry(name)),
                }
            }
            *index = Some(pools);
        });
        match &mut self.listing {
            // How pools are split depends on the stored slices.
            Listing::First { published } if is_whole => *published = validated,
            Listing::First { published } => {
                published.retain(|(name, _)| !validated.iter().any(|(changed, _)| changed == name));
                published.extend(validated);
            }
            Listing::Done | Listing::Again => self.set_desired(validated, is_whole),
        }
    }

    /// Makes published pools the desired state: of all pools, or of these only.
    fn set_desired(&mut self, validated: ValidatedPools, is_whole: bool) {
        let is_removed = |pool: &&String| is_whole && !validated.iter().any(|(name, _)| name == *pool);
        let removed: Vec<String> = self.pools.keys().filter(is_removed).cloned().collect();
        let removed = removed.into_iter().map(|pool| (pool, Ok(None)));
        let published = validated.into_iter().map(|(pool, validated)| (pool, validated.map(Some)));
        for (pool, outcome) in removed.chain(published) {
            let state = self.pools.entry(pool.clone()).or_default();
            let outcome = outcome.and_then(|desired| {
                let encode = |error| PublishError::Encode { pool: pool.clone(), source: Arc::new(error) };
                state.set_desired(desired).map_err(encode)
            });
            if let Err(error) = outcome {
                let is_new = state.set_invalid(error.clone());
                self.report(&error, is_new);
            } else if let Some(desired) = state.desired() {
                let desired = desired.clone();
                self.index.send_if_modified(|index| {
                    let pools = index.get_or_insert_default();
                    let is_split_anew = pools.get(&pool).is_none_or(|known| !Arc::ptr_eq(known, &desired));
                    pools.insert(pool, desired);
                    is_split_anew
                });
            }
        }
    }

    /// Joins the election as the newest instance, which is then the one that publishes.
    fn join_election(&mut self) {
        let Some(path) = self.config.election_file.as_deref() else { return };
        match PublisherElection::join(path) {
            Ok(election) => self.election = Some(election),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "joining the publisher election failed, publishing anyway");
            }
        }
    }

    /// Returns when the next sync is due. Never a time at which nothing can be done: the task would spin.
    fn next_sync(&self) -> Option<Instant> {
        if !matches!(self.listing, Listing::Done) {
            return None;
        }
        let prune = self.generations.next_prune().filter(|_| !self.is_on_standby);
        self.pools.values().filter_map(PoolState::next_sync).chain(prune).min()
    }

    /// Syncs all pools that are due.
    async fn sync(&mut self) {
        let now = Instant::now();
        let is_due = |state: &PoolState| state.next_sync().is_some_and(|next| next <= now);
        let due: Vec<String> =
            self.pools.iter().filter(|(_, state)| is_due(state)).map(|(pool, _)| pool.clone()).collect();
        self.is_on_standby = !is_elected(self.election.as_ref());
        for pool in due {
            if self.is_on_standby {
                if let Some(state) = self.pools.get_mut(&pool) {
                    state.stand_by(STANDBY_INTERVAL);
                }
                continue;
            }
            if !matches!(self.listing, Listing::Done) || self.pending.is_full() {
                return;
            }
            self.sync_pool(&pool).await;
        }
        self.pools.retain(|_, state| !state.is_gone());
        if !self.is_on_standby {
            let pools = &self.pools;
            self.generations.prune(|pool| pools.contains_key(pool));
            self.generations.save().await;
        }
        let slices = self.pools.values().map(|state| state.stored.len()).sum();
        let stored = self.pools.values().flat_map(|state| &state.stored);
        self.observer.published(slices, stored.map(|slice| slice.devices.len()).sum());
    }

    async fn sync_pool(&mut self, pool: &str) {
        let remembered = self.generations.of(pool);
        let Some(state) = self.pools.get_mut(pool) else { return };
        let Some(writes) = state.plan_writes(remembered) else { return };
        let is_repair = state.begin_sync();
        if writes.len() == 0 {
            return state.mark_synced();
        }
        if is_repair && state.is_contested() {
            return self.fail(pool, &PublishError::Contested { pool: pool.to_owned() });
        }
        let needs_owner = state.desired().is_some() && self.config.node.is_some();
        let owner = if needs_owner {
            match self.owner().await {
                Ok(owner) => Some(owner),
                Err((error, delay)) => {
                    self.fail(pool, &error);
                    return self.not_before(pool, delay);
                }
            }
        } else {
            None
        };
        let Some(state) = self.pools.get_mut(pool) else { return };
        state.begin_rollout(writes.generation);
        let writer = Writer {
            api: &self.api,
            driver: &self.config.driver,
            node: self.config.node.as_deref(),
            owner: owner.as_ref(),
            observer: &*self.observer,
        };
        let pending = &self.pending;
        let election = self.election.as_ref();
        let outcomes = writer.write(pool, state, &writes, &|| pending.is_full() || !is_elected(election)).await;
        let is_complete = outcomes.len() == writes.len();
        self.record_outcomes(pool, outcomes, is_complete);
        self.generations.save().await;
    }

    /// Returns the node that owns the slices; or why its UID is unknown, and the least delay before the next request.
    async fn owner(&mut self) -> Result<Owner, (PublishError, Duration)> {
        let name = self.config.node.clone().unwrap_or_default();
        let uid = match &self.owner_uid {
            Some(uid) => uid.clone(),
            None => {
                let uid = self.api.node_uid(&name).await.map_err(|error| {
                    let delay = error.retry_delay(Duration::ZERO);
                    (explain(format!("get node {name}"), Permission::Node, error), delay)
                })?;
                self.owner_uid.insert(uid).clone()
            }
        };
        Ok(Owner { name, uid })
    }
}

/// Returns whether this instance publishes. Without an election, or if its state is unknown, it does.
fn is_elected(election: Option<&PublisherElection>) -> bool {
    let Some(election) = election else { return true };
    election.is_elected().unwrap_or_else(|error| {
        tracing::warn!(%error, "reading the publisher election failed, publishing anyway");
        true
    })
}
