//! What all connections of a server share.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::faults::Faults;
use super::identity::Tokens;
use super::rules::{Gates, Policy};
use super::store::Store;
use drakkar_client::DraVersion;

/// How many requests are remembered.
const LOG_LENGTH: usize = 100_000;

/// One request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLine {
    /// HTTP method.
    pub method: String,
    /// Verb as RBAC names it, for example `list`; empty for paths that are not of objects.
    pub verb: &'static str,
    /// Path of the URL.
    pub path: String,
    /// Query of the URL, as it was sent.
    pub query: String,
    /// Name of the user; empty if it did not prove who it is.
    pub user: String,
    /// Bytes of its body; 0 where its head does not say how many.
    pub bytes: u64,
    /// HTTP status of the answer; 0 where the connection was cut instead.
    pub status: u16,
    /// When it arrived.
    pub time: Instant,
}

impl RequestLine {
    /// Whether the request was one that changes objects.
    pub fn is_write(&self) -> bool {
        matches!(self.verb, "create" | "update" | "patch" | "delete" | "deletecollection")
    }
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Store,
    pub(crate) tokens: Tokens,
    pub(crate) faults: Faults,
    pub(crate) gates: Gates,
    pub(crate) versions: Vec<DraVersion>,
    pub(crate) bookmarks: Duration,
    pub(crate) address: String,
    policy: RwLock<Arc<Policy>>,
    log: Mutex<VecDeque<RequestLine>>,
}

impl Core {
    pub(crate) fn new(
        store: Store,
        gates: Gates,
        policy: Policy,
        versions: Vec<DraVersion>,
        bookmarks: Duration,
        address: String,
    ) -> Self {
        Self {
            store,
            tokens: Tokens::default(),
            faults: Faults::default(),
            gates,
            versions,
            bookmarks,
            address,
            policy: RwLock::new(Arc::new(policy)),
            log: Mutex::default(),
        }
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    pub(crate) fn record(&self, line: RequestLine) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == LOG_LENGTH {
            log.pop_front();
        }
        log.push_back(line);
    }

    pub(crate) fn requests(&self) -> Vec<RequestLine> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub(crate) fn forget_requests(&self) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
