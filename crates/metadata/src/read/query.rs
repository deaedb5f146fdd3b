//! Queries for the metadata of a request.

use std::fmt;
use std::str::FromStr;

use crate::name::{ClaimName, DriverName, NameError, PodClaimName, RequestName};
use crate::path::{CLAIMS_SUBDIR, TEMPLATES_SUBDIR};
use crate::types::Request;

/// The name of a claim in a file's path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimKey {
    /// The name of the claim object, as in the pod's `resourceClaimName`.
    Claim(ClaimName),
    /// The name of the pod's entry, for a claim that was generated from a template.
    PodClaim(PodClaimName),
}

impl ClaimKey {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Claim(name) => name.as_str(),
            Self::PodClaim(name) => name.as_str(),
        }
    }
}

/// Selects a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClaimSelector {
    /// The claim object of this name.
    Claim(ClaimName),
    /// The claim generated for the pod's entry of this name.
    PodClaim(PodClaimName),
    /// The claim of this name, by either kind of name.
    Either(ClaimName),
}

impl ClaimSelector {
    /// Returns the name as text, without its kind.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Claim(name) | Self::Either(name) => name.as_str(),
            Self::PodClaim(name) => name.as_str(),
        }
    }
}

/// Prints the name, with its kind if only that is selected: `my-claim`, `resourceclaims/my-claim`.
impl fmt::Display for ClaimSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(name) => write!(f, "{CLAIMS_SUBDIR}/{name}"),
            Self::PodClaim(name) => write!(f, "{TEMPLATES_SUBDIR}/{name}"),
            Self::Either(name) => write!(f, "{name}"),
        }
    }
}

/// Selects a request of a claim, and optionally a driver.
///
/// Its text form is `CLAIM/REQUEST` or `CLAIM/REQUEST/SUBREQUEST`, where `CLAIM` is the name of a claim or of the pod's
/// entry for it; `resourceclaims/CLAIM/REQUEST` and `resourceclaimtemplates/POD-CLAIM/REQUEST` select one of them. If
/// there are files in the KEP's layout only, the name of a claim takes precedence.
///
/// ```
/// use drakkar_metadata::Query;
///
/// let query: Query = "my-claim/gpu".parse()?;
/// assert_eq!(query.to_string(), "my-claim/gpu");
/// assert_ne!(query, Query::claim("my-claim", "gpu")?);
/// assert_eq!(Query::pod_claim("gpus", "gpu")?, "resourceclaimtemplates/gpus/gpu".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Query {
    pub(super) claim: ClaimSelector,
    pub(super) request: RequestName,
    pub(super) subrequest: Option<RequestName>,
    pub(super) driver: Option<DriverName>,
}

/// An invalid query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The text does not have the form of a query.
    #[error("{0:?} is not CLAIM/REQUEST, for example my-claim/gpu")]
    Form(String),
    /// A part is not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl Query {
    /// Selects a request of the claim object of this name.
    pub fn claim(claim: impl AsRef<str>, request: impl AsRef<str>) -> Result<Self, NameError> {
        Ok(Self::of(ClaimSelector::Claim(ClaimName::new(claim)?), RequestName::new(request)?))
    }

    /// Selects a request of the claim that was generated for the pod's entry of this name.
    pub fn pod_claim(pod_claim: impl AsRef<str>, request: impl AsRef<str>) -> Result<Self, NameError> {
        Ok(Self::of(ClaimSelector::PodClaim(PodClaimName::new(pod_claim)?), RequestName::new(request)?))
    }

    /// Selects a request of a claim.
    pub fn of(claim: ClaimSelector, request: RequestName) -> Self {
        Self { claim, request, subrequest: None, driver: None }
    }

    /// Selects only the files of this driver.
    #[must_use]
    pub fn with_driver(mut self, driver: DriverName) -> Self {
        self.driver = Some(driver);
        self
    }

    /// Selects only the devices of this subrequest.
    #[must_use]
    pub fn with_subrequest(mut self, subrequest: RequestName) -> Self {
        self.subrequest = Some(subrequest);
        self
    }

    /// Returns whether an entry of `requests` belongs to the selected request.
    pub(super) fn is_about(&self, entry: &Request) -> bool {
        self.request == entry.base_name()
    }

    /// Returns whether an entry of that request is the selected subrequest.
    pub(super) fn matches_subrequest(&self, entry: &Request) -> bool {
        let subrequest = entry.name.split_once('/').map(|(_, subrequest)| subrequest);
        self.subrequest.as_ref().is_none_or(|selected| subrequest == Some(selected.as_str()))
    }

    /// Returns the request part as text.
    pub(super) fn request_text(&self) -> String {
        match &self.subrequest {
            None => self.request.to_string(),
            Some(subrequest) => format!("{}/{subrequest}", self.request),
        }
    }
}

impl FromStr for Query {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (claim, rest) = match parts[..] {
            [CLAIMS_SUBDIR, claim, ref rest @ ..] if !rest.is_empty() => (ClaimSelector::Claim(claim.parse()?), rest),
            [TEMPLATES_SUBDIR, claim, ref rest @ ..] if !rest.is_empty() => {
                (ClaimSelector::PodClaim(claim.parse()?), rest)
            }
            [claim, ref rest @ ..] => (ClaimSelector::Either(claim.parse()?), rest),
            [] => return Err(QueryError::Form(text.to_owned())),
        };
        let (request, subrequest) = match rest {
            [request] => (request.parse()?, None),
            [request, subrequest] => (request.parse()?, Some(subrequest.parse()?)),
            _ => return Err(QueryError::Form(text.to_owned())),
        };
        Ok(Self { claim, request, subrequest, driver: None })
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.claim, self.request_text())?;
        match &self.driver {
            None => Ok(()),
            Some(driver) => write!(f, " from driver {driver}"),
        }
    }
}
