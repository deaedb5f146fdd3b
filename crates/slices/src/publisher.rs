//! The task that publishes: it alone knows what is wanted and what the API server has, and writes the difference.

mod learn;
mod outcome;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::PublishError;
use super::api::{Api, Owner, Scope};
use super::generations::Generations;
use super::lookup::{Index, PublishedAttributes};
use super::mailbox::{Mailbox, ResourcePublisher};
use super::observer::Observer;
use super::overview::Overview;
use super::pool::PoolState;
use super::resources::{DriverResources, Pool};
use super::source::{self, Change};
use super::turn::Turn;
use super::validate::Place;
use super::wanted::Checked;
use super::write::{Writer, explain};
use drakkar_client::{DraClient, random};

/// How long an instance that is not the newest waits before it sees whether it is by now.
const STAND_BY: Duration = Duration::from_secs(2);

/// What is published for whom: the driver, its node, and the files that outlive a process.
#[derive(Debug, Clone)]
#[must_use = "a configuration does nothing by itself"]
pub struct PublisherConfig {
    pub(crate) driver: String,
    pub(crate) node: Option<String>,
    pub(crate) node_uid: Option<String>,
    pub(crate) only_pool: Option<String>,
    pub(crate) start_within: Duration,
    pub(crate) election_file: Option<PathBuf>,
    pub(crate) generations_file: Option<PathBuf>,
}

impl PublisherConfig {
    /// Publishes for a driver of this name, on no particular node: for network-attached devices.
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

    /// Publishes for this node: slices name it, belong to it, and are removed with it.
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.node = Some(name.into());
        self
    }

    /// Sets the UID of the node. It is looked up otherwise, which needs the permission to get nodes.
    pub fn node_uid(mut self, uid: impl Into<String>) -> Self {
        self.node_uid = Some(uid.into());
        self
    }

    /// Publishes this pool alone and leaves all others to somebody else. Its slices do not name the node.
    pub fn only_pool(mut self, pool: impl Into<String>) -> Self {
        self.only_pool = Some(pool.into());
        self
    }

    /// Starts the first publishing at a random moment within this time, so that thousands of nodes do not start at once.
    pub fn start_within(mut self, time: Duration) -> Self {
        self.start_within = time;
        self
    }

    /// Sets the lock file by which two instances on one node agree on the newer as the one that publishes.
    pub fn election_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.election_file = Some(path.into());
        self
    }

    /// Sets the file that remembers the highest generation of each pool, also of those whose slices are gone. Without it
    /// generations are what the slices say.
    pub fn generations_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.generations_file = Some(path.into());
        self
    }
}

/// The task, and the ways to it. It ends when this is dropped.
#[derive(Debug)]
pub struct Publisher {
    handle: ResourcePublisher,
    attributes: PublishedAttributes,
    overview: Overview,
    _task: AbortOnDropHandle<()>,
}

impl Publisher {
    /// Starts a publisher. Must be called within a tokio runtime.
    pub fn start(client: DraClient, config: PublisherConfig, observer: Arc<dyn Observer>) -> Self {
        let mailbox = Arc::new(Mailbox::default());
        let (index, attributes) = watch::channel(None);
        let handle = ResourcePublisher::new(mailbox.clone(), config.only_pool.as_deref());
        let overview = Overview::of(mailbox.clone());
        let task = run(client, config, observer, mailbox, index);
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        Self { handle, attributes: PublishedAttributes(attributes), overview, _task: task }
    }

    /// Returns a handle to publish with.
    pub fn handle(&self) -> ResourcePublisher {
        self.handle.clone()
    }

    /// Returns a handle to describe the state of publishing with.
    pub fn overview(&self) -> Overview {
        self.overview.clone()
    }

    /// Returns a handle to look published attributes up with.
    pub fn attributes(&self) -> PublishedAttributes {
        self.attributes.clone()
    }
}

