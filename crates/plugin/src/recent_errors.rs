//! The last errors of a driver with their times, for the page that people read: what the log has, without looking for the log.
//!
//! Bounded: at most [`MAX_ERRORS`], each cut to [`MAX_TEXT`] bytes. An error that repeats is one entry with a count, so that one
//! cause does not displace the others.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The number of errors that are kept.
pub(crate) const MAX_ERRORS: usize = 20;
/// The bytes of an error's text that are kept.
const MAX_TEXT: usize = 1000;

/// An error that occurred, possibly several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecentError {
    /// The operation that failed.
    pub(crate) operation: &'static str,
    /// The claim that it was about, as `namespace/name`.
    pub(crate) claim: Option<String>,
    /// The text of the error. The author of a claim may control a part of it.
    pub(crate) text: String,
    /// The time of the first occurrence.
    pub(crate) first: SystemTime,
    /// The time of the last occurrence.
    pub(crate) last: SystemTime,
    /// The number of occurrences.
    pub(crate) count: u64,
}

/// The last errors of a driver. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecentErrors(Arc<Mutex<VecDeque<RecentError>>>);

impl RecentErrors {
    /// Adds an error. Takes the place of the oldest if there are too many.
    pub(crate) fn add(&self, operation: &'static str, claim: Option<String>, error: &dyn fmt::Display) {
        self.add_at(operation, claim, error, SystemTime::now());
    }

    fn add_at(&self, operation: &'static str, claim: Option<String>, error: &dyn fmt::Display, now: SystemTime) {
        let text = cut(error.to_string());
        let mut errors = self.lock();
        let same = |known: &RecentError| known.operation == operation && known.claim == claim && known.text == text;
        let error = match errors.iter().position(same).and_then(|index| errors.remove(index)) {
            Some(known) => RecentError { last: now, count: known.count.saturating_add(1), ..known },
            None => RecentError { operation, claim, text, first: now, last: now, count: 1 },
        };
        errors.truncate(MAX_ERRORS - 1);
        errors.push_front(error);
    }

    /// Returns the errors, the last first.
    pub(crate) fn list(&self) -> Vec<RecentError> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RecentError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts a text at a character, and marks that it was cut.
fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_last_errors_are_kept_and_come_first() {
        let errors = RecentErrors::default();
        for index in 0..50 {
            errors.add_at("prepare", None, &format!("error {index}"), at(index));
        }
        let kept = errors.list();
        assert_eq!(kept.len(), MAX_ERRORS);
        let texts: Vec<&str> = kept.iter().map(|error| error.text.as_str()).collect();
        assert_eq!((texts[0], texts[19]), ("error 49", "error 30"));
    }

    #[test]
    fn an_error_that_repeats_is_counted_and_displaces_no_other() {
        let errors = RecentErrors::default();
        errors.add_at("publish resources", None, &"forbidden", at(1));
        for second in 2..100 {
            errors.add_at("prepare", Some("default/train".to_owned()), &"no device", at(second));
        }
        errors.add_at("prepare", Some("default/other".to_owned()), &"no device", at(100));
        let kept = errors.list();
        let short: Vec<_> = kept.iter().map(|error| (error.claim.as_deref(), error.count, error.first)).collect();
        assert_eq!(short, [(Some("default/other"), 1, at(100)), (Some("default/train"), 98, at(2)), (None, 1, at(1))]);
        assert_eq!(kept[1].last, at(99));
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let errors = RecentErrors::default();
        errors.add("prepare", None, &"ä".repeat(1_000_000));
        let text = &errors.list()[0].text;
        assert!(text.len() <= MAX_TEXT + '…'.len_utf8() && text.ends_with("ä…"), "{}", text.len());
    }
}
