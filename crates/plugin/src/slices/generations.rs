//! The highest generation that each pool ever had, also when all its slices are gone and the driver was started again (G57).
//!
//! A small file in the driver's directory. It is a memory aid: one that cannot be read or written is logged, and generations
//! are then what the slices say.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The file in the driver's directory.
pub(crate) const FILE: &str = "slice-generations.json";

/// Highest generations by pool.
#[derive(Debug)]
pub(super) struct Generations {
    path: PathBuf,
    highest: BTreeMap<String, i64>,
}

impl Generations {
    /// Reads what is remembered. Blocks, for one small file.
    pub(super) fn load(path: PathBuf) -> Self {
        let highest = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "the generations of pools are not known any more");
                BTreeMap::new()
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the generations of pools cannot be read");
                BTreeMap::new()
            }
        };
        Self { path, highest }
    }

    pub(super) fn of(&self, pool: &str) -> i64 {
        self.highest.get(pool).copied().unwrap_or(0)
    }

    /// Remembers a generation, if it is the highest so far.
    pub(super) fn raise(&mut self, pool: &str, generation: i64) {
        if generation <= self.of(pool) {
            return;
        }
        self.highest.insert(pool.to_owned(), generation);
        if let Err(error) = self.save() {
            tracing::warn!(path = %self.path.display(), %error, "the generations of pools cannot be kept");
        }
    }

    /// Old or new, never half: another instance may read it, and this one may be killed.
    fn save(&self) -> std::io::Result<()> {
        let staged = self.path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&staged, serde_json::to_vec(&self.highest)?)?;
        std::fs::rename(&staged, &self.path).inspect_err(|_| drop(std::fs::remove_file(&staged)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn generations_only_rise_and_survive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let mut generations = Generations::load(path.clone());
        assert_eq!(generations.of("node-1"), 0);
        generations.raise("node-1", 3);
        generations.raise("node-1", 2);
        assert_eq!(Generations::load(path.clone()).of("node-1"), 3);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Generations::load(path).of("node-1"), 0, "a torn file is no error");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
