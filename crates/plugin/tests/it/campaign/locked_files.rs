//! Containers lock their metadata files at random, while their claims are prepared, updated and unprepared, and the driver
//! restarts.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use drakkar_metadata::read::Reader;
use drakkar_plugin::Helper;

use super::{Campaign, quantiles};
use crate::support::{Kubelet, Node, Random, TestClaim, TestDriver, in_time, numbered_device};

const CLAIMS: usize = 8;
const CONTAINERS: u64 = 3;
/// The time limit of a call: 100 ms for locks, and the rest for a busy machine.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn locks_of_containers_block_neither_calls_nor_a_start_and_no_update_is_lost() {
    let campaign = Campaign::new("locked_files");
    let mut random = Random(campaign.seed);
    let node = Node::default();
    let claims: Vec<TestClaim> = (0..CLAIMS)
        .map(|number| {
            let claim = TestClaim::new(&format!("claim-{number}"), &format!("uid-{number}"));
            node.claim(claim.device("gpu", &format!("gpu-{number}")))
        })
        .collect();
    let files: Vec<PathBuf> = claims.iter().map(|claim| node.metadata_file(claim, "gpu")).collect();

    let ends = Arc::new(AtomicBool::new(false));
    let locks = Arc::new(AtomicUsize::new(0));
    let reads = Arc::new(AtomicUsize::new(0));
    let containers: Vec<_> = (1..=CONTAINERS)
        .map(|number| {
            let ends = ends.clone();
            let files = files.clone();
            let locks = locks.clone();
            let random = Random(campaign.seed ^ (number << 40));
            thread::spawn(move || lock_at_random(&files, random, &ends, &locks))
        })
        .collect();
    let reader = {
        let ends = ends.clone();
        let files = files.clone();
        let reads = reads.clone();
        thread::spawn(move || read_all(&files, &ends, &reads))
    };

    let mut helper = node.start(&TestDriver::default()).await;
    let mut kubelet = Kubelet::of(&helper).await;
    let mut expected: Vec<Option<i64>> = vec![None; CLAIMS];
    let mut calls = 0;
    let mut restarts = 0;
    let mut times = Vec::new();
    while campaign.has_next(calls, 150) {
        calls += 1;
        let number = random.below(CLAIMS);
        let claim = &claims[number];
        let started = Instant::now();
        match (random.below(20), expected[number]) {
            (0, _) => {
                interrupt_updates(&mut random, &files, &mut expected);
                helper.stop().await.unwrap();
                let started = Instant::now();
                helper = in_time(node.start(&TestDriver::default())).await;
                restarts += 1;
                assert!(started.elapsed() < CALL_TIMEOUT, "a start took {:?}", started.elapsed());
                kubelet = Kubelet::of(&helper).await;
            }
            (1..=4, Some(_)) => {
                kubelet.unprepare_one(claim).await.unwrap();
                expected[number] = None;
            }
            (5..=8, Some(_)) | (_, None) => {
                kubelet.prepare_one(claim).await.unwrap();
                expected[number] = expected[number].or(Some(0));
            }
            (_, Some(_)) => {
                update(&helper, claim, number, calls).await;
                expected[number] = Some(calls as i64);
            }
        }
        times.push(started.elapsed());
        assert!(started.elapsed() < CALL_TIMEOUT, "call {calls} took {:?}", started.elapsed());
        // The driver's thread is not blocked: an empty call gets its response.
        in_time(kubelet.call()).await.unwrap();
        for (claim, expected) in claims.iter().zip(&expected) {
            assert_eq!(node.metadata_file(claim, "gpu").exists(), expected.is_some());
            if let Some(update) = expected {
                assert_eq!(number_in(&std::fs::read(node.metadata_file(claim, "gpu")).unwrap()), Some(*update));
            }
        }
    }
    ends.store(true, Ordering::Relaxed);
    for container in containers {
        container.join().unwrap();
    }
    reader.join().unwrap();
    helper.stop().await.unwrap();
    let locks = locks.load(Ordering::Relaxed);
    let reads = reads.load(Ordering::Relaxed);
    let times = quantiles(times);
    campaign.report(&format!("{calls} calls, {times}, {restarts} restarts, {locks} locks, {reads} reads, none mixed"));
}

async fn update(helper: &Helper, claim: &TestClaim, number: usize, update: usize) {
    // Of different lengths, so that a mix of two updates would be detected.
    let mut devices = numbered_device(&format!("gpu-{number}"), update as i64);
    let metadata = devices[0].metadata.take().unwrap();
    let filling = "x".repeat(update % 40);
    devices[0].metadata = Some((0..update % 30).fold(metadata, |metadata, index| {
        metadata.attribute(format!("filling{index}"), format!("{update}-{filling}"))
    }));
    in_time(helper.handles().update_request_metadata(&claim.reference(), "gpu", devices)).await.unwrap();
}

/// Writes write-ahead copies, as a driver that is killed in the middle of an update leaves them.
fn interrupt_updates(random: &mut Random, files: &[PathBuf], expected: &mut [Option<i64>]) {
    for (file, expected) in files.iter().zip(expected) {
        if expected.is_none() || random.below(2) == 0 {
            continue;
        }
        let content = std::fs::read_to_string(file).unwrap();
        let Some(before) = expected.filter(|number| *number > 0) else { continue };
        let update = content.replace(&format!("\"int\": {before}"), &format!("\"int\": {}", before + 1_000_000));
        assert_ne!(update, content);
        std::fs::write(file.with_file_name(".metadata.json.next"), update).unwrap();
        *expected = Some(before + 1_000_000);
    }
}

/// Returns the number of the update in a file; 0 before the first.
fn number_in(content: &[u8]) -> Option<i64> {
    let metadata = drakkar_metadata::decode(content).ok()?.metadata;
    let device = metadata.requests.first()?.devices.first()?;
    let number = device.attributes.iter().find(|(name, _)| name.ends_with("number"));
    Some(match number.map(|(_, attribute)| attribute) {
        Some(attribute) => attribute.int.unwrap_or_default(),
        None => 0,
    })
}

/// Takes locks through read-only descriptors, as a container does, and holds them for a while.
fn lock_at_random(files: &[PathBuf], mut random: Random, ends: &AtomicBool, locks: &AtomicUsize) {
    while !ends.load(Ordering::Relaxed) {
        let Ok(file) = File::open(&files[random.below(files.len())]) else {
            thread::yield_now();
            continue;
        };
        let locked = if random.below(2) == 0 { file.try_lock() } else { file.try_lock_shared() };
        if locked.is_ok() {
            locks.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_micros(random.below(150_000) as u64));
        } else {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Reads as a workload does. Each read returns a single update, or fails.
fn read_all(files: &[PathBuf], ends: &AtomicBool, reads: &AtomicUsize) {
    let reader = Reader::new();
    while !ends.load(Ordering::Relaxed) {
        for file in files {
            // A missing, blank or locked file is an error, which is not a mix of updates.
            let Ok(decoded) = reader.read_file(file) else { continue };
            reads.fetch_add(1, Ordering::Relaxed);
            let Some(request) = decoded.metadata.requests.first() else { continue };
            let attributes = &request.devices[0].attributes;
            let mut fillings = attributes.iter().filter(|(name, _)| name.contains("filling"));
            let of_update = |value: &str| value.split('-').next().map(str::to_owned);
            let first = fillings.next().and_then(|(_, attribute)| attribute.string.as_deref().and_then(of_update));
            for (_, attribute) in fillings {
                let own = attribute.string.as_deref().and_then(of_update);
                assert_eq!(own, first, "a mix of two updates: {attributes:?}");
            }
        }
    }
}
