//! What a pool remembers, and when it is due.

#![allow(clippy::unwrap_used)]

use drakkar_client::DraVersion;
use serde_json::json;
use tokio::time::advance;

use super::schedule::{MAX_REPAIR_DELAY, REPAIR_DELAY};
use super::*;
use crate::resources::{Pool, PublishedDevice};
use crate::validate::ValidationContext;

const CONTEXT: ValidationContext<'static> =
    ValidationContext { driver: "gpu.example.com", is_on_node: true, is_single_pool: false };

fn validated(devices: usize, attribute: i64) -> Arc<DesiredPool> {
    let device = |number| PublishedDevice::new(format!("d{number}")).attribute("a", attribute).taint("k", "", "None");
    let pool = Pool { devices_per_slice: Some(1), ..Pool::default().devices((0..devices).map(device)) };
    desired(pool)
}

fn desired(pool: Pool) -> Arc<DesiredPool> {
    Arc::new(DesiredPool::new("pool", pool, None, CONTEXT, None).unwrap())
}

fn stored(index: usize, uid: &str, version: u64, generation: i64) -> StoredSlice {
    let object = json!({
        "metadata": {"name": format!("{index:05x}-{uid}"), "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"driver": "gpu.example.com", "pool": {"name": "pool", "generation": generation, "resourceSliceCount": 2},
            "devices": [{"name": format!("d{index}"), "attributes": {"a": {"int": 1}}}]},
    });
    StoredSlice::read(object.to_string().as_bytes(), DraVersion::V1).unwrap()
}

/// Two slices whose taints the API server has dropped.
fn dropped() -> PoolState {
    let mut state = PoolState::default();
    state.set_desired(Some(validated(2, 1))).unwrap();
    for index in 0..2 {
        let slice = stored(index, &format!("u{index}"), 5, 1);
        let sent = state.desired().unwrap().slices[index].digest;
        state.record_dropped(sent, slice.digest);
        state.apply(slice);
    }
    state.begin_sync();
    state
}

fn invalid() -> PublishError {
    PublishError::Invalid { pool: "pool".into(), errors: Vec::new(), omitted: 0 }
}

/// G52: upstream never retries. One slice is enough to see whether the server keeps the fields now.
#[tokio::test(start_paused = true)]
async fn dropped_fields_are_sent_again_with_one_slice_and_a_long_backoff() {
    let mut state = dropped();
    assert_eq!(state.plan_writes(1).unwrap().len(), 0, "what was stored is accepted");
    let mut delays = Vec::new();
    for _ in 0..6 {
        let delay = state.next_sync().unwrap() - Instant::now();
        delays.push(delay);
        advance(delay).await;
        let writes = state.plan_writes(1).unwrap();
        assert_eq!((writes.update.len(), writes.len(), writes.generation), (1, 1, 1));
        let (index, number) = writes.update[0];
        let sent = state.desired().unwrap().slices[index].digest;
        let stored = state.stored[number].digest;
        state.record_dropped(sent, stored);
        assert_eq!(state.plan_writes(1).unwrap().len(), 0);
    }
    for (delay, about) in delays.iter().zip([300, 600, 1200, 2400, 3600, 3600].map(Duration::from_secs)) {
        assert!((about / 2..=about * 3 / 2).contains(delay), "{delays:?}");
    }

    advance(state.next_sync().unwrap() - Instant::now()).await;
    let (index, _) = state.plan_writes(1).unwrap().update[0];
    let sent = state.desired().unwrap().slices[index].digest;
    state.record_kept(sent);
    assert!(state.is_pending(), "the server keeps them now");
    assert_eq!(state.plan_writes(1).unwrap().len(), 2, "all are written");
}

