//! Finding metadata files: by what a query says, or all there are.
//!
//! A request can have several files: one per driver, and each of them in one layout or in both. The same file in two
//! layouts has the same inode, or at least the same claim UID, request and driver; it is reported once, under its
//! path in the Kubernetes layout, with its other path beside it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::found::{FileKey, Found};
use super::query::{ClaimKey, ClaimSelector, Query};
use super::root::{Identity, ListError};
use super::snapshot::Patience;
use super::{ReadError, Reader};
use crate::decode::Decoded;
use crate::name::{ClaimName, DriverName, NameError, PodClaimName, RequestName};
use crate::path::{
    CLAIMS_SUBDIR, FILE_SUFFIX, HOST_FILE, KEP_DIR, KUBERNETES_DIR, TEMPLATES_SUBDIR, draft_names, driver_of,
};
use crate::types::Request;

/// One driver's file about one request, and what is in it.
#[derive(Debug)]
#[non_exhaustive]
pub struct MetadataFile {
    /// Where it is.
    pub path: PathBuf,
    /// Where else it is: the same file in the other layout. Of a file with very many paths, the first.
    pub also_at: Vec<PathBuf>,
    /// How many paths of the same file are not in `also_at`, because there are so many.
    pub also_at_omitted: usize,
    /// The claim, as the path has it, or, in the early draft, as the file has it.
    pub claim: ClaimKey,
    /// The request, as the path has it; `None` for a file of VEP 10, which has all requests of a claim.
    pub request: Option<RequestName>,
    /// The driver, as the file's name has it.
    pub driver: String,
    /// The content, or why there is none.
    pub content: Result<Decoded, ReadError>,
    identity: Option<Identity>,
}

/// Everything that a container can see.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Discovery {
    /// The files, those that are not written yet or broken included, in the order of claim, request and driver.
    pub files: Vec<MetadataFile>,
    /// Directories that could not be looked into, and names that none can have.
    pub problems: Vec<ReadError>,
}

impl MetadataFile {
    /// The name under which the pod's author knows the claim: that of the pod's entry for a claim from a template,
    /// that of the claim otherwise.
    pub fn claim_label(&self) -> &str {
        let from_content = self.content.as_ref().ok().and_then(|decoded| decoded.metadata.pod_claim_name.as_deref());
        from_content.unwrap_or(self.claim.as_str())
    }

    /// The requests that the file describes; none if it has no content.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.content.iter().flat_map(|decoded| &decoded.metadata.requests)
    }

    /// Whether another file is about the same claim: it goes by the same name, or has the same UID. A file that is not
    /// written yet has none.
    pub fn is_of_same_claim(&self, other: &Self) -> bool {
        self.claim == other.claim || self.uid().is_some_and(|own| other.uid() == Some(own))
    }

    fn uid(&self) -> Option<&str> {
        let uid = self.content.as_ref().ok().map(|decoded| decoded.metadata.metadata.uid.as_str());
        uid.filter(|uid| !uid.is_empty())
    }

    /// What tells that two findings are one file: the inode, and, for copies, whose it is. The claim's name is part
    /// of both because an early draft has several claims in one file.
    pub(super) fn keys(&self) -> impl Iterator<Item = FileKey> {
        let meta = self.content.as_ref().ok().map(|decoded| &decoded.metadata.metadata);
        let claim = meta.map(|meta| meta.name.clone()).unwrap_or_default();
        let uid = self.uid().map(str::to_owned);
        let by_inode = self.identity.map(|identity| FileKey::Inode(identity, claim));
        let by_owner = uid.map(|uid| FileKey::Owner(uid, self.request.clone(), self.driver.clone()));
        by_inode.into_iter().chain(by_owner)
    }

    pub(super) fn generation(&self) -> i64 {
        self.content.as_ref().map_or(-1, |decoded| decoded.metadata.metadata.generation)
    }

    fn belongs_to(&self, query: &Query) -> bool {
        let pod_claim = self.content.as_ref().ok().and_then(|decoded| decoded.metadata.pod_claim_name.as_deref());
        let claim = match (&query.claim, &self.claim) {
            (ClaimSelector::Claim(wanted), ClaimKey::Claim(claim)) => wanted == claim,
            (ClaimSelector::PodClaim(wanted), ClaimKey::PodClaim(claim)) => wanted == claim,
            (ClaimSelector::PodClaim(wanted), ClaimKey::Claim(_)) => pod_claim == Some(wanted.as_str()),
            (ClaimSelector::Claim(_), ClaimKey::PodClaim(_)) => false,
            (ClaimSelector::Either(wanted), claim) => {
                claim.as_str() == wanted.as_str() || pod_claim == Some(wanted.as_str())
            }
        };
        let request = match (&self.request, &self.content) {
            (Some(request), _) => *request == query.request,
            (None, Ok(_)) => self.requests().any(|request| query.is_about(request)),
            (None, Err(_)) => true,
        };
        claim && request && query.driver.as_ref().is_none_or(|wanted| *wanted == self.driver.as_str())
    }
}

