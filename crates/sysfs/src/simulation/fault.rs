//! Faults of a simulated kernel.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

/// What goes wrong with a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It fails with this error and changes nothing.
    Fails(Errno),
    /// It succeeds and changes nothing, as a driver that ignores it.
    Ignored,
    /// It changes what it should, then fails with this error.
    FailsLate(Errno),
    /// It does not return until [`Simulation::release`](super::Simulation::release) is called, then does what it should.
    Hangs,
    /// The process is killed, as by `kill -9`, before the write has changed anything.
    Kills,
}

/// The writes that a fault concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum When {
    /// The write with this number, counted from zero since the simulation was opened.
    Nth(u64),
    /// Every write from this number on. With [`Effect::Fails`] it looks to the kernel as if the driver had been killed.
    From(u64),
    /// Every write to a file whose path, links included, ends with this text, such as `unbind` or `0000:65:00.0/driver_override`.
    Path(String),
    /// Every write of this text to such a file.
    Value(String, String),
}

/// A fault: what goes wrong, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The writes that it concerns.
    pub when: When,
    /// What goes wrong.
    pub effect: Effect,
    /// How often it happens before it is over; `None` means always.
    pub times: Option<u32>,
}

impl Fault {
    /// A fault that happens always.
    pub fn always(when: When, effect: Effect) -> Self {
        Self { when, effect, times: None }
    }

    /// A fault that happens once.
    pub fn once(when: When, effect: Effect) -> Self {
        Self { when, effect, times: Some(1) }
    }
}

/// The faults that are to come, and the writes so far.
#[derive(Debug, Default)]
pub(super) struct Faults {
    writes: AtomicU64,
    planned: Mutex<Vec<Fault>>,
    /// How many times everything that hangs was released.
    released: Mutex<u64>,
    release: Condvar,
}

impl Faults {
    pub(super) fn add(&self, fault: Fault) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    pub(super) fn clear(&self) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.release();
    }

    pub(super) fn release(&self) {
        *self.released.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.release.notify_all();
    }

    /// Returns the number of writes so far.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Counts a write, and returns the first fault that concerns it.
    pub(super) fn next(&self, path: &Path, value: &str) -> Option<Effect> {
        let number = self.writes.fetch_add(1, Ordering::SeqCst);
        let path = path.to_string_lossy();
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = planned.iter_mut().find(|fault| {
            fault.times != Some(0)
                && match &fault.when {
                    When::Nth(nth) => *nth == number,
                    When::From(first) => *first <= number,
                    When::Path(end) => path.ends_with(end.as_str()),
                    When::Value(end, text) => path.ends_with(end.as_str()) && value == text,
                }
        })?;
        fault.times = fault.times.map(|times| times - 1);
        Some(fault.effect)
    }

    /// Returns how many times everything that hangs was released, for [`Faults::hang`].
    pub(super) fn released(&self) -> u64 {
        *self.released.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything that hangs is released once more than before.
    pub(super) fn hang(&self, before: u64) {
        let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        while *released == before {
            released = self.release.wait(released).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Ends the process as `kill -9` does.
pub(super) fn kill() -> io::Error {
    match kill_process(getpid(), Signal::KILL) {
        // The signal ends this thread before it gets here, or is about to.
        Ok(()) => errno(Errno::INTR),
        Err(error) => errno(error),
    }
}

/// An error of the kernel as an error of a system call.
pub(super) fn errno(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw_os_error())
}
