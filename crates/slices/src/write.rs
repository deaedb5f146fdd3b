//! Writing the difference: a few requests at a time, each with an outcome of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use drakkar_client::ApiError;
use futures::stream::{self, StreamExt as _};
use http::StatusCode;

use super::PublishError;
use super::api::{Api, Owner, SliceObject};
use super::content::Digest;
use super::diff::Writes;
use super::dropped::DroppedFields;
use super::name;
use super::observer::{Observer, SliceWrite};
use super::pool::PoolState;
use super::stored::{StoredSlice, read_spec};

/// The number of concurrent requests.
const CONCURRENCY: usize = 4;

/// Writes the slices of a driver.
pub(super) struct Writer<'a> {
    pub(super) api: &'a Api,
    pub(super) driver: &'a str,
    pub(super) node: Option<&'a str>,
    pub(super) owner: Option<&'a Owner>,
    pub(super) observer: &'a dyn Observer,
}

/// The outcome of one request.
#[derive(Debug)]
pub(super) enum WriteOutcome {
    /// The API server stored a slice, perhaps without some of its fields.
    Stored {
        sent: Digest,
        stored: Box<StoredSlice>,
        dropped: Option<DroppedFields>,
    },
    /// A slice was deleted.
    Deleted {
        uid: String,
    },
    /// A slice that should be updated does not exist any longer.
    NotFound {
        uid: String,
    },
    /// Another client has changed the slice meanwhile.
    Conflict,
    Failed {
        what: String,
        error: ApiError,
    },
}

/// A request, with the indices of the stored and the desired slice.
enum Request {
    Delete { stored: usize },
    Update { desired: usize, stored: usize },
    Create { desired: usize },
}

impl Writer<'_> {
    /// Sends requests until all are done, one fails, or `should_stop` returns true.
    pub(super) async fn write(
        &self,
        pool: &str,
        state: &PoolState,
        writes: &Writes,
        should_stop: &(dyn Fn() -> bool + Sync),
    ) -> Vec<WriteOutcome> {
        let has_failed = AtomicBool::new(false);
        let is_over = || has_failed.load(Ordering::Relaxed) || should_stop();
        let is_over = &is_over;
        let has_failed = &has_failed;
        let delete = |stored: &usize| Request::Delete { stored: *stored };
        let updates =
            writes.update.iter().map(|(desired, stored)| Request::Update { desired: *desired, stored: *stored });
        let creates = writes.create.iter().map(|desired| Request::Create { desired: *desired });
        // The phases are done one after the other.
        let phases: [Vec<Request>; 3] = [
            writes.delete_first.iter().map(delete).collect(),
            updates.chain(creates).collect(),
            writes.delete_last.iter().map(delete).collect(),
        ];
        let mut outcomes = Vec::with_capacity(writes.len());
        for phase in phases {
            let requests = phase.into_iter().map(|request| async move {
                if is_over() {
                    return None;
                }
                let outcome = self.send(pool, state, writes.generation, request).await?;
                if matches!(outcome, WriteOutcome::Failed { .. } | WriteOutcome::Conflict) {
                    has_failed.store(true, Ordering::Relaxed);
                }
                Some(outcome)
            });
            // Collected before they run: a lazy stream would hold the closures across an await, which are not `Send`.
            let requests = stream::iter(requests.collect::<Vec<_>>()).buffer_unordered(CONCURRENCY);
            outcomes.extend(requests.filter_map(futures::future::ready).collect::<Vec<_>>().await);
            if is_over() {
                break;
            }
        }
        outcomes
    }

    async fn send(&self, pool: &str, state: &PoolState, generation: i64, request: Request) -> Option<WriteOutcome> {
        Some(match request {
            Request::Delete { stored } => self.delete(state.stored.get(stored)?).await,
            Request::Update { desired, stored } => {
                let stored = state.stored.get(stored)?;
                let object = self.object(pool, state, desired, Some(stored), generation)?;
                self.update(pool, stored, &object, state.desired()?.slices.get(desired)?.digest).await
            }
            Request::Create { desired } => {
                let object = self.object(pool, state, desired, None, generation)?;
                self.create(pool, desired, &object, state.desired()?.slices.get(desired)?.digest).await
            }
        })
    }

    async fn delete(&self, slice: &StoredSlice) -> WriteOutcome {
        let deleted = self.api.delete(slice).await;
        self.observer.slice_written(SliceWrite::Delete, deleted.is_ok());
        match deleted {
            Ok(()) => WriteOutcome::Deleted { uid: slice.uid.clone() },
            Err(error) => failed(format!("delete resourceslice {}", slice.name), error),
        }
    }

    async fn update(&self, pool: &str, stored: &StoredSlice, object: &SliceObject<'_>, sent: Digest) -> WriteOutcome {
        let written = self.api.update(&stored.name, object).await;
        self.observer.slice_written(SliceWrite::Update, written.is_ok());
        match written {
            Ok((got, answer)) => self.stored(object, sent, got, &answer),
            Err(ApiError::Status { status: StatusCode::NOT_FOUND, .. }) => {
                WriteOutcome::NotFound { uid: stored.uid.clone() }
            }
            Err(error) => failed(format!("update resourceslice {} of pool {pool}", stored.name), error),
        }
    }

    async fn create(&self, pool: &str, index: usize, object: &SliceObject<'_>, sent: Digest) -> WriteOutcome {
        let written = self.api.create(object).await;
        self.observer.slice_written(SliceWrite::Create, written.is_ok());
        match written {
            Ok((got, answer)) => self.stored(object, sent, got, &answer),
            Err(error) => failed(format!("create resourceslice {index} of pool {pool}"), error),
        }
    }

    fn object<'a>(
        &'a self,
        pool: &'a str,
        state: &'a PoolState,
        index: usize,
        stored: Option<&'a StoredSlice>,
        generation: i64,
    ) -> Option<SliceObject<'a>> {
        let desired = state.desired()?;
        let slice = desired.slices.get(index)?;
        let count = desired.slices.len();
        let owner = self.owner.map(|owner| owner.name.as_str());
        Some(SliceObject {
            version: self.api.version(),
            target: stored.ok_or_else(|| name::prefix(index, name::width(count), self.driver, owner)),
            owner: self.owner,
            driver: self.driver,
            pool,
            generation,
            count,
            node: self.node.filter(|_| desired.names_node()),
            header: &slice.header,
            devices: &slice.devices,
            taints: state.taints(),
        })
    }

    fn stored(&self, object: &SliceObject<'_>, sent: Digest, got: StoredSlice, answer: &[u8]) -> WriteOutcome {
        let dropped = (got.digest != sent).then(|| self.dropped_fields(object, answer)).flatten();
        WriteOutcome::Stored { sent, stored: Box::new(got), dropped }
    }

    fn dropped_fields(&self, object: &SliceObject<'_>, answer: &[u8]) -> Option<DroppedFields> {
        let compared = object.spec().and_then(|sent| Ok((sent, read_spec(answer, self.api.version())?)));
        match compared {
            Ok((sent, kept)) => Some(DroppedFields::between(sent, kept)),
            Err(error) => {
                tracing::warn!(%error, "comparing a slice with the API server's answer failed");
                None
            }
        }
    }
}

