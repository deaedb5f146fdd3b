//! The directories that the store works in, and on whose behalf.

use std::io;
use std::path::{Path, PathBuf};

use drakkar_metadata::name::RequestName;
use drakkar_metadata::path::HOST_SUBDIR;

use super::files::{Directory, Entry, Files};
use super::record::ClaimKey;
use super::{Store, StoreError};

/// A directory that is open, and where it is, for messages.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) directory: Directory,
    pub(super) path: PathBuf,
}

impl<F: Files> Store<F> {
    pub(super) fn open_root(&self, step: Step<'_>) -> Result<Option<Place>, StoreError> {
        let path = self.settings.plugin_directory.join(HOST_SUBDIR);
        let opened = self.files.open_directory(&self.plugin, step.entry(HOST_SUBDIR, &path)?);
        Ok(step.on("open", &path, absent_is_none(opened))?.map(|directory| Place { directory, path }))
    }

    pub(super) fn open_place(&self, step: Step<'_>) -> Result<Option<Place>, StoreError> {
        let path = self.claim_path(step.0)?;
        let Some(root) = self.open_root(step)? else { return Ok(None) };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let opened = self.files.open_directory(&root.directory, step.entry(name, &path)?);
        Ok(step.on("open", &path, absent_is_none(opened))?.map(|directory| Place { directory, path }))
    }

    /// The claim's directory, made if need be, and whether it is new.
    pub(super) fn make_place(&self, step: Step<'_>) -> Result<(Place, bool), StoreError> {
        let root_path = self.settings.plugin_directory.join(HOST_SUBDIR);
        let root_name = step.entry(HOST_SUBDIR, &root_path)?;
        let root = match self.open_root(step)? {
            Some(root) => root,
            None => {
                step.on("make directory", &root_path, self.files.make_directory(&self.plugin, root_name))?;
                let directory = step.on("open", &root_path, self.files.open_directory(&self.plugin, root_name))?;
                Place { directory, path: root_path }
            }
        };
        let path = self.claim_path(step.0)?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
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

    pub(super) fn open_cdi(&self, step: Step<'_>) -> Result<Option<Place>, StoreError> {
        let path = self.settings.cdi_directory.clone();
        let opened = self.files.open_root(&path);
        Ok(step.on("open", &path, absent_is_none(opened))?.map(|directory| Place { directory, path }))
    }
}

/// The claim on whose behalf something is done: what errors name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a>(pub(super) &'a ClaimKey);

impl Step<'_> {
    pub(super) fn on<T>(self, action: &'static str, path: &Path, outcome: io::Result<T>) -> Result<T, StoreError> {
        outcome.map_err(|source| StoreError::Io {
            claim: Box::new(self.0.clone()),
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
