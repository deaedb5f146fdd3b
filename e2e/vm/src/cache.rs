//! The directory where everything is kept that takes long to make: packages, the unpacked release, images, saved states.
//!
//! An entry is made in a directory with another name and renamed when it is complete, so what has its name is complete. Its
//! name has a hash of what it is made from: a changed recipe is another entry. Two processes that want the same entry are kept
//! apart by a lock, and the second finds it.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{IoContext, Result};

/// The environment variable that sets the directory.
const DIRECTORY: &str = "DRAKKAR_VM_CACHE";

/// The directory of everything that takes long to make.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// Returns the cache of this checkout: `vm` in cargo's target directory, or `$DRAKKAR_VM_CACHE`. Relative paths are
    /// relative to the top of the checkout.
    pub fn of_checkout() -> Self {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or_else(|| Path::new("/"));
        let directory = env::var_os(DIRECTORY).map_or_else(
            || Path::new(&env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("vm"),
            PathBuf::from,
        );
        Self::at(&top.join(directory))
    }

    /// Returns the cache in a directory.
    pub fn at(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf() }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates a directory in the cache that has no stamp, and returns its path.
    pub(crate) fn subdirectory(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(path)
    }

    /// Returns the path of an entry, and whether it exists.
    pub(crate) fn entry(&self, kind: &str, inputs: &[&[u8]]) -> (PathBuf, bool) {
        let path = self.directory.join(format!("{kind}-{}", hash(inputs)));
        let exists = path.exists();
        (path, exists)
    }

    /// Returns an entry; makes it first if it does not exist. Older entries of this kind whose inputs have changed stay: they
    /// can belong to another branch.
    pub(crate) fn get(&self, kind: &str, inputs: &[&[u8]], make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let (path, exists) = self.entry(kind, inputs);
        if exists {
            return Ok(path);
        }
        let locks = self.subdirectory("locks")?;
        let lock = locks.join(kind);
        let file = File::create(&lock).with_context(|| format!("create {}", lock.display()))?;
        file.lock().with_context(|| format!("lock {}", lock.display()))?;
        if path.exists() {
            return Ok(path);
        }
        let unfinished = path.with_extension("unfinished");
        remove(&unfinished)?;
        fs::create_dir(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
        make(&unfinished)?;
        fs::rename(&unfinished, &path).with_context(|| format!("rename {}", unfinished.display()))?;
        Ok(path)
    }
}

/// Removes a directory that may not exist.
fn remove(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    fs::remove_dir_all(path).with_context(|| format!("remove {}", path.display()))
}

/// Sixteen hexadecimal digits that change if one of the inputs does.
fn hash(inputs: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for input in inputs {
        // The length keeps `ab`, `c` and `a`, `bc` apart.
        hash.update((input.len() as u64).to_le_bytes());
        hash.update(input);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn an_entry_is_made_once_and_again_if_its_inputs_change() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path());
        let mut made = 0;
        for inputs in [[b"a", b"b"], [b"a", b"b"], [b"a", b"c"]] {
            let inputs = inputs.map(|input| &input[..]);
            let entry = cache.get("thing", &inputs, |path| {
                made += 1;
                fs::write(path.join("content"), "x").with_context(|| "write".to_owned())
            });
            assert_eq!(fs::read(entry.unwrap().join("content")).unwrap(), b"x");
        }
        assert_eq!(made, 2);
    }

    #[test]
    fn what_was_interrupted_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path());
        let failed = cache.get("thing", &[], |path| {
            fs::write(path.join("half"), "").unwrap();
            Err(Error::Missing { what: "power".to_owned(), remedy: "try again".to_owned() })
        });
        assert!(failed.is_err());
        let entry = cache.get("thing", &[], |path| {
            assert!(!path.join("half").exists());
            Ok(())
        });
        assert!(entry.unwrap().exists());
    }
}
