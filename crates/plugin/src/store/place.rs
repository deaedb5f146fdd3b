//! The directories that the store works in, and on whose behalf.

use std::io;
use std::path::{Path, PathBuf};

use drakkar_metadata::name::RequestName;
use drakkar_metadata::path::HOST_SUBDIR;

use super::files::{Directory, Entry, Files};
use super::patience::LockPatience;
use super::{Store, StoreError};
use drakkar_client::ClaimRef;

/// A directory that is open, and where it is, for messages.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) directory: Directory,
    pub(super) path: PathBuf,
}

impl Place {
    /// Whether this is the directory's name.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.path.file_name().is_some_and(|own| own == name)
    }
}

impl<F: Files> Store<F> {
    /// Where the directories of claims are.
    pub(super) fn root_path(&self) -> PathBuf {
        self.settings.plugin_directory.join(HOST_SUBDIR)
    }

    pub(super) fn open_root(&self, step: Step<'_>) -> Result<Option<Place>, StoreError> {
        let path = self.root_path();
        let opened = self.files.open_directory(&self.plugin, step.entry(HOST_SUBDIR, &path)?);
        Ok(step.on("open", &path, absent_is_none(opened))?.map(|directory| Place { directory, path }))
    }

    pub(super) fn make_root(&self, step: Step<'_>) -> Result<Place, StoreError> {
        if let Some(root) = self.open_root(step)? {
            return Ok(root);
        }
        let path = self.root_path();
        let name = step.entry(HOST_SUBDIR, &path)?;
        step.on("make directory", &path, self.files.make_directory(&self.plugin, name))?;
        let directory = step.on("open", &path, self.files.open_directory(&self.plugin, name))?;
        Ok(Place { directory, path })
    }

    /// The directory of that name, if it is there.
    pub(super) fn open_place(&self, step: Step<'_>, root: &Place, name: &str) -> Result<Option<Place>, StoreError> {
        let path = root.path.join(name);
        let opened = self.files.open_directory(&root.directory, step.entry(name, &path)?);
        Ok(step.on("open", &path, absent_is_none(opened))?.map(|directory| Place { directory, path }))
    }

    /// The directory of that name, made if need be, and whether it is new.
    pub(super) fn make_place(&self, step: Step<'_>, root: &Place, name: &str) -> Result<(Place, bool), StoreError> {
        let path = root.path.join(name);
        let entry = step.entry(name, &path)?;
        let is_new = step.on("make directory", &path, self.files.make_directory(&root.directory, entry))?;
        let directory = step.on("open", &path, self.files.open_directory(&root.directory, entry))?;
        Ok((Place { directory, path }, is_new))
    }

    pub(super) fn open_request_directory(
        &self,
        step: Step<'_>,
        place: &Place,
        request: &RequestName,
    ) -> Result<Option<Place>, StoreError> {
        let path = place.path.join(request.as_str());
        let opened = self.files.open_directory(&place.directory, step.entry(request.as_str(), &path)?);
        Ok(step.on("open", &path, absent_is_none(opened))?.map(|directory| Place { directory, path }))
    }

    pub(super) fn request_directory(
        &self,
        step: Step<'_>,
        place: &Place,
        request: &RequestName,
    ) -> Result<Place, StoreError> {
        let path = place.path.join(request.as_str());
        let opened = self.files.open_directory(&place.directory, step.entry(request.as_str(), &path)?);
        Ok(Place { directory: step.on("open", &path, opened)?, path })
    }

    /// The directory of CDI specs, if it is there. It is opened for each call: it may be wiped and made anew at any time.
    pub(super) fn open_cdi(&self, step: Step<'_>) -> Result<Option<Place>, StoreError> {
        let path = self.settings.cdi_directory.clone();
        let opened = self.files.open_root(&path);
        Ok(step.on("open", &path, absent_is_none(opened))?.map(|directory| Place { directory, path }))
    }

    /// The directory of CDI specs, made if need be.
    pub(super) fn make_cdi(&self, step: Step<'_>) -> Result<Place, StoreError> {
        if let Some(cdi) = self.open_cdi(step)? {
            return Ok(cdi);
        }
        let path = self.settings.cdi_directory.clone();
        step.on("make directory", &path, self.files.make_root(&path))?;
        Ok(Place { directory: step.on("open", &path, self.files.open_root(&path))?, path })
    }
}

/// The claim on whose behalf something is done, which errors name, and how long that may wait for locks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) claim: &'a ClaimRef,
    pub(super) patience: &'a LockPatience,
}

impl<'a> Step<'a> {
    pub(super) fn new(claim: &'a ClaimRef, patience: &'a LockPatience) -> Self {
        Self { claim, patience }
    }

    /// The same on behalf of another claim.
    pub(super) fn of(self, claim: &'a ClaimRef) -> Self {
        Self { claim, ..self }
    }

    pub(super) fn on<T>(self, action: &'static str, path: &Path, outcome: io::Result<T>) -> Result<T, StoreError> {
        outcome.map_err(|source| StoreError::Io {
            claim: Box::new(self.claim.clone()),
            action,
            path: path.to_owned(),
            source,
        })
    }

    pub(super) fn entry<'n>(self, name: &'n str, path: &Path) -> Result<Entry<'n>, StoreError> {
        self.on("use the name", path, Entry::new(name))
    }
}

fn absent_is_none<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
