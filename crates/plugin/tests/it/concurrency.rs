//! Tests of concurrent calls.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DraPlugin, Helper, MetadataUpdater};
use futures::future::join_all;
use proptest::prelude::*;

use crate::support::{
    ANY_PORT, Kubelet, Node, Random, SlowDriver, TestClaim, TestDriver, in_time, metric, numbered_device,
};

/// A completed call that prepared or unprepared a claim.
#[derive(Debug, Clone, Copy)]
struct Done {
    /// The logical time at which the call started.
    from: u64,
    /// The logical time at which the call ended.
    until: u64,
    is_prepared: bool,
}

/// Returns the possible final states of a claim: the outcomes of the calls after whose end no other call started.
fn possible(history: &[Done]) -> BTreeSet<bool> {
    let last_start = history.iter().map(|done| done.from).max().unwrap_or(0);
    let last = history.iter().filter(|done| done.until >= last_start);
    if history.is_empty() { BTreeSet::from([false]) } else { last.map(|done| done.is_prepared).collect() }
}

/// A call for one of the claims.
#[derive(Debug, Clone, Copy)]
enum Call {
    Prepare(usize),
    Unprepare(usize),
    Update(usize),
}

/// Runs all scripts concurrently, and returns the history of each claim.
async fn play(helper: &Arc<Helper>, claims: &Arc<Vec<TestClaim>>, scripts: Vec<Vec<Call>>) -> Vec<Vec<Done>> {
    let clock = Arc::new(AtomicU64::new(1));
    let histories: Arc<Vec<Mutex<Vec<Done>>>> = Arc::new(claims.iter().map(|_| Mutex::default()).collect());
    let players = scripts.into_iter().enumerate().map(|(player, script)| {
        let helper = helper.clone();
        let claims = claims.clone();
        let clock = clock.clone();
        let histories = histories.clone();
        tokio::spawn(async move {
            let kubelet = Kubelet::of(&helper).await;
            for (step, call) in script.into_iter().enumerate() {
                let from = clock.fetch_add(1, Ordering::SeqCst);
                let (index, is_prepared) = match call {
                    Call::Prepare(index) => match kubelet.prepare_one(&claims[index]).await {
                        Ok(_) => (index, Some(true)),
                        Err(error) => {
                            assert!(error.contains("is still prepared for claim"), "{error}");
                            (index, None)
                        }
                    },
                    Call::Unprepare(index) => {
                        kubelet.unprepare_one(&claims[index]).await.unwrap();
                        (index, Some(false))
                    }
                    Call::Update(index) => {
                        let claim = &claims[index];
                        let device = claim.object["status"]["allocation"]["devices"]["results"][0]["device"].as_str();
                        let devices = numbered_device(device.unwrap(), i64::try_from(player * 1000 + step).unwrap());
                        match helper.handles().update_request_metadata(&claim.reference(), "gpu", devices).await {
                            Ok(generation) => assert!(generation > 1, "{generation}"),
                            Err(error) => assert!(error.is_not_prepared(), "{error}"),
                        }
                        (index, None)
                    }
                };
                let until = clock.fetch_add(1, Ordering::SeqCst);
                if let Some(is_prepared) = is_prepared {
                    histories[index].lock().unwrap().push(Done { from, until, is_prepared });
                }
            }
        })
    });
    for player in join_all(players.collect::<Vec<_>>()).await {
        player.unwrap();
    }
    Arc::into_inner(histories).unwrap().into_iter().map(|history| history.into_inner().unwrap()).collect()
}

/// Creates claims of which each pair shares one device.
fn claims(node: &Node, count: usize) -> Arc<Vec<TestClaim>> {
    let claim = |index: usize| {
        let claim = TestClaim::new(&format!("c{index}"), &format!("uid-{index}"));
        node.claim(claim.device("gpu", &format!("gpu-{}", index / 2)))
    };
    Arc::new((0..count).map(claim).collect())
}

/// Checks that every claim is in one of its possible states, and returns the prepared claims.
fn check(node: &Node, claims: &[TestClaim], histories: &[Vec<Done>]) -> Vec<usize> {
    let mut prepared = Vec::new();
    let mut devices = HashSet::new();
    for (index, (claim, history)) in claims.iter().zip(histories).enumerate() {
        let is_prepared = node.is_prepared(claim);
        assert!(possible(history).contains(&is_prepared), "{} is {is_prepared}: {history:?}", claim.name());
        if is_prepared {
            assert!(devices.insert(index / 2), "device gpu-{} is in two claims", index / 2);
            prepared.push(index);
        }
    }
    let specs = std::fs::read_dir(node.cdi_directory()).map_or(0, Iterator::count);
    assert_eq!(specs, prepared.len(), "orphaned specs");
    prepared
}

