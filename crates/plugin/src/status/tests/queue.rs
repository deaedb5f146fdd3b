//! What waits: the last of each device, within bounds.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::metrics::ReportOutcome;

fn gpu(number: usize) -> DeviceStatus {
    DeviceStatus::new("node-1", format!("gpu-{number}"))
}

#[tokio::test]
async fn of_several_reports_of_a_device_the_last_waits() {
    let metrics = metrics();
    let queue = Queue::new(metrics.clone());
    for number in 0..10 {
        queue.add(&claim_ref(1), vec![gpu(0).data(json!({"number": number}))]).unwrap();
    }
    queue.add(&claim_ref(1), vec![gpu(1)]).unwrap();
    let reports = waiting(&queue);
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[0].status.data, Some(json!({"number": 9})));
    assert_eq!(self::reports(&metrics, "superseded"), 9);
}

#[tokio::test]
async fn a_report_that_came_during_the_delivery_of_another_stays() {
    let metrics = metrics();
    let queue = Queue::new(metrics.clone());
    queue.add(&claim_ref(1), vec![gpu(0), gpu(1)]).unwrap();
    let numbers: Vec<u64> = waiting(&queue).iter().map(|report| report.number).collect();
    queue.add(&claim_ref(1), vec![gpu(0).data(json!({"new": 1}))]).unwrap();
    queue.done(&claim_ref(1).uid, &numbers, ReportOutcome::Delivered);
    let left = waiting(&queue);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].status.data, Some(json!({"new": 1})));
    assert_eq!((reports(&metrics, "delivered"), reports(&metrics, "superseded")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_failed_lets_others_go_first() {
    let queue = Queue::new(metrics());
    queue.add(&claim_ref(1), vec![gpu(0)]).unwrap();
    queue.again(&claim_ref(1).uid, Duration::from_secs(30), false);
    assert!(matches!(queue.next(), Next::Later(_)));
    queue.add(&claim_ref(2), vec![gpu(0)]).unwrap();
    assert!(matches!(queue.next(), Next::Now(job) if job.claim == claim_ref(2)));
    queue.forget(&claim_ref(2).uid);
    tokio::time::advance(Duration::from_secs(31)).await;
    assert!(matches!(queue.next(), Next::Now(job) if job.claim == claim_ref(1) && job.tries == 1));
}

/// A server in trouble is in trouble for all claims: it is not asked for each of them.
#[tokio::test(start_paused = true)]
async fn while_the_server_is_in_trouble_one_claim_is_tried_for_all() {
    let queue = Queue::new(metrics());
    let job = || match queue.next() {
        Next::Now(job) => job,
        other => panic!("{other:?}"),
    };
    for number in 1..=8 {
        queue.add(&claim_ref(number), vec![gpu(0)]).unwrap();
    }
    let mut tried = HashSet::new();
    for trouble in 0..5 {
        let uid = job().claim.uid;
        tokio::time::advance(Duration::from_millis(1)).await;
        queue.again(&uid, Duration::ZERO, false);
        tried.insert(uid);
        let pause = Duration::from_secs(1 << trouble);
        queue.hold(|before| Duration::from_secs(1 << before));
        let end = Instant::now() + pause;
        assert!(matches!(queue.next(), Next::Later(time) if time == end), "the pause doubles");
        queue.add(&claim_ref(9), vec![gpu(0)]).unwrap();
        assert!(matches!(queue.next(), Next::Later(_)), "also for what is new");
        tokio::time::advance(pause).await;
    }
    assert_eq!(tried.len(), 5, "all have their turn");
    let delivered = job();
    queue.done(&delivered.claim.uid, &[delivered.reports[0].number], ReportOutcome::Delivered);
    for _ in 0..8 {
        // The others follow at once.
        queue.forget(&job().claim.uid);
    }
    assert!(matches!(queue.next(), Next::Nothing));
    queue.add(&claim_ref(1), vec![gpu(0)]).unwrap();
    queue.hold(|before| Duration::from_secs(1 << before));
    assert!(matches!(queue.next(), Next::Later(_)));
    queue.close();
    assert_eq!(job().claim, claim_ref(1), "at the end nothing waits");
}

#[tokio::test]
async fn what_is_wrong_is_refused_as_a_whole() {
    let metrics = metrics();
    let queue = Queue::new(metrics.clone());
    let error = queue.add(&claim_ref(1), vec![gpu(0), gpu(1).data(json!(1))]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("default/claim-1") && text.contains("device node-1/gpu-1: data: "), "{text}");
    assert!(matches!(queue.next(), Next::Nothing));
    assert_eq!(reports(&metrics, "refused"), 2);
}

#[tokio::test]
async fn the_number_of_claims_and_of_bytes_is_bounded() {
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
    // What is there can still be replaced by less, and what is done makes room.
    queue.forget(&claim_ref(0).uid);
    queue.add(&claim_ref(0), vec![big(0)]).unwrap();

    let queue = Queue::new(metrics());
    let added = (0..).take_while(|number| queue.add(&claim_ref(*number), vec![gpu(0)]).is_ok()).count();
    assert_eq!(added, 4096);
    queue.add(&claim_ref(7), vec![gpu(1)]).unwrap();
}

#[tokio::test]
async fn a_queue_that_is_closed_takes_nothing_and_lets_nothing_wait() {
    let queue = Queue::new(metrics());
    queue.add(&claim_ref(1), vec![gpu(0)]).unwrap();
    queue.again(&claim_ref(1).uid, Duration::from_secs(600), false);
    queue.close();
    assert!(matches!(queue.add(&claim_ref(2), vec![gpu(0)]), Err(ReportError::Stopped { .. })));
    assert!(matches!(queue.next(), Next::Now(_)));
}
