//! The journal of a driver: what was changed in the kernel for which claim, and what it was before.
//!
//! One file for each claim, `{state directory}/{claim UID}.json`, replaced by a rename. A driver writes the file before the first
//! change that it names, and removes it after the last change is taken back. So at any moment the files name everything that
//! has to be taken back, and a crash between any two system calls leaves nothing unknown.
//!
//! One file for each claim and not for each device, because a claim is prepared or not prepared as a whole: the rename of one
//! file is the moment at which that changes. What several claims need is in the file of each of them, with the same former
//! state. There is no counter that could get out of step: a change is taken back when no other file names it.
//!
//! Nothing is synced to disk. The kernel's state is lost with a reboot, and so is the purpose of the files: a record has the
//! [`boot_id`] of its time, and a file of an earlier boot is removed, whatever it says. Within one boot a rename is complete or
//! has not happened.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drakkar_client::ClaimRef;
use drakkar_metadata::name::ClaimUid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::{Files, temporary_name, write_atomically};

/// The mode of a journal file: for the driver alone.
const MODE: u32 = 0o600;
const SUFFIX: &str = ".json";

/// The record of a claim in a journal.
pub trait ClaimRecord: Sized {
    /// Returns the claim.
    fn claim(&self) -> &ClaimRef;
    /// Encodes the record, with [`seal`].
    fn encode(&self) -> Vec<u8>;
    /// Decodes a record, with [`unseal`], and says what is wrong with one that cannot be.
    fn decode(bytes: &[u8]) -> Result<Self, String>;
}

/// Returns a value as a line of JSON and a line with its checksum.
pub fn seal(value: &impl Serialize) -> Vec<u8> {
    // Serializing strings, numbers and lists into memory cannot fail; what could not be read back is refused by `unseal`.
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(format!("\n{checksum:08x}\n").as_bytes());
    bytes
}

/// Returns the value that [`seal`] has encoded, or what is wrong with the bytes.
pub fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let parts = || {
        let text = bytes.strip_suffix(b"\n")?;
        let (json, checksum) = text.split_at(text.iter().rposition(|byte| *byte == b'\n')?);
        let checksum = u32::from_str_radix(std::str::from_utf8(&checksum[1..]).ok()?, 16).ok()?;
        (checksum == crc32fast::hash(json)).then_some(json)
    };
    let json = parts().ok_or("it is torn or was changed: the checksum is missing or wrong")?;
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

/// Returns the file that names the boot of the machine, for errors.
pub fn boot_id_path(proc: &Path) -> PathBuf {
    proc.join("sys/kernel/random/boot_id")
}

/// Returns which boot of the machine this is, from a procfs.
pub fn boot_id(proc: &Path) -> io::Result<String> {
    std::fs::read_to_string(boot_id_path(proc)).map(|text| text.trim().to_owned())
}

/// The journal of a driver.
#[derive(Debug)]
pub struct Journal<R> {
    files: Arc<dyn Files>,
    directory: PathBuf,
    record: PhantomData<fn() -> R>,
}

/// A file in the journal's directory that is no record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalProblem {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, and what became of it.
    pub message: String,
    /// The claim that it would be of.
    pub claim: Option<ClaimUid>,
}

impl fmt::Display for JournalProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "journal {}: {}", self.path.display(), self.message)
    }
}

impl<R: ClaimRecord> Journal<R> {
    /// Returns the journal in a directory, which [`Journal::read_all`] makes.
    pub fn new(files: Arc<dyn Files>, directory: PathBuf) -> Self {
        Self { files, directory, record: PhantomData }
    }