/// G29, G21: 64 callers, 500 claims, and each pair of claims shares one device. Afterwards each claim is in the state of its last
/// call, no device is in two claims, and unprepared claims have no files.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claims_are_in_a_legal_state_after_many_concurrent_calls() {
    let node = Node::default();
    let claims = claims(&node, 500);
    let builder = node.builder().serialize(false).http_endpoint(ANY_PORT);
    let helper = Arc::new(builder.start(TestDriver::default()).await.unwrap());
    let mut random = Random(64);
    let scripts = (0..64).map(|_| {
        let mut call = || match (random.below(10), random.below(500)) {
            (0..4, index) => Call::Prepare(index),
            (4..7, index) => Call::Unprepare(index),
            (_, index) => Call::Update(index),
        };
        (0..40).map(|_| call()).collect()
    });
    let histories = play(&helper, &claims, scripts.collect()).await;
    let prepared = check(&node, &claims, &histories);
    assert!(prepared.len() > 20, "only {} are prepared: too few calls succeeded", prepared.len());
    assert_eq!(metric(&helper, "drakkar_plugin_prepared_claims").await, i64::try_from(prepared.len()).unwrap());

    let everything = vec![(0..500).map(Call::Unprepare).collect()];
    play(&helper, &claims, everything).await;
    assert_eq!(node.files(), ["plugins/gpu.example.com/dra-device-metadata"]);
    assert_eq!(metric(&helper, "drakkar_plugin_prepared_claims").await, 0);
    assert_eq!(metric(&helper, "drakkar_plugin_grpc_calls_in_flight").await, 0);
    Arc::into_inner(helper).unwrap().stop().await.unwrap();
}

fn scripts() -> impl Strategy<Value = Vec<Vec<Call>>> {
    let call = (0..3_u8, 0..4_usize).prop_map(|(what, index)| match what {
        0 => Call::Prepare(index),
        1 => Call::Unprepare(index),
        _ => Call::Update(index),
    });
    prop::collection::vec(prop::collection::vec(call, 1..8), 2..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// G29: the same with few claims, so that nearly all calls run into others for the same claim, with and without shared locks.
    #[test]
    fn concurrent_callers_of_a_few_claims_leave_them_in_a_legal_state(
        scripts in scripts(),
        serialize: bool,
        is_shared: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let node = Node::default();
            let claims = claims(&node, 4);
            let builder = node.builder().serialize(serialize);
            let builder = if is_shared { builder.rolling_update("pod-1") } else { builder };
            let helper = Arc::new(builder.start(TestDriver::default()).await.unwrap());
            let histories = in_time(play(&helper, &claims, scripts)).await;
            check(&node, &claims, &histories);
            Arc::into_inner(helper).unwrap().stop().await.unwrap();
        });
    }
}

/// The kubelet may repeat a call while the first one is still running: the calls run one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_callers_of_the_same_claim_get_the_same_response() {
    let node = Node::default();
    let helper = node.builder().serialize(false).start(TestDriver::default()).await.unwrap();
    let claim = node.claim(TestClaim::new("train", "uid-1").device("gpu", "gpu-0"));
    let one = Kubelet::of(&helper).await;
    let other = Kubelet::of(&helper).await;
    for _ in 0..20 {
        let (first, second) = tokio::join!(one.prepare_one(&claim), other.prepare_one(&claim));
        assert_eq!(first.unwrap(), second.unwrap());
        assert!(node.is_prepared(&claim));
        assert_eq!(node.metadata(&claim, "gpu")["metadata"]["generation"], 1);
        let (first, second) = tokio::join!(one.unprepare_one(&claim), other.unprepare_one(&claim));
        assert_eq!((first, second), (Ok(()), Ok(())));
        assert!(!node.is_prepared(&claim));
    }
    helper.stop().await.unwrap();
}

/// G29: no concurrent update is lost, and the file has the one with the highest generation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_updates_are_all_counted_and_the_last_one_stays() {
    let node = Node::default();
    let helper = node.start(&TestDriver::default()).await;
    let claim = node.claim(TestClaim::new("train", "uid-1").device("gpu", "gpu-0"));
    Kubelet::of(&helper).await.prepare_one(&claim).await.unwrap();
    let updates = (0..32).map(|number| {
        let updater = helper.handles().metadata_updater();
        let reference = claim.reference();
        tokio::spawn(async move {
            let generation =
                updater.update_request_metadata(&reference, "gpu", numbered_device("gpu-0", number)).await.unwrap();
            (generation, number)
        })
    });
    let mut done: Vec<(i64, i64)> =
        join_all(updates.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).collect();
    done.sort_unstable();
    assert_eq!(done.iter().map(|(generation, _)| *generation).collect::<Vec<_>>(), (2..=33).collect::<Vec<_>>());
    let metadata = node.metadata(&claim, "gpu");
    assert_eq!(metadata["metadata"]["generation"], 33);
    assert_eq!(metadata["requests"][0]["devices"][0]["attributes"]["number"]["int"], done[31].1);
    helper.stop().await.unwrap();
}

