//! The state that all connections of a server share.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use drakkar_client::DraVersion;

use super::faults::Faults;
use super::identity::Tokens;
use super::kubelet::Kubelets;
use super::rules::{Gates, Policy};
use super::store::Store;

/// The maximum length of the request log.
const MAX_LOG_LENGTH: usize = 100_000;

/// An entry of the request log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// HTTP method.
    pub method: String,
    /// RBAC verb, for example `list`; empty for non-resource paths.
    pub verb: &'static str,
    /// Path of the URL.
    pub path: String,
    /// Query of the URL, not decoded.
    pub query: String,
    /// Name of the user; empty if the request is not authenticated.
    pub user: String,
    /// Length of the body; 0 if the headers do not state it.
    pub bytes: u64,
    /// HTTP status of the response; 0 if a fault closed the connection instead.
    pub status: u16,
    /// Time of arrival.
    pub time: Instant,
}

impl RequestRecord {
    /// Whether the verb is one that changes objects.
    pub fn is_write(&self) -> bool {
        matches!(self.verb, "create" | "update" | "patch" | "delete" | "deletecollection")
    }
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Store,
    pub(crate) tokens: Tokens,
    pub(crate) faults: Faults,
    pub(crate) kubelets: Kubelets,
    pub(crate) gates: Gates,
    pub(crate) versions: Vec<DraVersion>,
    pub(crate) bookmark_interval: Duration,
    pub(crate) address: String,
    policy: RwLock<Arc<Policy>>,
    log: Mutex<VecDeque<RequestRecord>>,
}

impl Core {
    pub(crate) fn new(
        store: Store,
        gates: Gates,
        policy: Policy,
        versions: Vec<DraVersion>,
        bookmark_interval: Duration,
        address: String,
    ) -> Self {
        Self {
            store,
            tokens: Tokens::default(),
            faults: Faults::default(),
            kubelets: Kubelets::default(),
            gates,
            versions,
            bookmark_interval,
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

    pub(crate) fn record(&self, request: RequestRecord) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == MAX_LOG_LENGTH {
            log.pop_front();
        }
        log.push_back(request);
    }

    pub(crate) fn requests(&self) -> Vec<RequestRecord> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub(crate) fn clear_requests(&self) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
