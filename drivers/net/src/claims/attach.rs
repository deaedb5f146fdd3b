//! Interfaces to pods and back.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use super::{Claims, ClaimsError};
use crate::attach::AttachError;
use crate::attacher::Sandbox;
use crate::journal::{InterfaceRecord, Phase, Place, Record};
use crate::restore::Outcome;
use drakkar_metadata::name::ClaimUid;

/// The time to wait for another call when an interface is brought back.
const PATIENCE: Duration = Duration::from_secs(30);

/// A claim whose interfaces are in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttachedClaim {
    pub(crate) record: Record,
    /// Whether something was done: otherwise everything was in place, and the metadata file has it.
    pub(crate) is_new: bool,
}

/// How long the caller of an attach waits.
pub(crate) struct Patience<'a> {
    /// When it is over. `None`: never.
    pub(crate) deadline: Option<Instant>,
    /// Returns whether it is over already, for whatever reason.
    pub(crate) is_over: &'a (dyn Fn() -> bool + Sync),
}

impl fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Claims {
    /// Attaches all interfaces of all claims of a pod to its sandbox. If one fails, all are brought back.
    ///
    /// An interface that is in another sandbox of the pod is brought back first: a pod has one sandbox, and the earlier one is gone.
    pub(crate) fn attach(&self, sandbox: &Sandbox, patience: &Patience<'_>) -> Result<Vec<AttachedClaim>, ClaimsError> {
        let claims = self.claims(|record| record.is_for(&sandbox.pod_uid) && record.interfaces().next().is_some());
        let until = patience.deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
        let turn = self.turns.wait(claims.clone(), until);
        let _turn = turn.ok_or_else(|| ClaimsError::Busy { what: format!("pod {}", sandbox.pod) })?;
        let mut attached = Vec::new();
        for uid in &claims {
            // Another call may have unprepared it, or the pod may have lost it, before the turn came.
            let Some(record) = self.record(uid).filter(|record| record.is_for(&sandbox.pod_uid)) else { continue };
            match self.attach_claim(record, sandbox, patience) {
                Ok(claim) => attached.push(claim),
                Err(source) => {
                    let rollback = claims.iter().map(|uid| self.detach_claim(uid, &sandbox.id)).filter_map(Result::err);
                    return Err(match rollback.reduce(|first, _| first) {
                        Some(rollback) => {
                            ClaimsError::Rollback { source: Box::new(source), rollback: Box::new(rollback) }
                        }
                        None => source,
                    });
                }
            }
        }
        Ok(attached)
    }

    /// Brings back all interfaces that are in a sandbox. Returns the claims, as they are then.
    pub(crate) fn detach(&self, sandbox_id: &str) -> Result<Vec<Record>, ClaimsError> {
        let claims = self.claims(|record| record.is_in(sandbox_id));
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let turn = self.turns.wait(claims.clone(), Instant::now() + PATIENCE);
        let _turn = turn.ok_or_else(|| ClaimsError::Busy { what: format!("sandbox {sandbox_id}") })?;
        let outcomes: Vec<_> = claims.iter().map(|uid| self.detach_claim(uid, sandbox_id)).collect();
        // All of them are tried, whatever becomes of the first.
        outcomes.into_iter().filter_map(Result::transpose).collect()
    }

    /// Notes that the metadata files have the interfaces of a claim in a sandbox. Returns whether they still are there.
    pub(crate) fn mark_published(&self, uid: &ClaimUid, sandbox_id: &str) -> Result<bool, ClaimsError> {
        let _turn = self.turn_of(uid, &format!("claim {uid}"))?;
        let Some((record, is_changed)) = self.with_published(uid, sandbox_id, true) else { return Ok(false) };
        if is_changed {
            self.write(&record)?;
        }
        Ok(true)
    }

    /// Notes that the metadata files are about to lose the interfaces of a claim in a sandbox. Returns whether they have them.
    ///
    /// A full disk must not keep the gate open: it is noted in memory then, and written by [`Claims::write_unwritten`].
    pub(crate) fn mark_held_back(&self, uid: &ClaimUid, sandbox_id: &str) -> Result<bool, ClaimsError> {
        let _turn = self.turn_of(uid, &format!("claim {uid}"))?;
        let Some((record, true)) = self.with_published(uid, sandbox_id, false) else { return Ok(false) };
        if let Err(error) = self.write(&record) {
            tracing::warn!(%error, "journal not written, metadata is held back nevertheless");
            self.remember_unwritten(&record);
        }
        Ok(true)
    }

