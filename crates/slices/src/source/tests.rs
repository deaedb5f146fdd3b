//! When a server is asked, with time that only passes when everybody waits.

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

/// What a server answers to a request.
enum Answer {
    /// An empty list of this version.
    List(&'static str),
    /// A watch that tells this and ends at once.
    Watch(&'static str),
    /// A watch that tells this, each a while after the one before, and then nothing more.
    Silent(&'static [(u64, &'static str)]),
    /// A status, and when to come back.
    Refusal(u16, Option<u32>),
}

/// A server that gives these answers, and then none, and when it was asked for what.
struct Server {
    answers: Mutex<VecDeque<Answer>>,
    log: Mutex<Vec<(Instant, String)>>,
}

/// Follows a server until it has given its answers, and tells when it was asked for what.
async fn follow_until_the_end(answers: impl IntoIterator<Item = Answer>) -> Vec<(Instant, String)> {
    follow_and_hear(answers).await.0
}

/// The same, and what was told of it.
async fn follow_and_hear(answers: impl IntoIterator<Item = Answer>) -> (Vec<(Instant, String)>, Vec<&'static str>) {
    let answers: VecDeque<Answer> = answers.into_iter().collect();
    let count = answers.len() + 1;
    let server = Arc::new(Server { answers: Mutex::new(answers), log: Mutex::default() });
    let (shared, is_done) = (server.clone(), Arc::new(Notify::new()));
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
                    json!({"kind": "Status", "message": message}).to_string()
                }
            };
            let body = http_body_util::Full::new(Bytes::from(body)).boxed_unsync();
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    let scope = Scope { driver: "d".into(), node: Some("n".into()), pool: None };
    let api = Arc::new(Api::new(drakkar_client::DraClient::new(kube::Client::new(service, "default")), scope));
    let (mut changes, source) = follow(api, Arc::default());
    let mut heard = Vec::new();
    let drained = async {
        while let Some(change) = changes.recv().await {
            heard.push(match change {
                Change::Listing(paused) => {
                    paused.send(None).unwrap();
                    continue;
                }
                Change::All(_) => "all",
                Change::Put(_) => "put",
                Change::Gone(_) => "gone",
                Change::Fine => "fine",
                Change::Trouble { .. } => "trouble",
            });
        }
    };
    tokio::select! {
        () = source => panic!("it ended"),
        () = drained => panic!("it ended"),
        () = is_done.notified() => {}
    }
    let log = server.log.lock().unwrap().clone();
    (log, heard)
}

/// A watch that comes back says so, also if nothing happens in it for days.
#[tokio::test(start_paused = true)]
async fn the_end_of_trouble_is_told() {
    let answers = [Answer::List("5"), Answer::Watch(""), Answer::Refusal(503, None), Answer::Watch("")];
    assert_eq!(follow_and_hear(answers).await.1, ["all", "trouble", "fine"]);
}

const EXPIRED: &str = "{\"type\":\"ERROR\",\"object\":{\"code\":410,\"message\":\"too old\"}}\n";
const BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\"}}}\n";

/// A server that is well sends a bookmark every minute or so. One that sends nothing may be gone without a word.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_silent_for_too_long_is_made_again_from_where_it_was() {
    const BOOKMARKS: &[(u64, &str)] = &[(75, BOOKMARK), (75, BOOKMARK), (75, BOOKMARK)];
    let log = follow_until_the_end([Answer::List("5"), Answer::Silent(BOOKMARKS)]).await;
    assert!(log[2].1.contains("watch=true") && log[2].1.contains("resourceVersion=7"), "{log:?}");
    let silent = (log[2].0 - log[1].0).saturating_sub(Duration::from_secs(225));
    assert!(
        (80..=120).contains(&silent.as_secs()),
        "it lasts while there are bookmarks, and not much longer: {silent:?}"
    );
}

/// A server without bookmarks is well, and so is one in which nothing happens: that is nothing to tell.
#[tokio::test(start_paused = true)]
async fn silence_is_not_told_as_trouble() {
    let silent = (0..5).map(|_| Answer::Silent(&[]));
    let (log, heard) = follow_and_hear([Answer::List("5")].into_iter().chain(silent)).await;
    assert_eq!(heard.iter().filter(|change| **change == "trouble").count(), 0, "{heard:?}");
    let longest = log.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap();
    assert!(longest <= Duration::from_secs(120), "it is watched all the time: {longest:?}");
}