/// Waits for the first resources, and goes on from there.
async fn run(
    client: DraClient,
    config: PublisherConfig,
    observer: Arc<dyn Observer>,
    mailbox: Arc<Mailbox>,
    index: watch::Sender<Index>,
) {
    let first = mailbox.next().await;
    // Slices of a pool that is not bound to the node do not name it.
    let node = config.node.clone().filter(|_| config.only_pool.is_none());
    let scope = Scope { driver: config.driver.clone(), node, pool: config.only_pool.clone() };
    let api = Arc::new(Api::new(client, scope));
    let relist = Arc::new(Notify::new());
    let (changes, source) = source::follow(api.clone(), relist.clone());
    // Prepares may need what was published at once. The API server is not asked for anything before the list.
    let delay = config.start_within.mul_f64(random());
    let source = AbortOnDropHandle::new(tokio::spawn(async move {
        sleep(delay).await;
        source.await;
    }));
    let task = Task {
        api,
        generations: Generations::load(config.generations_file.clone()).await,
        relist,
        owner_uid: config.node_uid.clone(),
        config,
        turn: None,
        pools: BTreeMap::new(),
        checked: None,
        is_listed: false,
        is_list_awaited: false,
        source_trouble: None,
        last_error: None,
        is_on_stand_by: false,
        observer,
        mailbox,
        index,
    };
    task.run(first, changes).await;
    drop(source);
}

type CheckedPools = Vec<(String, Result<Checked, PublishError>)>;

struct Task {
    config: PublisherConfig,
    api: Arc<Api>,
    generations: Generations,
    /// The UID of the node, once it is known.
    owner_uid: Option<String>,
    turn: Option<Turn>,
    pools: BTreeMap<String, PoolState>,
    /// What was published before it was known what the API server has.
    checked: Option<CheckedPools>,
    is_listed: bool,
    /// Whether a list is under way or asked for, so that nothing may be written.
    is_list_awaited: bool,
    /// Asks for a list.
    relist: Arc<Notify>,
    source_trouble: Option<PublishError>,
    /// When something went wrong last, and what.
    last_error: Option<(SystemTime, &'static str)>,
    is_on_stand_by: bool,
    observer: Arc<dyn Observer>,
    mailbox: Arc<Mailbox>,
    index: watch::Sender<Index>,
}

impl Task {
    async fn run(mut self, first: DriverResources, mut changes: mpsc::Receiver<Change>) {
        self.publish(first).await;
        let mailbox = self.mailbox.clone();
        loop {
            self.tell();
            let due = self.next();
            tokio::select! {
                resources = mailbox.next() => self.publish(resources).await,
                change = changes.recv() => match change {
                    Some(change) => self.learn(change),
                    None => {
                        let error = PublishError::Stopped("the task that watches slices has ended".to_owned());
                        return self.report(&error, true);
                    }
                },
                () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => self.sync().await,
            }
        }
    }

    /// Checks what the driver published, and wants it from now on.
    async fn publish(&mut self, resources: DriverResources) {
        let (driver, is_on_node) = (self.config.driver.clone(), self.config.node.is_some());
        let is_for_others = self.config.only_pool.is_some();
        let before = self.index.borrow().clone().unwrap_or_default();
        // Thousands of devices take a while, in which others want to run.
        let checked = tokio::task::spawn_blocking(move || -> CheckedPools {
            let place = Place { driver: &driver, is_on_node, is_for_others };
            let check = |(name, pool): (String, Pool)| {
                let checked = Checked::new(&name, pool, place, before.get(&name).map(|devices| &**devices));
                (name, checked)
            };
            resources.pools.into_iter().map(check).collect()
        });
        let checked = match checked.await {
            Ok(checked) => checked,
            Err(error) => return self.report(&PublishError::Stopped(error.to_string()), true),
        };
        self.index.send_modify(|index| {
            let mut before = index.take().unwrap_or_default();
            let pools = checked.iter().filter_map(|(name, checked)| match checked {
                Ok(checked) => Some((name.clone(), checked.devices.clone())),
                Err(_) => before.remove_entry(name),
            });
            *index = Some(pools.collect());
        });
        self.checked = Some(checked);
        if self.is_listed {
            self.want();
        }
    }

    /// Wants what was published, now that it is known what the API server has.
    fn want(&mut self) {
        let Some(checked) = self.checked.take() else { return };
        let unwanted: Vec<String> =
            self.pools.keys().filter(|pool| !checked.iter().any(|(name, _)| name == *pool)).cloned().collect();
        let mut outcomes: Vec<(String, Result<Option<Checked>, PublishError>)> =
            unwanted.into_iter().map(|pool| (pool, Ok(None))).collect();
        outcomes.extend(checked.into_iter().map(|(pool, checked)| (pool, checked.map(Some))));
        for (pool, outcome) in outcomes {
            let state = self.pools.entry(pool.clone()).or_default();
            let wanted = outcome.and_then(|checked| {
                let broken = |error: serde_json::Error| PublishError::Api {
                    what: format!("pool {pool}"),
                    message: error.to_string(),
                };
                state.want(checked).map_err(broken)
            });
            if let Err(error) = wanted {
                state.is_held = true;
                state.due = None;
                self.fail(&pool, &error);
            }
        }
    }

