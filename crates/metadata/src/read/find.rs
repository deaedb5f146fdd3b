//! Finds metadata files: those of a query, or all of them.
//!
//! A request can have several files: one per driver, each in one layout or in both. The same file in two layouts has the
//! same inode, or at least the same claim UID, request and driver; it is reported once, with its path in the Kubernetes
//! layout first.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::directories::{Directories, Wanted};
use super::query::{ClaimKey, ClaimSelector, Query};
use super::root::{Identity, ListError};
use super::search::{FileKey, Search};
use super::snapshot::Deadlines;
use super::{ReadError, Reader};
use crate::decode::Decoded;
use crate::name::{ClaimName, NameError, RequestName};
use crate::path::{
    CLAIMS_SUBDIR, FILE_SUFFIX, HOST_FILE, KEP_DIR, KUBERNETES_DIR, TEMPLATES_SUBDIR, draft_names, driver_of,
};
use crate::types::Request;

/// A metadata file: one driver's devices of one request.
#[derive(Debug)]
#[non_exhaustive]
pub struct MetadataFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Other paths of the same file, such as in the other layout. The list is limited.
    pub also_at: Vec<PathBuf>,
    /// The number of paths of the same file that exceed the limit of `also_at`.
    pub also_at_omitted: usize,
    /// The claim as in the path or, for the early draft, as in the file.
    pub claim: ClaimKey,
    /// The request as in the path; `None` for a file of VEP 10, which has all requests of a claim.
    pub request: Option<RequestName>,
    /// The driver as in the file's name.
    pub driver: String,
    /// The content, or the error in reading it.
    pub content: Result<Decoded, ReadError>,
    identity: Option<Identity>,
}

/// All metadata files in a container.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Discovery {
    /// The files in order of claim, request and driver, including those that are not written yet or broken.
    pub files: Vec<MetadataFile>,
    /// The errors about directories that could not be read and invalid names.
    pub problems: Vec<ReadError>,
}

impl MetadataFile {
    /// Returns the claim's name in the pod spec: the name of the pod's entry for a claim from a template, else the
    /// claim's own.
    pub fn claim_label(&self) -> &str {
        let from_content = self.content.as_ref().ok().and_then(|decoded| decoded.metadata.pod_claim_name.as_deref());
        from_content.unwrap_or(self.claim.as_str())
    }

    /// Returns the requests that the file describes; none if it could not be read.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.content.iter().flat_map(|decoded| &decoded.metadata.requests)
    }

    /// Returns whether another file is about the same claim: it has the same name or the same UID. A file that is not
    /// written yet has no UID.
    pub fn is_of_same_claim(&self, other: &Self) -> bool {
        self.claim == other.claim || self.uid().is_some_and(|own| other.uid() == Some(own))
    }

    fn uid(&self) -> Option<&str> {
        let uid = self.content.as_ref().ok().map(|decoded| decoded.metadata.metadata.uid.as_str());
        uid.filter(|uid| !uid.is_empty())
    }

    /// Returns the keys that identify a file: its inode and, for copies, its owner.
    ///
    /// The inode's key includes the claim's name, because an early draft has several claims in one file.
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

    fn belongs_to(&self, wanted: &Wanted<'_>) -> bool {
        let pod_claim = self.content.as_ref().ok().and_then(|decoded| decoded.metadata.pod_claim_name.as_deref());
        let claim = match (wanted.claim, &self.claim) {
            (ClaimSelector::Claim(wanted), ClaimKey::Claim(claim)) => wanted == claim,
            (ClaimSelector::PodClaim(wanted), ClaimKey::PodClaim(claim)) => wanted == claim,
            (ClaimSelector::PodClaim(wanted), ClaimKey::Claim(_)) => pod_claim == Some(wanted.as_str()),
            (ClaimSelector::Claim(_), ClaimKey::PodClaim(_)) => false,
            (ClaimSelector::Either(wanted), claim) => {
                claim.as_str() == wanted.as_str() || pod_claim == Some(wanted.as_str())
            }
        };
        let is_about = |query: &Query| match (&self.request, &self.content) {
            (Some(request), _) => *request == query.request,
            (None, Ok(_)) => self.requests().any(|request| query.is_about(request)),
            (None, Err(_)) => true,
        };
        claim && wanted.query.is_none_or(is_about) && wanted.driver().is_none_or(|wanted| wanted == self.driver)
    }
}

