//! Writing what differs: a few requests at a time, each with an outcome of its own.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, StreamExt as _};
use http::StatusCode;

use super::PublishError;
use super::api::{Api, Owner, SliceObject};
use super::content::Digest;
use super::diff::Writes;
use super::dropped::Dropped;
use super::name;
use super::observer::{Observer, SliceWrite};
use super::pool::PoolState;
use super::stored::{Stored, read_spec};
use super::wanted::Wanted;
use drakkar_client::ApiError;

/// How many requests are on their way at once.
const CONCURRENCY: usize = 4;

/// What all slices of a driver have in common.
pub(super) struct Writer<'a> {
    pub(super) api: &'a Api,
    pub(super) driver: &'a str,
    pub(super) node: Option<&'a str>,
    pub(super) owner: Option<&'a Owner>,
    pub(super) observer: &'a dyn Observer,
}

/// What became of one request.
#[derive(Debug)]
pub(super) enum Done {
    /// The API server has this now.
    Put {
        sent: Digest,
        stored: Box<Stored>,
        dropped: Option<Dropped>,
    },
    /// A slice was deleted here.
    Deleted {
        uid: String,
    },
    /// A slice was gone already.
    Gone {
        uid: String,
    },
    /// Somebody else was faster.
    Conflict,
    Failed {
        what: String,
        error: ApiError,
    },
}

