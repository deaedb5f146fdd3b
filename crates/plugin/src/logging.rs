//! The log of a driver: one call in `main` sets it up.
//!
//! ```no_run
//! use clap::Parser;
//! use drakkar_plugin::{Flags, logging};
//!
//! let flags = Flags::parse();
//! logging::init(&flags);
//! ```
//!
//! Lines go to standard error, as text or as JSON objects (`--log-format`), with colours only on a terminal and unless `NO_COLOR`
//! is set. At the default level there is a line for the start, the registration, what is published, and each claim; `-v` adds the
//! steps between. What HTTP libraries say of a failed connection is left out: the framework says it once, with the cause. The
//! variable `RUST_LOG` replaces all of that by levels of your own, for all modules or some: `RUST_LOG=info,drakkar_plugin=debug`.

mod json;

use std::io::{self, IsTerminal as _};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

use self::json::Json;
use crate::Flags;

/// The crates whose messages repeat, in their own terms, what the framework says.
const LIBRARIES: [&str; 7] = ["kube_client", "hyper", "hyper_util", "h2", "rustls", "tonic", "tower"];

/// The flags of the log, as a part of [`Flags`].
// Without these the comment above would be the description of every driver.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(about = None, long_about = None)]
pub struct LogFlags {
    /// Log more: -v the steps of each claim, -vv details and what libraries say, -vvv everything. The variable RUST_LOG, if it
    /// is set, decides instead
    #[arg(short, long, env = "VERBOSE", action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// The form of the log on standard error: lines of text, or a JSON object per line
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

impl LogFlags {
    /// Returns the flags as `/flagz` shows them.
    pub(crate) fn values(&self) -> [(String, String); 2] {
        let format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        [("verbose".to_owned(), self.verbose.to_string()), ("log-format".to_owned(), format.to_owned())]
    }
}

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines of text.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

/// Sets up the log as the flags say. If the process has one already, that one stays, and gets a warning.
pub fn init(flags: &Flags) {
    flags.log.init();
}

impl LogFlags {
    /// Sets up the log as [`init`] does, for a program that is no driver.
    pub fn init(&self) {
        let directives = std::env::var("RUST_LOG").ok();
        let (filter, ignored) = filter(self.verbose, directives.as_deref());
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty());
        let has_colour = has_colour(self.log_format, io::stderr().is_terminal(), no_color);
        // What is above the most detailed level of any module costs one comparison.
        let most_detailed = Layer::<Registry>::max_level_hint(&filter).unwrap_or(LevelFilter::TRACE);
        let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(has_colour).with_max_level(most_detailed);
        let outcome = match self.log_format {
            LogFormat::Text => log.finish().with(filter).try_init(),
            LogFormat::Json => log.event_format(Json).finish().with(filter).try_init(),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "the process has a log already, log flags have no effect");
        }
        if let Some(error) = ignored {
            tracing::warn!(error, "RUST_LOG is not valid and ignored");
        }
    }
}

/// Returns the filter for a verbosity, or the one of `RUST_LOG`; and what is wrong with the latter.
fn filter(verbose: u8, rust_log: Option<&str>) -> (Targets, Option<String>) {
    let (level, libraries) = match verbose {
        0 => (LevelFilter::INFO, LevelFilter::OFF),
        1 => (LevelFilter::DEBUG, LevelFilter::WARN),
        2 => (LevelFilter::TRACE, LevelFilter::DEBUG),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    let default =
        || Targets::new().with_default(level).with_targets(LIBRARIES.iter().map(|library| (*library, libraries)));
    match rust_log.map(levels) {
        Some(Ok(Some(filter))) => (filter, None),
        Some(Err(error)) => (default(), Some(error)),
        Some(Ok(None)) | None => (default(), None),
    }
}

/// Parses levels of modules: `LEVEL`, `MODULE=LEVEL`, or `MODULE` for all that it logs, with commas between. Without any there is
/// no filter.
///
/// Filters by spans and their fields, which need regular expressions, are not supported: half a megabyte in each driver.
fn levels(text: &str) -> Result<Option<Targets>, String> {
    let mut filter = None;
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        if directive.contains(['[', ']', '{', '}']) {
            return Err(format!("{directive}: spans and fields are not supported, only MODULE=LEVEL"));
        }
        let levels: Targets = filter.take().unwrap_or_default();
        filter = Some(match directive.split_once('=').map(|(module, level)| (module.trim(), level.trim())) {
            Some((module, "")) => levels.with_target(module, LevelFilter::TRACE),
            Some((module, level)) => {
                let level: LevelFilter = level.parse().map_err(|_unknown| {
                    format!("{directive}: the level is none of off, error, warn, info, debug and trace")
                })?;
                levels.with_target(module, level)
            }
            None => match directive.parse::<LevelFilter>() {
                Ok(level) => levels.with_default(level),
                Err(_module) => levels.with_target(directive, LevelFilter::TRACE),
            },
        });
    }
    Ok(filter)
}

