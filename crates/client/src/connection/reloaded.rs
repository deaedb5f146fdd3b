//! Files that are replaced while a driver runs: tokens and certificates of the pod's volumes.

use std::fmt::{self, Display};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lock;

/// The time after which a file is read again.
const INTERVAL: Duration = Duration::from_secs(60);

/// Reads a file. Gets what was read before, which it may return again if nothing has changed.
type Load<T, E> = dyn Fn(Option<&T>) -> Result<T, E> + Send + Sync;

/// The content of a file, read again at most once a minute. If that fails, the last content stays in use.
pub(super) struct Reloaded<T, E> {
    load: Box<Load<T, E>>,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    content: T,
    /// When it was read; `None` if it is to be read again now.
    loaded: Option<Instant>,
    is_failing: bool,
}

impl<T: fmt::Debug, E> fmt::Debug for Reloaded<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded").field("state", &self.state).finish_non_exhaustive()
    }
}

impl<T, E> Reloaded<T, E> {
    /// Reads a file for the first time.
    pub(super) fn new(load: impl Fn(Option<&T>) -> Result<T, E> + Send + Sync + 'static) -> Result<Self, E> {
        let state = State { content: load(None)?, loaded: Some(Instant::now()), is_failing: false };
        Ok(Self { load: Box::new(load), state: Mutex::new(state) })
    }

    /// Lets the file be read again for the next request: the server has refused its content.
    pub(super) fn expire(&self) {
        lock(&self.state).loaded = None;
    }
}

impl<T: Clone, E: Display> Reloaded<T, E> {
    /// Returns the content. Blocks once a minute, for as long as the reading of a small file takes.
    pub(super) fn get(&self) -> T {
        let mut state = lock(&self.state);
        if state.loaded.is_none_or(|loaded| loaded.elapsed() >= INTERVAL) {
            state.loaded = Some(Instant::now());
            match (self.load)(Some(&state.content)) {
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