/// Starts concurrent calls for claims with these names.
async fn prepare_all(node: &Node, helper: &Helper, names: &[&str]) -> Vec<tokio::task::JoinHandle<()>> {
    let mut calls = Vec::new();
    for name in names {
        let claim = node.claim(TestClaim::new(name, &format!("uid-{name}")).device("gpu", name));
        let kubelet = Kubelet::of(helper).await;
        calls.push(tokio::spawn(async move { drop(kubelet.prepare_one(&claim).await.unwrap()) }));
    }
    calls
}

/// The promise of `serialize`: a driver without locks of its own is safe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_serialized_driver_is_never_called_concurrently() {
    let node = Node::default();
    let driver = SlowDriver::default();
    let helper = node.builder().start(driver.clone()).await.unwrap();
    let names: Vec<String> = (0..32).map(|index| format!("c{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let calls = prepare_all(&node, &helper, &names).await;
    // With a batch and unprepares in between.
    let batch: Vec<TestClaim> = (0..8)
        .map(|index| {
            node.claim(
                TestClaim::new(&format!("b{index}"), &format!("uid-b{index}")).device("gpu", &format!("b{index}")),
            )
        })
        .collect();
    let kubelet = Kubelet::of(&helper).await;
    let responses = kubelet.prepare(&batch.iter().collect::<Vec<_>>()).await;
    assert!(responses.len() == 8 && responses.values().all(Result::is_ok), "{responses:?}");
    for claim in &batch {
        kubelet.unprepare_one(claim).await.unwrap();
    }
    for call in calls {
        in_time(call).await.unwrap();
    }
    assert_eq!(driver.max_in_flight.load(Ordering::SeqCst), 1);
    helper.stop().await.unwrap();
}

/// The promise of `serialize(false)`: calls, and the claims of a batch up to the limit, run concurrently in the driver.
#[tokio::test]
async fn a_driver_that_is_not_serialized_is_called_concurrently() {
    let node = Node::default();
    let driver = SlowDriver::default();
    let helper = node.builder().serialize(false).concurrency(3).start(driver.clone()).await.unwrap();
    let calls = prepare_all(&node, &helper, &["slow-1", "slow-2", "slow-3", "slow-4", "slow-5"]).await;
    driver.wait_for(5).await;
    driver.permits.add_permits(5);
    for call in calls {
        in_time(call).await.unwrap();
    }
    driver.wait_for(0).await;

    let batch: Vec<TestClaim> = (0..8)
        .map(|index| {
            node.claim(
                TestClaim::new(&format!("slow-b{index}"), &format!("uid-b{index}")).device("gpu", &format!("b{index}")),
            )
        })
        .collect();
    let kubelet = Kubelet::of(&helper).await;
    driver.max_in_flight.store(0, Ordering::SeqCst);
    let call = tokio::spawn(async move { kubelet.0.prepare(&batch).await });
    driver.wait_for(3).await;
    driver.permits.add_permits(8);
    let responses = in_time(call).await.unwrap().unwrap();
    assert!(responses.values().all(Result::is_ok), "{responses:?}");
    assert_eq!((responses.len(), driver.max_in_flight.load(Ordering::SeqCst)), (8, 3));
    helper.stop().await.unwrap();
}

/// A slow prepare delays other driver calls, if they are serialized, but no file work: updates of other claims still run.
#[tokio::test]
async fn a_slow_claim_does_not_delay_the_file_work_of_others() {
    let node = Node::default();
    let driver = SlowDriver::default();
    let helper = node.builder().start(driver.clone()).await.unwrap();
    let claim = node.claim(TestClaim::new("quick", "uid-1").device("gpu", "gpu-0"));
    Kubelet::of(&helper).await.prepare_one(&claim).await.unwrap();
    let calls = prepare_all(&node, &helper, &["slow-1"]).await;
    driver.wait_for(1).await;
    for number in 0..10 {
        in_time(helper.handles().update_request_metadata(&claim.reference(), "gpu", numbered_device("gpu-0", number)))
            .await
            .unwrap();
    }
    assert_eq!(node.metadata(&claim, "gpu")["metadata"]["generation"], 11);
    assert!(!calls[0].is_finished());
    driver.permits.add_permits(1);
    for call in calls {
        in_time(call).await.unwrap();
    }
    helper.stop().await.unwrap();
}

#[tokio::test]
async fn a_slow_claim_does_not_delay_other_claims_of_a_driver_that_is_not_serialized() {
    let node = Node::default();
    let driver = SlowDriver::default();
    let helper = node.builder().serialize(false).start(driver.clone()).await.unwrap();
    let calls = prepare_all(&node, &helper, &["slow-1"]).await;
    driver.wait_for(1).await;
    let claim = node.claim(TestClaim::new("quick", "uid-1").device("gpu", "gpu-0"));
    let kubelet = Kubelet::of(&helper).await;
    in_time(kubelet.prepare_one(&claim)).await.unwrap();
    assert!(node.is_prepared(&claim));
    in_time(kubelet.unprepare_one(&claim)).await.unwrap();
    assert!(!calls[0].is_finished());
    driver.permits.add_permits(1);
    for call in calls {
        in_time(call).await.unwrap();
    }
    helper.stop().await.unwrap();
}

/// Two calls with the same claims in opposite order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_batches_do_not_deadlock() {
    let node = Node::default();
    let helper = node.builder().serialize(false).rolling_update("pod-1").start(TestDriver::default()).await.unwrap();
    let claims: Vec<TestClaim> = (0..16)
        .map(|index| {
            node.claim(
                TestClaim::new(&format!("c{index}"), &format!("uid-{index}")).device("gpu", &format!("gpu-{index}")),
            )
        })
        .collect();
    let forward: Vec<_> = claims.iter().collect();
    let backward: Vec<_> = claims.iter().rev().collect();
    let one = Kubelet::of(&helper).await;
    let other = Kubelet::of(&helper).await;
    for _ in 0..10 {
        let (first, second) = in_time(async { tokio::join!(one.prepare(&forward), other.prepare(&backward)) }).await;
        assert_eq!(first, second);
        assert!(first.values().all(Result::is_ok), "{first:?}");
    }
    helper.stop().await.unwrap();
}

