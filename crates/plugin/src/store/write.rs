//! Writing and removing: files in place, files by renaming, records, specs, and whole claims.

use std::io;

use drakkar_cdi::MetadataDevice;
use drakkar_metadata::decode;
use drakkar_metadata::name::{ClaimUid, RequestName};
use drakkar_metadata::path::HOST_FILE;

use super::documents::generation_of;
use super::files::Files;
use super::place::{Place, Step};
use super::record::{self, ClaimKey, Record};
use super::{Store, StoreError};

/// The write-ahead copy of an update.
pub(super) const NEXT: &str = ".metadata.json.next";

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
            self.files.lock(&file)?;
            self.files.write(&file, &content).inspect_err(|_| {
                // Half of it may be there. The old content takes no new space, so it goes back in.
                is_torn = self.files.write(&file, old).is_err();
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
        if generation_of(&content).is_some() || content.iter().all(|byte| *byte == b'\n') {
            let path = directory.path.join(HOST_FILE);
            let name = step.entry(HOST_FILE, &path)?;
            let file = step.on("open", &path, self.files.open_for_update(&directory.directory, name))?;
            step.on("lock", &path, self.files.lock(&file))?;
            step.on("write", &path, self.files.write(&file, &content))?;
        }
        step.on("remove", &next_path, self.files.remove_file(&directory.directory, next))
    }

    pub(super) fn write_record(&self, step: Step<'_>, place: &Place, record: &Record) -> Result<(), StoreError> {
        self.write_atomically(step, place, record::FILE, &record.encode())
    }

    /// The record, if there is a whole one.
    pub(super) fn read_record(&self, step: Step<'_>, place: &Place) -> Result<Option<Record>, StoreError> {
        let path = place.path.join(record::FILE);
        let name = step.entry(record::FILE, &path)?;
        match self.files.read(&place.directory, name) {
            Ok(bytes) => Ok(Record::decode(&bytes)),
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
            // The first error is the one to tell; the next write of this file removes what is left.
            let _ = self.files.remove_file(parent, temporary);
        }
        step.on("write", &path, written)
    }

    pub(super) fn write_spec(&self, step: Step<'_>, device: &MetadataDevice, spec: &[u8]) -> Result<(), StoreError> {
        let cdi = match self.open_cdi(step)? {
            Some(cdi) => cdi,
            None => {
                let path = &self.settings.cdi_directory;
                step.on("make directory", path, self.files.make_root(path))?;
                let directory = step.on("open", path, self.files.open_root(path))?;
                Place { directory, path: path.clone() }
            }
        };
        let name = device.file_name();
        let path = cdi.path.join(&name);
        let entry = step.entry(&name, &path)?;
        // Runtimes read all specs again whenever one is written: one that is right is left alone.
        if self.files.read(&cdi.directory, entry).is_ok_and(|present| present == spec) {
            return Ok(());
        }
        self.write_atomically(step, &cdi, &name, spec)
    }

    pub(super) fn remove_spec(&self, step: Step<'_>, device: &MetadataDevice) -> Result<(), StoreError> {
        let Some(cdi) = self.open_cdi(step)? else { return Ok(()) };
        let name = device.file_name();
        let path = cdi.path.join(&name);
        step.on("remove", &path, self.files.remove_file(&cdi.directory, step.entry(&name, &path)?))?;
        let temporary = temporary(&name);
        step.on("remove", &path, self.files.remove_file(&cdi.directory, step.entry(&temporary, &path)?))
    }

    /// Removes the specs of a claim's requests: those that its record names or, without one, those that its files
    /// belong to.
    pub(super) fn remove_specs(
        &self,
        step: Step<'_>,
        place: &Place,
        record: Option<&Record>,
    ) -> Result<(), StoreError> {
        let of = |uid: &ClaimUid| ClaimKey { uid: uid.clone(), ..step.0.clone() };
        if let Some(record) = record {
            return record
                .requests
                .keys()
                .try_for_each(|request| self.remove_spec(step, &self.device(&of(&record.uid), request)?));
        }
        for (request, content) in self.request_files(step, place)? {
            let uid = decode(&content).ok().and_then(|decoded| decoded.metadata.metadata.uid.parse().ok());
            let uid = uid.unwrap_or_else(|| step.0.uid.clone());
            self.remove_spec(step, &self.device(&of(&uid), &request)?)?;
        }
        Ok(())
    }

    /// Whether a directory without a record can be what is left of this claim, and not another's files.
    pub(super) fn is_leftover_of(&self, step: Step<'_>, place: &Place) -> Result<bool, StoreError> {
        let is_anothers =
            |content: &[u8]| decode(content).is_ok_and(|decoded| decoded.metadata.metadata.uid != step.0.uid.as_str());
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
    pub(super) fn remove_place(&self, step: Step<'_>, place: &Place) -> Result<(), StoreError> {
        for name in [record::FILE.to_owned(), temporary(record::FILE)] {
            let path = place.path.join(&name);
            step.on("remove", &path, self.files.remove_file(&place.directory, step.entry(&name, &path)?))?;
        }
        for name in step.on("list", &place.path, self.files.list(&place.directory))? {
            self.remove_request(step, place, &name)?;
        }
        let Some(root) = self.open_root(step)? else { return Ok(()) };
        let name = place.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let entry = step.entry(name, &place.path)?;
        step.on("remove", &place.path, self.files.remove_directory(&root.directory, entry))
    }

    /// Removes an entry of a claim's directory: a request's directory with what we put there, or a planted file.
    pub(super) fn remove_request(&self, step: Step<'_>, place: &Place, name: &str) -> Result<(), StoreError> {
        let path = place.path.join(name);
        let entry = step.entry(name, &path)?;
        match self.files.open_directory(&place.directory, entry) {
            Ok(directory) => {
                for file in step.on("list", &path, self.files.list(&directory))? {
                    let path = path.join(&file);
                    step.on("remove", &path, self.files.remove_file(&directory, step.entry(&file, &path)?))?;
                }
                step.on("remove", &path, self.files.remove_directory(&place.directory, entry))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // Not a directory, or a link: it is not followed, and goes as what it is.
            Err(_) => step.on("remove", &path, self.files.remove_file(&place.directory, entry)),
        }
    }
}

/// Where a file is written before it gets its name: runtimes load no file that ends like this.
pub(super) fn temporary(name: &str) -> String {
    format!(".{}.tmp", name.trim_start_matches('.'))
}
