//! What people see: text that is safe for a terminal, and tables.

pub(crate) mod table;

use std::io::{self, IsTerminal, Write};

use drakkar_metadata::show::is_harmless;

/// The few styles there are.
pub(crate) mod style {
    use anstyle::{AnsiColor, Style};

    pub(crate) const HEADER: Style = Style::new().bold();
    pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
    pub(crate) const HINT: Style = AnsiColor::Cyan.on_default();
    #[cfg(feature = "demo")]
    pub(crate) const COMMAND: Style = AnsiColor::Green.on_default().bold();
}

/// Writes to standard output, in colour if that is a terminal that has colours. A reader that has gone away, as
/// `head` does, is not an error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    ignore_broken_pipe(anstream::stdout().write_all(text.as_bytes()))
}

/// Writes to standard output, byte for byte; to a terminal, without what a terminal would obey.
pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written =
        if stdout.is_terminal() { stdout.write_all(terminal_safe(bytes).as_bytes()) } else { stdout.write_all(bytes) };
    ignore_broken_pipe(written.and_then(|()| stdout.flush()))
}

/// Text in which everything but lines and what shows itself is escaped as in a JSON string, so that JSON stays JSON.
pub(crate) fn terminal_safe(bytes: &[u8]) -> String {
    let escape = |c: char| match c {
        '\n' | '\t' => c.to_string(),
        c if is_harmless(c) => c.to_string(),
        c => format!("\\u{:04x}", u32::from(c)),
    };
    String::from_utf8_lossy(bytes).chars().map(escape).collect()
}

/// Writes a JSON value to standard output as YAML.
pub(crate) fn print_yaml(value: &serde_json::Value) -> io::Result<()> {
    let yaml = serde_saphyr::to_string(value).map_err(io::Error::other)?;
    print_bytes(yaml.as_bytes())
}

fn ignore_broken_pipe(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped_as_json_has_it() {
        let raw = "{\n\t\"a\": \"\u{1b}[2J \u{9b}31m \u{202e} é\"\n}\n";
        let safe = terminal_safe(raw.as_bytes());
        assert_eq!(safe, "{\n\t\"a\": \"\\u001b[2J \\u009b31m \\u202e é\"\n}\n");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&safe), read(&raw.replace('\u{1b}', "\\u001b")));
    }
}
