//! Prints untrusted text safely: in a message, in a log, on a terminal.
//!
//! Names and values come from files that others write. Printed verbatim, they could forge log lines, control a terminal
//! with escape sequences, or reverse the visible order of text with directional formatting characters.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::path::Path;

/// Prints untrusted text with unsafe characters escaped, and with a limit on its length.
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
    /// Prints the whole text.
    pub fn whole(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), limit: usize::MAX }
    }

    /// Prints the first 200 characters of a text and its length.
    pub fn cut(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), limit: 200 }
    }

    /// Prints a whole path; bytes that are not UTF-8 are replaced.
    pub fn path(path: &'a Path) -> Self {
        Self::whole(path.to_string_lossy())
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, shown) in shown(&self.text).enumerate() {
            if index == self.limit {
                return write!(f, "… ({} bytes)", self.text.len());
            }
            write!(f, "{shown}")?;
        }
        Ok(())
    }
}

/// Prints the first 80 characters of untrusted text in quotes, with unsafe characters escaped.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        f.write_char('"')?;
        let mut rest = shown(self.0);
        for shown in rest.by_ref().take(SHOWN) {
            match shown {
                Shown::Verbatim(c @ ('"' | '\\')) => write!(f, "\\{c}")?,
                shown => write!(f, "{shown}")?,
            }
        }
        f.write_char('"')?;
        if rest.next().is_some() {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

/// A character of untrusted text, verbatim or escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// A character that is safe to print.
    Verbatim(char),
    /// A character that is unsafe or invisible, and is printed escaped.
    Escaped(char),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbatim(c) => f.write_char(*c),
            Self::Escaped('\0') => f.write_str("\\0"),
            Self::Escaped(c) => write!(f, "{}", c.escape_default()),
        }
    }
}

/// The maximum number of combining marks on a character. Scripts need two; more would cover other lines.
const MAX_MARKS: usize = 2;

/// Returns the characters of a text, each marked as safe or to be escaped.
pub fn shown(text: &str) -> impl Iterator<Item = Shown> {
    // A mark at the start would combine with the character before the text.
    let mut marks = MAX_MARKS;
    text.chars().map(move |c| {
        if is_mark(c) {
            marks += 1;
        } else {
            marks = if is_safe(c) { 0 } else { MAX_MARKS };
        }
        let is_verbatim = is_safe(c) || (is_mark(c) && marks <= MAX_MARKS);
        if is_verbatim { Shown::Verbatim(c) } else { Shown::Escaped(c) }
    })
}

/// Returns whether a character is safe to print anywhere.
///
/// It is assigned and visible, and not a control, format, private-use or combining character. The only safe white space is
/// the ASCII space.
pub fn is_safe(c: char) -> bool {
    match c {
        ' '..='~' => true,
        c => !is_hidden(c) && c.escape_debug().next() == Some(c),
    }
}

/// Returns whether a character is a mark that combines with the character before it.
fn is_mark(c: char) -> bool {
    // `escape_debug` escapes a mark at the start of a text, but not within one.
    let mut buffer = [b'a'; 8];
    let length = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let within = std::str::from_utf8(&buffer[..length]).ok().and_then(|text| text.escape_debug().nth(1));
    !c.is_ascii() && !is_hidden(c) && within == Some(c) && c.escape_debug().next() != Some(c)
}

/// Returns whether a character is printable but invisible: fillers, joiners, variation selectors (Unicode's
/// `Default_Ignorable_Code_Point` without the format characters) and the blank braille pattern.
fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{34f}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{1d159}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_characters_are_printed_verbatim() {
        assert_eq!(Printable::whole("plain äöü 日本").to_string(), "plain äöü 日本");
        assert_eq!(Printable::whole("\u{1b}[2J\r\u{9b}x\u{202e}y").to_string(), "\\u{1b}[2J\\r\\u{9b}x\\u{202e}y");
    }

    /// Format characters, separators, private and unassigned characters, fillers, variation selectors, tags.
    #[test]
    fn invisible_characters_are_escaped() {
        let ranges = [
            0x0..=0x1f,
            0x7f..=0xa0,
            0xad..=0xad,
            0x34f..=0x34f,
            0x600..=0x605,
            0x61c..=0x61c,
            0x6dd..=0x6dd,
            0x70f..=0x70f,
            0x890..=0x891,
            0x8e2..=0x8e2,
            0x115f..=0x1160,
            0x1680..=0x1680,
            0x17b4..=0x17b5,
            0x180b..=0x180f,
            0x2000..=0x200f,
            0x2028..=0x202f,
            0x205f..=0x206f,
            0x2800..=0x2800,
            0x3000..=0x3000,
            0x3164..=0x3164,
            0xe000..=0xf8ff,
            0xfe00..=0xfe0f,
            0xfeff..=0xfeff,
            0xffa0..=0xffa0,
            0xfff0..=0xfffb,
            0xfffe..=0xffff,
            0x110bd..=0x110bd,
            0x110cd..=0x110cd,
            0x13430..=0x1343f,
            0x1bca0..=0x1bca3,
            0x1d173..=0x1d17a,
            0xe0000..=0xe0fff,
            0xf0000..=0xf00ff,
            0x10_ff00..=0x10_ffff,
            0x378..=0x379,
        ];
        for c in ranges.into_iter().flatten().filter_map(char::from_u32) {
            assert!(!is_safe(c), "U+{:04X}", u32::from(c));
            let text = Printable::whole(format!("a{c}b")).to_string();
            assert!(text.starts_with("a\\") && text.ends_with('b'), "U+{:04X}: {text}", u32::from(c));
            assert!(!Quoted(&format!("a{c}b")).to_string().contains(c), "U+{:04X}", u32::from(c));
        }
    }

    #[test]
    fn combining_marks_are_kept_up_to_a_limit() {
        // Vietnamese, Hindi and Thai.
        for text in ["Vie\u{302}\u{323}t", "\u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940}", "\u{e17}\u{e35}\u{e48}"] {
            assert_eq!(Printable::whole(text).to_string(), text);
        }
        let flood = format!("a{}", "\u{300}".repeat(4));
        assert_eq!(Printable::whole(flood).to_string(), "a\u{300}\u{300}\\u{300}\\u{300}");
        assert_eq!(Printable::whole("\u{300}").to_string(), "\\u{300}");
    }

    #[test]
    fn long_text_is_truncated_with_its_length() {
        let long = "x".repeat(1000);
        assert_eq!(Printable::cut(long.as_str()).to_string(), format!("{}… (1000 bytes)", "x".repeat(200)));
        assert_eq!(Quoted(&long).to_string(), format!("\"{}\"… (1000 bytes)", "x".repeat(80)));
        assert_eq!(Quoted("é\n").to_string(), "\"é\\n\"");
    }
}