/// Nothing may wake the task as long as it must not write.
#[tokio::test(start_paused = true)]
async fn a_pool_on_standby_is_not_due_before_the_standby_ends() {
    let mut state = dropped();
    advance(Duration::from_secs(900)).await;
    assert!(state.next_sync().unwrap() <= Instant::now(), "dropped fields are due");
    state.stand_by(Duration::from_secs(2));
    assert!(state.next_sync().unwrap() >= Instant::now() + Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_pool_that_was_not_published_before_is_left_alone() {
    let mut state = dropped();
    state.set_desired(None).unwrap();
    assert!(state.set_invalid(invalid()));
    advance(Duration::from_secs(900)).await;
    assert_eq!(state.next_sync(), None);
    state.schedule_repair();
    assert_eq!(state.next_sync(), None, "there is nothing to repair");
}

/// The last valid version stays published, so that its slices are repaired and its failures retried as before.
#[tokio::test(start_paused = true)]
async fn an_invalid_version_does_not_cancel_the_repair_of_the_last_valid_one() {
    let mut state = dropped();
    state.remove("u0");
    state.schedule_repair();
    let due = state.next_sync();
    assert!(state.set_invalid(invalid()) && !state.set_invalid(invalid()), "reported once");
    assert_eq!(state.next_sync(), due);
    assert_eq!(state.plan_writes(1).unwrap().create.len(), 1);
}

/// A transient error of the last valid version must not outlive its retry.
#[tokio::test(start_paused = true)]
async fn an_invalid_version_is_the_error_again_after_other_errors_have_passed() {
    let mut state = dropped();
    state.set_invalid(invalid());
    state.record_failure(PublishError::Contested { pool: "pool".into() }, None);
    assert!(matches!(state.error(), Some(PublishError::Contested { .. })));
    state.mark_synced();
    assert!(matches!(state.error(), Some(PublishError::Invalid { .. })));
    state.set_desired(Some(validated(2, 1))).unwrap();
    assert!(state.error().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_never_lost_fields_says_nothing_about_the_others() {
    let mut state = dropped();
    let other = validated(1, 7).slices[0].digest;
    state.record_kept(other);
    assert_eq!((state.is_pending(), state.plan_writes(1).unwrap().len()), (false, 0));
}

#[tokio::test(start_paused = true)]
async fn events_that_are_older_than_the_known_state_are_ignored() {
    let mut state = PoolState::default();
    assert!(state.apply(stored(0, "u0", 7, 1)));
    assert!(!state.apply(stored(0, "u0", 7, 1)), "the echo of a write");
    assert!(!state.apply(stored(0, "u0", 6, 1)));
    assert!(state.apply(stored(0, "u0", 10, 2)), "versions are compared as numbers");
    state.mark_deleted("u0");
    assert!(!state.apply(stored(0, "u0", 11, 2)), "this process deleted it");
    assert!(!state.remove("u0"));
    assert!(!state.remove("u1"));
}

/// After a restore from a backup the server has an older state than the known one, which is the true one.
#[tokio::test(start_paused = true)]
async fn a_list_replaces_the_known_state_whatever_the_versions_are() {
    let mut state = PoolState::default();
    state.apply(stored(0, "kept", 20, 2));
    state.apply(stored(1, "lost", 21, 2));
    assert!(state.replace(vec![stored(2, "other", 9, 1), stored(0, "kept", 8, 1)], false));
    let known: Vec<_> = state.stored.iter().map(|slice| (&*slice.uid, &*slice.resource_version)).collect();
    assert_eq!(known, [("kept", "8"), ("other", "9")]);
    assert!(!state.replace(vec![stored(0, "kept", 8, 1), stored(2, "other", 9, 1)], false), "no difference");
    assert!(state.apply(stored(0, "kept", 10, 1)), "later versions are applied");
}

/// A list from the server's cache may be older than a deletion; one of the newest state is not.
#[tokio::test(start_paused = true)]
async fn a_deleted_slice_is_back_only_in_a_list_of_the_newest_state() {
    let mut state = PoolState::default();
    state.apply(stored(0, "u0", 5, 1));
    state.mark_deleted("u0");
    assert!(!state.replace(vec![stored(0, "u0", 5, 1)], false));
    assert_eq!(state.stored.len(), 0);
    assert!(state.replace(vec![stored(0, "u0", 5, 1)], true), "it was in a backup");
    assert_eq!(state.stored.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn consecutive_deletions_are_repaired_together() {
    let mut state = PoolState::default();
    let began = Instant::now();
    for _ in 0..100 {
        state.schedule_repair();
        assert!(state.next_sync().unwrap() <= began + MAX_REPAIR_DELAY);
        advance(Duration::from_millis(10)).await;
    }
    let mut state = PoolState::default();
    state.schedule_repair();
    assert_eq!(state.next_sync(), Some(Instant::now() + REPAIR_DELAY));
    const RETRY: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_secs(30));
    assert!(state.record_failure(PublishError::Contested { pool: "pool".into() }, Some(RETRY)));
    let later = state.next_sync();
    assert!(later >= Some(Instant::now() + Duration::from_secs(15)));
    state.schedule_repair();
    assert_eq!(state.next_sync(), later, "a backoff is kept");
}

#[tokio::test(start_paused = true)]
async fn repairs_are_immediate_until_there_are_too_many() {
    let mut state = PoolState::default();
    let repair = |state: &mut PoolState| {
        state.schedule_repair();
        state.begin_sync() && state.is_contested()
    };
    for _ in 0..MAX_REPAIRS {
        assert!(!repair(&mut state));
    }
    assert!(repair(&mut state) && state.next_sync().unwrap() > Instant::now());
    assert!(!state.begin_sync(), "after the backoff it is not a repair any longer");
    advance(REPAIR_WINDOW * 2).await;
    assert!(!repair(&mut state));
}

#[tokio::test(start_paused = true)]
async fn taint_times_are_remembered_as_long_as_the_taint_is_desired() {
    let mut state = PoolState::default();
    state.set_desired(Some(validated(1, 1))).unwrap();
    let tainted = json!({
        "metadata": {"name": "00000-a", "uid": "u", "resourceVersion": "1"},
        "spec": {"driver": "d", "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1}, "devices": [
            {"name": "d0", "taints": [{"key": "k", "effect": "None", "timeAdded": "2026-01-02T03:04:05Z"}]}]},
    });
    state.apply(StoredSlice::read(tainted.to_string().as_bytes(), DraVersion::V1).unwrap());
    state.remove("u");
    assert_eq!(state.taints()["d0"].len(), 1);
    state.set_desired(Some(validated(1, 2))).unwrap();
    assert_eq!(state.taints()["d0"].len(), 1);
    let healthy = Pool::default().device(PublishedDevice::new("d0"));
    state.set_desired(Some(desired(healthy))).unwrap();
    assert!(state.taints().is_empty());
}