    /// Returns the record of a claim with whether the metadata files have its interfaces in a sandbox, and whether that is a change.
    /// `None` if they are not there.
    fn with_published(&self, uid: &ClaimUid, sandbox_id: &str, value: bool) -> Option<(Record, bool)> {
        let mut record = self.record(uid).filter(|record| record.is_in(sandbox_id))?;
        let interfaces = record.devices.iter_mut().filter_map(|device| device.interface_mut());
        let mut is_changed = false;
        for interface in interfaces {
            if let Phase::Attached { is_published, .. } = &mut interface.phase {
                is_changed |= *is_published != value;
                *is_published = value;
            }
        }
        Some((record, is_changed))
    }

    /// Returns the sandboxes with interfaces that are neither on the host nor in a pod, except those that a call works on.
    pub(crate) fn left_over_sandboxes(&self) -> BTreeSet<String> {
        let mut sandboxes = BTreeSet::new();
        for uid in self.claims(|record| self.is_unfinished(record)) {
            let Some(_turn) = self.turns.wait([uid.clone()].into(), Instant::now()) else { continue };
            let Some(record) = self.record(&uid) else { continue };
            let left = record.interfaces().filter(|interface| self.is_left_over(&interface.phase));
            sandboxes.extend(left.filter_map(|interface| interface.phase.sandbox()).map(|sandbox| sandbox.id.clone()));
        }
        sandboxes
    }

    fn is_unfinished(&self, record: &Record) -> bool {
        record.interfaces().any(|interface| self.is_left_over(&interface.phase))
    }

    /// Returns whether an interface is neither on the host nor in a pod.
    fn is_left_over(&self, phase: &Phase) -> bool {
        match phase {
            Phase::Prepared => false,
            Phase::Attaching(_) | Phase::Restoring(_) => true,
            Phase::Attached { place, .. } => !self.attacher.is_there(&place.attachment.namespace),
        }
    }

    /// Brings back what is neither on the host nor in a pod. The caller has the turn.
    pub(super) fn restore_unfinished(&self, record: &mut Record) -> Result<(), ClaimsError> {
        let devices = 0..record.devices.len();
        let is_left_over = |record: &Record, index: usize| {
            let interface = record.devices.get(index).and_then(|device| device.interface());
            interface.is_some_and(|interface| self.is_left_over(&interface.phase))
        };
        let left: Vec<usize> = devices.filter(|index| is_left_over(record, *index)).collect();
        left.into_iter().map(|index| self.restore(record, index)).fold(Ok(()), Result::and)
    }

    fn attach_claim(
        &self,
        mut record: Record,
        sandbox: &Sandbox,
        patience: &Patience<'_>,
    ) -> Result<AttachedClaim, ClaimsError> {
        self.restore_all(&mut record, |other| other.id != sandbox.id)?;
        let mut is_new = false;
        for index in 0..record.devices.len() {
            is_new |= self.attach_device(&mut record, index, sandbox, patience)?;
        }
        Ok(AttachedClaim { record, is_new })
    }

    /// Attaches an interface. Returns whether the metadata file does not have it yet.
    fn attach_device(
        &self,
        record: &mut Record,
        index: usize,
        sandbox: &Sandbox,
        patience: &Patience<'_>,
    ) -> Result<bool, ClaimsError> {
        let Some(InterfaceRecord { plan, phase, .. }) = interface(record, index) else { return Ok(false) };
        if let Phase::Attached { is_published, .. } = phase {
            return Ok(!*is_published);
        }
        if (patience.is_over)() {
            return Err(ClaimsError::Abandoned { pod: sandbox.pod.clone() });
        }
        let inspected = self.attacher.inspect(plan, &sandbox.namespace, patience.deadline);
        let attachment = inspected.map_err(|cause| attach_error(record, index, sandbox, cause.into()))?;
        let mut place = Place { sandbox: sandbox.clone(), attachment };
        self.enter(record, index, Phase::Attaching(place.clone()))?;
        // Before anything is in the pod: what cannot be taken back must not end with the sandbox that the runtime discards.
        self.attacher.keep(&place.attachment);
        let attached = self.attacher.attach(&place.attachment, patience.deadline);
        let attached = attached.map_err(|error| attach_error(record, index, sandbox, error))?;
        place.attachment.index = attached.index;
        self.enter(record, index, Phase::Attached { place, interface: attached, is_published: false })?;
        Ok(true)
    }

