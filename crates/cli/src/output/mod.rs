//! What people see: text that is safe for a terminal, and tables.

pub(crate) mod table;

use std::borrow::Cow;
use std::io::{self, Write};

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

/// Writes to standard output, byte for byte.
pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    ignore_broken_pipe(stdout.write_all(bytes).and_then(|()| stdout.flush()))
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

/// Text that somebody else chose, without the control characters with which it could take over a terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("plain äöü"), "plain äöü");
        assert_eq!(printable("\u{1b}[2Jgone\r\n\u{9b}x"), "\\u{1b}[2Jgone\\r\\n\\u{9b}x");
    }
}
