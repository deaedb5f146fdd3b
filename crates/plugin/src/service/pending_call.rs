//! A call of the kubelet that may be dropped before it has a response.

use std::collections::BTreeMap;

use drakkar_client::ClaimRef;

use super::short_name;
use crate::metrics::Operation;
use crate::recent_errors::RecentErrors;

/// A call without a response yet. Logs its claims if it is dropped before [`PendingCall::complete`].
pub(super) struct PendingCall<'a> {
    operation: Operation,
    claims: &'a BTreeMap<String, ClaimRef>,
    recent: &'a RecentErrors,
    is_complete: bool,
}

impl<'a> PendingCall<'a> {
    pub(super) fn new(operation: Operation, claims: &'a BTreeMap<String, ClaimRef>, recent: &'a RecentErrors) -> Self {
        Self { operation, claims, recent, is_complete: false }
    }

    pub(super) fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        for claim in self.claims.values() {
            let operation = self.operation.as_str();
            // Dropped because the kubelet's deadline has passed, or because the driver stops.
            tracing::warn!(operation, %claim, "claim operation cancelled");
            let cause = "cancelled: the kubelet's deadline has passed, or the driver stops";
            self.recent.add(operation, Some(short_name(claim)), &cause);
        }
    }
}
