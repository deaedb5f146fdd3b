//! Tests of the queue: it keeps the last report of each device, within limits.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::metrics::ReportOutcome;

fn gpu(number: usize) -> DeviceStatus {
    DeviceStatus::new("node-1", format!("gpu-{number}"))
}

#[tokio::test]
async fn the_last_of_several_reports_for_a_device_is_kept() {
    let metrics = metrics();
    let queue = Queue::new(metrics.clone());
    for number in 0..10 {
        queue.add(&claim_ref(1), vec![gpu(0).data(json!({"number": number}))]).unwrap();
    }
    queue.add(&claim_ref(1), vec![gpu(1)]).unwrap();
    let reports = pending(&queue);
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[0].status.data, Some(json!({"number": 9})));
    assert_eq!(self::reports(&metrics, "superseded"), 9);
}

#[tokio::test]
async fn a_report_that_is_added_during_a_delivery_stays_pending() {
    let metrics = metrics();
    let queue = Queue::new(metrics.clone());
    queue.add(&claim_ref(1), vec![gpu(0), gpu(1)]).unwrap();
    let numbers: Vec<u64> = pending(&queue).iter().map(|report| report.number).collect();
    queue.add(&claim_ref(1), vec![gpu(0).data(json!({"new": 1}))]).unwrap();
    queue.complete(&claim_ref(1).uid, &numbers, ReportOutcome::Delivered);
    let remaining = pending(&queue);
    assert_eq!(remaining.len(), 1);
    assert_eq!(remaining[0].status.data, Some(json!({"new": 1})));
    assert_eq!((reports(&metrics, "delivered"), reports(&metrics, "superseded")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_failed_does_not_delay_others() {
    let queue = Queue::new(metrics());
    queue.add(&claim_ref(1), vec![gpu(0)]).unwrap();
    queue.retry_after(&claim_ref(1).uid, Duration::from_secs(30), false);
    assert!(matches!(queue.next(), Next::WaitUntil(_)));
    queue.add(&claim_ref(2), vec![gpu(0)]).unwrap();
    assert!(matches!(queue.next(), Next::Ready(delivery) if delivery.claim == claim_ref(2)));
    queue.forget(&claim_ref(2).uid);
    tokio::time::advance(Duration::from_secs(31)).await;
    assert!(matches!(queue.next(), Next::Ready(delivery) if delivery.claim == claim_ref(1) && delivery.attempts == 1));
}

/// An unavailable server is unavailable for all claims: there is one attempt at a time, not one for each claim.
#[tokio::test(start_paused = true)]
async fn while_the_server_is_unavailable_one_claim_is_tried_for_all() {
    let queue = Queue::new(metrics());
    let delivery = || match queue.next() {
        Next::Ready(delivery) => delivery,
        other => panic!("{other:?}"),
    };
    for number in 1..=8 {
        queue.add(&claim_ref(number), vec![gpu(0)]).unwrap();
    }
    let mut tried = HashSet::new();
    for failures in 0..5 {
        let uid = delivery().claim.uid;
        tokio::time::advance(Duration::from_millis(1)).await;
        queue.retry_after(&uid, Duration::ZERO, false);
        tried.insert(uid);
        let pause = Duration::from_secs(1 << failures);
        queue.pause_all(|before| Duration::from_secs(1 << before));
        let end = Instant::now() + pause;
        assert!(matches!(queue.next(), Next::WaitUntil(time) if time == end), "the pause doubles");
        queue.add(&claim_ref(9), vec![gpu(0)]).unwrap();
        assert!(matches!(queue.next(), Next::WaitUntil(_)), "also for new reports");
        tokio::time::advance(pause).await;
    }
    assert_eq!(tried.len(), 5, "each claim is tried");
    let delivered = delivery();
    queue.complete(&delivered.claim.uid, &[delivered.reports[0].number], ReportOutcome::Delivered);
    for _ in 0..8 {
        // The others follow at once.
        queue.forget(&delivery().claim.uid);
    }
    assert!(matches!(queue.next(), Next::Empty));
    queue.add(&claim_ref(1), vec![gpu(0)]).unwrap();
    queue.pause_all(|before| Duration::from_secs(1 << before));
    assert!(matches!(queue.next(), Next::WaitUntil(_)));
    queue.close();
    assert_eq!(delivery().claim, claim_ref(1), "a closed queue does not wait");
}

#[tokio::test]
async fn an_invalid_report_is_refused_as_a_whole() {
    let metrics = metrics();
    let queue = Queue::new(metrics.clone());
    let error = queue.add(&claim_ref(1), vec![gpu(0), gpu(1).data(json!(1))]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("default/claim-1") && text.contains("device node-1/gpu-1: data: "), "{text}");
    assert!(matches!(queue.next(), Next::Empty));
    assert_eq!(reports(&metrics, "refused"), 2);
}

#[tokio::test]
async fn the_number_of_claims_and_of_bytes_is_limited() {
    let queue = Queue::new(metrics());
    let big = |number| gpu(0).data(json!({"a": "x".repeat(10_000), "number": number}));
    let mut added = 0;
    let error = loop {
        match queue.add(&claim_ref(added), vec![big(added)]) {
            Ok(()) => added += 1,
            Err(error) => break error,
        }
        assert!(added < 100_000);
    };
    assert!(matches!(error, ReportError::Full { .. }), "{error}");
    assert!(added > 1000 && added * 10_000 <= 16 * 1024 * 1024, "{added}");
    // Dropped reports free their space.
    queue.forget(&claim_ref(0).uid);
    queue.add(&claim_ref(0), vec![big(0)]).unwrap();

    let queue = Queue::new(metrics());
    let added = (0..).take_while(|number| queue.add(&claim_ref(*number), vec![gpu(0)]).is_ok()).count();
    assert_eq!(added, 4096);
    queue.add(&claim_ref(7), vec![gpu(1)]).unwrap();
}

#[tokio::test]
async fn a_closed_queue_refuses_reports_and_does_not_wait() {
    let queue = Queue::new(metrics());
    queue.add(&claim_ref(1), vec![gpu(0)]).unwrap();
    queue.retry_after(&claim_ref(1).uid, Duration::from_secs(600), false);
    queue.close();
    assert!(matches!(queue.add(&claim_ref(2), vec![gpu(0)]), Err(ReportError::Stopped { .. })));
    assert!(matches!(queue.next(), Next::Ready(_)));
}
