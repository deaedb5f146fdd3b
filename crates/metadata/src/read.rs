//! Reading as a workload does: from the name of a claim and a request to its devices.
//!
//! [`Reader::read`] gives one request, [`Reader::discover`] everything that this container can see, [`Reader::wait`]
//! what is still to come. All of them know both layouts that are written today, and the older ones; a file that is
//! mounted in both counts once. What is broken never hides what could be read: results carry their problems with
//! them.

mod error;
mod filesystem;
mod find;
mod found;
mod query;
mod root;
mod snapshot;
mod wait;

use std::path::Path;
use std::time::Duration;

pub use error::{ErrorClass, ReadError};
pub use find::{Discovery, MetadataFile};
pub use query::{ClaimKey, ClaimSelector, Query, QueryError};
use root::{Identity, OpenError, Root};
use snapshot::{Patience, SnapshotError};

use crate::decode::{DecodeError, Decoded, Decoder};
use crate::merge::merge;
use crate::types::{Device, DeviceMetadata};

/// The largest file that is read. A metadata file has some kilobytes.
pub const MAX_FILE_SIZE: u64 = 1024 * 1024;
/// How many files are read at once, for one request or for all.
pub const MAX_FILES: usize = 4096;
/// How many bytes all files together may have that are read at once.
pub const MAX_TOTAL_SIZE: u64 = 8 * 1024 * 1024;

/// How much memory the content of all files together may take.
pub const MAX_CONTENT: usize = 8 * 1024 * 1024;
/// What one look may cost: 1 for each name in a directory, 4 for each directory and file that is opened.
///
/// Each entry of a directory has an equal part of what is left, so a directory full of links to other directories takes
/// nothing from the claims beside it.
pub const MAX_COST: usize = 500_000;

/// Reads the metadata files that are mounted into this container, or into another one.
///
/// ```
/// use drakkar_metadata::{Query, Reader};
///
/// let reader = Reader::new();
/// let query: Query = "my-claim/gpu".parse()?;
/// match reader.read(&query) {
///     Ok(request) => {
///         for device in request.devices() {
///             println!("{}: {:?}", device.name, device.pci_bus_id());
///         }
///     }
///     Err(error) => eprintln!("{error}"),
/// }
/// # Ok::<(), drakkar_metadata::read::QueryError>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    root: Root,
    decoder: Decoder,
    recheck: Duration,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// Reads what this process sees.
    pub fn new() -> Self {
        Self { root: Root::Own, decoder: Decoder::new(), recheck: Duration::from_secs(1) }
    }

    /// Reads below another root directory, for example `/proc/PID/root` for another container. No symbolic link
    /// below it leads out of it; for that the kernel must have `openat2` (Linux 5.6). What is there on procfs, sysfs and
    /// the like is not opened.
    ///
    /// The path itself must have no symbolic links but those of procfs: part of it may be in the hands of the container
    /// that is looked at. One that has is an error that says how to resolve it.
    pub fn with_root(root: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = root.as_ref();
        let root = Root::new(path).map_err(|error| ReadError::Io { path: path.to_owned(), error })?;
        Ok(Self { root, ..Self::new() })
    }

    /// Reads the released versions of the format only; see [`Decoder::released_only`].
    #[must_use]
    pub fn released_only(mut self) -> Self {
        self.decoder = Decoder::released_only();
        self
    }

    /// How often [`Reader::wait`] looks again without having been woken: every second, if nothing else is said.
    ///
    /// Changes wake it at once wherever the kernel can tell of them; over virtiofs, in a sandboxed container, it
    /// cannot.
    #[must_use]
    pub fn recheck_every(mut self, interval: Duration) -> Self {
        self.recheck = interval.max(Duration::from_millis(10));
        self
    }

    /// Reads the metadata of one request: every driver's file, merged.
    ///
    /// Succeeds when at least one file could be read; [`RequestMetadata::problems`] has what else there is. To have
    /// all of it or an error, continue with [`RequestMetadata::complete`].
    pub fn read(&self, query: &Query) -> Result<RequestMetadata, ReadError> {
        self.read_within(query, Patience::default())
    }

    fn read_within(&self, query: &Query, patience: Patience) -> Result<RequestMetadata, ReadError> {
        RequestMetadata::from_files(query, self.find(query, patience)?)
    }

    /// Reads one metadata file by its path in the container.
    pub fn read_file(&self, path: &Path) -> Result<Decoded, ReadError> {
        self.decode_one(path, &self.read_bytes(path)?)
    }

    /// The bytes of one file, consistent even while it is being updated.
    pub fn read_bytes(&self, path: &Path) -> Result<Vec<u8>, ReadError> {
        self.load(path, Patience::default()).map(|(_, bytes)| bytes)
    }

    fn load(&self, path: &Path, patience: Patience) -> Result<(Identity, Vec<u8>), ReadError> {
        let outside = || self.root.outside(path);
        let open = self.root.open_file(path).map_err(|error| match error {
            OpenError::Io(error) => ReadError::Io { path: outside(), error },
            OpenError::NotAFile(kind) => ReadError::NotAFile { path: outside(), kind },
        })?;
        let bytes = snapshot::read(&open.file, open.size, MAX_FILE_SIZE, patience).map_err(|error| match error {
            SnapshotError::Io(error) => ReadError::Io { path: outside(), error },
            SnapshotError::TooLarge => ReadError::TooLarge { path: outside() },
            SnapshotError::Unsettled => ReadError::Unsettled { path: outside() },
        })?;
        Ok((open.identity, bytes))
    }

    fn decode_one(&self, path: &Path, bytes: &[u8]) -> Result<Decoded, ReadError> {
        self.decode_with(path, bytes, |bytes| self.decoder.decode(bytes))
    }

    fn decode_claims(&self, path: &Path, bytes: &[u8]) -> Result<Vec<Decoded>, ReadError> {
        self.decode_with(path, bytes, |bytes| self.decoder.decode_claims(bytes))
    }

    /// An empty file is one that its driver has yet to write; all else is for the decoder to judge.
    fn decode_with<T>(
        &self,
        path: &Path,
        bytes: &[u8],
        decode: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<T, ReadError> {
        if bytes.is_empty() {
            return Err(ReadError::NotWritten { path: self.root.outside(path) });
        }
        decode(bytes).map_err(|error| ReadError::Decode { path: self.root.outside(path), error })
    }
}