impl Reader {
    /// Finds all metadata files: every claim, request, driver and device.
    ///
    /// A search has limits ([`MAX_COST`](super::MAX_COST), [`MAX_FILES`](super::MAX_FILES),
    /// [`MAX_TOTAL_SIZE`](super::MAX_TOTAL_SIZE), [`MAX_CONTENT`](super::MAX_CONTENT), and ten seconds); reaching one is
    /// among the problems.
    ///
    /// An application that knows its claim and request should [`read`](Reader::read) it instead.
    pub fn discover(&self) -> Discovery {
        self.discover_within(Deadlines::default())
    }

    pub(super) fn discover_within(&self, deadlines: Deadlines) -> Discovery {
        let mut search = Search::new(deadlines);
        let layouts = vec![Some(ClaimDirectory::Claims), Some(ClaimDirectory::Templates), None];
        search.share_budget(layouts, |search, layout| match layout {
            Some(claims) => self.discover_kubernetes(claims, search),
            None => self.discover_kep(search),
        });
        search.into_discovery()
    }

    /// Finds the files of a claim or of one of its requests, at least one, and the problems with others.
    pub(super) fn find(&self, wanted: &Wanted<'_>, deadlines: Deadlines) -> Result<Discovery, ReadError> {
        let direct = Directories::of(wanted);
        let mut search = Search::new(deadlines);
        if let Some((claim, path)) = &direct.template {
            self.files_of(path, claim, wanted, &mut search);
        }
        // The content has the name of the generated claim, and thereby the file's path in the KEP's layout.
        let generated = search.files.iter().find_map(|file| {
            let name = &file.content.as_ref().ok()?.metadata.metadata.name;
            ClaimName::new(name.clone()).ok()
        });
        let from_template = search.files.len();
        for (claim, path) in &direct.claim {
            self.files_of(path, claim, wanted, &mut search);
        }
        let ambiguous = || Err(ReadError::Ambiguous { selection: Box::new(wanted.selection()) });
        if from_template > 0 && search.files.len() > from_template {
            return ambiguous();
        }
        if let Some(claim) = generated {
            let path = wanted.directory(&[KEP_DIR, claim.as_str()]);
            self.files_of(&path, &ClaimKey::Claim(claim), wanted, &mut search);
        }
        if search.files.is_empty() {
            // A pod claim in the KEP's layout, or an older layout: only the content of the files has the names. Problems
            // with other files are not part of the result.
            let mut all = Search::new(deadlines);
            self.discover_kep(&mut all);
            search.files = std::mem::take(&mut all.files);
            search.files.retain(|file| file.belongs_to(wanted));
            if search.files.is_empty() {
                // The file may be where the search did not get to.
                search.add_limit_problems(all);
            }
            if let [first, others @ ..] = &search.files[..]
                && others.iter().any(|file| !file.is_of_same_claim(first))
            {
                return ambiguous();
            }
        }
        let Discovery { mut files, problems } = search.into_discovery();
        if files.is_empty() {
            let looked_in = direct.all().map(|path| self.root.outside(path)).collect();
            let not_found = ReadError::NotFound { selection: Box::new(wanted.selection()), looked_in };
            return Err(if problems.is_empty() { not_found } else { ReadError::all(problems) });
        }
        // By file name: `a-b-metadata.json` comes before `a-metadata.json`.
        files.sort_by(|a, b| (&a.request, a.path.file_name()).cmp(&(&b.request, b.path.file_name())));
        Ok(Discovery { files, problems })
    }