fn failed(what: String, error: ApiError) -> WriteOutcome {
    match error {
        ApiError::Status { status: StatusCode::CONFLICT, .. } => WriteOutcome::Conflict,
        error => WriteOutcome::Failed { what, error },
    }
}

/// A permission that the service account needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Slices,
    /// To look up the UID of the node.
    Node,
}

impl Permission {
    /// Returns the rule of a cluster role that grants it.
    fn rule(self) -> &'static str {
        match self {
            Self::Slices => {
                r#"- {apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list", "watch", "create", "update", "delete"]}"#
            }
            Self::Node => r#"- {apiGroups: [""], resources: ["nodes"], verbs: ["get"]}"#,
        }
    }
}

/// Turns an error of a request into one that names its remedy. `permission` is what the request needs.
pub(super) fn explain(what: String, permission: Permission, error: ApiError) -> PublishError {
    match error {
        ApiError::Status { status: StatusCode::FORBIDDEN, message } if !is_denied_by_policy(&message) => {
            PublishError::Forbidden { what, message, rule: permission.rule() }
        }
        ApiError::Status { status, message } if is_refusal(status) => {
            let hint = if is_denied_by_policy(&message) {
                "; the token of the driver's service account must be that of the driver's pod on this node"
            } else if is_list_attribute_refused(&message) {
                "; attributes that are lists need the feature gate DRAListTypeAttributes of the API server"
            } else {
                ""
            };
            PublishError::Rejected { what, message, hint }
        }
        error => PublishError::Api { what, source: Arc::new(error) },
    }
}

/// Returns whether an admission policy refused the request, not RBAC. The answer has no typed field that tells the two apart:
/// only the message names the policy.
fn is_denied_by_policy(message: &str) -> bool {
    message.contains("ValidatingAdmissionPolicy")
}

/// Returns whether the API server refuses attributes that are lists. It drops the list while the gate is off, and then refuses
/// the attribute because it has no value: the cause is that of any attribute without a value, and only the message names the
/// field. Its wording differs from release to release; the hint is all that depends on it.
fn is_list_attribute_refused(message: &str) -> bool {
    message.contains("attributes[") && message.contains("one")
}

/// Returns whether the API server would refuse the same request again.
fn is_refusal(status: StatusCode) -> bool {
    [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::BAD_REQUEST, StatusCode::FORBIDDEN, StatusCode::PAYLOAD_TOO_LARGE]
        .contains(&status)
}
