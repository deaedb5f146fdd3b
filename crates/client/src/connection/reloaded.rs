//! Files that are replaced while a driver runs: tokens and certificates of the pod's volumes.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lock;

/// The time after which a file is read again.
const INTERVAL: Duration = Duration::from_secs(60);

/// The content of a file, read again at most once a minute. If that fails, the last content stays in use.
#[derive(Debug)]
pub(super) struct Reloaded<T, E> {
    path: PathBuf,
    load: fn(&Path) -> Result<T, E>,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    content: T,
    loaded: Instant,
    is_failing: bool,
}

impl<T: Clone, E: Display> Reloaded<T, E> {
    /// Reads a file for the first time.
    pub(super) fn new(path: PathBuf, load: fn(&Path) -> Result<T, E>) -> Result<Self, E> {
        let state = State { content: load(&path)?, loaded: Instant::now(), is_failing: false };
        Ok(Self { path, load, state: Mutex::new(state) })
    }

    /// Returns the content. Blocks once a minute, for as long as the reading of a small file takes.
    pub(super) fn get(&self) -> T {
        let mut state = lock(&self.state);
        if state.loaded.elapsed() >= INTERVAL {
            state.loaded = Instant::now();
            match (self.load)(&self.path) {
                Ok(content) => {
                    state.content = content;
                    state.is_failing = false;
                }
                Err(error) => {
                    if !state.is_failing {
                        tracing::warn!(%error, "reading credentials again failed, using the last ones");
                    }
                    state.is_failing = true;
                }
            }
        }
        state.content.clone()
    }
}

#[cfg(test)]
impl<T, E> Reloaded<T, E> {
    /// Makes the content a minute older.
    pub(super) fn expire(&self) {
        lock(&self.state).loaded -= INTERVAL;
    }
}