    fn discover_kubernetes(&self, claims: ClaimDirectory, search: &mut Search) {
        let directory = Path::new(KUBERNETES_DIR).join(claims.name());
        self.each_directory(&directory, search, |path, name, search| match claims.parse(name) {
            Ok(claim) => self.requests_of(path, &claim, None, search),
            Err(error) => search.problem(ReadError::Name { path: self.root.outside(path), error }),
        });
    }

    /// Finds all files below [`KEP_DIR`]: in the KEP's layout, VEP 10's and the early draft's.
    fn discover_kep(&self, search: &mut Search) {
        let names = self.list(Path::new(KEP_DIR), search).unwrap_or_default();
        search.share_budget(names, |search, name| {
            let path = Path::new(KEP_DIR).join(&name);
            let Some(name) = self.text(&path, &name, search) else { return };
            match draft_names(name).map(|(driver, _, request)| (driver, RequestName::new(request))) {
                Some((driver, Ok(request))) => self.early_draft(&path, driver, &request, search),
                Some((_, Err(error))) => search.problem(ReadError::Name { path: self.root.outside(&path), error }),
                None => self.each_directory(&path, search, |below, below_name, search| {
                    self.kep_directory(&path, name, below, below_name, search);
                }),
            }
        });
    }

    /// Finds the files in a directory that is `{claim}/{request}` in the KEP's layout or `{driver}/{claim}` in VEP 10's.
    fn kep_directory(&self, path: &Path, name: &str, below: &Path, below_name: &str, search: &mut Search) {
        let names = self.list(below, search).unwrap_or_default();
        if names.iter().any(|file| file == HOST_FILE) {
            match below_name.parse().map(ClaimKey::Claim) {
                Ok(claim) => self.file(&below.join(HOST_FILE), &claim, None, name, search),
                Err(error) => search.problem(ReadError::Name { path: self.root.outside(below), error }),
            }
        }
        if names.iter().any(is_metadata_file) {
            match (name.parse().map(ClaimKey::Claim), RequestName::new(below_name)) {
                (Ok(claim), Ok(request)) => self.listed_files(below, names, &claim, &request, None, search),
                (Err(error), _) => search.problem(ReadError::Name { path: self.root.outside(path), error }),
                (_, Err(error)) => search.problem(ReadError::Name { path: self.root.outside(below), error }),
            }
        }
    }

    fn requests_of(&self, claim_path: &Path, claim: &ClaimKey, only_driver: Option<&str>, search: &mut Search) {
        self.each_directory(claim_path, search, |path, name, search| match RequestName::new(name) {
            Ok(request) => self.metadata_files(path, claim, &request, only_driver, search),
            Err(error) => search.problem(ReadError::Name { path: self.root.outside(path), error }),
        });
    }

    fn files_of(&self, path: &Path, claim: &ClaimKey, wanted: &Wanted<'_>, search: &mut Search) {
        match wanted.query {
            Some(query) => self.metadata_files(path, claim, &query.request, wanted.driver(), search),
            None => self.requests_of(path, claim, wanted.driver(), search),
        }
    }

    /// Reads the files in the directory of a request, of one driver or of all.
    fn metadata_files(
        &self,
        directory: &Path,
        claim: &ClaimKey,
        request: &RequestName,
        only_driver: Option<&str>,
        search: &mut Search,
    ) {
        let names = self.list(directory, search).unwrap_or_default();
        self.listed_files(directory, names, claim, request, only_driver, search);
    }

    fn listed_files(
        &self,
        directory: &Path,
        names: Vec<OsString>,
        claim: &ClaimKey,
        request: &RequestName,
        only_driver: Option<&str>,
        search: &mut Search,
    ) {
        for name in names {
            if !is_metadata_file(&name) {
                continue;
            }
            let path = directory.join(&name);
            let Some(driver) = self.text(&path, &name, search).and_then(driver_of) else { continue };
            if only_driver.is_none_or(|only| only == driver) {
                self.file(&path, claim, Some(request), driver, search);
            }
        }
    }

