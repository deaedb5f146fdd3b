//! Calls to one or two instances are cancelled at random, while the driver is slow and fails, and claims are deleted, replaced
//! and reallocated.
//!
//! The driver must never be called to prepare a device for one claim while another claim holds it: from the call of `prepare`
//! until a successful `unprepare`. An instance cannot know what the other one has prepared unless the kubelet got the response
//! and the claim has metadata, so only such cases count across instances. Nor can it know whether the other one has unprepared
//! a claim before it prepared it again with another allocation: it believes the record, and a device of a failed prepare of its
//! own that is not in the record counts as released. In the end no files of any claim are left.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drakkar_node::kubelet::ClaimId;
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DraPlugin, Helper};
use futures::future::join_all;
use serde_json::Value;

use super::Campaign;
use crate::support::{DRIVER, Kubelet, Node, Random, TestClaim, in_time, metric};

const CLAIMS: usize = 12;
const DEVICES: usize = 7;
const WORKERS: usize = 4;
/// The number of calls of one worker before the kubelet switches instances: by default, and in a long campaign.
const CALLS: [usize; 2] = [4, 60];
/// The number of combinations of instances, metadata, serialization and device timeout.
const MODES: usize = 16;

/// The counters of all rounds.
#[derive(Default)]
struct Figures {
    calls: AtomicU64,
    cancelled: AtomicU64,
    prepared: AtomicU64,
    refused: AtomicU64,
    driver_calls: AtomicU64,
    driver_failures: AtomicU64,
    holders_unprepared: AtomicU64,
    specs_read: AtomicU64,
    unseen: AtomicU64,
}

fn add(figure: &AtomicU64, count: u64) {
    figure.fetch_add(count, Ordering::Relaxed);
}

/// The hardware of the node, which both instances share: it records which claims hold each device.
#[derive(Default)]
struct Hardware {
    devices: Mutex<HashMap<String, HashMap<String, DeviceHold>>>,
    violations: Mutex<Vec<String>>,
    figures: Arc<Figures>,
    /// Whether the driver still fails.
    is_flaky: AtomicBool,
    numbers: Mutex<Option<Random>>,
    prepares: AtomicU64,
}

/// A claim's hold on a device.
#[derive(Default)]
struct DeviceHold {
    /// The number of the last prepare, which identifies its response.
    prepare: u64,
    /// The instances that were called to prepare it.
    instances: BTreeSet<usize>,
    /// Whether the kubelet got the response, and there is a record.
    is_recorded: bool,
}

impl Hardware {
    fn below(&self, limit: usize) -> usize {
        self.numbers.lock().unwrap().as_mut().map_or(0, |numbers| numbers.below(limit))
    }

    /// Records that a claim holds its devices, and returns the number of the prepare.
    fn take(&self, claim: &Claim, instance: usize) -> u64 {
        let prepare = self.prepares.fetch_add(1, Ordering::Relaxed);
        let uid = claim.reference().uid.to_string();
        let mut devices = self.devices.lock().unwrap();
        let allocated = |device: &String| claim.results().any(|result| result.device == *device);
        for (_, holders) in devices.iter_mut().filter(|(device, _)| !allocated(device)) {
            let hold = holders.get_mut(&uid);
            hold.into_iter().for_each(|hold| hold.instances.retain(|known| *known == instance));
        }
        for result in claim.results() {
            let holders = devices.entry(result.device.clone()).or_default();
            for (other, hold) in holders.iter().filter(|(other, _)| **other != uid) {
                if hold.is_recorded || hold.instances.contains(&instance) {
                    let known = if hold.is_recorded { "recorded" } else { "of the same instance" };
                    let text = format!("{} is prepared for {uid} and still held by {other}, {known}", result.device);
                    self.violations.lock().unwrap().push(text);
                } else {
                    add(&self.figures.unseen, 1);
                }
            }
            let hold = holders.entry(uid.clone()).or_default();
            hold.instances.insert(instance);
            hold.prepare = prepare;
        }
        prepare
    }

    fn release(&self, claim: &ClaimRef) {
        self.devices.lock().unwrap().values_mut().for_each(|holders| drop(holders.remove(claim.uid.as_str())));
    }

