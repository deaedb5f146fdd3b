//! Writing and removing: files in place, files by renaming, records, specs, and whole claims.

use std::io;

use drakkar_cdi::MetadataDevice;
use drakkar_client::ClaimRef;
use drakkar_metadata::decode;
use drakkar_metadata::name::RequestName;
use drakkar_metadata::path::HOST_FILE;

use super::directory::directory_name;
use super::documents::{generation_of, is_blank, owner_of};
use super::files::{Directory, Entry, Files};
use super::place::{Place, Step};
use super::record::{self, Record};
use super::{Store, StoreError};

/// The write-ahead copy of an update.
pub(super) const NEXT: &str = ".metadata.json.next";

/// Whether a spec is expected to be there when it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// Then it is looked at first: runtimes read all specs again whenever one is written.
    Likely,
    /// Then it is just written.
    Unlikely,
}

impl<F: Files> Store<F> {
    /// Replaces a file's content so that whoever has it open or mounted sees the new one, and a crash at any moment
    /// leaves the old or the new. The file never shrinks: what is left over is filled with newlines.
    pub(super) fn write_in_place(
        &self,
        step: Step<'_>,
        directory: &Place,
        old: &[u8],
        mut content: Vec<u8>,
    ) -> Result<(), StoreError> {
        content.resize(content.len().max(old.len()), b'\n');
        self.write_atomically(step, directory, NEXT, &content)?;
        let path = directory.path.join(HOST_FILE);
        let name = step.entry(HOST_FILE, &path)?;
        let mut is_torn = false;
        let written = self.files.open_for_update(&directory.directory, name).and_then(|file| {
            self.files.lock(&file, step.patience)?;
            self.files.write(&file, &content).inspect_err(|_| {
                // Half of it may be there, and more than the old had. The old content and newlines take no new space, so
                // they go in.
                let size = file.metadata().map_or(content.len(), |metadata| metadata.len() as usize);
                let mut back = old.to_vec();
                back.resize(size.max(old.len()), b'\n');
                is_torn = self.files.write(&file, &back).is_err();
            })
        });
        if is_torn {
            // Neither the new nor the old could be written: the copy stays, and whoever comes next finishes the update.
            return step.on("write", &path, written);
        }
        let next_path = directory.path.join(NEXT);
        let next = step.entry(NEXT, &next_path)?;
        let removed = self.files.remove_file(&directory.directory, next);
        step.on("write", &path, written)?;
        step.on("remove", &next_path, removed)
    }