/// A driver that updates another claim while it prepares claim `a`.
struct UpdatesAnother(Arc<OnceLock<(Arc<dyn MetadataUpdater>, ClaimRef)>>, Arc<tokio::sync::Notify>);

impl DraPlugin for UpdatesAnother {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        if let Some((updater, other)) = self.0.get()
            && claim.reference().name.as_str() == "a"
        {
            self.1.notify_one();
            updater.update_request_metadata(other, "gpu", numbered_device("gpu-1", 7)).await?;
        }
        Ok(claim.results().map(Device::from).collect())
    }
    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

/// While it prepares a, the driver updates c; meanwhile the kubelet prepares c again.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_from_within_a_prepare_is_refused_and_does_not_deadlock() {
    let node = Node::default();
    let (slot, entered): (Arc<OnceLock<_>>, Arc<tokio::sync::Notify>) = Default::default();
    let helper = node.builder().start(UpdatesAnother(slot.clone(), entered.clone())).await.unwrap();
    let kubelet = Kubelet::of(&helper).await;
    let a = node.claim(TestClaim::new("a", "uid-a").device("gpu", "gpu-0"));
    let c = node.claim(TestClaim::new("c", "uid-c").device("gpu", "gpu-1"));
    kubelet.prepare_one(&c).await.unwrap();
    slot.set((helper.handles().metadata_updater(), c.reference())).ok();
    let one = Kubelet::of(&helper).await;
    let both = async {
        tokio::join!(one.prepare_one(&a), async {
            entered.notified().await;
            kubelet.prepare_one(&c).await
        })
    };
    let (of_a, of_c) = in_time(both).await;
    assert!(of_a.unwrap_err().contains("cannot be updated from within a prepare or unprepare"));
    of_c.unwrap();
    helper.stop().await.unwrap();
}

/// G21: a claim releases its device and is prepared again, while another claim waits for the device. It is never in both.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_device_that_is_released_and_reserved_again_is_in_one_claim() {
    let node = Node::default();
    let helper = node.builder().serialize(false).start(TestDriver::default()).await.unwrap();
    let claim = |name: &str| node.claim(TestClaim::new(name, &format!("uid-{name}")).device("gpu", "gpu-0"));
    let one = claim("one");
    let other = claim("other");
    let mut kubelets = Vec::new();
    for _ in 0..6 {
        kubelets.push(Kubelet::of(&helper).await);
    }
    let [a, b, c, d, e, f] = kubelets.as_mut_slice() else { unreachable!() };
    for round in 0..100 {
        a.prepare_one(&one).await.unwrap();
        let _ = tokio::join!(
            a.unprepare_one(&one),
            b.prepare_one(&one),
            c.prepare_one(&other),
            d.prepare_one(&other),
            e.prepare_one(&other),
            f.prepare_one(&one),
        );
        assert!(!(node.is_prepared(&one) && node.is_prepared(&other)), "round {round}: the device is in two claims");
        a.unprepare_one(&other).await.unwrap();
    }
    helper.stop().await.unwrap();
}
