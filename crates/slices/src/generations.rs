//! The highest generation that each pool ever had, also if all its slices are gone and the driver was restarted (G57).
//!
//! It is stored in a small file in the driver's directory. If that cannot be read or written, a warning is logged, and
//! generations follow those of the stored slices.
//!
//! A pool is forgotten when it has been unused for [`RETENTION`]: it is not published, and the API server stores no slice of it.
//! By then no client can have an old slice in its cache, beside which a new one of generation 1 would count as outdated: clients
//! list and watch, and a watch lags behind by no more than the history of `etcd`, which is minutes. A restart of the driver
//! restarts that time.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// The default name of the file, in the driver's directory.
pub const FILE: &str = "slice-generations.json";
/// How long an unused pool is remembered.
const RETENTION: Duration = Duration::from_secs(3600);

/// The highest generation of each pool.
#[derive(Debug)]
pub(super) struct Generations {
    path: Option<PathBuf>,
    highest: BTreeMap<String, i64>,
    /// The times since which pools are unused.
    unused: HashMap<String, Instant>,
    is_saved: bool,
}

impl Generations {
    /// Loads the file, if there is one.
    pub(super) async fn load(path: Option<PathBuf>) -> Self {
        let file = path.clone();
        let highest = spawn_blocking(move || file.as_deref().map(read).unwrap_or_default()).await;
        let highest = highest.unwrap_or_else(|error| {
            tracing::warn!(?path, %error, "reading generations of pools failed");
            BTreeMap::new()
        });
        Self { path, highest, unused: HashMap::new(), is_saved: true }
    }

    /// Returns the highest generation of a pool, or 0.
    pub(super) fn of(&self, pool: &str) -> i64 {
        self.highest.get(pool).copied().unwrap_or(0)
    }

    /// Records a generation, if it is the highest so far. [`Self::save`] stores it.
    pub(super) fn raise(&mut self, pool: &str, generation: i64) {
        if generation > self.of(pool) {
            self.highest.insert(pool.to_owned(), generation);
            self.is_saved = false;
        }
    }

    /// Forgets pools that have been unused for [`RETENTION`].
    pub(super) fn prune(&mut self, is_used: impl Fn(&str) -> bool) {
        let now = Instant::now();
        let unused = &mut self.unused;
        let before = self.highest.len();
        self.highest.retain(|pool, _| {
            if is_used(pool) {
                unused.remove(pool);
                return true;
            }
            now.duration_since(*unused.entry(pool.clone()).or_insert(now)) < RETENTION
        });
        let highest = &self.highest;
        unused.retain(|pool, _| highest.contains_key(pool));
        self.is_saved &= self.highest.len() == before;
    }

    /// Returns when the next pool can be forgotten.
    pub(super) fn next_prune(&self) -> Option<Instant> {
        self.unused.values().min().map(|since| *since + RETENTION)
    }

    /// Writes the file, if something has changed.
    pub(super) async fn save(&mut self) {
        if std::mem::replace(&mut self.is_saved, true) {
            return;
        }
        let Some(path) = self.path.clone() else { return };
        let highest = self.highest.clone();
        let saved = spawn_blocking(move || write(&path, &highest)).await.map_err(std::io::Error::other).flatten();
        if let Err(error) = saved {
            tracing::warn!(path = ?self.path, %error, "writing generations of pools failed");
        }
    }
}

fn read(path: &Path) -> BTreeMap<String, i64> {
    let parse = |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(std::io::Error::from);
    match std::fs::read(path).and_then(parse) {
        Ok(highest) => highest,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "reading generations of pools failed");
            BTreeMap::new()
        }
    }
}

/// Writes the file atomically: another instance may read it, and this one may be killed.
fn write(path: &Path, highest: &BTreeMap<String, i64>) -> std::io::Result<()> {
    let staged = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&staged, serde_json::to_vec(highest)?)?;
    std::fs::rename(&staged, path).inspect_err(|_| drop(std::fs::remove_file(&staged)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test]
    async fn generations_only_rise_and_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let mut generations = Generations::load(Some(path.clone())).await;
        assert_eq!(generations.of("node-1"), 0);
        generations.raise("node-1", 3);
        generations.raise("node-1", 2);
        generations.save().await;
        assert_eq!(Generations::load(Some(path.clone())).await.of("node-1"), 3);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Generations::load(Some(path)).await.of("node-1"), 0, "a torn file is no error");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_has_been_unused_for_an_hour_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let mut generations = Generations::load(Some(path.clone())).await;
        generations.raise("used", 5);
        generations.raise("gone", 7);
        generations.prune(|pool| pool == "used");
        advance(RETENTION / 2).await;
        generations.prune(|pool| pool == "used");
        assert_eq!(generations.of("gone"), 7, "it may come back");
        assert_eq!(generations.next_prune(), Some(Instant::now() + RETENTION / 2));
        generations.prune(|_| true);
        advance(RETENTION / 2).await;
        generations.prune(|pool| pool == "used");
        assert_eq!(generations.of("gone"), 7, "it was used in between");
        advance(RETENTION).await;
        generations.prune(|pool| pool == "used");
        generations.save().await;
        let again = Generations::load(Some(path)).await;
        assert_eq!((again.of("gone"), again.of("used"), generations.next_prune()), (0, 5, None));
    }
}