/// A cluster that was restored from a backup: the server is behind what was seen, so its events would not be seen.
#[tokio::test(start_paused = true)]
async fn a_server_whose_versions_go_back_is_asked_for_all_that_it_has_now() {
    const BACK: &[(u64, &str)] =
        &[(1, "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"3\"}}}\n")];
    let log = follow_until_the_end([Answer::List("5"), Answer::Silent(BACK)]).await;
    assert!(!log[2].1.contains("watch=true") && !log[2].1.contains("resourceVersion="), "{log:?}");
}

/// The pauses before the last request of many nodes to which the same happens at the same time.
async fn pauses_before_the_last(answers: fn() -> Vec<Answer>) -> Vec<Duration> {
    let mut pauses = Vec::new();
    for _ in 0..500 {
        let log = follow_until_the_end(answers()).await;
        pauses.push(log[log.len() - 1].0 - log[log.len() - 2].0);
    }
    pauses.sort();
    pauses
}

/// Whether in no tenth of the time many more come than in any other.
fn assert_even(pauses: &[Duration], within: std::ops::Range<u64>) {
    let (first, last) = (Duration::from_millis(within.start), Duration::from_millis(within.end));
    // A millisecond is as fine as the clock is.
    let last = last + Duration::from_millis(2);
    assert!(pauses.iter().all(|pause| (first..=last).contains(pause)), "{:?} to {:?}", pauses[0], pauses.last());
    let tenth = (last - first) / 10;
    for number in 0..10 {
        let (from, to) = (first + tenth * number, first + tenth * (number + 1));
        let count = pauses.iter().filter(|pause| (from..to).contains(pause)).count();
        // 50 on the average; by chance less often than once in a million times not.
        assert!((18..=90).contains(&count), "{count} of {} from {from:?} to {to:?}", pauses.len());
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_whose_watches_end_at_once_come_back_one_after_the_other() {
    let pauses = pauses_before_the_last(|| vec![Answer::List("5"), Answer::Watch("")]).await;
    assert_even(&pauses, 0..10_000);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_have_lost_their_place_at_once_list_one_after_the_other() {
    let pauses = pauses_before_the_last(|| vec![Answer::List("5"), Answer::Watch(EXPIRED)]).await;
    assert_even(&pauses, 0..10_000);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_when_to_come_back_is_not_asked_before_and_not_by_all_at_once() {
    let lists = pauses_before_the_last(|| vec![Answer::Refusal(429, Some(8))]).await;
    assert_even(&lists, 8_000..16_000);
    let watches = pauses_before_the_last(|| vec![Answer::List("5"), Answer::Refusal(503, Some(8))]).await;
    assert_even(&watches, 8_000..16_000);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_again_and_again_is_made_less_and_less_often() {
    let broken = (0..12).map(|_| Answer::Watch(""));
    let log = follow_until_the_end([Answer::List("5")].into_iter().chain(broken)).await;
    let last = log[log.len() - 1].0 - log[log.len() - 2].0;
    assert!(last >= Duration::from_secs(15), "{last:?}");
}

/// A watch lasts from five to ten minutes, not the same on all nodes.
#[tokio::test(start_paused = true)]
async fn watches_are_not_renewed_by_all_at_once() {
    let mut lasting = Vec::new();
    for _ in 0..500 {
        let log = follow_until_the_end([Answer::List("5")]).await;
        let (_, seconds) = log[1].1.split_once("timeoutSeconds=").unwrap();
        lasting.push(Duration::from_secs(seconds.parse().unwrap()));
    }
    lasting.sort();
    assert_even(&lasting, 299_000..600_000);
}

/// What the server has at hand does, as long as it is not older than what was seen; only where it cannot have that, it has to be
/// the newest.
#[tokio::test(start_paused = true)]
async fn a_list_is_as_new_as_it_has_to_be() {
    let version = |uri: &str| {
        let (_, query) = uri.split_once('?').unwrap();
        let versions = query.split('&').filter(|part| part.starts_with("resourceVersion"));
        versions.collect::<Vec<_>>().join("&")
    };
    let log = follow_until_the_end([
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