impl Reader {
    /// Everything that can be seen: every claim, request, driver and device.
    ///
    /// A look has budgets ([`MAX_COST`](super::MAX_COST), [`MAX_FILES`](super::MAX_FILES),
    /// [`MAX_TOTAL_SIZE`](super::MAX_TOTAL_SIZE), [`MAX_CONTENT`](super::MAX_CONTENT), and ten seconds); what goes
    /// beyond one is among the problems.
    ///
    /// Applications that know their claim and request had better [`read`](Reader::read) those.
    pub fn discover(&self) -> Discovery {
        let mut found = Found::new(Patience::default());
        let layouts = vec![Some(ClaimDirectory::Claims), Some(ClaimDirectory::Templates), None];
        found.share(layouts, |found, layout| match layout {
            Some(claims) => self.discover_kubernetes(claims, found),
            None => self.discover_kep(found),
        });
        found.into_discovery()
    }

    /// The files that a query asks for, at least one, and what kept others from being found.
    pub(super) fn find(&self, query: &Query, patience: Patience) -> Result<Discovery, ReadError> {
        let direct = Directories::of(query);
        let mut found = Found::new(patience);
        if let Some((claim, path)) = &direct.template {
            self.files_of(path, claim, query, &mut found);
        }
        // Where a file tells the name of the generated claim, its twin in the KEP's layout is found without a search.
        let generated = found.files.iter().find_map(|file| {
            let name = &file.content.as_ref().ok()?.metadata.metadata.name;
            ClaimName::new(name.clone()).ok()
        });
        let from_template = found.files.len();
        for (claim, path) in &direct.claim {
            self.files_of(path, claim, query, &mut found);
        }
        let ambiguous = || Err(ReadError::Ambiguous { query: Box::new(query.clone()) });
        if from_template > 0 && found.files.len() > from_template {
            return ambiguous();
        }
        if let Some(claim) = generated {
            let path = [KEP_DIR, claim.as_str(), query.request.as_str()].iter().collect::<PathBuf>();
            self.files_of(&path, &ClaimKey::Claim(claim), query, &mut found);
        }
        if found.files.is_empty() {
            // By pod claim name in the KEP's layout, or in an older one: only the files themselves can tell. What is
            // wrong with others is no concern of this query.
            let mut all = Found::new(patience);
            self.discover_kep(&mut all);
            found.files = std::mem::take(&mut all.files);
            found.files.retain(|file| file.belongs_to(query));
            if found.files.is_empty() {
                // It may be where there was no looking any more.
                found.problems_of_budgets(all);
            }
            if let [first, others @ ..] = &found.files[..]
                && others.iter().any(|file| !file.is_of_same_claim(first))
            {
                return ambiguous();
            }
        }
        let Discovery { mut files, problems } = found.into_discovery();
        if files.is_empty() {
            let looked_in = direct.all().map(|path| self.root.outside(path)).collect();
            let not_found = ReadError::NotFound { query: Box::new(query.clone()), looked_in };
            return Err(if problems.is_empty() { not_found } else { ReadError::all(problems) });
        }
        // By the names of the files: `a-b-metadata.json` comes before `a-metadata.json`.
        files.sort_by(|a, b| a.path.file_name().cmp(&b.path.file_name()));
        Ok(Discovery { files, problems })
    }

    fn discover_kubernetes(&self, claims: ClaimDirectory, found: &mut Found) {
        let directory = Path::new(KUBERNETES_DIR).join(claims.name());
        self.each_directory(&directory, found, |path, name, found| match claims.parse(name) {
            Ok(claim) => self.requests_of(path, &claim, found),
            Err(error) => found.problem(ReadError::Name { path: self.root.outside(path), error }),
        });
    }

    /// Everything below [`KEP_DIR`]: the KEP's layout, VEP 10's and the early draft's.
    fn discover_kep(&self, found: &mut Found) {
        let names = self.list(Path::new(KEP_DIR), found).unwrap_or_default();
        found.share(names, |found, name| {
            let path = Path::new(KEP_DIR).join(&name);
            let Some(name) = self.text(&path, &name, found) else { return };
            match draft_names(name).map(|(driver, _, request)| (driver, RequestName::new(request))) {
                Some((driver, Ok(request))) => self.early_draft(&path, driver, &request, found),
                Some((_, Err(error))) => found.problem(ReadError::Name { path: self.root.outside(&path), error }),
                None => self.each_directory(&path, found, |below, below_name, found| {
                    self.kep_directory(&path, name, below, below_name, found);
                }),
            }
        });
    }