    /// Returns the file of a claim.
    pub fn path(&self, uid: &ClaimUid) -> PathBuf {
        self.directory.join(file_name(uid))
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes or replaces the record of a claim.
    pub fn write(&self, record: &R) -> io::Result<()> {
        write_atomically(&*self.files, &self.directory, &file_name(&record.claim().uid), &record.encode(), MODE)
    }

    /// Removes the record of a claim.
    pub fn remove(&self, uid: &ClaimUid) -> io::Result<()> {
        self.files.remove(&self.directory, &file_name(uid))
    }

    /// Reads all records, and reports files that are none. Those stay, except what an interrupted write has left.
    pub fn read_all(&self) -> io::Result<(Vec<R>, Vec<JournalProblem>)> {
        self.files.make_directory(&self.directory)?;
        let mut records = Vec::new();
        let mut problems = Vec::new();
        for name in self.files.list(&self.directory)? {
            if is_temporary(&name) {
                self.files.remove(&self.directory, &name)?;
                continue;
            }
            match self.read(&name) {
                Ok(Some(record)) => records.push(record),
                Ok(None) => {}
                Err(message) => {
                    let claim = claim_of(&name);
                    problems.push(JournalProblem { path: self.directory.join(&name), message, claim });
                }
            }
        }
        Ok((records, problems))
    }

    fn read(&self, name: &str) -> Result<Option<R>, String> {
        let uid = claim_of(name).ok_or("not a file of the journal; left alone")?;
        let content = self.files.read(&self.directory, name).map_err(|error| error.to_string())?;
        let Some(content) = content else { return Ok(None) };
        let record = R::decode(&content)?;
        if record.claim().uid != uid {
            return Err(format!("it is the record of claim {}, under the name of another", record.claim()));
        }
        Ok(Some(record))
    }
}

fn file_name(uid: &ClaimUid) -> String {
    format!("{uid}{SUFFIX}")
}

fn claim_of(name: &str) -> Option<ClaimUid> {
    ClaimUid::new(name.strip_suffix(SUFFIX)?).ok()
}

/// Returns whether a name is that of a file of ours while it is written.
fn is_temporary(name: &str) -> bool {
    let inner = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
    inner.is_some_and(|inner| claim_of(inner).is_some() && temporary_name(inner) == name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::files::SystemFiles;

    #[derive(Debug, Clone, PartialEq)]
    struct Record {
        claim: ClaimRef,
        value: u32,
    }

    impl ClaimRecord for Record {
        fn claim(&self) -> &ClaimRef {
            &self.claim
        }

        fn encode(&self) -> Vec<u8> {
            seal(&(self.claim.uid.to_string(), self.value))
        }

        fn decode(bytes: &[u8]) -> Result<Self, String> {
            let (uid, value): (String, u32) = unseal(bytes)?;
            Ok(Self { claim: claim(&uid), value })
        }
    }

    fn claim(uid: &str) -> ClaimRef {
        ClaimRef { namespace: "default".parse().unwrap(), name: "a".parse().unwrap(), uid: uid.parse().unwrap() }
    }

    #[test]
    fn the_last_record_of_each_claim_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(Arc::new(SystemFiles), directory.path().join("journal"));
        assert_eq!(journal.read_all().unwrap(), (Vec::<Record>::new(), Vec::new()));
        for (uid, value) in [("a", 1), ("b", 2), ("a", 3)] {
            journal.write(&Record { claim: claim(uid), value }).unwrap();
        }
        journal.remove(&claim("b").uid).unwrap();
        journal.remove(&claim("b").uid).unwrap();
        assert_eq!(journal.read_all().unwrap(), (vec![Record { claim: claim("a"), value: 3 }], Vec::new()));
    }

    #[test]
    fn what_is_no_record_is_reported_and_an_interrupted_write_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let journal: Journal<Record> = Journal::new(Arc::new(SystemFiles), path.to_owned());
        let bytes = Record { claim: claim("a"), value: 1 }.encode();
        std::fs::write(path.join("b.json"), &bytes).unwrap();
        std::fs::write(path.join("c.json"), &bytes[..bytes.len() / 2]).unwrap();
        std::fs::write(path.join("note.txt"), "x").unwrap();
        std::fs::write(path.join(".a.json.tmp"), "x").unwrap();
        symlink("/etc/passwd", path.join("d.json")).unwrap();
        let (records, problems) = journal.read_all().unwrap();
        assert_eq!(records, []);
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        for (text, expected) in
            texts.iter().zip(["under the name of another", "torn", "symbolic link", "not a file of the journal"])
        {
            assert!(text.contains(expected), "{texts:?}");
        }
        assert_eq!(texts.len(), 4, "{texts:?}");
        assert!(!path.join(".a.json.tmp").exists() && path.join("c.json").exists());
    }

    #[test]
    fn truncated_and_changed_bytes_are_rejected() {
        let bytes = seal(&("a", 1));
        assert_eq!(unseal::<(String, u32)>(&bytes), Ok(("a".to_owned(), 1)));
        for end in 0..bytes.len() {
            assert!(unseal::<(String, u32)>(&bytes[..end]).is_err(), "cut at {end}");
        }
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            assert!(unseal::<(String, u32)>(&changed).is_err(), "changed at {position}");
        }
    }
}
