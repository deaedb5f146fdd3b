//! Containers that lock their metadata files at random, while their claims are prepared, updated, unprepared and prepared again, and
//! the driver restarts.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use drakkar_metadata::read::Reader;
use drakkar_plugin::Helper;

use super::{Campaign, quantiles};
use crate::support::{Kubelet, Node, Random, TestClaim, TestDriver, in_time, news};

const CLAIMS: usize = 8;
const CONTAINERS: u64 = 3;
/// What a call may take: 100 ms for locks, and what a busy machine adds.
const BOUND: Duration = Duration::from_secs(5);

#[tokio::test]
async fn locks_of_containers_hold_up_neither_the_driver_nor_a_start_and_every_update_lands() {
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
    let (locks, reads) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let containers: Vec<_> = (1..=CONTAINERS)
        .map(|number| {
            let (ends, files, locks) = (ends.clone(), files.clone(), locks.clone());
            let random = Random(campaign.seed ^ (number << 40));
            thread::spawn(move || lock_at_random(&files, random, &ends, &locks))
        })
        .collect();
    let reader = {
        let (ends, files, reads) = (ends.clone(), files.clone(), reads.clone());
        thread::spawn(move || read_all(&files, &ends, &reads))
    };

    let mut helper = node.start(&TestDriver::default()).await;
    let mut kubelet = Kubelet::of(&helper).await;
    let mut expected: Vec<Option<i64>> = vec![None; CLAIMS];
    let (mut calls, mut restarts, mut times) = (0, 0, Vec::new());
    while campaign.goes_on(calls, 150) {
        calls += 1;
        let number = random.below(CLAIMS);
        let claim = &claims[number];
        let begun = Instant::now();
        match (random.below(20), expected[number]) {
            (0, _) => {
                leave_updates(&mut random, &files, &mut expected);
                helper.stop().await.unwrap();
                let begun = Instant::now();
                helper = in_time(node.start(&TestDriver::default())).await;
                restarts += 1;
                assert!(begun.elapsed() < BOUND, "a start took {:?}", begun.elapsed());
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
        times.push(begun.elapsed());
        assert!(begun.elapsed() < BOUND, "call {calls} took {:?}", begun.elapsed());
        // The driver's thread has time for others all the while: this one asks for nothing but an answer.
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
    let (locks, reads, times) = (locks.load(Ordering::Relaxed), reads.load(Ordering::Relaxed), quantiles(times));
    campaign.report(&format!("{calls} calls, {times}, {restarts} restarts, {locks} locks, {reads} reads, none mixed"));
}

async fn update(helper: &Helper, claim: &TestClaim, number: usize, update: usize) {
    // Longer and shorter ones, so that a mix of two would be seen.
    let mut devices = news(&format!("gpu-{number}"), update as i64);
    let metadata = devices[0].metadata.take().unwrap();
    let filling = "x".repeat(update % 40);
    devices[0].metadata = Some((0..update % 30).fold(metadata, |metadata, place| {
        metadata.attribute(format!("filling{place}"), format!("{update}-{filling}"))
    }));
    in_time(helper.update_request_metadata(&claim.reference(), "gpu", devices)).await.unwrap();
}

/// Leaves write-ahead copies, as a driver does that is killed in the middle of an update.
fn leave_updates(random: &mut Random, files: &[PathBuf], expected: &mut [Option<i64>]) {
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

/// The number of the update that is in a file; 0 before the first.
fn number_in(content: &[u8]) -> Option<i64> {
    let metadata = drakkar_metadata::decode(content).ok()?.metadata;
    let device = metadata.requests.first()?.devices.first()?;
    let number = device.attributes.iter().find(|(name, _)| name.ends_with("number"));
    Some(match number.map(|(_, attribute)| attribute) {
        Some(attribute) => attribute.int.unwrap_or_default(),
        None => 0,
    })
}

/// A container that takes locks through a descriptor which can only read, and holds them for a while.
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

/// Reads as a workload does. What it gets is of one update, or nothing.
fn read_all(files: &[PathBuf], ends: &AtomicBool, reads: &AtomicUsize) {
    let reader = Reader::new();
    while !ends.load(Ordering::Relaxed) {
        for file in files {
            // A file that is gone, blank or locked by others is an error, and none of these is a mix.
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
