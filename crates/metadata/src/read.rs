//! Reads metadata files in a container, by the names of a claim and a request.
//!
//! [`Reader::read`] returns one request, [`Reader::select`] the files of a claim, [`Reader::discover`] all metadata in the
//! container, [`Reader::wait`] metadata that is not written yet, and [`Reader::watch`] every change. All of them know both
//! current layouts and the older ones; a file that is mounted in both layouts counts once. A broken file never hides the others: results have their errors in a list beside them.

mod directories;
mod error;
mod filesystem;
mod find;
mod query;
mod root;
mod search;
mod selection;
mod snapshot;
mod wait;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use directories::Wanted;
pub use error::{ErrorClass, ReadError};
pub use find::{Discovery, MetadataFile};
pub use query::{ClaimKey, ClaimSelector, Query, QueryError};
use root::{Identity, ListError, OpenError, Root};
pub use selection::Selection;
use snapshot::{Deadlines, SnapshotError};

use crate::decode::{DecodeError, Decoded, Decoder};
use crate::merge::merge;
use crate::types::{Device, Metadata};

/// The maximum size of a file in bytes. A metadata file has a few kilobytes.
pub const MAX_FILE_SIZE: u64 = 1024 * 1024;
/// The maximum number of files that one search reads, for one request or for all.
pub const MAX_FILES: usize = 4096;
/// The maximum size in bytes of all files that one search reads.
pub const MAX_TOTAL_SIZE: u64 = 8 * 1024 * 1024;

/// The maximum memory in bytes for the content of all files that one search reads.
pub const MAX_CONTENT: usize = 8 * 1024 * 1024;
/// The maximum cost of a search: 1 for each name in a directory, 4 for each directory and file that is opened.
///
/// Each entry of a directory gets an equal share of the remaining budget, so a directory full of links to other
/// directories takes nothing from other claims.
pub const MAX_COST: usize = 500_000;

/// Reads the metadata files in this container, or in another one.
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
    /// Creates a reader of the process's own file system.
    pub fn new() -> Self {
        Self { root: Root::Own, decoder: Decoder::new(), recheck: Duration::from_secs(1) }
    }

    /// Creates a reader below another root directory, for example `/proc/PID/root` for another container.
    ///
    /// No symbolic link below the root leads out of it, which needs `openat2` (Linux 5.6). Files on procfs, sysfs and
    /// other pseudo file systems are not opened.
    ///
    /// # Errors
    /// If `root` cannot be opened, or has a symbolic link other than those of procfs: the container could have made it.
    pub fn with_root(root: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = root.as_ref();
        let root = Root::new(path).map_err(|error| ReadError::Io { path: path.to_owned(), error })?;
        Ok(Self { root, ..Self::new() })
    }

    /// Decodes only the released versions of the format; see [`Decoder::released_only`].
    #[must_use]
    pub fn released_only(mut self) -> Self {
        self.decoder = Decoder::released_only();
        self
    }

    /// Sets the polling interval of [`Reader::wait`]. The default is one second.
    ///
    /// Polling is for file systems without inotify events, such as virtiofs in a sandboxed container; elsewhere a change
    /// is noticed at once.
    #[must_use]
    pub fn recheck_every(mut self, interval: Duration) -> Self {
        self.recheck = interval.max(Duration::from_millis(10));
        self
    }

    /// Reads the metadata of one request: the files of all drivers, merged.
    ///
    /// Succeeds if at least one file could be read; [`RequestMetadata::problems`] has the errors of the others.
    /// [`RequestMetadata::complete`] makes them an error.
    pub fn read(&self, query: &Query) -> Result<RequestMetadata, ReadError> {
        self.read_within(query, Deadlines::default())
    }

    fn read_within(&self, query: &Query, deadlines: Deadlines) -> Result<RequestMetadata, ReadError> {
        let found = self.find(&Wanted::request(query), deadlines)?;
        RequestMetadata::from_files(narrow(query, found)?)
    }

    /// Reads one metadata file by its path in the container.
    pub fn read_file(&self, path: &Path) -> Result<Decoded, ReadError> {
        self.decode_one(path, &self.read_bytes(path)?)
    }

    /// Reads the bytes of a file, consistently even while it is being updated.
    pub fn read_bytes(&self, path: &Path) -> Result<Vec<u8>, ReadError> {
        self.load(path, Deadlines::default()).map(|(_, bytes)| bytes)
    }

    /// Returns the names of a directory's entries in lexical order: for programs with a layout of their own.
    ///
    /// # Errors
    /// If the directory cannot be read, or has more entries than any directory of metadata.
    pub fn list_directory(&self, path: &Path) -> Result<Vec<OsString>, ReadError> {
        let outside = || self.root.outside(path);
        self.root.list(path, MAX_COST, Deadlines::default().search_until()).map_err(|error| match error {
            ListError::Io(error) => ReadError::Io { path: outside(), error },
            ListError::TooMany => ReadError::TooManyEntries { path: outside() },
            ListError::OutOfTime => ReadError::OutOfTime { path: outside() },
        })
    }

    fn load(&self, path: &Path, deadlines: Deadlines) -> Result<(Identity, Vec<u8>), ReadError> {
        let outside = || self.root.outside(path);
        let open = self.root.open_file(path).map_err(|error| match error {
            OpenError::Io(error) => ReadError::Io { path: outside(), error },
            OpenError::NotAFile(kind) => ReadError::NotAFile { path: outside(), kind },
        })?;
        let bytes = snapshot::read(&open.file, open.size, MAX_FILE_SIZE, deadlines).map_err(|error| match error {
            SnapshotError::Io(error) => ReadError::Io { path: outside(), error },
            SnapshotError::TooLarge => ReadError::TooLarge { path: outside() },
            SnapshotError::Changing => ReadError::Changing { path: outside() },
        })?;
        Ok((open.identity, bytes))
    }

    fn decode_one(&self, path: &Path, bytes: &[u8]) -> Result<Decoded, ReadError> {
        self.decode_with(path, bytes, |bytes| self.decoder.decode(bytes))
    }

    fn decode_claims(&self, path: &Path, bytes: &[u8]) -> Result<Vec<Decoded>, ReadError> {
        self.decode_with(path, bytes, |bytes| self.decoder.decode_claims(bytes))
    }

    /// Decodes the bytes of a file. An empty file is one that its driver has not written yet.
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