    /// {claim}/{request}/{driver}-metadata.json, or {driver}/{claim}/metadata.json
    fn kep_directory(&self, path: &Path, name: &str, below: &Path, below_name: &str, found: &mut Found) {
        let names = self.list(below, found).unwrap_or_default();
        if names.iter().any(|file| file == HOST_FILE) {
            match below_name.parse().map(ClaimKey::Claim) {
                Ok(claim) => self.file(&below.join(HOST_FILE), &claim, None, name, found),
                Err(error) => found.problem(ReadError::Name { path: self.root.outside(below), error }),
            }
        }
        if names.iter().any(is_metadata_file) {
            match (name.parse().map(ClaimKey::Claim), RequestName::new(below_name)) {
                (Ok(claim), Ok(request)) => self.listed_files(below, names, &claim, &request, None, found),
                (Err(error), _) => found.problem(ReadError::Name { path: self.root.outside(path), error }),
                (_, Err(error)) => found.problem(ReadError::Name { path: self.root.outside(below), error }),
            }
        }
    }

    fn requests_of(&self, claim_path: &Path, claim: &ClaimKey, found: &mut Found) {
        self.each_directory(claim_path, found, |path, name, found| self.request_directory(path, name, claim, found));
    }

    fn request_directory(&self, path: &Path, name: &str, claim: &ClaimKey, found: &mut Found) {
        match RequestName::new(name) {
            Ok(request) => self.metadata_files(path, claim, &request, None, found),
            Err(error) => found.problem(ReadError::Name { path: self.root.outside(path), error }),
        }
    }

    fn files_of(&self, path: &Path, claim: &ClaimKey, query: &Query, found: &mut Found) {
        let driver = query.driver.as_ref().map(DriverName::as_str);
        self.metadata_files(path, claim, &query.request, driver, found);
    }

    /// The files of one request directory, of one driver or of all.
    fn metadata_files(
        &self,
        directory: &Path,
        claim: &ClaimKey,
        request: &RequestName,
        only_driver: Option<&str>,
        found: &mut Found,
    ) {
        let names = self.list(directory, found).unwrap_or_default();
        self.listed_files(directory, names, claim, request, only_driver, found);
    }

    fn listed_files(
        &self,
        directory: &Path,
        names: Vec<OsString>,
        claim: &ClaimKey,
        request: &RequestName,
        only_driver: Option<&str>,
        found: &mut Found,
    ) {
        for name in names {
            if !is_metadata_file(&name) {
                continue;
            }
            let path = directory.join(&name);
            let Some(driver) = self.text(&path, &name, found).and_then(driver_of) else { continue };
            if only_driver.is_none_or(|only| only == driver) {
                self.file(&path, claim, Some(request), driver, found);
            }
        }
    }

    fn file(&self, path: &Path, claim: &ClaimKey, request: Option<&RequestName>, driver: &str, found: &mut Found) {
        let Some(loaded) = self.load_within_bounds(path, found) else { return };
        let (identity, content) = match loaded {
            Ok((identity, bytes)) => (Some(identity), self.decode_one(path, &bytes)),
            Err(error) => (None, Err(error)),
        };
        found.add(MetadataFile {
            path: self.root.outside(path),
            also_at: Vec::new(),
            also_at_omitted: 0,
            claim: claim.clone(),
            request: request.cloned(),
            driver: driver.to_owned(),
            content,
            identity,
        });
    }

    /// The bytes of a file, counted; none, and a problem, where there is already more than any container has.
    fn load_within_bounds(&self, path: &Path, found: &mut Found) -> Option<Result<(Identity, Vec<u8>), ReadError>> {
        if found.is_full() {
            found.problem(ReadError::TooMuch { path: self.root.outside(path) });
            return None;
        }
        if !self.may_open(path, found) {
            return None;
        }
        let loaded = self.load(path, found.patience);
        found.count_bytes(loaded.as_ref().map_or(0, |(_, bytes)| bytes.len()));
        Some(loaded)
    }

    /// Whether there is time for something, and whether the budget allows it; a problem otherwise.
    fn may_open(&self, path: &Path, found: &mut Found) -> bool {
        if found.is_out_of_time() {
            found.problem(ReadError::OutOfTime { path: self.root.outside(path) });
            return false;
        }
        let is_paid = found.pay_for_opening();
        if !is_paid {
            found.problem(ReadError::TooManyEntries { path: self.root.outside(path) });
        }
        is_paid
    }

