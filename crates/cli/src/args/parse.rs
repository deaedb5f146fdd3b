//! Parses the command line, with the rules that the definition of the arguments cannot express.
//!
//! A command without the subcommand that it needs prints its help and succeeds, as `kubectl` and `cargo` do. `--root` is
//! in the help of the commands that read below it, and an error for the others.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, Command, CommandFactory, FromArgMatches};

use super::Arguments;

/// The commands that read below `--root`.
const WITH_ROOT: [&[&str]; 15] = [
    &["list"],
    &["read"],
    &["get"],
    &["env"],
    &["exec"],
    &["wait"],
    &["watch"],
    &["validate"],
    &["convert"],
    &["kubevirt"],
    &["kubevirt", "explain"],
    &["kubevirt", "resolve"],
    &["kubevirt", "domain-xml"],
    &["kubevirt", "check"],
    &["kubevirt", "hook"],
];

/// Parses a command line. Returns `None` if it only asks for help, which has been printed.
pub(crate) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Option<Arguments>, clap::Error> {
    let mut definition = definition();
    let matches = definition.try_get_matches_from_mut(line)?;
    let mut path = Vec::new();
    let mut below = matches.subcommand();
    while let Some((name, matches)) = below {
        path.push(name);
        below = matches.subcommand();
    }
    // What matched is in the definition.
    let Some(command) = find(&mut definition, &path) else {
        return Err(clap::Error::new(ErrorKind::InvalidSubcommand));
    };
    if command.has_subcommands() {
        command.print_help()?;
        return Ok(None);
    }
    let has_root = matches.value_source("root") == Some(ValueSource::CommandLine);
    if has_root && !WITH_ROOT.contains(&&path[..]) {
        let message = format!("--root has no meaning for `drakkar {}`", path.join(" "));
        return Err(command.error(ErrorKind::UnknownArgument, message));
    }
    Arguments::from_arg_matches(&matches).map(Some)
}

/// Finds a command by its path.
fn find<'a>(command: &'a mut Command, path: &[&str]) -> Option<&'a mut Command> {
    match path.split_first() {
        Some((first, rest)) => find(command.find_subcommand_mut(first)?, rest),
        None => Some(command),
    }
}

/// Returns the definition of the command line.
pub(crate) fn definition() -> Command {
    hide_root(Arguments::command(), &mut Vec::new())
}

/// Hides `--root` in the commands that do not read below it, and makes subcommands optional.
fn hide_root(command: Command, path: &mut Vec<String>) -> Command {
    let is_group = command.has_subcommands();
    let mut command = command.mut_subcommands(|below| {
        path.push(below.get_name().to_owned());
        let below = hide_root(below, path);
        path.pop();
        below
    });
    if is_group {
        command = command.subcommand_required(false).arg_required_else_help(false);
    }
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    if names.is_empty() || WITH_ROOT.contains(&&names[..]) {
        return command;
    }
    // Replaces the one that it would inherit.
    command.arg(Arg::new("root").long("root").value_parser(clap::value_parser!(OsString)).hide(true))
}

/// Reports whether a command line, which can be wrong, is one of `drakkar env`.
pub(crate) fn is_env(line: impl IntoIterator<Item = OsString>) -> bool {
    let mut words = line.into_iter().skip(1);
    while let Some(word) = words.next() {
        if word == "--root" {
            words.next();
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            return word == "env";
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = OsString> {
        line.split_whitespace().map(OsString::from)
    }

    #[test]
    fn the_definition_of_the_command_line_is_valid() {
        definition().debug_assert();
    }

    #[test]
    fn root_is_accepted_where_it_means_something_only() {
        for (line, is_accepted) in [
            ("drakkar --root /x list", true),
            ("drakkar list --root /x", true),
            ("drakkar --root /x schema v1beta1", false),
            ("drakkar schema --root /x v1beta1", false),
            ("drakkar schema v1beta1", true),
        ] {
            let parsed = parse(words(line));
            assert_eq!(parsed.is_ok(), is_accepted, "{line}");
            if let Ok(Some(arguments)) = parsed {
                let expected = if line.contains("--root") { "/x" } else { "/" };
                assert_eq!(arguments.root().to_str(), Some(expected), "{line}");
            }
        }
    }

    #[test]
    fn every_command_with_a_root_exists() {
        let definition = definition();
        for path in WITH_ROOT {
            let mut command = Some(&definition);
            for name in path {
                command = command.and_then(|command| command.find_subcommand(name));
            }
            assert!(command.is_some() || !cfg!(feature = "kubevirt-services"), "{path:?}");
        }
    }

    #[test]
    fn a_wrong_command_line_of_env_is_recognized() {
        for line in ["drakkar env nonsense/", "drakkar --root /x env --no-such-flag", "drakkar env"] {
            assert!(is_env(words(line)), "{line}");
        }
        for line in ["drakkar", "drakkar exec env", "drakkar --root env", "drakkar list"] {
            assert!(!is_env(words(line)), "{line}");
        }
    }
}
