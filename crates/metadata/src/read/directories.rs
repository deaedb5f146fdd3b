//! The directories of a claim's files, or of one request's, in the current layouts.

use std::path::{Path, PathBuf};

use super::query::{ClaimKey, ClaimSelector, Query};
use super::selection::Selection;
use crate::name::{ClaimName, DriverName, PodClaimName};
use crate::path::{CLAIMS_SUBDIR, KEP_DIR, KUBERNETES_DIR, TEMPLATES_SUBDIR};

/// The files that a search is for: those of a claim, or of one of its requests.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) claim: &'a ClaimSelector,
    driver: Option<&'a DriverName>,
    /// The request; `None` for all requests of the claim.
    pub(super) query: Option<&'a Query>,
}

impl<'a> Wanted<'a> {
    pub(super) fn request(query: &'a Query) -> Self {
        Self { claim: &query.claim, driver: query.driver.as_ref(), query: Some(query) }
    }

    pub(super) fn claim(claim: &'a ClaimSelector, driver: Option<&'a DriverName>) -> Self {
        Self { claim, driver, query: None }
    }

    pub(super) fn driver(&self) -> Option<&'a str> {
        self.driver.map(DriverName::as_str)
    }

    /// Returns what was selected, for errors.
    pub(super) fn selection(&self) -> Selection {
        match self.query {
            Some(query) => Selection::Request(query.clone()),
            None => Selection::Claim { claim: self.claim.clone(), driver: self.driver.cloned() },
        }
    }

    /// Returns the directory of the request, or of the claim if all its requests are wanted.
    pub(super) fn directory(&self, claim: &[&str]) -> PathBuf {
        claim.iter().copied().chain(self.query.map(|query| query.request.as_str())).collect()
    }
}

/// The directories of the wanted files.
pub(super) struct Directories {
    pub(super) template: Option<(ClaimKey, PathBuf)>,
    pub(super) claim: Vec<(ClaimKey, PathBuf)>,
}

impl Directories {
    pub(super) fn of(wanted: &Wanted<'_>) -> Self {
        let template = |name: PodClaimName| {
            let path = wanted.directory(&[KUBERNETES_DIR, TEMPLATES_SUBDIR, name.as_str()]);
            (ClaimKey::PodClaim(name), path)
        };
        let claim = |name: &ClaimName| {
            let kubernetes = wanted.directory(&[KUBERNETES_DIR, CLAIMS_SUBDIR, name.as_str()]);
            let kep = wanted.directory(&[KEP_DIR, name.as_str()]);
            let key = ClaimKey::Claim(name.clone());
            vec![(key.clone(), kubernetes), (key, kep)]
        };
        match wanted.claim {
            ClaimSelector::Claim(name) => Self { template: None, claim: claim(name) },
            ClaimSelector::PodClaim(name) => Self { template: Some(template(name.clone())), claim: Vec::new() },
            ClaimSelector::Either(name) => {
                // The name of a claim can be longer and have dots, unlike the name of a pod claim.
                let pod_claim = PodClaimName::new(name.as_str()).ok();
                Self { template: pod_claim.map(template), claim: claim(name) }
            }
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Path> {
        self.claim.iter().chain(&self.template).map(|(_, path)| path.as_path())
    }
}