    /// Records that the kubelet got the response of a prepare, unless the claim has been unprepared or prepared again since.
    fn record(&self, uid: &str, prepare: u64) {
        for holders in self.devices.lock().unwrap().values_mut() {
            let hold = holders.get_mut(uid).filter(|hold| hold.prepare == prepare);
            hold.into_iter().for_each(|hold| hold.is_recorded = true);
        }
    }

    /// Takes some time, and fails at random.
    async fn work(&self) -> Result<(), BoxError> {
        add(&self.figures.driver_calls, 1);
        if !self.is_flaky.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.below(4) {
            0 => {}
            1 => tokio::task::yield_now().await,
            _ => tokio::time::sleep(Duration::from_micros(self.below(3_000) as u64)).await,
        }
        if self.below(6) == 0 {
            add(&self.figures.driver_failures, 1);
            return Err("the hardware fails".into());
        }
        Ok(())
    }
}

/// One instance of the driver.
struct Driver {
    hardware: Arc<Hardware>,
    instance: usize,
}

impl DraPlugin for Driver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let prepare = self.hardware.take(claim, self.instance);
        self.hardware.work().await?;
        let id = format!("{DRIVER}/gpu={prepare}");
        Ok(claim.results().map(|result| Device { cdi_device_ids: vec![id.clone()], ..Device::from(result) }).collect())
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        self.hardware.work().await?;
        self.hardware.release(claim);
        Ok(())
    }
}

/// The settings of a round.
#[derive(Debug, Clone, Copy)]
struct Mode {
    instances: usize,
    metadata: bool,
    serialize: bool,
    device_timeout: Duration,
}

impl Mode {
    fn of(round: usize) -> Self {
        let is = |bit: usize| round & bit != 0;
        Self {
            instances: if is(1) { 2 } else { 1 },
            metadata: is(2),
            serialize: is(4),
            device_timeout: Duration::from_millis(if is(8) { 15 } else { 0 }),
        }
    }
}

/// A node in one mode.
struct Round {
    node: Node,
    mode: Mode,
    hardware: Arc<Hardware>,
    helpers: Vec<Helper>,
    /// The instance that the kubelet calls.
    current: AtomicUsize,
    /// All claims that ever existed, by UID.
    known: Mutex<HashMap<String, ClaimId>>,
    /// The current claims, by index.
    present: Mutex<Vec<ClaimId>>,
    /// The number of objects so far with the name of each claim.
    objects: Vec<AtomicUsize>,
}

impl Round {
    async fn new(mode: Mode, seed: u64, figures: &Arc<Figures>) -> Self {
        let node = Node::default();
        let hardware = Arc::new(Hardware {
            figures: figures.clone(),
            is_flaky: AtomicBool::new(true),
            numbers: Mutex::new(Some(Random(seed))),
            ..Hardware::default()
        });
        let mut helpers = Vec::new();
        for instance in 0..mode.instances {
            let builder = node.builder().http_endpoint("127.0.0.1:0".parse().unwrap());
            let builder = builder.device_metadata(mode.metadata).serialize(mode.serialize).concurrency(2);
            let builder = builder.device_timeout(mode.device_timeout);
            let builder = if mode.instances == 2 { builder.rolling_update(format!("pod-{instance}")) } else { builder };
            helpers.push(builder.start(Driver { hardware: hardware.clone(), instance }).await.unwrap());
        }
        let round = Self {
            node,
            mode,
            hardware,
            helpers,
            current: AtomicUsize::new(0),
            known: Mutex::default(),
            present: Mutex::default(),
            objects: (0..CLAIMS).map(|_| AtomicUsize::new(0)).collect(),
        };
        (0..CLAIMS).for_each(|index| round.allocate(index, index % DEVICES, true));
        round
    }

