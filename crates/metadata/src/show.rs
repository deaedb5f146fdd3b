//! Showing text that somebody else chose: in a message, in a log, on a terminal.
//!
//! Names and values come from files and file systems that others write. Shown as they are, they could forge lines of
//! a log, take over a terminal with escape sequences, or turn around what is read with marks for the direction of
//! writing.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::path::Path;

/// Text without what could do more than be read, and not longer than a message can bear.
///
/// ```
/// use drakkar_metadata::show::Printable;
///
/// assert_eq!(Printable::whole("a\u{1b}[2J\n").to_string(), "a\\u{1b}[2J\\n");
/// ```
#[derive(Debug, Clone)]
pub struct Printable<'a> {
    text: Cow<'a, str>,
    limit: usize,
}

impl<'a> Printable<'a> {
    /// The whole text.
    pub fn whole(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), limit: usize::MAX }
    }

    /// Text that is cut to what fits a message.
    pub fn cut(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), limit: 200 }
    }

    /// A path, whole; what is not Unicode in it is replaced.
    pub fn path(path: &'a Path) -> Self {
        Self::whole(path.to_string_lossy())
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, c) in self.text.chars().enumerate() {
            match c {
                _ if index == self.limit => return write!(f, "… ({} bytes)", self.text.len()),
                c if is_harmless(c) => f.write_char(c)?,
                c => write!(f, "{}", c.escape_default())?,
            }
        }
        Ok(())
    }
}

/// The same in quotes.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        let end = self.0.char_indices().nth(SHOWN).map_or(self.0.len(), |(end, _)| end);
        write!(f, "{:?}", &self.0[..end])?;
        if end < self.0.len() {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

/// Whether a character only shows itself: no control character, and no mark that changes the direction of writing or
/// cannot be seen.
pub fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_shows_itself_is_shown_as_it_is() {
        assert_eq!(Printable::whole("plain äöü 日本").to_string(), "plain äöü 日本");
        assert_eq!(Printable::whole("\u{1b}[2J\r\u{9b}x\u{202e}y").to_string(), "\\u{1b}[2J\\r\\u{9b}x\\u{202e}y");
    }

    #[test]
    fn long_text_is_cut_and_says_how_long_it_was() {
        let long = "x".repeat(1000);
        assert_eq!(Printable::cut(long.as_str()).to_string(), format!("{}… (1000 bytes)", "x".repeat(200)));
        assert_eq!(Quoted(&long).to_string(), format!("\"{}\"… (1000 bytes)", "x".repeat(80)));
        assert_eq!(Quoted("é\n").to_string(), "\"é\\n\"");
    }
}
