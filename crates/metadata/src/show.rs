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
        for (index, shown) in shown(&self.text).enumerate() {
            if index == self.limit {
                return write!(f, "… ({} bytes)", self.text.len());
            }
            write!(f, "{shown}")?;
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
        f.write_char('"')?;
        let mut rest = shown(self.0);
        for shown in rest.by_ref().take(SHOWN) {
            match shown {
                Shown::AsItIs(c @ ('"' | '\\')) => write!(f, "\\{c}")?,
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

/// One character of text that somebody else chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// It only shows itself.
    AsItIs(char),
    /// It could do more than be read, or cannot be seen: it is to be escaped.
    Escaped(char),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsItIs(c) => f.write_char(*c),
            Self::Escaped('\0') => f.write_str("\\0"),
            Self::Escaped(c) => write!(f, "{}", c.escape_default()),
        }
    }
}

/// How many combining marks a character bears. The scripts of the world need two; a flood of them covers other lines.
const MAX_MARKS: usize = 2;

/// How the characters of a text are to be shown, one by one.
pub fn shown(text: &str) -> impl Iterator<Item = Shown> {
    // A mark at the beginning would stand on what is before the text.
    let mut marks = MAX_MARKS;
    text.chars().map(move |c| {
        if is_mark(c) {
            marks += 1;
        } else {
            marks = if is_harmless(c) { 0 } else { MAX_MARKS };
        }
        let as_it_is = is_harmless(c) || (is_mark(c) && marks <= MAX_MARKS);
        if as_it_is { Shown::AsItIs(c) } else { Shown::Escaped(c) }
    })
}

/// Whether a character only shows itself, wherever it stands: it is no control or format character, is assigned and
/// not for private use, can be seen, and is no mark that combines with the character before it. Of all white space only
/// the blank is harmless.
pub fn is_harmless(c: char) -> bool {
    match c {
        ' '..='~' => true,
        c => !is_hidden(c) && c.escape_debug().next() == Some(c),
    }
}

/// Whether a character is a mark that combines with the one before it.
fn is_mark(c: char) -> bool {
    // The standard library knows what can be printed. By itself it also escapes marks, within a text it does not.
    let mut buffer = [b'a'; 8];
    let length = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let within = std::str::from_utf8(&buffer[..length]).ok().and_then(|text| text.escape_debug().nth(1));
    !c.is_ascii() && !is_hidden(c) && within == Some(c) && c.escape_debug().next() != Some(c)
}

/// Characters that can be printed and not seen: fillers, joiners and selectors of variants (Unicode's
/// `Default_Ignorable_Code_Point`, as far as they are no format characters), and the braille pattern without dots.
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
    fn only_what_shows_itself_is_shown_as_it_is() {
        assert_eq!(Printable::whole("plain äöü 日本").to_string(), "plain äöü 日本");
        assert_eq!(Printable::whole("\u{1b}[2J\r\u{9b}x\u{202e}y").to_string(), "\\u{1b}[2J\\r\\u{9b}x\\u{202e}y");
    }

    /// Format characters, separators, private and unassigned characters, fillers, selectors of variants, tags.
    #[test]
    fn what_cannot_be_seen_is_made_visible() {
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
            assert!(!is_harmless(c), "U+{:04X}", u32::from(c));
            let text = Printable::whole(format!("a{c}b")).to_string();
            assert!(text.starts_with("a\\") && text.ends_with('b'), "U+{:04X}: {text}", u32::from(c));
            assert!(!Quoted(&format!("a{c}b")).to_string().contains(c), "U+{:04X}", u32::from(c));
        }
    }

    #[test]
    fn marks_stay_on_their_character_until_there_are_too_many() {
        // Vietnamese, Hindi and Thai, as people write them.
        for text in ["Vie\u{302}\u{323}t", "\u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940}", "\u{e17}\u{e35}\u{e48}"] {
            assert_eq!(Printable::whole(text).to_string(), text);
        }
        let flood = format!("a{}", "\u{300}".repeat(4));
        assert_eq!(Printable::whole(flood).to_string(), "a\u{300}\u{300}\\u{300}\\u{300}");
        assert_eq!(Printable::whole("\u{300}").to_string(), "\\u{300}");
    }

    #[test]
    fn long_text_is_cut_and_says_how_long_it_was() {
        let long = "x".repeat(1000);
        assert_eq!(Printable::cut(long.as_str()).to_string(), format!("{}… (1000 bytes)", "x".repeat(200)));
        assert_eq!(Quoted(&long).to_string(), format!("\"{}\"… (1000 bytes)", "x".repeat(80)));
        assert_eq!(Quoted("é\n").to_string(), "\"é\\n\"");
    }
}