    /// Allocates a device to a claim, as the same object or as a new one with the same name.
    fn allocate(&self, index: usize, device: usize, is_new: bool) {
        let object = self.objects[index].fetch_add(usize::from(is_new), Ordering::Relaxed) + usize::from(is_new);
        let claim = TestClaim::new(&format!("c{index}"), &format!("uid-{index}-{object}"))
            .device("gpu", &format!("gpu-{device}"));
        let claim =
            if device.is_multiple_of(2) { claim.device("gpu", &format!("gpu-{}", DEVICES + index % 2)) } else { claim };
        self.known.lock().unwrap().insert(claim.uid().to_owned(), ClaimId::from(&claim));
        let mut present = self.present.lock().unwrap();
        if index < present.len() {
            present[index] = ClaimId::from(&claim);
        } else {
            present.push(ClaimId::from(&claim));
        }
        drop(present);
        self.node.claim(claim);
    }

    /// Returns some claims, mostly current and sometimes former ones.
    fn choose_claims(&self, random: &mut Random) -> Vec<ClaimId> {
        let known = self.known.lock().unwrap();
        let mut all: Vec<&ClaimId> = known.values().collect();
        all.sort_by(|one, other| one.uid.cmp(&other.uid));
        let present = self.present.lock().unwrap();
        let count = 1 + random.below(3);
        let one = |_| match random.below(8) {
            0 => all[random.below(all.len())].clone(),
            _ => present[random.below(CLAIMS)].clone(),
        };
        (0..count).map(one).collect()
    }

    /// Changes a claim in the API server at random.
    fn change_claims(&self, random: &mut Random) {
        let index = random.below(CLAIMS);
        match random.below(8) {
            0 => self.node.api.remove("default", &format!("c{index}")),
            1 => self.allocate(index, random.below(DEVICES), true),
            2 | 3 => self.allocate(index, random.below(DEVICES), false),
            _ => {}
        }
    }

    /// Makes a call of the kubelet, and cancels it at random.
    async fn call(&self, kubelets: &[Kubelet], random: &mut Random) {
        let figures = &self.hardware.figures;
        add(&figures.calls, 1);
        let kubelet = &kubelets[self.current.load(Ordering::SeqCst)].0;
        let claims = self.choose_claims(random);
        let is_prepare = random.below(5) < 3;
        let is_cancelled = random.below(4) < 3;
        let timeout = Duration::from_micros(random.below(6_000) as u64);
        let call = async {
            if !is_prepare {
                return drop(kubelet.unprepare(claims).await);
            }
            for (uid, response) in kubelet.prepare(claims).await.unwrap() {
                add(if response.is_ok() { &figures.prepared } else { &figures.refused }, 1);
                if let Ok(devices) = response
                    && self.mode.metadata
                {
                    let ids = devices.iter().flat_map(|device| &device.cdi_device_ids);
                    let mut numbers = ids.filter_map(|id| id.strip_prefix(&format!("{DRIVER}/gpu="))?.parse().ok());
                    self.hardware.record(&uid, numbers.next().unwrap());
                }
            }
        };
        if !is_cancelled {
            in_time(call).await;
        } else if tokio::time::timeout(timeout, call).await.is_err() {
            add(&figures.cancelled, 1);
        }
    }

    async fn play(&self, seed: u64, calls: usize) {
        let mut workers = Vec::new();
        for worker in 0..WORKERS as u64 {
            let mut kubelets = Vec::new();
            for helper in &self.helpers {
                kubelets.push(Kubelet::of(helper).await);
            }
            let mut random = Random(seed.wrapping_mul(31).wrapping_add(worker));
            workers.push(async move {
                for _ in 0..calls {
                    self.change_claims(&mut random);
                    self.call(&kubelets, &mut random).await;
                }
            });
        }
        join_all(workers).await;
        // Cancelled calls end when the framework notices.
        for helper in &self.helpers {
            in_time(async { while metric(helper, "drakkar_plugin_grpc_calls_in_flight").await > 0 {} }).await;
        }
    }

