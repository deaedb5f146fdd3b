//! The times of requests, with a paused clock.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Mutex;

use futures::stream::{self, StreamExt as _};
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::json;
use tokio::sync::Notify;

use super::super::api::Scope;
use super::*;

/// An answer of the server.
enum Answer {
    /// An empty list with this resource version.
    List(&'static str),
    /// A watch that sends these events and ends.
    Watch(&'static str),
    /// A watch that sends these events, each after a number of seconds, and is silent then.
    Silent(&'static [(u64, &'static str)]),
    /// An error status, with or without `Retry-After`.
    Refusal(u16, Option<u32>),
}

/// A server that gives these answers, and then none, with a log of requests.
struct Server {
    answers: Mutex<VecDeque<Answer>>,
    log: Mutex<Vec<(Instant, String)>>,
}

/// Follows a server until it has given all answers. Returns its log.
async fn requests_to(answers: impl IntoIterator<Item = Answer>) -> Vec<(Instant, String)> {
    requests_and_changes(answers).await.0
}

/// The same, with the changes that were reported.
async fn requests_and_changes(
    answers: impl IntoIterator<Item = Answer>,
) -> (Vec<(Instant, String)>, Vec<&'static str>) {
    let answers: VecDeque<Answer> = answers.into_iter().collect();
    let count = answers.len() + 1;
    let server = Arc::new(Server { answers: Mutex::new(answers), log: Mutex::default() });
    let shared = server.clone();
    let is_done = Arc::new(Notify::new());
    let done = is_done.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let mut log = shared.log.lock().unwrap();
        log.push((Instant::now(), request.uri().to_string()));
        if log.len() == count {
            done.notify_one();
        }
        let answer = shared.answers.lock().unwrap().pop_front();
        async move {
            let mut response = Response::builder();
            let body = match answer {
                None => std::future::pending().await,
                Some(Answer::Silent(lines)) => {
                    let lines = stream::iter(lines).then(|(seconds, line)| async move {
                        sleep(Duration::from_secs(*seconds)).await;
                        Ok::<_, Infallible>(Frame::data(Bytes::from_static(line.as_bytes())))
                    });
                    let body = StreamBody::new(lines.chain(stream::pending())).boxed_unsync();
                    return Ok(response.body(body).unwrap());
                }
                Some(Answer::List(version)) => json!({"metadata": {"resourceVersion": version}}).to_string(),
                Some(Answer::Watch(events)) => events.to_owned(),
                Some(Answer::Refusal(status, after)) => {
                    response = response.status(status);
                    if let Some(after) = after {
                        response = response.header("retry-after", after);
                    }
                    let message = "Timeout: Too large resource version: 9, current: 3";
                    let causes =
                        json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
                    json!({"kind": "Status", "message": message, "details": {"causes": causes}}).to_string()
                }
            };
            let body = http_body_util::Full::new(Bytes::from(body)).boxed_unsync();
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    let scope = Scope { driver: "d".into(), node: Some("n".into()), pool: None };
    let api = Arc::new(Api::new(drakkar_client::DraClient::new(kube::Client::new(service, "default")), scope));
    let (mut changes, reflector) = follow(api, Arc::default());
    let mut seen = Vec::new();
    let drained = async {
        while let Some(change) = changes.recv().await {
            seen.push(match change {
                Change::ListStarting(paused) => {
                    paused.send(None).unwrap();
                    continue;
                }
                Change::Listed(_) => "listed",
                Change::Applied(_) => "applied",
                Change::Deleted(_) => "deleted",
                Change::Recovered => "recovered",
                Change::Failed { .. } => "failed",
            });
        }
    };
    tokio::select! {
        () = reflector => panic!("it ended"),
        () = drained => panic!("it ended"),
        () = is_done.notified() => {}
    }
    let log = server.log.lock().unwrap().clone();
    (log, seen)
}

/// A watch that works again is reported, also if it has no events for days.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_failure_is_reported() {
    let answers = [Answer::List("5"), Answer::Watch(""), Answer::Refusal(503, None), Answer::Watch("")];
    assert_eq!(requests_and_changes(answers).await.1, ["listed", "failed", "recovered"]);
}

const EXPIRED: &str = "{\"type\":\"ERROR\",\"object\":{\"code\":410,\"message\":\"too old\"}}\n";
const BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\"}}}\n";

/// A healthy server sends a bookmark about every minute. The connection to one that sends nothing may be dead.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_silent_for_too_long_is_reconnected_from_the_last_version() {
    const BOOKMARKS: &[(u64, &str)] = &[(75, BOOKMARK), (75, BOOKMARK), (75, BOOKMARK)];
    let log = requests_to([Answer::List("5"), Answer::Silent(BOOKMARKS)]).await;
    assert!(log[2].1.contains("watch=true") && log[2].1.contains("resourceVersion=7"), "{log:?}");
    let silent = (log[2].0 - log[1].0).saturating_sub(Duration::from_secs(225));
    assert!(
        (80..=120).contains(&silent.as_secs()),
        "it lasts while there are bookmarks, and not much longer: {silent:?}"
    );
}