/// What the drivers say about one request.
#[derive(Debug)]
#[non_exhaustive]
pub struct RequestMetadata {
    /// Everything that could be read, merged ([`merge`]).
    pub metadata: DeviceMetadata,
    /// The files that could be read, each with its own object metadata, in the lexical order of the files' names.
    pub files: Vec<MetadataFile>,
    /// What could not: files that are not written yet ([`ReadError::NotWritten`]) and files that are broken.
    pub problems: Vec<ReadError>,
}

impl RequestMetadata {
    fn from_files(query: &Query, found: Discovery) -> Result<Self, ReadError> {
        let Discovery { files: found, mut problems } = found;
        let mut files = Vec::with_capacity(found.len());
        for mut file in found {
            let Ok(decoded) = &mut file.content else {
                problems.extend(file.content.err());
                continue;
            };
            let requests = &mut decoded.metadata.requests;
            // A file of VEP 10 has all requests of a claim; any other is about the request of its directory.
            if file.request.is_some() && !requests.is_empty() && !requests.iter().any(|entry| query.is_about(entry)) {
                let found = requests.iter().map(|request| request.name.clone()).collect();
                problems.push(ReadError::OtherRequest { path: file.path, request: query.request.clone(), found });
                continue;
            }
            requests.retain(|entry| query.is_about(entry) && query.wants(entry));
            files.push(file);
        }
        if files.is_empty() {
            return Err(ReadError::all(problems));
        }
        let has_request = |file: &MetadataFile| file.requests().next().is_some();
        if query.subrequest.is_some() && !files.iter().any(has_request) {
            let looked_in = files.into_iter().map(|file| file.path).collect();
            return Err(ReadError::NotFound { query: Box::new(query.clone()), looked_in });
        }
        let contents = files.iter().filter_map(|file| file.content.as_ref().ok());
        let metadata = merge(contents.map(|decoded| &decoded.metadata));
        Ok(Self { metadata, files, problems })
    }

    /// All devices of the request.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.metadata.requests.iter().flat_map(|request| &request.devices)
    }

    /// The same, if nothing is missing; otherwise all problems as one error.
    pub fn complete(self) -> Result<Self, ReadError> {
        if self.problems.is_empty() { Ok(self) } else { Err(ReadError::all(self.problems)) }
    }
}
