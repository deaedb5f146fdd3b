//! Opens and creates the directories that the store works in, with errors that name the claim and the path.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use drakkar_client::ClaimRef;
use drakkar_metadata::name::RequestName;
use drakkar_metadata::path::HOST_SUBDIR;

use super::files::{Directory, Entry, Files};
use super::lock_budget::LockBudget;
use super::{Store, StoreError};

/// An open directory, with its path for error messages.
#[derive(Debug, Clone)]
pub(super) struct OpenDirectory {
    pub(super) handle: Directory,
    pub(super) path: PathBuf,
}

impl OpenDirectory {
    /// Whether the directory has this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.path.file_name().is_some_and(|own| own == name)
    }
}

/// Where something failed: a path, or an entry of a directory, whose path is only put together for an error.
pub(super) trait Location: Copy {
    /// Returns the path.
    fn to_path(self) -> PathBuf;
}

impl Location for &PathBuf {
    fn to_path(self) -> PathBuf {
        self.clone()
    }
}

impl Location for (&OpenDirectory, &str) {
    fn to_path(self) -> PathBuf {
        join_path(&self.0.path, &[self.1])
    }
}

/// Returns a path with names below it, in one piece of memory.
pub(super) fn join_path(path: &Path, names: &[&str]) -> PathBuf {
    let length = names.iter().map(|name| "/".len() + name.len()).sum::<usize>();
    let mut joined = PathBuf::with_capacity(path.as_os_str().len() + length);
    joined.push(path);
    joined.extend(names);
    joined
}

impl<F: Files> Store<F> {
    /// Returns the path of the directory that contains the directories of all claims.
    pub(super) fn root_path(&self) -> &PathBuf {
        &self.root_path
    }

    /// Opens the directory that contains the directories of all claims, if it exists.
    pub(super) fn open_root(&self, call: StoreCall<'_>) -> Result<Option<OpenDirectory>, StoreError> {
        let path = self.root_path();
        let opened = self.files.open_directory(&self.plugin, call.entry(HOST_SUBDIR, path)?);
        let opened = call.io("open", path, absent_is_none(opened))?;
        Ok(opened.map(|handle| OpenDirectory { handle, path: path.clone() }))
    }

    /// Opens the directory that contains the directories of all claims, and creates it if necessary. It is kept open for the
    /// next calls.
    pub(super) fn make_root(&self, call: StoreCall<'_>) -> Result<Arc<OpenDirectory>, StoreError> {
        let path = self.root_path();
        let name = call.entry(HOST_SUBDIR, path)?;
        let handle = match self.open_root(call)? {
            Some(root) => root.handle,
            None => {
                call.io("create directory", path, self.files.make_directory(&self.plugin, name))?;
                call.io("open", path, self.files.open_directory(&self.plugin, name))?
            }
        };
        let root = Arc::new(OpenDirectory { handle: handle.named(&self.plugin, name), path: path.clone() });
        *self.lock_kept_root() = Some(root.clone());
        Ok(root)
    }

    /// Returns the directory that contains the directories of all claims, if an earlier call has kept it open. It may be
    /// deleted since.
    pub(super) fn kept_root(&self) -> Option<Arc<OpenDirectory>> {
        self.lock_kept_root().clone()
    }

    fn lock_kept_root(&self) -> MutexGuard<'_, Option<Arc<OpenDirectory>>> {
        // Nothing panics while it holds the lock.
        self.kept_root.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the directory of a claim, if it exists.
    pub(super) fn open_claim_directory(
        &self,
        call: StoreCall<'_>,
        root: &OpenDirectory,
        name: &str,
    ) -> Result<Option<OpenDirectory>, StoreError> {
        let path = join_path(&root.path, &[name]);
        let opened = self.files.open_directory(&root.handle, call.entry(name, &path)?);
        Ok(call.io("open", &path, absent_is_none(opened))?.map(|handle| OpenDirectory { handle, path }))
    }

    /// Opens the directory of a claim, creates it if necessary, and returns whether it is new. A new one is not opened.
    pub(super) fn make_claim_directory(
        &self,
        call: StoreCall<'_>,
        root: &OpenDirectory,
        name: &str,
    ) -> Result<(OpenDirectory, bool), StoreError> {
        let path = join_path(&root.path, &[name]);
        let entry = call.entry(name, &path)?;
        let is_new = call.io("create directory", &path, self.files.make_directory(&root.handle, entry))?;
        let handle = if is_new {
            root.handle.join(entry)
        } else {
            call.io("open", &path, self.files.open_directory(&root.handle, entry))?
        };
        Ok((OpenDirectory { handle, path }, is_new))
    }

    /// Opens the directory of a request, if it exists.
    pub(super) fn open_request_directory(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
        request: &RequestName,
    ) -> Result<Option<OpenDirectory>, StoreError> {
        let path = join_path(&claim_dir.path, &[request.as_str()]);
        let opened = self.files.open_directory(&claim_dir.handle, call.entry(request.as_str(), &path)?);
        Ok(call.io("open", &path, absent_is_none(opened))?.map(|handle| OpenDirectory { handle, path }))
    }

    /// Opens the directory of a request; fails if it does not exist.
    pub(super) fn open_existing_request_directory(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
        request: &RequestName,
    ) -> Result<OpenDirectory, StoreError> {
        let path = join_path(&claim_dir.path, &[request.as_str()]);
        let opened = self.files.open_directory(&claim_dir.handle, call.entry(request.as_str(), &path)?);
        Ok(OpenDirectory { handle: call.io("open", &path, opened)?, path })
    }

    /// Returns the CDI directory. It is never kept open, because it may be deleted and created again at any time; it may not
    /// exist.
    pub(super) fn cdi(&self) -> &OpenDirectory {
        &self.cdi
    }
}

/// The context of a call of the store: the claim for error messages, and the budget for file locks.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreCall<'a> {
    pub(super) claim: &'a ClaimRef,
    pub(super) lock_budget: &'a LockBudget,
}

impl<'a> StoreCall<'a> {
    pub(super) fn new(claim: &'a ClaimRef, lock_budget: &'a LockBudget) -> Self {
        Self { claim, lock_budget }
    }

    /// Returns the same context for another claim.
    pub(super) fn for_claim(self, claim: &'a ClaimRef) -> Self {
        Self { claim, ..self }
    }

    /// Adds the claim, the action and the path to an I/O error.
    pub(super) fn io<T>(
        self,
        action: &'static str,
        location: impl Location,
        outcome: io::Result<T>,
    ) -> Result<T, StoreError> {
        outcome.map_err(|source| StoreError::Io {
            claim: Box::new(self.claim.clone()),
            action,
            path: location.to_path(),
            source,
        })
    }

    /// Checks that a name is a single directory entry.
    pub(super) fn entry<'n>(self, name: &'n str, location: impl Location) -> Result<Entry<'n>, StoreError> {
        self.io("use name", location, Entry::new(name))
    }
}

fn absent_is_none<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
