//! What waits: the last of each device, within bounds.

use std::time::Duration;

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
