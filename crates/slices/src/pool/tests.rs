//! What a pool remembers, and for how long it waits.

#![allow(clippy::unwrap_used)]

use drakkar_client::DraVersion;
use serde_json::json;
use tokio::time::advance;

use super::*;
use crate::resources::{Pool, PublishedDevice};
use crate::validate::Place;

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
    Stored::read(object.to_string().as_bytes(), DraVersion::V1).unwrap()
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

/// Nothing that is due may wake the task as long as it must not write.
#[tokio::test(start_paused = true)]
async fn a_pool_on_stand_by_is_not_looked_at_before_the_stand_by_is_over() {
    let mut state = dropped();
    advance(Duration::from_secs(900)).await;
    assert!(state.next().unwrap() <= Instant::now(), "dropped fields are to be tried again");
    state.stand_by(Duration::from_secs(2));
    assert!(state.next().unwrap() >= Instant::now() + Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_held_and_was_not_wanted_before_is_not_looked_at() {
    let mut state = dropped();
    state.want(None).unwrap();
    state.due = None;
    state.is_held = true;
    advance(Duration::from_secs(900)).await;
    assert_eq!(state.next(), None);
    state.disturb();
    assert_eq!(state.next(), None, "there is nothing to repair");
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
    state.record_deletion("u0");
    assert!(!state.put(stored(0, "u0", 11, 2)), "it was deleted here");
    assert!(!state.gone("u0"));
    assert!(!state.gone("u1"));
}

/// After a restore from a backup what the server has is older than what is known, and true.
#[tokio::test(start_paused = true)]
async fn a_list_replaces_what_is_known_whatever_the_versions_are() {
    let mut state = PoolState::default();
    state.put(stored(0, "kept", 20, 2));
    state.put(stored(1, "lost", 21, 2));
    assert!(state.replace(vec![stored(2, "other", 9, 1), stored(0, "kept", 8, 1)], false));
    let known: Vec<_> = state.stored.iter().map(|slice| (&*slice.uid, &*slice.resource_version)).collect();
    assert_eq!(known, [("kept", "8"), ("other", "9")]);
    assert!(!state.replace(vec![stored(0, "kept", 8, 1), stored(2, "other", 9, 1)], false), "nothing new");
    assert!(state.put(stored(0, "kept", 10, 1)), "versions go on from there");
}

/// A list of what the server has at hand may be from before a deletion; one of the newest state is not.
#[tokio::test(start_paused = true)]
async fn a_slice_that_was_deleted_here_is_back_only_in_a_list_of_the_newest_state() {
    let mut state = PoolState::default();
    state.put(stored(0, "u0", 5, 1));
    state.record_deletion("u0");
    assert!(!state.replace(vec![stored(0, "u0", 5, 1)], false));
    assert_eq!(state.stored.len(), 0);
    assert!(state.replace(vec![stored(0, "u0", 5, 1)], true), "a backup had it");
    assert_eq!(state.stored.len(), 1);
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
    state.put(Stored::read(tainted.to_string().as_bytes(), DraVersion::V1).unwrap());
    state.gone("u");
    assert_eq!(state.taints()["d0"].len(), 1);
    state.want(Some(checked(1, 2))).unwrap();
    assert_eq!(state.taints()["d0"].len(), 1);
    let healthy = Pool::default().device(PublishedDevice::new("d0"));
    state.want(Some(Checked::new("pool", healthy, PLACE, None).unwrap())).unwrap();
    assert!(state.taints().is_empty());
}