impl Writer<'_> {
    /// Writes until all is done, something fails, or it is time to stop.
    pub(super) async fn write(
        &self,
        pool: &str,
        state: &PoolState,
        writes: &Writes,
        should_stop: &(dyn Fn() -> bool + Sync),
    ) -> Vec<Done> {
        let failed = AtomicBool::new(false);
        let mut done = Vec::with_capacity(writes.len());
        let is_over = || failed.load(Ordering::Relaxed) || should_stop();
        let note = |one: &Done| {
            if matches!(one, Done::Failed { .. } | Done::Conflict) {
                failed.store(true, Ordering::Relaxed);
            }
        };
        for step in [Step::DeleteFirst, Step::Put, Step::DeleteLast] {
            let numbers: Vec<Request> = match step {
                Step::DeleteFirst => writes.delete_first.iter().map(|stored| Request::Delete(*stored)).collect(),
                Step::DeleteLast => writes.delete_last.iter().map(|stored| Request::Delete(*stored)).collect(),
                Step::Put => {
                    let updates = writes.update.iter().map(|(wanted, stored)| Request::Put(*wanted, Some(*stored)));
                    updates.chain(writes.create.iter().map(|wanted| Request::Put(*wanted, None))).collect()
                }
            };
            let (is_over, note) = (&is_over, &note);
            let requests = numbers.into_iter().map(|request| async move {
                if is_over() {
                    return None;
                }
                let outcome = match request {
                    Request::Delete(stored) => self.delete(state.stored.get(stored)?).await,
                    Request::Put(index, stored) => {
                        let stored = stored.and_then(|stored| state.stored.get(stored));
                        self.put(pool, state, state.wanted.as_ref()?, index, stored, writes.generation).await
                    }
                };
                note(&outcome);
                Some(outcome)
            });
            // Made before they are run: a stream that made them would keep the closures across an await.
            let requests = stream::iter(requests.collect::<Vec<_>>()).buffer_unordered(CONCURRENCY);
            done.extend(requests.filter_map(futures::future::ready).collect::<Vec<_>>().await);
            if is_over() {
                break;
            }
        }
        done
    }

    async fn delete(&self, slice: &Stored) -> Done {
        let deleted = self.api.delete(slice).await;
        self.observer.slice_written(SliceWrite::Delete, deleted.is_ok());
        match deleted {
            Ok(()) => Done::Deleted { uid: slice.uid.clone() },
            Err(ApiError::Status { status: StatusCode::CONFLICT, .. }) => Done::Conflict,
            Err(error) => Done::Failed { what: format!("delete resourceslice {}", slice.name), error },
        }
    }

    async fn put(
        &self,
        pool: &str,
        state: &PoolState,
        wanted: &Wanted,
        index: usize,
        stored: Option<&Stored>,
        generation: i64,
    ) -> Done {
        let slice = &wanted.slices[index];
        let count = wanted.slices.len();
        let prefix =
            || name::prefix(index, name::width(count), self.driver, self.owner.map(|owner| owner.name.as_str()));
        let object = SliceObject {
            version: self.api.version(),
            target: stored.ok_or_else(prefix),
            owner: self.owner,
            driver: self.driver,
            pool,
            generation,
            count,
            node: self.node.filter(|_| wanted.names_node),
            head: &slice.head,
            items: wanted.items(index),
            taints: state.taints(),
        };
        let (kind, what, written) = match stored {
            Some(stored) => {
                let what = format!("update resourceslice {} of pool {pool}", stored.name);
                (SliceWrite::Update, what, self.api.update(&stored.name, &object).await)
            }
            None => {
                let what = format!("create resourceslice {index} of pool {pool}");
                (SliceWrite::Create, what, self.api.create(&object).await)
            }
        };
        self.observer.slice_written(kind, written.is_ok());
        match (written, stored) {
            (Ok((got, answer)), _) => {
                let dropped = (got.digest != slice.digest).then(|| self.dropped(&object, &answer)).flatten();
                Done::Put { sent: slice.digest, stored: Box::new(got), dropped }
            }
            (Err(ApiError::Status { status: StatusCode::NOT_FOUND, .. }), Some(stored)) => {
                Done::Gone { uid: stored.uid.clone() }
            }
            (Err(ApiError::Status { status: StatusCode::CONFLICT, .. }), _) => Done::Conflict,
            (Err(error), _) => Done::Failed { what, error },
        }
    }

    fn dropped(&self, object: &SliceObject<'_>, answer: &[u8]) -> Option<Dropped> {
        let compared = object.spec().and_then(|sent| Ok((sent, read_spec(answer, self.api.version())?)));
        match compared {
            Ok((sent, kept)) => Some(Dropped::between(sent, kept)),
            Err(error) => {
                tracing::warn!(%error, "cannot tell what the API server changed in a slice");
                None
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Step {
    DeleteFirst,
    Put,
    DeleteLast,
}

enum Request {
    Delete(usize),
    Put(usize, Option<usize>),
}

/// The rule that a driver's service account needs for slices.
const SLICES_RULE: &str = r#"- {apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list", "watch", "create", "update", "delete"]}"#;
/// The rule for the node's UID.
const NODES_RULE: &str = r#"- {apiGroups: [""], resources: ["nodes"], verbs: ["get"]}"#;

/// What a failure means to somebody who has to do something about it.
pub(super) fn explain(what: String, error: &ApiError) -> PublishError {
    match error {
        ApiError::Status { status: StatusCode::FORBIDDEN, message }
            if !message.contains("ValidatingAdmissionPolicy") =>
        {
            let rule = if what.starts_with("get node ") { NODES_RULE } else { SLICES_RULE };
            PublishError::Forbidden { what, message: message.clone(), rule }
        }
        ApiError::Status { status, message } if is_refusal(*status) => {
            let hint = if message.contains("ValidatingAdmissionPolicy") {
                "; the token of the driver's service account must be that of the driver's pod on this node"
            } else if message.contains("attributes[") && message.contains("one") {
                // A list loses its value where the gate is off, and an attribute must have one. It is worded differently
                // from version to version.
                "; attributes that are lists need the feature gate DRAListTypeAttributes of the API server"
            } else {
                ""
            };
            PublishError::Rejected { what, message: message.clone(), hint }
        }
        error => PublishError::Api { what, message: error.to_string() },
    }
}

/// Whether the same request will be refused again.
fn is_refusal(status: StatusCode) -> bool {
    [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::BAD_REQUEST, StatusCode::FORBIDDEN, StatusCode::PAYLOAD_TOO_LARGE]
        .contains(&status)
}
