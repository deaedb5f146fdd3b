//! Selections of metadata: all of a container, a claim, or a request.

use std::fmt;
use std::str::FromStr;

use super::directories::Wanted;
use super::find::Discovery;
use super::query::{ClaimSelector, Query, QueryError};
use super::snapshot::Deadlines;
use super::{ReadError, Reader, narrow};
use crate::name::DriverName;
use crate::path::{CLAIMS_SUBDIR, KEP_DIR, KUBERNETES_DIR, TEMPLATES_SUBDIR};

/// Selects metadata files: all of the container, those of a claim, or those of a request.
///
/// Its text form is `CLAIM` or that of a [`Query`]; `resourceclaims/CLAIM` and `resourceclaimtemplates/POD-CLAIM` select
/// one kind of name.
///
/// ```
/// use drakkar_metadata::read::Selection;
/// use drakkar_metadata::{Query, Reader};
///
/// let request: Selection = "my-claim/gpu".parse()?;
/// assert_eq!(request, Selection::Request("my-claim/gpu".parse()?));
/// let claim: Selection = "my-claim".parse()?;
/// if let Ok(found) = Reader::new().select(&claim) {
///     println!("{} files", found.files.len());
/// }
/// # Ok::<(), drakkar_metadata::read::QueryError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Selection {
    /// Everything in the container.
    All,
    /// All requests of a claim.
    Claim {
        /// The claim.
        claim: ClaimSelector,
        /// The only driver whose files are selected, if any.
        driver: Option<DriverName>,
    },
    /// A request of a claim.
    Request(Query),
}

impl Selection {
    /// Selects only the files of this driver. Has no effect on [`Selection::All`].
    #[must_use]
    pub fn with_driver(self, driver: DriverName) -> Self {
        match self {
            Self::All => Self::All,
            Self::Claim { claim, .. } => Self::Claim { claim, driver: Some(driver) },
            Self::Request(query) => Self::Request(query.with_driver(driver)),
        }
    }

    /// Returns the names without the kind of the claim's name.
    pub(super) fn names(&self) -> String {
        match self {
            Self::All => String::new(),
            Self::Claim { claim, .. } => claim.name().to_owned(),
            Self::Request(query) => format!("{}/{}", query.claim.name(), query.request_text()),
        }
    }
}

impl FromStr for Selection {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        let parts: Vec<&str> = text.split('/').collect();
        let claim = match parts[..] {
            [claim] => ClaimSelector::Either(claim.parse()?),
            [CLAIMS_SUBDIR, claim] => ClaimSelector::Claim(claim.parse()?),
            [TEMPLATES_SUBDIR, claim] => ClaimSelector::PodClaim(claim.parse()?),
            _ => return text.parse().map(Self::Request),
        };
        Ok(Self::Claim { claim, driver: None })
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("this container"),
            Self::Claim { claim, driver: None } => write!(f, "{claim}"),
            Self::Claim { claim, driver: Some(driver) } => write!(f, "{claim} from driver {driver}"),
            Self::Request(query) => write!(f, "{query}"),
        }
    }
}

impl Reader {
    /// Finds the files of a selection, at least one, including those that are not written yet or broken.
    ///
    /// # Errors
    /// If there is no file, or if the name is that of two claims.
    pub fn select(&self, selection: &Selection) -> Result<Discovery, ReadError> {
        self.select_within(selection, Deadlines::default())
    }

    pub(super) fn select_within(&self, selection: &Selection, deadlines: Deadlines) -> Result<Discovery, ReadError> {
        match selection {
            Selection::All => {
                let found = self.discover_within(deadlines);
                if !found.files.is_empty() {
                    return Ok(found);
                }
                let looked_in = [KUBERNETES_DIR, KEP_DIR].map(|path| self.root.outside(path.as_ref())).to_vec();
                let not_found = ReadError::NotFound { selection: Box::new(Selection::All), looked_in };
                Err(if found.problems.is_empty() { not_found } else { ReadError::all(found.problems) })
            }
            Selection::Claim { claim, driver } => self.find(&Wanted::claim(claim, driver.as_ref()), deadlines),
            Selection::Request(query) => narrow(query, self.find(&Wanted::request(query), deadlines)?),
        }
    }
}