    /// Writes the next phase of an interface to the journal.
    fn enter(&self, record: &mut Record, index: usize, next: Phase) -> Result<(), ClaimsError> {
        if let Some(interface) = interface(record, index) {
            interface.phase = next;
        }
        self.write(record)
    }

    /// Brings back the interfaces of a claim that are in a sandbox. The caller has the turn. `None`: none of them is.
    fn detach_claim(&self, uid: &ClaimUid, sandbox_id: &str) -> Result<Option<Record>, ClaimsError> {
        let Some(mut record) = self.record(uid).filter(|record| record.is_in(sandbox_id)) else { return Ok(None) };
        self.restore_all(&mut record, |sandbox| sandbox.id == sandbox_id)?;
        Ok(Some(record))
    }

    /// Brings back the interfaces that are in certain sandboxes. All of them are tried; the first error is returned.
    pub(super) fn restore_all(
        &self,
        record: &mut Record,
        is_meant: impl Fn(&Sandbox) -> bool,
    ) -> Result<(), ClaimsError> {
        let is_there = |record: &Record, index: usize| {
            let interface = record.devices.get(index).and_then(|device| device.interface());
            interface.and_then(|interface| interface.phase.sandbox()).is_some_and(&is_meant)
        };
        let meant: Vec<usize> = (0..record.devices.len()).filter(|index| is_there(record, *index)).collect();
        meant.into_iter().map(|index| self.restore(record, index)).fold(Ok(()), Result::and)
    }

    /// Brings an interface back.
    fn restore(&self, record: &mut Record, index: usize) -> Result<(), ClaimsError> {
        let Some(place) = interface(record, index).and_then(|interface| interface.phase.place().cloned()) else {
            return Ok(());
        };
        // A full disk must not keep the interface in the pod. The record of before leads to the same after a crash: the
        // interface is brought back at the latest when the claim is unprepared.
        if let Err(error) = self.enter(record, index, Phase::Restoring(place.clone())) {
            tracing::warn!(%error, "journal not written, interface is brought back nevertheless");
            // It is no longer in the pod, for those who close gates and for those who try again.
            self.remember_unwritten(record);
        }
        let problem = match self.attacher.restore(&place.attachment) {
            Ok(restored) if restored.is_complete() => {
                for difference in &restored.differences {
                    tracing::warn!(claim = %record.claim, difference, "interface is not as it was");
                }
                if let Outcome::Lost(reason) = &restored.outcome {
                    tracing::warn!(claim = %record.claim, reason, "interface lost");
                    if let Some(interface) = interface(record, index) {
                        interface.is_lost = true;
                    }
                }
                None
            }
            Ok(restored) => Some(restored.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = problem {
            let device = record.devices.get(index);
            return Err(ClaimsError::Restore {
                claim: Box::new(record.claim.clone()),
                request: device.map(|device| device.request.clone()).unwrap_or_default(),
                device: device.map(|device| device.device.clone()).unwrap_or_default(),
                pod: place.sandbox.pod,
                problem,
            });
        }
        self.enter(record, index, Phase::Prepared)
    }
}

fn interface(record: &mut Record, index: usize) -> Option<&mut InterfaceRecord> {
    record.devices.get_mut(index).and_then(|device| device.interface_mut())
}

fn attach_error(record: &Record, index: usize, sandbox: &Sandbox, source: AttachError) -> ClaimsError {
    let device = record.devices.get(index);
    ClaimsError::Attach {
        claim: Box::new(record.claim.clone()),
        request: device.map(|device| device.request.clone()).unwrap_or_default(),
        device: device.map(|device| device.device.clone()).unwrap_or_default(),
        pod: sandbox.pod.clone(),
        source: Box::new(source),
    }
}