    /// Reads the files that specs name, as a container runtime does, until the round is over.
    async fn read(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::SeqCst) {
            let specs = fs::read_dir(self.node.cdi_directory()).into_iter().flatten();
            for path in specs.filter_map(|entry| Some(entry.ok()?.path())) {
                if path.extension().is_some_and(|extension| extension == "json") {
                    add(&self.hardware.figures.specs_read, 1);
                    if let Err(problem) = check_spec(&path) {
                        self.hardware.violations.lock().unwrap().push(problem);
                    }
                }
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
    }

    /// Unprepares everything, through every instance, and checks that nothing is left.
    async fn end(self) {
        self.hardware.is_flaky.store(false, Ordering::Relaxed);
        let known: Vec<ClaimId> = self.known.lock().unwrap().values().cloned().collect();
        for helper in &self.helpers {
            let responses = in_time(Kubelet::of(helper).await.0.unprepare(known.clone())).await.unwrap();
            assert!(responses.values().all(Result::is_ok), "{responses:?}");
        }
        for helper in &self.helpers {
            assert_eq!(metric(helper, "drakkar_plugin_held_claims").await, 0, "{:?}", self.mode);
            let unprepared = metric(helper, "drakkar_plugin_holders_unprepared_total").await;
            add(&self.hardware.figures.holders_unprepared, unprepared.unsigned_abs());
        }
        let leftovers: Vec<String> = self.node.files().into_iter().filter(|file| file.ends_with("json")).collect();
        assert_eq!(leftovers, [""; 0], "{:?}", self.mode);
        let is_free = self.hardware.devices.lock().unwrap().values().all(HashMap::is_empty);
        assert!(is_free, "a claim still holds a device");
        for helper in self.helpers {
            helper.stop().await.unwrap();
        }
        let violations = self.hardware.violations.lock().unwrap();
        assert_eq!(*violations, [""; 0], "{:?}", self.mode);
    }
}

/// Checks that the files of a spec are complete, unless the spec has been removed meanwhile.
fn check_spec(path: &Path) -> Result<(), String> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.ino(), found.mtime(), found.mtime_nsec()));
    let before = identity(path);
    let problem = match fs::read(path).map(|bytes| serde_json::from_slice::<Value>(&bytes)) {
        Err(_) => return Ok(()),
        Ok(Err(error)) => Some(format!("{}: {error}", path.display())),
        Ok(Ok(spec)) => {
            let mounts = spec.pointer("/devices/0/containerEdits/mounts").and_then(Value::as_array).cloned();
            let files =
                mounts.into_iter().flatten().filter_map(|mount| Some(PathBuf::from(mount["hostPath"].as_str()?)));
            files.filter_map(|file| torn(&file)).next()
        }
    };
    match problem {
        Some(problem) if identity(path) == before => Err(problem),
        _ => Ok(()),
    }
}

fn torn(file: &Path) -> Option<String> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) => return Some(format!("{}: {error}", file.display())),
    };
    drakkar_metadata::decode(&bytes).err().map(|error| format!("{}: {error}", file.display()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_never_prepare_a_device_for_two_claims() {
    let campaign = Campaign::new("cancelled_calls");
    let figures = Arc::new(Figures::default());
    let mut rounds = 0;
    while campaign.has_next(rounds, MODES) {
        let seed = campaign.seed.wrapping_add((rounds as u64).wrapping_mul(0x9e37_79b9));
        let round = Round::new(Mode::of(rounds % MODES), seed, &figures).await;
        let is_over = AtomicBool::new(false);
        let play = async {
            // The kubelet switches to the other instance and back while no call is running.
            for part in 0..3 {
                round.current.store(part % round.mode.instances, Ordering::SeqCst);
                round.play(seed.wrapping_add(part as u64), CALLS[usize::from(campaign.is_long())]).await;
            }
            is_over.store(true, Ordering::SeqCst);
        };
        tokio::join!(play, round.read(&is_over));
        round.end().await;
        rounds += 1;
    }
    let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    campaign.report(&format!(
        "{rounds} rounds, {} calls, {} cancelled, {} claims prepared, {} refused, {} driver calls, {} of them failed, \
         {} holders unprepared, {} specs read, {} overlaps that no instance can see,",
        of(&figures.calls),
        of(&figures.cancelled),
        of(&figures.prepared),
        of(&figures.refused),
        of(&figures.driver_calls),
        of(&figures.driver_failures),
        of(&figures.holders_unprepared),
        of(&figures.specs_read),
        of(&figures.unseen),
    ));
    assert!(of(&figures.cancelled) > 0 && of(&figures.prepared) > 0 && of(&figures.holders_unprepared) > 0);
}