    /// Makes this the newest instance of the driver, by which it is the one that publishes.
    fn take_turn(&mut self) {
        let Some(path) = self.config.election_file.as_deref() else { return };
        match Turn::take(path) {
            Ok(turn) => self.turn = Some(turn),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot tell which instance is the newest");
            }
        }
    }

    /// When there is something to do. Times that nothing can be done at must not be among them, or the task would spin.
    fn next(&self) -> Option<Instant> {
        if !self.is_listed || self.is_list_awaited {
            return None;
        }
        let prune = self.generations.next().filter(|_| !self.is_on_stand_by);
        self.pools.values().filter_map(PoolState::next).chain(prune).min()
    }

    /// Brings all pools in order whose time has come.
    async fn sync(&mut self) {
        let now = Instant::now();
        let is_due = |state: &PoolState| state.next().is_some_and(|next| next <= now);
        let due: Vec<String> =
            self.pools.iter().filter(|(_, state)| is_due(state)).map(|(pool, _)| pool.clone()).collect();
        self.is_on_stand_by = !self.is_our_turn();
        for pool in due {
            if self.is_on_stand_by {
                if let Some(state) = self.pools.get_mut(&pool) {
                    state.stand_by(STAND_BY);
                }
                continue;
            }
            if self.is_list_awaited || self.mailbox.is_full() {
                return;
            }
            self.sync_pool(&pool).await;
        }
        self.pools.retain(|_, state| !state.is_forgotten());
        if !self.is_on_stand_by {
            let pools = &self.pools;
            self.generations.prune(|pool| pools.contains_key(pool));
            self.generations.save().await;
        }
        let published = self
            .pools
            .values()
            .map(|state| (state.stored.len(), state.stored.iter().map(|slice| slice.devices.len()).sum::<usize>()));
        let (slices, devices) = published.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        self.observer.published(slices, devices);
    }

    fn is_our_turn(&self) -> bool {
        is_ours(self.turn.as_ref())
    }

    async fn sync_pool(&mut self, pool: &str) {
        let remembered = self.generations.of(pool);
        let Some(state) = self.pools.get_mut(pool) else { return };
        let Some(writes) = state.writes(remembered) else { return };
        state.due = None;
        if writes.len() == 0 {
            return state.is_in_order();
        }
        if state.is_contested() {
            let error = PublishError::Contested { pool: pool.to_owned() };
            return self.fail(pool, &error);
        }
        let needs_owner = state.wanted.is_some() && self.config.node.is_some();
        let owner = match needs_owner {
            true => match self.owner().await {
                Ok(owner) => Some(owner),
                Err((error, least)) => {
                    self.fail(pool, &error);
                    return self.not_before(pool, least);
                }
            },
            false => None,
        };
        let Some(state) = self.pools.get_mut(pool) else { return };
        let highest = state.stored.iter().map(|slice| slice.generation).max().unwrap_or(0);
        if writes.generation > highest {
            state.rollout = Some(writes.generation);
        }
        let state = &*state;
        let writer = Writer {
            api: &self.api,
            driver: &self.config.driver,
            node: self.config.node.as_deref(),
            owner: owner.as_ref(),
            observer: &*self.observer,
        };
        let (mailbox, turn) = (&self.mailbox, self.turn.as_ref());
        let done = writer.write(pool, state, &writes, &|| mailbox.is_full() || !is_ours(turn)).await;
        let is_complete = done.len() == writes.len();
        self.wrote(pool, done, is_complete);
        self.generations.save().await;
    }

    /// The node that slices belong to; or why that is not known, and how long not to ask.
    async fn owner(&mut self) -> Result<Owner, (PublishError, Duration)> {
        let name = self.config.node.clone().unwrap_or_default();
        let uid = match &self.owner_uid {
            Some(uid) => uid.clone(),
            None => {
                let uid = self.api.node_uid(&name).await.map_err(|error| {
                    (explain(format!("get node {name}"), &error), error.retry_delay(Duration::ZERO))
                })?;
                self.owner_uid.insert(uid).clone()
            }
        };
        Ok(Owner { name, uid })
    }
}

fn is_ours(turn: Option<&Turn>) -> bool {
    let Some(turn) = turn else { return true };
    turn.is_ours().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot tell which instance is the newest");
        true
    })
}