    /// Does what an update that was cut off had left to do.
    pub(super) fn finish_update(&self, step: Step<'_>, directory: &Place) -> Result<(), StoreError> {
        let next_path = directory.path.join(NEXT);
        let next = step.entry(NEXT, &next_path)?;
        let content = match self.files.read(&directory.directory, next) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return step.on("read", &next_path, Err(error)),
        };
        // A copy is renamed into place when it is whole, so one that cannot be read is not of this boot.
        if generation_of(&content).is_some() || is_blank(&content) {
            let path = directory.path.join(HOST_FILE);
            let name = step.entry(HOST_FILE, &path)?;
            let opened = match self.files.open_for_update(&directory.directory, name) {
                // Gone while its copy is not: it was being removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.files.create(&directory.directory, name),
                opened => opened,
            };
            let file = step.on("open", &path, opened)?;
            step.on("lock", &path, self.files.lock(&file, step.patience))?;
            step.on("write", &path, self.files.write(&file, &content))?;
        }
        step.on("remove", &next_path, self.files.remove_file(&directory.directory, next))
    }

    pub(super) fn write_record(&self, step: Step<'_>, place: &Place, record: &Record) -> Result<(), StoreError> {
        self.write_atomically(step, place, record::FILE, &record.encode())
    }

    /// Writes the record of a directory that has none, straight to its place: nobody looks for it there before the call
    /// is over, and half of one is none at the next start.
    pub(super) fn write_first_record(&self, step: Step<'_>, place: &Place, record: &Record) -> Result<(), StoreError> {
        let path = place.path.join(record::FILE);
        let name = step.entry(record::FILE, &path)?;
        let file = step.on("create", &path, self.files.create(&place.directory, name))?;
        step.on("write", &path, self.files.write(&file, &record.encode()))
    }

    /// The record, if there is a whole one that is of the claim whose directory this is.
    pub(super) fn read_record(&self, step: Step<'_>, place: &Place) -> Result<Option<Record>, StoreError> {
        let path = place.path.join(record::FILE);
        let name = step.entry(record::FILE, &path)?;
        match self.files.read(&place.directory, name) {
            Ok(bytes) => Ok(Record::decode(&bytes).filter(|record| {
                let ClaimRef { namespace, name, .. } = &record.claim;
                place.is_called(&directory_name(namespace, name))
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => step.on("read", &path, Err(error)),
        }
    }

    /// A file's content; a file that is not there has none.
    pub(super) fn read_metadata(&self, step: Step<'_>, directory: &Place) -> Result<Vec<u8>, StoreError> {
        let path = directory.path.join(HOST_FILE);
        let name = step.entry(HOST_FILE, &path)?;
        match self.files.read(&directory.directory, name) {
            Ok(content) => Ok(content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // It must exist for a container to be created, and for an update to be written into.
                step.on("create", &path, self.files.create(&directory.directory, name))?;
                Ok(Vec::new())
            }
            Err(error) => step.on("read", &path, Err(error)),
        }
    }

    /// Writes a file beside its place and renames it there: whole or not at all.
    pub(super) fn write_atomically(
        &self,
        step: Step<'_>,
        directory: &Place,
        name: &str,
        content: &[u8],
    ) -> Result<(), StoreError> {
        let path = directory.path.join(name);
        let temporary_name = temporary(name);
        let name = step.entry(name, &path)?;
        let temporary = step.entry(&temporary_name, &path)?;
        let parent = &directory.directory;
        let written = self.files.create(parent, temporary).or_else(|error| match error.kind() {
            // A crash left it there: its content is nobody's.
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
            // The first error is the one to tell; the next write of this file, or the next start, removes what is left.
            let _ = self.files.remove_file(parent, temporary);
        }
        step.on("write", &path, written)
    }

    pub(super) fn write_spec(
        &self,
        step: Step<'_>,
        cdi: &Place,
        device: &MetadataDevice,
        spec: &[u8],
        presence: Presence,
    ) -> Result<(), StoreError> {
        let name = device.file_name();
        let path = cdi.path.join(&name);
        let entry = step.entry(&name, &path)?;
        if presence == Presence::Likely && self.files.read(&cdi.directory, entry).is_ok_and(|present| present == spec) {
            return Ok(());
        }
        self.write_atomically(step, cdi, &name, spec)
    }

    pub(super) fn remove_spec(&self, step: Step<'_>, cdi: &Place, device: &MetadataDevice) -> Result<(), StoreError> {
        let name = device.file_name();
        let path = cdi.path.join(&name);
        step.on("remove", &path, self.files.remove_file(&cdi.directory, step.entry(&name, &path)?))
    }

    /// Removes the specs of a claim's requests: those that its record names or, without one, those that its files
    /// belong to.
    pub(super) fn remove_specs(
        &self,
        step: Step<'_>,
        place: &Place,
        record: Option<&Record>,
    ) -> Result<(), StoreError> {
        let Some(cdi) = self.open_cdi(step)? else { return Ok(()) };
        if let Some(record) = record {
            let mut requests = record.requests.keys();
            return requests
                .try_for_each(|request| self.remove_spec(step, &cdi, &self.device(&record.claim, request)?));
        }
        for (request, content) in self.request_files(step, place)? {
            let owner = match decode(&content) {
                // A file that was copied here from elsewhere: the spec is that of the claim that it is from.
                Ok(decoded) => owner_of(&decoded.metadata, place),
                Err(_) => Some(step.claim.clone()),
            };
            if let Some(owner) = owner {
                self.remove_spec(step, &cdi, &self.device(&owner, &request)?)?;
            }
        }
        Ok(())
    }

    /// Whether a directory without a record can be what is left of this claim, and not another's files.
    pub(super) fn is_leftover_of(&self, step: Step<'_>, place: &Place) -> Result<bool, StoreError> {
        let is_anothers = |content: &[u8]| {
            decode(content).is_ok_and(|decoded| decoded.metadata.metadata.uid != step.claim.uid.as_str())
        };
        Ok(!self.request_files(step, place)?.iter().any(|(_, content)| is_anothers(content)))
    }

    /// The requests that have a directory, each with the content of its file.
    pub(super) fn request_files(
        &self,
        step: Step<'_>,
        place: &Place,
    ) -> Result<Vec<(RequestName, Vec<u8>)>, StoreError> {
        let mut files = Vec::new();
        for name in step.on("list", &place.path, self.files.list(&place.directory))? {
            let Ok(request) = RequestName::new(name) else { continue };
            let Ok(Some(directory)) = self.open_request_directory(step, place, &request) else { continue };
            let path = directory.path.join(HOST_FILE);
            let content = self.files.read(&directory.directory, step.entry(HOST_FILE, &path)?).unwrap_or_default();
            files.push((request, content));
        }
        Ok(files)
    }

    /// Removes a claim's directory: its record first, so that what a crash leaves is known to be rubbish.
    ///
    /// What the record names is removed by name. Only if that leaves something is the directory listed.
    pub(super) fn remove_place(
        &self,
        step: Step<'_>,
        root: &Place,
        place: &Place,
        record: Option<&Record>,
    ) -> Result<(), StoreError> {
        let path = place.path.join(record::FILE);
        let entry = step.entry(record::FILE, &path)?;
        step.on("remove", &path, self.files.remove_file(&place.directory, entry))?;
        for request in record.iter().flat_map(|record| record.requests.keys()) {
            self.remove_request(step, place, request.as_str())?;
        }
        let name = place.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let entry = step.entry(name, &place.path)?;
        self.remove_directory(step, &root.directory, entry, place, |name| self.remove_request(step, place, name))
    }

    /// Removes an entry of a claim's directory: a request's directory with what we put there, or a planted file.
    pub(super) fn remove_request(&self, step: Step<'_>, place: &Place, name: &str) -> Result<(), StoreError> {
        let path = place.path.join(name);
        let entry = step.entry(name, &path)?;
        match self.files.open_directory(&place.directory, entry) {
            Ok(directory) => {
                let request = Place { directory, path };
                let remove = |name: &str| {
                    let path = request.path.join(name);
                    step.on("remove", &path, self.files.remove_file(&request.directory, step.entry(name, &path)?))
                };
                remove(HOST_FILE)?;
                self.remove_directory(step, &place.directory, entry, &request, remove)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // Not a directory, or a link: it is not followed, and goes as what it is.
            Err(_) => step.on("remove", &path, self.files.remove_file(&place.directory, entry)),
        }
    }

    /// Removes a directory, and before that, if it turns out to have any, its entries.
    fn remove_directory(
        &self,
        step: Step<'_>,
        parent: &Directory,
        name: Entry<'_>,
        place: &Place,
        remove_entry: impl Fn(&str) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match self.files.remove_directory(parent, name) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            removed => return step.on("remove", &place.path, removed),
        }
        for entry in step.on("list", &place.path, self.files.list(&place.directory))? {
            remove_entry(&entry)?;
        }
        step.on("remove", &place.path, self.files.remove_directory(parent, name))
    }
}

/// Where a file is written before it gets its name: runtimes load no file that ends like this.
pub(super) fn temporary(name: &str) -> String {
    format!(".{}.tmp", name.trim_start_matches('.'))
}
