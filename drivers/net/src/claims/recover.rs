//! What a driver does at its start with what an earlier process has left.
//!
//! | record | what happens |
//! |---|---|
//! | of an earlier boot | it is removed: the kernel has forgotten everything, and the kubelet prepares again |
//! | prepared | kept |
//! | attached, the namespace is there | kept; what the metadata file does not have yet is written when the runtime is synchronized |
//! | attached, the namespace is gone | brought back |
//! | interrupted attach | taken back; attached again when the runtime is synchronized and the pod is still there |
//! | interrupted restore | goes on |
//! | torn, foreign, a link | reported and left alone; a new prepare of that claim replaces it, an unprepare removes it |

use drakkar_driver_kit::journal::JournalProblem;
use drakkar_plugin::ClaimRef;

use super::{Claims, ClaimsError};

/// What was found at the start, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// The claims that are kept.
    pub(crate) kept: Vec<ClaimRef>,
    /// The claims of an earlier boot, of which nothing is left.
    pub(crate) earlier_boot: Vec<ClaimRef>,
    /// The claims of which interfaces were brought back. They are kept, too.
    pub(crate) restored: Vec<ClaimRef>,
    /// Files that are no records.
    pub(crate) problems: Vec<JournalProblem>,
    /// What could not be done. It is tried again.
    pub(crate) errors: Vec<ClaimsError>,
}

impl Claims {
    /// Brings everything that an earlier process has left to an end. To be called once, before anything else.
    pub(crate) fn recover(&self) -> Result<Recovery, ClaimsError> {
        let read = self.journal.read_all();
        let (records, problems) =
            read.map_err(|source| ClaimsError::Open { path: self.journal.directory().to_owned(), source })?;
        let mut recovery = Recovery { problems, ..Recovery::default() };
        for mut record in records {
            if record.boot != self.boot {
                match self.journal.remove(&record.claim.uid) {
                    Ok(()) => recovery.earlier_boot.push(record.claim),
                    Err(source) => {
                        let path = self.journal.path(&record.claim.uid);
                        recovery.errors.push(ClaimsError::Open { path, source });
                    }
                }
                continue;
            }
            self.remember(&record);
            let attached = record.interfaces().filter_map(|interface| interface.phase.place());
            attached.for_each(|place| self.attacher.keep(&place.attachment));
            let before = record.clone();
            match self.restore_unfinished(&mut record) {
                Ok(()) if record != before => recovery.restored.push(record.claim),
                Ok(()) => recovery.kept.push(record.claim),
                Err(error) => recovery.errors.push(error),
            }
        }
        Ok(recovery)
    }
}