/// A server may have bookmarks disabled, and no events: that is no error.
#[tokio::test(start_paused = true)]
async fn silence_is_not_reported_as_a_failure() {
    let silent = (0..5).map(|_| Answer::Silent(&[]));
    let (log, changes) = requests_and_changes([Answer::List("5")].into_iter().chain(silent)).await;
    assert_eq!(changes.iter().filter(|change| **change == "failed").count(), 0, "{changes:?}");
    let longest = log.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap();
    assert!(longest <= Duration::from_secs(120), "there is always a watch: {longest:?}");
}

/// A cluster that was restored from a backup: the server is behind what was seen, so its events would be missed.
#[tokio::test(start_paused = true)]
async fn a_server_whose_versions_go_back_is_asked_for_its_newest_state() {
    const BACK: &[(u64, &str)] =
        &[(1, "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"3\"}}}\n")];
    let log = requests_to([Answer::List("5"), Answer::Silent(BACK)]).await;
    assert!(!log[2].1.contains("watch=true") && !log[2].1.contains("resourceVersion="), "{log:?}");
}

/// Returns the delays before the last request of many nodes that get the same answers at the same time.
async fn delays_before_the_last(answers: fn() -> Vec<Answer>) -> Vec<Duration> {
    let mut delays = Vec::new();
    for _ in 0..500 {
        let log = requests_to(answers()).await;
        delays.push(log[log.len() - 1].0 - log[log.len() - 2].0);
    }
    delays.sort();
    delays
}

/// Asserts that delays are spread evenly: no tenth of the range has many more than another.
fn assert_even(delays: &[Duration], within: std::ops::Range<u64>) {
    let first = Duration::from_millis(within.start);
    // The clock has a resolution of a millisecond.
    let last = Duration::from_millis(within.end + 2);
    assert!(delays.iter().all(|delay| (first..=last).contains(delay)), "{:?} to {:?}", delays[0], delays.last());
    let tenth = (last - first) / 10;
    for number in 0..10 {
        let from = first + tenth * number;
        let to = from + tenth;
        let count = delays.iter().filter(|delay| (from..to).contains(*delay)).count();
        // 50 on average. The probability of a count outside of these limits is less than one in a million.
        assert!((18..=90).contains(&count), "{count} of {} from {from:?} to {to:?}", delays.len());
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_whose_watches_break_together_reconnect_at_different_times() {
    let delays = delays_before_the_last(|| vec![Answer::List("5"), Answer::Watch("")]).await;
    assert_even(&delays, 0..10_000);
}

#[tokio::test(start_paused = true)]
async fn nodes_whose_versions_expire_together_list_at_different_times() {
    let delays = delays_before_the_last(|| vec![Answer::List("5"), Answer::Watch(EXPIRED)]).await;
    assert_even(&delays, 0..10_000);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_respected_and_gets_jitter() {
    let lists = delays_before_the_last(|| vec![Answer::Refusal(429, Some(8))]).await;
    assert_even(&lists, 8_000..16_000);
    let watches = delays_before_the_last(|| vec![Answer::List("5"), Answer::Refusal(503, Some(8))]).await;
    assert_even(&watches, 8_000..16_000);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_keeps_breaking_is_reconnected_less_and_less_often() {
    let broken = (0..12).map(|_| Answer::Watch(""));
    let log = requests_to([Answer::List("5")].into_iter().chain(broken)).await;
    let last = log[log.len() - 1].0 - log[log.len() - 2].0;
    assert!(last >= Duration::from_secs(15), "{last:?}");
}

/// A watch lasts from five to ten minutes, a random time on each node.
#[tokio::test(start_paused = true)]
async fn watches_are_not_renewed_by_all_at_once() {
    let mut durations = Vec::new();
    for _ in 0..500 {
        let log = requests_to([Answer::List("5")]).await;
        let (_, seconds) = log[1].1.split_once("timeoutSeconds=").unwrap();
        durations.push(Duration::from_secs(seconds.parse().unwrap()));
    }
    durations.sort();
    assert_even(&durations, 299_000..600_000);
}

/// A list from the server's cache will do if it is not older than what was seen. Only if that fails it has to be the newest.
#[tokio::test(start_paused = true)]
async fn a_list_is_only_as_new_as_it_has_to_be() {
    let version = |uri: &str| {
        let (_, query) = uri.split_once('?').unwrap();
        let versions = query.split('&').filter(|part| part.starts_with("resourceVersion"));
        versions.collect::<Vec<_>>().join("&")
    };
    let log = requests_to([
        Answer::List("5"),
        Answer::Watch(BOOKMARK),
        Answer::Watch(EXPIRED),
        Answer::List("7"),
        Answer::Watch(EXPIRED),
        Answer::List("8"),
        Answer::Watch(EXPIRED),
        Answer::Refusal(504, Some(1)),
    ])
    .await;
    let asked: Vec<String> = log.iter().map(|(_, uri)| version(uri)).collect();
    let since = |number| format!("resourceVersion={number}&resourceVersionMatch=NotOlderThan");
    let at = |number| format!("resourceVersion={number}");
    let expected = [at(0), at(5), at(7), since(7), at(7), String::new(), at(8), since(8), String::new()];
    assert_eq!(asked, expected);
}