    /// An early draft's file: the claims are named inside only, the driver outside only.
    fn early_draft(&self, path: &Path, driver: &str, request: &RequestName, found: &mut Found) {
        let Some(loaded) = self.load_within_bounds(path, found) else { return };
        let loaded = loaded.and_then(|(identity, bytes)| Ok((identity, self.decode_claims(path, &bytes)?)));
        let (identity, claims) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return found.problem(error),
        };
        for mut decoded in claims {
            let claim = match ClaimName::new(decoded.metadata.metadata.name.clone()) {
                Ok(name) => ClaimKey::Claim(name),
                Err(error) => {
                    found.problem(ReadError::Name { path: self.root.outside(path), error });
                    continue;
                }
            };
            for device in decoded.metadata.requests.iter_mut().flat_map(|request| &mut request.devices) {
                driver.clone_into(&mut device.driver);
            }
            found.add(MetadataFile {
                path: self.root.outside(path),
                also_at: Vec::new(),
                also_at_omitted: 0,
                claim,
                request: Some(request.clone()),
                driver: driver.to_owned(),
                content: Ok(decoded),
                identity: Some(identity),
            });
        }
    }

    fn each_directory(&self, path: &Path, found: &mut Found, mut visit: impl FnMut(&Path, &str, &mut Found)) {
        let names = self.list(path, found).unwrap_or_default();
        found.share(names, |found, name| {
            let below = path.join(&name);
            if let Some(name) = self.text(&below, &name, found) {
                visit(&below, name, found);
            }
        });
    }

    /// The entries of a directory; `None` if it is not there or is not a directory.
    fn list(&self, path: &Path, found: &mut Found) -> Option<Vec<OsString>> {
        if !self.may_open(path, found) {
            return None;
        }
        let outside = || self.root.outside(path);
        match self.root.list(path, found.allowance(), found.patience.walk_until()) {
            Ok(names) => {
                found.pay_for_names(names.len());
                return Some(names);
            }
            Err(ListError::Io(error))
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(ListError::Io(error)) => found.problem(ReadError::Io { path: outside(), error }),
            Err(ListError::OutOfTime) => found.problem(ReadError::OutOfTime { path: outside() }),
            Err(ListError::TooMany) => {
                found.pay_for_names(found.allowance());
                found.problem(ReadError::TooManyEntries { path: outside() });
            }
        }
        None
    }

    fn text<'a>(&self, path: &Path, name: &'a OsStr, found: &mut Found) -> Option<&'a str> {
        let text = name.to_str();
        if text.is_none() {
            found.problem(ReadError::NameNotUnicode { path: self.root.outside(path) });
        }
        text
    }
}

/// The directories in which a query's files are, if they are in a layout that is written today.
pub(super) struct Directories {
    template: Option<(ClaimKey, PathBuf)>,
    claim: Vec<(ClaimKey, PathBuf)>,
}

impl Directories {
    pub(super) fn of(query: &Query) -> Self {
        let template = |name: PodClaimName| {
            let path = [KUBERNETES_DIR, TEMPLATES_SUBDIR, name.as_str(), query.request.as_str()].iter().collect();
            (ClaimKey::PodClaim(name), path)
        };
        let claim = |name: &ClaimName| {
            let kubernetes = [KUBERNETES_DIR, CLAIMS_SUBDIR, name.as_str(), query.request.as_str()].iter().collect();
            let kep = [KEP_DIR, name.as_str(), query.request.as_str()].iter().collect();
            let key = ClaimKey::Claim(name.clone());
            vec![(key.clone(), kubernetes), (key, kep)]
        };
        match &query.claim {
            ClaimSelector::Claim(name) => Self { template: None, claim: claim(name) },
            ClaimSelector::PodClaim(name) => Self { template: Some(template(name.clone())), claim: Vec::new() },
            ClaimSelector::Either(name) => {
                // A claim's name can be longer, and have dots; then it is no pod claim's name.
                let pod_claim = PodClaimName::new(name.as_str()).ok();
                Self { template: pod_claim.map(template), claim: claim(name) }
            }
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Path> {
        self.claim.iter().chain(&self.template).map(|(_, path)| path.as_path())
    }
}

#[derive(Clone, Copy)]
enum ClaimDirectory {
    Claims,
    Templates,
}

impl ClaimDirectory {
    fn name(self) -> &'static str {
        match self {
            Self::Claims => CLAIMS_SUBDIR,
            Self::Templates => TEMPLATES_SUBDIR,
        }
    }

    fn parse(self, name: &str) -> Result<ClaimKey, NameError> {
        match self {
            Self::Claims => name.parse().map(ClaimKey::Claim),
            Self::Templates => name.parse().map(ClaimKey::PodClaim),
        }
    }
}

#[allow(clippy::ptr_arg, reason = "a filter over owned names")]
pub(super) fn is_metadata_file(name: &OsString) -> bool {
    name.as_encoded_bytes().ends_with(FILE_SUFFIX.as_bytes())
}
