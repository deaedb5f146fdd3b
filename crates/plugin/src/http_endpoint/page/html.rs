//! HTML that is written by hand: escaping, and a text with a limit.

use std::fmt::{self, Display, Write as _};

use drakkar_metadata::show::{Shown, shown};

/// The most characters of one name or text.
const MAX_CHARACTERS: usize = 1200;

/// Text from anywhere, safe in an element and in a quoted attribute: markup is escaped, and what is invisible or would change the
/// direction of text is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text<'a>(pub(super) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, shown) in shown(self.0).enumerate() {
            if index == MAX_CHARACTERS {
                return f.write_char('…');
            }
            match shown {
                Shown::Verbatim('&') => f.write_str("&amp;")?,
                Shown::Verbatim('<') => f.write_str("&lt;")?,
                Shown::Verbatim('>') => f.write_str("&gt;")?,
                Shown::Verbatim('"') => f.write_str("&quot;")?,
                Shown::Verbatim('\'') => f.write_str("&#39;")?,
                // Escapes consist of letters, digits, backslashes and braces.
                other => write!(f, "{other}")?,
            }
        }
        Ok(())
    }
}

/// A page that is being written.
#[derive(Debug)]
pub(super) struct Html {
    text: String,
    limit: usize,
}

impl Html {
    /// Starts a page of at most about this many bytes.
    pub(super) fn with_limit(limit: usize) -> Self {
        Self { text: String::with_capacity(16 * 1024), limit }
    }

    /// Adds markup, with [`Text`] for everything that is not a constant or a number.
    pub(super) fn add(&mut self, markup: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        self.text.write_fmt(markup).ok();
    }

    /// Adds a row for each item until the page is full, and says how many of `total` are left out.
    pub(super) fn rows<T>(&mut self, what: &str, items: &[T], total: usize, mut row: impl FnMut(&mut Self, &T)) {
        let mut shown = 0;
        for item in items {
            if self.text.len() >= self.limit {
                break;
            }
            row(self, item);
            shown += 1;
        }
        let left_out = total.saturating_sub(shown);
        if left_out > 0 {
            self.add(format_args!("<tr class=\"more\"><td colspan=\"9\">… and {left_out} more {what}</td></tr>\n"));
        }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_anywhere_is_harmless() {
        let hostile = "<script>alert('1')</script>\" onload=\"x&amp;\u{202e}\u{0}\n\u{1b}[2J";
        let expected =
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot; onload=&quot;x&amp;amp;\\u{202e}\\0\\n\\u{1b}[2J";
        assert_eq!(Text(hostile).to_string(), expected);
        assert_eq!(Text("größer 日本").to_string(), "größer 日本");
        assert_eq!(Text(&"<".repeat(100_000)).to_string().len(), MAX_CHARACTERS * 4 + '…'.len_utf8());
    }

    #[test]
    fn a_full_page_says_what_is_left_out() {
        let mut html = Html::with_limit(100);
        html.rows("claims", &[0; 50], 1000, |html, _| html.add(format_args!("<tr><td>0123456789</td></tr>\n")));
        let text = html.finish();
        assert_eq!(text.matches("0123456789").count(), 4, "{text}");
        assert!(text.ends_with("… and 996 more claims</td></tr>\n"), "{text}");
    }
}
