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
//! variable `RUST_LOG` replaces all of that by a filter of your own, such as `RUST_LOG=info,kube_client=debug`.

mod json;

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

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
    let LogFlags { verbose, log_format } = flags.log;
    let directives = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|directives| !directives.is_empty());
    let (filter, ignored) = filter(verbose, directives.as_deref());
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty());
    let has_colour = has_colour(log_format, io::stderr().is_terminal(), no_color);
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(has_colour).with_env_filter(filter);
    let outcome = match log_format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.event_format(Json).try_init(),
    };
    if let Err(error) = outcome {
        tracing::warn!(%error, "the process has a log already, log flags have no effect");
    }
    if let Some(error) = ignored {
        tracing::warn!(%error, "RUST_LOG is not valid and ignored");
    }
}

/// Returns the filter for a verbosity, or the one of `RUST_LOG`; and what is wrong with the latter.
fn filter(verbose: u8, rust_log: Option<&str>) -> (EnvFilter, Option<ParseError>) {
    let (level, libraries) = match verbose {
        0 => ("info", "off"),
        1 => ("debug", "warn"),
        2 => ("trace", "debug"),
        _ => ("trace", "trace"),
    };
    let default = || {
        let of_libraries: String = LIBRARIES.iter().map(|library| format!(",{library}={libraries}")).collect();
        EnvFilter::new(format!("{level}{of_libraries}"))
    };
    match rust_log.map(EnvFilter::try_new) {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (default(), Some(error)),
        None => (default(), None),
    }
}

/// Returns whether the log has colours.
fn has_colour(format: LogFormat, is_terminal: bool, no_color: bool) -> bool {
    format == LogFormat::Text && is_terminal && !no_color
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_silent_by_default_and_rust_log_wins() {
        let text = |verbose, rust_log| filter(verbose, rust_log).0.to_string();
        let default = text(0, None);
        assert!(
            default.contains("info") && default.contains("kube_client=off") && default.contains("hyper=off"),
            "{default}"
        );
        assert!(text(1, None).contains("debug") && text(1, None).contains("hyper=warn"));
        assert!(text(2, None).contains("trace") && text(2, None).contains("hyper=debug"));
        assert_eq!(text(3, Some("warn,kube_client=debug")), "kube_client=debug,warn");
        let (used, ignored) = filter(0, Some("drakkar_plugin=loud"));
        assert_eq!((used.to_string(), ignored.is_some()), (default, true));
    }

    #[test]
    fn there_are_colours_only_on_a_terminal_of_someone_who_wants_them() {
        assert!(has_colour(LogFormat::Text, true, false));
        assert!(!has_colour(LogFormat::Text, true, true) && !has_colour(LogFormat::Text, false, false));
        assert!(!has_colour(LogFormat::Json, true, false));
    }
}