/// Returns whether the log has colours.
fn has_colour(format: LogFormat, is_terminal: bool, no_color: bool) -> bool {
    format == LogFormat::Text && is_terminal && !no_color
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_are_silent_by_default_and_rust_log_wins() {
        // The most that is logged of a module.
        let level = |filter: &Targets, target: &str| {
            let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
            levels.into_iter().find(|level| filter.would_enable(target, level))
        };
        let levels = |verbose, rust_log| {
            let (filter, ignored) = filter(verbose, rust_log);
            assert_eq!(ignored, None);
            ["a_driver", "drakkar_plugin::store", "hyper::proto"].map(|target| level(&filter, target))
        };
        let default = [Some(Level::INFO), Some(Level::INFO), None];
        assert_eq!(levels(0, None), default);
        assert_eq!(levels(1, None), [Some(Level::DEBUG), Some(Level::DEBUG), Some(Level::WARN)]);
        assert_eq!(levels(2, None), [Some(Level::TRACE), Some(Level::TRACE), Some(Level::DEBUG)]);
        assert_eq!(levels(3, None), [Some(Level::TRACE); 3]);
        assert_eq!(levels(3, Some("debug")), [Some(Level::DEBUG); 3]);
        assert_eq!(levels(3, Some("warn,hyper=debug")), [Some(Level::WARN), Some(Level::WARN), Some(Level::DEBUG)]);
        assert_eq!(levels(0, Some("drakkar_plugin=trace")), [None, Some(Level::TRACE), None]);
        for (text, expected) in [
            ("", default),
            (" , ", default),
            ("info,", [Some(Level::INFO); 3]),
            (",warn,,drakkar_plugin = debug,", [Some(Level::WARN), Some(Level::DEBUG), Some(Level::WARN)]),
            ("WARN,hyper=off", [Some(Level::WARN), Some(Level::WARN), None]),
            ("drakkar_plugin=", [None, Some(Level::TRACE), None]),
            ("drakkar_plugin::store", [None, Some(Level::TRACE), None]),
        ] {
            assert_eq!(levels(0, Some(text)), expected, "{text:?}");
        }
        for (text, expected) in [
            ("info,hyper=loud", "hyper=loud: the level is none of off, error, warn, info, debug and trace"),
            ("info,[claim]=trace", "[claim]=trace: spans and fields are not supported, only MODULE=LEVEL"),
            (
                "a_driver[claim{name=x}]",
                "a_driver[claim{name=x}]: spans and fields are not supported, only MODULE=LEVEL",
            ),
        ] {
            let (used, ignored) = filter(0, Some(text));
            assert_eq!(ignored.as_deref(), Some(expected));
            assert_eq!(used, filter(0, None).0);
        }
    }

    #[test]
    fn there_are_colours_only_on_a_terminal_of_someone_who_wants_them() {
        assert!(has_colour(LogFormat::Text, true, false));
        assert!(!has_colour(LogFormat::Text, true, true) && !has_colour(LogFormat::Text, false, false));
        assert!(!has_colour(LogFormat::Json, true, false));
    }
}