    fn file(&self, path: &Path, claim: &ClaimKey, request: Option<&RequestName>, driver: &str, search: &mut Search) {
        let Some(loaded) = self.load_within_bounds(path, search) else { return };
        let (identity, content) = match loaded {
            Ok((identity, bytes)) => (Some(identity), self.decode_one(path, &bytes)),
            Err(error) => (None, Err(error)),
        };
        search.add(MetadataFile {
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

    /// Reads a file if the limits of the search allow it; otherwise records a problem.
    fn load_within_bounds(&self, path: &Path, search: &mut Search) -> Option<Result<(Identity, Vec<u8>), ReadError>> {
        if search.is_full() {
            search.problem(ReadError::TooMuch { path: self.root.outside(path) });
            return None;
        }
        if !self.may_open(path, search) {
            return None;
        }
        let loaded = self.load(path, search.deadlines);
        search.count_bytes(loaded.as_ref().map_or(0, |(_, bytes)| bytes.len()));
        Some(loaded)
    }

    /// Returns whether the deadline and the budget allow opening a path; otherwise records a problem.
    fn may_open(&self, path: &Path, search: &mut Search) -> bool {
        if search.is_out_of_time() {
            search.problem(ReadError::OutOfTime { path: self.root.outside(path) });
            return false;
        }
        let is_within_budget = search.charge_open();
        if !is_within_budget {
            search.problem(ReadError::TooManyEntries { path: self.root.outside(path) });
        }
        is_within_budget
    }

    /// Reads an early draft's file, which has the claims in its content and the driver in its name.
    fn early_draft(&self, path: &Path, driver: &str, request: &RequestName, search: &mut Search) {
        let Some(loaded) = self.load_within_bounds(path, search) else { return };
        let loaded = loaded.and_then(|(identity, bytes)| Ok((identity, self.decode_claims(path, &bytes)?)));
        let (identity, claims) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return search.problem(error),
        };
        for mut decoded in claims {
            let claim = match ClaimName::new(decoded.metadata.metadata.name.clone()) {
                Ok(name) => ClaimKey::Claim(name),
                Err(error) => {
                    search.problem(ReadError::Name { path: self.root.outside(path), error });
                    continue;
                }
            };
            for device in decoded.metadata.requests.iter_mut().flat_map(|request| &mut request.devices) {
                driver.clone_into(&mut device.driver);
            }
            search.add(MetadataFile {
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

    fn each_directory(&self, path: &Path, search: &mut Search, mut visit: impl FnMut(&Path, &str, &mut Search)) {
        let names = self.list(path, search).unwrap_or_default();
        search.share_budget(names, |search, name| {
            let below = path.join(&name);
            if let Some(name) = self.text(&below, &name, search) {
                visit(&below, name, search);
            }
        });
    }

    /// Lists a directory; `None` if it does not exist, is not a directory or cannot be read.
    fn list(&self, path: &Path, search: &mut Search) -> Option<Vec<OsString>> {
        if !self.may_open(path, search) {
            return None;
        }
        let outside = || self.root.outside(path);
        match self.root.list(path, search.budget(), search.deadlines.search_until()) {
            Ok(names) => {
                search.charge_names(names.len());
                return Some(names);
            }
            Err(ListError::Io(error))
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(ListError::Io(error)) => search.problem(ReadError::Io { path: outside(), error }),
            Err(ListError::OutOfTime) => search.problem(ReadError::OutOfTime { path: outside() }),
            Err(ListError::TooMany) => {
                search.charge_names(search.budget());
                search.problem(ReadError::TooManyEntries { path: outside() });
            }
        }
        None
    }

    fn text<'a>(&self, path: &Path, name: &'a OsStr, search: &mut Search) -> Option<&'a str> {
        let text = name.to_str();
        if text.is_none() {
            search.problem(ReadError::NameNotUnicode { path: self.root.outside(path) });
        }
        text
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
