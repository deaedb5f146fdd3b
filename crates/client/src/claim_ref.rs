//! References to resource claims.

use std::fmt;

use drakkar_metadata::name::{ClaimName, ClaimUid, Namespace};

/// A reference to one resource claim: namespace, name, and the UID that distinguishes it from earlier and later claims of the
/// same name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimRef {
    /// The claim's namespace.
    pub namespace: Namespace,
    /// The claim's name. Another claim can have it once this one is deleted.
    pub name: ClaimName,
    /// The claim's UID. No other claim ever has it.
    pub uid: ClaimUid,
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} (uid {})", self.namespace, self.name, self.uid)
    }
}
