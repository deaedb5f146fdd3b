//! What a pool remembers, and for how long it waits.

#![allow(clippy::unwrap_used)]

use serde_json::json;
use tokio::time::advance;

use super::*;
use crate::slices::resources::{Pool, PublishedDevice};
use crate::slices::stored::Form;
use crate::slices::validate::Place;

const PLACE: Place<'static> = Place { driver: "gpu.example.com", is_on_node: true, is_for_others: false };

fn checked(devices: usize, attribute: i64) -> Checked {
    let device = |number| PublishedDevice::new(format!("d{number}")).attribute("a", attribute).taint("k", "", "None");
    let pool = Pool { devices_per_slice: Some(1), ..Pool::default().devices((0..devices).map(device)) };
    Checked::new("pool", pool, PLACE, None).unwrap()
}

fn stored(index: usize, uid: &str, version: u64, generation: i64) -> Stored {
    let object = json!({
        "metadata": {"name": format!("{index:05x}-{uid}"), "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"driver": "gpu.example.com", "pool": {"name": "pool", "generation": generation, "resourceSliceCount": 2},
            "devices": [{"name": format!("d{index}"), "attributes": {"a": {"int": 1}}}]},
    });
    Stored::read(object.to_string().as_bytes(), Form::Flat).unwrap()
}

/// Two slices whose taints the API server has dropped.
fn dropped() -> PoolState {
    let mut state = PoolState::default();
    state.want(Some(checked(2, 1))).unwrap();
    for index in 0..2 {
        let slice = stored(index, &format!("u{index}"), 5, 1);
        let sent = state.wanted.as_ref().unwrap().slices[index].digest;
        state.settle(sent, slice.digest);
        state.put(slice);
    }
    state.due = None;
    state
}

/// G52: upstream never tries again. One slice is enough to see whether the server keeps the fields by now.
#[tokio::test(start_paused = true)]
async fn fields_that_were_dropped_are_tried_again_slowly_with_one_slice() {
    let mut state = dropped();
    assert_eq!(state.writes(1).unwrap().len(), 0, "it is left at that");
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let pause = state.next().unwrap() - Instant::now();
        pauses.push(pause);
        advance(pause).await;
        let writes = state.writes(1).unwrap();
        assert_eq!((writes.update.len(), writes.len(), writes.generation), (1, 1, 1));
        let (index, number) = writes.update[0];
        let (sent, got) = (state.wanted.as_ref().unwrap().slices[index].digest, state.stored[number].digest);
        state.settle(sent, got);
        assert_eq!(state.writes(1).unwrap().len(), 0);
    }
    for (pause, about) in pauses.iter().zip([300, 600, 1200, 2400, 3600, 3600].map(Duration::from_secs)) {
        assert!((about / 2..=about * 3 / 2).contains(pause), "{pauses:?}");
    }

    advance(state.next().unwrap() - Instant::now()).await;
    let (index, _) = state.writes(1).unwrap().update[0];
    let sent = state.wanted.as_ref().unwrap().slices[index].digest;
    state.kept(sent);
    assert!(state.due.is_some(), "the server keeps them now");
    assert_eq!(state.writes(1).unwrap().len(), 2, "all are written");
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_is_kept_among_others_that_are_not_changes_nothing() {
    let mut state = dropped();
    let other = checked(1, 7).split(|_| None, 0).unwrap().slices[0].digest;
    state.kept(other);
    assert_eq!((state.due, state.writes(1).unwrap().len()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn news_that_are_older_than_what_is_known_are_none() {
    let mut state = PoolState::default();
    assert!(state.put(stored(0, "u0", 7, 1)));
    assert!(!state.put(stored(0, "u0", 7, 1)), "the echo of a write");
    assert!(!state.put(stored(0, "u0", 6, 1)));
    assert!(state.put(stored(0, "u0", 10, 2)), "ten is more than seven, also as a text");
    state.bury("u0");
    assert!(!state.put(stored(0, "u0", 11, 2)), "it was deleted here");
    assert!(!state.gone("u0"));
    assert!(!state.gone("u1"));
}

#[tokio::test(start_paused = true)]
async fn a_list_does_not_undo_what_was_written_after_it() {
    let mut state = PoolState::default();
    state.put(stored(0, "old", 5, 1));
    state.put(stored(1, "new", 20, 1));
    state.put(stored(2, "deleted", 6, 1));
    state.bury("deleted");
    assert!(state.reset(vec![stored(2, "deleted", 6, 1), stored(3, "other", 9, 1)], "10"));
    let uids: Vec<&str> = state.stored.iter().map(|slice| slice.uid.as_str()).collect();
    assert_eq!(uids, ["new", "other"]);
    assert!(!state.reset(vec![stored(3, "other", 9, 1), stored(1, "new", 20, 1)], "21"), "nothing new");
}

#[tokio::test(start_paused = true)]
async fn deletes_that_follow_each_other_are_repaired_together() {
    let mut state = PoolState::default();
    let began = Instant::now();
    for _ in 0..100 {
        state.disturb();
        assert!(state.due.unwrap() <= began + SETTLE_AT_MOST);
        advance(Duration::from_millis(10)).await;
    }
    let mut state = PoolState::default();
    state.disturb();
    assert_eq!(state.due, Some(Instant::now() + SETTLE));
    state.failures = 3;
    let later = Instant::now() + Duration::from_secs(30);
    state.due = Some(later);
    state.disturb();
    assert_eq!(state.due, Some(later), "a pause after trouble is kept");
}

#[tokio::test(start_paused = true)]
async fn repairs_are_at_once_until_there_are_too_many() {
    let mut state = PoolState::default();
    let repair = |state: &mut PoolState| {
        state.disturb();
        state.is_contested()
    };
    for _ in 0..REPAIRS {
        assert!(!repair(&mut state));
    }
    assert!(repair(&mut state) && state.due.unwrap() > Instant::now());
    assert!(!state.is_contested(), "when the time has come");
    advance(REPAIRS_WITHIN * 2).await;
    assert!(!repair(&mut state));
}

#[tokio::test(start_paused = true)]
async fn taints_are_remembered_as_long_as_they_are_wanted() {
    let mut state = PoolState::default();
    state.want(Some(checked(1, 1))).unwrap();
    let tainted = json!({
        "metadata": {"name": "00000-a", "uid": "u", "resourceVersion": "1"},
        "spec": {"driver": "d", "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1}, "devices": [
            {"name": "d0", "taints": [{"key": "k", "effect": "None", "timeAdded": "2026-01-02T03:04:05Z"}]}]},
    });
    state.put(Stored::read(tainted.to_string().as_bytes(), Form::Flat).unwrap());
    state.gone("u");
    assert_eq!(state.taints()["d0"].len(), 1);
    state.want(Some(checked(1, 2))).unwrap();
    assert_eq!(state.taints()["d0"].len(), 1);
    let healthy = Pool::default().device(PublishedDevice::new("d0"));
    state.want(Some(Checked::new("pool", healthy, PLACE, None).unwrap())).unwrap();
    assert!(state.taints().is_empty());
}