/// The metadata of one request, from all drivers.
#[derive(Debug)]
#[non_exhaustive]
pub struct RequestMetadata {
    /// The content of all files that could be read, merged ([`merge`]).
    pub metadata: Metadata,
    /// The files that could be read, each with its own object metadata, in lexical order of their names.
    pub files: Vec<MetadataFile>,
    /// The errors of the other files: those not written yet ([`ReadError::NotWritten`]) and those that are broken.
    pub problems: Vec<ReadError>,
}

impl RequestMetadata {
    fn from_files(found: Discovery) -> Result<Self, ReadError> {
        let Discovery { files: discovered, mut problems } = found;
        let mut files = Vec::with_capacity(discovered.len());
        for file in discovered {
            match file.content {
                Ok(_) => files.push(file),
                Err(error) => problems.push(error),
            }
        }
        if files.is_empty() {
            return Err(ReadError::all(problems));
        }
        let contents = files.iter().filter_map(|file| file.content.as_ref().ok());
        let metadata = merge(contents.map(|decoded| &decoded.metadata));
        Ok(Self { metadata, files, problems })
    }

    /// Returns all devices of the request.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.metadata.requests.iter().flat_map(|request| &request.devices)
    }

    /// Returns the metadata if it is complete, otherwise all problems as one error.
    pub fn complete(self) -> Result<Self, ReadError> {
        if self.problems.is_empty() { Ok(self) } else { Err(ReadError::all(self.problems)) }
    }
}

/// Removes the other requests from the files of a query. The content of a file that is not about the request becomes an
/// error.
fn narrow(query: &Query, mut found: Discovery) -> Result<Discovery, ReadError> {
    for file in &mut found.files {
        let Ok(decoded) = &mut file.content else { continue };
        let requests = &mut decoded.metadata.requests;
        // A file of VEP 10 has all requests of a claim; any other has the request of its directory.
        if file.request.is_some() && !requests.is_empty() && !requests.iter().any(|entry| query.is_about(entry)) {
            let names = requests.iter().map(|request| request.name.clone()).collect();
            let path = file.path.clone();
            file.content = Err(ReadError::OtherRequest { path, request: query.request.clone(), found: names });
            continue;
        }
        requests.retain(|entry| query.is_about(entry) && query.matches_subrequest(entry));
    }
    let mut readable = found.files.iter().filter(|file| file.content.is_ok()).peekable();
    if query.subrequest.is_some() && readable.peek().is_some() && readable.all(|file| file.requests().next().is_none())
    {
        let looked_in = found.files.into_iter().filter(|file| file.content.is_ok()).map(|file| file.path).collect();
        return Err(ReadError::NotFound { selection: Box::new(Selection::Request(query.clone())), looked_in });
    }
    Ok(found)
}
