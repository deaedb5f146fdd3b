//! Writes and removes files: metadata in place, records and specs by rename, and whole claims.

use std::io;

use drakkar_client::ClaimRef;
use drakkar_metadata::decode;
use drakkar_metadata::name::RequestName;
use drakkar_metadata::path::HOST_FILE;

use super::directory_name::directory_name;
use super::documents::{generation_of, is_blank, owner_of};
use super::files::{Directory, Entry, Files};
use super::open_directory::{Location as _, OpenDirectory, StoreCall, join_path};
use super::record::{self, Record};
use super::{Store, StoreError};

/// The file name of the write-ahead copy of an update.
pub(crate) const WRITE_AHEAD_FILE: &str = ".metadata.json.next";

/// Whether the same spec probably exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is read first and not written if it is equal: runtimes reload all specs whenever one is written.
    Likely,
    /// It is written without reading it first.
    Unlikely,
}

/// What [`Store::remove_known`] has removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    /// All of the claim.
    Complete,
    /// Nothing, or not all: the claim's directory has to be looked at.
    Incomplete,
}

impl<F: Files> Store<F> {
    /// Replaces the content of a metadata file in place, so that containers that have it mounted see the new content. A crash
    /// at any point leaves the old or the new content. The file never shrinks: the rest is filled with newlines.
    pub(super) fn write_in_place(
        &self,
        call: StoreCall<'_>,
        request_dir: &OpenDirectory,
        old: &[u8],
        mut content: Vec<u8>,
    ) -> Result<(), StoreError> {
        content.resize(content.len().max(old.len()), b'\n');
        self.write_atomically(call, request_dir, WRITE_AHEAD_FILE, &content)?;
        let path = (request_dir, HOST_FILE);
        let name = call.entry(HOST_FILE, path)?;
        let mut is_torn = false;
        let written = self.files.open_for_update(&request_dir.handle, name).and_then(|file| {
            self.files.lock(&file, call.lock_budget)?;
            self.files.write(&file, &content).inspect_err(|_| {
                // A part may be written, and the file may have grown. Writing the old content back, padded with newlines,
                // needs no new space on disk, so it usually succeeds.
                let size = file.metadata().map_or(content.len(), |metadata| metadata.len() as usize);
                let mut back = old.to_vec();
                back.resize(size.max(old.len()), b'\n');
                is_torn = self.files.write(&file, &back).is_err();
            })
        });
        if is_torn {
            // Neither the new nor the old content could be written. The copy stays, and the next call completes the update.
            return call.io("write", path, written);
        }
        let next_path = (request_dir, WRITE_AHEAD_FILE);
        let next = call.entry(WRITE_AHEAD_FILE, next_path)?;
        let removed = self.files.remove_file(&request_dir.handle, next);
        call.io("write", path, written)?;
        call.io("remove", next_path, removed)
    }

    /// Completes an interrupted update.
    pub(super) fn finish_update(&self, call: StoreCall<'_>, request_dir: &OpenDirectory) -> Result<(), StoreError> {
        let next_path = (request_dir, WRITE_AHEAD_FILE);
        let next = call.entry(WRITE_AHEAD_FILE, next_path)?;
        let content = match self.files.read(&request_dir.handle, next) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return call.io("read", next_path, Err(error)),
        };
        // A copy is renamed to its name when it is complete, so one that cannot be decoded is from another boot.
        if generation_of(&content).is_some() || is_blank(&content) {
            let path = (request_dir, HOST_FILE);
            let name = call.entry(HOST_FILE, path)?;
            let opened = match self.files.open_for_update(&request_dir.handle, name) {
                // The file is gone but its copy is not: it was being removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.files.create(&request_dir.handle, name),
                opened => opened,
            };
            let file = call.io("open", path, opened)?;
            call.io("lock", path, self.files.lock(&file, call.lock_budget))?;
            call.io("write", path, self.files.write(&file, &content))?;
        }
        call.io("remove", next_path, self.files.remove_file(&request_dir.handle, next))
    }

    /// Replaces the record of a claim.
    pub(super) fn write_record(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
        record: &Record,
    ) -> Result<(), StoreError> {
        self.write_atomically(call, claim_dir, record::FILE, &record.encode())
    }

    /// Writes the first record of a directory, without a rename: no other call reads it before this one returns, and an
    /// incomplete record counts as none at the next start.
    pub(super) fn write_first_record(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
        record: &Record,
    ) -> Result<(), StoreError> {
        let path = (claim_dir, record::FILE);
        let name = call.entry(record::FILE, path)?;
        let file = call.io("create", path, self.files.create(&claim_dir.handle, name))?;
        call.io("write", path, self.files.write(&file, &record.encode()))
    }

    /// Reads the record, if there is a valid one for the claim of this directory.
    pub(super) fn read_record(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
    ) -> Result<Option<Record>, StoreError> {
        let path = (claim_dir, record::FILE);
        let name = call.entry(record::FILE, path)?;
        match self.files.read(&claim_dir.handle, name) {
            Ok(bytes) => Ok(Record::decode(&bytes).filter(|record| {
                let ClaimRef { namespace, name, .. } = &record.claim;
                claim_dir.is_named(&directory_name(namespace, name))
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => call.io("read", path, Err(error)),
        }
    }

    /// Reads a metadata file. A missing file is created and empty.
    pub(super) fn read_metadata(
        &self,
        call: StoreCall<'_>,
        request_dir: &OpenDirectory,
    ) -> Result<Vec<u8>, StoreError> {
        let path = (request_dir, HOST_FILE);
        let name = call.entry(HOST_FILE, path)?;
        match self.files.read(&request_dir.handle, name) {
            Ok(content) => Ok(content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // It must exist so that a container can be created, and an update be written.
                call.io("create", path, self.files.create(&request_dir.handle, name))?;
                Ok(Vec::new())
            }
            Err(error) => call.io("read", path, Err(error)),
        }
    }

    /// Writes a temporary file and renames it: the file appears completely or not at all.
    pub(super) fn write_atomically(
        &self,
        call: StoreCall<'_>,
        directory: &OpenDirectory,
        name: &str,
        content: &[u8],
    ) -> Result<(), StoreError> {
        let path = (directory, name);
        let temporary_name = temporary_name(name);
        let name = call.entry(name, path)?;
        let temporary = call.entry(&temporary_name, path)?;
        let parent = &directory.handle;
        let written = self.files.create(parent, temporary).or_else(|error| match error.kind() {
            // A leftover of a crash, which no one uses.
            io::ErrorKind::AlreadyExists => {
                self.files.remove_file(parent, temporary)?;
                self.files.create(parent, temporary)
            }
            _ => Err(error),
        });
        let written = written
            .and_then(|file| self.files.write(&file, content))
            .and_then(|()| self.files.rename(parent, temporary, name));
        if written.is_err() {
            // The first error is the one to return. A leftover is removed by the next write of this file, or the next start.
            let _ = self.files.remove_file(parent, temporary);
        }
        call.io("write", path, written)
    }

    /// Writes a CDI spec; with [`Presence::Likely`] only if it differs from the existing one.
    pub(super) fn write_spec(
        &self,
        call: StoreCall<'_>,
        cdi: &OpenDirectory,
        name: &str,
        spec: &[u8],
        presence: Presence,
    ) -> Result<(), StoreError> {
        let path = (cdi, name);
        let entry = call.entry(name, path)?;
        if presence == Presence::Likely && self.files.read(&cdi.handle, entry).is_ok_and(|present| present == spec) {
            return Ok(());
        }
        match self.write_atomically(call, cdi, name, spec) {
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                call.io("create directory", &cdi.path, self.files.make_root(&cdi.path))?;
                self.write_atomically(call, cdi, name, spec)
            }
            written => written,
        }
    }

    pub(super) fn remove_spec(&self, call: StoreCall<'_>, cdi: &OpenDirectory, name: &str) -> Result<(), StoreError> {
        let path = (cdi, name);
        call.io("remove", path, self.files.remove_file(&cdi.handle, call.entry(name, path)?))
    }

    /// Removes the specs of a claim: those in its record or, without a record, those of its files.
    pub(super) fn remove_specs(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
        record: Option<&Record>,
    ) -> Result<(), StoreError> {
        let cdi = self.cdi();
        if let Some(record) = record {
            if !record.devices.is_empty() {
                self.remove_spec(call, cdi, &self.claim_devices(&record.claim)?.file_name())?;
            }
            return record.requests.keys().try_for_each(|request| {
                self.remove_spec(call, cdi, &self.metadata_spec_name(&record.claim, request)?)
            });
        }
        // A driver whose name is no CDI vendor has no such spec.
        if let Ok(devices) = self.claim_devices(call.claim) {
            self.remove_spec(call, cdi, &devices.file_name())?;
        }
        for (request, content) in self.request_files(call, claim_dir)? {
            let owner = match decode(&content) {
                // `None` for a file that was copied here from another claim's directory: that claim keeps its spec.
                Ok(decoded) => owner_of(&decoded.metadata, claim_dir),
                Err(_) => Some(call.claim.clone()),
            };
            if let Some(owner) = owner {
                self.remove_spec(call, cdi, &self.metadata_spec_name(&owner, &request)?)?;
            }
        }
        Ok(())
    }

    /// Removes a claim that this process has prepared, without looking at what is there: specs, record, files.
    ///
    /// Each request's directory is opened, which follows no link, so nothing is removed elsewhere. Whatever is not as this
    /// process has left it is left for [`Self::remove_claim_directory`].
    pub(super) fn remove_known(&self, call: StoreCall<'_>, name: &str) -> Result<Removal, StoreError> {
        let claim = call.claim;
        let Some(root) = self.kept_root() else { return Ok(Removal::Incomplete) };
        let Some((prepared, requests)) = self.known.take_prepared(&claim.uid) else { return Ok(Removal::Incomplete) };
        let claim_entry = call.entry(name, (&*root, name))?;
        let claim_dir = OpenDirectory { handle: root.handle.join(claim_entry), path: join_path(&root.path, &[name]) };
        let mut opened = Vec::with_capacity(requests.len());
        for request in &requests {
            let entry = call.entry(request.as_str(), (&claim_dir, request.as_str()))?;
            let Ok(handle) = self.files.open_directory(&claim_dir.handle, entry) else {
                return Ok(Removal::Incomplete);
            };
            opened.push((entry, OpenDirectory { handle, path: join_path(&claim_dir.path, &[request.as_str()]) }));
        }
        let cdi = self.cdi();
        if prepared.has_claim_spec {
            self.remove_spec(call, cdi, &self.claim_devices(claim)?.file_name())?;
        }
        for request in &requests {
            self.remove_spec(call, cdi, &self.metadata_spec_name(claim, request)?)?;
        }
        let path = (&claim_dir, record::FILE);
        let entry = call.entry(record::FILE, path)?;
        call.io("remove", path, self.files.remove_file(&claim_dir.handle, entry))?;
        for (entry, request_dir) in opened {
            let path = (&request_dir, HOST_FILE);
            let file = call.entry(HOST_FILE, path)?;
            call.io("remove", path, self.files.remove_file(&request_dir.handle, file))?;
            match self.files.remove_directory(&claim_dir.handle, entry) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => return Ok(Removal::Incomplete),
                removed => call.io("remove", &request_dir.path, removed)?,
            }
        }
        match self.files.remove_directory(&root.handle, claim_entry) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(Removal::Incomplete),
            removed => call.io("remove", &claim_dir.path, removed).map(|()| Removal::Complete),
        }
    }

    /// Whether a directory without a record may be a leftover of this claim, and has no files of another claim.
    pub(super) fn is_leftover(&self, call: StoreCall<'_>, claim_dir: &OpenDirectory) -> Result<bool, StoreError> {
        let is_foreign = |content: &[u8]| {
            decode(content).is_ok_and(|decoded| decoded.metadata.metadata.uid != call.claim.uid.as_str())
        };
        Ok(!self.request_files(call, claim_dir)?.iter().any(|(_, content)| is_foreign(content)))
    }

    /// Returns the requests that have a directory, each with the content of its metadata file.
    pub(super) fn request_files(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
    ) -> Result<Vec<(RequestName, Vec<u8>)>, StoreError> {
        let mut files = Vec::new();
        for name in call.io("list", &claim_dir.path, self.files.list(&claim_dir.handle))? {
            let Ok(request) = RequestName::new(name) else { continue };
            let Ok(Some(request_dir)) = self.open_request_directory(call, claim_dir, &request) else { continue };
            let file = call.entry(HOST_FILE, (&request_dir, HOST_FILE))?;
            let content = self.files.read(&request_dir.handle, file).unwrap_or_default();
            files.push((request, content));
        }
        Ok(files)
    }

    /// Removes a claim's directory: the record first, so that a crash leaves a directory that is known to be a leftover.
    ///
    /// The requests in the record are removed by name. The directory is listed only if that leaves something.
    pub(super) fn remove_claim_directory(
        &self,
        call: StoreCall<'_>,
        root: &OpenDirectory,
        claim_dir: &OpenDirectory,
        record: Option<&Record>,
    ) -> Result<(), StoreError> {
        let path = (claim_dir, record::FILE);
        let entry = call.entry(record::FILE, path)?;
        call.io("remove", path, self.files.remove_file(&claim_dir.handle, entry))?;
        for request in record.iter().flat_map(|record| record.requests.keys()) {
            self.remove_request(call, claim_dir, request.as_str())?;
        }
        let name = claim_dir.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let entry = call.entry(name, &claim_dir.path)?;
        self.remove_directory(call, &root.handle, entry, claim_dir, |name| self.remove_request(call, claim_dir, name))
    }

    /// Removes an entry of a claim's directory: a request's directory with our files, or a foreign file.
    pub(super) fn remove_request(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
        name: &str,
    ) -> Result<(), StoreError> {
        let path = (claim_dir, name);
        let entry = call.entry(name, path)?;
        match self.files.open_directory(&claim_dir.handle, entry) {
            Ok(handle) => {
                let request_dir = OpenDirectory { handle, path: path.to_path() };
                let remove = |name: &str| {
                    let path = (&request_dir, name);
                    call.io("remove", path, self.files.remove_file(&request_dir.handle, call.entry(name, path)?))
                };
                remove(HOST_FILE)?;
                self.remove_directory(call, &claim_dir.handle, entry, &request_dir, remove)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // Not a directory, or a link: removed itself, never followed.
            Err(_) => call.io("remove", path, self.files.remove_file(&claim_dir.handle, entry)),
        }
    }

    /// Removes a directory, and its entries first if it is not empty.
    fn remove_directory(
        &self,
        call: StoreCall<'_>,
        parent: &Directory,
        name: Entry<'_>,
        claim_dir: &OpenDirectory,
        remove_entry: impl Fn(&str) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match self.files.remove_directory(parent, name) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            removed => return call.io("remove", &claim_dir.path, removed),
        }
        for entry in call.io("list", &claim_dir.path, self.files.list(&claim_dir.handle))? {
            remove_entry(&entry)?;
        }
        call.io("remove", &claim_dir.path, self.files.remove_directory(parent, name))
    }
}

/// Returns the name under which a file is written before it is renamed. Runtimes load no files with this extension.
pub(super) fn temporary_name(name: &str) -> String {
    temporary_parts(name).concat()
}

/// Returns the length of [`temporary_name`].
pub(super) fn temporary_name_length(name: &str) -> usize {
    temporary_parts(name).map(str::len).iter().sum()
}

fn temporary_parts(name: &str) -> [&str; 3] {
    [".", name.trim_start_matches('.'), ".tmp"]
}
